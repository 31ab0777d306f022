"""From a run to a schedule: which chunk each recorded send carried, found from the numbers it carried.

The record says who sent which numbers to whom, and in which order.  It does not say where in
a rank's memory they lay, nor what a rank did with them on arrival.  Both follow from what
the ranks put in: a sent tensor equals the sum of some ranks' parts of some chunk.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from dataclasses import replace
from typing import Any, Callable, NamedTuple, Sequence

import torch
import torch.distributed as dist

from ..judge.run import Run
from ..launch.run import run as launch
from ..record.collectives import COLLECTIVES as TABLE
from ..record.collectives import shapes
from ..record.event import Summary
from ..record.messages import Transfer, read
from .model import COLLECTIVES, Message, Schedule, chunk_name, members, said_ranks

MAX_WORLDS = 4096
RELATIVE, ABSOLUTE = 1e-5, 1e-6  # how far two sums of the same numbers may differ
ELSEWHERE = (
    "Here a rank has one place for each chunk: an algorithm that passes on what arrived, and sums it up elsewhere, "
    "moves its data as an all_gather does; read it as one."
)
Held = tuple[int, ...]  # the ranks whose parts are in a chunk, in order; a wrong sum has one twice


def recorded(fn: Callable[[torch.Tensor], Any], collective: str, world_size: int = 4, root: int = 0) -> Schedule:
    """Runs `fn(x)` on real ranks, with numbers by which every chunk can be told, and reads off its schedule.

    fn: what a rank does to x with send and recv: for all_reduce, reduce, broadcast, all_gather
        and gather any algorithm; for the others x has a piece for every rank.  It changes x in
        place or returns the result.
    x is float32 of 8 * world_size elements (all_gather, gather: 8).
    Raises ValueError where the messages do not tell what they carried; see from_run.
    """
    inputs = [_probe(rank, world_size, collective) for rank in range(world_size)]

    def probed():
        x = inputs[dist.get_rank()].clone()
        result = fn(x)
        return x if result is None else result

    ran = launch(probed, world_size=world_size, whole=True)
    name = getattr(fn, "__name__", "fn")
    return from_run(ran, collective, inputs, root, name if name.isidentifier() else "fn")


def _probe(rank: int, n: int, collective: str) -> torch.Tensor:
    """Whole numbers so small that sums are exact, and so many that no two sums are likely to agree."""
    draw = torch.Generator().manual_seed(1 + rank)
    length = 8 * (1 if shapes(collective)[0] == "own" else n)
    return torch.randint(1, 2**23 // n, (length,), generator=draw).float()


def from_run(run: Run, collective: str, inputs: Sequence[torch.Tensor], root: int = 0, name: str = "") -> Schedule:
    """The sends and recvs of a run as a schedule of this collective.

    inputs: what each rank put in, in rank order, as the collective takes it; the numbers must
        differ between ranks and along the buffer, or nothing can be told from them.
    name: of the algorithm; by default the name of the function that ran.

    What can be known: who sent to whom, how much, which messages had to wait for which, and
    the chunk, if no other sum of inputs has the same numbers.  Whether an arrival was added
    or copied is known from what the rank sent later, or returned; where neither tells, an
    arrival that fits the promised end is taken for it.  Raises ValueError, with the message it
    is about, where the numbers belong to no chunk of the sender's, where they belong to
    several, where they were kept as a summary only, or where the run used collectives.
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"{collective!r} is not a collective known here; these are: {', '.join(COLLECTIVES)}.")
    if len(inputs) != run.world_size:
        raise ValueError(f"inputs has {len(inputs)} tensors for {run.world_size} ranks: give what each rank put in.")
    calls = run.calls
    others = sorted({call.op for call in calls if not call.is_message})
    if others:
        raise ValueError(f"this run used {', '.join(others)}: only send and recv say who sends to whom.")
    messages = read(calls)
    for m in messages:
        if isinstance(m.value, Summary) or not isinstance(m.value, torch.Tensor) or not m.arrived:
            raise ValueError(
                f"{_who(m)}: its numbers were not kept. Record with run(..., whole=True)."
                if m.arrived
                else f"{_who(m)}: it never arrived."
            )
    return _Decoder(
        run, collective, [x.detach().flatten() for x in inputs], root, name or run.name, messages
    ).schedule()


def _who(m: Transfer) -> str:
    return f"the message {m.source} -> {m.target} of step {m.step + 1}"


class _World(NamedTuple):
    """One way in which a rank can have come to hold what it holds of a chunk."""

    held: Held
    choices: tuple[tuple[int, bool], ...]  # (number of the message, added?) since the last thing known


class _Decoder:
    """Follows a run's messages and keeps, per rank and chunk, what the rank may hold."""

    def __init__(self, run: Run, collective, inputs, root, name, messages: list[Transfer]) -> None:
        self.run, self.inputs, self.messages = run, inputs, messages
        n = run.world_size
        facts = TABLE[collective]
        joins = facts.gives == "own"
        whole = inputs[root].numel() * (n if joins else 1)
        self.pieced = not facts.in_place
        self.grain = math.gcd(whole // n if self.pieced else whole, *(m.value.numel() for m in messages))
        cuts = whole // self.grain if self.grain else 1
        if facts.personal:
            if cuts != n:  # several grains make a chunk: then they stay together, or it is no all_to_all of chunks
                self.grain = whole // n
            cuts = n * n
        self.frame = Schedule(collective, n, [], max(cuts, 1), root, name)
        self.joins, self.cache = joins, {}
        self.worlds: dict[tuple[int, int], list[_World]] = defaultdict(lambda: [_World((), ())])
        self.held: dict[int, list[tuple[float, int, Held]]] = defaultdict(list)  # per rank: see `entry`; sorted
        for rank, chunks in enumerate(self.frame.initial()):
            for c, parts in chunks.items():
                self.hold((rank, c), [_World(tuple(members(parts)), ())])
        self.carried: dict[int, list[int]] = {}  # message -> its chunks
        self.added: dict[tuple[int, int], bool] = {}  # (message, chunk) -> added to what was there?
        self.results = [self.result(rank) for rank in range(n)]

    def schedule(self) -> Schedule:
        by_step: dict[int, list[int]] = defaultdict(list)
        for k, m in enumerate(self.messages):
            by_step[m.step].append(k)
        for step in sorted(by_step):
            arrivals = [(k, *found) for k in by_step[step] for found in self.read(k)]
            for k, chunk, held in arrivals:
                self.arrive(k, chunk, held)
        self.conclude()
        steps = [[m for k in by_step[step] for m in self.message(k)] for step in sorted(by_step)]
        return replace(self.frame, steps=steps)

    def message(self, k: int) -> list[Message]:
        """The k-th recorded message; two, if it was partly copied and partly added."""
        m = self.messages[k]
        made = []
        for adds in (False, True):
            chunks = tuple(c for c in self.carried[k] if self.added[k, c] == adds)
            if chunks:
                made.append(Message(m.source, m.target, chunks, adds))
        return made

    def numbers(self, chunk: int, held: Held) -> torch.Tensor:
        """What a chunk with these ranks' parts looks like."""
        if (chunk, held) not in self.cache:
            self.cache[chunk, held] = sum(self.part(rank, chunk).double() for rank in held)
        return self.cache[chunk, held]

    def entry(self, chunk: int, held: Held) -> tuple[float, int, Held]:
        """A possible content of a chunk, by its first number."""
        return _first(self.numbers(chunk, held)), chunk, held

    def hold(self, place: tuple[int, int], worlds: list[_World]) -> None:
        """Replace the ways in which a rank can have come to hold what it holds of a chunk."""
        rank, chunk = place
        held = self.held[rank]
        for old in {w.held for w in self.worlds[place] if w.held}:
            del held[bisect_left(held, self.entry(chunk, old))]
        for new in {w.held for w in worlds if w.held}:
            insort(held, self.entry(chunk, new))
        self.worlds[place] = worlds

    def candidates(self, rank: int, piece: torch.Tensor) -> list[tuple[int, Held]]:
        """The possible contents of a rank's chunks that begin about as a piece does."""
        first, held = _first(piece), self.held[rank]
        off = 2 * (ABSOLUTE + RELATIVE * abs(first))
        begin = bisect_left(held, first - off, key=lambda one: one[0])
        return [(c, whose) for _, c, whose in held[begin : bisect_right(held, first + off, key=lambda one: one[0])]]

    def part(self, rank: int, chunk: int) -> torch.Tensor:
        s = self.frame
        place = chunk % s.world_size if s.facts.personal else chunk
        if self.joins:
            place -= s.piece(rank).start
        return self.inputs[rank][place * self.grain : (place + 1) * self.grain]

    def read(self, k: int) -> list[tuple[int, Held]]:
        """The chunks that the k-th message carried, and whose parts were in them."""
        m, found = self.messages[k], []
        flat = m.value.flatten().double()
        for piece in flat.split(self.grain):
            fits = {
                (c, held)
                for c, held in self.candidates(m.source, piece)
                if piece.numel() == self.grain and _close(piece, self.numbers(c, held))
            }
            if not fits:
                raise ValueError(
                    f"{_who(m)}: its numbers are no chunk that rank {m.source} can hold by then, neither its own, nor "
                    f"arrived, nor the sum of both. {ELSEWHERE}"
                )
            if len(fits) > 1:
                says = " and ".join(
                    f"chunk {chunk_name(self.frame, c)} of {said_ranks(held)}" for c, held in sorted(fits)[:2]
                )
                raise ValueError(f"{_who(m)}: its numbers fit {says}. Put in numbers that differ, as torch.randn does.")
            c, held = fits.pop()
            self.settle(m.source, c, held)
            found.append((c, held))
        self.carried[k] = [c for c, _ in found]
        return found

    def settle(self, rank: int, chunk: int, held: Held) -> None:
        """From here on it is known whose parts the rank holds, and so how it came by them."""
        world = next(w for w in self.worlds[rank, chunk] if w.held == held)
        for k, adds in world.choices:
            self.added[k, chunk] = adds
        self.hold((rank, chunk), [_World(held, ())])

    def arrive(self, k: int, chunk: int, held: Held) -> None:
        place = self.messages[k].target, chunk
        grown: dict[Held, _World] = {}
        for w in self.worlds[place]:
            grown.setdefault(held, _World(held, (*w.choices, (k, False))))
            both = tuple(sorted(w.held + held))
            if w.held and max(map(both.count, both)) <= 2:
                grown.setdefault(both, _World(both, (*w.choices, (k, True))))
        if len(grown) > MAX_WORLDS:
            raise ValueError(f"{_who(self.messages[k])}: too many ways in which rank {place[0]} can have summed up.")
        self.hold(place, list(grown.values()))

    def conclude(self) -> None:
        """What a rank never sent on is told by what it returned, or by what it should have ended with."""
        promised = self.frame.promised()
        for (rank, chunk), worlds in self.worlds.items():
            if not any(w.choices for w in worlds):
                continue
            got, wanted = self.returned(rank, chunk), tuple(members(promised[rank].get(chunk, 0)))
            likely = [w for w in worlds if w.held == wanted]
            fits = [w for w in worlds if got is not None and _close(got, self.numbers(chunk, w.held))]
            if got is not None and wanted and not fits:
                raise ValueError(
                    f"rank {rank} returned numbers for chunk {chunk_name(self.frame, chunk)} that it can not have got by "
                    f"copying or adding what arrived. {ELSEWHERE}"
                )
            self.settle(rank, chunk, (fits or likely or worlds)[0].held)

    def result(self, rank: int) -> torch.Tensor | None:
        """All numbers that a rank's function returned, if it returned tensors."""
        result = self.run.results[rank] if self.run.results else None
        if isinstance(result, (list, tuple)) and result and all(isinstance(t, torch.Tensor) for t in result):
            result = torch.cat([t.flatten() for t in result])
        return result.detach().flatten().double() if isinstance(result, torch.Tensor) else None

    def returned(self, rank: int, chunk: int) -> torch.Tensor | None:
        """This chunk in what the rank's function returned, if that has the shape of the collective's result."""
        s, flat, place = self.frame, self.results[rank], chunk
        if s.facts.gets == "own":
            place -= s.piece(rank).start
        elif s.facts.personal:
            place = chunk // s.world_size if chunk % s.world_size == rank else -1
        here = s.piece(0) if s.facts.gets == "own" else range(s.cuts)
        if flat is None or place not in here or flat.numel() != len(here) * self.grain:
            return None
        return flat[place * self.grain : (place + 1) * self.grain]


def _first(numbers: torch.Tensor) -> float:
    """The first number; infinity for NaN, which has no place in an order and is close to nothing."""
    first = numbers[0].item() if numbers.numel() else 0.0
    return math.inf if math.isnan(first) else first


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal but for the order in which floats were summed."""
    return torch.allclose(a, b, rtol=RELATIVE, atol=ABSOLUTE)
