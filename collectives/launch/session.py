"""One attempt at a run, as a chain of phases: from sending the job to the results, or the verdict."""

import functools
import os
import time
from contextlib import suppress
from functools import partial
from typing import Callable, Hashable, Mapping, NamedTuple

from ..frontend import StatusLine, has_viewer
from ..judge.monitor import Monitor
from ..judge.verdict import Interruption, NoServer, NoStart, SlowStart, Unreadable, Verdict
from ..judge.wording.waits import under_way
from ..log.messages import Returned
from ..outcome.errors import error
from ..outcome.run import Run
from ..rank.callers import last_place, with_text
from .conversation import Conversation, Interrupts, seldom_collected
from .lost import Survivors
from .pool import discard, in_background, replace
from .ranks import Ranks, Server, Workers
from .returns import Returns
from .wire import Command, Counted, Job, Message, ProcessContext, Ready, Recount
from .workers import Patience

START_SECONDS = 60.0  # seconds for the ranks to start and connect, and
START_SECONDS_PER_RANK = 0.5  # more for each of them: every rank connects to all the others
STACK_SECONDS = 3.0  # for ranks to report their line, once out of time
STACK_SECONDS_INTERRUPTED = 0.5  # the same, once interrupted
LOADING_SECONDS = 300.0  # that a server may take to load torch, before it is abandoned
LOOK_SECONDS = 1.0  # between two checks of whether ranks that are out of time compute,
LEAST_COMPUTING = 0.02  # as a part of these seconds, and
MOST_PATIENCE = 6.0  # times the timeout that they get at most


class Settings(NamedTuple):
    """The keywords of `run`, whose docstring explains them."""

    world_size: int
    timeout: float
    check: bool
    whole: bool
    record: bool
    backend: str | None = None
    device: str | None = None
    may_lose: int = 0
    computing: float = 0.0  # see Session._gets_longer


Phase = Callable[[], "Phase | None"]


class Session:
    """One attempt at a run. Its phases, each with its time limit and its end, in order:

        starting     START_SECONDS        until all ranks are connected; then the job is sent, and
        running      the run's timeout    until all ranks have returned (or longer, see _gets_longer); then
        counting     the rest of that     until the bytes that were still in flight have been counted too
        locating     STACK_SECONDS        once the time is up: until the ranks have reported where they are
        interrupted  less than that       the same, after any of these

    Each is a method that processes the messages that arrive, and returns the next phase: None after the last result,
    and after a verdict.

    stale: True once ranks or a server from before this call have failed before the job was
        sent. None of the learner's code has run then, so a second attempt is safe.
    """

    def __init__(self, fn: Callable, payload: bytes, context: ProcessContext, settings: Settings, ranks: Ranks) -> None:
        self._name = getattr(fn, "__name__", type(fn).__name__)
        self._payload, self._context, self._settings, self._ranks = payload, context, settings, ranks
        self._n = settings.world_size
        self._interrupts: Interrupts | None = None
        self._server: Server | None = None
        self._workers: Workers | None = None
        self._talk: Conversation | None = None
        self._start_seconds = START_SECONDS + START_SECONDS_PER_RANK * self._n
        self._called = time.perf_counter()
        self._began, self._unix = self._called, time.time()  # later: when there are ranks; both the same moment
        self._seconds = 0.0
        self._deadline = 0.0  # of the phase, by time.monotonic()
        self._handed_out_at = self._looked_at = 0.0  # likewise
        self._computed: Mapping[Hashable, float] = {}  # seconds of processor time by process, at the last look
        self._computed_before: Mapping[Hashable, float] = {}  # the same as the job was handed out
        monitor = partial(Survivors, settings.may_lose) if settings.may_lose else Monitor
        self._monitor = monitor(self._n, settings.check, functools.cache(with_text))
        self._ready: set[int] = set()
        self._handed_out = False
        self._returns = Returns(self._n)
        self._stacks_asked = False
        self._verdict: Verdict | None = None
        self._status = StatusLine() if has_viewer() else None
        self._discard_server = False
        self.stale = False

    def go(self, interrupts: Interrupts, new: bool = False) -> None:
        """Have the ranks run the function, until there are all results, a verdict, or an interrupt.

        new: take no ranks from standby.
        """
        self._interrupts = interrupts
        if interrupts.count:
            return
        self._deadline = time.monotonic() + self._start_seconds
        try:
            self._server = self._ranks.server()
            patience = Patience(self._deadline, interrupts.wakes)
            self._workers = self._ranks.workers(self._n, self._context, patience, new)
            self._began, self._unix = time.perf_counter(), time.time()
            with Conversation(self._server, self._workers, interrupts, self._take, self._monitor.lost) as self._talk:
                with seldom_collected():
                    phase = self._starting
                    while phase and not interrupts.count:
                        phase = phase()
                    if interrupts.count:
                        self._interrupted()
        except ConnectionError:
            self._lost()
        except TimeoutError:  # there is no room for requests: the server reads none
            self._too_slow()
        finally:
            self._seconds = time.perf_counter() - self._began
            if self._status:
                self._status.end()
            if self._discard_server:
                in_background(partial(discard, self._server, self._workers))
            elif self._workers and self.stale:
                self._workers.end()
            elif self._workers:
                in_background(partial(replace, self._workers))

    # --- phases ---------------------------------------------------------------------------

    def _starting(self) -> Phase | None:
        while self._hear():
            if self._has_failed_to_start():
                return None
            if len(self._ready) == self._n and self._hand_out():
                self._handed_out_at = self._looked_at = time.monotonic()
                self._deadline = self._handed_out_at + self._settings.timeout
                if self._settings.computing:
                    self._computed = self._computed_before = self._workers.computed
                return self._running
        return None

    def _running(self) -> Phase | None:
        return self._listen(lambda: self._returns.all_in(self._monitor.losses), then=self._counting)

    def _counting(self) -> Phase | None:
        if self._returns.all_arrived:
            return None
        self._returns.count_again()
        self._talk.tell(Recount())
        return self._listen(lambda: self._returns.all_counted(self._monitor.cut_off | self._monitor.losses.keys()), then=None)

    def _listen(self, done: Callable[[], bool], then: Phase | None) -> Phase | None:
        """Process messages until it is done or the time is up. Return the next phase."""
        while self._hear():
            late = time.monotonic() >= self._deadline and not (self._settings.computing and self._gets_longer())
            if self._is_judged(late):
                return None
            if done():
                return then
            if late and not self._monitor.in_trouble:
                return self._locating
        return None

    def _gets_longer(self) -> bool:
        """Whether the deadline was extended: ranks compute, and none has used its CPU allowance (Settings.computing).

        On a busy machine, a right answer takes longer than on a quiet one, and so does an endless loop; ranks that
        only sleep or wait get no extension.
        """
        now = time.monotonic()
        if now >= self._handed_out_at + MOST_PATIENCE * self._settings.timeout:
            return False
        computed = {pid: seconds for pid, seconds in self._workers.computed.items() if pid in self._computed_before}
        grown = sum(seconds - self._computed[pid] for pid, seconds in computed.items())
        most = max((seconds - self._computed_before[pid] for pid, seconds in computed.items()), default=0.0)
        if most >= self._settings.computing or grown < LEAST_COMPUTING * (now - self._looked_at):
            return False
        self._computed, self._looked_at, self._deadline = computed, now, now + LOOK_SECONDS
        return True

    def _locating(self) -> Phase | None:
        self._ask_for_stacks(STACK_SECONDS)
        while not self._has_located() or self._monitor.in_trouble:  # in trouble: a verdict is about to come
            if not self._hear() or self._is_judged(late=True):
                return None
            if self._returns.all_in(self._monitor.losses):
                return self._counting
        longer = self._looked_at - self._handed_out_at  # 0: it was not needed
        seconds = max(self._settings.timeout, float(round(longer)))
        self._verdict = self._monitor.out_of_time(seconds, distant=self._workers.hosts > 1)
        return None

    def _interrupted(self) -> None:
        self._talk.catch_up()
        if self._handed_out:
            self._ask_for_stacks(STACK_SECONDS_INTERRUPTED)
            while not self._has_located() and self._interrupts.count == 1:
                self._talk.hear(self._deadline)

    # --- messages -------------------------------------------------------------------------

    def _hear(self) -> bool:
        """Process messages until the deadline, or the next poll. Return whether nobody has interrupted."""
        self._talk.hear(self._monitor.patience or self._deadline)  # patience: in trouble, until a verdict is due
        if self._status and self._status.is_due:
            self._status.say(under_way(self._monitor.standing, self._name, self._handed_out))
        return not self._interrupts.count

    def _take(self, rank: int, message: Message) -> None:
        if not isinstance(message, Command):
            self._monitor.feed(rank, message)
        match message:
            case Ready():
                self._ready.add(rank)
            case Returned() | Counted():
                self._returns.take(rank, message)
                if rank == 0 and isinstance(message, Returned) and message.imported:
                    self._server.learn(message.imported)

    def _hand_out(self) -> bool:
        """Send all ranks the job, unless one of them has died since it was ready. Return whether it was sent."""
        self._talk.poll()
        self._handed_out = not self._monitor.cut_off
        if self._handed_out:
            changed = None if self._context == self._workers.context else self._context
            asked = self._settings
            job = Job(self._payload, changed, self._began, asked.whole, asked.record, asked.backend, asked.device)
            self._talk.tell(job)
        return self._handed_out

    def _ask_for_stacks(self, seconds: float) -> None:
        """Ask the ranks once for their stacks.  seconds: the time they have to answer."""
        self._deadline = time.monotonic() + seconds
        if not self._stacks_asked:
            self._stacks_asked = True
            self._workers.ask_for_stacks()

    def _has_located(self) -> bool:
        """Whether all ranks that are in no call have reported their lines, or had the time to."""
        for rank in self._monitor.unlocated:
            if place := last_place(str(self._workers.err[rank])):
                self._monitor.locate(rank, *place)
        return not self._monitor.unlocated or time.monotonic() > self._deadline

    # --- verdicts -------------------------------------------------------------------------

    def _is_judged(self, late: bool) -> bool:
        """Whether there is a verdict now."""
        if late or self._monitor.in_trouble:
            self._talk.catch_up()  # the ranks' last messages may not have been read
        self._tell_ends()
        self._verdict = self._monitor.verdict()
        return self._verdict is not None

    def _has_failed_to_start(self) -> bool:
        """Whether there is a verdict now: before the job is sent, nothing is the learner's fault."""
        self._tell_ends()
        patience = self._monitor.wait_for_more()
        if self._workers.refused or patience is not None:
            self._failed_to_start(patience)
        elif time.monotonic() >= self._deadline:
            self._too_slow()
        return self._verdict is not None

    def _failed_to_start(self, patience: float | None) -> None:
        """Set the verdict on ranks that got no process, or that ended early, once it is known how many did."""
        monitor, self.stale = self._monitor, self._workers.born < self._called
        if self._workers.refused:
            rank, number = self._workers.refused
            self._verdict = NoStart(world_size=self._n, ranks=(rank,), number=number, why=os.strerror(number))
            return
        all_ended = not monitor.failures and monitor.dead <= set(self._workers.exits)
        if self.stale or all_ended or len(monitor.failures) == self._n or time.monotonic() >= patience:
            self._verdict = monitor.failure()

    def _tell_ends(self) -> None:
        """Pass on the exit status and the stderr of processes that ended without a report."""
        for rank, number in self._workers.halted.items():
            self._monitor.note_stop(rank, number)
        for rank in self._monitor.ended_early:
            self._monitor.exited(rank, self._workers.exits.get(rank), str(self._workers.err[rank]))

    def _lost(self) -> None:
        """Set the verdict: the server has ended, and its ranks with it."""
        self.stale = not self._handed_out and self._server.born < self._called
        status, last_words = (None, "") if self.stale else self._server.last_words()
        self._verdict = NoServer(world_size=self._n, status=status, last_words=last_words)

    def _too_slow(self) -> None:
        """Set the verdict: the ranks, or the server, did not start in time."""
        if self._interrupts.count:
            return
        with suppress(OSError):
            self._server.read()
        loaded, age = self._server.up, time.perf_counter() - self._server.born
        self._discard_server = loaded or age > LOADING_SECONDS
        ready = tuple(sorted(self._ready))
        self._verdict = SlowStart(world_size=self._n, ranks=ready, seconds=self._start_seconds, loaded=loaded)

    def cannot_start(self, error: OSError) -> None:
        """Set the verdict: the system refused a resource that is needed before any rank can be requested."""
        if self._handed_out:
            raise error
        self._verdict = NoStart(world_size=self._n, number=error.errno, why=error.strerror or str(error))

    # --- the end --------------------------------------------------------------------------

    def outcome(self) -> Run | None:
        """The Run. None: interrupted, and a SIGINT handler other than Python's has handled it.

        Raises the verdict if there is one. Unpickling the results may run the learner's own code, so no
        interrupt is held back here.
        """
        interrupted = self._interrupts is not None and self._interrupts.count > 0
        if interrupted and not self._interrupts.usual:
            return None
        printed = [str(output) for output in self._workers.out] if self._workers else [""] * self._n
        for rank, text in enumerate(printed):
            for line in text.splitlines():
                print(f"[{rank}] {line}")
        results, unreadable = self._returns.unpack()
        log, name, unix, bytes_ = self._monitor, self._name, self._unix, self._returns.bytes
        run = Run(self._n, results, log.events, printed, self._seconds, *bytes_, name, unix, log.losses, log.caught)
        verdict = self._verdict
        if interrupted:
            verdict = Interruption(world_size=self._n, standing=self._monitor.standing, began=self._handed_out)
        elif verdict is None and unreadable:
            verdict = Unreadable(world_size=self._n, ranks=tuple(unreadable), why=tuple(unreadable.values()))
        if verdict is not None:
            raise error(verdict, run)
        return run
