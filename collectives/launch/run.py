"""`run()`: a function on fresh ranks, and the record of their work. They are ended after each call, whatever happens."""

import os
import threading
from contextlib import suppress
from functools import partial
from typing import Any, Callable

import torch

from ..outcome.errors import message_only
from ..outcome.run import Run
from ..rank import torch_private
from .arguments import check_arguments
from .conversation import Interrupts
from .lost import check_may_lose
from .pickling import pack_call
from .pool import FreshRanks, LocalRanks, wait_for_successors
from .ranks import Ranks
from .session import Session, Settings
from .wire import ProcessContext

with suppress(ModuleNotFoundError):  # without matplotlib, a run is text
    from ..draw import panels as panels  # now, and not when the first picture is wanted

MAX_RANKS = 256


def run(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int = 4,
    timeout: float = 60.0,
    check: bool = True,
    whole: bool = False,
    record: bool = True,
    backend: str | None = None,
    device: str | None = None,
    fresh: bool = False,
    may_lose: int = 0,
    pretend: bool = False,
    **kwargs: Any,
) -> Run:
    """Runs `fn(*args, **kwargs)` on every rank of a new process group.

    fn: any callable: a function of a notebook or a module, a lambda, a closure.  Inside it,
        torch.distributed is initialized and every call through it is recorded.
    world_size: number of ranks, 1 to 256, each a separate process.
    timeout: seconds the ranks may take, from when all have started.
    check: end the run at the first mismatch or certain hang, with the reason.  False lets
        the program continue as it would without us, until it ends or times out.
    whole: keep large tensors whole in the events, instead of a summary.
    record: False records nothing, for measuring times: there are no events then, and a hang is
        found only by the timeout.
    backend: the group's, "gloo" by default.  "nccl" needs a GPU for each rank.
    device: the default kind of device for tensors, such as "cuda".  Rank k of a host has the k-th device;
        with gloo ranks may share one.  To show their tensors' values, run() waits for each call there, as gloo
        does: so it finds hangs, but to time overlapping calls, use record=False.
    fresh: start each rank as a Python of its own, as torchrun does.  By default they are forked from one process, in
        milliseconds, and so iterate over a set of strings in one order; fresh ones may do so in different orders.
    may_lose: number of ranks that may die, or be stopped by a signal, while the others go on to their end. The Run's
        `losses` name them; they have returned None.
    pretend: compute the ranks in this process, one at a time, as many as 4096.  Values, calls, errors and hangs are as with
        real ranks; seconds mean nothing, modules are shared, and each rank has the timeout to itself.

    Returns a Run.  Raises RankFailed, Mismatch or Stuck for what the function did, StartFailed or
    ServerLost for what the machine did (all RunError), and TypeError or ValueError for arguments
    that cannot work, before any process starts.
    """
    settings = Settings(world_size, timeout, check, whole, record, backend or usual[0], device or usual[1], may_lose)
    if pretend:
        from .threaded import run_pretended  # few programs do, and it takes a while to import

        return run_pretended(settings, fresh, fn, args, kwargs)
    return run_on(FreshRanks() if fresh and where is LocalRanks else where(), settings, fn, args, kwargs)


usual: tuple[str | None, str | None] = None, None  # backend and device if run() is given none
where: Callable[[], Ranks] = LocalRanks  # a torchrun program (remote/program.py) has its ranks elsewhere


def run_on(ranks: Ranks, settings: Settings, fn: Callable[..., Any], args: tuple, kwargs: dict) -> Run:
    """Do what `run` does, on these ranks."""
    torch_private.warn()
    try:
        check_not_inside_a_rank()
        check_arguments(fn, settings.world_size, settings.timeout, MAX_RANKS, "each rank is a process")
        if settings.may_lose:
            check_may_lose(settings.may_lose, settings.world_size)
        payload, context = pack_call(fn, args, kwargs), ProcessContext.here()
    except (TypeError, ValueError) as error:
        raise message_only(error)
    attempt = partial(Session, fn, payload, context, settings, ranks)
    with _one_at_a_time:
        session = attempt()
        try:
            with Interrupts() as interrupts:
                wait_for_successors(interrupts)
                session.go(interrupts)
                if session.stale:
                    session = attempt()
                    session.go(interrupts, new=True)
        except OSError as error:  # no descriptors, processes, memory, disk space
            session.cannot_start(error)
        return session.outcome()


def _in_forked_child() -> None:
    global _one_at_a_time
    _one_at_a_time = threading.Lock()  # it may be held by a thread that this process does not have


# A fork must not find a half-sent request.
os.register_at_fork(before=wait_for_successors, after_in_child=_in_forked_child)


def check_not_inside_a_rank() -> None:
    if "RANK" in os.environ and torch.distributed.is_initialized():
        raise RuntimeError("run() was called inside a rank: ranks cannot start ranks of their own.")


_one_at_a_time = threading.Lock()
