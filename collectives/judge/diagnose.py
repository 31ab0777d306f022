"""From what the ranks did to what is wrong: who waits for ever, who disagrees.

A run's state is logical.  The k-th call on a group is complete when every member has made
its k-th call; a rank that returned will make no more; a send completes when its recv is
posted.  A rank reports each call before it makes it and in order, so "rank 2 waits in call
3" means that all its earlier calls are known too.  Hence a cycle of waits, or a wait on a
rank that has returned, is certain the moment it is seen: no time-out has to pass.
"""

from itertools import combinations
from typing import Callable, Iterable, Mapping, NamedTuple

from ..record.calls import Call
from ..record.collectives import of
from ..record.event import Event
from . import nccl
from .branches import alternatives
from .gloo import TAKEN_FOR_DENSE


def deadlocked(waits: Mapping[int, list[set[int]]]) -> set[int]:
    """Ranks that wait for what can never come.  waits: by rank, for all that may act there, the ranks it waits for."""
    can_move: set[int | None] = {None}  # anyone, where a recv may be from anyone, is not judged
    while freed := {r for r, each in waits.items() if r not in can_move and any(on <= can_move for on in each)}:
        can_move |= freed
    return waits.keys() - can_move


class Wrong(NamedTuple):
    """What is wrong with a call.  calls: it, after the earlier one whose order ranks disagree on."""

    calls: tuple[Call, ...]
    flaw: str  # a key of wording.mismatches.CONSEQUENCES

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that have misused its tensors until now; if there are none, all that have made it."""
        call = self.calls[-1]
        misusing = tuple(e.rank for e in call if _misuse(e, len(call.group)) == self.flaw)
        return misusing or call.ranks


def wrong(
    call: Call, before: Callable[[Call], Iterable[Call]] = lambda call: (), new: Event | None = None
) -> Wrong | None:
    """What is wrong with a call as far as it has been made.

    before: gives the calls before it on its group.  new: the part that came last, if nothing was wrong without it.
    """
    if flaw := mismatch(call, new):
        return Wrong((call,), flaw)
    if not call.one_line and (earlier := out_of_order(call, before(call))):
        return Wrong((earlier, call), "order")
    return None


def mismatch(call: Call, new: Event | None = None) -> str | None:
    """How the parts of a call disagree, or its tensors are misused, as far as it has been made.  new: as of wrong."""
    first, looked_at = call.events[0], call.events
    if new is not None:  # any other is as good as the first to compare it with
        first, looked_at = call.events[-1] if new is first else first, [new]
        if new is not first and new.form is first.form and new.op != "all_to_all_single":
            return None
    for e in looked_at:
        if misuse := _misuse(e, len(call.group)):
            return misuse
    for e in looked_at:
        if e is not first and (flaw := _differ(first, e)):
            return flaw
    return _splits(call) if call.op == "all_to_all_single" else None


def _differ(one: Event, other: Event) -> str | None:
    """How two parts of a call disagree."""
    if one.is_message:
        return "dtype" if other.dtype != one.dtype else "size" if other.nbytes != one.nbytes else None
    if other.op != one.op:
        return "collective"
    if other.root != one.root:
        return "root"
    if other.reduce_op != one.reduce_op:
        return "reduce op"
    if other.dtype != one.dtype:
        return "dtype"
    on_nccl = one.backend == "nccl"
    if other.shape != one.shape and not of(other.op).personal and not (on_nccl and other.op in nccl.UNEVEN):
        return "shape"
    return "layout" if other.strides != one.strides and other.op in TAKEN_FOR_DENSE and not on_nccl else None


def out_of_order(call: Call, earlier: Iterable[Call]) -> Call | None:
    """An earlier call of the group whose lines two ranks reached the other way round.

    Same-sized tensors are then added up wrongly without any rank noticing. Not so where each line
    belongs to a part in the call, and the ranks have changed parts: one of them was the root first,
    then the other; or the lines stand in different branches of one `if`. A barrier moves nothing.
    """
    lines = {e.rank: e.line for e in call if e.line}
    if len(set(lines.values())) < 2 or call.op == "barrier":
        return None
    for other in earlier:
        before = {e.rank: e.line for e in other if e.line}
        for a, b in combinations([rank for rank in lines if rank in before], 2):
            if lines[a] == lines[b] or lines[a] != before[b] or lines[b] != before[a]:
                continue
            roots = {e.root for e in call}, {e.root for e in other}
            if roots not in (({a}, {b}), ({b}, {a})) and not alternatives(lines[a], lines[b]):
                return other
    return None


def parted(call: Call, earlier: Iterable[Call]) -> Call | None:
    """Before a call that goes wrong, the first of the last calls that ranks made from different lines.

    None if there are none, or if ranks never came from the same line before them: then that is how the program is made.
    Lines in different branches of one `if` are as good as the same.
    """
    first = None
    for other in reversed([other for other in earlier if other is not call]):
        lines = sorted({e.line for e in other if e.line})
        if all(alternatives(one, another) for one, another in combinations(lines, 2)):
            if first is not None:
                return first
        else:
            first = other
    return None


def _misuse(e: Event, size: int) -> str | None:
    """How a rank misuses the tensors of its part in a call of so many ranks."""
    if e.misuse:
        return e.misuse
    dense = TAKEN_FOR_DENSE.get(e.op, ())
    if e.non_dense and e.backend != "nccl" and set(e.non_dense) & set(dense):  # NCCL refuses them
        return "gaps"
    split = e.op == "all_to_all_single" and not (e.splits and e.splits[0])
    return "remainder" if split and e.shape and e.shape[0] % size else None


def _splits(call: Call) -> str | None:
    """Whether what each rank sends is what its peer expects, where both have called."""
    if not any(e.splits and e.splits[1] for e in call):
        return None
    size, sizes = len(call.group), {}
    for e in call:
        rows = e.shape[0] if e.shape else 0
        sent, expected = e.splits or ((), ())
        sizes[call.group.index(e.rank)] = sent or (rows // size,) * size, expected
    for i, (sent, _) in sizes.items():
        for j, (_, expected) in sizes.items():
            if len(expected) == size == len(sent) and sent[j] != expected[i]:
                return "split sizes"
    return None
