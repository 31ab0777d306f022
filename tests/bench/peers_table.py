"""The same cell done by this course's run() and by its peers, in one run, on one machine.

    make bench        (python -m tests.bench.peers_table [--quick])

Writes notebooks/bench.md and notebooks/images/bench.png; with --quick, which only shows that
everything works, a folder for temporary files gets them.  The peers are installed, once, into an
environment of their own, .venv-peers.  How each way does the cell is in peers.py.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch.utils._python_dispatch import _disable_current_modes

from collectives.draw import canvas
from helpers import run
from tests import ROOT
from tests.bench.peers import AT_ONCE, BUDGET, PATIENCE, PAUSE, RANKS, RESTED
from tools.install import is_made_from, take_cpu_torch

VENV = ROOT / ".venv-peers"
TORCH_INDEX = os.environ.get("TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
PEERS = {"accelerate": "1.15.0", "nbdistributed": "0.1.0", "ipyparallel": "9.2.0"}
NEEDED = ("torch", "jupyter_client", "ipykernel", "psutil", "numpy")  # in the course's own versions
KB, MB = 2**10, 2**20
LONGEST = 150.0  # seconds one way may take, whatever happens


class Row:
    """A line of the tables: what is measured of one way, in words of ours for what is not."""

    def __init__(self, title: str, way: str, package: str = "", recorded="nothing", back="") -> None:
        self.title, self.way, self.package = title, way, package
        self.recorded, self.back = recorded, back


EVERYTHING = "each call, before and after"
ROWS = [
    Row("`run`, ranks on standby", "run", recorded=EVERYTHING, back="objects"),
    Row("`run`, no standby", "run_alone", recorded=EVERYTHING, back="objects"),
    Row("ipyparallel, `apply_sync`", "ipyparallel_apply", package="ipyparallel", back="objects"),
    Row("ipyparallel, `%%px`", "ipyparallel_px", package="ipyparallel", back="printed text"),
    Row("nbdistributed, `%%distributed`", "nbdistributed", package="nbdistributed", back="printed text"),
    Row("accelerate, `debug_launcher`", "accelerate", package="accelerate", back="dropped: by files"),
    Row("`torch.multiprocessing.spawn`", "spawn", back="dropped: by files"),
    Row("torchrun", "torchrun", back="none: by files"),
]


# --- the peers' environment ---------------------------------------------------------------


def environment() -> dict[str, str]:
    """Makes the peers' environment or brings it up to date: what could not be installed, and why."""
    python, stamp = VENV / "bin" / "python", VENV / "made-from"
    wanted = hashlib.sha256(repr((NEEDED, PEERS, (ROOT / "constraints.txt").read_text())).encode()).hexdigest()
    if python.exists() and is_made_from(stamp, wanted):
        return {}
    print(f"Making an environment for the peers in {VENV.name}: a download of some 300 MB, once.", flush=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
    pip = [
        str(python),
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "-c",
        str(ROOT / "constraints.txt"),
    ]
    if TORCH_INDEX and sys.platform == "linux":
        take_cpu_torch(pip, TORCH_INDEX)
    subprocess.run([*pip, *NEEDED], check=True)
    failed = {}
    for name, version in PEERS.items():
        done = subprocess.run([*pip, f"{name}=={version}"], capture_output=True, text=True)
        if done.returncode:
            failed[name] = "could not be installed: " + last_line(done.stderr)
    if not failed:
        stamp.write_text(wanted)
    return failed


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1][:160]


# --- measuring ----------------------------------------------------------------------------


def measure(way: str, calls: int, ranks: list[int]) -> dict[str, Any]:
    """What is found of one way, by name; "failed" says why the rest is missing."""
    python = sys.executable if way.startswith("run") else str(VENV / "bin" / "python")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        found = Path(folder, "found")
        found.touch()
        environ = {
            **os.environ,
            "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",  # nbdistributed starts "python"
            "IPYTHONDIR": folder,
            "JUPYTER_PREFER_ENV_PATH": "1",
            # Which the course sets for its own ranks: so that no rank hampers another or waits for a name server.
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        }
        command = [python, "-m", "tests.bench.peers", way, str(found), "--calls", str(calls)]
        command += ["--ranks", *map(str, ranks)]
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True)
        started: list[psutil.Process] = []
        try:
            _, said = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            started = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            said = f"not done after {LONGEST:.0f} s"
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
            for left in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    left.kill()
        findings = dict(json.loads(line) for line in found.read_text().splitlines())
    if process.returncode:
        findings["failed"] = last_line(said)
    return findings


def both_ways(nbytes: int, repeats: int) -> list[list[float]]:
    """Rank function: seconds of all_reduces of this size, recorded and not, one of each by turns."""
    x = torch.full((nbytes // 4,), 0.0)
    times: list[list[float]] = [[], []]
    for k in range(2 * repeats):
        recorded = k % 2 == k // 2 % 2  # neither is always the first of its pair
        with _disable_current_modes():
            dist.barrier()
        with contextlib.nullcontext() if recorded else _disable_current_modes():
            start = time.perf_counter()
            dist.all_reduce(x)
            times[not recorded].append(time.perf_counter() - start)
    return times


def by_size(nbytes: int, quick: bool, world_size: int = RANKS) -> tuple[float, float]:
    """Seconds of an all_reduce, recorded and not: the median, of the slowest rank each time."""
    repeats = 5 if quick else int(max(3, min(200, 6e8 / nbytes)))
    results = run(both_ways, nbytes, repeats, world_size=world_size, timeout=LONGEST).results
    recorded, plain = (statistics.median(map(max, zip(*(rank[way] for rank in results)))) for way in (0, 1))
    return recorded, plain


# --- the page -----------------------------------------------------------------------------

PAGE = """\
# What a call costs, beside the peers

The same cell, 4 ranks, one `all_reduce` of 4 bytes, the results back in the caller, done by this course's `run` and by
the other ways to run `torch.distributed` code on one machine. All were measured in one run of `make bench`:
{machine}.{quick}

![First and later calls of each way; time by number of ranks; time by size, recorded and not](images/bench.png)

{calls}

- **first call**: torch is loaded already, nothing else. It begins with the import of the tool and ends with the first
  results, all cells run one after another.
- **later calls**: after a pause of {pause} s, which is less than any reader makes, and without one: the next ranks of
  `run` are then not ready yet. A hundred of each; of the slow ways, as many as fit into {budget:.0f} s, three at least.
- **private memory**: of the rank that has most, what it shares with no other process.
- **kept between calls**: processes besides the caller, all their memory, shared pages counted once, and
  what they use of a core while nothing runs.
- `run` (but for "no standby"), ipyparallel, nbdistributed and accelerate are called from a Jupyter kernel, `spawn` and
  torchrun from a script: `spawn` cannot ship a function that a notebook defines, torchrun starts files.{lost}

## What one gets for it
ipyparallel and nbdistributed keep their processes and the process group, by design: variables stay, and so does what went
wrong. The others start from nothing at each call. Measured: whether two calls ran in the same processes; and what
happens when rank 2 forgets to call `all_reduce` while the others wait in it. The caller is interrupted if nothing is
said for {patience:.0f} s and three usual calls, and then runs the good cell again.

{gifts}

## By number of ranks
Median of up to 10 later calls, as many as fit into 2 s; where a call takes longer, that one call.

{ranks}

## By size, recorded and not
Inside one run of {n} ranks: an `all_reduce` as always, and one with the recorder switched off, alternating. Median of the
slowest rank each time.

{sizes}

On a small call the recorder spends {overhead:.0f} µs ({alone:.0f} µs when the rank is alone and waits for nobody).

## Goals
{goals}
"""


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def time_in_words(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.{int(seconds < 0.01)}f} ms" if seconds < 1 else f"{seconds:.{int(seconds < 10)}f} s"


def bytes_in_words(nbytes: int) -> str:
    return f"{nbytes} B" if nbytes < KB else f"{nbytes // KB} KB" if nbytes < MB else f"{nbytes // MB} MB"


def page(found: dict[str, dict], sizes: dict[int, tuple[float, float]], alone: float, load: float, quick: bool) -> str:
    lost = {row.package: found[row.way]["first"][1] for row in ROWS if found[row.way].get("first", [0, 0])[1]}
    small = sizes[min(sizes)]
    return PAGE.format(
        machine=f"{machine()}. Load before the run: {load:.1f}",
        quick="\n\n**A quick run, to see that everything works. Its numbers mean nothing.**" if quick else "",
        pause=PAUSE,
        budget=BUDGET,
        patience=PATIENCE,
        n=RANKS,
        lost="".join(f"\n- {name}'s first call includes {k} that ended without results." for name, k in lost.items()),
        calls=table(
            [
                *("", "first call", "later, after a pause: median", "worst", "later, at once: median", "worst"),
                *("private memory a rank", "kept between calls"),
            ],
            [[row.title, *cost(found[row.way])] for row in ROWS],
        ),
        gifts=table(
            ["", "fresh processes", "recorded", "results come as", "a rank forgets the call", "the next call"],
            [[row.title, *gifts(row, found[row.way])] for row in ROWS],
        ),
        ranks=ranks_table(found),
        sizes=table(
            ["size", "recorded", "not recorded", "recording adds"],
            [
                [bytes_in_words(n), *map(time_in_words, pair), f"{pair[0] / pair[1] - 1:+.0%}"]
                for n, pair in sizes.items()
            ],
        ),
        overhead=(small[0] - small[1]) * 1e6,
        alone=alone * 1e6,
        goals=goals(found, sizes, max(small[0] - small[1], alone)),
    )


def machine() -> str:
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())[1]
    own = f"torch {torch.__version__}, Python {platform.python_version()}"
    peers = ", ".join(f"{name} {version}" for name, version in PEERS.items())
    memory = psutil.virtual_memory().total / 2**30
    return f"{datetime.date.today()}, {model}, {psutil.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}; {own}, {peers}"


def cost(found: dict) -> list[str]:
    if RESTED not in found:
        return [found.get("failed", "failed")] + [""] * 6
    count, memory, cpu = found.get("kept", (None, 0, 0))
    return [
        time_in_words(found["first"][0]),
        *(time_in_words(of(found[series])) for series in (RESTED, AT_ONCE) for of in (statistics.median, max)),
        f"{found['memory'] / MB:.0f} MiB" if "memory" in found else "",
        f"{count} process{'es' * (count > 1)}, {memory:.0f} MiB, {cpu:.1f}% of a core"
        if count
        else ""
        if count is None
        else "nothing",
    ]


def gifts(row: Row, found: dict) -> list[str]:
    if "after" not in found:
        return [found.get("failed", "failed")] + [""] * 4
    (seconds, said), (_, again) = found["hang"], found["after"]
    told = f"silence for {seconds:.0f} s" if said is None else f"after {time_in_words(seconds)}: {words(said)}"
    works = "silence" if again is None else f"fails: {words(again)}" if again else "works"
    return ["yes" if found["fresh"] else "no", row.recorded, row.back, told, works]


def words(said: str) -> str:
    """An exception's name and the telling line of its message; torch puts the telling one last."""
    name, _, message = said.partition(": ")
    lines = [line for line in message.splitlines() if line.strip()] or [""]
    line = re.sub(r"^(\w+Error: )?(\[\S*:\d+\] )?", "", lines[-1] if "Traceback" in message else lines[0])
    return f"{name}: {line if len(line) < 80 else line[:80].rsplit(' ', 1)[0] + ' ...'}"


def ranks_table(found: dict) -> str:
    ways = {"run": "`run`, ranks on standby", "run_alone": "`run`, no standby", "spawn": "`spawn`"}
    counts = sorted({n for way in ways for n in by_ranks(found[way])})
    rows = [
        [title, *(time_in_words(by_ranks(found[way])[n]) if n in by_ranks(found[way]) else "" for n in counts)]
        for way, title in ways.items()
    ]
    return table(["ranks", *map(str, counts)], rows)


def by_ranks(found: dict) -> dict[int, float]:
    points = {int(what.split()[1]): value for what, value in found.items() if what.startswith("ranks ")}
    if points and RESTED in found:
        points.setdefault(RANKS, statistics.median(found[RESTED]))
    return dict(sorted(points.items()))


def goals(found: dict, sizes: dict[int, tuple[float, float]], overhead: float) -> str:
    lines = []

    def goal(what: str, value: float, limit: float, form: str) -> None:
        met = "met" if value <= limit else "**missed**"
        lines.append(f"- {met}: {what}: {form.format(value)} (goal: at most {form.format(limit)})")

    for way, limit in (("ipyparallel_apply", 1 / 2), ("nbdistributed", 1 / 10), ("spawn", 1 / 200)):
        if RESTED in found["run"] and AT_ONCE in found[way]:
            title = next(r.title for r in ROWS if r.way == way)
            part = statistics.median(found["run"][RESTED]) / statistics.median(found[way][AT_ONCE])
            goal(
                f"a later call of `run`, after a pause, in percent of {title}, at once",
                100 * part,
                100 * limit,
                "{:.2g}",
            )
    for row in ROWS[:2]:
        for series in (RESTED, AT_ONCE):
            if series in found[row.way]:
                times = found[row.way][series]
                goal(
                    f"{row.title}, {series}: the worst, of the median",
                    max(times) / statistics.median(times),
                    3,
                    "{:.1f}",
                )
    if 64 * MB in sizes:
        recorded, plain = sizes[64 * MB]
        goal("what recording adds to an `all_reduce` of 64 MB", recorded / plain - 1, 0.2, "{:.0%}")
    goal("what recording adds to a small call", overhead * 1e3, 0.3, "{:.2f} ms")
    return "\n".join(lines)


# --- the plot -----------------------------------------------------------------------------


def plot(found: dict[str, dict], sizes: dict[int, tuple[float, float]], file: Path) -> None:
    rc = {"family": "DejaVu Sans", "size": 9, "color": canvas.INK}
    blue, orange, red = canvas.PALETTE[:3]
    figure = Figure(figsize=(8.6, 7.2), dpi=200, layout="constrained")
    FigureCanvasAgg(figure)
    top, ranks, size = (figure.add_subplot(2, 2, place) for place in ((1, 2), 3, 4))

    rows = [row for row in ROWS if RESTED in found[row.way]]
    for y, row in enumerate(rows):
        times, first = found[row.way][RESTED], found[row.way]["first"][0]
        median, worst = statistics.median(times), max(times)
        fill = blue if row.way.startswith("run") else orange
        top.plot([median, worst], [y, y], color=canvas.INK, lw=1, zorder=2)
        top.plot(worst, y, "|", color=canvas.INK, ms=9, zorder=2, label="" if y else "worst")
        top.plot(first, y, "D", mfc="white", mec=canvas.SOFT, ms=6, zorder=3, label="" if y else "first call")
        top.plot(
            median,
            y,
            "o",
            mfc=fill,
            mec=canvas.INK,
            ms=8,
            zorder=4,
            label="" if y else "median of later calls, after a pause",
        )
        top.annotate(
            time_in_words(median), (median, y), (0, 8), textcoords="offset points", ha="center", va="bottom", fontsize=8
        )
    top.set_yticks(range(len(rows)), [row.title.replace("`", "") for row in rows])
    top.set_ylim(len(rows) - 0.4, -0.9)
    top.set_xscale("log")
    top.set_title(f"One small all_reduce on {RANKS} ranks, results back in the caller", loc="left", fontsize=10)
    top.legend(loc="lower left", fontsize=8, frameon=False)

    for way, title, fill, mark in (
        ("run", "run, ranks on standby", blue, "o"),
        ("run_alone", "run, no standby", canvas.PALETTE[4], "^"),
        ("spawn", "spawn", orange, "s"),
    ):
        if points := by_ranks(found[way]):
            ranks.plot(*zip(*points.items()), f"{mark}-", color=fill, mec=canvas.INK, label=title)
    ranks.set_title("Time of a call, by number of ranks", loc="left", fontsize=10)
    ticks = sorted({n for way in found.values() for n in by_ranks(way)})
    ranks.set_xscale("log", base=2)
    ranks.set_xticks(ticks, map(str, ticks))

    for way, title, fill, mark in ((0, "recorded", blue, "o"), (1, "not recorded", red, "x")):
        size.plot(list(sizes), [pair[way] for pair in sizes.values()], f"{mark}-", color=fill, label=title)
    size.set_title("Time of one all_reduce, by size", loc="left", fontsize=10)
    size.set_xscale("log", base=2)
    size.set_xticks(list(sizes)[::2], [bytes_in_words(n) for n in list(sizes)[::2]], rotation=30)

    for axes in (ranks, size):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda seconds, _: time_in_words(seconds))
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, frameon=False)
    top.xaxis.set_major_formatter(lambda seconds, _: time_in_words(seconds))
    for axes in (top, ranks, size):
        axes.minorticks_off()
        axes.grid(color="#e3e6e9", zorder=0)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8, colors=rc["color"])
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few calls; the page goes to a temporary folder")
    quick = parser.parse_args().quick
    missing = environment()
    begin, load = time.perf_counter(), os.getloadavg()[0]
    if load > 0.5:
        print(f"The machine is busy already: its load is {load:.1f}. The times will be too.", flush=True)
    warm = (
        "import torch.distributed, torch.multiprocessing, IPython, jupyter_client"  # from the disk, for the first time
    )
    for python in (sys.executable, VENV / "bin" / "python"):
        subprocess.run([python, "-c", warm], cwd=ROOT, check=True)
    ranks = {"run": [2, 4, 8, 16, 32, 64], "run_alone": [2, 4, 8, 16, 32, 64], "spawn": [2, 8, 32]}
    found: dict[str, dict] = {}
    for row in ROWS:
        counts = [n for n in ranks.get(row.way, []) if not quick or n == 2]
        failed = missing.get(row.package)
        found[row.way] = {"failed": failed} if failed else measure(row.way, 5 if quick else 100, counts)
        print(f"{time.perf_counter() - begin:4.0f} s  {row.title:<34}", *cost(found[row.way])[:3], flush=True)
    steps = (4, MB) if quick else (4, 64, KB, 16 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 64 * MB, 256 * MB)
    sizes = {nbytes: by_size(nbytes, quick) for nbytes in steps}
    recorded, plain = by_size(4, quick, world_size=1)
    into = Path(tempfile.mkdtemp(prefix="bench-")) if quick else ROOT / "notebooks"
    (into / "images").mkdir(exist_ok=True)
    (into / "bench.md").write_text(page(found, sizes, recorded - plain, load, quick), encoding="utf-8")
    plot(found, sizes, into / "images" / "bench.png")
    print(f"{time.perf_counter() - begin:4.0f} s  wrote {into / 'bench.md'}")
    small = sizes[min(sizes)]
    print(goals(found, sizes, max(small[0] - small[1], recorded - plain)))


if __name__ == "__main__":
    main()
