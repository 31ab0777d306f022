"""The system calls left to a rank that runs submitted code: to compute, and to use what it has open.

A seccomp filter (Linux, man 2 seccomp) that lists what is allowed; everything else fails with EPERM.  So no processes,
no sockets but pairs of one's own, no signals to others, no shared memory, no locks, no futex of another process, no new
files, even where the sandbox's walls would allow them.  It cannot be taken off.
"""

import csv
import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from functools import cache
from pathlib import Path

CPU_SECONDS = 10.0  # of processor time for a rank that is alone
# For each of several: eight on two cores get no more in an answer's ten seconds. A right one rarely needs a fiftieth.
SHARED_CPU_SECONDS = 2.5
LIFE_SECONDS = 100  # of processor time for a rank in all worlds together, should nothing look any more
MAX_FILE_BYTES, MAX_OPEN_FILES = 1 << 16, 64

# name, and its number on each architecture that has it (asm/unistd_64.h and asm-generic/unistd.h)
CALLS = Path(__file__).with_name("syscalls.csv")
CLONE_THREAD = 0x10000
FUTEX_PRIVATE_FLAG = 0x80  # without it, two ranks meet on the page of a file that both have mapped
AF_UNIX = 1  # asyncio's loop wakes itself by a pair of such sockets
FCNTLS = (0, 1, 2, 3, 4, 1030)  # duplicate, flags; no locks, leases, notifications
IOCTLS = (0x5401, 0x5421, 0x5450, 0x5451)  # TCGETS (isatty), FIONBIO, FIONCLEX, FIOCLEX
# Access patterns, freeing, large pages. No advice that evicts a file's pages for every process that reads it.
ADVICES = (0, 1, 2, 3, 4, 8, 14, 15)
CLOCKS = tuple(range(12))  # the system's and one's own (linux/time.h); the others are of other processes
PRCTLS = (15, 16, 0x53564D41)  # names of threads and of memory

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH
_LOAD, _EQUAL, _HAS_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCH, _FIRST, _SECOND, _THIRD = 0, 4, 16, 24, 32  # offsets in struct seccomp_data


def is_supported() -> bool:
    """Whether there is a filter for this machine."""
    return sys.platform == "linux" and platform.machine() in _ARCHITECTURES


def computing_seconds(world_size: int) -> float:
    """Processor time that a rank has in a world of this size."""
    return CPU_SECONDS if world_size == 1 else SHARED_CPU_SECONDS


def limit(memory: int) -> None:
    """Limits on this process, whatever the system.  memory: bytes of address space; 0: any."""
    limits = {"CPU": LIFE_SECONDS, "FSIZE": MAX_FILE_BYTES, "NOFILE": MAX_OPEN_FILES, "CORE": 0}
    if hasattr(resource, "RLIMIT_SIGPENDING"):
        limits["SIGPENDING"] = 0  # all ranks would share what there is
    if memory:
        limits["AS"] = memory
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def close_in() -> None:
    """From here on this process computes, and no more. Raises OSError if the system refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    CAP_AMBIENT, CLEAR_ALL, VERSION_3, NO_NEW_PRIVILEGES, SECCOMP, FILTER = 47, 4, 0x20080522, 38, 22, 2
    if libc.prctl(CAP_AMBIENT, CLEAR_ALL, 0, 0, 0) or libc.capset(struct.pack("Ii", VERSION_3, 0), bytes(24)):
        raise OSError(ctypes.get_errno(), "the system takes no capabilities back")
    program = b"".join(_program(platform.machine()))
    code = ctypes.create_string_buffer(program)
    described = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    for arguments in ((NO_NEW_PRIVILEGES, 1, 0, 0, 0), (SECCOMP, FILTER, described, 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "the system takes no seccomp filter")


@cache
def call_numbers(machine: str) -> dict[str, int]:
    """The system calls allowed on a kind of processor, name -> number there."""
    with CALLS.open(encoding="ascii") as file:
        return {call["name"]: int(call[machine]) for call in csv.DictReader(file) if call[machine]}


def _program(machine: str) -> list[bytes]:
    """The filter, for Linux's classic BPF machine: load, compare, return."""
    numbers, me = call_numbers(machine), os.getpid()
    allowed_with = {  # some values of one argument, or a bit in it
        "clone": (_FIRST, _HAS_BIT, (CLONE_THREAD,)), "futex": (_SECOND, _HAS_BIT, (FUTEX_PRIVATE_FLAG,)),
        "kill": (_FIRST, _EQUAL, (me,)), "tgkill": (_FIRST, _EQUAL, (me,)), "socketpair": (_FIRST, _EQUAL, (AF_UNIX,)),
        "fcntl": (_SECOND, _EQUAL, FCNTLS), "ioctl": (_SECOND, _EQUAL, IOCTLS), "prctl": (_FIRST, _EQUAL, PRCTLS),
        "madvise": (_THIRD, _EQUAL, ADVICES), "clock_gettime": (_FIRST, _EQUAL, CLOCKS),
    }  # fmt: skip
    errors = {
        "clone3": errno.ENOSYS,  # the C library then uses clone
        # "The value has changed": a wait for the end of a thread, which glibc makes without the flag, then looks again.
        "futex": errno.EAGAIN,
    }
    code = [_op(_LOAD, _ARCH), _op(_EQUAL, _ARCHITECTURES[machine], 1, 0), _op(_RETURN, _KILL), _op(_LOAD, _NUMBER)]
    for name, number in numbers.items():
        argument, test, values = allowed_with.get(name, (_NUMBER, _EQUAL, () if name in errors else (number,)))
        last = len(values) - 1
        tests = [_op(test, value, last - k, int(k == last)) for k, value in enumerate(values)]
        body = [_op(_LOAD, argument), *tests, _op(_RETURN, _ALLOW)] if values else []
        body += [_op(_RETURN, _FAIL | errors.get(name, errno.EPERM))]
        code += [_op(_EQUAL, number, 0, len(body)), *body]
    return code + [_op(_RETURN, _FAIL | errno.EPERM)]


def _op(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, k)
