"""The same cell done by each tool: what peers_table.py starts, in the environment of that tool.

    python -m tests.bench.peers spawn results.jsonl

A way is two pieces of source, one to begin with and one to call again and again, run in the
cells of a real Jupyter kernel where the tool is made for one and otherwise in a script.
What is found goes into a file, a line of JSON each, so that what fails later spoils nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Iterator, NamedTuple

import psutil
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from IPython import get_ipython
from IPython.utils.capture import capture_output
from jupyter_client.manager import start_new_kernel

RANKS = 4
PAUSE = 0.3  # seconds a reader leaves between two cells, at the very least
RESTED, AT_ONCE = "later, after a pause", "later, at once"  # two series of calls
PATIENCE = 4.0  # seconds of silence, above three usual calls, after which a reader interrupts
BUDGET = 10.0  # seconds for the later calls of one way: as many of the wanted ones as fit, and three at least


# --- what every rank does -----------------------------------------------------------------


def add():
    x = torch.ones(1)
    dist.all_reduce(x)
    return x, os.getpid()


def weigh():
    x = torch.ones(1)
    dist.all_reduce(x)
    return x, psutil.Process().memory_full_info().uss


def forget():
    x = torch.ones(1)
    if dist.get_rank() != 2:
        dist.all_reduce(x)
    return x, os.getpid()


TASKS = {task.__name__: task for task in (add, weigh, forget)}
PRINTED = re.compile(r"\(tensor\(\[(\d+)\.\]\), (\d+)\)")  # a result as text
NOTEBOOK = "import os, psutil, torch, torch.distributed as dist\n" + "\n".join(map(inspect.getsource, TASKS.values()))


# --- the ways -----------------------------------------------------------------------------


class Way(NamedTuple):
    begin: str  # from the import of the tool to ranks that can be called
    call: str  # leaves the results in `got`, or prints them; {task} is one of TASKS, {n} the number of ranks
    kernel: bool = True  # run in a Jupyter kernel, otherwise as a script


WAYS = {
    "run": Way("from helpers import run", "got = run({task}, world_size={n}).results"),
    "run_alone": Way(
        "from helpers import run; from collectives.launch import forkserver; forkserver.STANDBY_RANKS = 0",
        "got = run({task}, world_size={n}).results",
        kernel=False,
    ),
    "accelerate": Way(
        "from accelerate import debug_launcher",
        "with peers.folder_of_results() as (folder, got):\n"
        "    debug_launcher(peers.accelerated, (folder, {task}), num_processes={n})",
    ),
    "nbdistributed": Way(
        "%load_ext nbdistributed\n%dist_init -n 4",
        f"%%distributed\n{NOTEBOOK}\nprint(repr({{task}}()))",
    ),
    "ipyparallel_apply": Way("view = peers.engines()", "got = view.apply_sync({task})"),
    "ipyparallel_px": Way("view = peers.engines()", "%%px\nprint(repr({task}()))"),
    "spawn": Way("", "got = spawned({task}, {n})", kernel=False),
    "torchrun": Way("", "got = torchrun({task}, {n})", kernel=False),
}


@contextlib.contextmanager
def folder_of_results() -> Iterator[tuple[str, list]]:
    """For tools that drop what the ranks return: the list holds what they saved, once the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        got: list = []
        yield folder, got
        ranks = sorted((name for name in os.listdir(folder) if name.isdigit()), key=int)
        got += [torch.load(f"{folder}/{rank}") for rank in ranks]


def save(folder: str, result: Any) -> None:
    torch.save(result, f"{folder}/{dist.get_rank()}")


def accelerated(folder: str, task: Callable) -> None:
    from accelerate import PartialState

    PartialState(cpu=True)  # joins the process group
    save(folder, task())


def _spawned(rank: int, world_size: int, folder: str, task: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    save(folder, TASKS[task]())
    dist.destroy_process_group()


def spawned(task: Callable, world_size: int) -> list:
    with folder_of_results() as (folder, got):
        mp.spawn(_spawned, (world_size, folder, task.__name__), nprocs=world_size)
    return got


def _started_by_torchrun(task: str, folder: str) -> None:
    dist.init_process_group("gloo")
    save(folder, TASKS[task]())
    dist.destroy_process_group()


def torchrun(task: Callable, world_size: int) -> list:
    with folder_of_results() as (folder, got):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
        command += ["-m", "tests.bench.peers", f"rank:{task.__name__}", folder]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            said = re.findall(r"^.*RuntimeError: (.*)$", done.stderr, re.MULTILINE)
            raise RuntimeError(said[0] if said else f"torchrun ended with {done.returncode}")
    return got


def engines():
    """A view of four ipyparallel engines in one process group, with everything the cell uses."""
    import ipyparallel

    client = ipyparallel.Cluster(n=RANKS, log_level=40).start_and_connect_sync(activate=True)
    view = client[:]
    view.block = True
    view.scatter("rank", range(RANKS), flatten=True)
    view.push({"path": f"{tempfile.mkdtemp()}/store", "world_size": RANKS})
    view.execute(NOTEBOOK)
    view.execute("store = dist.FileStore(path, world_size)")
    view.execute('dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)')
    return view


# --- measuring ----------------------------------------------------------------------------


class Bench:
    """One way, called many times, in the kernel or the script this is made in."""

    def __init__(self, name: str, out: str) -> None:
        self.way, self._out = WAYS[name], out
        if self.way.kernel:
            self._shell = get_ipython()
            self._names = self._shell.user_ns
        else:
            self._names = vars(sys.modules["__main__"])

    def note(self, what: str, value: Any) -> None:
        with open(self._out, "a", encoding="utf-8") as file:
            file.write(json.dumps([what, value]) + "\n")

    def cell(self, source: str) -> tuple[float, str]:
        """Runs the cell: seconds, and what it printed. Raises what the cell raised."""
        if not self.way.kernel:
            start = time.perf_counter()
            exec(source, self._names)
            return time.perf_counter() - start, ""
        with capture_output() as shown:
            start = time.perf_counter()
            done = self._shell.run_cell(source)
            seconds = time.perf_counter() - start
        done.raise_error()
        texts = [o.data.get("text/plain", "") for o in shown.outputs]
        last = {text.partition("]")[0]: text for text in texts}  # %%px shows "[stdout:2] ..." again when there is more
        return seconds, "\n".join([shown.stdout, *last.values()])

    def call(self, task: Callable = add, n: int = RANKS) -> tuple[float, list[int]]:
        """Seconds, and the second part of each rank's result. Raises RuntimeError if results are missing."""
        self._names["got"] = None
        seconds, printed = self.cell(self.way.call.format(task=task.__name__, n=n))
        got = self._names["got"]
        if not isinstance(got, list):  # also what ipyparallel gives when it is interrupted: an unfinished answer
            got = [(torch.tensor([float(x)]), int(other)) for x, other in PRINTED.findall(printed)]
        if [x.item() for x, _ in got] != [n] * n:
            said = [line for line in printed.splitlines() if "rror" in line]
            raise RuntimeError(said[0] if said else f"no results came back, but: {printed[-100:]!r}")
        return seconds, [other for _, other in got]

    def everything(self, calls: int, ranks: list[int]) -> None:
        self.first()
        self.later(AT_ONCE, calls)
        self.later(RESTED, calls, PAUSE)
        self.note("memory", max(self.call(weigh)[1]))
        self.note("kept", kept())
        for n in ranks:
            self.at(n)
        self.hang()

    def first(self) -> None:
        """From the import of the tool to the first results, all cells one after another."""
        start, lost = time.perf_counter(), 0
        self.cell(self.way.begin)
        while True:
            try:
                self.call()
                break
            except RuntimeError:
                lost += 1
                if lost == 3:
                    raise
        self.note("first", [time.perf_counter() - start, lost])

    def later(self, what: str, calls: int, pause: float = 0.0) -> None:
        times: list[float] = []
        ranks: list[int] = []  # process ids
        while len(times) < calls and (sum(times) < BUDGET or len(times) < 3):
            time.sleep(pause)
            seconds, pids = self.call()
            times.append(seconds)
            ranks += pids
        self.note("fresh", len(set(ranks)) == len(ranks))
        self.usual = statistics.median(times)
        self.note(what, times)

    def at(self, n: int) -> None:
        """A later call with n ranks; without the first of that size, where there is time for more than one."""
        if psutil.virtual_memory().available < n * 250e6:  # what a spawned rank takes, and some
            return
        times: list[float] = []
        end = time.perf_counter() + 2
        while len(times) < 10 and time.perf_counter() < end:
            time.sleep(PAUSE * max(1, n / 8))
            times.append(self.call(n=n)[0])
        self.note(f"ranks {n}", statistics.median(times[1:] or times))

    def hang(self) -> None:
        """Rank 2 forgets the call. When is there word of it, which, and does the next call work?"""
        for what, task in (("hang", forget), ("after", add)):
            seconds, said = self._interrupted(task, PATIENCE + 3 * self.usual)
            self.note(what, [seconds, said])

    def _interrupted(self, task: Callable, limit: float) -> tuple[float, str | None]:
        """Seconds, and what was said: "" for a result, None if nothing was until the interrupt."""
        silent = False

        def interrupt(*_):
            nonlocal silent
            silent = True
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        start, said = time.perf_counter(), ""
        # Again each second: nbdistributed goes on to ask a rank for its names, and waits for that too.
        signal.setitimer(signal.ITIMER_REAL, limit, 1.0)
        try:
            self.call(task)
        except (Exception, KeyboardInterrupt) as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return time.perf_counter() - start, None if silent else said


def kept() -> tuple[int, float, float]:
    """What the tool keeps between calls: processes, MiB, and per cent of a core they use while idle."""
    time.sleep(1)  # ranks of the last call are ended, and the next made
    processes = psutil.Process().children(recursive=True)
    if not processes:
        return 0, 0.0, 0.0
    memory = 0.0
    start = time.perf_counter()
    before = [sum(p.cpu_times()[:2]) for p in processes]
    for p in processes:
        info = p.memory_full_info()
        memory += getattr(info, "pss", info.uss)  # pages that processes share count once
    time.sleep(2)
    used = sum(sum(p.cpu_times()[:2]) for p in processes) - sum(before)
    return len(processes), memory / 2**20, 100 * used / (time.perf_counter() - start)


def in_a_kernel(name: str, out: str, calls: int, ranks: list[int]) -> None:
    manager, client = start_new_kernel()
    try:
        code = f"{NOTEBOOK}\nfrom tests.bench import peers\npeers.Bench({name!r}, {out!r}).everything({calls}, {ranks})"
        reply = client.execute_interactive(code, output_hook=lambda message: None)["content"]
        if reply["status"] != "ok":
            raise RuntimeError(f"{reply['ename']}: {reply['evalue']}")
    finally:
        # One by one: nbdistributed's own %dist_shutdown ends every process on the machine whose
        # command line has "python" and then "worker" in it, with pkill -f.
        left = psutil.Process().children(recursive=True)
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way")
    parser.add_argument("out")
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--ranks", type=int, nargs="*", default=[])
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # and what is under way ends with us
    if options.way.startswith("rank:"):
        return _started_by_torchrun(options.way.removeprefix("rank:"), options.out)
    try:
        if WAYS[options.way].kernel:
            in_a_kernel(options.way, options.out, options.calls, options.ranks)
        else:
            Bench(options.way, options.out).everything(options.calls, options.ranks)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
