"""The process ranks are forked from.

It has torch loaded and does nothing but fork, reap and kill, so a rank costs a fork, not
an import.  One server belongs to one kernel and ends with it: the kernel holds the other
end of its socket, and when that closes, every rank is killed and the server exits.  It
runs no thread and no tensor work of its own, which is what makes forking it safe.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import sys
import tempfile

import torch
import torch.testing._internal.distributed.fake_pg  # the ranks rehearse in such a group

from . import rank, trace
from .wire import Birth, frame, receive_with_descriptors


class Server:
    """Forks ranks on request.

    Requests:
        ("fork", run, Birth) with the descriptors (socket, stdout, stderr, bell) of the new rank
        ("kill", run): end all ranks of that run, with everything they started
        ("where", run): have its ranks write their stack to their standard error
        ("import", modules): load these for the ranks to come
    Replies: ("forked", run, rank, pid), ("exited", run, rank, status), ("gone", run) once a
        killed run has left nothing behind. status is as from os.waitstatus_to_exitcode.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._living: dict[int, tuple[int, int]] = {}  # pid -> (run, rank)
        self._killed: set[int] = set()
        self._folder = tempfile.mkdtemp(prefix="collectives-")
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)

    def serve(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        try:
            self._reply("up")
            while self._step():
                pass
        finally:
            for run in {run for run, _ in self._living.values()}:
                self._kill(run)
            for pid in self._living:
                os.waitpid(pid, 0)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _step(self) -> bool:
        """Waits for one thing to happen and deals with it; False when the kernel is gone."""
        readable, _, _ = select.select([self._control, self._wake_r], [], [])
        if self._wake_r in readable:
            try:
                while os.read(self._wake_r, 4096):
                    pass
            except BlockingIOError:
                pass
            self._reap()
        if self._control in readable:
            try:
                (kind, what, *rest), descriptors = receive_with_descriptors(self._control, 4)
            except (EOFError, ConnectionError):
                return False
            if kind == "fork":
                self._fork(what, rest[0], descriptors)
            elif kind == "kill":
                self._killed.add(what)
                self._kill(what)
                self._settle()
            elif kind == "where":
                for pid, (run, _) in self._living.items():
                    if run == what:
                        os.kill(pid, signal.SIGUSR1)
            elif kind == "import":
                for module in what:
                    with contextlib.suppress(Exception):
                        importlib.import_module(module)
                settle_memory()
        return True

    def _fork(self, run: int, birth: Birth, descriptors: list[int]) -> None:
        birth.rendezvous = os.path.join(self._folder, str(run))
        sock, out, err, bell = descriptors
        pid = os.fork()
        if pid == 0:
            self._leave_behind()
            rank.live(birth, socket.socket(fileno=sock), out, err, bell)
        for descriptor in descriptors:
            os.close(descriptor)
        self._living[pid] = (run, birth.rank)
        self._reply("forked", run, birth.rank, pid)

    def _leave_behind(self) -> None:
        """What the new rank must not keep of the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._wake_r)
        os.close(self._wake_w)
        self._control.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self._living:
                run, number = self._living.pop(pid)
                _kill_session(pid)  # what the rank started and left running
                self._reply("exited", run, number, os.waitstatus_to_exitcode(status))
        self._settle()

    def _kill(self, run: int) -> None:
        for pid, (its_run, _) in self._living.items():
            if its_run == run:
                _kill_session(pid)
                try:
                    os.kill(pid, signal.SIGKILL)  # in case it had no session of its own yet
                except ProcessLookupError:
                    pass

    def _settle(self) -> None:
        if self._killed:
            for pid in _children() - set(self._living):  # a rank's own process that outlived its parents
                os.kill(pid, signal.SIGKILL)
        busy = {run for run, _ in self._living.values()}
        for run in self._killed - busy:
            self._killed.discard(run)
            try:
                os.unlink(os.path.join(self._folder, str(run)))
            except FileNotFoundError:
                pass
            self._reply("gone", run)

    def _reply(self, *message) -> None:
        try:
            self._control.sendall(frame(message))
        except OSError:
            pass  # the kernel is gone; the next read says so


def _adopt_orphans() -> None:
    """Makes this process the parent of all whose parents end before them, however they were started."""
    if sys.platform == "linux":
        PR_SET_CHILD_SUBREAPER = 36
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _children() -> set[int]:
    """This process's own children, where the system tells."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return set(map(int, file.read().split()))
    except OSError:
        return set()


def _kill_session(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def warm() -> None:
    """Touches once what every rank will touch, so that a fork finds it ready."""
    torch.set_num_threads(1)
    with trace.Tracer(0, lambda *_: None, 0.0):
        torch.zeros(1).add_(1).clone()
    settle_memory()


def settle_memory() -> None:
    """Keeps the garbage collector from dirtying the pages that ranks share."""
    gc.collect()
    gc.freeze()


def main(descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    _adopt_orphans()
    warm()
    Server(socket.socket(fileno=descriptor)).serve()
