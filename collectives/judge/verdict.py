"""Verdicts as data: how a run ended badly, on which ranks, in which calls.

No words here: wording/ has each verdict's sentences and error.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..log.calls import Call
from ..log.event import Event, Failure, Line
from ..log.messages import Caught
from .diagnose import dropped_send, needs

ENTRIES = ("init_process_group", "new_group")  # which all ranks must reach


@dataclass(frozen=True)
class RankState:
    """One rank's state: how far it has come, and what it is doing."""

    rank: int
    made: int  # calls
    last: Event | None  # the last of these
    returned: bool
    event: Event | None  # its part in the call that its main thread waits in, without limit
    call: Call | None  # that call
    line: Line | None  # the learner's line it is at, if asked
    inside: tuple[str, ...]  # the functions that this line is inside, innermost first
    began: bool = True  # whether it is known to have begun
    # The members that haven't made its last call of new_group; None if all ranks have to make it.
    lacking: frozenset[int] | None = None

    @property
    def entering(self) -> str | None:
        """The function at its line, if it waits for other ranks without being a recorded call: new_group, ..."""
        return None if self.event or self.returned else next((name for name in ENTRIES if name in self.inside), None)

    @property
    def limited(self) -> Event | None:
        """The call in which its main thread waits until a time limit, as its stack shows."""
        last = self.last
        if self.event or self.returned or last is None or last.waiting is None or last.end is not None:
            return None
        return last if {"wait", last.op} & set(self.inside) else None

    @property
    def absent(self) -> set[int]:
        """Members of the group that have not made the collective it waits in, whether this wait needs them or not."""
        if self.event is None or self.event.is_message:
            return set()
        return set(self.event.group) - set(self.call.ranks)

    @property
    def waits_for(self) -> set[int]:
        """The ranks whose calls it waits for."""
        if self.event is None:
            return set()
        return {self.lost.rank} if self.lost else self.absent or needs(self.event, self.call)

    @property
    def lost(self) -> Event | None:
        """The message that it waits for, if gloo may have lost that."""
        return None if self.event is None else dropped_send(self.event, self.call)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a run ended badly. A subclass for each kind adds what it needs.

    ranks: those it is about.  calls: those it is about.  world_size: number of ranks of the run.
    parted: earlier calls of the same group that ranks made from different lines, see diagnose.parted.
    catches: exceptions that these ranks caught, and not all others: they may be why the ranks parted.
    """

    world_size: int
    ranks: tuple[int, ...] = ()
    calls: tuple[Call, ...] = ()
    parted: tuple[Call, ...] = ()
    catches: tuple[tuple[int, Caught], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Halt(Verdict):
    """A verdict with every rank's state.  stood: the preceding standstill, if there was one."""

    standing: tuple[RankState, ...]
    stood: "Standstill | None" = None


# --- what the program did -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Deadlock(Halt):
    """Ranks are deadlocked.  absent: ranks that did not make the calls they wait for."""

    absent: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class TimeUp(Halt):
    """The ranks had not all returned in time.

    fits: whether no call is known to be wrong.  distant: whether the ranks are on several machines.
    """

    seconds: float
    fits: bool
    distant: bool = False


class Wait(NamedTuple):
    """A call that a rank has made and that has not ended there.

    lacks: ranks that have not made it.  unsure: the ones among them whose reports are too incomplete to be certain.
    silent: ranks that it needs and that have reported nothing.  started: whether a device is known to have come to it.
    """

    event: Event
    call: Call
    lacks: frozenset[int] = frozenset()
    unsure: frozenset[int] = frozenset()
    silent: frozenset[int] = frozenset()
    started: bool = False


class Slip(NamedTuple):
    """From some call onward, a rank's calls of a group are ahead of the others', or behind.

    by: calls that it left out; if negative, extra calls.  first: the first of these, of a rank that made it.
    """

    rank: int
    by: int
    first: Event


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Ranks that hold up others, and how.

    kind: absent, the ranks have not made a call that others wait in, and wait in no call, or have slipped; silent, they
    have reported nothing; mismatch, their arguments differ; not started, their device has not reached the call; joined,
    all have made it, and no rank is to blame; parted, some have ended calls after one that others wait in, so their
    numbers don't belong together; cycle, the ranks wait for each other.
    """

    kind: Literal["absent", "silent", "mismatch", "not started", "joined", "parted", "cycle"]
    ranks: tuple[int, ...] = ()
    held: frozenset[int] = frozenset()  # that wait for them, directly or indirectly
    waits: tuple[Wait, ...] = ()  # in the call that it is about; for a cycle, one of each rank
    parts: tuple[tuple[Event, ...], ...] = ()  # for a mismatch: the parts that match each other, most first
    flaw: str = ""  # for a mismatch: what differs
    slip: Slip | None = None  # of one of the ranks, in the group of the call
    ended: tuple[int, ...] = ()  # members on which the call has ended


@dataclass(frozen=True, kw_only=True)
class Standstill(Halt):
    """No rank has reported anything for some seconds.

    lacking: for each of the calls, the ranks that did not make it.
    in_flight: calls that all their ranks have made, each with those on which it has not ended.
    waits: by rank, the calls that it waits in: the first per group, or pair of ranks; in the order of its calls.
    causes: the independent causes of these waits, as far as they are known, the earliest first.
    """

    seconds: float
    lacking: tuple[frozenset[int], ...]
    in_flight: tuple[tuple[Call, tuple[int, ...]], ...] = ()
    waits: tuple[tuple[Wait, ...], ...] = ()
    causes: tuple[Cause, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Disagreement(Verdict):
    """The parts of a call do not match, or ranks misuse its tensors, or make two calls in different orders.

    ranks: those that misuse them; else all that have made the call.
    flaw: see diagnose.Wrong.
    repeated: earlier calls, all from a line that only some of the ranks have left since, see diagnose.repeated.
    """

    flaw: str
    repeated: tuple[Call, ...] = ()


class Grouping(NamedTuple):
    """A rank's call of new_group: its ranks, the learner's line, and how many calls the rank had made before.

    name, groups: as in messages.Grouped.
    """

    ranks: tuple[int, ...]
    line: Line | None
    after: int
    name: str | None = None
    groups: int | None = None


@dataclass(frozen=True, kw_only=True)
class UnlikeGroups(Verdict):
    """Ranks make different groups: the first call of new_group in which they name different ranks.

    ranks: those that have made it.  index: the call's, 0-based.  groups: the group that each of them made in it.
    """

    index: int
    groups: tuple[Grouping, ...]

    @property
    def is_complete(self) -> bool:
        """Whether no other rank can belong to it."""
        return len(self.ranks) == self.world_size


@dataclass(frozen=True, kw_only=True)
class UnlikeNames(Verdict):
    """Members of a group that they make alone look for each other under different names.

    ranks: those that have called it.  groups: the group that each of them is making.
    """

    groups: tuple[Grouping, ...]

    @property
    def is_complete(self) -> bool:
        """Whether no other rank can belong to it."""
        return len(self.ranks) == len(self.groups[0].ranks)


@dataclass(frozen=True, kw_only=True)
class UnsharedGroup(Verdict):
    """All ranks returned, and some had called new_group less often than others.

    ranks: these.  made: by rank, the learner's lines that called it.
    """

    made: tuple[tuple[Line | None, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Raised(Halt):
    """Ranks raised an exception.  failures: one for each of these ranks, which are the first causes."""

    failures: tuple[Failure, ...]


@dataclass(frozen=True, kw_only=True)
class Died(Halt):
    """A rank's process ended without a report.

    status: an exit code, or minus a signal number; or how it ended, in words; None: it lives on, unreachable.
    last_words: the end of its standard error.  began: whether it had begun to run the function.
    may_lose, losses: how many ranks may be lost, and those that are.
    """

    status: int | str | None
    last_words: str
    began: bool
    may_lose: int = 0
    losses: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Deserted(Halt):
    """Ranks lost their connections in a call that others, which neither returned nor failed, had not made.

    absent: these others.
    """

    absent: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Ended(Halt):
    """All ranks that had not returned were ended by a signal from outside.  signal: its number."""

    signal: int


@dataclass(frozen=True, kw_only=True)
class Unreachable(Halt):
    """A host no longer answers, and so its ranks do not.  host: its name."""

    host: str


# --- the start, and the result ------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NoStart(Verdict):
    """The system refused what is needed to start the ranks.

    ranks: the first that got no process; empty if something else failed before.  number: an errno.  why: in words.
    """

    number: int | None
    why: str


@dataclass(frozen=True, kw_only=True)
class SlowStart(Verdict):
    """Only these ranks were ready in time.  loaded: whether the server had loaded torch."""

    seconds: float
    loaded: bool


@dataclass(frozen=True, kw_only=True)
class NoServer(Verdict):
    """The process that starts the ranks has ended, and the ranks with it.

    status: its exit code, or minus a signal number.  last_words: the end of its standard error.
    """

    status: int | None
    last_words: str


@dataclass(frozen=True, kw_only=True)
class Unreadable(Verdict):
    """Results that cannot be unpickled where run() was called.  why: the error of each of the ranks."""

    why: tuple[Exception, ...]


@dataclass(frozen=True, kw_only=True)
class Interruption(Halt):
    """Somebody interrupted the run.  began: whether the ranks had begun to run the function."""

    began: bool
