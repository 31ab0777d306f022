"""The learner's command:   python -m helpers.grade [--watch] notebook-or-folder ..."""

import argparse
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

from helpers.progress import remember

from . import submission
from .execution import Feedback, Kernel, execute, untried
from .safe_text import bar
from .submission import UnusableSubmission

NOT_BEGUN = "not begun"
LOOK_SECONDS = 0.3  # between two looks whether a notebook was saved


def grade(options: argparse.Namespace) -> int:
    """Grades exercises. 0: all is graded, whatever came out. 2: a file cannot be graded. 130: stopped."""
    try:
        seen = _saved_times(options.paths)  # before grading: a save meanwhile must not be missed
        notebooks = _notebooks(options.paths)
        if not notebooks:
            print(f"There are no notebooks in {', '.join(map(str, options.paths))}.", file=sys.stderr)
        status = _grade_all(notebooks, options.progress)
        if options.watch:
            _watch(options.paths, options.progress, seen)
        return status
    except KeyboardInterrupt:
        print()
        return 130


def _notebooks(paths: list[Path]) -> list[Path]:
    return [found for path in paths for found in (sorted(path.glob("*.ipynb")) if path.is_dir() else [path])]


def _grade_all(paths: list[Path], progress: Path) -> int:
    """Grade files, report each one's faults, and end with a table of all. Returns 0 if all could be graded, else 2."""
    feedbacks = []
    for path in paths:
        if feedback := _grade(path, progress):
            if len(paths) == 1 or not feedback.solved and feedback.reason != NOT_BEGUN:
                print(_report(feedback), end="\n\n", flush=True)
            feedbacks.append(feedback)
    if len(paths) > 1 and feedbacks:
        print(_table(feedbacks))
    return 0 if len(feedbacks) == len(paths) > 0 else 2


def _grade(path: Path, progress: Path, kernel: Kernel | None = None) -> Feedback | None:
    """The feedback to one file; None, and a printed reason, if it cannot be graded.  kernel: one that is up already."""
    try:
        submitted = submission.read(path)
    except UnusableSubmission as problem:
        print(f"{problem}\n", file=sys.stderr)
        return None
    if submitted.untouched:
        return untried(submitted, NOT_BEGUN)
    try:
        feedback = execute(submitted, lambda done, of: bar(submitted.exercise, done, of), kernel)
    except OSError as error:  # no process, no memory, no space in the temporary folder
        print(f"{submitted.exercise} could not be graded: {error}.\n", file=sys.stderr)
        return None
    bar("", 0, 0)
    try:
        remember(feedback.exercise, feedback.points, feedback.of, progress)
    except OSError as error:
        print(f"These points are not remembered: {error}.\n", file=sys.stderr)
    return feedback


def _table(feedbacks: list[Feedback]) -> str:
    """The points of several exercises, one a line, their sum, and the first that is not solved."""
    wide = max(len(feedback.exercise) for feedback in feedbacks)
    lines = []
    for one in feedbacks:
        begun, points = one.reason != NOT_BEGUN, f"{one.points:g} of {one.of:g}"
        mark = "✓" if one.solved else "✗" if begun else "·"
        lines.append(f"{mark} {one.exercise:<{wide}}  {points:>8}  {'' if begun else NOT_BEGUN}".rstrip())
    total, of = sum(one.points for one in feedbacks), sum(one.of for one in feedbacks)
    lines.append(f"  {'all':<{wide}}  {total:g} of {of:g} points")
    following = next((feedback.exercise for feedback in feedbacks if not feedback.solved), None)
    return "\n".join([*lines, f"Next: {following}." if following else "All solved."])


def _report(feedback: Feedback) -> str:
    """The feedback to one exercise in words."""
    if feedback.reason == NOT_BEGUN:
        return f"{feedback.exercise}: {NOT_BEGUN}. Write into the answer cell, save, and grade again."
    state = "solved" if feedback.solved else "not solved yet"
    lines = [f"{feedback.exercise}: {feedback.points:g} of {feedback.of:g} points, {state}"]
    for check in feedback.checks:
        lines.append(f"  {'✗' if check.reason else '✓'} {check.points:g} of {check.of:g}   {check.what}")
    if feedback.reason:
        if sum(bool(check.reason) for check in feedback.checks) > 1:
            lines += ["", "  The first that fails says why; the others may follow from it:"]
        lines += ["", textwrap.indent(feedback.reason, "    ")]
    if feedback.hints:
        which = "hint" if feedback.hints == 1 else "next of the hints"
        lines += ["", f"  If that does not help: open the {which} below the check in the notebook."]
    return "\n".join(lines)


def _watch(paths: list[Path], progress: Path, seen: dict[Path, tuple[int, int]]) -> None:
    """Grades a file whenever it has been saved.  seen: as _saved found them before the last grading.

    The kernel of the next grading is up before it is needed: torch takes longer to load than most answers to check.
    """
    kernel = Kernel()
    try:
        print("Watching: save a notebook to have it graded again. Control-C ends this.", flush=True)
        while True:
            now = _saved_times(paths)
            for path in (path for path in now if now[path] != seen.get(path)):
                if feedback := _grade(path, progress, kernel):
                    print(_report(feedback), end="\n\n", flush=True)
                kernel = kernel if kernel.is_up else Kernel()
            seen = now
            time.sleep(LOOK_SECONDS)
    finally:
        kernel.close()


def _saved_times(paths: list[Path]) -> dict[Path, tuple[int, int]]:
    """When each notebook was last saved, and its size."""
    times = {}
    for notebook in _notebooks(paths):
        with suppress(OSError):  # being replaced this very moment
            status = notebook.stat()
            times[notebook] = (status.st_mtime_ns, status.st_size)
    return times
