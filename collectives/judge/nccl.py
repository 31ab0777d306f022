"""Where NCCL's ranks differ from gloo's for the judge: who waits does not tell.

`work.wait()` makes a stream of the GPU wait, and not the process (torch's ProcessGroupNCCL.hpp: "will not
block the CPU").  So a rank is never seen to be blocked in a collective, but for a barrier, and a deadlock is
not certain the moment it is seen.  What is certain is which calls lack whom: NCCL's kernel of a call ends
once every member of its group has made it.
"""

from typing import Iterable

from ..record.calls import Call


def lacking(calls: Iterable[Call]) -> dict[Call, set[int]]:
    """Calls that some of their ranks have made and others have not, the first of each group, with those others."""
    first: dict[tuple, Call] = {}
    for call in calls:
        if call.is_complete or call.op == "recv" and call.events[0].src is None:
            continue
        e = call.events[0]
        where = (e.group_name, e.group, *((e.op, e.rank, e.src, e.dst) if call.is_message else ()))
        if where not in first or call.index < first[where].index:
            first[where] = call
    return {call: _absent(call) for call in sorted(first.values(), key=lambda call: call.events[0].start)}


def _absent(call: Call) -> set[int]:
    e = call.events[0]
    return {e.dst if e.op == "send" else e.src} if call.is_message else set(call.group) - set(call.ranks) - call.unseen
