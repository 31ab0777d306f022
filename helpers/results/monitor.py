"""The judge of a run: fed with the messages of its ranks, it says whether there is a verdict, and which.

No input or output here: a live session, the grader's sandbox and a record of ranks on another
machine are judged alike.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Callable

from ..rank import protocol
from ..record.calls import Call, pair
from ..record.event import Event, Failure, Line
from . import diagnose, wording
from .errors import RunError
from .gloo import is_consequence
from .state import State

if TYPE_CHECKING:
    from .run import Run

FAILURE_GRACE_SECONDS = 1.0  # for other ranks' messages to arrive once one has failed
STATUS_SECONDS = 10.0  # for the exit status of a rank that died: the fork server may be busy
DEADLOCK_GRACE_SECONDS = 2.0  # for ranks that still progress, once others are stuck or disagree

Verdict = Callable[["Run"], RunError]


class Monitor:
    """What all ranks have told, and what follows from it.

    world_size: number of ranks.
    check: False accuses nobody of a mismatch or a certain deadlock.
    with_text: adds the source text to a learner's Line, where it is known.
    grace: seconds for ranks that still progress, once others are stuck or disagree.

    `.state` is where every rank stands, `.began`, `.returned` and `.failures` are by rank; `.exits` is
    filled by whoever starts the ranks: rank -> exit status, or minus a signal number.
    """

    def __init__(
        self,
        world_size: int,
        check: bool = True,
        with_text: Callable[[Line | None], Line | None] = lambda line: line,
        grace: float = DEADLOCK_GRACE_SECONDS,
    ) -> None:
        self.state = State(world_size)
        self.began: set[int] = set()
        self.failures: dict[int, Failure] = {}
        self.lost: set[int] = set()  # ranks whose connection has ended
        self.exits: dict[int, int | str] = {}
        self.last_words: Callable[[int], str] = lambda rank: ""  # what a rank that died left on its standard error
        self._check, self._with_text, self.grace = check, with_text, grace
        self._mismatch: tuple[Call, Verdict] | None = None
        self._trouble_since: float | None = None
        self.patience: float | None = None  # as wait_for_more said last

    # --- what arrives ---------------------------------------------------------------------

    def feed(self, rank: int, message: protocol.Message) -> None:
        """Take in one message of a rank. Messages that say nothing about calls are passed over."""
        if handle := _HANDLERS.get(type(message)):
            handle(self, rank, message)

    def _called(self, rank: int, message: protocol.Called) -> None:
        event = message.event
        event.line = self._with_text(event.line)
        self._suspect(self.state.called(event))

    def _misused(self, rank: int, message: protocol.Misused) -> None:
        event = self._event(rank, message.index)
        if message.how == "viewed":  # no mistake, if it is read only after the wait
            event.viewed_at = self._with_text(message.line)
            return
        event.misuse, event.misused_at = message.how, self._with_text(message.line)
        self._suspect(self.state.matcher.of[id(event)])

    def _waiting(self, rank: int, message: protocol.Waiting) -> None:
        event = self._event(rank, message.index)
        event.waiting = message.since
        if not message.limited:
            self.state.waits(event, message.thread)

    def _resumed(self, rank: int, message: protocol.Resumed) -> None:
        self.state.blocked.pop(rank, None)

    def _work_began(self, rank: int, message: protocol.WorkBegan) -> None:
        waits_for = None if message.index is None else self._event(rank, message.index)
        self.state.beside[rank][message.work] = waits_for

    def _work_ended(self, rank: int, message: protocol.WorkEnded) -> None:
        self.state.beside[rank].pop(message.work, None)

    def _joining(self, rank: int, message: protocol.Joining) -> None:
        self.state.joins(rank, message.threads)

    def _completed(self, rank: int, message: protocol.Completed) -> None:
        event = self._event(rank, message.index)
        event.after, event.end, event.waited = message.after, message.end, message.waited
        if message.src is not None:
            event.src = message.src
            self.state.matcher.add(event)
        self.state.resumes(event)

    def _returned(self, rank: int, message: protocol.Returned) -> None:
        self.state.returned.add(rank)

    def _failed(self, rank: int, message: protocol.Failed) -> None:
        message.failure.frames = [self._with_text(line) for line in message.failure.frames]
        self.failures[rank] = message.failure

    def _began(self, rank: int, message: protocol.Began) -> None:
        self.began.add(rank)

    def _event(self, rank: int, index: int) -> Event:
        return self.state.events[rank][index]

    def _suspect(self, call: Call) -> None:
        """Keep the first call that is wrong, or in another order than one before it."""
        if self._check and not self._mismatch and (verdict := accusation(call, self.state)):
            self._mismatch = call, verdict

    # --- what follows ---------------------------------------------------------------------

    @property
    def dead(self) -> set[int]:
        """Ranks that ended without having returned or failed."""
        return self.lost - self.state.returned - set(self.failures)

    @property
    def deadlocked(self) -> dict[int, set[int]]:
        """Ranks that wait for ever, with the ranks they wait for."""
        return diagnose.deadlocked_ranks(self.state) if self._check and self.state.blocked else {}

    @property
    def in_trouble(self) -> bool:
        """Whether a verdict is certain to come, though not yet which."""
        return bool(self.failures or self._mismatch or self.dead or self.deadlocked)

    def wait_for_more(self) -> float | None:
        """The time.monotonic() until which more may arrive that belongs to the verdict; None as long as all is well."""
        dead = self.dead
        if not (self.failures or self._mismatch or dead or self.deadlocked):
            self._trouble_since = self.patience = None
            return None
        self._trouble_since = self._trouble_since or time.monotonic()
        grace = min(FAILURE_GRACE_SECONDS, self.grace) if self.failures or dead else self.grace
        self.patience = self._trouble_since + (STATUS_SECONDS if dead - set(self.exits) else grace)
        return self.patience

    def verdict(self) -> Verdict | None:
        """The verdict, once there is one.

        Trouble is certain when it is seen, but its first cause, and where the others stand, may still
        be on the way: so the verdict waits until no rank can progress, or its patience ends.
        """
        patience = self.wait_for_more()
        if patience is None:
            return None
        dead = self.dead
        blocked_or_done = (set(self.failures) | self.state.blocked_or_done()) - dead | dead & set(self.exits)
        call, mismatched = self._mismatch or (None, None)
        # Of a call that all have made there is no more to learn, but who else misuses its tensors.
        everything_told = call and call.is_complete and not any(e.misuse for e in call)
        if len(blocked_or_done) < self.state.world_size and not everything_told:
            if time.monotonic() < patience:
                return None
        return mismatched or self.failed() or partial(_stuck, self.state, self.deadlocked)

    def final_verdict(self) -> Verdict:
        """The verdict on ranks that have not all returned, when nothing more will arrive.

        It depends on what the ranks did, and not on the order in which their messages came.
        """
        stuck = partial(_stuck, self.state, self.deadlocked or {rank: set() for rank in self.state.blocked})
        return self.failed() or self.mismatch() or stuck

    def mismatch(self) -> Verdict | None:
        """The verdict on the first call, in an order that all ranks agree with, whose parts do not fit together."""
        calls = pair(self.state.events)
        return next((verdict for call in calls if (verdict := accusation(call, None))), None)

    def failed(self) -> Verdict | None:
        """The verdict on ranks that raised or died; None if there are none."""
        dead = self.dead
        causes = [failure for failure in self.failures.values() if not is_consequence(failure)]
        if causes or self.failures and not dead:
            return lambda run: wording.failed(self.failures, self.state, run)
        if not dead:
            return None
        rank = min(dead)
        status, words = self.exits.get(rank), self.last_words(rank)
        return lambda run: wording.died(rank, status, words, self.state, run, rank in self.began)

    def out_of_time(self, seconds: float) -> Verdict:
        """The verdict on a run whose time is up, though nothing is certain to be wrong."""
        fits = self.mismatch() is None
        return lambda run: wording.out_of_time(self.state, run, seconds, fits)

    # --- where the ranks are --------------------------------------------------------------

    @property
    def unlocated(self) -> set[int]:
        """Ranks that are in no call, and whose line is not known."""
        running = set(range(self.state.world_size)) - self.state.returned - set(self.state.blocked)
        return running - set(self.state.where)

    def locate(self, rank: int, line: Line | None, inside: list[str]) -> None:
        """Note the learner's line at which a rank is, and the functions, innermost first, that it is inside of."""
        self.state.where[rank] = self._with_text(line)
        self.state.inside[rank] = inside


def accusation(call: Call, state: State | None) -> Verdict | None:
    """The verdict on a call as far as it has been made. state: where the calls before it are known."""
    if what := diagnose.mismatch(call):
        return partial(wording.mismatched, call, what)
    if state and (other := diagnose.out_of_order(call, state.matcher.before(call))):
        return partial(wording.out_of_order, other, call)
    return None


def _stuck(state: State, deadlocked: dict[int, set[int]], run: Run) -> RunError:
    return wording.stuck(state, run, deadlocked)


_HANDLERS = {
    protocol.Began: Monitor._began,
    protocol.Called: Monitor._called,
    protocol.Misused: Monitor._misused,
    protocol.Waiting: Monitor._waiting,
    protocol.Resumed: Monitor._resumed,
    protocol.WorkBegan: Monitor._work_began,
    protocol.WorkEnded: Monitor._work_ended,
    protocol.Joining: Monitor._joining,
    protocol.Completed: Monitor._completed,
    protocol.Returned: Monitor._returned,
    protocol.Failed: Monitor._failed,
}
