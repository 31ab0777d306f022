"""`run(..., pretend=True)`: ranks of this process, with torch's own tensors, as many as a thousand.

Each rank is a thread, and one runs at a time, until it waits for a call that isn't complete (turns.py). Its calls go through
torch.distributed, torch's dispatcher and the recorder, as a real rank's do, and only gloo's part is computed here
(threaded_world.py). So values, verdicts, traffic and pictures are the same as with real ranks, the ranks take their turns
in the same order each time, and the seconds mean nothing.
"""

from __future__ import annotations

import _thread
import errno
import inspect
import os
import sys
import time
from collections import defaultdict, deque
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, wraps
from typing import Any, Callable, Iterator

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..frontend import StatusLine, has_viewer
from ..judge.verdict import Interruption, NoStart, Unreadable, Verdict
from ..judge.wording.waits import under_way
from ..log import messages
from ..log.calls import Call
from ..log.event import MAIN, Event, Line, as_list
from ..outcome.errors import error, message_only
from ..outcome.run import Run
from ..pretend.refusals import refusal
from ..pretend.world import Poll, Rank
from ..rank import kernel, torch_private
from ..rank.callers import innermost, learners_call, python_caller
from ..rank.caught import Catches
from ..rank.early_use import Unwatched, Watch
from ..rank.failure import failure
from ..rank.groups import Groups, KnownGroups
from ..rank.operators import arguments, read
from ..rank.point_to_point import WeakMessages
from ..rank.tensors import capture
from ..rank.traced import NO_LIMIT, Part, TracedWork, in_their_own_words
from ..rank.tracer import Tracer
from .arguments import check_arguments
from .conversation import seldom_collected
from .pickling import pack_call, unpack, unpack_with_definitions
from .session import Settings
from .threaded_world import Settled, TorchWorld
from .turns import Belongings, RunOver, Turn, Turns, on_one_core
from .work import called, packed

MAX_RANKS = 4096
GLOO = "gloo"
AFTER_SECONDS = 1.0  # that all ranks together still have, once one is out of time
NOTE = (
    "{} pretended ranks: one process ran them in turn. Values, calls and traffic are those of real ranks, its seconds are not."
)
NO_THREADS = (
    "a thread of the program's own made this call. Pretended ranks make calls from one thread each: use real ranks, without "
    "pretend=True."
)
NO_FUTURES = (
    "pretended ranks have Work.get_future() in a backward pass alone. Wait for the Work, or use real ranks, without pretend=True."
)
WHY_NOT = {
    "backend": "what they send follows gloo's rules",
    "device": "they share this process's CPU",
    "record": "it is for measuring times, and theirs mean nothing",
    "fresh": "they are threads of this process",
    "may_lose": "they are threads, and a thread can't be killed",
}
ALONE = (
    "pretended ranks have no new_group(use_local_synchronization=True): have every rank call new_group, or use real ranks."
)


@dataclass(repr=False)
class PretendedRun(Run):
    """A Run of pretended ranks, with a note about that."""

    def __repr__(self) -> str:
        return f"{super().__repr__()}\n\n{NOTE.format(format(self.world_size, ','))}"


class PretendedWork(torch_private.HasSource, dist.Work):
    """A call under way, which the world carries out."""

    def __init__(self, rank: ThreadRank, event: Event, outputs: Any) -> None:
        super().__init__()
        self._rank, self._event, self._outputs, self._done = rank, event, outputs, False

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        if not self._done:
            seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
            self._rank.wait_for(self._event, seconds)
            self._rank.job.delivered = self._deliver()
        return True

    def is_completed(self) -> bool:
        if not self._done and self._rank.has_ended(self._event):
            self._deliver()
        return self._done

    is_success = is_completed

    def _deliver(self) -> tuple[list, Settled] | None:
        """Fill the tensors that belong to the call. Returns a list that now holds what all ranks get."""
        self._done, world, outputs = True, self._rank.world, self._outputs
        self._outputs = copies = None
        result = world.result(self._event)
        if result is not None and outputs is not None:
            with torch_private.NoModes(), torch.no_grad():
                if isinstance(outputs, list):
                    world.memory.write_all(outputs, result)
                    if settled := world.shared(self._event, result, outputs):
                        copies = outputs, settled
                else:
                    joined = world.joined(self._event, result) if isinstance(result, list) else result
                    world.memory.write(outputs, joined)
        world.delivered(self._event)
        return copies

    def exception(self) -> None:
        return None

    def get_future(self) -> torch.futures.Future:
        """A future that is done: DistributedDataParallel, which asks for one in its backward pass, waits for it here."""
        if torch_private.backward_task() == -1:
            raise NotImplementedError(NO_FUTURES)
        outputs, rank = self._outputs, self._rank
        rank.emit(messages.Waiting(self._event.index, rank.world.now(), False, MAIN))
        self.wait()
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(as_list(outputs))
        return future

    def source_rank(self) -> int:
        return self._event.group.index(self._event.src)


class RankTracer(Tracer):
    """The recorder of a pretended rank: the world carries out what it reports."""

    def __init__(self, rank: ThreadRank, as_reported: Callable) -> None:
        super().__init__(rank.number, rank.emit, 0.0, as_reported)
        self._of, self.groups, self.watch = rank, InternedGroups(rank), rank.job.watch

    def now(self) -> float:
        return self._of.world.now()

    def _called(self, op: Any, name: str, keys: Any, args: tuple, kwargs: dict) -> Any:
        rank, by_name = self._of, arguments(op, args, kwargs)
        if not rank.turn.is_mine:
            rank.strayed = True
            raise RuntimeError(NO_THREADS)
        rank.turn.check()
        group = torch_private.process_group(by_name["process_group"])
        call = read(name, by_name, self.groups.ranks(group), self.rank)
        event, caller = call.event, python_caller()
        if any(t.is_meta for t in call.all_in):
            return kernel.passed_on(op, keys, args, kwargs)
        frame = self._describe(call, group, None, None, caller)
        self.report_ended()
        by_operator = caller is not None and caller.f_code.co_filename == torch_private.OPERATORS_FILE
        self._report(event, call.inputs, None)
        with torch_private.NoModes():
            rank.world.keep(event, call.inputs)
        if flaw := refusal(event, call.inputs, call.outputs):
            rank.world.refuse(event)
            raise RuntimeError(flaw)
        work = TracedWork(self, PretendedWork(rank, event, call.outputs), [Part(event.index, call.outputs)])
        work.by_torch = by_operator or event.within is not None
        work.of_call(event, False)
        self.open[event.index] = work
        self.watch.issued(call, frame, caller, event.async_op and not by_operator)
        self.bound_open()
        if name == "monitored_barrier_":
            return work.wait() and None
        alone = len(torch_private.schema(op).returns) == 1
        return work.boxed() if alone else (next(iter(by_name.values())), work.boxed())


class InternedGroups(KnownGroups):
    """A rank's groups: equal ones of different ranks are one tuple, as a thousand ranks each compare them."""

    def __init__(self, rank: ThreadRank) -> None:
        super().__init__(rank.number)
        self._interned = rank.job.interned

    def ranks(self, group: Any) -> tuple[int, ...]:
        if group not in self._ranks:
            ranks = tuple(dist.get_process_group_ranks(group))
            self._ranks[group] = self._interned.setdefault(ranks, ranks)
        return self._ranks[group]

    def backend(self, group: Any, device: Any) -> str:
        return GLOO

    def has_short_timeout(self, group: Any, is_message: bool = False) -> bool:
        return False


class RankGroups(Groups):
    """A rank's calls of new_group, each of which waits until all members have made it."""

    def __init__(self, rank: ThreadRank, torchs: Callable, signature: Any) -> None:
        super().__init__(rank.job.size, self._report)
        self._rank, self._makes, self._signature = rank, torchs, signature
        self._reported: messages.Grouped | None = None

    def _report(self, message: messages.Grouped) -> None:
        self._reported = message
        self._rank.emit(message)

    def _torchs(self, *args: Any, **kwargs: Any) -> Any:
        """torch's new_group, once the members have come."""
        options = self._signature.bind(*args, **kwargs).arguments
        if options.get("use_local_synchronization"):
            raise NotImplementedError(ALONE)
        if self._reported is not None and self._reported.index == self.made:
            self._rank.meet(*self._reported[:2])
        group = self._makes(**{**options, "backend": "fake"})
        if isinstance(group, dist.ProcessGroup):
            known_as_gloo(group)
        return group


def known_as_gloo(group: Any) -> None:
    """Have torch.distributed take a group for gloo's."""
    state = torch_private.groups()
    state.pg_map[group] = GLOO, state.pg_map[group][1]


class ThreadRank(Rank):
    """A rank that a thread holds.

    limit: seconds after which its wait ends by itself; 0: none.  gone: whether its turn was taken away.  strayed: whether a
    thread of the program's own made a call.
    """

    def __init__(self, job: ThreadedJob, world: TorchWorld, number: int) -> None:
        super().__init__(world, number)
        self.job, self.limit, self.gone, self.strayed = job, 0.0, False, False
        self._timed_out = self._finishing = False
        self.belongings = Belongings().of_rank(number, job.size)
        self.turn = Turn(job.turns, self._live, self.belongings)
        self.tracer = RankTracer(self, job.as_reported)
        self.groups = RankGroups(self, *job.new_group)
        self.kept: tuple[dict, dict, dict, dict] = {}, defaultdict(int), {}, {}
        self.belongings.recorder, self.belongings.steps = self.tracer._called, [self.tracer.steps]

    def _live(self) -> None:
        """Run the program's function."""
        started = False
        try:
            dist.init_process_group("fake", store=self.job.store, rank=self.number, world_size=self.job.size)
            known_as_gloo(dist.group.WORLD)
            fn, args, kwargs = unpack_with_definitions(self.job.payload)
            started = True
            self.result = packed(called(fn, args, kwargs), self.job.watch.returns)
            if self.strayed:
                raise RuntimeError(NO_THREADS)
            self._finishing = True
            self.tracer.finish()
            self.emit(messages.Returned(self.result, (None, None), None, [], self.groups.made))
        except RunOver:
            raise
        except BaseException as wrong:
            self.emit(messages.Failed(failure(wrong, started)))
        self.ended = True

    def emit(self, message: messages.Message) -> None:
        if not self.turn.over:
            super().emit(message)

    def suspend(self, waits_for: Any) -> None:
        """Let others have their turns until this rank can go on."""
        self.waits_for = waits_for
        self.line = learners_call()[0] if isinstance(waits_for, tuple) else None
        self.turn.pass_on()
        self.waits_for = None

    def wait_for(self, event: Event, seconds: float) -> None:
        """Wait until a call is complete.  seconds: see limit. Raises RuntimeError at that time."""
        if self.world.is_complete(event):
            return
        self.limit, self._timed_out = seconds, False
        self.suspend(event)
        if self._timed_out:
            raise RuntimeError(f"Timed out waiting {seconds * 1000:g}ms for {event.op} operation to complete")

    def give_up(self) -> None:
        """End its wait, whose time is up."""
        self._timed_out, self.limit = True, 0.0

    def has_ended(self, event: Event) -> bool:
        """Whether a call is complete; if it isn't, others have their turns first."""
        if self.world.is_complete(event):
            return True
        if self._finishing or self._timed_out or self.turn.over:  # it is the recorder that asks
            self._timed_out = False
            return False
        self.suspend(Poll(self.world.moves))
        return self.world.is_complete(event)

    def meet(self, index: int, ranks: tuple[int, ...]) -> None:
        """Wait until all members of a new group make it."""
        if not self.has_members(index, ranks):
            self.suspend((index, ranks))


class ThreadedJob:
    """One run on pretended ranks.  payload: its function and arguments, packed."""

    def __init__(self, settings: Settings, name: str, payload: bytes) -> None:
        self.size, self._timeout, self._name, self.payload = settings.world_size, settings.timeout, name, payload
        self.store, self.whole, self.delivered = dist.HashStore(), settings.whole, None
        self.interned: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.new_group = dist.new_group, inspect.signature(dist.new_group)
        self.current: ThreadRank | None = None
        self.watch: Any = Watch(self._touched) if torch_private.WATCHING else Unwatched()
        self._catches = Catches(lambda message: self.current.emit(message), lambda: self.current.tracer.calls)
        self.turns, self._ready = Turns(self._next), deque[ThreadRank]()
        self._waiting: dict[int, list[ThreadRank]] = defaultdict(list)  # by id(call)
        self.world = TorchWorld(self.size, settings.check, partial(ThreadRank, self), self._woken)
        self._late, self._until = False, 0.0

    def as_reported(self, value: Any, scratch: bool = False) -> Any:
        """A call's tensors as they are reported; what all ranks have just got is copied once."""
        delivered, self.delivered = self.delivered, None
        if delivered is None or delivered[0] is not value:
            return _copied(value, self.whole, scratch)
        settled = delivered[1]
        if settled.reported is None:
            settled.reported = _copied(settled.inputs, self.whole)
        return list(settled.reported)

    def _touched(self, index: int, how: str) -> None:
        self.current.tracer._touched(index, how)

    # --- turns ----------------------------------------------------------------------------

    def go(self) -> None:
        """Run all ranks until each has ended or can't go on."""
        self._status = StatusLine() if has_viewer() else None
        with self._installed():
            for rank in self.world.ranks:
                rank.emit(messages.Began())
            self._ready.extend(self.world.ranks)
            try:
                self.turns.run(self._goes_on, self._halted)
            finally:
                for rank in self.world.ranks:
                    rank.turn.end()
                if self._status:
                    self._status.end()

    def _next(self) -> Turn | None:
        """The next rank's turn."""
        if self.current is not None:
            self._awaits(self.current)
        if not self._ready and not self._find_ready():
            return None
        rank = self.current = self._ready.popleft()
        if not self._late:
            self._until = time.monotonic() + self._timeout
        self.watch.take(*rank.kept[:2])
        self._catches.take(*rank.kept[2:])
        return rank.turn

    def _goes_on(self) -> bool:
        if self._status and self._status.is_due:
            self._status.say(under_way(self.world.monitor.standing, self._name, True))
        return time.monotonic() < self._until

    def _halted(self, turn: Turn) -> None:
        """A rank computes, and time is up: the others may still come to where they wait."""
        rank, self.current = self.current, None
        rank.gone = True
        self.world.monitor.locate(rank.number, *innermost(_lines(turn.frame)))
        self._until = time.monotonic() + (0.0 if self._late else AFTER_SECONDS)
        self._late = True

    def _woken(self, call: Call) -> None:
        """All ranks of a call have made it."""
        self._ready.extend(rank for rank in self._waiting.pop(id(call), ()) if rank.can_go_on)

    def _find_ready(self) -> bool:
        """Look for ranks that can go on, or else end the first wait with a time limit. False if every rank is stuck."""
        left = [rank for rank in self.world.ranks if not rank.ended and not rank.gone]
        ready = [rank for rank in left if rank.can_go_on]
        if not ready and (limited := [rank for rank in left if rank.limit]):
            ready = [min(limited, key=lambda rank: rank.limit)]
            ready[0].give_up()
        self._waiting.clear()
        chosen = {rank.number for rank in ready}
        for rank in left:
            if rank.number not in chosen:
                self._awaits(rank)
        self._ready.extend(ready)
        return bool(ready)

    def _awaits(self, rank: ThreadRank) -> None:
        """Note the call whose completion gives a rank its next turn."""
        if isinstance(rank.waits_for, Event) and not rank.waits_for.is_from_anyone:
            self._waiting[id(self.world.monitor.call_of(rank.waits_for))].append(rank)

    # --- what is installed meanwhile --------------------------------------------------------

    @contextmanager
    def _installed(self):
        """While entered, a call of torch.distributed belongs to the rank whose turn it is."""
        torch_private.RECORDING.require()
        torch_private.PRETENDING.require()
        torch_private.fake_backend()
        kernel.install()
        before, hook = Belongings(), sys.excepthook
        torch_private.by_thread(True)
        torch_private.set_repeated(CurrentMessages(self).methods())
        self.watch.start()
        torch_private.set_run_backward(partial(in_their_own_words, self.watch.run_backward))
        self._catches.start()
        step = register_optimizer_step_post_hook(lambda *about: self.current.tracer.steps.stepped(*about))
        make = wraps(dist.new_group)(lambda *args, **kwargs: self.current.groups._make(*args, **kwargs))
        dist.new_group = distributed_c10d.new_group = make
        try:
            yield
        finally:
            dist.new_group = distributed_c10d.new_group = self.new_group[0]
            step.remove()
            self._catches.stop()
            torch_private.set_run_backward(torch_private.run_backward)
            self.watch.stop()
            torch_private.set_repeated()
            torch_private.by_thread(False)
            sys.excepthook = hook
            before.take()

    # --- the end --------------------------------------------------------------------------

    def outcome(self, verdict: Verdict | None, seconds: float, unix: float) -> Run:
        """The Run. Raises the verdict, if there is one."""
        unknown, results, unreadable = [None] * self.size, [None] * self.size, {}
        printed = [rank.belongings.printed.getvalue() for rank in self.world.ranks]
        for number, text in enumerate(printed):
            for line in text.splitlines():
                print(f"[{number}] {line}")
        for rank in self.world.ranks:
            try:
                results[rank.number] = None if rank.result is None else unpack(rank.result)
            except Exception as wrong:
                unreadable[rank.number] = wrong
        run = PretendedRun(
            self.size, results, self.world.monitor.events, printed, seconds, unknown, unknown[:], self._name, unix
        )
        if verdict is None and unreadable:
            verdict = Unreadable(world_size=self.size, ranks=tuple(unreadable), why=tuple(unreadable.values()))
        if verdict is not None:
            raise error(verdict, run)
        return run


class CurrentMessages(WeakMessages):
    """The messages of whichever rank has its turn."""

    def __init__(self, job: ThreadedJob) -> None:
        super().__init__(None)
        self._job = job

    def hold_weakly(self, work: Any) -> None:
        self._job.current.tracer.messages.hold_weakly(work)


def _copied(value: Any, all_values: bool, scratch: bool = False) -> Any:
    """A call's tensors as they are reported: what may share the program's memory is copied."""
    if isinstance(value, list):
        return [_copied(x, all_values, scratch) for x in value]
    report = capture(value, all_values, scratch)
    return report.detach().clone() if isinstance(report, torch.Tensor) else report


def _lines(frame: Any) -> Iterator[Line]:
    """The lines of a stack, innermost first."""
    while frame is not None:
        yield Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back


def run_pretended(settings: Settings, fresh: bool, fn: Callable, args: tuple, kwargs: dict) -> Run:
    """Do what `run` does, on pretended ranks. Raises ValueError for what only real ranks have."""
    torch_private.warn()
    try:
        check_arguments(fn, settings.world_size, settings.timeout, MAX_RANKS, "each pretended rank is a thread")
        _check_settings(settings, fresh)
        payload = pack_call(fn, args, kwargs)
    except (TypeError, ValueError) as wrong:
        raise message_only(wrong)
    began, unix, verdict = time.perf_counter(), time.time(), None
    try:
        with seldom_collected(), on_one_core():
            job = ThreadedJob(settings, getattr(fn, "__name__", type(fn).__name__), payload)
            job.go()
            verdict = job.world.verdict(settings.timeout)
    except KeyboardInterrupt:
        verdict = Interruption(world_size=settings.world_size, standing=job.world.monitor.standing, began=True)
    except _thread.error as wrong:
        if "new thread" not in str(wrong):
            raise
        verdict = NoStart(world_size=settings.world_size, number=errno.EAGAIN, why="the system has no more threads")
    return job.outcome(verdict, time.perf_counter() - began, unix)


def _check_settings(settings: Settings, fresh: bool) -> None:
    if "RANK" in os.environ and dist.is_initialized():
        raise RuntimeError("run() was called inside a rank: ranks cannot start ranks of their own.")
    wrong = {
        f"backend={settings.backend!r}": settings.backend not in (None, GLOO),
        f"device={settings.device!r}": settings.device not in (None, "cpu"),
        "record=False": not settings.record,
        "fresh=True": fresh,
        f"may_lose={settings.may_lose!r}": settings.may_lose,
    }
    for name in filter(wrong.get, wrong):
        raise ValueError(f"pretended ranks have no {name}: {WHY_NOT[name.partition('=')[0]]}. Leave out pretend=True for it.")
