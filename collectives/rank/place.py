"""Entering the host that a rank belongs to: namespaces of Linux (namespaces(7)), named by files of /proc."""

import ctypes
import os

from .protocol import Place


def enter(place: Place) -> None:
    """Move this process, which may have one thread only, to a host. Raise OSError if the host is gone."""
    if not place.namespaces:
        return
    here = os.getcwd()
    for path in place.namespaces:
        setns(path)
    os.chdir(here)  # a mount namespace begins at its root


def setns(path: str) -> None:
    """Enter one namespace: of process ids only by the children to come. Raise OSError if that is refused."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, 0):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(descriptor)
