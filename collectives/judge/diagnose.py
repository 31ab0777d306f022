"""The diagnosis of the ranks' calls: which ranks wait forever, which disagree.

A run's state is logical.  The k-th call on a group is complete when every member has made
its k-th call; a rank that returned will make no more; a send completes when its recv is
posted.  A rank reports each call before it makes it and in order, so "rank 2 is waiting in call
3" means that all its earlier calls are known too.  That is why a cycle of waits, or a wait on a
rank that has returned, is certain the moment it is seen: no timeout has to pass.
"""

from itertools import combinations, takewhile
from typing import Callable, Iterable, Mapping, NamedTuple

from ..log import backends
from ..log.calls import Call
from ..log.collectives import SENDS, all_ranks, of
from ..log.event import Event
from .branches import alternatives, same_place

LOOK_BACK = 128  # calls, for the one in which ranks parted
# Flaws of calls whose parts do not match, the gravest first.
_GRAVITY = (
    "collective", "root", "reduce op", "dtype", "shape", "size", "aliased", "gaps", "remainder", "split sizes", "read",
    "returned", "written", "layout", "reordered",
)  # fmt: skip
OF_PARTED_RANKS = ("collective", "call", "root", "shape", "size")  # flaws of ranks that are not at the same place
OF_DECISIONS = (*OF_PARTED_RANKS, "order")  # for which a decision of the program, or an exception, may be the reason
OF_ONE_LINE = ("root", "reduce op", "dtype", "shape")  # that two different calls may have, too, if their lines differ


def deadlocked(waits: Mapping[int, list[set[int]]]) -> set[int]:
    """Ranks in a deadlock.  waits: by rank, for everything that may act there, the ranks it waits for."""
    can_move: set[int | None] = {None}  # a recv from anyone is not judged
    while freed := {r for r, each in waits.items() if r not in can_move and any(on <= can_move for on in each)}:
        can_move |= freed
    return waits.keys() - can_move


def needs(event: Event, call: Call) -> set[int]:
    """The ranks whose call `event` waits for: without them it cannot complete, on any backend
    for those that need data, on gloo for those that must be received from."""
    if call.is_complete:
        return set()
    if event.is_message:
        return {event.dst if event.op in SENDS else event.src}
    collective = of(event.op)
    if event.dtype is not None and event.nbytes == 0 and not collective.personal:
        return set()  # nothing to move; an all_to_all may receive where it sends nothing
    others = set(event.group) - {e.rank for e in call} - call.unseen
    ends_with = backends.of(event.backend).ends_with
    if ends_with == "all" or collective.gloo is all_ranks:
        return others
    if ends_with == "senders":
        return others if event.dst == event.rank else others & {event.src}
    group, root = event.group, event.group.index(event.root) if event.root in event.group else None
    return others.intersection(group[k] for k in collective.gloo(group.index(event.rank), root, len(group)))


def may_be_lost(event: Event) -> bool:
    """Whether this is a send whose Work was dropped and never waited for: without a posted recv, it is not sent."""
    return (
        event.op == "send" and event.abandoned and event.waiting is None and backends.of(event.backend).drops_messages
    )


def dropped_send(event: Event, call: Call) -> Event | None:
    """The send that a recv waits for, if the backend may have lost it."""
    return next(filter(may_be_lost, call), None) if event.op == "recv" else None


class Wrong(NamedTuple):
    """The flaw of a call.  calls: the call, after the earlier one whose order ranks disagree on."""

    calls: tuple[Call, ...]
    flaw: str  # a key of wording.mismatches.CONSEQUENCES

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have misused its tensors so far; if no rank has, all that have made it."""
        call = self.calls[-1]
        misusing = tuple(e.rank for e in call if _misuse(e, len(call.group)) == self.flaw)
        return misusing or call.ranks


def wrong(
    call: Call, before: Callable[..., Iterable[Call]] = lambda call, most=0: (), new: Event | None = None
) -> Wrong | None:
    """The flaw of a call as far as it has been made, or None.

    before: returns the calls before it on its group, at most `most`.  new: the part that came last, if the call had no
    flaw without it.
    """
    if flaw := mismatch(call, new):
        return Wrong((call,), "call" if flaw in OF_ONE_LINE and _are_different(call, before(call, LOOK_BACK)) else flaw)
    if not call.one_line and (earlier := out_of_order(call, before(call))):
        return Wrong((earlier, call), "order")
    return None


def mismatch(call: Call, new: Event | None = None) -> str | None:
    """The gravest flaw of a call, as far as it has been made: its parts disagree, or its tensors are misused.

    It does not depend on the order of the parts, unless only a new one is checked.  new: as for `wrong`.
    """
    first, looked_at = call.events[0], call.events
    if new is not None:  # comparing it with any one other is enough
        first, looked_at = call.events[-1] if new is first else first, [new]
        if new is not first and new.form is first.form and new.op != "all_to_all_single":
            return None
    flaws = {_misuse(e, len(call.group)) for e in looked_at} | {_differ(first, e) for e in looked_at if e is not first}
    if call.op == "all_to_all_single":
        flaws.add(_splits(call))
    return min(flaws - {None}, key=_GRAVITY.index, default=None)


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
    backend = backends.of(one.backend)
    if other.shape != one.shape and other.op not in backend.uneven:
        return "shape"
    dense = backend.takes_for_dense
    return "layout" if other.strides != one.strides and other.op in dense else None


def out_of_order(call: Call, earlier: Iterable[Call]) -> Call | None:
    """An earlier call of the group whose lines two ranks reached the other way around.

    Same-sized tensors are then added up wrongly without any rank noticing. Not so where each line
    belongs to a part in the call, and the ranks have changed parts: one of them was the root first,
    then the other; or the lines are in different branches of one `if`. A barrier moves nothing.
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


def _are_different(call: Call, earlier: Iterable[Call]) -> bool:
    """Whether the lines of a call belong to different calls: a rank was in an earlier one where another is in this.

    A root's line proves nothing: ranks may take turns.  Join's own calls fit unless ranks have parted before.
    """
    lines = {e.line: e for e in call if e.line}
    if call.one_line or same_place(lines):
        return any(e.stands_in for e in call) and bool(parted(call, earlier))
    been = {(e.rank, e.line) for other in earlier for e in other}
    return any(
        (e.rank, line) in been and not alternatives(line, e.line) and line != e.line
        for e in call
        for line, there in lines.items()
        if e.line and (there.op != e.op or (there.root == there.rank) == (e.root == e.rank))
    )


def parted(call: Call, earlier: Iterable[Call]) -> tuple[Call, ...]:
    """The consecutive calls just before a flawed one that ranks made from different lines.

    Empty if ranks never came from the same line before, and are not where others were either: then the program is
    written that way.  Lines in different branches of one `if` count as the same.  The first of them is never a call in
    which torch replaces a rank and all other parts are torch's, too: that is correct.
    """
    found: list[Call] = []  # the latest first
    together = False
    for other in reversed(list(earlier)):
        if not same_place(e.line for e in other if e.line):
            found.append(other)
        elif found:
            together = True
            break
    while found and any(e.stands_in for e in found[-1]) and all(e.within for e in found[-1]):
        found.pop()
    return tuple(reversed(found)) if together or _are_different(call, found) else ()


def repeated(call: Call, earlier: Iterable[Call]) -> tuple[Call, ...]:
    """The consecutive calls just before a flawed one that ranks made from one line, which only some have left since."""
    *_, last = [(), *({e.line for e in other} for other in earlier)]
    lines = {e.line for e in call if e.line}
    if len(last) != 1 or not lines > last or same_place(lines):
        return ()
    return tuple(takewhile(lambda other: {e.line for e in other} == last, reversed(list(earlier))))[::-1]


def _misuse(e: Event, size: int) -> str | None:
    """How a rank misuses the tensors of its part in a call.  size: the group's."""
    if e.misuse:
        return e.misuse
    if set(e.non_dense) & set(backends.of(e.backend).takes_for_dense.get(e.op, ())):
        return "gaps"
    refused = e.op == "all_to_all_single" and e.strides  # gloo itself asks for a contiguous input there
    if "order" in e.non_dense and e.op in backends.of(e.backend).takes_for_dense and not refused:
        return "reordered"
    split = e.op == "all_to_all_single" and not (e.splits and e.splits[0])
    return "remainder" if split and e.shape and e.shape[0] % size else None


def _splits(call: Call) -> str | None:
    """Whether each rank sends as much as its peer expects, if both have called."""
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
