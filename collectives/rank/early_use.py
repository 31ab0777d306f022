"""Notices a tensor that is used before its asynchronous call was waited for.

A TorchDispatchMode sees every operator of the thread that it is entered on, and makes each one three times as
expensive. So it is on a thread's stack of modes only while calls are under way, and at the bottom, so modes that the
program enters and leaves in the meantime are on top as expected.

A training loop makes the same calls from the same call sites thousands of times, and a site that was right many times
is hardly ever wrong later: after its first ALWAYS calls, one in SELDOM is watched.
"""

import threading
from collections import defaultdict
from functools import cache, partial, wraps
from types import FrameType
from typing import Callable

import torch

from ..log.event import as_list
from . import torch_private
from .operators import Reading
from .tensors import extent
from .torch_private import DispatchMode, never_compiled

ALWAYS, SELDOM = 64, 16
ALWAYS_PASSES = 8  # backward passes that are watched from their beginning: each may be a thousand operators
FRAMES = 4  # that identify a call site: the program's line and its callers

# Operators that take a tensor only to make a new one like it.
_READ_NOTHING = {
    f"aten::{kind}"
    for kind in (
        "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like",
        "new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full", "is_pinned",
    )
}  # fmt: skip
# Methods of a tensor that use its memory without an operator. A view may be read at any later time.
_METHODS = {"tolist": "read", "__repr__": "read", "__reduce_ex__": "read", "numpy": "viewed", "__dlpack__": "viewed"}


class Guard:
    """The memory of one call under way: its inputs must not be written to, its outputs not used at all.

    by_hook: whether the call was made by a Python hook of a backward pass, or by the program's own backward().
    """

    def __init__(self, index: int, inputs: list[torch.Tensor], outputs: list[torch.Tensor], by_hook: bool) -> None:
        self.index, self.node = index, torch_private.current_node() if by_hook else None
        self.waited_for, self.reported = False, set()
        # gloo's reduce_scatter releases its input at once: without this reference, the next tensor
        # in the same memory would be mistaken for it.
        self._tensors = inputs + outputs
        used = {extent(t): False for t in inputs} | {extent(t): True for t in outputs}  # many calls work in place
        self.extents = [(*where, at_all) for where, at_all in used.items()]

    @classmethod
    def of(cls, call: Reading, caller: FrameType | None) -> "Guard":
        """A call's; caller: the frame that called into C++."""
        event = call.event
        only_sent = event.op == "send" or event.op == "broadcast" and event.rank == event.src
        starts_pass = caller is not None and caller.f_code is torch_private.run_backward.__code__
        by_hook = torch_private.backward_task() != -1 and not starts_pass
        return cls(event.index, call.all_in, [] if only_sent else call.all_out, by_hook)


class Watch(DispatchMode):
    """The guards of all calls under way, and the mode that checks every use of a tensor against them.

    guards: by the call's index.
    report: called with the call's index and "written", "read", "viewed" or "returned", once per call and kind, from
        within the use.
    """

    def __init__(self, report: Callable[[int, str], None]) -> None:
        super().__init__()
        self._report = report
        self.guards: dict[int, Guard] = {}
        self._calls: dict[tuple, int] = defaultdict(int)  # from each site
        self._thread = threading.local()
        self._methods = {name: vars(torch.Tensor).get(name) for name in _METHODS}
        self._outlived = False  # whether a call was under way after the node of a backward pass that made it
        self._passes = 0  # begun since the first such call

    def start(self) -> None:
        for name in self._methods:
            setattr(torch.Tensor, name, self._method(name))

    def stop(self) -> None:
        for name, own in self._methods.items():
            setattr(torch.Tensor, name, own) if own else delattr(torch.Tensor, name)  # or inherited
        self.guards.clear()
        self.settle()

    def take(self, guards: dict[int, Guard], calls: dict[tuple, int]) -> None:
        """Continue with the guards of a different rank, and with its calls by site."""
        self.guards, self._calls = guards, calls

    def issued(self, call: Reading, frame: FrameType | None, caller: FrameType | None, goes_on: bool) -> None:
        """A call was issued, which may fill a tensor that another one still sends.  goes_on: the program waits for it later."""
        if call.event.op == "recv":
            for tensor in call.all_out:
                self.check(tensor, "written", filled=True)
        if goes_on and self.due(call.event.op, frame):
            self.add(Guard.of(call, caller))
        else:
            self.settle()

    def due(self, op: str, frame: FrameType | None) -> bool:
        """Whether to watch a call made by this frame of the program."""
        place = [op]
        while frame is not None and len(place) < 2 * FRAMES:
            place += id(frame.f_code), frame.f_lasti  # code objects compare, and hash, by their contents
            frame = frame.f_back
        place = tuple(place)
        self._calls[place] = count = self._calls[place] + 1
        return self.is_due(count)

    @staticmethod
    def is_due(count: int) -> bool:
        """Whether to watch the count-th call from a call site."""
        return count <= ALWAYS or count % SELDOM == 0

    def add(self, guard: Guard) -> None:
        self.guards[guard.index] = guard
        self.settle()

    def returns(self, tensor: torch.Tensor) -> None:
        """The function returns this tensor, which somebody will read."""
        if self.guards:
            self.check(tensor, "returned")

    def waits(self, index: int, now: bool) -> None:
        """Allow the tensors to be used during a wait: that is when gloo's reduce_scatter_single fills its output."""
        if guard := self.guards.get(index):
            guard.waited_for = now

    def remove(self, index: int) -> None:
        if guard := self.guards.pop(index, None):
            self._outlived |= guard.node is not None and guard.node is not torch_private.current_node()
            if not self.guards:
                self.settle()

    def settle(self, wanted: bool | None = None) -> None:
        """Put this mode on this thread's stack, or take it off: by default, depending on whether there are guards."""
        wanted = bool(self.guards) if wanted is None else wanted
        count = torch_private.mode_count()
        if not (wanted or count) or getattr(self._thread, "dispatching", False):
            return
        modes = [torch_private.mode_at(k) for k in range(count)]
        if (self in modes) == wanted:
            return
        for _ in modes:
            torch_private.pop_mode(None)
        for mode in [self] * wanted + [mode for mode in modes if mode is not self]:
            torch_private.push_mode(mode)

    @partial(never_compiled, callees=False)
    def run_backward(self, *args, **kwargs):
        """Run a backward pass, some with this mode from the beginning. autograd gives every node of a pass the stack of
        modes from when the pass began, and restores the caller's after it, so a mode that a hook's call pushes lasts
        until the node ends. That is too short for calls that are under way longer."""
        self._passes += self._outlived
        if self._outlived and (self._passes <= ALWAYS_PASSES or self._passes % SELDOM == 0):
            self.settle(True)
        try:
            return torch_private.run_backward(*args, **kwargs)
        finally:
            self.settle()

    @never_compiled
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        higher_order = torch_private.is_higher_order(func)
        if self.guards and not higher_order and (used := _tensor_arguments(func)):
            if types and any([t.__name__ in ("AsyncCollectiveTensor", "DTensor") for t in types]):
                return NotImplemented  # they come here again, with the tensors that they wrap
            for place, name, how in used:
                value = args[place] if place < len(args) else kwargs.get(name) if kwargs else None
                for tensor in as_list(value):
                    if isinstance(tensor, torch.Tensor):  # rather than a number
                        self.check(tensor, how)
        # While a mode handles an operator it is off the stack, and returns to it by itself.
        self._thread.dispatching = True
        try:
            # func itself would first look for torch.compile's fake tensors, of which there are none.
            call = func if higher_order else torch_private.operation(func)
            return call(*args, **kwargs) if kwargs else call(*args)
        finally:
            self._thread.dispatching = False

    def _method(self, name: str) -> Callable:
        original, how = getattr(torch.Tensor, name), _METHODS[name]

        @wraps(original)
        @partial(never_compiled, callees=False)
        def method(tensor, *args, **kwargs):
            if self.guards:
                self.check(tensor, how)
            return original(tensor, *args, **kwargs)

        return method

    def check(self, tensor: torch.Tensor, how: str, filled: bool = False) -> None:
        """Report each call whose tensors this use is too early for.  filled: by another call, which inputs alone forbid."""
        first, last = extent(tensor)
        for guard in list(self.guards.values()):  # another thread may be adding one
            for start, end, at_all in guard.extents:
                forbidden = not at_all if filled else at_all or how == "written"
                touched = first < end and start < last and forbidden
                if touched and not guard.waited_for and how not in guard.reported:
                    guard.reported.add(how)
                    self._report(guard.index, how)


class Unwatched:
    """A Watch that watches nothing."""

    def _nothing(self, *_) -> None: ...

    guards: dict[int, Guard] = {}
    start = stop = issued = is_due = add = returns = waits = remove = settle = take = _nothing
    run_backward = staticmethod(torch_private.run_backward)


@cache
def _tensor_arguments(func) -> list[tuple[int, str, str]]:
    """Position and name of each tensor argument of an operator, with "read" or "written"; none for a view."""
    schema = torch_private.schema(func)
    if not schema.name.startswith("aten::") or func.is_view or schema.name in _READ_NOTHING:
        return []
    return [
        (place, argument.name, "written" if argument.alias_info and argument.alias_info.is_write else "read")
        for place, argument in enumerate(schema.arguments)
        if "Tensor" in str(argument.type)
    ]
