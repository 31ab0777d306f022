"""An algorithm as data: a schedule is a list of steps, a step a list of messages.

All messages of a step are in flight together.  Each carries some chunks from one rank to another, where they are
copied into place or added to the chunk there.  The ranks' chunks at first and at the end follow
from the collective.  Each act on a schedule has its module, loaded when it is needed.
"""

from dataclasses import dataclass
from functools import partial, reduce
from operator import index, or_
from typing import Any, Iterable, NamedTuple

from ..format import span
from ..lazy import Later
from ..log.collectives import COLLECTIVES as TABLE
from ..log.collectives import Collective

SHOWN_STEPS, SHOWN_MESSAGES = 8, 8  # in the short form of a schedule's words
COLLECTIVES = tuple(op for op, row in TABLE.items() if row.gives)

# A rank's part of one chunk: the set of ranks whose parts are summed in it, as bits.
# Bit r is rank r; 0 means that there is nothing.
Parts = int
Holdings = list[dict[int, Parts]]  # per rank: chunk -> parts


class Message(NamedTuple):
    """Some chunks on their way; `copy` and `add` make one."""

    source: int
    target: int
    chunks: tuple[int, ...]
    adds: bool  # added to the target's chunk; False: copied over it

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


def copy(source: int, target: int, chunks: int | Iterable[int]) -> Message:
    """`source` sends these chunks to `target`, where they replace whatever is in their place."""
    return _message(source, target, chunks, False)


def add(source: int, target: int, chunks: int | Iterable[int]) -> Message:
    """`source` sends these chunks to `target`, which adds them to its own."""
    return _message(source, target, chunks, True)


def _message(source, target, chunks, adds) -> Message:
    try:
        several = (index(chunks),)
    except TypeError:
        several = tuple(map(_integer, chunks))
    return Message(_integer(source), _integer(target), several, adds)


def _integer(number: Any) -> Any:
    """An integer of any kind, NumPy's for one, as Python's; anything else as it is, for Schedule to refuse."""
    try:
        return index(number)
    except TypeError:
        return number


@dataclass(frozen=True, repr=False)
class Schedule:
    """The messages of each step, with their chunks: the data that proof, count, program and picture read.

    collective: one of COLLECTIVES; it defines the ranks' first and last chunks.
    world_size: number of ranks, N.
    steps: lists of messages, see `copy` and `add`.  A message carries its source's chunks as of the step's start.
    chunks: into how many the buffer of size S is cut.  S is its full size, as in every formula here: the buffer of
        broadcast and all_reduce, the result of all_gather, the input of reduce_scatter and all_to_all.  Chunks are
        numbered along the buffer; where each rank has its own piece, rank r's is the r-th 1/N of the chunks.  In
        all_to_all there are N * N chunks, number s * N + d goes from rank s to rank d, and S holds N of them.
    root: for broadcast, scatter, reduce, gather.
    name: of the algorithm.

    Raises ValueError if it cannot be a schedule at all: an unknown collective, a step that isn't a list of messages,
    a rank or a chunk that does not exist.  Whether it does what the collective promises, `prove` checks.
    """

    collective: str
    world_size: int
    steps: list[list[Message]]
    chunks: int = 1
    root: int = 0
    name: str = "schedule"

    def __post_init__(self) -> None:
        n, op = self.world_size, self.collective
        if op not in COLLECTIVES:
            raise ValueError(f"{op!r} is not a collective known here. Choose from: {', '.join(COLLECTIVES)}.")
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"world_size is a number of ranks, 1 or more, not {n!r}.")
        if not 0 <= self.root < n:
            raise ValueError(f"root is a rank from 0 to {n - 1}, not {self.root}.")
        if self.facts.personal and self.chunks != n * n:
            raise ValueError(f"{op} of {n} ranks has {n * n} chunks, one from each rank to each; say chunks={n * n}.")
        if not isinstance(self.chunks, int) or self.chunks < 1 or self.has_pieces and self.chunks % n:
            each = f"{op} gives each of {n} ranks an equal piece, so " * self.has_pieces
            wanted = f"a multiple of {n}" if self.has_pieces else "1 or more"
            raise ValueError(f"{each}chunks must be {wanted}, not {self.chunks}.")
        steps = [step if isinstance(step, Message) else list(step) for step in self.steps]  # generators too, once
        object.__setattr__(self, "steps", steps)
        for k, step in enumerate(steps, 1):
            if isinstance(step, Message):
                raise ValueError(
                    f"step {k} is one message, {step}: a step is a list of messages, so write [[...], [...]]."
                )
            for m in step:
                if flaw := self._flaw(m):
                    raise ValueError(f"step {k}{flaw}")

    def _flaw(self, m: Message) -> str | None:
        """The reason why this isn't a message of the schedule, to follow "step 2"; None if it is."""
        if not isinstance(m, Message):
            return f": {m!r} is not a message; copy(source, target, chunk) and add(...) make one."
        n, source, target, chunks = self.world_size, m.source, m.target, m.chunks
        if not all(isinstance(number, int) for number in (source, target, *chunks)):
            return f", message {m}: ranks and chunks are integers, not {source!r}, {target!r}, {chunks!r}."
        if not (0 <= source < n and 0 <= target < n):
            wrong = target if 0 <= source < n else source
            return f", message {m}: there is no rank {wrong}, ranks are 0 to {n - 1}."
        if source == target:
            return f": rank {source} sends to itself; what it has needs no message."
        if not chunks:
            return f", message {m}: it carries no chunk."
        if (wrong := next((c for c in chunks if not 0 <= c < self.chunks), None)) is not None:
            return (
                f", message {m}: there is no chunk {wrong}: the buffer is cut in {self.chunks}, numbered from 0. "
                "Schedule(..., chunks=...) says into how many."
            )
        return f", message {m}: it carries a chunk twice." if len(set(chunks)) < len(chunks) else None

    @property
    def facts(self) -> Collective:
        """The collective's inputs and results, and the minimum that must be sent."""
        return TABLE[self.collective]

    @property
    def rooted(self) -> bool:
        """Whether one rank is special."""
        return self.facts.root is not None

    @property
    def has_pieces(self) -> bool:
        """Whether every rank starts or ends with its own piece."""
        return "own" in (self.facts.gives, self.facts.gets)

    @property
    def cuts(self) -> int:
        """Chunks in a buffer of size S."""
        return self.world_size if self.facts.personal else self.chunks

    def piece(self, rank: int) -> range:
        """The chunks that are this rank's own."""
        each = self.chunks // self.world_size
        return range(rank * each, (rank + 1) * each)

    def sizes(self, numel: int) -> list[int]:
        """Elements in each chunk of a buffer of S = `numel` elements, as even as can be, the larger first.

        Raises ValueError if the collective needs equal pieces and they do not come out even.
        """
        pieces = 1 if self.facts.in_place else self.world_size
        if numel % pieces:
            raise ValueError(
                f"{self.collective} needs {pieces} pieces of equal size: {numel} elements do not divide by {pieces}."
            )
        each, parts = numel // pieces, self.cuts // pieces
        return [each // parts + (k < each % parts) for k in range(parts)] * pieces

    def initial(self) -> Holdings:
        """Every rank's chunks before the first step."""
        n, what = self.world_size, self.facts
        givers = (self.root,) if what.root == "src" else range(n)
        parted = what.gives == "own" or what.personal
        chunks = [self.piece(r) if parted else range(self.chunks) for r in range(n)]
        return [dict.fromkeys(chunks[r], 1 << r) if r in givers else {} for r in range(n)]

    def promised(self) -> Holdings:
        """The chunks that every rank must hold after the last step; it may hold more."""
        n, what = self.world_size, self.facts
        given = what.given(n, lambda rank, slot: 1 << rank)

        def chunks(rank: int, left: Any) -> dict[int, Parts]:
            if isinstance(left, list):
                return {c: p for r, p in enumerate(left) for c in ([r * n + rank] if what.personal else self.piece(r))}
            return dict.fromkeys(self.piece(rank) if what.gets == "own" else range(self.chunks), left) if left else {}

        return [chunks(rank, what.result(given, rank, self.root, partial(reduce, or_))) for rank in range(n)]

    prove = Later(".proof", "prove")
    count = Later(".count", "count")
    program = Later(".execute", "ScheduleProgram")
    draw = Later(".picture", "draw_schedule")

    def table(self, brief: bool = False) -> str:
        """A line per step.  '0 -> 1 +a' adds chunk a of rank 0 to rank 1's; without the plus it is copied."""
        steps, messages = (SHOWN_STEPS, SHOWN_MESSAGES) if brief else (None, None)
        lines = [title(self)]
        for k, step in enumerate(self.steps[:steps], 1):
            shown = [message_words(self, m) for m in step[:messages]]
            more = [f"... and {len(step) - len(shown)} more"] * (len(shown) < len(step))
            lines.append(f"  step {k:>2}   " + ",  ".join(shown + more))
        if len(self.steps) >= len(lines):
            lines.append(f"  ... and {len(self.steps) - len(lines) + 1} more steps: .table() lists them all")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.table(brief=True)

    def _ipython_display_(self) -> None:
        from ..frontend import show

        show(self.draw(), repr(self))


def chunk_name(s: Schedule, chunk: int) -> str:
    """'a', 'b', ... along the buffer; where each rank has its own row, with the rank it comes from: 'b2'."""
    source, column = divmod(chunk, s.world_size)
    return f"{_letters(column)}{source}" if s.facts.personal else _letters(chunk)


def _letters(k: int) -> str:
    """a ... z, aa, ab, ... as columns of a spreadsheet."""
    return (_letters(k // 26 - 1) if k >= 26 else "") + chr(97 + k % 26)


def members(parts: Parts) -> list[int]:
    """The ranks in a set of parts."""
    return [r for r in range(parts.bit_length()) if parts >> r & 1]


# --- in words ----------------------------------------------------------------------------


def title(s: Schedule) -> str:
    """'all_reduce by ring, 4 ranks: 6 steps, 24 messages'"""
    n, messages = len(s.steps), sum(map(len, s.steps))
    root = f" {'from' if s.facts.root == 'src' else 'to'} {s.root}" if s.rooted else ""
    return (
        f"{s.collective}{root} by {s.name}, {s.world_size} rank{'s' * (s.world_size > 1)}: "
        f"{n} step{'s' * (n != 1)}, {messages} message{'s' * (messages != 1)}"
    )


def message_words(s: Schedule, m: Message) -> str:
    return f"{m} {'+' * m.adds}{said_chunks(s, m.chunks)}"


def said_chunks(s: Schedule, chunks: tuple[int, ...]) -> str:
    """'a', 'a c', or 'a-d' for more than two in a row."""
    if len(chunks) > 2 and list(chunks) == list(range(chunks[0], chunks[-1] + 1)):
        return f"{chunk_name(s, chunks[0])}-{chunk_name(s, chunks[-1])}"
    names = [chunk_name(s, c) for c in chunks]
    return " ".join(names if len(names) <= 8 else [*names[:6], "...", names[-1]])


def said_ranks(ranks: list[int]) -> str:
    """'rank 2', 'ranks 0-3', 'ranks 0, 2'"""
    return f"rank{'s' * (len(ranks) > 1)} {span(tuple(ranks))}"
