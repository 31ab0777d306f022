"""Sockets that the processes of one user on one host find by a name.

On Linux such a name isn't a file, and is free once its socket is closed.  Elsewhere, or if COLLECTIVES_SOCKETS names a
folder, it's a file in a folder that only this user can enter.  A file outlives its process, so the listener also
holds a lock on a second file.  If that lock is free, the socket's file is a leftover, and is replaced.
"""

import errno
import fcntl
import os
import socket
import stat
import struct
import sys
from contextlib import suppress

FOLDER = "COLLECTIVES_SOCKETS"
MAX_ADDRESS_BYTES = 103  # macOS's limit, the smallest


class Untrusted(OSError):
    """A place where another user's process could be listening, or is. The message has the remedy."""


class Listener(socket.socket):
    """A socket that listens under a name.  close() is for this process alone; remove() makes the name free.

    Raises OSError with EADDRINUSE if a process is listening there, Untrusted if the folder isn't private.
    """

    def __init__(self, name: str, backlog: int) -> None:
        super().__init__(socket.AF_UNIX)
        self._files, self._lock = (), -1
        try:
            address = _address(name)
            if not address.startswith("\0"):
                self._lock = _lock(f"{address}.lock")
                self._files = address, f"{address}.lock"
                with suppress(FileNotFoundError):
                    os.unlink(address)
            self.bind(address)
            self.listen(backlog)
        except BaseException:
            self.remove()
            raise

    def close(self) -> None:
        super().close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def remove(self) -> None:
        for file in self._files:
            with suppress(OSError):  # the folder was cleaned up
                os.unlink(file)
        self._files = ()
        self.close()


def connect(name: str) -> socket.socket:
    """A connection to the listener of that name.

    Raises OSError without a listener, Untrusted if it's another user's, or could be.
    """
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(_address(name))
        if not same_user(sock):
            raise Untrusted("somebody else's process is in its place")
    except BaseException:
        sock.close()
        raise
    return sock


def same_user(sock: socket.socket) -> bool:
    """Whether the other end of a local connection is a process of this user."""
    try:
        if hasattr(socket, "SO_PEERCRED"):  # Linux
            _, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        elif hasattr(socket, "LOCAL_PEERCRED"):  # macOS, FreeBSD: a struct xucred, which begins with a version
            _, user = struct.unpack_from("=II", sock.getsockopt(0, socket.LOCAL_PEERCRED, 128))
        else:
            return True  # its file is in a folder that no other user can enter
    except OSError:  # it has closed its end
        return False
    return user == os.getuid()


def _address(name: str) -> str:
    folder = os.environ.get(FOLDER)
    if sys.platform == "linux" and not folder:
        return f"\0{name}"
    folder = folder or f"/tmp/collectives-{os.getuid()}"
    _make_private(folder)
    address = os.path.join(os.path.abspath(folder), name)
    if len(os.fsencode(address)) > MAX_ADDRESS_BYTES:
        raise Untrusted(f"{folder} is too long a path for a socket. Set {FOLDER} to a shorter one.")
    return address


def _make_private(folder: str) -> None:
    """Make the folder if it isn't there. Raises Untrusted unless it's this user's, and only this user can enter it."""
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        flaw = "isn't a folder"
    elif found.st_uid != os.getuid():
        flaw = f"belongs to a different user ({found.st_uid})"
    elif found.st_mode & 0o077:
        flaw = f"is open to other users (its mode is {stat.S_IMODE(found.st_mode):o}, not 700)"
    else:
        return
    raise Untrusted(f"{folder} {flaw}, so they could listen there. Set {FOLDER} to a folder that only you can enter.")


def _lock(path: str) -> int:
    """The descriptor of a file that is made if it isn't there, and locked until all processes have closed it.

    Raises OSError with EADDRINUSE if it's locked already.
    """
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                return lock
        except BlockingIOError:
            os.close(lock)
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)) from None
        except FileNotFoundError:
            pass
        os.close(lock)  # whoever held it has removed it meanwhile
