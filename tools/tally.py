"""A tally of a class's predictions:   python -m tools.tally FILE...     (each a learner's `.progress.json`)

For each prediction, how many learners made it, and how many were right on the first try: a chapter's worst come first.
"""

import sys
from collections import defaultdict
from pathlib import Path

from collectives.format import align
from grader.safe_text import printable
from helpers.progress import predictions


def tally(files: list[Path]) -> str:
    """A table of the predictions in learners' files."""
    first: dict[str, list[bool]] = defaultdict(list)
    for file in files:
        for question, record in predictions(file).items():
            first[question].append(record["first"] == record["of"])

    def worst(question: str) -> tuple:
        return question.partition(",")[0], sum(first[question]) / len(first[question]), question

    rows = [[str(len(first[q])), str(sum(first[q])), printable(q)] for q in sorted(first, key=worst)]
    return align([["made", "right at first", "prediction"], *rows], right=(0, 1))


def main(names: list[str]) -> int:
    files = [Path(name) for name in names]
    if not files:
        print("Name the learners' files: python -m tools.tally progress/*.json", file=sys.stderr)
        return 2
    for file in files:
        if not predictions(file):
            print(f"{file}: no predictions in it, or it can't be read", file=sys.stderr)
    print(tally(files))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
