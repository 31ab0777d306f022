"""A schedule on real ranks: the same messages, sent with torch.distributed's isend and irecv."""

import pickle
from collections import defaultdict
from functools import cached_property, lru_cache
from itertools import accumulate

import torch
import torch.distributed as dist

from .schedule import Message, Schedule


class ScheduleProgram:
    """The schedule as a function that every rank of a group calls with its tensor: `program(x, group=None)`.

    It has the effect of torch.distributed's function of its name, message by message, where send and recv work: under
    run(), under torchrun, on any backend.  Reductions sum.  Ranks are those within the group; None: of all.

    broadcast, all_reduce, reduce: x is changed in place and returned; after reduce only the root's is defined.
    all_gather, gather: x is the rank's piece, of shape [k, ...]; returns all ranks' pieces joined, of shape
        [world_size * k, ...]; gather returns None on other ranks than the root.
    reduce_scatter: x has shape [world_size * k, ...] and is left alone; returns [k, ...].
    scatter: the same, but only the root's x counts; the others pass a tensor of its shape and dtype.
    all_to_all: x has shape [world_size * k, ...], its d-th 1/N is for rank d; returns the same shape.

    Raises ValueError if the group's size isn't the schedule's, if x is not contiguous, or does not divide into
    equal pieces where the collective needs them.
    """

    def __init__(self, s: Schedule) -> None:
        self.schedule = s

    def __reduce__(self):
        return _of_bytes, (pickle.dumps(self.schedule),)

    @cached_property
    def by_rank(self) -> list[dict[int, list[Message]]]:
        """For each step, by rank, the messages that it sends or receives."""
        steps = []
        for messages in self.schedule.steps:
            of = defaultdict(list)
            for m in messages:
                for rank in {m.source, m.target}:
                    of[rank].append(m)
            steps.append(dict(of))
        return steps

    def __repr__(self) -> str:
        return f"program of {self.schedule.collective} by {self.schedule.name} for {self.schedule.world_size} ranks"

    def __call__(self, x: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor | None:
        s, rank, size = self.schedule, dist.get_rank(group), dist.get_world_size(group)
        if size != s.world_size:
            raise ValueError(
                f"this schedule is for {s.world_size} ranks, and the group has {size}: make one with world_size={size}."
            )
        if not x.is_contiguous():
            raise ValueError("the tensor is a view with gaps, and cannot be cut into chunks: pass x.contiguous().")
        memory = _Memory(s, rank, x, group)
        for of in self.by_rank:
            memory.step(of.get(rank, []))
        return memory.result()


@lru_cache(maxsize=4)
def _of_bytes(packed: bytes) -> ScheduleProgram:
    """The program of a pickled schedule: pretended ranks, which share a process, share it."""
    return ScheduleProgram(pickle.loads(packed))


class _Memory:
    """A rank's chunks in memory: one buffer of size S; all_to_all needs two, and room for chunks that pass through."""

    def __init__(self, s: Schedule, rank: int, x: torch.Tensor, group: dist.ProcessGroup | None) -> None:
        self.s, self.rank, self.x, self.group = s, rank, x, group
        n = s.world_size
        joins = s.facts.gives == "own"
        self.sizes = s.sizes(x.numel() * (n if joins else 1))
        self.starts = [0, *accumulate(self.sizes)]
        if joins:
            rows = x.shape or (1,)
            self.out = x.new_empty((rows[0] * n, *rows[1:]))
            self.out.view(n, -1)[rank] = x.view(-1)
        elif s.facts.in_place or s.facts.deals and s.rooted and rank == s.root:
            self.out = x  # a scatter's root only reads it
        elif s.facts.reduces:
            self.out = x.clone()
        else:
            self.out = torch.empty_like(x)
        self.places = dict(enumerate(self.out.view(-1).split(self.sizes)))
        if s.facts.personal:
            self.places[rank].copy_(x.view(n, -1)[rank])
            arriving = {source * n + rank: place for source, place in self.places.items()}
            self.places = dict(enumerate(x.view(-1).split(self.sizes), rank * n)) | arriving
        self.spare: dict[tuple[int, int], torch.Tensor] = {}

    def step(self, messages: list[Message]) -> None:
        """All of this rank's messages of a step at once; then the sums."""
        operations, landed = [], []
        for m in messages:
            if m.source == self.rank:
                stretch = self.stretch(m.chunks)
                packed = torch.cat([self.places[c] for c in m.chunks]) if stretch is None else stretch
                operations.append(dist.P2POp(dist.isend, packed, group=self.group, group_peer=m.target))
        for k, m in enumerate(m for m in messages if m.target == self.rank):
            tensor = None if m.adds else self.stretch(m.chunks)
            if tensor is None:
                tensor = self.scratch(k, m.chunks)
                landed.append((m, tensor))
            operations.append(dist.P2POp(dist.irecv, tensor, group=self.group, group_peer=m.source))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        for m, tensor in landed:
            places = [self.place(c) for c in m.chunks]
            for place, arrived in zip(places, tensor.split([p.numel() for p in places])):
                if m.adds:
                    place += arrived
                else:
                    place.copy_(arrived)

    def stretch(self, chunks: tuple[int, ...]) -> torch.Tensor | None:
        """These chunks as a part of the buffer itself; None if they are not contiguous."""
        if len(chunks) == 1:
            return self.place(chunks[0])
        if self.s.facts.personal or list(chunks) != list(range(chunks[0], chunks[-1] + 1)):
            return None
        return self.out.view(-1)[self.starts[chunks[0]] : self.starts[chunks[-1] + 1]]

    def place(self, chunk: int) -> torch.Tensor:
        if chunk not in self.places:  # on its way to another rank
            self.places[chunk] = self.x.new_empty(self.sizes[chunk % self.s.cuts])
        return self.places[chunk]

    def scratch(self, k: int, chunks: tuple[int, ...]) -> torch.Tensor:
        """Room for the k-th arrival of a step, used again in the next: fresh memory is slow the first time."""
        numel = sum(self.sizes[c % self.s.cuts] for c in chunks)
        if (k, numel) not in self.spare:
            self.spare[k, numel] = self.x.new_empty(numel)
        return self.spare[k, numel]

    def result(self) -> torch.Tensor | None:
        s = self.s
        if s.facts.gets == "own":
            return self.out.view(s.world_size, -1)[self.rank].clone().view(-1, *self.x.shape[1:])
        return None if s.facts.gets == "all" and s.rooted and self.rank != s.root else self.out
