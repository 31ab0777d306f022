"""The process that ranks are forked from.

It has torch loaded and does nothing but fork, reap and kill, so a rank costs a fork, not
an import.  One server belongs to one kernel and ends with it: the kernel holds the other
end of its socket, and when that closes, every rank is killed and the server exits.  It
runs no thread and no tensor work of its own, which is what makes forking it safe.
"""

import ctypes
import errno
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import Callable

from ..log import messages
from . import fresh, process, wire
from .warmup import import_modules, preload


class Forker:
    """The fork server: forks ranks on request.

    Requests and replies are messages of launch/wire.py: Fork, Kill, DumpStacks and Preload; Up, Exited,
    Halted and Refused, no reply about a group that was killed.

    A reply for which the socket has no room waits in a queue, which the number of ranks bounds. If a
    blocking call sent it while the kernel sends requests, each could wait for the other to read.

    folder: for the files by which the ranks of a run find each other.
    """

    def __init__(self, control: socket.socket, folder: str) -> None:
        self._control, self._folder = control, folder
        self._living: dict[int, tuple[int, int]] = {}  # pid -> (run, rank)
        self._killed: set[int] = set()
        self._refused: set[int] = set()  # runs of which a rank got no process
        self._unsent = bytearray()
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_w, False)

    def serve(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        try:
            self._reply(wire.Up())
            while self._step():
                pass
        finally:
            for run in {run for run, _ in self._living.values()}:
                self._kill(run)
            for pid in self._living:
                os.waitpid(pid, 0)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _step(self) -> bool:
        """Wait for one event and handle it. Return False when the kernel is gone."""
        poll = select.poll()  # select() refuses descriptors from 1024 on
        poll.register(self._wake_r, select.POLLIN)
        poll.register(self._control, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        events = dict(poll.poll())
        if self._wake_r in events:
            os.read(self._wake_r, 4096)  # if more is left, the next poll() returns at once
            self._reap()
        event = events.get(self._control.fileno(), 0)
        if event & select.POLLOUT:
            self._flush()
        if event & ~select.POLLOUT:
            try:
                request, descriptors = wire.receive_with_descriptors(self._control, 4)
            except (EOFError, ConnectionError):
                return False
            self._serve(request, descriptors)
        return True

    def _serve(self, request: wire.Message, descriptors: list[int]) -> None:
        match request:
            case wire.Fork(run, spec):
                self._fork(run, spec, descriptors)
            case wire.Kill(run):
                self._killed.add(run)
                self._kill(run)
                self._settle()
            case wire.DumpStacks(run):
                for pid, (its_run, _) in self._living.items():
                    if its_run == run:
                        os.kill(pid, signal.SIGUSR1)
            case wire.Preload(modules):
                import_modules(modules)
            case _:
                raise TypeError(f"the server was sent {request!r}, which is not a request")

    def _fork(self, run: int, spec: wire.RankSpec, descriptors: list[int]) -> None:
        try:
            if run not in self._refused:  # else the run cannot become complete
                self._start(run, spec, descriptors)
        except OSError as error:
            self._refused.add(run)
            self._reply(wire.Refused(run, spec.rank, error.errno))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _start(self, run: int, spec: wire.RankSpec, descriptors: list[int]) -> None:
        if len(descriptors) < 4:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        spec = spec._replace(rendezvous=spec.rendezvous or os.path.join(self._folder, f"{run}.store"))
        pid = os.fork()
        if pid == 0:
            try:
                # Reset and close the server's own resources.
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(self._wake_r)
                os.close(self._wake_w)
                self._control.close()
                sock, out, err, wakeup = descriptors
                if spec.place.fresh:
                    fresh.start(spec, descriptors)
                process.rank_main(spec, socket.socket(fileno=sock), out, err, wakeup)
            finally:
                os._exit(messages.LOST_STATUS)  # in any case: there is only one server
        self._living[pid] = (run, spec.rank)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (change := os.waitpid(-1, os.WNOHANG | os.WUNTRACED)) != (0, 0):
                pid, status = change
                if pid in self._living and os.WIFSTOPPED(status):
                    self._reply(wire.Halted(*self._living[pid], os.WSTOPSIG(status)))
                elif pid in self._living:
                    run, number = self._living.pop(pid)
                    _kill(pid, os.killpg)  # processes that the rank started and left running
                    if run not in self._killed:
                        self._reply(wire.Exited(run, number, os.waitstatus_to_exitcode(status)))
        self._settle()

    def _kill(self, run: int) -> None:
        for pid, (its_run, _) in self._living.items():
            if its_run == run:
                _kill(pid, os.killpg)
                _kill(pid)  # in case it did not have its own session yet

    def _settle(self) -> None:
        if self._killed:
            for pid in _children() - set(self._living):  # a rank's own process that outlived its parents
                _kill(pid)
        busy = {run for run, _ in self._living.values()}
        for run in self._killed - busy:
            self._killed.discard(run)
            self._refused.discard(run)
            with suppress(OSError):  # the rest is removed with the folder
                for file in filter(lambda file: file.startswith(f"{run}."), os.listdir(self._folder)):
                    os.unlink(os.path.join(self._folder, file))

    def _reply(self, message: wire.Message) -> None:
        self._unsent += wire.frame(message)
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._control.send(self._unsent, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            pass  # poll() reports when there is room
        except ConnectionError:
            self._unsent.clear()  # the kernel is gone; the next read finds that out


def _adopt_orphans() -> None:
    """Make this process the subreaper of its descendants: it becomes the parent of those whose parents end first."""
    if sys.platform == "linux":
        PR_SET_CHILD_SUBREAPER = 36
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _children() -> set[int]:
    """This process's own children; empty if the system does not list them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return set(map(int, file.read().split()))
    except OSError:
        return set()


def _kill(pid: int, kill: Callable[[int, int], None] = os.kill) -> None:
    """kill: os.killpg for all of the session that this process leads."""
    with suppress(ProcessLookupError, PermissionError):  # another user's: a rank may have started sudo
        kill(pid, signal.SIGKILL)


def main(descriptor: int, folder: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # A rank is born with it blocked, and unblocks it once it has the handler: by default it would die of it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    _adopt_orphans()
    preload()
    status = 1
    try:
        with suppress(SystemExit):
            Forker(socket.socket(fileno=descriptor), folder).serve()
        status = 0
    except BaseException:
        traceback.print_exc()  # the kernel reads it
    finally:
        os._exit(status)  # at once: the kernel waits for it, and unloading torch takes a while
