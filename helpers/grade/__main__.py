"""The command line of both, learner and instructor: see `python -m helpers.grade --help`."""

import argparse
import sys
from pathlib import Path

from ..progress import FILE


def main(arguments: list[str] | None = None) -> int:
    """The exit status of learner.grade or instructor.score."""
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
        from .instructor import score

        return score(options)
    from .learner import grade

    return grade(options)


if __name__ == "__main__":
    sys.exit(main())
