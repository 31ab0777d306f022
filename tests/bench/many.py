"""A large class, and a queue before a deadline:   python -m tests.bench.many [--files 2000] [--answered 20] [--watch]

Says how long the graded files took, and how much memory the grader and its workers had meanwhile.  Of the submissions
so many are answered rightly, spread evenly; the others are untouched, which nothing is run for.  With --mixed all of them
are answered: all exercises in turn, by the answers of tests/corpus, one in ten wrong and one in 200 without end.  With
--watch all files are saved at once into a folder that is watched, and each waits for its page.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from helpers.exercise.notebook import is_answer, pristine, without_solution
from helpers.exercise.tasks import EXERCISES
from tests.corpus import answers, puzzles
from tests.corpus.cells import MEAN, RIGHT, cell_of
from tools import release

RIGHTS, WRONGS = answers.RIGHT | puzzles.RIGHT, answers.WRONG | puzzles.WRONG
WRONG_ONE_IN, ENDLESS_ONE_IN = 10, 200
LINES = 20  # of what is said meanwhile


def submissions(count: int, answered: int, folder: Path) -> None:
    exercise = without_solution(pristine(MEAN))
    untouched = release.text(exercise)
    for cell in filter(is_answer, exercise.cells):
        cell.source = RIGHT
    right = release.text(exercise)
    for k in range(count):
        text = right if k * answered // count != (k + 1) * answered // count else untouched
        (folder / f"student{k:05}.ipynb").write_text(text, encoding="utf-8")


def mixed(count: int, folder: Path) -> None:
    """Files of all exercises in turn, each with answers to all of its tasks."""
    names = sorted(EXERCISES)
    for k in range(count):
        exercise, turn = names[k % len(names)], k // len(names)
        notebook = without_solution(pristine(exercise))
        for task in EXERCISES[exercise]:
            right = RIGHTS[task.name][turn % len(RIGHTS[task.name])]
            wrong, _ = WRONGS[task.name][turn % len(WRONGS[task.name])]
            source = cell_of(task.name, wrong if k % WRONG_ONE_IN == 0 else right)
            if k % ENDLESS_ONE_IN == 1:
                source = f"def {task.name}(*arguments):\n    while True: pass"
            (cell,) = (cell for cell in notebook.cells if is_answer(cell) and f"def {task.name}(" in cell.source)
            cell.source = source
        (folder / f"student{k:05}.ipynb").write_text(release.text(notebook), encoding="utf-8")


def megabytes(process: psutil.Process) -> tuple[float, float]:
    """Of memory: the grader's, and that of its workers together, without their sandboxes."""
    workers = [child for child in process.children() if "grader.worker" in child.cmdline()]
    return process.memory_info().rss / 1e6, sum(worker.memory_info().rss for worker in workers) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--answered", type=int, default=20)
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    answered = options.files if options.mixed else options.answered

    def hand_in() -> None:
        mixed(options.files, folder) if options.mixed else submissions(options.files, answered, folder)

    with tempfile.TemporaryDirectory() as place:
        folder, out = Path(place, "submissions"), Path(place, "report")
        folder.mkdir()
        if not options.watch:
            hand_in()
        how = ["--score", "--no-pictures", "--jobs", str(options.jobs), "--out", str(out)]
        command = [sys.executable, "-u", "-m", "helpers.grade", *how, str(folder)]
        began = time.perf_counter()
        with subprocess.Popen(command + ["--watch"] * options.watch, stdout=subprocess.PIPE, text=True) as process:
            if options.watch:
                hand_in()
                began = time.perf_counter()  # the last of them is saved
            waits, grader = [], psutil.Process(process.pid)
            for line in process.stdout:
                done, slash, rest = line.partition("/")
                if not slash or not done.isdigit() or not int(done):
                    continue
                waits.append(time.perf_counter() - began)
                if int(done) % max(1, options.files // LINES) == 0:
                    ours, workers = megabytes(grader)
                    memory = f"grader {ours:4.0f} MB, workers {workers:4.0f} MB"
                    print(f"{waits[-1]:7.1f} s  {memory}  load {os.getloadavg()[0]:4.1f}  {line.strip()}", flush=True)
                if int(done) == options.files and options.watch:
                    process.send_signal(signal.SIGINT)
                    break
    waits.sort()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    half, most = waits[len(waits) // 2], waits[len(waits) * 9 // 10]
    print(f"{len(waits)} files, {answered} answered: half of them after {half:.1f} s, nine tenths after {most:.1f} s, "
          f"all after {waits[-1]:.1f} s; {used.ru_utime + used.ru_stime:.0f} s of processor time, {os.cpu_count()} cores, "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
