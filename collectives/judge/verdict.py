"""Verdicts as data: how a run ended badly, on which ranks, in which calls.

Nothing here is worded: wording/ makes the sentences and the error of each.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..log.calls import Call
from ..log.event import Event, Failure, Line
from .gloo import lost, needs

ENTRIES = ("init_process_group", "new_group")  # which all ranks must reach


@dataclass(frozen=True)
class Standing:
    """Where one rank stands: how far it has come, and what it is doing."""

    rank: int
    made: int  # calls
    last: Event | None  # the last of these
    returned: bool
    event: Event | None  # its part in the call that its main thread waits in, without limit
    call: Call | None  # that call
    line: Line | None  # the learner's line it is at, if asked
    inside: tuple[str, ...]  # the functions that this line is inside, innermost first
    began: bool = True  # whether it is known to have begun
    # Of its last call of new_group, the members that haven't made theirs; None if all ranks have to make it.
    lacking: frozenset[int] | None = None

    @property
    def entering(self) -> str | None:
        """The function at its line, if it is one that waits for others to come, and no call: new_group, ..."""
        return None if self.event or self.returned else next((name for name in ENTRIES if name in self.inside), None)

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
        return None if self.event is None else lost(self.event, self.call)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a run ended badly. A subclass for each kind adds what it needs.

    ranks: those it is about.  calls: those it is about.  world_size: number of ranks of the run.
    parted: earlier calls of the same group that ranks made from different lines, see diagnose.parted.
    """

    world_size: int
    ranks: tuple[int, ...] = ()
    calls: tuple[Call, ...] = ()
    parted: tuple[Call, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Halt(Verdict):
    """A verdict that says where every rank stands.  stood: what stood still until then, if something did."""

    standing: tuple[Standing, ...]
    stood: "Standstill | None" = None


# --- what the program did -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Deadlock(Halt):
    """Ranks wait for what can never come.  absent: ranks that did not make the calls they wait for."""

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

    lacks: ranks that have not made it.  unsure: those of them of which too little is known to be certain.
    silent: ranks that it needs and that have reported nothing.  started: whether a device is known to have come to it.
    """

    event: Event
    call: Call
    lacks: frozenset[int] = frozenset()
    unsure: frozenset[int] = frozenset()
    silent: frozenset[int] = frozenset()
    started: bool = False


class Slip(NamedTuple):
    """From some call on, a rank's calls of a group are later ones of the others', or earlier ones.

    by: calls that it left out; below 0, made besides.  first: the first of these, of a rank that made it.
    """

    rank: int
    by: int
    first: Event


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Ranks that hold up others, and how.

    kind: absent, the ranks have not made a call that others wait in, and wait in none, or have slipped; silent, they have reported
    nothing; mismatch, they pass something else; not started, their device has not come to the call; joined, all have
    made it, and no rank is to blame; cycle, the ranks wait for each other.
    """

    kind: Literal["absent", "silent", "mismatch", "not started", "joined", "cycle"]
    ranks: tuple[int, ...] = ()
    held: frozenset[int] = frozenset()  # that wait for them, some by way of others
    waits: tuple[Wait, ...] = ()  # in the call that it is about; of a cycle, of each of its ranks
    parts: tuple[tuple[Event, ...], ...] = ()  # of a mismatch: those that fit together, most first
    flaw: str = ""  # of a mismatch: what differs
    slip: Slip | None = None  # of one of the ranks, in the group of the call
    ended: tuple[int, ...] = ()  # members on which the call has ended


@dataclass(frozen=True, kw_only=True)
class Standstill(Halt):
    """No rank has told anything for some seconds.

    lacking: for each of the calls, the ranks that did not make it.
    in_flight: calls that all their ranks have made, each with those on which it has not ended.
    waits: by rank, the calls that it waits in: of each group, or pair of ranks, the first; in the order of its calls.
    causes: who holds up whom, as far as these waits tell: all that are independent of each other, the earliest first.
    """

    seconds: float
    lacking: tuple[frozenset[int], ...]
    in_flight: tuple[tuple[Call, tuple[int, ...]], ...] = ()
    waits: tuple[tuple[Wait, ...], ...] = ()
    causes: tuple[Cause, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Disagreement(Verdict):
    """The parts of a call do not fit together, or ranks misuse its tensors, or make two calls in different orders.

    ranks: those that misuse them; else all that have made the call.
    flaw: what is wrong, see diagnose.Wrong.
    repeated: earlier calls, all from a line that only some of the ranks have left since, see diagnose.repeated.
    """

    flaw: str
    repeated: tuple[Call, ...] = ()


class Grouping(NamedTuple):
    """A rank's call of new_group: its ranks, the learner's line, and how many calls the rank had made before.

    name, groups: as of protocol.Grouped.
    """

    ranks: tuple[int, ...]
    line: Line | None
    after: int
    name: str | None = None
    groups: int | None = None


@dataclass(frozen=True, kw_only=True)
class UnlikeGroups(Verdict):
    """Ranks make different groups: the first call of new_group in which they name different ranks.

    ranks: those that have made it.  index: 0-based, of the call.  groups: what each of them made in it.
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

    ranks: those that have come.  groups: what each of them is making.
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
    """Ranks raised an exception.  failures: of each of the ranks, which are the first causes."""

    failures: tuple[Failure, ...]


@dataclass(frozen=True, kw_only=True)
class Died(Halt):
    """A rank's process ended without a word.

    status: an exit code, or minus a signal number; or how it ended, in words; None: it lives on, unreachable.
    last_words: the end of its standard error.  began: whether it had begun to run the function.
    """

    status: int | str | None
    last_words: str
    began: bool


@dataclass(frozen=True, kw_only=True)
class Deserted(Halt):
    """Ranks lost their connections in a call that others had not made, who neither returned nor failed.

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


# --- what became of the start, or of the result -------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NoStart(Verdict):
    """The system refused what is needed to start the ranks.

    ranks: the first that got no process; none if something lacked before.  number: an errno.  why: in words.
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
    """Results that cannot be unpickled where run() was called.  why: of each of the ranks, the error."""

    why: tuple[Exception, ...]


@dataclass(frozen=True, kw_only=True)
class Interruption(Halt):
    """Somebody interrupted the run.  began: whether the ranks had begun to run the function."""

    began: bool
