"""The first process in the sandbox: has torch loaded, and forks ranks from itself on request.

It never runs submitted code.  Its ranks can do nothing to it (seccomp.py), and are gone before the next are made.

    request    {"ranks": n} with n sockets; answered by {"forked": n}
               {"end": true}: ends them; answered by {"ended": [exit status, ...]}
"""

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
from typing import Callable

import torch
import torch.distributed as dist

from . import rank, seccomp
from .protocol import FrameReader, frame

MAX_RANKS = 16

for name in ("torch.fx.experimental.symbolic_shapes", "torch.nested._internal.nested_tensor"):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)  # else y.backward(gradient) does so, for seconds, in each rank


def serve(control: socket.socket, closed_in: bool) -> None:
    torch.set_num_threads(1)
    (torch.zeros(2, 2) @ torch.ones(2, 2)).sum().item()  # loads what the first tensor work loads
    dist.ReduceOp.SUM, dist.HashStore()
    base = seccomp.used()
    gc.collect()
    gc.freeze()  # keeps the pages that ranks share as they are
    living: list[int] = []
    fork = seccomp.apart if closed_in else _fork
    control.sendall(frame({"up": True}))
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1 << 12, MAX_RANKS)
        if not data:
            break
        ((request, _),) = FrameReader().feed(data)
        if "ranks" in request:
            for descriptor in descriptors:
                living.append(fork(lambda: _become(descriptor, base, closed_in)))
            for descriptor in descriptors:
                os.close(descriptor)
            control.sendall(frame({"forked": len(living)}))
        else:
            control.sendall(frame({"ended": _end(living)}))
    _end(living)


def _fork(become: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        become()
    return pid


def _become(descriptor: int, base: int, closed_in: bool) -> None:
    """Makes this process a rank, with its socket as 3, and with standard streams that lead nowhere. Does not return."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.dup2(descriptor, 3)
    os.closerange(4, 1 << 10)
    rank.live(socket.socket(fileno=3), base, closed_in)


def _end(living: list[int]) -> list[int | None]:
    """Kills the ranks and all they started; how each had ended, minus a signal's number where it was one.

    -SIGXCPU stands for the SIGKILL that the kernel sends to who has computed for too long.
    """
    ended, most = [], 0.8 * seccomp.computing_seconds(len(living))  # the limit goes by ticks, the usage does not
    for pid in living:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        for kill in (os.killpg, os.kill) if not done else (os.killpg,):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)
        if not done:
            _, status, usage = os.wait4(pid, 0)  # it may have been about to end by itself
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL:
            code = -signal.SIGXCPU if usage.ru_utime + usage.ru_stime >= most else code if done else None
        ended.append(code)
    living.clear()
    return ended


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(socket.socket(fileno=int(sys.argv[1])), closed_in=sys.argv[2] == "closed-in")
