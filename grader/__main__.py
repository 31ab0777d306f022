"""The command line of both, learner and instructor: see `python -m helpers.grade --help`."""

import argparse
import os
import sys
from pathlib import Path

from helpers.course import OWN_FOLDER, SOLUTIONS
from helpers.exercise.notebook import checks_of, exercises, is_answer, is_check, pristine
from helpers.progress import FILE

from .entries import NAMES

NO_EXERCISES = (
    f"There are no notebooks in {SOLUTIONS}, and the grader knows the exercises by those. In a copy of the course without its "
    "solutions, put the exercises there as they were handed out, before anybody works in them: cp exercises/*.ipynb solutions/"
)


def main(arguments: list[str] | None = None) -> int:
    """The exit status of learner.grade or instructor.score; 2 where there are no exercises to know submissions by."""
    what = "Says what is right in your exercises, and what to think about next."
    parser = argparse.ArgumentParser(prog="python -m helpers.grade", description=what)
    parser.add_argument("--tasks", type=Path, metavar="FOLDER", help="exercises of your own besides the course's")
    parser.add_argument("paths", nargs="+", type=Path, metavar="notebook", help="an exercise, or a folder of them")
    parser.add_argument("--watch", action="store_true", help="grade whatever is saved from now on, until Control-C")
    scoring = parser.add_argument_group("for an instructor: scores for a class, from a sandbox")
    add = scoring.add_argument
    add("--score", action="store_true", help="score submissions: notebooks, or a folder per student")
    add("--out", type=Path, default=Path("report"), help="the report's folder; continues from what is in it")
    add("--seed", help="what the inputs are drawn from (default: a secret one, kept in the report)")
    add("--jobs", type=int, help="submissions at a time (default: one per core)")
    add("--list", action="store_true", help="only list who would be graded as whom, and what isn't recognized")
    add("--names", help=f"how submissions are named: {', '.join(NAMES)}, or a pattern with (?P<student>...)")
    add("--exercises", metavar="02,05", help="the exercises that count, or all that the class handed in: all")
    add("--assignment", type=os.path.abspath, metavar="FILE", help="exercises, points, lateness: see INSTRUCTOR.md")
    add("--one-student", default="", metavar="NAME", help="everything is one student's, as in Gradescope's container")
    add(
        "--roster", type=os.path.abspath, action="append", metavar="CSV",
        help="the class list: who is missing, and what Canvas and Moodle import; again: who is in which group",
    )  # fmt: skip
    add("--minutes", type=float, help="that the answers of one file may take (default: 5)")
    add("--fail-under", type=float, default=0.0, metavar="PERCENT", help="end with 1 if anybody has less of the points")
    add("--gradescope", action="store_true", help="also write Gradescope's results.json for each student")
    add("--no-pictures", action="store_true", help="feedback without pictures of the runs: faster")
    add("--no-sandbox", action="store_true", help="run submitted code with all rights of this account")
    parser.add_argument("--progress", type=Path, default=FILE, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    course = set(exercises())
    if options.tasks:
        os.environ[OWN_FOLDER] = str(options.tasks.resolve())  # for all processes of the grader
        if flaw := _flaw(options.tasks, course):
            print(flaw, file=sys.stderr)
            return 2
    if not exercises():
        print(NO_EXERCISES, file=sys.stderr)
        return 2
    if options.score and options.watch:
        parser.error("--watch is for a learner. Call --score again: it grades what has come or changed since")
    if options.score:
        from .instructor import score as command
    else:
        from .learner import grade as command
    return command(options)


def _flaw(folder: Path, course: set[str]) -> str:
    """The reason why a folder's exercises can't be used besides the course's; "" if they can."""
    names = sorted(path.stem for path in folder.glob("*.ipynb"))
    if not names:
        return f"There are no notebooks in {folder}. An exercise is a solved notebook and a Python file of its name."
    numbers, ids = {name.partition("_")[0] for name in course}, {}
    for name in [*course, *names]:
        own = name in names
        if own and not (folder / f"{name}.py").is_file():
            return f"{folder / name}.py is missing: it defines the task of {name}.ipynb."
        if own and name.partition("_")[0] in numbers:
            return f"{folder / name}.ipynb has the number of an exercise of the course. Give it a different one."
        try:
            checks_of(name)
        except ValueError as error:
            return f"{error}."
        for cell in (cell for cell in pristine(name).cells if is_answer(cell) or is_check(cell)):
            if ids.setdefault(cell.id, name) != name:
                return f"{name} and {ids[cell.id]} have a cell {cell.id}. Cells are known by their ids: change one of them."
    return ""


if __name__ == "__main__":
    sys.exit(main())
