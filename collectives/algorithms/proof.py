"""The proof that a schedule keeps its collective's promise, by adding up sets instead of numbers.

Every rank's part of every chunk is a symbol; a rank's part of a chunk, step by step, is the set of ranks whose
parts are in it.  That proves it for every input, and any reduction that is associative and commutative.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Iterator

from ..format import COLUMNS
from .schedule import Holdings, Message, Parts, Schedule, chunk_name, members, said_ranks


class WrongSchedule(ValueError):
    """The schedule breaks its collective's promise.  The message names step, rank, chunk.

    step: the step at fault, counted from 1; None where only the end is wrong.
    """

    def __init__(self, message: str, step: int | None = None) -> None:
        super().__init__(message)
        self.step = step

    def _render_traceback_(self) -> list[str]:
        # Jupyter shows this instead of a traceback through the proof.
        return f"{type(self).__name__}: {self}".splitlines()


@dataclass(frozen=True, repr=False)
class Proof:
    schedule: Schedule

    def __repr__(self) -> str:
        s, n = self.schedule, len(self.schedule.steps)
        after = f"proved: after {n} step{'s' * (n != 1)} of {s.name},"
        shown = f"{s.facts.proved.format(root=s.root)} ({s.world_size} rank{'s' * (s.world_size > 1)})"
        return f"{after} {shown}" if len(after) + len(shown) < COLUMNS else f"{after}\n  {shown}"


def prove(s: Schedule) -> Proof:
    """Follow the steps and compare the end with the collective's promise.

    Raises WrongSchedule, which names step, rank and chunk, where
    - a rank sends a chunk that has not arrived, or ranks wait for one another in a cycle;
    - a part is added to a sum that already has it, even if a later copy would put that right;
    - a chunk is overwritten while it is being sent, or written twice in a step;
    - a rank does not end with exactly the promised chunks.
    """
    held = s.initial()
    for held in follow(s):
        pass
    for rank, wanted in enumerate(s.promised()):
        for chunk, parts in wanted.items():
            got = held[rank].get(chunk, 0)
            if got != parts:
                raise WrongSchedule(_final_flaw(s, rank, chunk, got, parts))
    return Proof(s)


def follow(s: Schedule) -> Iterator[Holdings]:
    """Every rank's chunks after each step.  Raises WrongSchedule at the step that cannot be done."""
    held = s.initial()
    for k, step in enumerate(s.steps):
        arrivals = []
        writes: dict[tuple[int, int], list[Message]] = defaultdict(list)
        for m in step:
            for c in m.chunks:
                parts = held[m.source].get(c, 0)
                if not parts:
                    raise WrongSchedule(_too_early(s, k, m, c), k + 1)
                arrivals.append((m, c, parts))
                writes[m.target, c].append(m)
        _no_conflict(s, k, step, writes)
        for m, c, parts in arrivals:
            old = held[m.target].get(c, 0) if m.adds else 0
            if old & parts:
                raise WrongSchedule(
                    f"step {k + 1}: rank {m.source} adds chunk {chunk_name(s, c)} to rank {m.target}'s, "
                    f"and the {_parts(old & parts)} would be in the sum twice.",
                    k + 1,
                )
            held[m.target][c] = old | parts
        yield held


def _no_conflict(s: Schedule, k: int, step: list[Message], writes: dict[tuple[int, int], list[Message]]) -> None:
    """A copy arrives in its place at any moment of the step; an add arrives next to it, and is added at the end."""
    for (rank, c), messages in writes.items():
        if len(messages) > 1 and not all(m.adds for m in messages):
            sources = said_ranks([m.source for m in messages])
            raise WrongSchedule(
                f"step {k + 1}: {sources} all write chunk {chunk_name(s, c)} of rank {rank}, and not all add to it: "
                "which comes last is chance. Put one of them in a later step.",
                k + 1,
            )
    for m in step:
        for c in m.chunks:
            if other := next((other for other in writes.get((m.source, c), ()) if not other.adds), None):
                raise WrongSchedule(
                    f"step {k + 1}: rank {other.source}'s message overwrites chunk {chunk_name(s, c)} of rank "
                    f"{m.source} while rank {m.source} is still sending it to rank {m.target}. "
                    "Put one of the two in another step.",
                    k + 1,
                )


def _too_early(s: Schedule, k: int, m: Message, chunk: int) -> str:
    name = chunk_name(s, chunk)
    says = f"step {k + 1}: rank {m.source} sends chunk {name} to rank {m.target} but does not have it"
    # Which rank should have sent it, and which one to that rank?  The chain ends nowhere, or in a cycle.
    chain, initial = [m.source], s.initial()
    while bringer := next((b for j, b in _brings(s, chain[-1], chunk) if j >= k), None):
        if bringer.source in chain or initial[bringer.source].get(chunk):
            break
        chain.append(bringer.source)
    if bringer and bringer.source in chain[:-1]:
        cycle = chain[chain.index(bringer.source) :]
        waits = ", ".join(f"rank {a} waits for rank {b}" for a, b in zip(cycle, [*cycle[1:], cycle[0]]))
        return f"{says}: a cycle. {waits}, and none of them ever gets chunk {name} from elsewhere."
    when = next((j for j, _ in _brings(s, m.source, chunk)), None)
    if when is None:
        return f"{says}: no rank ever sends it to rank {m.source}."
    if when == k:
        return (
            f"{says} yet: it arrives in this same step. A message carries what its source holds when the step "
            "begins, so send it on one step later."
        )
    return f"{says} yet: it arrives in step {when + 1}."


def _brings(s: Schedule, rank: int, chunk: int) -> Iterator[tuple[int, Message]]:
    """The messages that bring this chunk to this rank, and their steps from 0."""
    return ((j, m) for j, step in enumerate(s.steps) for m in step if m.target == rank and chunk in m.chunks)


def _parts(parts: Parts) -> str:
    """'part of rank 2', 'parts of ranks 0-3'"""
    return f"part{'s' * (parts.bit_count() > 1)} of {said_ranks(members(parts))}"


def _final_flaw(s: Schedule, rank: int, chunk: int, got: Parts, wanted: Parts) -> str:
    name = chunk_name(s, chunk)
    if not got:
        return f"at the end rank {rank} has no chunk {name}: no rank ever sends it there."
    missing, extra = wanted & ~got, got & ~wanted
    says = [f"without the {_parts(missing)}"] * bool(missing)
    says += [f"with the {_parts(extra)}, which it should not have"] * bool(extra)
    return f"at the end rank {rank} has chunk {name} {' and '.join(says)}.{_loss(s, rank, chunk, missing)}"


def _loss(s: Schedule, rank: int, chunk: int, missing: Parts) -> str:
    """A sentence on the step whose copy overwrote the missing parts, if one did; else ""."""
    before = s.initial()[rank].get(chunk, 0)
    found = ""
    for k, held in enumerate(follow(s)):
        now = held[rank].get(chunk, 0)
        if before & missing & ~now:
            source = next(m.source for m in s.steps[k] if m.target == rank and chunk in m.chunks)
            found = f" Step {k + 1} copied rank {source}'s over it; was that meant to be an add?"
        before = now
    return found
