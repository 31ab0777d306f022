"""The first process in the sandbox: has torch loaded, and forks ranks from itself on request.

It never runs submitted code.  Its ranks can do nothing to it (seccomp.py), and one submission's ranks are gone before
the next ones are made.  The requests and their answers are in `serve`.
"""

import contextlib
import gc
import importlib
import os
import platform
import signal
import socket
import sys
import tempfile

import torch
import torch.distributed as dist

from . import sandboxed_rank, seccomp
from .protocol import FrameReader, frame

MAX_RANKS = 16
# Imports that would take each rank seconds: by y.backward(gradient); by a DTensor, which loads torch's compiler.
BY_BACKWARD = "torch.fx.experimental.symbolic_shapes", "torch.nested._internal.nested_tensor"
BY_DTENSOR = (
    "torch._dynamo", "torch._inductor.config", "torch.distributed._functional_collectives", "torch.distributed.tensor",
)  # fmt: skip


def serve(control: socket.socket, closed_in: bool) -> None:
    torch.set_num_threads(1)
    (torch.zeros(2, 2) @ torch.ones(2, 2)).sum().item()  # makes torch load its lazy parts
    dist.ReduceOp.SUM, dist.HashStore()
    tempfile.tempdir = os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/"  # for code that only wants the name of such a folder
    if closed_in:
        seccomp.call_numbers(platform.machine())  # read here once, and not in each rank
    _load(("collectives.algorithms", *BY_BACKWARD))
    ranks: list[int] = []  # their processes
    control.sendall(frame({"up": True}))
    while (received := socket.recv_fds(control, 1 << 12, MAX_RANKS))[0]:
        data, descriptors, _, _ = received
        ((request, _),) = FrameReader().feed(data)
        if "load" in request:
            _load(BY_DTENSOR)
            control.sendall(frame({"loaded": True}))
        elif "ranks" in request:
            ranks += [_fork(descriptor, request["memory"], closed_in) for descriptor in descriptors]
            for descriptor in descriptors:
                os.close(descriptor)
            control.sendall(frame({"forked": len(descriptors)}))
        else:
            control.sendall(frame({"ended": _end(ranks)}))
    _end(ranks)


def _load(names: tuple[str, ...]) -> None:
    """Imports modules for all ranks to come."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # keeps the pages that ranks share as they are


def _fork(descriptor: int, memory: int, closed_in: bool) -> int:
    """The number of a new process that is a rank, with its socket as 3 and with standard streams that lead nowhere."""
    if pid := os.fork():
        return pid
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.dup2(descriptor, 3)
    os.closerange(4, 1 << 10)
    sandboxed_rank.live(socket.socket(fileno=3), memory, closed_in)


def _end(ranks: list[int]) -> list[int | None]:
    """Kill the ranks and all they started; each one's exit code or minus a signal's number, None if it had not ended."""
    ended = []
    for pid in ranks:
        done, status = os.waitpid(pid, os.WNOHANG)
        for kill in (os.killpg, os.kill) if not done else (os.killpg,):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)
        if not done:
            _, status = os.waitpid(pid, 0)  # it may have been about to end by itself
        code = os.waitstatus_to_exitcode(status)
        ended.append(code if done or code != -signal.SIGKILL else None)
    ranks.clear()
    return ended


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(socket.socket(fileno=int(sys.argv[1])), closed_in=sys.argv[2] == "closed-in")
