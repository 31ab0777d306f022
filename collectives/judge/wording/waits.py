"""Words on ranks that wait: a deadlock, a run that timed out, an interrupted one, a job that hangs."""

from typing import Iterable, Sequence

from ...format import name_ranks
from ..verdict import ENTRIES, Deadlock, Deserted, Halt, Interruption, RankState, Standstill, TimeUp
from . import causes
from .phrases import (
    EVERY_RANK_MAKES_IT,
    after,
    alike,
    apart,
    are,
    call_name,
    call_waited_in,
    caught,
    cut,
    decided,
    drop_note,
    handled,
    rows,
    source,
    verb,
)

_BETWEEN = "look at what is between them, an address, a port, a firewall."
LONGER = "Give it longer with run(..., timeout=seconds), or look for a loop that does not end."


def table(standing: Sequence[RankState]) -> str:
    """A table of every rank's state and source line: one row for ranks in the same state."""
    return rows((state.rank, stands(state, len(standing)), source(_line(state))) for state in standing)


def stands(each: RankState, world_size: int) -> str:
    """A rank's state, in words."""
    if each.returned:
        return f"returned {after(each.made)}"
    if each.event:
        return f"waiting in {call_waited_in(each, world_size)}"
    if each.limited:
        return f"waiting in {call_name(each.limited, world_size)}, for a limited time"
    return f"{'waiting' if each.entering else 'running'} {_at(each)}, {after(each.made)}"


def _line(each: RankState):
    if each.returned:
        return None
    return each.event.line if each.event else each.line


def _at(each: RankState) -> str:
    """The place of a rank that waits in no call."""
    return f"in {each.entering}" if each.entering else "your code"


def under_way(standing: Sequence[RankState], name: str, started: bool) -> str:
    """The ranks' states, in one line."""
    size = len(standing)
    busy = [state for state in standing if not state.returned]
    head = f"{size} ranks" if len(busy) == size else f"{len(busy)} of {size} ranks"
    if not started:
        return f"{head} starting ..."
    doing = alike((member.rank, _does(member, size)) for member in busy)
    words = (what if len(doing) == 1 else f"{name_ranks(ranks)} {what}" for what, ranks in doing.items())
    return f"{head} running {name}: {'; '.join(cut([*words]))} ..."


def _does(each: RankState, world_size: int) -> str:
    """A rank's state, from its messages: its line is known if it has made a call."""
    if e := each.event:
        words = f"in {call_waited_in(each, world_size)}"
    elif e := each.last:
        words = f"after {e.op} #{e.index + 1}"
    else:
        return "no call yet"
    return f"{words} (line {e.line.number})" if e.line else words


def interruption(verdict: Interruption) -> str:
    where = f"The ranks were here:\n{table(verdict.standing)}" if verdict.began else "The ranks had not started yet."
    return f"interrupted. {where}"


# --- standstill ---------------------------------------------------------------------------


def standstill(verdict: Standstill) -> str:
    head = f"no rank has started or finished a call for {verdict.seconds:.0f} s. That could be normal, or it could be a hang."
    errors = handled(state.event for state in verdict.standing)
    reasons = decided(verdict, [e for call in verdict.calls for e in call])
    lacks = [*_dropped(verdict.standing), *cut([*_lacks(verdict)]), *_lack_entries(verdict)]
    return "\n".join([head, *blame(verdict), _job_table(verdict.standing), *errors, *caught(verdict), *reasons, *lacks])


def blame(verdict: Standstill) -> Iterable[str]:
    """Who holds up whom; a call that all have made is reported with the calls."""
    names, kinds = causes.Names(verdict.world_size), causes.grouped(verdict.causes)
    for place, kind in enumerate(kinds):
        if place or kind[0].kind != "joined":
            yield causes.headline(kind, names, first=not place)
            yield from (line for cause in kind[: causes.MOST] for line in causes.slipped(cause, names))


def _job_table(standing: Sequence[RankState]) -> str:
    """The table of a job, whose ranks start by themselves."""
    size = len(standing)
    described = ((s.rank, stands(s, size) if s.began else "has not started", source(_line(s))) for s in standing)
    return rows(described)


def _lack_entries(verdict: Standstill) -> Iterable[str]:
    """A sentence for each function in which ranks wait for others to come."""
    yield from _lack_members(verdict.standing)
    for name in ENTRIES:
        inside = [state.rank for state in verdict.standing if state.entering == name and state.lacking is None]
        others = [s.rank for s in verdict.standing if s.rank not in inside and (name == ENTRIES[1] or not s.made)]
        if inside and others:
            yield f"{name} of {name_ranks(inside)} lacks {name_ranks(others)}."
        elif inside:
            yield f"All ranks are in {name}: {_BETWEEN}"


def _lack_members(standing: Sequence[RankState]) -> Iterable[str]:
    """A sentence for each group that ranks make with its members alone: on those that haven't come."""
    making = alike((state.rank, state.lacking) for state in standing if state.entering == ENTRIES[1])
    for lacking, inside in making.items():
        if lacking:
            yield (
                f"new_group of {name_ranks(inside)} lacks {name_ranks(sorted(lacking))}. With "
                "use_local_synchronization=True only members have to call it, but every one of them."
            )
        elif lacking is not None:
            yield (
                f"All members have come to new_group of {name_ranks(inside)}: {_BETWEEN} Or the name is an old one: "
                "torch may give it again after destroy_process_group, and members then look for each other at the old addresses."
            )


def _lacks(verdict: Standstill) -> Iterable[str]:
    """A sentence for each call that lacks ranks."""
    for call, absent in zip(verdict.calls, verdict.lacking):
        gone = [rank for rank in sorted(absent) if verdict.standing[rank].returned]
        end = f": {name_ranks(gone)} returned, so it can never finish." if gone else "."
        number = call.events[0].index + 1
        yield f"{call.op} #{number} of {name_ranks(list(call.ranks))} lacks {name_ranks(sorted(absent))}{end}"
    if verdict.in_flight and not verdict.calls and not any(state.lost for state in verdict.standing):
        flights = "; ".join(
            f"{call.op} #{call.events[0].index + 1} on {name_ranks(list(ranks))}" for call, ranks in verdict.in_flight
        )
        yield f"No rank lacks a call: every call that has not ended was made by all its ranks. In flight: {flights}."
        yield "Look at what is between the ranks, and at what carries the call out: a link, a card or a kernel."


def _dropped(standing: Sequence[RankState]) -> list[str]:
    """A sentence for each message that a rank waits for and that gloo may have lost."""
    return cut([drop_note(state.lost) for state in standing if state.lost])


def stood(verdict: Halt) -> list[str]:
    """Sentences on the standstill before ranks ended, whose end is then unlikely to be the cause."""
    still, ended = verdict.stood, list(verdict.ranks)
    lines = [f"when {name_ranks(ended)} ended, no rank had started or finished a call for {still.seconds:.0f} s."]
    lines += [*blame(still), *cut([*_lacks(still)])]
    if not any(absent & set(ended) for absent in still.lacking):
        lines.append(f"That {name_ranks(ended)} ended is most likely a consequence, of a watchdog or a time limit:")
    return lines


# --- deadlock -----------------------------------------------------------------------------


def deadlock(verdict: Deadlock) -> str:
    waiting = [verdict.standing[rank] for rank in verdict.ranks]
    gone = [verdict.standing[rank] for rank in sorted(verdict.absent) if verdict.standing[rank].returned]
    calls = alike((state.rank, call_waited_in(state, verdict.world_size)) for state in waiting)
    clauses = [f"{name_ranks(ranks)} {are(ranks)} waiting in {what}" for what, ranks in calls.items()]
    ends = alike((state.rank, after(state.made)) for state in gone)
    clauses += [f"{name_ranks(ranks)} returned {when}" for when, ranks in ends.items()]
    advice = _advice(verdict, [state.rank for state in gone])
    errors = [*handled(state.event for state in verdict.standing), *caught(verdict)]
    errors += decided(verdict, [state.event for state in waiting]) if gone else []
    more = "".join(f"\n{line}" for line in [*apart(verdict.parted), *errors])
    return f"{'; '.join(cut(clauses))}. This can never finish.\n{table(verdict.standing)}{more}\n{advice}"


def _advice(verdict: Deadlock, gone: list[int]) -> str:
    if lost := _dropped(verdict.standing):
        return "\n".join(lost)
    pending = [verdict.standing[rank].event for rank in verdict.ranks]
    ops = {e.op for e in pending}
    if ops == {"send"} and not gone:
        if all(e.async_op for e in pending):
            return (
                "A send completes only when its recv is posted: on the rank that it goes to, and from the rank that it comes "
                "from. Post the recv before you wait for the isend."
            )
        return (
            "A send completes only when its recv is posted. Let some ranks receive first, or use "
            "isend, or batch_isend_irecv for a whole exchange."
        )
    if tags := _tags(verdict):
        return tags
    if "wait" in ops:
        return (
            "A wait ends once its source has signaled as often as it asks for, and puts alone signal nothing: let the source "
            "signal after its puts, once per wait."
        )
    if ops <= {"send", "recv"}:
        over = f"{name_ranks(gone).capitalize()} will make no more calls. " if gone else ""
        return f"{over}Every send needs a recv with the same tag on the destination rank, and every recv needs a send."
    if gone:
        return (
            "Every rank of a group must make the same calls in the same order. Look for a call inside "
            "`if rank == ...`, an early return, or a loop that runs a different number of times."
        )
    if len({e.group_name for e in pending}) > 1:
        return "The ranks wait for each other in different groups. Use the groups in the same order on every rank."
    return "The ranks wait for each other. Put their calls in the same order on every rank."


def _tags(verdict: Deadlock) -> str:
    """Two ranks whose send and recv would have matched with the same tag."""
    for rank in verdict.ranks:
        e = verdict.standing[rank].event
        peer = verdict.standing[e.dst].event if e.op == "send" else None
        if peer and peer.op == "recv" and peer.src == rank and peer.tag != e.tag and peer.group == e.group:
            tags = f"Rank {rank} sends with tag {e.tag}, rank {e.dst} receives with tag {peer.tag}"
            return f"{tags}: they must be the same."
    return ""


def deserted(verdict: Deserted) -> str:
    waiting = [verdict.standing[rank] for rank in verdict.ranks]
    calls = alike((state.rank, call_waited_in(state, verdict.world_size)) for state in waiting)
    clauses = [
        f"{name_ranks(ranks)} lost {'its' if len(ranks) == 1 else 'their'} connections in {what}"
        for what, ranks in calls.items()
    ]
    absent = sorted(verdict.absent)
    live, have = (verb("live", absent), "has" if len(absent) == 1 else "have")
    return "\n".join(
        [
            f"{'; '.join(cut(clauses))}, which {name_ranks(absent)} {have} not made.",
            table(verdict.standing),
            *caught(verdict),
            *decided(verdict, [state.event for state in waiting]),
            f"{name_ranks(absent).capitalize()} {live}: a rank that calls destroy_process_group, or frees the group, closes its "
            "connections. Every rank of a group must make the same calls.",
        ]
    )


# --- out of time --------------------------------------------------------------------------


def time_up(verdict: TimeUp) -> str:
    size, busy = verdict.world_size, [verdict.standing[rank] for rank in verdict.ranks]
    doing = alike((s.rank, f"in {call_waited_in(s, size)}" if s.event else _at(s)) for s in busy)
    who = "; ".join(cut([
        f"{name_ranks(ranks)} {are(ranks)} {'waiting' if what.startswith('in ') else 'running'} {what}"
        for what, ranks in doing.items()
    ]))  # fmt: skip
    reasons = decided(verdict, [s.event for s in busy if s.absent])
    head = f"out of time after {verdict.seconds:g} s: {who}."
    return "\n".join(
        [head, table(verdict.standing), *caught(verdict), *reasons, _look_for(busy, verdict.fits, verdict.distant)]
    )


def _look_for(busy: list[RankState], fits: bool, distant: bool) -> str:
    if lack_members := "\n".join(_lack_members(busy)):
        return lack_members
    if lost := _dropped(busy):
        return "\n".join(lost)
    if any(member.entering == "new_group" for member in busy):
        return EVERY_RANK_MAKES_IT
    if not all(member.event for member in busy):
        return LONGER
    if fits and (made := [member.rank for member in busy if member.call.is_complete]):
        advice = "Look at what is between the ranks: a cable, a firewall, a slow network." if distant else LONGER
        return (
            f"All ranks have made the call that {name_ranks(made)} {are(made)} waiting in, and their calls fit together. "
            + advice
        )
    return "Look for the call that the waiting ranks' partners haven't made yet."
