"""Who holds up whom, in words: one sentence for all causes of a kind, however the calls are named."""

from typing import Callable, Iterable, Sequence

from ...format import dtype_name
from ...log.collectives import COUNTERPART
from ...log.event import Event
from ..verdict import Cause
from .phrases import are, call_name, few, of_group, source

MOST = 4  # causes of a kind, or ranks of a cycle, that are written out


class Names:
    """The names of calls and of their arguments: here, as in the other words on a watched job."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def call(self, e: Event) -> str:
        return call_name(e, self.world_size)

    def counterpart(self, e: Event) -> str:
        """The call that others have not made: for a send, its recv."""
        if e.is_message:
            return f"the {COUNTERPART[e.op]} {'from' if e.op == 'send' else 'to'} {e.rank}"
        return self.call(e)

    def number(self, e: Event) -> int:
        return e.index + 1

    def group(self, e: Event) -> str:
        return of_group(e, self.world_size)

    def passed(self, e: Event, flaw: str) -> str:
        """The argument that differs, as this rank passes it."""
        if flaw == "collective":
            return e.op
        return dtype_name(e.dtype) if flaw == "dtype" and e.dtype else str(list(e.shape))

    def at(self, e: Event) -> str:
        """', at train_step, line 12'; nothing where the line is not known."""
        return f", at {source(e.line)}" if e.line else ""

    def silence(self, ranks: Sequence[int]) -> str:
        return f"{'it has' if len(ranks) == 1 else 'they have'} reported nothing"


def grouped(causes: Iterable[Cause]) -> list[list[Cause]]:
    """The causes of each kind."""
    kinds: dict[str, list[Cause]] = {}
    for cause in causes:
        kinds.setdefault(cause.kind, []).append(cause)
    return list(kinds.values())


def headline(causes: Sequence[Cause], names: Names, first: bool = True) -> str:
    """The sentence on the causes of one kind.  first: whether no other kind was named before."""
    clauses = [_WHY[cause.kind](cause, names, len(causes) > 1) for cause in causes[:MOST]]
    more = f", and {len(causes) - MOST:,} more like these" if len(causes) > MOST else ""
    why = "; ".join(clauses) + more
    if causes[0].kind == "joined":
        return f"No rank lacks a call: {why}." if first else f"Besides, {why}."
    if causes[0].kind == "parted":
        return f"{'' if first else 'Besides, '}{why if not first else why[0].upper() + why[1:]}."
    who = _subject(causes, names.world_size)
    return f"{who if first else f'Besides, {who[0].lower()}{who[1:]}'}: {why}."


def _subject(causes: Sequence[Cause], world_size: int) -> str:
    kind, ranks = causes[0].kind, sorted({rank for cause in causes for rank in cause.ranks})
    held = frozenset().union(*(cause.held for cause in causes)) - set(ranks)
    others = world_size - len(ranks)
    verb = "may hold" if kind == "silent" else "holds" if len(ranks) == 1 else "hold"
    whom = "the other rank" if others == 1 else f"the other {others:,}"
    if len(held) < others or not others:
        whom = f"{len(held):,} of {whom}" if held else ""
    if kind == "cycle" or kind == "mismatch" and all(map(_is_tie, causes)):
        whom = " and ".join(["each other", *([whom] if whom else [])])
    return f"{few(ranks).capitalize()} {verb} up {whom or 'nobody else'}"


def _is_tie(mismatch: Cause) -> bool:
    return len(mismatch.parts[0]) == len(mismatch.parts[1])


def _absent(cause: Cause, names: Names, named: bool) -> str:
    who = few(cause.ranks) if named else "it" if len(cause.ranks) == 1 else "they"
    have = "has" if len(cause.ranks) == 1 else "have"
    return f"{who} {have} not made {names.counterpart(cause.waits[0].event)}"


def _mismatch(cause: Cause, names: Names, named: bool) -> str:
    usual, *odd = cause.parts
    one, several = ("calls", "call") if cause.flaw == "collective" else ("passes", "pass")

    def clause(part: Sequence[Event]) -> str:
        verb = one if len(part) == 1 else several
        return f"{few(e.rank for e in part)} {verb} {names.passed(part[0], cause.flaw)}"

    call = f"call #{names.number(usual[0])}{names.group(usual[0])}"
    return f"in {call}, {', '.join(map(clause, odd))}, and {clause(usual)}"


def _not_started(cause: Cause, names: Names, named: bool) -> str:
    its = "its device has" if len(cause.ranks) == 1 else "their devices have"
    its = f"the device{'s' * (len(cause.ranks) > 1)} of {few(cause.ranks)} {its.split()[-1]}" if named else its
    return f"all have made {names.call(cause.waits[0].event)}, and {its} not come to it"


def _silent(cause: Cause, names: Names, named: bool) -> str:
    inside = [wait.event.rank for wait in cause.waits]
    waiting = f"{few(inside)} {are(inside)} waiting in {names.call(cause.waits[0].event)}"
    return f"{names.silence(cause.ranks)}, and {waiting}" + (f" for {few(cause.ranks)}" if named else "")


def _joined(cause: Cause, names: Names, named: bool) -> str:
    first = cause.waits[0].event
    needed = first.ends if first.is_message else first.group
    who = f"all {len(needed):,} ranks" if len(needed) > 2 and not named else few(needed)
    there = f" on {few(wait.event.rank for wait in cause.waits)}" if cause.ended else ""
    return f"{who} have made {names.call(first)}, and it has not ended{there}"


def _parted(cause: Cause, names: Names, named: bool) -> str:
    behind, *ahead = cause.waits
    inside = sorted(set(cause.ranks) - {wait.event.rank for wait in ahead})
    those = few(wait.event.rank for wait in ahead)
    call, later = names.call(behind.event), names.call(ahead[0].event)
    return f"the calls of {few(cause.ranks)} don't belong together: {few(inside)} {are(inside)} waiting in {call}, while {those} {are(ahead)} already in {later}"


def _cycle(cause: Cause, names: Names, named: bool) -> str:
    following = [*cause.ranks[1:], cause.ranks[0]]
    links = [
        f"rank {wait.event.rank} is waiting in {names.call(wait.event)} for rank {to}"
        for wait, to in zip(cause.waits, following)
    ]
    more = f", and so on through {len(links)} ranks" if len(links) > MOST else ""
    return "; ".join(links[:MOST]) + more


_WHY: dict[str, Callable[[Cause, Names, bool], str]] = {
    "absent": _absent,
    "silent": _silent,
    "mismatch": _mismatch,
    "not started": _not_started,
    "joined": _joined,
    "parted": _parted,
    "cycle": _cycle,
}


def slipped(cause: Cause, names: Names) -> list[str]:
    """The sentence on a rank whose calls have slipped against the others'."""
    if not cause.slip:
        return []
    rank, by, first = cause.slip
    n = abs(by)
    which = f"{names.call(first)}{names.at(first)}" + (f", and {n - 1} more" if n > 1 else "")
    did = f"left out {which}" if by > 0 else f"made {which}, which the others did not make there"
    return [f"Rank {rank} {did}: from there on, its calls meet {'later' if by > 0 else 'earlier'} ones of the others."]
