"""The sandbox of submitted code: walls (walls.py) around a process that forks ranks (inside/).

Each rank also loses every system call that computing doesn't need (inside/seccomp.py).
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from math import inf
from pathlib import Path

from .inside.protocol import FrameReader, frame
from .walls import INSIDE, Unavailable, bwrap, processors

START = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module('inside', run_name='__main__', alter_sys=True)"
)
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "HOME": "/"}
_ENVIRONMENT["PATH"] = os.environ.get("PATH", "/usr/bin")
UP_SECONDS = 120.0  # to load torch, on a busy machine
MAX_FORKING = 8  # threads of a process that may have forked: bubblewrap's two and the first process; a rank can't
ANSWER_SECONDS = 20.0  # for a request to the first process


class Sandbox:
    """One sandbox, to be closed. Ranks of one worker group at a time.  private: as for walls.around."""

    def __init__(self, walls: bool = True, private: Iterable[Path] = ()) -> None:
        self._walls, self._has_loaded = walls, False
        self._ours, theirs = socket.socketpair()
        with theirs, processors() if walls else nullcontext() as file:
            outside, course = ([*bwrap(file, private), "--"], "/course") if walls else ([], str(INSIDE.parent))
            there, closed_in = theirs.fileno(), "closed-in" if walls else "open"
            self._process = subprocess.Popen(
                [*outside, sys.executable, "-I", "-B", "-c", START, course, str(there), closed_in],
                pass_fds=[there, file.fileno()] if walls else [there],
                env=_ENVIRONMENT, cwd="/", start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
        self._ours.settimeout(UP_SECONDS)
        try:
            self._reply()
        except (OSError, EOFError):
            raise Unavailable(f"the sandbox did not start: {self.close() or 'it said nothing'}") from None
        self._ours.settimeout(ANSWER_SECONDS)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def load(self) -> None:
        """Loads what DTensor, functional collectives and torch.func import, once. Raises OSError or EOFError if the sandbox is gone."""
        if not self._has_loaded:
            self._ours.settimeout(UP_SECONDS)
            self._ours.sendall(frame({"load": True}))
            self._reply()
            self._ours.settimeout(ANSWER_SECONDS)
            self._has_loaded = True

    def more_ranks(self, count: int) -> list[socket.socket]:
        """More ranks besides the present ones, a socket to each. Raises OSError or EOFError if the sandbox is gone."""
        pairs = [socket.socketpair() for _ in range(count)]
        try:
            socket.send_fds(self._ours, [frame({"ranks": count})], [theirs.fileno() for _, theirs in pairs])
            self._reply()
        finally:
            for _, theirs in pairs:
                theirs.close()
        return [ours for ours, _ in pairs]

    def computed(self) -> float:
        """Seconds of processor time of all ranks together. Raises OSError or EOFError if the sandbox is gone."""
        self._ours.sendall(frame({"look": True}))
        return self._reply()["computed"]

    def threads(self) -> int:
        """The number of threads of all its processes; 0 where the system has no /proc."""
        count, pids = 0, [str(self.pid)]
        while pids:
            with suppress(OSError):  # it has ended since
                folder = Path("/proc", pids.pop(), "task")
                count += len(threads := os.listdir(folder))
                for thread in threads[:MAX_FORKING]:
                    with suppress(OSError):
                        pids += (folder / thread / "children").read_text().split()
        return count

    def end_ranks(self) -> list[int | None]:
        """Kills the ranks; per rank the exit status, or minus the signal, with which it had ended before, or None."""
        self._ours.sendall(frame({"end": True}))
        return self._reply()["ended"]

    def _reply(self) -> dict:
        reader = FrameReader()
        while True:
            data = self._ours.recv(1 << 12)
            if not data:
                raise EOFError("the sandbox is gone")
            for header, _ in reader.feed(data):
                return header

    def close(self) -> str:
        """Ends everything in it: its processes cannot outlive the first one. The stderr of that; "" the second time."""
        if self._ours.fileno() == -1:
            return ""
        self._ours.close()
        if not self._walls:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(ANSWER_SECONDS)  # without walls, only it knows its ranks
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        with self._process.stderr as stderr:
            said = stderr.read().decode(errors="replace").strip()
        self._process.wait()
        return said


class SandboxPool:
    """Sandboxes for one worker group after the other: one for as long as it lasts, then another."""

    def __init__(self, walls: bool = True, private: Iterable[Path] = ()) -> None:
        self._kind = walls, tuple(private)
        self._sandbox = Sandbox(*self._kind)

    @property
    def sandbox(self) -> Sandbox:
        """One that is alive."""
        if not self._sandbox.alive:
            self._sandbox.close()
            self._sandbox = Sandbox(*self._kind)
        return self._sandbox

    def close(self) -> None:
        self._sandbox.close()


class Crew:
    """The ranks that one submission's answer runs on, to be closed. They stay for the next world unless it is smaller.

    loads: whether the answer needs the modules of Sandbox.load. Else each rank would import them, for a second.
    until: the time at which all that the submission may take is over.
    """

    def __init__(self, sandboxes: SandboxPool, loads: bool = False, until: float = inf) -> None:
        self._sandboxes, self.loads, self.until, self._socks = sandboxes, loads, until, []
        self._sandbox = sandboxes.sandbox

    def world(self, size: int) -> list[socket.socket]:
        """A socket to each rank of a world of this size. Raises OSError or EOFError if no sandbox lasts that long."""
        if size < len(self._socks):
            self.close()
        try:
            self._grow(size)
        except (OSError, EOFError):  # ended by the system since it was last used
            self._sandbox.close()
            self.close()
            self._sandbox = self._sandboxes.sandbox
            self._grow(size)
        return self._socks

    def _grow(self, size: int) -> None:
        if self.loads:
            self._sandbox.load()
        self._socks += self._sandbox.more_ranks(size - len(self._socks))

    def computed(self) -> float:
        """The ranks' seconds of processor time, see Sandbox.computed."""
        return self._sandbox.computed()

    def threads(self) -> int:
        """The number of threads in the sandbox, see Sandbox.threads."""
        return self._sandbox.threads()

    def ended(self) -> list[int | None]:
        """Ends the ranks; how each had ended before, see Sandbox.end_ranks."""
        return self._sandbox.end_ranks()

    def close(self) -> None:
        for sock in self._socks:
            sock.close()
        self._socks = []
        try:
            self.ended()
        except (OSError, EOFError):
            self._sandbox.close()  # the next ranks get another
