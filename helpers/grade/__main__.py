"""The command line.

For a learner      python -m helpers.grade [--watch] notebook-or-folder ...
For an instructor  python -m helpers.grade --score --out report/ submissions/
"""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
from pathlib import Path

from ..progress import FILE, remember
from . import learner, submission
from .learner import Feedback, Kernel
from .submission import Unusable
from .terminal import bar

NOT_BEGUN = "not begun"


def main(arguments: list[str] | None = None) -> int:
    """0: all is graded, whatever came out. 2: a file cannot be graded."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.grade",
        description="Says what is right in your exercises, and what to think about next.",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="notebook", help="an exercise, or a folder of them")
    parser.add_argument(
        "--watch", action="store_true", help="grade again whenever one of them is saved, until Control-C"
    )
    scoring = parser.add_argument_group("for an instructor: scores for a class, from a sandbox")
    scoring.add_argument("--score", action="store_true", help="score submissions: notebooks, or a folder per student")
    scoring.add_argument(
        "--out", type=Path, default=Path("report"), help="the report's folder; goes on with what is in it"
    )
    scoring.add_argument("--seed", help="what the inputs are drawn from (default: a secret one, kept in the report)")
    scoring.add_argument("--jobs", type=int, help="submissions at a time (default: one a core)")
    scoring.add_argument(
        "--gradescope", action="store_true", help="also write Gradescope's results.json for each student"
    )
    scoring.add_argument("--no-pictures", action="store_true", help="feedback without pictures of the runs: faster")
    scoring.add_argument("--no-sandbox", action="store_true", help="run submitted code with all rights of this account")
    parser.add_argument("--progress", type=Path, default=FILE, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.score:
        from . import instructor  # and with it torch: a learner is not made to wait for that

        return instructor.score(options)
    try:
        seen = _saved(options.paths)  # before grading: a save meanwhile must not be missed
        status = grade_all(_notebooks(options.paths), options.progress)
        if options.watch:
            watch(options.paths, options.progress, seen)
        return status
    except KeyboardInterrupt:
        print()
        return 130


def _notebooks(paths: list[Path]) -> list[Path]:
    found = [nb for path in paths for nb in (sorted(path.glob("*.ipynb")) if path.is_dir() else [path])]
    if not found:
        print(f"There are no notebooks in {', '.join(map(str, paths))}.", file=sys.stderr)
    return found


def grade(path: Path, progress: Path, kernel: Kernel | None = None) -> Feedback | None:
    """Grades one file and says what came out; None if it cannot be graded.  kernel: one that is up already."""
    try:
        submitted = submission.read(path)
    except Unusable as problem:
        print(f"{problem}\n", file=sys.stderr)
        return None
    if submitted.untouched:
        return learner.untried(submitted, NOT_BEGUN)
    try:
        given = learner.give(submitted, lambda done, of: bar(submitted.exercise, done, of), kernel)
    except OSError as error:  # no process, no memory, no space in the temporary folder
        print(f"{submitted.exercise} could not be graded: {error}.\n", file=sys.stderr)
        return None
    bar("", 0, 0)
    try:
        remember(given.exercise, given.points, given.of, progress)
    except OSError as error:
        print(f"These points are not remembered: {error}.\n", file=sys.stderr)
    return given


def grade_all(paths: list[Path], progress: Path) -> int:
    """Grades files, says what is wrong in each, and ends with a table of all. 0: all could be graded. 2: not all."""
    found = []
    for path in paths:
        if given := grade(path, progress):
            if len(paths) == 1 or not given.solved and given.reason != NOT_BEGUN:
                print(report(given), end="\n\n", flush=True)
            found.append(given)
    if len(paths) > 1 and found:
        print(table(found))
    return 0 if len(found) == len(paths) > 0 else 2


def table(found: list[Feedback]) -> str:
    """The points of several exercises, one a line, their sum, and the first that is not solved."""
    wide = max(len(given.exercise) for given in found)
    rows = [
        (_mark(given), given.exercise, f"{given.points:g} of {given.of:g}", NOT_BEGUN * (given.reason == NOT_BEGUN))
        for given in found
    ]
    total, of = (sum(getattr(given, what) for given in found) for what in ("points", "of"))
    rows.append((" ", "all", f"{total:g} of {of:g} points", ""))
    lines = [f"{mark} {name:<{wide}}  {points:>8}  {note}".rstrip() for mark, name, points, note in rows]
    left = next((given.exercise for given in found if not given.solved), None)
    return "\n".join([*lines, f"Next: {left}." if left else "All solved."])


def _mark(given: Feedback) -> str:
    return "✓" if given.solved else "·" if given.reason == NOT_BEGUN else "✗"


def report(given: Feedback) -> str:
    """In words."""
    if given.reason == NOT_BEGUN:
        return f"{given.exercise}: {NOT_BEGUN}. Write into the answer cell, save, and grade again."
    state = "solved" if given.solved else "not solved yet"
    lines = [f"{given.exercise}: {given.points:g} of {given.of:g} points, {state}"]
    for check in given.checks:
        lines.append(
            f"  {'✓' if check.passed else '✗'} {check.points if check.passed else 0:g} of {check.points:g}   {check.what}"
        )
    if given.reason:
        if sum(not check.passed for check in given.checks) > 1:
            lines += ["", "  The first that fails says why; the others may follow from it:"]
        lines += ["", textwrap.indent(given.reason, "    ")]
    if given.hints:
        which = "hint" if given.hints == 1 else "next of the hints"
        lines += ["", f"  If that does not help: open the {which} below the check in the notebook."]
    return "\n".join(lines)


def watch(paths: list[Path], progress: Path, seen: dict[Path, tuple[int, int]]) -> None:
    """Grades a file whenever it has been saved.  seen: as _saved found them before the last grading.

    The kernel of the next grading is up before it is needed: torch takes longer to load than most answers to check.
    """
    kernel = Kernel()
    try:
        print("Watching: save a notebook to have it graded again. Control-C ends this.", flush=True)
        while True:
            now = _saved(paths)
            for path in now:
                if now[path] != seen.get(path):
                    if given := grade(path, progress, kernel):
                        print(report(given), end="\n\n", flush=True)
                    kernel = kernel if kernel.is_up else Kernel()
            seen = now
            time.sleep(0.3)
    finally:
        kernel.close()


def _saved(paths: list[Path]) -> dict[Path, tuple[int, int]]:
    """When each notebook was last saved, and its size."""
    times = {}
    for path in paths:
        for notebook in sorted(path.glob("*.ipynb")) if path.is_dir() else [path]:
            try:
                status = notebook.stat()
            except OSError:
                continue  # being replaced this very moment
            times[notebook] = (status.st_mtime_ns, status.st_size)
    return times


if __name__ == "__main__":
    sys.exit(main())
