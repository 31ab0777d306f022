"""Stacks of processes: py-spy's dumps, faulthandler's, and torch's debug server's, of one moment or of two.

Formats: py-spy 0.4 ("Process 1: ...", 'Thread 1 (idle): "MainThread"', "    function (file.py:3)", innermost first);
faulthandler of Python 3.11 ("Current thread 0x... (most recent call first):", '  File "x", line 3 in f'), which is what
torch 2.13's debug server calls for /stacks, under "=== Rank 0: address ===".
"""

import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterator

from ...judge.wording.phrases import alike, few
from ...log.collectives import COLLECTIVES
from .dump import Frame, in_torch
from .text import LogLine, listed

_PROCESS = re.compile(r"Process (\d+): (.*)")
_THREAD = re.compile(
    r'Thread (?:0x[0-9a-f]+|\d+)(?: \((?P<state>[^)]*)\))?(?:: "(?P<name>[^"]*)"| \[(?P<thread>[^\]]*)\])?'
)
_CURRENT = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+(?: \[(?P<name>[^\]]*)\])? \(most recent call first\):")
_SPY_FRAME = re.compile(r"\s{2,}(\S+) \((.+?)(?::(\d+))?\)$")
_FAULT_FRAME = re.compile(r'\s+File "(.+)", line (\d+) in (\S+)')
_HEAD = re.compile(r"=+ Rank (\d+): (\S*) =+")
_HEADING = re.compile(r"py-spy.*\brank[ =_:#]*(\d+)|^\W*#\W*rank[ =_:#]*(\d+)", re.IGNORECASE)
_IN_NAME = re.compile(r"rank[_\-.]?(\d+)")
WAITS = {name for row in COLLECTIVES.values() for name in (row.op, *row.also)} | {
    "send", "recv", "isend", "irecv", "batch_isend_irecv", "all_gather_object", "broadcast_object_list", "gather_object",
    "all_gather_into_tensor", "reduce_scatter_tensor", "monitored_barrier", "synchronize", "_all_gather_base",
}  # fmt: skip
# The functions of Python and torch in which a helper process of a rank works, with their files.
_WORKER = re.compile(r"\b(?:_worker_loop \S*data/_utils/worker|_process_worker \S*futures/process|worker \S*multiprocessing/pool|serve \S*collectives/watch/\w+)\.py$")
_LAUNCHER = re.compile(r"torchrun|torch\.distributed\.(?:run|launch)|resource_tracker|py-spy")
_DEVICE_WAIT = re.compile(r"cu(?:da)?(?:Stream|Device|Event|Ctx|Context)Synchronize|_local_scalar_dense|cu(?:da)?Memcpy")  # with py-spy --native
_PARENT = re.compile(r"Parent Process (\d+): ")
ENTRIES = ("init_process_group", "new_group", "_new_process_group_helper", "destroy_process_group", "rendezvous")
IDLE = ("MainThread",)
_STANDARD = sys.stdlib_module_names - {"test", "trace", "profile", "code"}  # which may be a program's, too
MOST_WORKERS = 2  # that are written out, for one rank
BACKWARD = "backward, in which DDP waits for its calls in C++"
# A rank that waits for its GPU shows the line that waits, and no function below it.
OR_SYNCHRONIZING = ", or in a wait for the GPU"
ITEM = "With NCCL, a rank that waits for a collective shows the line where it waits for its GPU: an `.item()`, a `.cpu()`, a synchronization. The flight recorder, or RAS, shows which rank is late."


@dataclass
class Stack:
    """A process's main thread at one moment, innermost frame first."""

    rank: int | None
    path: str
    pid: int | None = None
    command: str = ""
    frames: list[Frame] = field(default_factory=list)
    parent: int | None = None  # its number
    is_idle: bool = False  # whether the thread runs nothing, by py-spy

    @property
    def is_worker(self) -> bool:
        """Whether it helps a rank, as a data loader's, a pool's or a compiler's process does."""
        return "compile_worker" in self.command or any(re.search(_WORKER, f"{place.function} {place.file}") for place in self.frames)

    @property
    def is_rank(self) -> bool:
        return bool(self.frames) and not self.is_worker and not _LAUNCHER.search(self.command)

    @property
    def is_busy(self) -> bool:
        """Whether a worker is at work, and not waiting for some."""
        return self.is_worker and not any(re.search(r"\bget \S*queues?\.py$", f"{place.function} {place.file}") for place in self.frames)

    @property
    def inside(self) -> str:
        """The collective, the entry to a group, or the wait for the GPU that it is in; "" for none."""
        names = [place.function.rpartition(".")[2] for place in self.frames if "distributed" in place.file]
        calls = [name for name in names if name in WAITS or name in ENTRIES]
        if calls:
            return calls[-1]
        if self.is_idle and any(place.function == "_engine_run_backward" for place in self.frames):
            return BACKWARD
        waits = (place.function for place in self.frames if _DEVICE_WAIT.search(place.function) or "torch/cuda" in place.file and place.function in ("wait", "synchronize"))
        return next(waits, "") and "a GPU synchronization"

    @property
    def is_at_a_line(self) -> bool:
        """Whether nothing shows below the program's own line, which may be a wait for the GPU then."""
        return self.frames[0] == self.place and _is_own(self.place.file)

    @property
    def place(self) -> Frame | None:
        """The program's own line."""
        own = [place for place in self.frames if not in_torch(place.file) and _is_own(place.file) and place.file.endswith(".py")]
        return own[0] if own else self.frames[0] if self.frames else None

    @property
    def doing(self) -> str:
        """The innermost function with a name that helps, where it is in no collective."""
        for place in self.frames:
            name = Path(place.file).name
            if name not in ("threading.py", "queue.py", "selectors.py", "connection.py", "socket.py", "ssl.py"):
                return f"{place.function}, {name}:{place.number}"
        return str(self.frames[0]) if self.frames else ""


def _is_own(file: str) -> bool:
    """Whether a file is the program's: py-spy gives the standard library's without a folder."""
    is_of_others = "-packages/" in file or "/python3" in file or re.search(r"(?:^|/)collectives/(?:rank|watch)/", file)
    return not is_of_others and file.partition("/")[0].removesuffix(".py") not in _STANDARD


@dataclass
class Stacks:
    """Stacks, from any number of files."""

    marks = (b"Process ", b"Thread 0x", b"thread 0x", b"=== Rank", b"py-spy", b"# rank")
    inner = (b".py", b"Thread ", b"  File ", b"    ")
    all: list[Stack] = field(default_factory=list)
    _path: str = ""
    _rank: int | None = None
    _stack: Stack | None = None
    _reading: bool = False
    _headed: int | None = None  # the rank in the line before a stack

    def begin(self, path: str, rank: int | None) -> None:
        self._path, self._rank, self._stack, self._reading, self._headed = path, rank, None, False, None

    def read(self, line: LogLine) -> bool:
        text = line.text
        if head := _HEAD.match(text):
            self._rank, self._stack, self._reading = int(head[1]), None, False
            return False
        if ("#" in text or "py-spy" in text) and (heading := _HEADING.search(text)):
            self._headed = int(heading[1] or heading[2])
            return False
        if process := _PROCESS.match(text):
            rank = line.rank if line.rank is not None else self._rank if self._headed is None else self._headed
            self._stack, self._reading = self._new(rank, int(process[1]), process[2]), False
            return True
        if self._stack and (parent := _PARENT.match(text)):
            self._stack.parent = int(parent[1])
            return True
        if _CURRENT.match(text):
            # The main thread is the last one that faulthandler writes.
            rank = line.rank if line.rank is not None else self._rank
            if self._stack is None or self._stack.pid is not None or self._stack.rank != rank:
                self._stack = self._new(rank, None, "")
            self._stack.frames, self._reading = [], True
            return True
        if self._stack is None:
            return False
        if frame := _FAULT_FRAME.match(text):
            if self._reading:
                self._stack.frames.append(Frame(frame[1], int(frame[2]), frame[3]))
            return self._reading
        if thread := _THREAD.match(text):
            self._reading = (thread["name"] or "") in IDLE or not self._stack.frames and thread["name"] is None
            if self._reading:
                self._stack.frames, self._stack.is_idle = [], thread["state"] == "idle"
            return True
        if self._reading and (frame := _SPY_FRAME.match(text)):
            file = f"/{frame[2]}" if frame[2].startswith("torch/") else frame[2]  # py-spy shortens it
            self._stack.frames.append(Frame(file, int(frame[3] or 0), frame[1]))
            return True
        return False

    def _new(self, rank: int | None, pid: int | None, command: str) -> Stack:
        stack = Stack(rank, self._path, pid, command)
        self.all.append(stack)
        return stack

    # --- conclusions ----------------------------------------------------------------------

    def by_rank(self) -> dict[int, list[Stack]]:
        """By rank, the stacks of its process, in the order of the files."""
        found: dict[int, list[Stack]] = defaultdict(list)
        first: dict[tuple, int | None] = {}  # by rank and file, the process that comes first: its children follow
        for stack in self.all:
            if stack.is_rank and stack.rank is not None and stack.pid == first.setdefault((stack.rank, stack.path), stack.pid):
                found[stack.rank].append(stack)
        return dict(sorted(found.items()))

    @property
    def absent(self) -> set[int]:
        """The ranks that are in no collective, where others are."""
        inside = {rank: bool(stacks[-1].inside) for rank, stacks in self.by_rank().items()}
        return {rank for rank, is_waiting in inside.items() if not is_waiting and any(inside.values())}

    def sentences(self, world: int = 0, host_of: Callable[[str], str] = str, on_gpu: bool | None = False) -> Iterator[str]:
        """The ranks that are in no collective first, then the ones that wait.  on_gpu: whether NCCL makes the collectives; None if that is unknown."""
        ranks = self.by_rank()
        unknown = [stack for stack in self.all if stack.is_rank and stack.rank is None]
        if ranks:
            yield from self._of_ranks(ranks, world, on_gpu, any(stack.inside for stack in unknown))
        yield from self._without_ranks(unknown, host_of, on_gpu)
        if unknown:
            yield f"No file's name shows {'their ranks' if ranks else 'a rank'}: name each stacks/rank_N.txt to have the ranks named."

    def _of_ranks(self, ranks: dict[int, list[Stack]], world: int, on_gpu: bool | None, others_wait: bool) -> Iterator[str]:
        last = {rank: stacks[-1] for rank, stacks in ranks.items()}
        twice = {rank for rank, stacks in ranks.items() if len(stacks) > 1}
        still = {rank for rank in twice if ranks[rank][0].frames == ranks[rank][-1].frames}
        if on_gpu and len(last) > 1 and len({stack.place for stack in last.values()}) == 1:
            place = next(iter(last.values())).place
            yield (
                f"{few(last).capitalize()} are all at {place}: with NCCL, a call returns when it is queued, and Python waits for its GPU later, in an "
                "`.item()` or a synchronization. So these stacks can't tell the ranks apart; the flight recorder can."
            )
            return
        elsewhere = sorted(rank for rank, stack in last.items() if not stack.inside)
        waiting = sorted(set(last) - set(elsewhere))
        absent = alike((rank, (last[rank].doing, str(last[rank].place), rank in still, last[rank].is_at_a_line)) for rank in elsewhere)
        for (doing, place, stood, at_a_line), those in sorted(absent.items(), key=lambda item: len(item[1]))[:6]:
            is_one = len(those) == 1
            # which means little where no rank waits
            nowhere = "" if not (waiting or others_wait) else f"in no collective{OR_SYNCHRONIZING * (at_a_line and on_gpu is not False)}: "
            at = f", called at {place}" if place != "None" and place != doing else ""
            moved = "in both stacks" if stood else f"and {'has' if is_one else 'have'} moved between {'its' if is_one else 'their'} stacks" if set(those) & twice else ""
            yield f"{few(those).capitalize()} {'is' if is_one else 'are'} {nowhere}in {doing}{at}{f', {moved}' if moved else ''}."
            for rank in those[:MOST_WORKERS]:
                yield from self._workers(last[rank], f"A worker of rank {rank}'s data loader")
        calls = alike((rank, (last[rank].inside, last[rank].place)) for rank in waiting)
        for (call, place), those in sorted(calls.items(), key=lambda item: len(item[1]))[:4]:
            lacks = f", apparently for {few(elsewhere)}" if 0 < len(elsewhere) <= len(waiting) else ""
            yield f"{few(those).capitalize()} {'is' if len(those) == 1 else 'are'} waiting in {call}{f', at {place}' if place else ''}{lacks}."
        if waiting and not elsewhere:
            if len({call for call, _ in calls}) > 1:
                yield "All of them wait, in different calls: each for the others."
            elif len(last) < world or not world:
                subject = f"All {len(last):,} of these wait" if len(last) > 1 else "It is waiting"
                yield f"{subject}: the rank waited for isn't among these stacks, or has no Python frame that shows it."
            else:
                yield "All ranks are in the call: look below the program, or ask again to see whether they move."
        elif not waiting and not others_wait:
            yield "None of these stacks is in a collective." + f" {ITEM}" * (on_gpu is not False and any(stack.is_at_a_line for stack in last.values()))
        if not twice and len(last) > 1:
            yield "These are stacks of one moment. Ask again ten seconds later and give both: who hasn't moved is the one to look at."
        if len(last) < world:
            yield f"There are stacks of {len(last):,} of {world:,} ranks."

    def _workers(self, parent: Stack, whose: str) -> Iterator[str]:
        """A sentence on each busy worker of a process that waits for its data loader.  whose: the process, in words."""
        if not any("data/dataloader.py" in place.file for place in parent.frames):
            return
        busy = {stack.pid: stack for stack in self.all if stack.is_busy and _is_of(stack, parent)}
        for pid, stack in [*busy.items()][:MOST_WORKERS]:
            at = f", called at {stack.place}" if stack.place and str(stack.place) != stack.doing else ""
            yield f"{whose}, process {pid}, is in {stack.doing}{at}."

    def _without_ranks(self, stacks: list[Stack], host_of: Callable[[str], str], on_gpu: bool | None) -> Iterator[str]:
        """Sentences on processes, by their numbers; the ones in no collective first."""
        named = ((stack, (host_of(stack.path), f"in place {k}" if stack.pid is None else stack.pid)) for k, stack in enumerate(stacks))
        processes, places = alike(named), defaultdict(list)
        for key, moments in processes.items():
            stack = moments[-1]
            still = len(moments) > 1 and moments[0].frames == stack.frames
            or_waits = OR_SYNCHRONIZING * (stack.is_at_a_line and on_gpu is not False)
            where = stack.inside or f"no collective{or_waits}{f': {stack.doing}' * (stack.doing != str(stack.place))}"
            places[bool(stack.inside), where, str(stack.place), still].append(key)
        for (_, where, place, still), keys in sorted(places.items(), key=lambda item: (item[0][0], len(item[1])))[:6]:
            pid, hosts = keys[0][1], sorted({host for host, _ in keys if host})
            is_one = len(keys) == 1
            who = f"Process {pid}" if is_one and isinstance(pid, int) else f"{len(keys):,} process{'es' * (not is_one)}"
            on = f" on {listed(hosts)}" if hosts else ""
            yield f"{who}{on} {'is' if is_one else 'are'} in {where}, at {place}{', in both stacks' * still}."
            yield from self._workers(processes[keys[0]][-1], f"A data loader's worker{on}")
        if stacks and not any(stack.inside for stack in stacks) and on_gpu is not False:
            yield f"None of them is in a collective. {ITEM}"


def _is_of(worker: Stack, parent: Stack) -> bool:
    """Whether a worker is a process's, by its parent's number, else by its rank, else by its file."""
    if worker.parent is not None:
        return worker.parent == parent.pid
    return worker.rank == parent.rank if worker.rank is not None else worker.path == parent.path


def rank_in(path: str) -> int | None:
    """The rank that a file's name shows, as rank3.txt and stderr_rank_3.log do."""
    found = _IN_NAME.search(Path(path).name)
    return int(found[1]) if found else None
