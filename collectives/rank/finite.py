"""The part of a Tracer that looks for NaN and infinity in what each call passes in."""

from __future__ import annotations

from typing import Callable

import torch

from ..log.event import Event, Value, as_list
from ..log.messages import Message, NotFinite


class Finite:
    """Emits NotFinite for a call that passes in a NaN or an infinity: at once, or once a device has looked."""

    def __init__(self, emit: Callable[[Message], None]) -> None:
        self._emit = emit
        self._unread: dict[int, torch.Tensor] = {}  # answers that a device still has to give, by the call's index

    def look(self, event: Event, inputs: Value, later: bool) -> torch.Tensor | bool | None:
        """all_finite() of a call's inputs, to be handed to on_issue(); None if they aren't looked at."""
        only_gets = event.op == "broadcast" and event.src != event.rank  # its tensor may never have been filled
        if only_gets or event.is_scratch or event.captured:
            return None
        return all_finite(inputs, later)

    def on_issue(self, index: int, finite: torch.Tensor | bool) -> None:
        if isinstance(finite, torch.Tensor):
            self._unread[index] = finite
        elif not finite:
            self._emit(NotFinite(index))

    def on_complete(self, index: int) -> None:
        """Read the device's answer: it came before the call, which is complete."""
        finite = self._unread.pop(index, None)
        if finite is not None and not finite:
            self._emit(NotFinite(index))


def all_finite(inputs: Value, later: bool) -> torch.Tensor | bool | None:
    """Whether all numbers are finite; None if nothing in it is a number that could be NaN or infinite.

    later: a device computes it in its stream, and this returns at once: the result can be read after that.
    """
    numbers = [t for t in as_list(inputs) if isinstance(t, torch.Tensor) and (t.is_floating_point() or t.is_complex())]
    if not numbers:
        return None
    if not later:
        return all(map(_is_finite, numbers))
    found = torch.stack([torch.isfinite(t).all() for t in numbers]).all()
    return torch.empty((), dtype=torch.bool, pin_memory=found.is_cuda).copy_(found, non_blocking=True)


def _is_finite(tensor: torch.Tensor) -> bool:
    """Whether each number is. The sum comes first: ten times as fast, finite only if all are, and it may overflow."""
    narrow = tensor.itemsize < 4  # their sums soon overflow, and some dtypes know nothing but casts
    if bool(torch.isfinite(tensor.sum(dtype=torch.float32 if narrow else None))):
        return True
    return bool(torch.isfinite(tensor.float() if narrow else tensor).all())
