"""The first process in the sandbox: has torch loaded, and forks ranks from itself on request.

It never runs submitted code.  Its ranks can do nothing to it (seccomp.py), and one submission's ranks are gone before
the next ones are made.

    request    {"load": true}: import what DTensor and functional collectives need; answered by {"loaded": true}
               {"ranks": n} with n sockets: as many more ranks, of a world of all there are; answered by {"forked": n}
               {"look": true}: the ranks' use of the processor; answered by {"computed": seconds of processor time}
               {"end": true}: ends them; answered by {"ended": [exit status, ...]}
"""

import contextlib
import gc
import importlib
import os
import platform
import select
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from . import sandboxed_rank, seccomp
from .protocol import FrameReader, frame

MAX_RANKS = 16
LOOK_SECONDS = 0.2  # between two readings of the ranks' processor time
# Imports that would take each rank seconds: by y.backward(gradient); by a DTensor, which loads torch's compiler.
BY_BACKWARD = "torch.fx.experimental.symbolic_shapes", "torch.nested._internal.nested_tensor"
BY_DTENSOR = (
    "torch._dynamo",
    "torch._inductor.config",
    "torch.distributed._functional_collectives",
    "torch.distributed.tensor",
)


@dataclass
class Living:
    """A rank that was forked."""

    pid: int
    before: float = 0.0  # seconds it had computed when the world was last made larger
    exhausted: bool = False  # it was killed since it computed for too long

    @property
    def computed(self) -> float:
        """Seconds of processor time. 0 where the system has no clock of another process, and once it has ended."""
        scheduled = ~self.pid << 3 | 2  # man 3 clock_getcpuclockid
        with contextlib.suppress(OSError):
            return time.clock_gettime(scheduled) if sys.platform == "linux" else 0.0
        return 0.0


def serve(control: socket.socket, closed_in: bool) -> None:
    torch.set_num_threads(1)
    (torch.zeros(2, 2) @ torch.ones(2, 2)).sum().item()  # makes torch load its lazy parts
    dist.ReduceOp.SUM, dist.HashStore()
    tempfile.tempdir = os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/"  # for code that only wants the name of such a folder
    if closed_in:
        seccomp.call_numbers(platform.machine())  # read here once, and not in each rank
    base = _load(BY_BACKWARD)
    living: list[Living] = []
    control.sendall(frame({"up": True}))
    while True:
        while living and not select.select([control], [], [], LOOK_SECONDS)[0]:
            _end_exhausted(living)
        data, descriptors, _, _ = socket.recv_fds(control, 1 << 12, MAX_RANKS)
        if not data:
            break
        ((request, _),) = FrameReader().feed(data)
        if "load" in request:
            base = _load(BY_DTENSOR)
            control.sendall(frame({"loaded": True}))
        elif "ranks" in request:
            for one in living:
                one.before = one.computed
            for descriptor in descriptors:
                living.append(Living(_fork(descriptor, base, closed_in)))
            for descriptor in descriptors:
                os.close(descriptor)
            control.sendall(frame({"forked": len(descriptors)}))
        elif "look" in request:
            control.sendall(frame({"computed": sum(one.computed for one in living)}))
        else:
            control.sendall(frame({"ended": _end(living)}))
    _end(living)


def _load(names: tuple[str, ...]) -> int:
    """Imports modules for all ranks to come; the bytes of address space that this process then takes."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    base = seccomp.address_space_in_use()
    gc.collect()
    gc.freeze()  # keeps the pages that ranks share as they are
    return base


def _end_exhausted(living: list[Living]) -> None:
    """Kill the ranks that have computed for too long in a world of this size."""
    for one in living:
        if not one.exhausted and one.computed - one.before >= seccomp.computing_seconds(len(living)):
            one.exhausted = True
            os.kill(one.pid, signal.SIGKILL)


def _fork(descriptor: int, base: int, closed_in: bool) -> int:
    """The number of a new process that is a rank, with its socket as 3 and with standard streams that lead nowhere."""
    if pid := os.fork():
        return pid
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.dup2(descriptor, 3)
    os.closerange(4, 1 << 10)
    sandboxed_rank.live(socket.socket(fileno=3), base, closed_in)


def _end(living: list[Living]) -> list[int | None]:
    """Kill the ranks and all they started; return each one's exit code, or minus a signal's number.

    -SIGXCPU means the SIGKILL of a rank that has computed for too long.
    """
    ended = []
    for one in living:
        done, status = os.waitpid(one.pid, os.WNOHANG)
        for kill in (os.killpg, os.kill) if not done else (os.killpg,):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(one.pid, signal.SIGKILL)
        if not done:
            _, status = os.waitpid(one.pid, 0)  # it may have been about to end by itself
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL:
            code = -signal.SIGXCPU if one.exhausted else code if done else None
        ended.append(code)
    living.clear()
    return ended


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(socket.socket(fileno=int(sys.argv[1])), closed_in=sys.argv[2] == "closed-in")
