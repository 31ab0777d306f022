"""From a run to a schedule: which chunk each recorded send carried, found from the numbers it carried.

The record has every message's sender, receiver and numbers, in order.  It does not have their place in a rank's memory,
nor the use a rank made of them.  Both follow from the inputs: a sent tensor is the sum of some ranks' parts of a chunk.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from dataclasses import replace
from functools import cache, partial
from operator import itemgetter
from typing import Any, Callable, NamedTuple, Sequence

import torch
import torch.distributed as dist

from ..launch.run import run as launch
from ..log.collectives import COLLECTIVES as TABLE
from ..log.collectives import shapes
from ..log.transfers import Transfer, read
from ..outcome.run import Run
from .schedule import COLLECTIVES, Message, Schedule, chunk_name, members, said_ranks

MAX_WORLDS = 4096
RELATIVE, ABSOLUTE = 1e-5, 1e-6  # how far two sums of the same numbers may differ, by the order of floats
_close = partial(torch.allclose, rtol=RELATIVE, atol=ABSOLUTE)
NOT_SENT_HERE = (
    "Here a rank has one place for each chunk: an algorithm that passes on what arrived, and sums it up elsewhere, "
    "moves its data as an all_gather does; read it as one."
)
Origins = tuple[int, ...]  # the ranks whose parts are in a chunk, in order; a wrong sum has one twice


def recorded(fn: Callable[[torch.Tensor], Any], collective: str, world_size: int = 4, root: int = 0) -> Schedule:
    """Run `fn(x)` on real ranks, with numbers by which every chunk is recognized, and read off its schedule.

    fn: what a rank does to x with send and recv: for all_reduce, reduce, broadcast, all_gather and gather any
        algorithm; for the others x has a piece for every rank.  It changes x in place or returns the result.
    x is float32 of 8 * world_size elements (all_gather, gather: 8).
    Raises ValueError where the messages' chunks are ambiguous; see from_run.
    """
    # Integers small enough that sums are exact, and from a range so wide that no two sums are likely to agree.
    most, shape = 2**23 // world_size, (8 if shapes(collective)[0] == "own" else 8 * world_size,)
    seeds = (torch.Generator().manual_seed(1 + rank) for rank in range(world_size))
    inputs = [torch.randint(1, most, shape, generator=seed).float() for seed in seeds]

    def probed():
        x = inputs[dist.get_rank()].clone()
        result = fn(x)
        return x if result is None else result

    ran = launch(probed, world_size=world_size, whole=True)
    name = getattr(fn, "__name__", "fn")
    return from_run(ran, collective, inputs, root, name if name.isidentifier() else "fn")


def from_run(run: Run, collective: str, inputs: Sequence[torch.Tensor], root: int = 0, name: str = "") -> Schedule:
    """The sends and recvs of a run as a schedule of this collective.

    inputs: each rank's input, in rank order, as the collective takes it; the numbers must differ between ranks and
        along the buffer, or they identify nothing.
    name: of the algorithm; by default the name of the function that ran.

    Known are each message's sender, receiver and size, the messages it had to wait for, and its chunk, if no other sum
    of inputs has the same numbers.  Whether an arrival was added or copied is known from what the rank sent later, or
    returned; where neither shows it, the choice that leads to the promised end is assumed.  Raises ValueError, with the
    message it is about, where the numbers belong to no chunk of the sender's, where they belong to several, where they
    were kept as a summary only, or where the run used collectives.
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"{collective!r} is not a collective known here. Choose from: {', '.join(COLLECTIVES)}.")
    if len(inputs) != run.world_size:
        raise ValueError(f"inputs has {len(inputs)} tensors for {run.world_size} ranks: give what each rank put in.")
    calls = run.calls
    if others := sorted({call.op for call in calls if not call.is_message}):
        raise ValueError(f"this run used {', '.join(others)}: only send and recv say who sends to whom.")
    messages = read(calls)
    for m in messages:
        if not m.arrived:
            raise ValueError(f"{_route(m)}: it never arrived.")
        if not isinstance(m.value, torch.Tensor):
            raise ValueError(f"{_route(m)}: its numbers were not kept. Record with run(..., whole=True).")
    flat = [x.detach().flatten() for x in inputs]
    return _Decoder(run, collective, flat, root, name or run.name, messages).schedule()


def _route(m: Transfer) -> str:
    return f"the message {m.source} -> {m.target} of step {m.step + 1}"


class _World(NamedTuple):
    """One way in which a rank can have got its part of a chunk."""

    held: Origins
    choices: tuple[tuple[int, bool], ...]  # (number of the message, added?) since the last thing known


class _Decoder:
    """Follow a run's messages and keep, per rank and chunk, the parts that the rank may hold."""

    def __init__(self, run: Run, collective, inputs, root, name, messages: list[Transfer]) -> None:
        self.run, self.inputs, self.messages = run, inputs, messages
        n, facts = run.world_size, TABLE[collective]
        whole = inputs[root].numel() * (n if facts.gives == "own" else 1)
        if facts.personal:  # with messages of less than a chunk it isn't an all_to_all of chunks
            self.grain, chunks = whole // n, n * n
        else:
            self.grain = math.gcd(whole if facts.in_place else whole // n, *(m.value.numel() for m in messages))
            chunks = whole // self.grain if self.grain else 1
        self.frame = Schedule(collective, n, [], max(chunks, 1), root, name)
        self.numbers = cache(self.numbers)  # each is asked for again and again
        self.worlds: dict[tuple[int, int], list[_World]] = defaultdict(lambda: [_World((), ())])
        self.held: dict[int, list[tuple[float, int, Origins]]] = defaultdict(list)  # per rank: see `entry`; sorted
        for rank, held in enumerate(self.frame.initial()):
            for c, parts in held.items():
                self.hold((rank, c), [_World(tuple(members(parts)), ())])
        self.carried: dict[int, list[int]] = {}  # message -> its chunks
        self.added: dict[tuple[int, int], bool] = {}  # (message, chunk) -> added to the chunk there?
        self.results = [self.result(rank) for rank in range(n)]

    def schedule(self) -> Schedule:
        by_step: dict[int, list[int]] = defaultdict(list)
        for k, m in enumerate(self.messages):
            by_step[m.step].append(k)
        for step in sorted(by_step):
            for arrival in [(k, *found) for k in by_step[step] for found in self.read(k)]:
                self.arrive(*arrival)
        self.conclude()
        steps = [[m for k in by_step[step] for m in self.message(k)] for step in sorted(by_step)]
        return replace(self.frame, steps=steps)

    def message(self, k: int) -> list[Message]:
        """The k-th recorded message; two, if it was partly copied and partly added."""
        m = self.messages[k]
        chunks = {adds: tuple(c for c in self.carried[k] if self.added[k, c] == adds) for adds in (False, True)}
        return [Message(m.source, m.target, those, adds) for adds, those in chunks.items() if those]

    def numbers(self, chunk: int, held: Origins) -> torch.Tensor:
        """The numbers of a chunk that sums these ranks' parts."""
        return sum(self.part(rank, chunk).double() for rank in held)

    def entry(self, chunk: int, held: Origins) -> tuple[float, int, Origins]:
        """A possible content of a chunk, by its first number."""
        return _first(self.numbers(chunk, held)), chunk, held

    def hold(self, place: tuple[int, int], worlds: list[_World]) -> None:
        """Replace the ways in which a rank can have got its part of a chunk."""
        rank, chunk = place
        held = self.held[rank]
        for old in {w.held for w in self.worlds[place] if w.held}:
            del held[bisect_left(held, self.entry(chunk, old))]
        for new in {w.held for w in worlds if w.held}:
            insort(held, self.entry(chunk, new))
        self.worlds[place] = worlds

    def candidates(self, rank: int, piece: torch.Tensor) -> list[tuple[int, Origins]]:
        """The possible contents of a rank's chunks that begin about as a piece does."""
        first, held = _first(piece), self.held[rank]
        off = 2 * (ABSOLUTE + RELATIVE * abs(first))
        begin = bisect_left(held, first - off, key=itemgetter(0))
        return [one[1:] for one in held[begin : bisect_right(held, first + off, key=itemgetter(0))]]

    def part(self, rank: int, chunk: int) -> torch.Tensor:
        """A rank's input to a chunk."""
        s = self.frame
        here = chunk % s.cuts - (s.piece(rank).start if s.facts.gives == "own" else 0)
        return self.inputs[rank][here * self.grain : (here + 1) * self.grain]

    def read(self, k: int) -> list[tuple[int, Origins]]:
        """The chunks that the k-th message carried, and whose parts were in them."""
        m, found = self.messages[k], []
        for piece in m.value.flatten().double().split(self.grain):
            likely = self.candidates(m.source, piece) if piece.numel() == self.grain else ()
            fits = {one for one in likely if _close(piece, self.numbers(*one))}
            if not fits:
                raise ValueError(
                    f"{_route(m)}: its numbers are not a chunk that rank {m.source} can hold by then, neither its own, nor "
                    f"arrived, nor the sum of both. {NOT_SENT_HERE}"
                )
            if len(fits) > 1:
                named = [f"chunk {chunk_name(self.frame, c)} of {said_ranks(held)}" for c, held in sorted(fits)[:2]]
                raise ValueError(
                    f"{_route(m)}: its numbers fit {' and '.join(named)}. "
                    "Put in numbers that differ, as torch.randn does."
                )
            found += fits
            self.settle(m.source, *found[-1])
        self.carried[k] = [c for c, _ in found]
        return found

    def settle(self, rank: int, chunk: int, held: Origins) -> None:
        """From here on it is known whose parts the rank holds, and so how it came by them."""
        world = next(w for w in self.worlds[rank, chunk] if w.held == held)
        for k, adds in world.choices:
            self.added[k, chunk] = adds
        self.hold((rank, chunk), [_World(held, ())])

    def arrive(self, k: int, chunk: int, held: Origins) -> None:
        place = self.messages[k].target, chunk
        grown: dict[Origins, _World] = {}
        for w in self.worlds[place]:
            grown.setdefault(held, _World(held, (*w.choices, (k, False))))
            both = tuple(sorted(w.held + held))
            if w.held and max(map(both.count, both)) <= 2:
                grown.setdefault(both, _World(both, (*w.choices, (k, True))))
        if len(grown) > MAX_WORLDS:
            raise ValueError(f"{_route(self.messages[k])}: too many ways in which rank {place[0]} can have summed up.")
        self.hold(place, list(grown.values()))

    def conclude(self) -> None:
        """Choose between the possible contents of chunks never forwarded, by the rank's result or the promised one."""
        promised = self.frame.promised()
        for (rank, chunk), worlds in self.worlds.items():
            if not any(w.choices for w in worlds):
                continue
            got, wanted = self.returned(rank, chunk), tuple(members(promised[rank].get(chunk, 0)))
            likely = [w for w in worlds if w.held == wanted]
            fits = [w for w in worlds if got is not None and _close(got, self.numbers(chunk, w.held))]
            if got is not None and wanted and not fits:
                raise ValueError(
                    f"rank {rank} returned numbers for chunk {chunk_name(self.frame, chunk)} that it cannot have got by "
                    f"copying or adding what arrived. {NOT_SENT_HERE}"
                )
            self.settle(rank, chunk, (fits or likely or worlds)[0].held)

    def result(self, rank: int) -> torch.Tensor | None:
        """All numbers that a rank's function returned, if it returned tensors."""
        result = self.run.results[rank] if self.run.results else None
        if isinstance(result, (list, tuple)) and result and all(isinstance(t, torch.Tensor) for t in result):
            result = torch.cat([t.flatten() for t in result])
        return result.detach().flatten().double() if isinstance(result, torch.Tensor) else None

    def returned(self, rank: int, chunk: int) -> torch.Tensor | None:
        """This chunk in the rank's returned tensor, if that has the shape of the collective's result."""
        s, flat = self.frame, self.results[rank]
        mine = range(rank, s.chunks, s.world_size) if s.facts.personal else range(s.chunks)
        if s.facts.gets == "own":
            mine = s.piece(rank)
        if flat is None or chunk not in mine or flat.numel() != len(mine) * self.grain:
            return None
        return flat[mine.index(chunk) * self.grain :][: self.grain]


def _first(numbers: torch.Tensor) -> float:
    """The first number; infinity for NaN, which has no place in an order and is close to nothing."""
    first = numbers[0].item() if numbers.numel() else 0.0
    return math.inf if math.isnan(first) else first
