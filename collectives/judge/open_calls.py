"""The calls that some members of a group lack, and those that all have made and that have not ended.

They show a standstill on every backend, and on NCCL nothing else does: there, a waiting rank does not report its
wait, since `work.wait()` makes a stream of the GPU wait, and not the process (torch's ProcessGroupNCCL.hpp: "will not
block the CPU").  NCCL's kernel of a call ends once every member of its group has made it.
"""

from typing import Collection, Iterable

from ..log.calls import Call
from ..log.collectives import RECEIVES
from ..log.event import Event


def lacking(calls: Iterable[Call]) -> dict[Call, set[int]]:
    """Calls that some of their ranks have made and others have not, the first of each group, with those others."""
    open_ = (call for call in calls if not call.is_complete and not (call.op == "recv" and call.events[0].src is None))
    return {call: absent(call) for call in _first_of_each(open_)}


def in_flight(calls: Iterable[Call], over: Collection[int]) -> dict[Call, list[Event]]:
    """Calls that all their ranks have made and that have not ended, the first of each group, with the parts in flight.

    over: ranks that make no more calls: nobody is waiting in the calls that they left.
    """
    parts = {}
    for call in calls:
        under_way = [e for e in call if e.end is None and not (e.captured or e.abandoned) and e.rank not in over]
        if call.is_complete and under_way:
            parts[call] = under_way
    return {call: parts[call] for call in _first_of_each(parts)}


def _first_of_each(calls: Iterable[Call]) -> list[Call]:
    """The first of these calls for each group, or pair of ranks; in order of time."""
    first: dict[tuple, Call] = {}
    for call in calls:
        e = call.events[0]
        where = (e.group_name, e.group, *((e.op, e.rank, e.src, e.dst) if call.is_message else ()))
        if where not in first or call.index < first[where].index:
            first[where] = call
    return sorted(first.values(), key=lambda call: call.events[0].start)


def absent(call: Call) -> set[int]:
    """The ranks that have not made a call, of one that lacks some."""
    e = call.events[0]
    return {e.src if e.op in RECEIVES else e.dst} if call.is_message else set(call.group) - set(call.ranks) - call.unseen
