"""The reasons why a predicted number is wrong, where the recorded run shows them.

A wrong number is often the right answer to another question: the rank's value before, the sum where nothing is
summed, another rank's part.  Where several stories match, the one that explains most of the answer is given.
"""

from collections import Counter
from typing import Iterator, NamedTuple

import torch

from collectives.format import number
from collectives.launch.attempt import Outcome
from collectives.log import collectives, provenance
from collectives.log.calls import Call
from collectives.log.event import Event

from .answers import LearnersAnswer, Want, numbers_of
from .questions import FillIn


class Story(NamedTuple):
    """One way to arrive at a wrong number.  kind: shared with similar stories of other cells."""

    kind: str
    words: str  # a sentence without the rank's number: several ranks may share it


def stories(grid: FillIn, outcome: Outcome, rank: int, k: int, given: LearnersAnswer, want: Want) -> list[Story]:
    """All stories that explain the answer in cell k of a rank, the likeliest first."""
    if grid.kind == "returned":
        if said := _result_reason(grid, outcome, rank, given, want):
            return [Story("returned", said)]
        return _last(outcome, rank, k, given, want)
    call = grid.call(outcome.run)
    e = next(e for e in call if e.rank == rank)
    if want.kind in ("number", "word") and _breaks(call, e):
        return [Story("broken", _BROKEN_PROMISE.format(e.op))]
    if said := _contract(e, given, want):
        return [Story("contract", said)]
    return [Story("promise", _says(e))] if grid.kind == "chunks" else _value(call, e, k, given, want)


def story_lines(cells: list[list[Story]]) -> list[str]:
    """One sentence a cell, "" where none explains it: of its stories the one whose kind explains the most cells."""
    explains = Counter(kind for found in cells for kind in {story.kind for story in found})
    return [max(found, key=lambda story: explains[story.kind]).words if found else "" for found in cells]


def _last(outcome: Outcome, rank: int, k: int, given: LearnersAnswer, want: Want) -> list[Story]:
    """The stories about a result, if it is the result of the rank's last call."""
    mine = outcome.run.events[rank]
    left = numbers_of(mine[-1].after) if mine and isinstance(mine[-1].after, torch.Tensor) else []
    if want.value not in left:
        return []
    e = mine[-1]
    if e.is_undefined:
        words = f"{e.op} promises nothing to any rank but {e.dst}: this is what the backend happens to leave"
        return [Story("undefined", words)]
    call = next(call for call in outcome.run.calls if any(other is e for other in call))
    at = k if k < len(left) and left[k] == want.value else left.index(want.value)  # a result may hold more
    return [Story("broken", _BROKEN_PROMISE.format(e.op))] if _breaks(call, e) else _value(call, e, at, given, want)


_BROKEN_PROMISE = "{} does not do here what it promises: something is wrong with what it is given"


def _breaks(call: Call, e: Event) -> bool:
    """Whether a mistake (that check=False let pass) left numbers that the op does not promise."""
    if e.is_message or e.end is None or e.async_op and not e.waited:
        return False
    _, after = provenance.read(call)
    promised = "reduced" if e.reduce_op else "data"
    return any(slot.kind != promised for slot in after[call.events.index(e)])


def _result_reason(grid: FillIn, outcome: Outcome, rank: int, given: LearnersAnswer, want: Want) -> str:
    if want.kind == "never":
        return "the run did not end well, so nothing was returned: see below"
    if want.kind == "nothing" and given.kind != "nothing":
        return f"{grid.fn_name} returns None here"
    if given.kind == "number" and want.kind == "number":
        values = {r: [cell.value for cell in cells] for r, cells in grid.wants(outcome).items()}
        others = [r for r in values if given.value in values[r]]
        if others and rank not in others:
            return f"that is {'what' if len(values[others[0]]) == 1 else 'among what'} rank {others[0]} returns"
    return ""


def _contract(e: Event, given: LearnersAnswer, want: Want) -> str:
    """The story of what the op itself promises, or does not."""
    if want.kind == "never":
        return f"this {e.op} never completed here: see below"
    if want.kind == "undefined":
        return f"{e.op} leaves every buffer but the root's undefined: only rank {e.dst} has the result"
    if want.kind == "nothing":
        elsewhere = e.dst is not None and e.dst != e.rank
        reason = f"only rank {e.dst} receives" if elsewhere else "there is no room for it"
        return f"{e.op} gives nothing more here: {reason}"
    if e.async_op and not e.waited:
        return "no rank waited for this call, so nothing is promised about its tensor"
    if given.kind == "undefined":
        return f"this is well defined: {_says(e)}"
    if given.kind in ("nothing", "never"):
        return f"something does arrive: {_says(e)}"
    return ""


def _says(e: Event) -> str:
    if e.op == "recv":
        return f"a recv leaves what rank {e.src} sent"
    return collectives.of(e.op).promise.format(src=e.src, dst=e.dst, reduce_op=e.reduce_op or "")


def _near(a, b) -> bool:
    return not isinstance(b, bool) and (a == b or abs(a - b) <= 5e-3 * abs(b))


def _value(call: Call, e: Event, k: int, given: LearnersAnswer, want: Want) -> list[Story]:
    found = []
    if given.kind == "number" and want.kind == "number":
        before = {other.rank: numbers_of(other.before) for other in call}
        tell = _sums if e.reduce_op else _moves
        found = [Story(*told) for told in tell(call, e, k, given.value, want, before)]
    return found or [Story("promise", _says(e))]


def _moves(call: Call, e: Event, k: int, g, want: Want, before: dict[int, list]) -> Iterator[tuple[str, str]]:
    """Kinds and words of the stories about a call that adds nothing up."""
    own = before.get(e.rank, [])
    if k < len(own) and g == own[k] and collectives.shapes(e.op) == ("whole", "whole"):
        yield "before", f"this is what it held before: {e.op} writes rank {e.src}'s numbers over it"
    if g in numbers_of(e.after):
        yield "place", f"this number does arrive, in a different position: {_says(e)}"
    row = [numbers[k] for numbers in before.values() if k < len(numbers)]
    if len(row) == len(call.events) and len(row) > 1 and g == sum(row) and g not in row:
        yield "sum", f"this is a sum, and {e.op} adds nothing up: {_says(e)}"
    for other in call:
        if other is not e and g in numbers_of(other.after) and not other.is_undefined:
            yield "elsewhere", f"that is what rank {other.rank} gets: {_says(e)}"
            break
    for rank, numbers in before.items():
        if g in numbers:
            yield "stays", f"rank {rank} held this, but it does not come here: {_says(e)}"
            break


def _sums(call: Call, e: Event, k: int, g, want: Want, before: dict[int, list]) -> Iterator[tuple[str, str]]:
    """Kinds and words of the stories about a call that combines."""
    scattered = collectives.shapes(e.op)[1] == "own"
    at = k + call.group.index(e.rank) * len(numbers_of(e.after)) * scattered
    column = {rank: numbers[at] for rank, numbers in before.items() if at < len(numbers)}
    parts = list(column.values())
    if len(parts) < len(call.events) or not provenance.agree(call):
        return
    mine, total = column[e.rank], sum(parts)
    if e.reduce_op == "SUM" and not _near(total, want.value):  # it wraps, overflows or is rounded
        return
    sum_of = " + ".join(map(number, parts)) if len(parts) <= 8 and all(p >= 0 for p in parts) else "all ranks' numbers"
    if g == mine:
        here = f": here {sum_of}" if e.reduce_op == "SUM" and len(parts) <= 8 else ""
        everybody = "all ranks" if call.group == tuple(range(len(call.group))) else "the ranks of its group"
        yield "own", f"you gave the rank's own number; {e.op} takes the {e.reduce_op} over {everybody}{here}"
    if e.reduce_op != "SUM":
        if g == total:
            yield "sum", f"this is the sum, and the reduce op is {e.reduce_op}"
        if whose := [rank for rank, held in column.items() if g == held != mine]:
            yield "another's", f"this is rank {whose[0]}'s number; the {e.reduce_op} over all ranks is a different one"
        return
    if g == total - mine:
        yield "others", f"this is the sum of the others: the rank's own number counts too ({sum_of})"
    if g == total / len(parts):
        yield "average", f"this is the average, and the reduce op is SUM: {sum_of}"
    if g == max(parts):
        yield "largest", f"this is the largest of them, and the reduce op is SUM: {sum_of}"
    for other in call if scattered else ():
        if other is not e and g in numbers_of(other.after):
            yield "another chunk", f"this is the sum of rank {other.rank}'s chunk: rank {e.rank} gets {sum_of}"
            break
    if len(parts) <= 8:
        yield "sum of", f"it is {sum_of}"
