"""Runs a command on a host: `enter.py PID COMMAND...`, PID being the host's process 1 as seen from outside.

It ends as the command ends, and forwards SIGTERM and SIGINT to it.  A separate script, without imports of this package.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
KINDS = ("user", "net", "uts", "mnt", "pid")  # of namespaces, in the order in which they can be entered


def main(pid: str, *command: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    here = os.getcwd()
    for kind in KINDS:
        with open(f"/proc/{pid}/ns/{kind}") as there:
            if libc.setns(there.fileno(), 0):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), f"{kind} namespace of process {pid}")
    os.chdir(here)  # a mount namespace begins at its root
    child = os.fork()  # only a child is inside the PID namespace
    if child == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        see_own_processes(libc)
        os.execvp(command[0], command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: os.kill(child, number))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)  # as a shell reports it


def see_own_processes(libc: ctypes.CDLL) -> None:
    """Give this process a /proc of the host's processes, with the process ids that they see themselves.

    So programs find themselves in it.  In a container that hides parts of its /proc, the machine's stays.
    """
    if libc.unshare(CLONE_NEWNS) == 0:
        libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)


if __name__ == "__main__":
    main(*sys.argv[1:])
