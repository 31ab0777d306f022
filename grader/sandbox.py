"""The sandbox of submitted code: walls (walls.py) around a process that forks ranks (inside/).

Each rank also loses every system call that computing doesn't need (inside/seccomp.py).
"""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from .inside.protocol import FrameReader, frame
from .walls import INSIDE, Unavailable, bwrap

START = (
    "import json, runpy, sys; sys.path.insert(0, sys.argv.pop(1)); from inside.shipped import Course; "
    "sys.meta_path.insert(0, Course(json.load(sys.stdin))); "
    "runpy.run_module('inside', run_name='__main__', alter_sys=True)"
)
# The modules of the course that ranks need, and answers for schedules. They import torch, each other and the standard library.
MODULES = (
    "collectives.format", "collectives.lazy", "collectives.log.collectives", "collectives.log.backends",
    "collectives.log.event", "collectives.rank.tensors", "collectives.algorithms.schedule",
    "collectives.algorithms.proof", "collectives.algorithms.count", "helpers.exercise.on_rank",
)  # fmt: skip
# In the place of collectives.algorithms, whose algorithms a rank doesn't need.
SCHEDULE = "from .schedule import Message, Schedule, add, copy\nfrom .proof import WrongSchedule"
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "HOME": "/"}
_ENVIRONMENT["PATH"] = os.environ.get("PATH", "/usr/bin")
SPARE_MEMORY_BYTES = 512 << 20  # of address space for an answer, beyond torch's own
UP_SECONDS = 120.0  # to load torch, on a busy machine
MAX_FORKING = 8  # threads of a process that may have forked: bubblewrap's two and the first process; a rank can't
ANSWER_SECONDS = 20.0  # for a request to the first process


def shipped() -> dict[str, str]:
    """The sources of what the sandbox has of the course, by the names of the modules."""
    files = {name: importlib.util.find_spec(name).origin for name in MODULES}
    sources = {name: Path(file).read_text(encoding="utf-8") for name, file in files.items()}
    return {**sources, "collectives.algorithms": SCHEDULE}


class Usage(NamedTuple):
    """A process's use of the machine."""

    threads: int
    computed: float  # seconds of processor time
    memory: int  # bytes of address space


class Sandbox:
    """Ranks for one answer after the other, to be closed. If what makes them is gone, the next ones come from a new one.

    An answer's ranks stay for the next world unless it is smaller.  private: as for walls.bwrap.
    """

    def __init__(self, walls: bool = True, private: Iterable[Path] = ()) -> None:
        self._walls, self._private = walls, tuple(private)
        self._start()

    def _start(self) -> None:
        self._ranks, self._has_loaded = [], False
        self._ours, theirs = socket.socketpair()
        outside, course = ([*bwrap(self._private), "--"], "/course") if self._walls else ([], str(INSIDE.parent))
        with theirs:
            there, closed_in = theirs.fileno(), "closed-in" if self._walls else "open"
            self._process = subprocess.Popen(
                [*outside, sys.executable, "-I", "-B", "-c", START, course, str(there), closed_in],
                pass_fds=[there], env=_ENVIRONMENT, cwd="/", start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
        self.pid = self._process.pid
        try:
            with self._process.stdin as modules:
                modules.write(json.dumps(shipped()).encode())
            self._reply(UP_SECONDS)
            self._memory = self._memory_of_ranks()
        except (OSError, EOFError):
            raise Unavailable(f"the sandbox did not start: {self.close() or 'it said nothing'}") from None

    def _memory_of_ranks(self) -> int:
        """The limit on the address space of ranks to come, while there are none; 0 where it isn't known."""
        most = max((used.memory for used in self.usage().values()), default=0)
        return most and most + SPARE_MEMORY_BYTES

    def load(self) -> None:
        """Loads what DTensor, functional collectives and torch.func import: in each rank it would take a second."""
        if not self._has_loaded:
            self._lasting(self._ask, {"load": True}, UP_SECONDS)
            self._memory, self._has_loaded = self._memory_of_ranks(), True

    def world(self, size: int) -> list[socket.socket]:
        """A socket to each rank of a world of this size. Raises OSError or EOFError if nothing lasts that long."""
        if size < len(self._ranks):
            self.dismiss()
        self._lasting(self._grow, size)
        return self._ranks

    def _lasting(self, act: Callable[..., Any], *arguments: Any) -> None:
        """Do this, if need be once more in a new sandbox: the system may have ended this one since it was last used."""
        try:
            act(*arguments)
        except (OSError, EOFError):
            self.close()
            self._start()
            act(*arguments)

    def _grow(self, size: int) -> None:
        pairs = [socket.socketpair() for _ in range(size - len(self._ranks))]
        try:
            request = {"ranks": len(pairs), "memory": self._memory}
            self._ask(request, ANSWER_SECONDS, [theirs.fileno() for _, theirs in pairs])
        finally:
            for _, theirs in pairs:
                theirs.close()
        self._ranks += [ours for ours, _ in pairs]

    def dismiss(self) -> None:
        """Ends the ranks; the next ones are new."""
        self._hang_up()
        try:
            self.end_ranks()
        except (OSError, EOFError):
            self.close()

    def end_ranks(self) -> list[int | None]:
        """Kills the ranks; per rank the exit status, or minus the signal, with which it had ended before, or None."""
        return self._ask({"end": True}, ANSWER_SECONDS)["ended"]

    def _hang_up(self) -> None:
        for sock in self._ranks:
            sock.close()
        self._ranks = []

    def usage(self) -> dict[str, Usage]:
        """The use of the machine by each of its processes, by their numbers; {} where the system has no /proc."""
        usage, pids = {}, [str(self.pid)]
        while pids:
            process = Path("/proc", pids.pop())
            with suppress(OSError):  # it has ended since
                threads = os.listdir(process / "task")
                fields = (process / "stat").read_text().rpartition(")")[2].split()  # man 5 proc, from state on
                seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                usage[process.name] = Usage(len(threads), seconds, int(fields[20]))
                for thread in threads[:MAX_FORKING]:
                    with suppress(OSError):
                        pids += (process / "task" / thread / "children").read_text().split()
        return usage

    def _ask(self, request: dict[str, Any], seconds: float, descriptors: Iterable[int] = ()) -> dict[str, Any]:
        """The first process's answer to a request. Raises OSError or EOFError if that is gone."""
        data, ends = frame(request), list(descriptors)
        socket.send_fds(self._ours, [data], ends) if ends else self._ours.sendall(data)
        return self._reply(seconds)

    def _reply(self, seconds: float) -> dict[str, Any]:
        self._ours.settimeout(seconds)
        reader = FrameReader()
        while data := self._ours.recv(1 << 12):
            for header, _ in reader.feed(data):
                return header
        raise EOFError("the sandbox is gone")

    def close(self) -> str:
        """Ends everything in it: its processes cannot outlive the first one. The stderr of that; "" the second time."""
        self._hang_up()
        if self._ours.fileno() == -1:
            return ""
        self._ours.close()
        if not self._walls:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(ANSWER_SECONDS)  # without walls, only it knows its ranks
        with suppress(ProcessLookupError):
            os.killpg(self.pid, 9)
        with self._process.stderr as stderr:
            said = stderr.read().decode(errors="replace").strip()
        self._process.wait()
        return said
