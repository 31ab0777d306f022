"""Calls that are like an earlier one: found by where the program makes them, and not read again.

A training step makes thousands of messages and sums in a few places, and to read one takes longer than to send it.  So
what calls of one place have in common is kept as a Pattern.  The next one goes straight to its backend: neither through
torch's dispatcher nor through the kernel there (kernel.py), which both would pass it on as it is.
"""

from __future__ import annotations

import sys
import threading
from types import CodeType, FrameType
from weakref import ref

import torch
from torch.distributed import ProcessGroup
from torch.nn import Parameter

from ..log.event import MAIN, Event, Value
from . import torch_private
from .callers import owner
from .threads import here
from .watch import FRAMES

MAX_PATTERNS = 4096
DEEP = 24  # frames of torch between a call and the program's line


class Pattern:
    """What calls of one place have in common.

    method: of a backend.  event: the first of them.  after: what each leaves.
    order: held while one is numbered and handed on.  gives_up, by_torch: see TracedWork.  count: how many there were.
    """

    __slots__ = "method", "event", "after", "order", "gives_up", "by_torch", "count", "_group", "_codes"

    def __init__(
        self,
        method: str,
        event: Event,
        after: Value,
        order: threading.RLock,
        gives_up: bool,
        by_torch: bool,
        group: ProcessGroup,
        codes: list[CodeType],
    ) -> None:
        self.method, self.event, self.after, self.order = method, event, after, order
        self.gives_up, self.by_torch = gives_up, by_torch
        self.count = 0
        self._group = ref(group)  # after it is destroyed, another may lie in the same memory
        self._codes = codes  # likewise: as long as this is kept, a place that names them is theirs

    def is_of(self, group: ProcessGroup) -> bool:
        return self._group() is group


def place_of(method: str, args: tuple, mine: object) -> tuple | None:
    """By what the pattern of a call is found; None: it may be like no other, and must be read.

    To be called by what stands in place of that method of ProcessGroup.  mine: see torch_private.is_plain.
    """
    if here.work is not MAIN or sys.exc_info()[1] is not None:
        return None
    if len(args) != (3 if method == "allreduce" else 4):
        return None
    if method in ("send", "recv"):
        how = args[2:]
    elif type(options := args[-1]) in torch_private.OPTIONS:
        how = getattr(options, "reduceOp", None), options.asyncOp
    else:
        return None
    first = args[1]
    if isinstance(first, list) and len(first) != 1:
        return None
    place = [method, id(args[0]), *how]
    for tensor in first if isinstance(first, list) else args[1:3]:
        kind = type(tensor)
        if kind is not torch.Tensor and kind is not Parameter or not tensor.is_cpu or tensor.layout != torch.strided:
            return None
        place += tensor.dtype, tensor.shape, tensor.stride()
    if not torch_private.is_plain(mine):
        return None
    frame, left, found = sys._getframe(2), DEEP, False
    while frame is not None and left:
        code = frame.f_code
        if not found and owner(code.co_filename) == "learner":
            found, left = True, FRAMES  # from where the line was reached belongs to its place
        place += id(code), frame.f_lasti
        frame, left = frame.f_back, left - 1
    return tuple(place) if found else None


def tensors_of(args: tuple) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What one of these methods' arguments pass in, and what the rank is left with: one list, if that is in place."""
    first = args[1]
    return ([args[2]], [first]) if isinstance(first, torch.Tensor) else (first, first)


def codes_of(place: tuple, frame: FrameType | None) -> list[CodeType]:
    """What a place that was found from this frame names by its memory."""
    codes, ids = [], set(place)
    while frame is not None and id(frame.f_code) in ids:
        codes.append(frame.f_code)
        frame = frame.f_back
    return codes
