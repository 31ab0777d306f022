"""Calls in time: when each rank made a call, since when it was blocked in it, and the rank it waited for."""

from typing import NamedTuple

from ...log.calls import Call
from ...log.collectives import RECEIVES
from ...log.event import Event
from ...outcome.run import Run


class CallSpan(NamedTuple):
    """One call of one rank, in seconds since the first call of the run."""

    event: Event
    start: float  # the call was made
    blocked: float  # from here on the rank did nothing else
    met: float  # the last rank it needed had made the call too
    end: float  # it was complete; or issued, see Event.issued
    late: int | None  # the rank that it waited for last, or still does; None: itself

    @property
    def waits(self) -> float:
        """Seconds blocked because others had not come yet."""
        return max(0.0, self.met - self.blocked)

    @property
    def name(self) -> str:
        """'all_reduce #3', the rank's third call"""
        return f"{self.event.op} #{self.event.index + 1}"

    @property
    def is_over(self) -> bool:
        """Whether the rank is through with it."""
        return self.event.end is not None or self.event.issued is not None


def spans_of(run: Run, calls: list[Call]) -> list[CallSpan]:
    """A span for each event of these calls, which are all of the run's."""
    first, last = limits(run)
    return [_span(e, call, first, last) for call in calls for e in call]


def limits(run: Run) -> tuple[float, float]:
    """When the first call of a run was made, and when anything was last known of one; by the run's clock."""
    times = [t for events in run.events for e in events for t in (e.start, e.end) if t is not None]
    return min(times, default=0.0), max(times, default=0.0)


def _span(e: Event, call: Call, first: float, last: float) -> CallSpan:
    ended = e.end if e.issued is None else e.issued
    end = last if ended is None else ended
    blocked = e.start if not e.async_op else end if e.waiting is None else min(e.waiting, end)
    others = {o.rank: o.start for o in call if o is not e}
    if ended is not None and (call.is_message or e.root is not None):  # it continued before some had come: without them
        others = {rank: start for rank, start in others.items() if start <= end}
    late = max(others, key=others.__getitem__, default=None)
    met = min(max(others.get(late, 0.0), blocked), end)
    if e.issued is not None:
        met = blocked  # the stream waits for others, and not the rank
    if ended is None and not call.is_complete:
        met, late = end, _never_came(e, call)
    return CallSpan(e, *(t - first for t in (e.start, blocked, met, end)), late if met > blocked else None)


def _never_came(e: Event, call: Call) -> int | None:
    """The first rank that a call still waits for; None: unknown, as for a recv from anyone."""
    if call.is_message:
        return e.src if e.op in RECEIVES else e.dst
    return next((rank for rank in call.group if rank not in call.ranks and rank not in call.unseen), None)
