"""What a rank process does, from birth to exit.

A rank is forked from the server (server.py), which has torch loaded, so it starts in
milliseconds.  It joins a gloo process group with its peers, receives one function, runs
it under the recorder, sends back what it returned, and waits to be ended: a rank that
has returned must not close its connections while its peers still use them.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import random
import re
import signal
import socket
import sys
import traceback
import warnings
from contextlib import nullcontext
from datetime import timedelta
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist

from .record import LOST, Failure, Line
from .sockets import Traffic, moved, traffic
from .trace import Tracer, is_learners
from .wire import Birth, Channel, Frames, Job, Surroundings, frame, pack, unpack

GROUP_TIMEOUT = timedelta(days=1)  # the kernel keeps the time, gloo need not
# What torch puts into some messages and differs from run to run: times, addresses.
NOISE = re.compile(r"^\[rank\d+\]:\[\w\d+ [\d:.]+ [\w.]+:\d+\] | at 0x[0-9a-f]+")
A_MOMENT = 0.02  # seconds without work after which a rank is on standby
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def live(birth: Birth, sock: socket.socket, out: int, err: int, bell: int) -> None:
    """Runs in the freshly forked process, and never returns."""
    status = LOST
    try:
        _settle(out, err)
        channel = Channel(sock, bell)
        try:
            _join(birth)
            _surround(birth, birth.surroundings)
            before = traffic()  # as long as not all are ready, nobody sends
            channel.announce("ready")
            if channel.quiet(A_MOMENT):
                _rehearse(birth.rank)
            job = channel.receive()
        except EOFError:
            os._exit(0)
        except BaseException as error:
            channel.announce("failed", _failure(error, started=False))
        else:
            _work(birth, job, channel, before)
        try:
            channel.receive()  # until the kernel or the server ends this process
        except EOFError:
            pass
        status = 0
    finally:
        os._exit(status)


def _settle(out: int, err: int) -> None:
    """Makes the fork a process of its own: session, signals, streams, threads, randomness."""
    os.setsid()  # its children can be ended with it, and a terminal's Ctrl-C does not reach it
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)  # "where are you?"
    for stream, target in ((out, 1), (err, 2)):
        os.dup2(stream, target)
        os.close(stream)
    # Python's own text goes to the learner, warnings included; what C++ writes to
    # descriptor 2 is kept aside for the day the process dies.
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    warnings.formatwarning = lambda message, category, *_: f"{category.__name__}: {message}\n"
    warnings.simplefilter("default")
    random.seed()  # as fresh processes: no two ranks draw the same numbers unless seeded
    torch.default_generator.seed()
    if "numpy.random" in sys.modules:  # asking numpy for it would import it, at half the price of a rank
        sys.modules["numpy.random"].seed()
    torch.set_num_threads(1)  # ranks share the cores; more threads would only fight


def _die_with_parent() -> None:
    parent = os.getppid()
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _join(birth: Birth) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    store = dist.FileStore(birth.rendezvous, birth.world_size)
    dist.init_process_group("gloo", store=store, rank=birth.rank, world_size=birth.world_size, timeout=GROUP_TIMEOUT)


def _surround(birth: Birth, surroundings: Surroundings) -> None:
    """Puts around the function what is around the kernel, and what torchrun sets."""
    os.chdir(surroundings.cwd)
    sys.path[:] = surroundings.path
    os.environ.clear()  # the server's own settings are not the learner's
    os.environ.update(
        surroundings.environ,
        RANK=str(birth.rank), LOCAL_RANK=str(birth.rank),
        WORLD_SIZE=str(birth.world_size), LOCAL_WORLD_SIZE=str(birth.world_size),
        GLOO_SOCKET_IFNAME=LOOPBACK,
    )  # fmt: skip


def _rehearse(rank: int) -> None:
    """Does what a run does, alone and for nothing.

    A fork copies each page of memory when it first writes to it. This is most of what a run's
    first call would take, and a rank on standby has the time.
    """
    alone = dist.new_group([rank], backend="fake", use_local_synchronization=True)
    (job,) = Frames().feed(frame(Job(pack((dist.all_reduce, (torch.ones(1),))), None, 0.0, False, True)))
    fn, args = unpack(job.payload)
    with Tracer(rank, lambda *message: frame(message), 0.0) as tracer:
        fn(torch.ones(1), group=alone)  # inside, for all of torch takes another way there
    tracer.finish()
    frame(("returned", pack(args)))
    dist.destroy_process_group(alone)


def _work(birth: Birth, job: Job, channel: Channel, before: Traffic | None) -> None:
    """Runs the learner's function; exactly one of "returned" and "failed" is sent."""
    started, known = False, len(sys.modules)
    try:
        if job.surroundings:
            _surround(birth, job.surroundings)
        fn, args, kwargs = unpack(job.payload)
        tracer = Tracer(birth.rank, channel.send, job.began, job.whole)
        started = True
        with tracer if job.record else nullcontext():
            result = fn(*args, **kwargs)
        tracer.finish()
        _flush()
        result, imported = _packed(result), islice(reversed(sys.modules), len(sys.modules) - known)  # only the new ones
        now = traffic()
        channel.announce(
            "returned", result, moved(before, now), now, sorted(m for m in imported if m.startswith("torch."))
        )
        channel.receive()  # all have returned, but something was on its way when one of them looked
        channel.announce("counted", moved(before, traffic()))
    except BaseException as error:
        _flush()
        channel.announce("failed", _failure(error, started))


def _flush() -> None:
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        pass  # the learner closed it


def _packed(result: Any) -> bytes:
    try:
        return pack(result)
    except Exception as error:
        raise TypeError(
            f"it returned a {type(result).__name__}, which cannot travel back to the notebook ({error}). "
            "Return tensors, numbers, strings, or containers of these."
        ) from error


def _failure(error: BaseException, started: bool) -> Failure:
    frames = [
        Line(f.filename, f.lineno or 0, f.name, f.line or "")
        for f in traceback.extract_tb(error.__traceback__)
        if is_learners(f.filename)
    ]
    if isinstance(error, SystemExit):
        kind, message = "SystemExit", f"it called sys.exit({'' if error.code is None else repr(error.code)})"
    else:
        kind, message = type(error).__name__, NOISE.sub("", str(error)).strip()
    chain = "".join(traceback.format_exception(error))
    return Failure(kind, message, frames, started, chain)
