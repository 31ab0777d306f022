"""A large class, and a queue before a deadline:   python -m tests.bench.many [--files 2000] [--answered 20] [--watch]

Says how long the graded files took, and how much memory the grader and its workers had meanwhile.  Of the submissions
so many are answered rightly, spread evenly; the others are untouched, which nothing is run for.  With --watch all files
are saved at once into a folder that is watched, and each waits for its page.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from helpers.exercise.notebook import is_answer, pristine, released
from helpers.tools import release
from tests.corpus.cells import MEAN, RIGHT


def submissions(count: int, answered: int, folder: Path) -> None:
    exercise = released(pristine(MEAN))
    untouched = release.text(exercise)
    for cell in filter(is_answer, exercise.cells):
        cell.source = RIGHT
    right = release.text(exercise)
    for k in range(count):
        text = right if k * answered // count != (k + 1) * answered // count else untouched
        (folder / f"student{k:05}.ipynb").write_text(text, encoding="utf-8")


def megabytes(process: psutil.Process) -> tuple[float, float]:
    """Of memory: the grader's, and that of its workers together, without their sandboxes."""
    workers = [child for child in process.children() if "helpers.grade.worker" in child.cmdline()]
    return process.memory_info().rss / 1e6, sum(worker.memory_info().rss for worker in workers) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--answered", type=int, default=20)
    parser.add_argument("--watch", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder, out = Path(place, "submissions"), Path(place, "report")
        folder.mkdir()
        if not options.watch:
            submissions(options.files, options.answered, folder)
        command = [
            sys.executable,
            "-u",
            "-m",
            "helpers.grade",
            "--score",
            "--no-pictures",
            "--out",
            str(out),
            str(folder),
        ]
        began = time.perf_counter()
        with subprocess.Popen(command + ["--watch"] * options.watch, stdout=subprocess.PIPE, text=True) as process:
            if options.watch:
                submissions(options.files, options.answered, folder)
                began = time.perf_counter()  # the last of them is saved
            waits, grader = [], psutil.Process(process.pid)
            for line in process.stdout:
                done, slash, rest = line.partition("/")
                if not slash or not done.isdigit() or not int(done):
                    continue
                waits.append(time.perf_counter() - began)
                if int(done) % max(1, options.files // 8) == 0:
                    ours, workers = megabytes(grader)
                    print(
                        f"{waits[-1]:7.1f} s  grader {ours:4.0f} MB, workers {workers:4.0f} MB  {line.strip()}",
                        flush=True,
                    )
                if int(done) == options.files and options.watch:
                    process.send_signal(signal.SIGINT)
                    break
    waits.sort()
    half, most = waits[len(waits) // 2], waits[len(waits) * 9 // 10]
    print(f"{len(waits)} files, {options.answered} answered: half of them after {half:.1f} s, nine tenths after {most:.1f} s, "
          f"all after {waits[-1]:.1f} s; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
