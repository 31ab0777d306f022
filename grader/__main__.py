"""The command line of both, learner and instructor: see `python -m helpers.grade --help`."""

import argparse
import sys
from pathlib import Path

from helpers.course import SOLUTIONS
from helpers.exercise.notebook import exercises
from helpers.progress import FILE

from .entries import NAMES

NO_EXERCISES = (
    f"There are no notebooks in {SOLUTIONS}, and the grader knows the exercises by those. In a copy of the course without its "
    "solutions, put the exercises there as they were handed out, before anybody works in them: cp exercises/*.ipynb solutions/"
)


def main(arguments: list[str] | None = None) -> int:
    """The exit status of learner.grade or instructor.score; 2 where there are no exercises to know submissions by."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.grade",
        description="Says what is right in your exercises, and what to think about next.",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="notebook", help="an exercise, or a folder of them")
    parser.add_argument(
        "--watch", action="store_true", help="grade whatever is saved there from now on, until Control-C"
    )
    scoring = parser.add_argument_group("for an instructor: scores for a class, from a sandbox")
    add = scoring.add_argument
    add("--score", action="store_true", help="score submissions: notebooks, or a folder per student")
    add("--out", type=Path, default=Path("report"), help="the report's folder; continues from what is in it")
    add("--seed", help="what the inputs are drawn from (default: a secret one, kept in the report)")
    add("--jobs", type=int, help="submissions at a time (default: one per core)")
    add("--list", action="store_true", help="only list who would be graded as whom, and what isn't recognized")
    add(
        "--names", default="", help=f"how submissions are named: {', '.join(NAMES)}, or a pattern with (?P<student>...)"
    )
    add("--exercises", default="", metavar="02,05", help="the exercises that count (default: what the class handed in)")
    add("--assignment", type=Path, metavar="FILE", help="exercises, points, due date, lateness, see INSTRUCTOR.md")
    add("--one-student", default="", metavar="NAME", help="everything is one student's, as in Gradescope's container")
    add("--roster", type=Path, metavar="CSV", help="the class list: who is missing, and what Canvas and Moodle import")
    add("--minutes", type=float, default=5.0, help="that the answers of one file may take (default: 5)")
    add("--fail-under", type=float, default=0.0, metavar="PERCENT", help="end with 1 if anybody has less of the points")
    add("--gradescope", action="store_true", help="also write Gradescope's results.json for each student")
    add("--no-pictures", action="store_true", help="feedback without pictures of the runs: faster")
    add("--no-sandbox", action="store_true", help="run submitted code with all rights of this account")
    parser.add_argument("--progress", type=Path, default=FILE, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not exercises():
        print(NO_EXERCISES, file=sys.stderr)
        return 2
    if options.score:
        from .instructor import score

        return score(options)
    from .learner import grade

    return grade(options)


if __name__ == "__main__":
    sys.exit(main())
