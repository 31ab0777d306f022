"""The system calls left to a rank that runs submitted code: to compute, and to use what it has open.

A seccomp filter (Linux, man 2 seccomp) that lists what is allowed; everything else fails
with EPERM.  So no processes, no sockets, no signals to others, no shared memory, no locks,
no futex and no clock of another process, no new files: also where the sandbox's walls would
allow them.  It cannot be taken off.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import resource
import struct
import sys

SPARE_MEMORY_BYTES = 512 << 20  # of address space for an answer, beyond what torch takes
CPU_SECONDS = 30
MAX_FILE_BYTES, MAX_OPEN_FILES = 1 << 16, 64

# name: number on x86_64, on aarch64 (asm/unistd_64.h and asm-generic/unistd.h)
ALLOWED = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "close": (3, 57),
    "close_range": (436, 436), "fstat": (5, 80), "newfstatat": (262, 79), "stat": (4, None), "lstat": (6, None),
    "statx": (332, 291), "lseek": (8, 62), "open": (2, None), "openat": (257, 56), "readlink": (89, None),
    "readlinkat": (267, 78), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439),
    "getdents": (78, None), "getdents64": (217, 61), "getcwd": (79, 17), "statfs": (137, 43), "fstatfs": (138, 44),
    "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216), "madvise": (28, 233),
    "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132), "set_robust_list": (273, 99), "rseq": (334, 293),
    "set_tid_address": (218, 96), "membarrier": (324, 283), "clock_getres": (229, 114),
    "gettimeofday": (96, 169), "time": (201, None), "nanosleep": (35, 101),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "getcpu": (309, 168), "getrandom": (318, 278),
    "restart_syscall": (219, 128), "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22),
    "eventfd2": (290, 19), "pipe2": (293, 59), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24),
    "exit": (60, 93), "exit_group": (231, 94), "gettid": (186, 178), "getpid": (39, 172), "getppid": (110, 173),
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "uname": (63, 160),
    "getrusage": (98, 165), "times": (100, 153), "getrlimit": (97, 163), "arch_prctl": (158, None),
}  # fmt: skip
CLONE, CLONE3, KILL, TGKILL, FCNTL, IOCTL, PRCTL, PRLIMIT, FUTEX, CLOCK_GETTIME, CLOCK_NANOSLEEP = (
    (56, 220), (435, 435), (62, 129), (234, 131), (72, 25), (16, 29), (157, 167), (302, 261), (202, 98), (228, 113), (230, 115),
)  # fmt: skip
CLONE_THREAD = 0x10000
FUTEX_PRIVATE_FLAG = 0x80  # without it, two ranks meet on the page of a file that both have mapped
NEGATIVE = 0x80000000  # the clock of a process by its number: how much another rank has computed
FCNTLS = (0, 1, 2, 3, 4, 1030)  # duplicate, flags; no locks, leases, notifications
IOCTLS = (0x5401, 0x5421, 0x5450, 0x5451)  # TCGETS (isatty), FIONBIO, FIONCLEX, FIOCLEX
PRCTLS = (15, 16, 0x53564D41)  # names of threads and of memory

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column, AUDIT_ARCH
_LOAD, _EQUAL, _HAS_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCH, _FIRST, _SECOND = 0, 4, 16, 24  # offsets in struct seccomp_data


def known() -> bool:
    """Whether there is a filter for this machine."""
    return sys.platform == "linux" and platform.machine() in _ARCHITECTURES


def limit(base: int) -> None:
    """Limits on this process, whatever the system.  base: bytes of address space it has already, see used."""
    hard = [
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ]
    if base:
        hard.append((resource.RLIMIT_AS, base + SPARE_MEMORY_BYTES))
    for what, most in hard:
        resource.setrlimit(what, (most, most))


def used() -> int:
    """Bytes of address space in use, rounded up; 0 where the system does not limit it."""
    if sys.platform != "linux":
        return 0
    step = 64 << 20
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        for most in range(step, 1 << 40, step):
            resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
            try:
                mmap.mmap(-1, 1 << 16).close()
                return most
            except OSError:
                continue
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    return 0


def close_in() -> None:
    """From here on this process computes, and no more. Raises OSError if the system refuses."""
    column, arch = _ARCHITECTURES[platform.machine()]
    program = b"".join(_program(column, arch))
    code = ctypes.create_string_buffer(program)
    described = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2
    for arguments in ((NO_NEW_PRIVILEGES, 1, 0, 0, 0), (SECCOMP, FILTER, described, 0, 0)):
        if libc.prctl(arguments[0], *arguments[1:]):
            raise OSError(ctypes.get_errno(), "the system takes no seccomp filter")


def _program(column: int, arch: int) -> list[bytes]:
    """The filter, for Linux's classic BPF machine: load, compare, return."""
    fail = _FAIL | errno.EPERM
    code = [_op(_LOAD, _ARCH), _op(_EQUAL, arch, 1, 0), _op(_RETURN, _KILL), _op(_LOAD, _NUMBER)]
    for numbers in ALLOWED.values():
        if numbers[column] is not None:
            code += [_op(_EQUAL, numbers[column], 0, 1), _op(_RETURN, _ALLOW)]
    code += [_op(_EQUAL, CLONE3[column], 0, 1), _op(_RETURN, _FAIL | errno.ENOSYS)]  # the C library then uses clone
    code += _when(CLONE[column], _FIRST, [_op(_HAS_BIT, CLONE_THREAD, 0, 1)], fail)
    # "The value has changed": a wait for the end of a thread, which glibc makes without the flag, then looks again.
    code += _when(FUTEX[column], _SECOND, [_op(_HAS_BIT, FUTEX_PRIVATE_FLAG, 0, 1)], _FAIL | errno.EAGAIN)
    for numbers in (CLOCK_GETTIME, CLOCK_NANOSLEEP):
        code += _when(numbers[column], _FIRST, [_op(_HAS_BIT, NEGATIVE, 1, 0)], fail)
    me = os.getpid()
    for numbers, offset, values in (
        (KILL, _FIRST, (me,)), (TGKILL, _FIRST, (me,)), (PRLIMIT, _FIRST, (0, me)),
        (FCNTL, _SECOND, FCNTLS), (IOCTL, _SECOND, IOCTLS), (PRCTL, _FIRST, PRCTLS),
    ):  # fmt: skip
        tests = [
            _op(_EQUAL, value, len(values) - k - 1, 0 if k < len(values) - 1 else 1) for k, value in enumerate(values)
        ]
        code += _when(numbers[column], offset, tests, fail)
    return code + [_op(_RETURN, fail)]


def _when(number: int, offset: int, tests: list[bytes], fail: int) -> list[bytes]:
    """This call is allowed if one of its arguments passes the tests, and fails otherwise."""
    body = [_op(_LOAD, offset), *tests, _op(_RETURN, _ALLOW), _op(_RETURN, fail)]
    return [_op(_EQUAL, number, 0, len(body)), *body]


def _op(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, k)
