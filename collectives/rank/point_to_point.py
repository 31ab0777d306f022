"""The part of a Tracer for gloo's messages: handed to their backend at once, and held no longer than the program does.

A message of gloo dies with its Work, and so is lost if the program releases that too early. Kept alive by the recorder,
it would arrive, and the program would behave differently.
"""

from __future__ import annotations

import inspect
from collections import deque
from types import FrameType
from typing import Any, Callable
from weakref import ref

import torch.distributed as dist
from torch.distributed import ProcessGroup, Work

from ..log import backends
from ..log.messages import Completed
from . import torch_private
from .traced import TracedWork

_SEND, _RECV = (inspect.unwrap(function).__code__ for function in (dist.send, dist.recv))


class Released(ref):
    """A weak reference to a message's Work, and what to report once the program has released that.

    outputs: see Part.  after: the same, if the call repeats an earlier one.
    """

    __slots__ = "index", "outputs", "after", "streams"

    def __init__(self, traced: TracedWork, gone: Callable[[Released], None]) -> None:
        super().__init__(traced, gone)
        ((self.index, self.outputs),) = traced.parts
        self.after, self.streams = traced.after, traced.streams


class WeakMessages:
    """A tracer's messages whose Work only the program holds."""

    def __init__(self, tracer) -> None:
        self._tracer = tracer
        self.held: dict[int, Released] = {}  # by index, those whose end is to be reported
        self.released: deque[Released] = deque()  # those whose Work is gone, which is still to be reported

    def methods(self) -> dict[str, Callable]:
        """By name, what the program calls instead of the methods of ProcessGroup that make messages."""
        return {name: self._method(torch_private.REPEATED[name][0]) for name in torch_private.MESSAGES}

    def _method(self, own: Callable) -> Callable:
        @torch_private.never_compiled
        def called(*args, **kwargs):
            work = own(*args, **kwargs)
            self.hold_weakly(work)
            return work

        return called

    def hold_weakly(self, work: Work) -> None:
        """Hold a message of gloo, whose Work Python has by now, no longer than the program does."""
        if type(work) is TracedWork and (work.event is None or backends.of(work.event.backend).drops_messages):
            with self._tracer.lock:
                if self._tracer.open.pop(work.index, None):
                    self.held[work.index] = Released(work, self.released.append)

    def works(self) -> list[TracedWork]:
        """The open messages whose Work the program still has."""
        return [work for held in list(self.held.values()) if (work := held()) is not None]

    def report_released(self) -> None:
        """Report messages whose Work the program released before they were complete."""
        tracer = self._tracer
        while self.released:
            held = self.released.popleft()
            if self.held.pop(held.index, None):
                tracer.watch.remove(held.index)
                with torch_private.NoModes():
                    after = held.after if held.after is not None else tracer.read(held.outputs, held.streams, False)
                    tracer.emit(Completed(held.index, after, None, False, None))


def message(name: str, group: ProcessGroup, given: dict[str, Any]) -> Work:
    """Send or receive as the operator does for dense tensors: it hands its arguments to the backend unchanged.

    Calling the operator itself takes four times as long, and a ring or a pipeline makes thousands of messages.
    Not for NCCL, which returns no Work within a batch: only the operator can return that.
    """
    tensors, tag = given["tensors"], given["tag"]
    backend = torch_private.backend(group, tensors[0].device)
    if name == "send":
        return backend.send(tensors, given["dst"], tag)
    if name == "recv_":
        return backend.recv(tensors, given["src"], tag)
    return backend.recv_anysource(tensors, tag)


def peer(ranks: tuple[int, ...], place: int, act: str) -> int:
    """The global rank at a place of a group. Elsewhere gloo would look for a rank that never joins it, until its timeout."""
    size = len(ranks)
    if 0 <= place < size:
        return ranks[place]
    valid = f"Ranks are 0 to {size - 1}" if size > 1 else "The only rank is 0"
    raise ValueError(
        f"there is no rank {place} to {act}. {valid}; on a ring, use (rank + 1) % {size} and (rank - 1) % {size}."
    )


def is_blocking(frame: FrameType | None) -> bool:
    """Whether send() or recv() makes the call: both are made of isend() or irecv(), and wait."""
    for _ in range(3):  # isend, its decorator, send
        if frame is None or frame.f_code is _SEND or frame.f_code is _RECV:
            break
        frame = frame.f_back
    return frame is not None and (frame.f_code is _SEND or frame.f_code is _RECV)
