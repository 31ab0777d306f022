"""One job: the ranks meet in a process group, and run the learner's function under the recorder.

The group is gloo's, or one of a different backend and device in its place.
"""

import os
import sys
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, Callable
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from ..log.backends import GLOO
from ..log.messages import Failed, Joining, Returned
from ..rank import threads, window
from ..rank.failure import failure
from ..rank.groups import Groups
from ..rank.kernel import uninstall
from ..rank.own import pass_on, passes_on
from ..rank.tensors import capture
from ..rank.tracer import Tracer
from .pickling import pack, unpack_with_definitions
from .tcp import TcpCounters, moved, traffic
from .wire import Channel, Counted, Job, ProcessContext, RankSpec

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
TIMEOUT = timedelta(days=1)  # the kernel keeps the time, so the backend doesn't have to
_store: dist.Store | None = None  # by which the ranks have met


def join(spec: RankSpec) -> None:
    """Join the peers' gloo group."""
    global _store
    address = urlsplit(spec.rendezvous)
    if address.scheme == "tcp":
        store = dist.TCPStore(address.hostname, address.port, is_master=False, wait_for_workers=False)
        _store = dist.PrefixStore(address.path, store)
    else:
        _store = dist.FileStore(spec.rendezvous, spec.world_size)
    _init(spec, GLOO.name, _store)


def join_anew(spec: RankSpec, backend: str | None, device: str | None) -> None:
    """Replace the gloo group by one of this backend, and make tensors on this kind of device from here on.

    backend, device: as of `run`.  Raises RuntimeError where there is no such device.
    """
    place = None
    if device not in (None, "cpu"):
        place = _place(device)
        torch.get_device_module(place).set_device(place)
        torch.set_default_device(place)
    if backend not in (None, GLOO.name):
        dist.destroy_process_group()
        _init(spec, backend, dist.PrefixStore("anew", _store), device_id=place)


def _place(device: str) -> torch.device:
    """This rank's device: ranks of a host share its devices."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None or kind.type != torch.device(device).type:
        raise RuntimeError(f"there is no {device} here: torch finds {kind or 'the CPU alone'}.")
    return torch.device(kind.type, int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count())


def _init(spec: RankSpec, backend: str, store: dist.Store, **about) -> None:
    size = spec.world_size
    dist.init_process_group(backend, store=store, rank=spec.rank, world_size=size, timeout=TIMEOUT, **about)


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
        window.surroundings = window.Surroundings(spec.rendezvous, tracer if job.record else None)
        if not job.record:
            uninstall()
        started = True
        # Until the end: daemon threads may continue.
        with tracer if job.record else nullcontext(), Groups(spec.world_size, channel.send) as groups:
            result = called(fn, args, kwargs)
            if threads.to_join:
                channel.send(Joining(set(threads.to_join)))
            threads.join_all()
            result = packed(result, tracer.watch.returns if job.record else None)  # waits for functional collectives
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


def called(fn: Callable, args: tuple, kwargs: dict) -> Any:
    """The function's result. A search for the program's line behind a call ends in this file."""
    return fn(*args, **kwargs)


def packed(result: Any, on_tensor: Callable[[torch.Tensor], None] | None) -> bytes:
    try:
        return pack(result, on_tensor=on_tensor)
    except Exception as error:
        raise TypeError(
            f"it returned a {type(result).__name__}, which cannot travel back to the notebook ({error}). "
            "Return tensors, numbers, strings, or containers of these."
        ) from error
