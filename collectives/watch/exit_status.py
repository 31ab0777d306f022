"""The exit status of processes of this host, as the kernel reports it to a process that is not their parent."""

import os
import select
import struct
from contextlib import suppress
from pathlib import Path

try:
    from fcntl import ioctl
except ImportError:  # Windows
    ioctl = None

# linux/pidfd.h: the exit status of a process that has been waited for, since Linux 6.15.
_INFO = struct.Struct("=Q52xi")  # struct pidfd_info: mask, ..., exit_code
_INFO_EXIT = 1 << 3
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11


def this_host() -> str:
    """An id of this host's process numbers: equal for two processes that see each other under the same numbers."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    return ""


class Process:
    """A process of this host, whose end makes its file descriptor readable.

    handle: such a descriptor, as the process itself has opened it: then it may have ended.  Raises OSError where there
    is none of this number, or the system has no such descriptors.
    """

    def __init__(self, pid: int, handle: int | None = None) -> None:
        if not hasattr(os, "pidfd_open"):
            raise OSError("this system has no pidfd_open")
        self._pid, self._fd = pid, os.pidfd_open(pid) if handle is None else handle

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)

    def status(self) -> int | None:
        """Its exit code, or minus the number of the signal that ended it; None if it is no longer known."""
        if (status := self._as_zombie()) is None:
            status = self._as_waited_for()
        return None if status is None else os.waitstatus_to_exitcode(status)

    def _as_zombie(self) -> int | None:
        """Its wait status, as long as its parent has not asked for it."""
        with suppress(OSError):
            fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
            return int(fields[49]) if fields[0] == "Z" else None  # proc(5): the 52nd of all is exit_code
        return None

    def _as_waited_for(self) -> int | None:
        about = bytearray(_INFO.pack(_INFO_EXIT, 0))
        with suppress(OSError, TypeError):
            ioctl(self._fd, _GET_INFO, about)
            mask, status = _INFO.unpack(about)
            return status if mask & _INFO_EXIT else None
        return None


def wait_for_end(pid: int | None, seconds: float) -> None:
    """Wait until a process has ended, but no longer than this."""
    with suppress(OSError):
        if pid is not None:
            process = Process(pid)
            try:
                select.select([process], [], [], seconds)
            finally:
                process.close()
