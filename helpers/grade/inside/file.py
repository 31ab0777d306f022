"""A file of which a rank holds no byte: each read of it asks the scorer, who has the file and counts."""

from __future__ import annotations

import errno
import io
from typing import Any

from .group import Line
from .protocol import Opened


class File(io.RawIOBase):
    """An open file as open(path, "rb", buffering=0) gives one."""

    def __init__(self, line: Line, opened: Opened) -> None:
        self._line, self._opened, self._at = line, opened, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._opened.size}[whence]
        if at < 0:
            raise OSError(errno.EINVAL, "there is nothing before the first byte of a file")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if not len(buffer):
            return 0
        _, part = self._line.ask({"read": self._opened.number, "at": self._at, "most": len(buffer)})
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)
