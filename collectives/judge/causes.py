"""Who holds up whom: the waits of all ranks, followed to their causes.

Every rank waits in the calls that it has made and that have not ended. A collective lacks each member that has not made
it; a message lacks its other end. Followed over all groups, these waits lead to ranks that wait for nobody: they are
elsewhere, and hold the others up. Where all have made a call and it does not end, their arguments differ, or the fault
is below the program: a kernel, a GPU, a link. There may be several such causes at once.
"""

from itertools import chain
from typing import Callable, Collection, Iterable, Mapping, NamedTuple, Sequence, TypeVar

from ..log import backends
from ..log.calls import Call
from ..log.collectives import COUNTERPART, RECEIVES
from ..log.collectives import of as of_op
from ..log.event import Event
from . import diagnose
from .verdict import Cause, Slip, Wait

MOST_PEERS = 32  # with whose programs a rank's is compared
FEW = 3  # calls by which a rank may have slipped against the others
ENOUGH = 2  # consecutive calls that must agree before a slip is reported

T = TypeVar("T")
FindSlip = Callable[[int, Call], Slip | None]  # for a rank, in the group of a collective


class RankCall(NamedTuple):
    """A call of a rank's program.  number: a collective's number on its group.  peer: a message's other end."""

    op: str
    name: str  # of the group
    group: tuple[int, ...]
    number: int
    peer: int | None = None


History = Callable[[int], Sequence[RankCall]]  # of a rank: its calls, as far as they are known, in order


def of(
    waits: Sequence[Sequence[Wait]], calls: Iterable[Call], slip: FindSlip, history: History = lambda rank: ()
) -> tuple[Cause, ...]:
    """The causes of these waits that are independent of each other.

    waits: as a Standstill's.  calls: all that have not ended everywhere.
    """
    return tuple(_Graph(waits, calls, slip, history).causes())


class _Graph:
    """The wait-for graph of ranks: an edge from each rank to the ranks that keep one of its calls from proceeding."""

    def __init__(
        self, waits: Sequence[Sequence[Wait]], calls: Iterable[Call], slip: FindSlip, history: History
    ) -> None:
        self._waits = {rank: mine for rank, mine in enumerate(waits) if mine}
        self._calls, self._slip, self._history = calls, slip, history
        # The first call that a rank waits in keeps it from all calls queued behind.
        self._firsts = {rank: mine[0] for rank, mine in self._waits.items()}
        self._edges = {
            rank: set().union(*(self._behind(wait, self._firsts) for wait in mine))
            for rank, mine in self._waits.items()
        }

    def causes(self) -> list[Cause]:
        """First faults of the program, then calls that all have made and that don't end, then cycles among other ranks."""
        flawed = self._mismatches()
        found = _independent(sorted([*self._absent(), *flawed], key=_start))
        explained = set().union(*map(_parties, found))  # ranks whose part in a cause explains their other symptoms
        held = explained.union(*(cause.held for cause in found))
        below = self._below(self._firsts, flawed)
        below = [cause for cause in below if cause.kind != "silent"] if found else below or self._unclear(flawed)
        for cause in below:
            inside = {wait.event.rank for wait in cause.waits}
            # If its ranks are held up anyway, only a device's call counts: another's end may not have been noticed.
            doubtful = inside & held and not backends.of(cause.waits[0].event.backend).in_stream
            if not (inside & explained or doubtful):
                found.append(cause)
                explained |= inside
                held |= inside | cause.held
        return [*found, *self._cycles(held)]

    def _unclear(self, flawed: Iterable[Cause]) -> list[Cause]:
        """Causes below the program, if no other is found: a receive may have been posted early."""
        if (cycle := self._cycle(())) and not _is_early(cycle):
            return [cycle]
        collectives = {r: min(waits, key=lambda wait: wait.event.is_message) for r, waits in self._waits.items()}
        return self._below(collectives, flawed)

    # --- the graph ------------------------------------------------------------------------

    def _behind(self, wait: Wait, firsts: Mapping[int, Wait]) -> Collection[int]:
        """The ranks that keep a call from proceeding: the ones it lacks, otherwise the ones held in an earlier call."""
        if wait.lacks or wait.event.is_from_anyone:
            return wait.lacks
        return {e.rank for e in wait.call if e.rank != wait.event.rank and self._is_held_before(e, firsts)}

    def _is_held_before(self, e: Event, firsts: Mapping[int, Wait]) -> bool:
        """Whether a rank that has made a call waits in one that it made before.  Calls of one batch are made at once."""
        if e.rank not in firsts:
            return False
        first = firsts[e.rank].event
        return first is not e and (first.start if first.issued is None else first.issued) < e.start

    def _held(self, ranks: Iterable[int]) -> frozenset[int]:
        """The ranks that wait for some of these, directly or indirectly."""
        held, new = set(), set(ranks)
        while new:
            new = {rank for rank, targets in self._edges.items() if not targets.isdisjoint(new)} - held
            held |= new
        return frozenset(held - set(ranks))

    def _in_call(self, call: Call) -> tuple[Wait, ...]:
        return tuple(wait for mine in self._waits.values() for wait in mine if wait.call is call)

    # --- causes ---------------------------------------------------------------------------

    def _absent(self) -> Iterable[Cause]:
        """Ranks that calls lack and that wait in no call; the ranks that are due in the same call are one cause."""
        lacking = sorted((w for w in chain(*self._waits.values()) if w.lacks), key=lambda wait: wait.event.start)
        absent = frozenset().union(*(wait.lacks for wait in lacking)) - self._waits.keys()
        sure = frozenset().union(*(wait.lacks - wait.unsure for wait in lacking)) & absent
        firsts = {id(wait.call): wait for wait in reversed(lacking)}  # the earliest in each call
        due: dict[int, tuple[Wait, list[int]]] = {}
        for rank in sorted(sure or absent):
            wait = self._due(rank, [wait for wait in firsts.values() if rank in wait.lacks])
            due.setdefault(id(wait.call), (wait, []))[1].append(rank)
        for wait, ranks in due.values():
            slip = self._slip(ranks[0], wait.call) if len(ranks) == 1 and not wait.event.is_message else None
            held = self._held(ranks)
            yield Cause(kind="absent", ranks=tuple(ranks), held=held, waits=self._in_call(wait.call), slip=slip)

    def _due(self, rank: int, waits: Sequence[Wait]) -> Wait:
        """The wait for a rank in the call that it would make next.

        It is the call that a peer made, after the last collective that both have made. A peer's own messages go to other
        ranks than this one's, just as far away. If nothing is known: a receive may have been posted early, a collective not.
        """
        if len(waits) > 1:
            mine = self._history(rank)
            last = max((k for k, step in enumerate(mine) if step.peer is None and len(step.group) > 1), default=None)
            after = [_role(step, rank, rank) for step in mine[0 if last is None else last + 1 :]]
            # A peer's step may be in this very group, or in another one of the same shape.
            wanted = [(_counterpart(wait), wait) for wait in reversed(waits)]
            by_role = {_role(step, rank, other): wait for step, wait in wanted for other in (rank, None)}
            soonest: dict[int, Wait] = {}  # by the steps that a peer made before it, as one at a different place in its group made others
            for peer in sorted(mine[last].group, key=lambda peer: abs(peer - rank))[1:MOST_PEERS] if last is not None else ():
                theirs = self._history(peer)
                at = next((k for k in reversed(range(len(theirs))) if theirs[k][1:] == mine[last][1:]), None)
                made = list(after)
                for k, step in enumerate(theirs[at + 1 :] if at is not None else ()):
                    role = _role(step, peer, rank)
                    if role in made:
                        made.remove(role)
                    elif role in by_role:
                        soonest.setdefault(k, by_role[role])
                        break
            if soonest:
                return soonest[min(soonest)]
        return min(waits, key=lambda wait: (wait.event.is_message, wait.event.start))

    def _mismatches(self) -> list[Cause]:
        """The first collective of each group whose members pass arguments that do not match."""
        found: dict[tuple, Cause] = {}
        for call in sorted((call for call in self._calls if not call.is_message), key=lambda call: call.index):
            group = call.events[0].lane.shared
            if group in found or not (flaw := diagnose.mismatch(call)):
                continue
            alike: dict[tuple, list[Event]] = {}
            for e in call:
                alike.setdefault(e.form, []).append(e)
            if len(alike) > 1:
                parts = sorted(map(tuple, alike.values()), key=len, reverse=True)
                found[group] = self._mismatch(call, flaw, tuple(parts))
        return list(found.values())

    def _mismatch(self, call: Call, flaw: str, parts: tuple[tuple[Event, ...], ...]) -> Cause:
        most, *rest = parts
        odd = parts if len(most) == len(rest[0]) else rest
        ranks = tuple(sorted(e.rank for e in chain(*odd)))
        slip = self._slip(ranks[0], call) if len(ranks) == 1 else None
        held = (self._held(call.ranks) | set(call.ranks)) - set(ranks)
        waits = tuple(sorted(self._in_call(call) or [Wait(most[0], call)], key=lambda wait: wait.event not in most))
        return Cause(kind="mismatch", ranks=ranks, held=held, waits=waits, parts=parts, flaw=flaw, slip=slip)

    def _below(self, firsts: Mapping[int, Wait], flawed: Iterable[Cause]) -> list[Cause]:
        """Calls that all have made and in which no rank is held by an earlier one.  firsts: each rank's first wait."""
        known = {id(cause.waits[0].call) for cause in flawed}
        stuck = [w for w in firsts.values() if not w.event.is_from_anyone and not self._behind(w, firsts)]
        calls = {id(wait.call): wait for wait in sorted(stuck, key=lambda wait: wait.event.start, reverse=True)}
        firsts = [wait for wait in reversed(calls.values()) if id(wait.call) not in known]
        below = [*self._silent(firsts), *(self._joined(wait.call) for wait in firsts if not wait.silent)]
        return sorted(below, key=lambda cause: (cause.kind != "parted", _start(cause)))

    def _silent(self, firsts: Iterable[Wait]) -> Iterable[Cause]:
        """The ranks that have reported nothing, if some call needs them: they may have ended together, as on one host."""
        if needing := [wait for wait in firsts if wait.silent]:
            ranks = frozenset().union(*(wait.silent for wait in chain(*self._waits.values())))
            inside = {each.event.rank for wait in needing for each in self._in_call(wait.call)}
            first = min(needing, key=lambda wait: (wait.event.is_message, wait.event.start))
            held = self._held(inside) | inside
            yield Cause(kind="silent", ranks=tuple(sorted(ranks)), held=held, waits=self._in_call(first.call))

    def _joined(self, call: Call) -> Cause:
        waits = self._in_call(call)
        inside = {wait.event.rank for wait in waits}
        held = self._held(inside) | inside
        ended = tuple(sorted(set(call.ranks) - inside))
        if ahead := self._ahead(call):
            ranks = tuple(sorted(inside | {wait.event.rank for wait in ahead}))
            return Cause(kind="parted", ranks=ranks, held=held - set(ranks), waits=(waits[0], *ahead))
        queued = tuple(sorted(wait.event.rank for wait in waits if not wait.started))
        if queued and len(queued) < len(inside):
            return Cause(kind="not started", ranks=queued, held=held - set(queued), waits=waits, ended=ended)
        return Cause(kind="joined", held=held, waits=waits, ended=ended)

    def _ahead(self, call: Call) -> tuple[Wait, ...]:
        """The waits of ranks that have ended later collectives of this one's group, which they can't without the others."""
        if not of_op(call.op).together:
            return ()
        lane = call.events[0].lane.shared
        together = (wait for wait in chain(*self._waits.values()) if of_op(wait.event.op).together)
        return tuple(w for w in together if w.event.lane.shared == lane and w.call.index > call.index + 1)

    def _cycles(self, held: Collection[int]) -> Iterable[Cause]:
        """The cycles among ranks that no other cause holds up."""
        while cycle := self._cycle(held):
            yield cycle
            held = {*held, *cycle.held, *cycle.ranks}

    def _cycle(self, explained: Collection[int]) -> Cause | None:
        """Ranks that wait for each other, starting with the earliest; without ranks that are held up otherwise."""
        behind = {r: self._behind(wait, self._firsts) for r, wait in self._firsts.items() if r not in explained}
        waiting = {rank: self._firsts[rank] for rank in behind if behind[rank]}
        if not waiting:
            return None
        rank = min(waiting, key=lambda rank: waiting[rank].event.start)
        path: list[int] = []
        while rank not in path:
            path.append(rank)
            onward = [other for other in behind[rank] if other in waiting]
            if not onward:
                return None
            rank = min(waiting[rank].lacks & set(onward) or onward)
        cycle = path[path.index(rank) :]
        start = cycle.index(min(cycle, key=lambda rank: waiting[rank].event.start))
        cycle = cycle[start:] + cycle[:start]
        waits = tuple(waiting[rank] for rank in cycle)
        for wait, other in zip(waits, [*cycle[1:], cycle[0]]):  # has one of them left out a call?
            if other in wait.lacks and not wait.event.is_message and (slip := self._slip(other, wait.call)):
                held = self._held([other])
                return Cause(kind="absent", ranks=(other,), held=held, waits=self._in_call(wait.call), slip=slip)
        return Cause(kind="cycle", ranks=tuple(cycle), held=self._held(cycle), waits=waits)


def step(e: Event, number: int) -> RankCall:
    """A call as a step of its rank's program."""
    return RankCall(e.op, e.group_name, e.group, number, (e.src if e.op in RECEIVES else e.dst) if e.is_message else None)


def _counterpart(wait: Wait) -> RankCall:
    """The call that a wait's event lacks, as the rank that it lacks would make it."""
    e, number = wait.event, wait.call.index
    if not e.is_message:
        return step(e, number)
    return RankCall(COUNTERPART[e.op], e.group_name, e.group, number, e.rank)


def _role(step: RankCall, rank: int, other: int | None) -> tuple:
    """The part of a step that is the same for ranks that do the same on different data.  other: a rank that may share the group."""
    if step.peer is not None:
        return step.op, step.peer - rank
    if other in step.group:
        return step.name, step.group
    return (tuple(member - rank for member in step.group),)


def _is_early(cycle: Cause) -> bool:
    """Whether ranks may only seem to wait for each other: some of the calls are messages that may not be needed yet."""
    return any(wait.lacks and wait.event.is_message for wait in cycle.waits)


def _parties(cause: Cause) -> set[int]:
    """The ranks to blame, and those that made the call otherwise."""
    return {*cause.ranks, *(e.rank for e in chain(*cause.parts))}


def _independent(causes: Iterable[Cause]) -> list[Cause]:
    """These causes, without the ones that share a rank with an earlier one."""
    found: list[Cause] = []
    for cause in causes:
        if not any(_parties(cause) & _parties(other) for other in found):
            found.append(cause)
    return found


def _start(cause: Cause) -> float:
    return cause.waits[0].event.start


# --- slips --------------------------------------------------------------------------------


def _is_alike(one: Event, other: Event) -> bool:
    return one.form is other.form and one.line == other.line and one.line is not None


def slip(
    own: Mapping[int, T], reference: Mapping[int, T], alike: Callable[[T, T], bool] = _is_alike
) -> tuple[int, T] | None:
    """How a rank's calls of a group have slipped against another rank's, as a Slip.

    own, reference: by number, in order.  alike: whether two of them pass the same, from the same line.
    """
    if not (_is_dense(own) and _is_dense(reference)):
        return None
    begin = max(next(iter(own)), next(iter(reference)))
    mine, theirs = ([call for number, call in calls.items() if number >= begin] for calls in (own, reference))
    at = next((k for k, pair in enumerate(zip(mine, theirs)) if not alike(*pair)), None)
    if at is None:
        return None
    for by in chain.from_iterable((n, -n) for n in range(1, FEW + 1)):
        shifted = list(zip(mine[at + max(0, -by) :], theirs[at + max(0, by) :]))
        if len(shifted) >= ENOUGH and all(alike(*pair) for pair in shifted):
            return by, theirs[at] if by > 0 else mine[at]
    return None


def _is_dense(numbers: Collection[int]) -> bool:
    return bool(numbers) and max(numbers) - min(numbers) == len(numbers) - 1
