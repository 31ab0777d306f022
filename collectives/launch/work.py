"""One job: the learner's function, run under the recorder."""

import os
import sys
from contextlib import nullcontext, suppress
from functools import partial
from itertools import islice
from typing import Any, Callable

import torch

from ..log.messages import Failed, Joining, Returned
from ..rank import threads
from ..rank.failure import failure
from ..rank.groups import Groups
from ..rank.kernel import uninstall
from ..rank.own import pass_on, passes_on
from ..rank.tensors import capture
from ..rank.tracer import Tracer
from .group import join_anew
from .pickling import pack, unpack_with_definitions
from .tcp import TcpCounters, moved, traffic
from .wire import Channel, Counted, Job, ProcessContext, RankSpec

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def enter_context(spec: RankSpec, context: ProcessContext) -> None:
    """Give the function the kernel's process state, and the environment that torchrun sets."""
    os.chdir(context.cwd)
    sys.path[:] = context.path
    pass_on(*context.own)
    os.environ.clear()  # the server's own settings are not the learner's
    os.environ.update(
        context.environ,
        RANK=str(spec.rank), LOCAL_RANK=str(spec.rank),
        WORLD_SIZE=str(spec.world_size), LOCAL_WORLD_SIZE=str(spec.world_size),
        GLOO_SOCKET_IFNAME=LOOPBACK,
    )  # fmt: skip
    os.environ.update(spec.place.environ)


def work(spec: RankSpec, job: Job, channel: Channel, before: TcpCounters | None) -> None:
    """Runs the learner's function; exactly one of Returned and Failed is sent."""
    started, known = False, len(sys.modules)
    try:
        if job.context:
            enter_context(spec, job.context)
        fn, args, kwargs = unpack_with_definitions(job.payload)
        join_anew(spec, job.backend, job.device)
        as_reported = partial(capture, whole=job.whole)
        tracer = Tracer(spec.rank, channel.send, job.began, as_reported)
        tracer.waits = True
        if not job.record:
            uninstall()
        started = True
        # Until the end: daemon threads may continue.
        with tracer if job.record else nullcontext(), Groups(spec.world_size, channel.send) as groups:
            result = fn(*args, **kwargs)
            if threads.to_join:
                channel.send(Joining(set(threads.to_join)))
            threads.join_all()
            result = _packed(result, tracer.watch.returns if job.record else None)  # waits for functional collectives
            tracer.finish()
            _flush()
            new = list(islice(reversed(sys.modules), len(sys.modules) - known))
            now = traffic()
            imported = sorted(filter(_is_lasting, new))
            channel.announce(Returned(result, moved(before, now), now, imported, groups.made))
            with suppress(EOFError):  # this rank is not needed any more
                channel.receive()  # all have returned, but something was in flight when one of them counted
                channel.announce(Counted(moved(before, traffic())))
    except BaseException as error:
        _flush()
        channel.announce(Failed(failure(error, started)))


def _is_lasting(name: str) -> bool:
    """Whether the server loads a module for later ranks, once a rank has had to import it."""
    return name.startswith("torch.") or passes_on(getattr(sys.modules[name], "__file__", None))


def _flush() -> None:
    with suppress(OSError, ValueError):  # the learner closed it
        sys.stdout.flush()


def _packed(result: Any, on_tensor: Callable[[torch.Tensor], None] | None) -> bytes:
    try:
        return pack(result, on_tensor=on_tensor)
    except Exception as error:
        raise TypeError(
            f"it returned a {type(result).__name__}, which cannot travel back to the notebook ({error}). "
            "Return tensors, numbers, strings, or containers of these."
        ) from error
