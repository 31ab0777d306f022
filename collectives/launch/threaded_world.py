"""The world of pretended ranks whose tensors are torch's: what many ranks get of a call is computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Callable, Sequence

import torch

from ..judge import diagnose
from ..log import messages
from ..log.calls import Call
from ..log.collectives import all_ranks, of
from ..log.event import Event
from ..pretend.tensor_values import TensorValues, cut
from ..pretend.world import HARMLESS, Rank, World
from ..rank import torch_private
from ..rank.callers import with_text

KEPT_ELEMENTS = 1 << 22  # of partial sums that a reduce leaves on other ranks than its root


class TorchValues(TensorValues):
    """The world's own use of torch's tensors."""

    larger, smaller = staticmethod(torch.maximum), staticmethod(torch.minimum)

    def copy(self, x: Any) -> torch.Tensor:
        return x.detach().clone()

    def write(self, x: Any, source: Any) -> None:
        x.data.copy_(source.reshape(x.shape))  # which autograd doesn't notice, as it doesn't notice gloo

    def write_all(self, tensors: list, sources: Sequence[Any]) -> None:
        parts = [s if s.shape == x.shape else s.reshape(x.shape) for x, s in zip(tensors, sources)]
        torch_private.copy_all([x.data for x in tensors], parts)

    def join(self, parts: Sequence[Any]) -> torch.Tensor:
        return torch.cat([part.reshape(-1) for part in parts])


@dataclass
class Settled:
    """The inputs of a call that all its ranks have made, by place, and the results that they share.

    rows: the inputs in one tensor, [ranks, ranks, numbers], where each is cut into equal parts.  left: ranks that have not
    got their results.  reported: the inputs as a rank reports them.
    """

    inputs: list
    left: int
    rows: torch.Tensor | None = None
    total: Any = None
    joined: Any = None
    reported: list | None = None


class TorchWorld(World):
    """make: called with the world and the number of a rank, returns it.  woken: called with an event that completes a call."""

    def __init__(
        self, world_size: int, check: bool, make: Callable[[World, int], Rank], woken: Callable[[Call], None]
    ) -> None:
        self._make, self._woken = make, woken
        self._given: dict[int, Any] = {}  # id(event) -> copies of what it passes in, until all have got its results
        self._settled: dict[int, Settled] = {}  # id(a call's first event)
        self._flawed: dict[int, Call] = {}  # by id, those that can't end
        # By id, calls with a root that some ranks have not made, and the ranks that have: not all wait for all.
        self._begun: dict[int, tuple[Call, set[int]]] = {}
        super().__init__(world_size, TorchValues(), check, with_text=cache(with_text))

    def make_rank(self, number: int) -> Rank:
        return self._make(self, number)

    def emit(self, rank: int, message: messages.Message) -> None:
        if isinstance(message, messages.Completed) and message.end is None:
            event = self.monitor.event(rank, message.index)
            if event is not None and event.is_message:  # its program has let go of it
                self._released.setdefault(id(event), self.moves)
        super().emit(rank, message)
        if isinstance(message, messages.Called):
            self._add(message.event)

    def _add(self, event: Event) -> None:
        """Note a call that a rank has made."""
        self.ranks[event.rank].events.append(event)
        self._posted[id(event)] = self.moves
        if event.is_from_anyone:
            return
        call = self.monitor.call_of(event)
        if of(event.op).root or id(call) in self._begun:
            self._begun.setdefault(id(call), (call, set()))[1].add(event.rank)
            if (diagnose.mismatch(call, event) or "written") not in HARMLESS:
                self._flawed[id(call)] = call
        if call.is_complete:
            self._begun.pop(id(call), None)
            self._woken(call)

    def refuse(self, event: Event) -> None:
        super().refuse(event)
        self._flawed[id(self.monitor.call_of(event))] = self.monitor.call_of(event)

    def keep(self, event: Event, inputs: Any) -> None:
        """Keep what a call passes in, as it is now."""
        if of(event.op).root != "src" or event.rank == event.root:
            self._given[id(event)] = self.snapshot(inputs)

    def is_complete(self, event: Event) -> bool:
        if event.is_from_anyone:
            return super().is_complete(event)
        call, collective = self.monitor.call_of(event), of(event.op)
        if id(call) in self._flawed:
            return False
        if not call.is_complete and event.nbytes and not event.is_message:  # without a look at all who have made it
            if collective.gloo is all_ranks:
                return False
            if event.op != "reduce":
                return set(map(event.group.__getitem__, collective.gloo(*places(event)))) <= self._begun[id(call)][1]
        complete = super().is_complete(event)
        if not complete and call.is_complete and not call.is_message:
            self._flawed[id(call)] = call
        return complete

    def result(self, event: Event) -> Any:
        call = self.monitor.call_of(event)
        if event.is_message:
            return self._given.get(id(call.events[0])) if event.op == "recv" else None
        collective = of(event.op)
        if collective.gives is None or not call.is_complete and not event.nbytes:
            return None  # nothing to move, and so nobody is waited for
        place, root, _ = places(event)
        if collective.root == "src" and root is not None:
            source = self._input_of(next((e for e in call if e.rank == event.root), None), collective.gives)
            return collective.result({root: source}, place, root, list)
        settled = self._settled_of(call, collective.gives)
        if not collective.reduces:
            if collective.gets == "all" and collective.gives == "own" and root is None:
                return settled.inputs
            if settled.rows is not None:
                return settled.rows[:, place].reshape(-1)
            return collective.result(settled.inputs, place, root, list)
        op = event.reduce_op or "SUM"
        if not collective.in_place:
            if settled.total is None:
                rows = settled.rows
                if rows is None:
                    rows = torch.stack([torch.stack([x.reshape(-1) for x in row]) for row in settled.inputs])
                settled.total = self._ring(rows, op)[0]
            return settled.total[place]
        if not call.is_complete:  # a reduce that this rank's part of has ended
            return self._around(settled.inputs, place, op)
        total, passed = settled.total = settled.total or self._reduced(settled.inputs, op, root is not None)
        return total if root in (None, place) else None if passed is None else passed[place]

    def delivered(self, event: Event) -> None:
        """A rank has got its results: once all have, nothing of the call is kept."""
        call = self.monitor.call_of(event)
        if not call.is_complete:
            return
        if call.is_message:
            if event.op == "recv":
                self._given.pop(id(call.events[0]), None)
            return
        settled = self._settled.get(id(call.events[0]))
        if settled is not None:
            settled.left -= 1
            if not settled.left:
                del self._settled[id(call.events[0])]
                for e in call:
                    self._given.pop(id(e), None)

    def joined(self, event: Event, parts: list) -> torch.Tensor:
        """The parts of a result in one tensor."""
        settled = self._settled.get(id(self.monitor.call_of(event).events[0]))
        if settled is None or parts is not settled.inputs:
            return self.memory.join(parts)
        if settled.joined is None:
            settled.joined = self.memory.join(parts)
        return settled.joined

    def shared(self, event: Event, parts: list, outputs: list) -> Settled | None:
        """The call whose inputs these results are, if they have the outputs' shapes and dtypes."""
        settled = self._settled.get(id(self.monitor.call_of(event).events[0]))
        if settled is None or parts is not settled.inputs:
            return None
        return settled if all(x.shape == y.shape and x.dtype == y.dtype for x, y in zip(parts, outputs)) else None

    def _settled_of(self, call: Call, gives: str) -> Settled:
        first = id(call.events[0])
        if first in self._settled:
            return self._settled[first]
        by_rank, size = {e.rank: e for e in call}, len(call.group)
        tensors = [self._given.get(id(e)) for e in call]
        if gives == "all" and call.is_complete and _is_even(call) and all(isinstance(x, torch.Tensor) for x in tensors):
            settled = Settled([], size, torch.stack(tensors).reshape(size, size, -1))
        else:
            settled = Settled([self._input_of(by_rank.get(rank), gives) for rank in call.group], size)
        if call.is_complete:
            self._settled[first] = settled
        return settled

    def _input_of(self, event: Event | None, gives: str) -> Any:
        x = None if event is None else self._given.get(id(event))
        if gives != "all" or x is None or isinstance(x, list):
            return x
        size, rows = len(event.group), x.shape[0] if x.dim() else 0
        splits = event.splits[0] if event.splits and event.splits[0] else None
        return cut(x, splits or [rows // size] * size)

    def _reduced(self, inputs: list[torch.Tensor], op: str, partial: bool) -> tuple[torch.Tensor, list | None]:
        """The reduction of whole tensors.  partial: whether to return what passed through each rank, too."""
        size, count = len(inputs), inputs[0].numel()
        chunk = 2 * -(-count // (2 * size))
        chunks = max(1, -(-count // chunk)) if count else 1
        stacked = torch.zeros(size, chunks * max(chunk, 1), dtype=inputs[0].dtype)
        for row, x in zip(stacked, inputs):
            row[:count] = x.reshape(-1)
        total, passed = self._ring(stacked.view(size, chunks, -1), op, partial and stacked.numel() * size <= KEPT_ELEMENTS)
        return total.reshape(-1)[:count], passed and [x.reshape(-1)[:count] for x in passed]

    def _ring(self, parts: torch.Tensor, op: str, keep: bool = False) -> tuple[torch.Tensor, list | None]:
        """The reduction of each chunk in the order in which gloo's ring adds, for all chunks at once.

        parts: by rank and chunk.  keep: also return, by rank, its chunks as they passed through it.
        """
        size, chunks = parts.shape[:2]
        every, at = torch.arange(chunks), (torch.arange(chunks) - 1) % size
        total = parts[at, every]
        two, passed = self.memory.two(op, total), torch.empty_like(parts) if keep else None
        for step in range(size):
            if step:
                at = (at - 1) % size
                total = two(total, parts[at, every])
            if passed is not None:
                passed[at, every] = total
        if op == "AVG":
            total, passed = total / size, None if passed is None else passed / size
        return total, None if passed is None else list(passed)


def places(event: Event) -> tuple[int, int | None, int]:
    """A rank's place in the group, the root's, if it is inside, and the group's size."""
    group = event.group
    return group.index(event.rank), group.index(event.root) if event.root in group else None, len(group)


def _is_even(call: Call) -> bool:
    """Whether no rank chose the sizes of its parts."""
    return not any(e.splits and any(e.splits) for e in call)
