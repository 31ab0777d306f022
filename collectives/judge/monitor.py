"""The judge of a run: given the messages of its ranks, it decides whether there is a verdict, and which.

It starts and draws nothing: a live session, the grader's sandbox and a record of ranks on another machine are judged
alike. Who feeds it keeps the deadlines; how long a rank that can still move is waited for, it decides here.
"""

import signal
import time
from collections import Counter
from itertools import chain, combinations
from typing import Callable, Collection, Iterable, Mapping

from ..log import messages
from ..log.backends import is_consequence
from ..log.calls import Call
from ..log.event import Failure, Line
from . import causes, diagnose, open_calls
from .decisions import is_skipped
from .diagnose import dropped_send
from .state import State
from .verdict import (
    Deadlock,
    Deserted,
    Died,
    Disagreement,
    Ended,
    Grouping,
    Raised,
    RankState,
    Slip,
    Standstill,
    TimeUp,
    UnlikeGroups,
    UnlikeNames,
    Unreachable,
    UnsharedGroup,
    Verdict,
)

FAILURE_GRACE_SECONDS = 1.0  # for other ranks' messages to arrive once one has failed
EXIT_STATUS_SECONDS = 10.0  # for the exit status of a rank that died: the fork server may be busy
# A rank that an error ends takes longer than this to be gone, and the launcher longer to end the others.
AT_ONCE_SECONDS = 0.1
FOLLOWING = (-signal.SIGABRT, -signal.SIGTERM)  # ends that may follow from another rank's: gloo aborts, launchers end
FROM_OUTSIDE = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
LOST_SECONDS = 2.0  # that a rank waits for a message whose sender has dropped its Work, before it counts as lost
MOST_CATCHES = 3  # exceptions that a verdict names
# A program catches these where nothing is wrong: they count only if the rank has made no call since.
IDIOMS = ("KeyError", "IndexError", "AttributeError", "ImportError", "ModuleNotFoundError", "_queue.Empty")
DEADLOCK_GRACE_SECONDS = 2.0  # for ranks that still progress, once others are stuck or disagree


class Monitor(State):
    """The messages of all ranks, and the verdict that follows from them.

    world_size: number of ranks.
    check: False accuses nobody of a mismatch or a certain deadlock.
    with_text: adds the source text to a learner's Line, where it is known.
    grace: seconds for ranks that still progress, once others are stuck or disagree.
    keep: complete calls that are remembered, of a job that may run for weeks; None: all.

    Its only inputs are feed, lost, exited, found_sender, locate and nothing_more.
    """

    def __init__(
        self,
        world_size: int,
        check: bool = True,
        with_text: Callable[[Line | None], Line | None] = lambda line: line,
        grace: float | None = None,
        keep: int | None = None,
    ) -> None:
        super().__init__(world_size, with_text, keep)
        self._check = check
        self._grace = DEADLOCK_GRACE_SECONDS if grace is None else grace
        self._wrong: diagnose.Wrong | None = None  # the first call that is
        self._unlike: int | None = None  # the first call of new_group, 0-based, in which ranks name different ranks
        self._first_named: dict[int, tuple[int, ...]] = {}  # by that number, the ranks that the first of them named
        self._apart: set[int] = set()  # those numbers at which another one named different ranks
        self._trouble_since: float | None = None
        self._patience: float | None = None
        # By (rank, index of its recv), the time.monotonic() since which it is known to wait for a message that may be lost.
        self._lost_since: dict[tuple[int, int], float] = {}

    def feed(self, rank: int, message: messages.Message) -> None:
        """Process one message of a rank. Messages about anything other than calls are ignored."""
        suspect = self._take(rank, message)
        if suspect and self._check and not self._wrong:
            new = message.event if type(message) is messages.Called else None
            self._wrong = diagnose.wrong(suspect, self._matcher.before, new)
        if type(message) is messages.Grouped and message.name is None and self._check:
            self._compare_groups(message.index, message.ranks)

    def _compare_groups(self, index: int, ranks: tuple[int, ...]) -> None:
        """Note whether ranks name different ranks in a call of new_group, which one of them has just begun.

        If each makes a group of one rank, none needs the others: that works.
        """
        if self._first_named.setdefault(index, ranks) == ranks and self._keep is None and index not in self._apart:
            return  # as all before it: a thousand ranks make hundreds of groups
        self._apart.add(index)
        made = self.nth_groups(index)
        named = {grouping.ranks for grouping in made.values()}
        if len(named) > 1 and max(map(len, named)) > 1:
            self._unlike = index if self._unlike is None else min(index, self._unlike)
        elif self._unlike == index:
            self._unlike = None
        elif len(made) == self.world_size and self._keep is not None:
            for groups in self._groups:
                del groups[index]

    def nth_groups(self, index: int) -> dict[int, Grouping]:
        """The calls of new_group with this index, by rank; only of ranks that have made it."""
        return {rank: made[index] for rank, made in enumerate(self._groups) if index in made}

    def nothing_more(self) -> None:
        """End of input: verdicts no longer wait for more."""
        self._grace = 0.0

    @property
    def in_trouble(self) -> bool:
        """Whether a verdict is certain to come, though not yet known; or a message may be lost."""
        return self._is_in_trouble or bool(self._lacking_messages)

    @property
    def _is_in_trouble(self) -> bool:
        return bool(self._failures or self._wrong or self.unlike() or self.dead or self._deadlocked)

    @property
    def patience(self) -> float | None:
        """The time.monotonic() until which relevant messages may still arrive, as wait_for_more last returned it."""
        return self._patience

    def wait_for_more(self) -> float | None:
        """The time.monotonic() until which relevant messages may still arrive; None as long as all is well."""
        lacking, now = self._lacking_messages, time.monotonic()
        keys = [(rank, self._blocked[rank].index) for rank in lacking]
        self._lost_since = {key: self._lost_since.get(key, now) for key in keys}
        if not self._is_in_trouble:
            self._trouble_since = None
            self._patience = min(self._lost_since.values()) + LOST_SECONDS if lacking else None
            return self._patience
        dead = self.dead
        self._trouble_since = self._trouble_since or time.monotonic()
        grace = min(FAILURE_GRACE_SECONDS, self._grace) if self._failures or dead else self._grace
        self._patience = self._trouble_since + (EXIT_STATUS_SECONDS if dead - self._exited else grace)
        return self._patience

    @property
    def is_certain(self) -> bool:
        """Whether there is a verdict.

        Trouble is certain when it is seen, but messages on its first cause, and on the other ranks, may still
        be in flight: so the verdict waits until no rank can progress, or its patience ends.
        """
        patience = self.wait_for_more()
        if patience is None:
            return False
        if (unlike := self.unlike()) and unlike.is_complete:
            return True
        # A call that all have made can show only one thing more: other ranks that misuse its tensors.
        if self._wrong and (call := self._wrong.calls[-1]).is_complete and not any(e.misuse for e in call):
            return True
        # Ranks that cannot progress by themselves: they returned, failed, or wait for a call not made.
        still = {rank for rank in range(self.world_size) if rank in self._failures or all(self._waits_of(rank))}
        ended = still - self.dead | self.dead & self._exited
        return len(ended) == self.world_size or time.monotonic() >= patience

    def verdict(self) -> Verdict | None:
        """The verdict, once there is one."""
        if not self.is_certain:
            return self.unshared_group()
        if unlike := self.unlike():
            return unlike
        if self._wrong:
            return self.mismatch() or self._disagreement(self._wrong)
        return self.failure() or self._stuck(self._deadlocked or self._lacking_messages)

    def stuck_again(self, over: Collection[str]) -> Deadlock | None:
        """The verdict on ranks that are deadlocked again after the program caught a deadlock; None if they are not.

        over: names of the groups of earlier deadlocks. A group in which a call failed does not pair its calls as they are
        counted here; and as long as a rank waits in one, or has failed or died, that may be the cause.
        """
        waits = self._deadlocked
        if not waits or self.dead or self._failures or any(self._blocked[rank].group_name in over for rank in waits):
            return None
        return self._stuck(waits)

    def unlike(self) -> UnlikeGroups | UnlikeNames | None:
        """The verdict on ranks that new_group does not bring together, before any other call is wrong."""
        index = self._unlike
        if index is None and not self._alone:
            return None
        made = self._unlike_names() if index is None else self.nth_groups(index)
        before = {rank: grouping.after for rank, grouping in made.items()}
        if not made or self._wrong and any(e.index < before.get(e.rank, 0) for e in self._wrong.calls[-1]):
            return None
        about = {"world_size": self.world_size, "ranks": tuple(made), "groups": tuple(made.values())}
        return UnlikeNames(**about) if index is None else UnlikeGroups(**about, index=index)

    def _unlike_names(self) -> dict[int, Grouping]:
        """By rank, the call that makes a group of members alone, two of whom have no name for it in common."""
        for ranks in sorted(self._alone) if self._check else ():
            made = {rank: list(calls.values()) for rank, calls in self._alone[ranks].items() if calls}
            names = [{group.name for group in groups} for groups in made.values()]
            if not self._unheard & set(ranks) and any(one.isdisjoint(other) for one, other in combinations(names, 2)):
                return {rank: groups[0] for rank, groups in made.items()}
        return {}

    def unshared_group(self) -> Verdict | None:
        """The verdict on ranks that have all returned, and not called new_group equally often."""
        counts = self._groups_made
        if not self._check or len(counts) < self.world_size:
            return None
        fewer = tuple(sorted(rank for rank in counts if counts[rank] < max(counts.values())))
        made = tuple(tuple(grouping.line for grouping in groups.values()) for groups in self._groups)
        return UnsharedGroup(world_size=self.world_size, ranks=fewer, made=made) if fewer else None

    def final_verdict(self) -> Verdict:
        """The verdict on ranks that have not all returned, when nothing more will arrive.

        It depends on the ranks' calls, not on the order in which their messages arrived.
        """
        waits = self._deadlocked or self._lacking_messages or {rank: set() for rank in self._blocked}
        return self.unlike() or self.failure() or self.mismatch() or self._stuck(waits)

    def mismatch(self) -> Verdict | None:
        """The verdict on the first call, in an order that all ranks agree with, whose parts do not match."""
        calls = dict.fromkeys(self.call_of(e) for call in self.calls for e in call)
        found = next((wrong for call in calls if (wrong := diagnose.wrong(call, self._matcher.before))), None)
        return found and self._disagreement(found)

    def failure(self) -> Verdict | None:
        """The verdict on ranks that raised or died: on the first cause, as far as it is known; None if no rank did."""
        failures, dead = self._failures, self.dead
        if not failures and not dead:
            return None
        waits = self._unmet
        leavers = frozenset().union(*waits.values()) & self._returned
        first = min(self._failed_at.values(), default=time.monotonic())
        # A rank that raised while it waited for ranks that had returned may have converted the call's error.
        waited = {rank for rank, absent in waits.items() if absent & leavers}
        causes = {
            rank: failure
            for rank, failure in failures.items()
            if not is_consequence(failure.kind, failure.message) and rank not in waited
        }
        for rank in self._lost:
            ended_late = leavers and self._lost[rank] > first + AT_ONCE_SECONDS  # by a launcher that kills
            if rank in dead and self._ended_by_itself(rank) and not ended_late:
                if all(self._lost[rank] < self._failed_at[failed] for failed in causes):
                    return self._died(rank)
        if causes:
            return self._raised(causes)
        if leavers:
            return self._stuck({rank: waits[rank] for rank in waited})
        if lacking := self._lacking_messages:
            return self._stuck(lacking)
        if early := [rank for rank in self._lost if rank in dead and self._lost[rank] < first + AT_ONCE_SECONDS]:
            return self._died(min(early, key=lambda rank: self.exits.get(rank) in FROM_OUTSIDE))
        if failures and (absent := frozenset().union(*waits.values()) - failures.keys() - dead):
            ranks = tuple(sorted(rank for rank in waits if waits[rank] & absent))
            calls = tuple(dict.fromkeys(self.call_of(self._blocked[rank]) for rank in ranks))
            return Deserted(**self._everybody, ranks=ranks, calls=calls, absent=absent)
        return self._raised(failures) if failures else self._died(next(rank for rank in self._lost if rank in dead))

    def ended_from_outside(self) -> Verdict | None:
        """The verdict if all ranks that had not returned were ended from outside; None if not, or not all yet."""
        by, left = self._outside, set(range(self.world_size)) - self._returned
        if not by or left - self.dead - self._failures.keys():
            return None
        return Ended(**self._everybody, ranks=tuple(sorted(left)), signal=-min(by))

    @property
    def is_being_ended(self) -> bool:
        """Whether ranks were ended from outside, none has ended by itself, and others have not ended yet."""
        return bool(self._outside) and self.ended_from_outside() is None

    @property
    def _outside(self) -> set[int]:
        """The signals from outside that ended ranks, negative; none if anything else may be the first cause."""
        interrupted = {rank for rank, failure in self._failures.items() if failure.kind == "KeyboardInterrupt"}
        own = {
            rank for rank, failure in self._failures.items() if not is_consequence(failure.kind, failure.message)
        } - interrupted
        status = {rank: self._exits.get(rank, (None, ""))[0] for rank in self.dead}
        own |= {rank for rank, how in status.items() if isinstance(how, int) and how not in FROM_OUTSIDE}
        if self._wrong or own or self._is_followed_by_ends:
            return set()
        return {how for how in status.values() if how in FROM_OUTSIDE} | ({-signal.SIGINT} if interrupted else set())

    def unreachable(self, host: str, ranks: Iterable[int]) -> Verdict:
        """The verdict on the ranks of a host that does not answer."""
        return Unreachable(**self._everybody, ranks=tuple(sorted(ranks)), host=host)

    @property
    def _is_followed_by_ends(self) -> bool:
        """Whether a rank had failed or returned, and others needed it, before the first was ended."""
        if frozenset().union(*self._unmet.values()) & self._returned:
            return True
        first = min((self._lost[rank] for rank in self.dead), default=time.monotonic())
        failed = (at for rank, at in self._failed_at.items() if self._failures[rank].kind != "KeyboardInterrupt")
        return min(failed, default=first) + AT_ONCE_SECONDS < first

    @property
    def _unmet(self) -> dict[int, frozenset[int]]:
        """By rank that waits, or ended while it waited, the members of its call's group that have not made it."""
        standing: Iterable[RankState] = map(self._standing, self._blocked)
        return {state.rank: frozenset(state.waits_for) for state in standing if state.waits_for}

    def _ended_by_itself(self, rank: int) -> bool:
        """Whether the end of a rank that died follows from no other rank's, according to its exit status."""
        status, _ = self._exits.get(rank, (None, ""))
        return isinstance(status, int) and status not in FOLLOWING and status not in FROM_OUTSIDE

    def _raised(self, failures: Mapping[int, Failure]) -> Verdict:
        ranks = tuple(sorted(failures))
        return Raised(**self._everybody, ranks=ranks, failures=tuple(failures[rank] for rank in ranks))

    def _died(self, rank: int) -> Died:
        status, last_words = self._exits.get(rank, (None, ""))
        began = rank in self._began
        return Died(**self._everybody, ranks=(rank,), status=status, last_words=last_words, began=began)

    def out_of_time(self, seconds: float, distant: bool = False) -> Verdict:
        """The verdict on a run whose time is up, though nothing is certain to be wrong.

        distant: whether the ranks are on several machines.
        """
        busy = tuple(rank for rank in range(self.world_size) if rank not in self._returned)
        fits = self.mismatch() is None
        return TimeUp(**self._everybody, ranks=busy, seconds=seconds, fits=fits, distant=distant)

    def standstill(
        self, seconds: float, slip: causes.FindSlip | None = None, history: causes.History | None = None
    ) -> Standstill | None:
        """The verdict on ranks that have reported nothing for these seconds; None if they wait for nothing.

        slip: finds how a rank's calls have slipped.  history: a rank's calls.  By default by those that are remembered.
        """
        calls = list(dict.fromkeys(self._matcher.of.values()))
        lacking, blocked = open_calls.lacking(calls), tuple(sorted(self._blocked))
        under_way = open_calls.in_flight(calls, self._returned | self._lost.keys())
        if not lacking and not blocked and not under_way and not any(state.entering for state in self.standing):
            return None
        lacks = tuple(map(frozenset, lacking.values()))
        in_flight = tuple((call, tuple(e.rank for e in parts)) for call, parts in under_way.items())
        waits = tuple(map(tuple, self._open_waits))
        open_ = {self.call_of(e): None for rank in range(self.world_size) for e in self._open_events(rank)}
        return Standstill(
            **self._everybody, ranks=blocked, calls=tuple(lacking), lacking=lacks, in_flight=in_flight, seconds=seconds,
            waits=waits, causes=causes.of(waits, open_, slip or self._slip, history or self._history),
        )  # fmt: skip

    def _history(self, rank: int) -> list[causes.RankCall]:
        made = (e for e in self._events[rank].values() if not e.is_from_anyone)
        return [causes.step(e, self.call_of(e).index) for e in made]

    def _slip(self, rank: int, call: Call) -> Slip | None:
        """How a rank's calls have slipped, in a collective's group, against the calls of a rank that has made it."""
        other = next(e.rank for e in reversed(call.events) if e.rank != rank)
        calls = [*self._matcher.before(call, diagnose.LOOK_BACK), call]
        mine, theirs = ({call.index: e for call in calls for e in call if e.rank == of} for of in (rank, other))
        slipped = causes.slip(mine, theirs)
        return slipped and Slip(rank, *slipped)

    @property
    def _exited(self) -> set[int]:
        """Ranks whose exit status is known."""
        return {rank for rank, (status, _) in self._exits.items() if status is not None}

    @property
    def _deadlocked(self) -> dict[int, set[int]]:
        """Deadlocked ranks, with the ranks they wait for."""
        if not self._check or not self._blocked:
            return {}
        stuck = diagnose.deadlocked({rank: self._waits_of(rank) for rank in range(self.world_size)})
        return {rank: self._needs(event) for rank, event in self._blocked.items() if rank in stuck}

    @property
    def _lacking_messages(self) -> dict[int, set[int]]:
        """Ranks that wait for a message which gloo may have lost, with its sender."""
        if not self._check:
            return {}
        sends = ((rank, dropped_send(event, self.call_of(event))) for rank, event in self._blocked.items())
        return {rank: {send.rank} for rank, send in sends if send}

    @property
    def _everybody(self) -> dict:
        return {"world_size": self.world_size, "standing": self.standing, "catches": self._catches}

    @property
    def _catches(self) -> tuple[tuple[int, messages.Caught], ...]:
        """The latest exceptions that ranks have caught and other ranks less often, which may be why the ranks parted."""
        by_place = Counter(place for caught in self._caught for place in caught)
        catches = []
        for rank, caught in enumerate(self._caught):
            for place, message in caught.items() if rank not in self._failures else ():
                least = min(table[place].times for table in self._caught) if by_place[place] == self.world_size else 0
                if message.times > least and self._is_telling(rank, message):
                    catches.append((rank, message))
        catches.sort(key=lambda pair: -pair[1].calls)
        return tuple(sorted(catches[:MOST_CATCHES], key=lambda pair: pair[0]))

    def _is_telling(self, rank: int, message: messages.Caught) -> bool:
        """Whether an exception that a rank caught may be why it parted from others: no old one, and no other rank's end."""
        if is_consequence(message.kind, message.error):
            return False
        since = self.made(rank) - message.calls  # calls
        if not since and rank not in self._returned and self._is_of_latest(rank, message.line):
            return False  # the call's own error, which may end the rank
        if message.kind in IDIOMS and since and not self._has_left_out(rank, message):
            return False
        return since <= diagnose.LOOK_BACK

    def _is_of_latest(self, rank: int, line: Line) -> bool:
        """Whether the rank made its latest call from this line."""
        latest = next(reversed(self._events[rank].values()), None)
        return latest is not None and latest.line is not None and latest.line[:2] == line[:2]

    def _has_left_out(self, rank: int, message: messages.Caught) -> bool:
        """Whether a rank that caught this does not get to a call that other ranks have made, by the program's source."""
        events = chain.from_iterable(calls.values() for k, calls in enumerate(self._events) if k != rank)
        lines = {e.line for e in events if e.line and e.line.file == message.line.file}
        return any(is_skipped(line, by=message.line) for line in lines)

    def _stuck(self, waits: dict[int, set[int]]) -> Deadlock:
        everybody, ranks = self._everybody, tuple(sorted(waits))
        stuck = [everybody["standing"][rank] for rank in ranks]
        calls = tuple(dict.fromkeys(state.call for state in stuck))
        absent = frozenset().union(*waits.values(), *(state.absent for state in stuck))
        parted = next((found for call in calls if (found := self._parted(call))), ())
        return Deadlock(**everybody, ranks=ranks, calls=calls, absent=absent, parted=parted)

    def _parted(self, call: Call) -> tuple[Call, ...]:
        return diagnose.parted(call, self._matcher.before(call, diagnose.LOOK_BACK))

    def _disagreement(self, wrong: diagnose.Wrong) -> Verdict:
        call, parted, repeated = wrong.calls[0], (), ()
        if wrong.flaw in diagnose.OF_PARTED_RANKS:
            parted = self._parted(call)
            repeated = () if parted else diagnose.repeated(call, self._matcher.before(call, diagnose.LOOK_BACK))
        about = {"ranks": wrong.ranks, "calls": wrong.calls, "parted": parted, "repeated": repeated}
        if wrong.flaw in diagnose.OF_DECISIONS:
            about["catches"] = self._catches
        return Disagreement(world_size=self.world_size, flaw=wrong.flaw, **about)
