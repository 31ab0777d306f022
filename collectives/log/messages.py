"""A rank's reports: the messages that make up the log.

A rank reports each call before it makes it, so whoever reads the log knows where every rank is, even after a hang or a
death.  Local ranks send these messages to the kernel, a watched job's ranks to their collector, the grader makes them
from the calls on its switch, and dumps of other tools become them.  An index is an event's: 0-based, in call order.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Hashable, NamedTuple, Union, get_args

if TYPE_CHECKING:
    from .event import Event, Failure, Line, Value

LOST_STATUS = 97  # exit status of a rank that can no longer reach the kernel


class Began(NamedTuple):
    """The rank has its Job: from here on the learner's function may be the reason if the process ends."""


class Called(NamedTuple):
    """The rank is about to make a call; or has made it and waited for it, if the event has an end."""

    event: Event


class Started(NamedTuple):
    """A device has come to a call that was issued."""

    index: int


class Again(NamedTuple):
    """The rank is about to make a call that is like an earlier one."""

    like: Event
    index: int
    start: float
    step: int

    @property
    def event(self) -> Event:
        event = copy.copy(self.like)
        event.index, event.start, event.step = self.index, self.start, self.step
        return event


class Misused(NamedTuple):
    """The rank used a tensor of a call that it had not waited for."""

    index: int
    how: str  # "read", "returned", "written" or "viewed": a view was taken, which may be read at any later time
    line: Line | None


class NotFinite(NamedTuple):
    """The rank's input had a NaN or an infinity."""

    index: int


class Caught(NamedTuple):
    """The rank's program caught an exception.

    line: the learner's that raised it, in the function that caught it.  calls: that the rank had made.
    times: stretches between two calls in which it caught one of this kind from this line; 0: it was raised again.
    """

    error: str  # "RuntimeError: CUDA out of memory"
    line: Line
    calls: int
    times: int

    @property
    def kind(self) -> str:
        """The name of its class."""
        return self.error.partition(":")[0]


class Waiting(NamedTuple):
    """A thread of the rank waits for a call."""

    index: int
    since: float  # seconds since the run began
    limited: bool  # whether the wait ends by itself after some time
    thread: Hashable


class Resumed(NamedTuple):
    """The main thread, which waited inside C++, progresses again."""


class WorkBegan(NamedTuple):
    """Something other than the main thread may act: a thread, or work that depends on the future of a call."""

    work: Hashable
    index: int | None  # of the call it waits for


class WorkEnded(NamedTuple):
    """This work has ended."""

    work: Hashable


class Joining(NamedTuple):
    """The function has ended, and the rank waits for these threads, which it left."""

    threads: set[Hashable]


class Completed(NamedTuple):
    """A call is complete for this rank."""

    index: int
    after: Value
    end: float | None  # seconds since the run began; None: it was not complete when the function returned
    waited: bool
    src: int | None  # for a recv from anyone: the global rank it came from


class Issued(NamedTuple):
    """A call is in a device's stream, and the rank continues: Completed follows if its end is observed."""

    index: int
    after: Value  # shapes and dtypes alone
    at: float  # seconds since the run began


class Skipped(NamedTuple):
    """Messages were lost; the rank's call counts so far, in total and by lane, see Event.lane."""

    calls: int
    made: dict[tuple, int]
    works: set[Hashable]  # that have begun, and not ended
    complete: bool = True  # whether these are all the lanes it has made calls of


class Checked(NamedTuple):
    """The rank's parameters after a step of an optimizer."""

    optimizer: int  # 0-based, in the order of their first steps
    step: int  # steps that it has made; 0 for a checksum of the gradients that its first one took
    checksum: int
    calls: int  # that the rank has made


class Grouped(NamedTuple):
    """The rank is about to call new_group, as all ranks have to; or, if there is a name, all members."""

    index: int  # 0-based, among the calls that all ranks have to make and that made a group; or among the others
    ranks: tuple[int, ...]  # of the group, ascending
    line: Line | None
    name: str | None = None  # under which the members look for each other, with use_local_synchronization=True
    groups: int | None = None  # that the process is in, which the name depends on


class Ungrouped(NamedTuple):
    """The rank's call of new_group, one that only members have to make, has ended in an exception."""

    index: int


class Returned(NamedTuple):
    """The function has returned."""

    result: bytes  # packed
    moved: tuple[int | None, int | None]  # bytes (sent, received) by this rank's sockets
    traffic: dict | None  # by connection, see tcp.traffic
    imported: list[str]  # modules that were loaded meanwhile
    groups: int | None = None  # that it made, as all others have to; None: not known


class Failed(NamedTuple):
    """The function, or the start of the rank, ended in an exception."""

    failure: Failure


Message = Union[
    Began, Called, Started, Again, Misused, NotFinite, Caught, Waiting, Resumed, WorkBegan, WorkEnded, Joining, Completed, Issued, Skipped, Checked, Grouped, Ungrouped, Returned, Failed,
]  # fmt: skip
MESSAGES: tuple[type, ...] = get_args(Message)
