"""The judge of a job that may run for weeks: calls that are complete are forgotten after a while."""

import time
from dataclasses import replace
from math import inf

from ..judge.diagnose import may_be_lost
from ..judge.monitor import Monitor
from ..judge.verdict import Deadlock, Died, Raised, Standstill, Verdict
from ..log import messages
from ..log.backends import may_follow
from ..log.calls import pair
from ..log.event import Line
from ..log.text import failed_calls, is_discarded
from . import report
from .lines import RETURN_MESSAGE
from .warnings import Notes

KEPT_CALLS = 256  # complete ones; the last before a wrong call show whether ranks swapped calls
GRACE_SECONDS = 0.5  # for more to arrive that belongs to a verdict
ENDING_SECONDS = 5.0  # for all ranks to have ended, once a signal from outside has ended one: the machine may be busy
STOOD_SECONDS = 2.0  # without a message; then the standstill before a rank's end is reported
UNSEEN = "disappeared without an error: killed, or ended by os._exit,"


class Judge:
    """Fed with the ranks' messages, it gives one verdict that is certain, and before it one on each standstill.

    A second verdict is given only if the program caught a deadlock and continued.

    patience: seconds without a message, after which a job whose ranks wait counts as hanging.
    """

    def __init__(self, world_size: int, patience: float) -> None:
        self._monitor = Monitor(world_size, grace=GRACE_SECONDS, keep=KEPT_CALLS)
        self._patience = patience
        self._progress = time.monotonic()
        self._still_told = False  # the standstill since then
        self._stood: Standstill | None = None  # until the first rank ended
        self._ended_since: float | None = None  # that a first rank has
        self._certain_told = False
        self._never: set[str] = set()  # names of the groups of calls reported never to finish
        self._all_told = False  # no verdict follows from here on
        self._notes = Notes(world_size)
        self._dark: tuple[str, set[int]] | None = None  # a host that does not answer, and its ranks

    # --- the input ------------------------------------------------------------------------

    def take(self, rank: int, message: messages.Message) -> None:
        kind = type(message)
        if kind in (messages.Failed, messages.Caught) or kind is messages.Completed and message.end is None:  # a failed wait may end it
            self._ends()
        elif kind is messages.Called and not self._monitor.failures and self._ended_since is None:
            self._stood = None  # the program caught it
        self._progress, self._still_told = time.monotonic(), False
        if kind is messages.NotFinite and (event := self._monitor.event(rank, message.index)):
            self._notes.not_finite(event, self._monitor.call_of(event))
        elif kind is messages.Called and message.event.discarded and is_discarded(message.event):
            self._notes.discarded(message.event)
        elif kind is messages.Checked:
            self._notes.checked(rank, message)
        if not (self._certain_told and kind is messages.Failed):
            self._monitor.feed(rank, message)
            if kind is messages.Completed and message.end is None and rank not in self._monitor.failures:
                event = self._monitor.event(rank, message.index)
                if event is not None and may_be_lost(event):
                    self._notes.dropped(event)
        else:
            self._all_told = True
            if self._never and not may_follow(message.failure.kind):  # else a consequence
                self._notes.failed(rank, message.failure)

    def arrived(self, rank: int) -> None:
        """A rank's script begins."""
        self._monitor.feed(rank, messages.Began())

    def ended(self, rank: int, at: float, status: int | None) -> None:
        """A rank's process has ended.

        at: the time.monotonic() at which its connection was seen to end.
        status: its exit code, or minus the number of a signal; None if it is unknown here.
        """
        monitor = self._monitor
        self._ends()
        self._ended_since = self._ended_since or time.monotonic()
        if rank in monitor.returned or rank in monitor.failures:
            return
        if status == 0:
            monitor.feed(rank, RETURN_MESSAGE)
        monitor.exited(rank, UNSEEN if status is None else status)
        monitor.lost(rank, at)

    def dark(self, host: str, ranks: set[int]) -> None:
        """A host no longer answers."""
        self._dark = self._dark or (host, ranks)

    def blind(self) -> None:
        """A rank continues but reports nothing any more: nothing is certain from here on."""
        self._certain_told = self._all_told = True

    def _ends(self) -> None:
        """Keep the standstill before a first rank ends: usually it is the cause."""
        monitor, seconds = self._monitor, time.monotonic() - self._progress
        if seconds > STOOD_SECONDS and not monitor.cut_off and not monitor.failures:
            self._stood = monitor.standstill(seconds)

    def locate(self, rank: int, line: Line | None, inside: list[str]) -> None:
        self._monitor.locate(rank, line, inside)

    def nothing_more(self) -> None:
        """Nothing more will arrive: conclusions from the rest are certain."""
        monitor = self._monitor
        monitor.nothing_more()
        if self._never and len(monitor.returned) == monitor.world_size:
            self._notes.caught()
        if not self._certain_told and len(monitor.returned) == monitor.world_size:
            self._notes.ended_well(failed_calls(pair(self._monitor.events), self._monitor.caught))
        self._patience = inf

    # --- the conclusions ------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether there is a verdict to report, which conclude() returns once the ranks' lines are known."""
        if self._certain_told:
            return self._stuck_again is not None
        certain = self._monitor.is_certain and not self._is_being_ended
        return self._dark is not None or certain or self._is_late and self._is_standing

    @property
    def _is_being_ended(self) -> bool:
        """Whether all ranks may be about to be ended from outside, a different verdict than for the first alone."""
        if self._ended_since is None or not self._monitor.is_being_ended:
            return False
        return time.monotonic() < self._ended_since + ENDING_SECONDS

    @property
    def _stuck_again(self) -> Deadlock | None:
        """The verdict on another deadlock, once the program has caught the reported one."""
        return self._monitor.stuck_again(self._never) if self._never and not self._all_told else None

    @property
    def ends(self) -> dict[int, str]:
        """The way each ended rank ended, in words."""
        monitor = self._monitor
        ends = {rank: report.exited(status) for rank, status in monitor.exits.items() if rank in monitor.dead}
        ends |= dict.fromkeys(monitor.returned, report.RETURNED_STATUS)
        return ends | {rank: report.exception_words(failure) for rank, failure in monitor.failures.items()}

    def notes(self) -> list[str]:
        """Warnings, which end nothing, each given once."""
        return self._notes.due(self._patience == inf)

    @property
    def _is_standing(self) -> bool:
        """Whether ranks wait; before the first call of each, or in new_group, only their lines show it."""
        monitor = self._monitor
        if monitor.standstill(0.0) or not all(map(monitor.made, range(monitor.world_size))):
            return True
        return any(state.lacking for state in monitor.standing)

    @property
    def _is_late(self) -> bool:
        """Whether no rank has sent a message for `patience` seconds, and this has not been reported yet."""
        return not self._still_told and time.monotonic() - self._progress > self._patience

    def conclude(self) -> Verdict | None:
        """The verdict to report, each given once; None if there is nothing to report."""
        if self._certain_told:
            again = self._stuck_again
            self._give_up(again)
            return again
        dark = self._dark and self._monitor.unreachable(*self._dark)
        if verdict := dark or self._monitor.ended_from_outside() or self._monitor.verdict():
            self._certain_told = True
            self._give_up(verdict)
            if self._stood and isinstance(verdict, Raised | Died):
                verdict = replace(verdict, stood=self._stood)
        elif self._is_late:
            if verdict := self._monitor.standstill(time.monotonic() - self._progress):
                self._still_told = True
            else:
                self._progress = time.monotonic()
        return verdict

    def _give_up(self, verdict: Verdict | None) -> None:
        """Keep in which groups calls can never finish, if that is the verdict."""
        if isinstance(verdict, Deadlock):
            self._never |= {call.events[0].group_name for call in verdict.calls}
