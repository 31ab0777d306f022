"""The life of a rank process, from fork to exit.

A rank is forked from the server (launch/server.py), which has torch loaded, so it starts in milliseconds.  It joins a
gloo process group with its peers, receives one function, runs it under the recorder, sends back what it returned, and
waits to be ended: a rank that has returned must not close its connections while its peers still use them.
"""

import ctypes
import faulthandler
import os
import random
import signal
import socket
import sys
from contextlib import suppress

import torch

from ..log.messages import LOST_STATUS, Began, Failed
from ..rank.failure import failure
from . import torch_warnings
from .tcp import traffic
from .warmup import warm_up
from .wire import Channel, Place, RankSpec, Ready
from .work import LOOPBACK, enter_context, join, work

IDLE_SECONDS = 0.02


def rank_main(spec: RankSpec, sock: socket.socket, out: int, err: int, wakeup: int) -> None:
    """Run a rank from its fork to its exit. Never returns."""
    status = LOST_STATUS
    try:
        _isolate(out, err)
        channel = Channel(sock, wakeup)
        try:
            if spec.place.namespaces:
                _enter(spec.place)
                _die_with_parent()  # entering a user namespace may have undone it
            os.environ.update({"GLOO_SOCKET_IFNAME": LOOPBACK, **spec.place.environ})
            join(spec)
            enter_context(spec, spec.context)
            before = traffic()  # as long as not all are ready, nobody sends
            channel.announce(Ready())
            if channel.quiet(IDLE_SECONDS):
                warm_up(spec.rank)
            job = channel.receive()
        except EOFError:
            os._exit(0)
        except BaseException as error:
            channel.announce(Failed(failure(error, started=False)))
        else:
            channel.send(Began())  # from here on, the function may be the reason if this process ends
            work(spec, job, channel, before)
        with suppress(EOFError):
            channel.receive()  # until the kernel or the server ends this process
        status = 0
    finally:
        os._exit(status)


def _isolate(out: int, err: int) -> None:
    """Separate the fork from its server: session, signals, streams, threads, randomness."""
    os.setsid()  # its children can be ended with it, and a terminal's Ctrl-C does not reach it
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the server's handler is not the learner's
    for stream, target in ((out, 1), (err, 2)):
        os.dup2(stream, target)
        os.close(stream)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)  # "where are you?"
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})  # the server blocked it: without the handler it kills
    # Python's own text goes to the learner, warnings included; C++'s output to
    # descriptor 2 is kept aside for the day the process dies.
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    torch_warnings.install()
    random.seed()  # as fresh processes: no two ranks draw the same numbers unless seeded
    torch.default_generator.seed()
    if "numpy.random" in sys.modules:  # asking numpy for it would import it, for half the cost of a rank
        sys.modules["numpy.random"].seed()
    torch.set_num_threads(1)  # ranks share the cores; more threads would only fight


def _die_with_parent() -> None:
    parent = os.getppid()
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _enter(place: Place) -> None:
    """Move this process, which may have one thread only, to a host. Raise OSError if the host is gone."""
    here, libc = os.getcwd(), ctypes.CDLL(None, use_errno=True)
    for path in place.namespaces:
        with open(path) as namespace:
            if libc.setns(namespace.fileno(), 0):  # only future children enter a namespace of process ids
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
    os.chdir(here)  # a mount namespace begins at its root
