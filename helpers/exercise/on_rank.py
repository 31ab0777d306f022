"""The part of a check that ranks import: the run of its cases, and a file as an argument. It needs only what they have.

On a learner's ranks a file holds its bytes and records the reads of them.  On graded ranks a stand-in without any
bytes replaces it: each read asks the scorer, which counts (grader/inside/sandboxed_rank.py).
"""

import errno
import io
import time
from contextlib import suppress
from typing import Any, Callable, Iterator, Sequence

import torch
import torch.distributed as dist

LATE_SECONDS = 0.05


def perform(answer: Callable, late: Sequence[int | None], inputs: list[list[tuple]]) -> list[tuple[Any, tuple, str]]:
    """Call the answer once per case; return each case's outcome as `outcome` does.

    late: per case, the rank that starts after the others.  inputs: per case and rank, the arguments.
    """
    rank, came = dist.get_rank(), []
    for k, arguments in enumerate(inputs):
        if k:
            dist.barrier()  # between two cases: no rank runs ahead
        if late[k] == rank:
            time.sleep(LATE_SECONDS)  # tried here: peers that have to wait
        came.append(outcome(answer, arguments[rank]))
    return came


def outcome(answer: Callable, arguments: tuple) -> tuple[Any, tuple, str]:
    """The answer's result, its arguments afterward, and a word on what else is left.

    The word is "flags" for a gradient, or a demand for one, on an argument; "argument" where that is the result; or "".
    """
    given, passed = list(_tensors(arguments)), hold(arguments)
    result = answer(*arguments)
    with suppress(AttributeError, RuntimeError):  # a tensor without memory of its own
        if any(tensor.requires_grad or tensor.grad is not None for tensor in given):
            return result, passed, "flags"
        addresses = {tensor.data_ptr() for tensor in given if tensor.numel()}
        if any(tensor.numel() and tensor.data_ptr() in addresses for tensor in _tensors(result)):
            return result, passed, "argument"
    return result, passed, ""


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def hold(value: Any) -> Any:
    """Aliases of the arguments that the answer can't rebind: it can't replace a tensor or a list in them."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(hold, value))
    return value.detach() if isinstance(value, torch.Tensor) else value


class File(io.RawIOBase):
    """An open file with these bytes, as open(path, "rb", buffering=0) gives one: each read gets as much as it asks for.

    words: its name in messages.  reads: bytes that each read of it got.
    """

    def __init__(self, data: bytes, words: str = "a file", reads: tuple[int, ...] = ()) -> None:
        self._data, self.words, self.reads, self._at = data, words, list(reads), 0

    def readable(self) -> bool:
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        if at < 0:
            raise OSError(errno.EINVAL, "there is nothing before the first byte of a file")
        self._at = at
        return at

    def readinto(self, buffer) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        buffer = memoryview(buffer).cast("B")
        part = self._data[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        if len(buffer):
            self.reads.append(len(part))
        return len(part)

    def __reduce__(self):
        return File, (self._data, self.words, tuple(self.reads))

    def __repr__(self) -> str:
        return self.words


def content(file: File) -> bytes:
    """All bytes of a file, for the exercise's author and its judge: this isn't a read."""
    return file._data
