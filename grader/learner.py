"""The learner's command:   python -m helpers.grade [--watch] notebook-or-folder ...

It is the instructor's grader without its walls: the same cases, points and reasons, from the learner's own account.
"""

import argparse
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count, dropwhile
from pathlib import Path

from helpers.exercise.notebook import checks_of, pristine
from helpers.progress import remember

from .gradebook import CheckScore, Grading
from .safe_text import bar
from .submission import UnusableSubmission, parse
from .worker_pool import NoWorker, WorkerPool, WorkItem

NOT_BEGUN = "not begun"
LOOK_SECONDS = 0.3  # between two looks whether a notebook was saved
SETTINGS = {"seed": "", "pictures": False, "minutes": 5.0}  # the seed of the notebooks' own checks


def grade(options: argparse.Namespace) -> int:
    """Grades exercises. 0: all is graded, whatever came out. 2: a file cannot be graded. 130: stopped."""
    try:
        with closing(WorkerPool(None, walls=False)) as workers:
            seen = _saved_times(options.paths)  # before grading: a save meanwhile must not be missed
            notebooks = _notebooks(options.paths)
            if not notebooks:
                print(f"There are no notebooks in {', '.join(map(str, options.paths))}.", file=sys.stderr)
            gradings = sorted(_graded(notebooks, options.progress, workers), key=lambda grading: grading.exercise)
            for grading in gradings:
                if len(notebooks) == 1 or not grading.solved and not grading.untouched:
                    print(_report(grading), end="\n\n", flush=True)
            if len(notebooks) > 1 and gradings:
                print(_table(gradings))
            if options.watch:
                _watch(options.paths, options.progress, seen, workers)
            return 0 if len(gradings) == len(notebooks) > 0 else 2
    except NoWorker as why:
        print(why, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print()
        return 130


def _notebooks(paths: list[Path]) -> list[Path]:
    found = (file for path in paths for file in (sorted(path.glob("*.ipynb")) if path.is_dir() else [path]))
    return list({file.resolve(): file for file in found}.values())


def _graded(paths: list[Path], progress: Path, workers: WorkerPool) -> Iterator[Grading]:
    """The gradings of files that can be graded, remembered; the reasons why others can't be are printed."""
    untouched: list[Grading] = []

    def work() -> Iterator[WorkItem]:
        for path in paths:
            try:
                content = path.read_bytes()
                submitted = parse(path, content)
                if submitted.untouched:  # no worker has to start
                    cells = checks_of(submitted.exercise)
                    checks = tuple(CheckScore(cell.name, cell.function, 0, cell.points, NOT_BEGUN) for cell in cells)
                    untouched.append(Grading(submitted.exercise, checks, untouched=True))
                else:
                    yield WorkItem(0, str(path), content, SETTINGS)
            except UnusableSubmission as problem:
                print(f"{problem}\n", file=sys.stderr)
            except OSError as error:
                print(f"{path} cannot be read: {error.strerror}.\n", file=sys.stderr)

    with closing(workers.scored(work())) as results:
        bar("", 0, len(paths))
        for (item, grading), done in zip(results, count(1)):
            bar(item.file, done, len(paths))
            if not grading:
                print(f"{item.file} could not be graded: the grader itself failed over it.\n", file=sys.stderr)
                continue
            try:
                remember(grading.exercise, grading.points, grading.of, progress)
            except OSError as error:
                print(f"These points are not remembered: {error}.\n", file=sys.stderr)
            yield grading
    yield from untouched
    bar("", 0, 0)


def _table(gradings: list[Grading]) -> str:
    """The points of several exercises, one a line, their sum, and which is next: the first that is begun and not solved, or that is not begun."""
    wide = max(len(grading.exercise) for grading in gradings)
    lines = []
    for one in gradings:
        mark = "·" if one.untouched else "✓" if one.solved else "✗"
        points = f"{one.points:g} of {one.of:g}"
        lines.append(f"{mark} {one.exercise:<{wide}}  {points:>8}  {NOT_BEGUN * one.untouched}".rstrip())
    total, of = sum(one.points for one in gradings), sum(one.of for one in gradings)
    lines.append(f"  {'all':<{wide}}  {total:g} of {of:g} points")
    following = min((item for item in gradings if not item.solved), key=lambda item: item.untouched, default=None)
    return "\n".join([*lines, f"Next: {following.exercise}." if following else "All solved."])


def _report(grading: Grading) -> str:
    """The grading of one exercise in words."""
    if grading.untouched:
        return f"{grading.exercise}: {NOT_BEGUN}. Write into the answer cell, save, and grade again."
    state = "solved" if grading.solved else "not solved yet"
    lines = [f"{grading.exercise}: {grading.points:g} of {grading.of:g} points, {state}"]
    for check in grading.checks:
        lines.append(f"  {'✗' if check.reason else '✓'} {check.points:g} of {check.of:g}   {check.what}")
    failed = [check for check in grading.checks if check.reason]
    if failed:
        if len(failed) > 1:
            lines += ["", "  The first that fails says why; the others may follow from it:"]
        lines += ["", textwrap.indent(failed[0].reason, "    ")]
        below = dropwhile(lambda cell: cell.id != failed[0].name, pristine(grading.exercise).cells)
        if hints := next((number for cell in below if (number := cell.source.count("<details>"))), 0):
            which = "hint" if hints == 1 else "next of the hints"
            lines += ["", f"  If that does not help: open the {which} below the check in the notebook."]
    return "\n".join(lines)


def _watch(paths: list[Path], progress: Path, seen: dict[Path, tuple[int, int]], workers: WorkerPool) -> None:
    """Grades a file whenever it has been saved.  seen: as _saved_times found them before the last grading."""
    print("Watching: save a notebook to have it graded again. Control-C ends this.", flush=True)
    while True:
        now = _saved_times(paths)
        for grading in _graded([path for path in now if now[path] != seen.get(path)], progress, workers):
            print(_report(grading), end="\n\n", flush=True)
        seen = now
        time.sleep(LOOK_SECONDS)


def _saved_times(paths: list[Path]) -> dict[Path, tuple[int, int]]:
    """When each notebook was last saved, and its size."""
    times = {}
    for notebook in _notebooks(paths):
        with suppress(OSError):  # being replaced this very moment
            status = notebook.stat()
            times[notebook] = (status.st_mtime_ns, status.st_size)
    return times
