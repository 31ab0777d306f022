"""How fast a class is scored, beside nbgrader's autograde:   python -m tests.bench.grading [--students 60]

The same ring all-reduce submissions for both: of every ten, six are right, two wrong, one
deadlocks and one never ends.  nbgrader runs them one after the other in the account's own
kernel; this course's grader in sandboxes, on as many cores as there are (--jobs).
nbgrader is installed into an environment of its own, in a temporary folder unless --nbgrader
names one to keep.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import os
import tempfile
import time
from pathlib import Path

from grader.__main__ import main as grade
from helpers.exercise.notebook import is_answer, pristine, without_solution
from tests.bench.beside_nbgrader import Course, environment
from tests.corpus import answers
from tests.corpus.cells import cell_of
from tools import release

EXERCISE = "08_ring_all_reduce"
UNCHUNKED = """def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    out, total = x.clone(), x.clone()
    for _ in range(n - 1):
        into = torch.empty_like(x)
        sending = dist.isend(out, (rank + 1) % n)
        dist.recv(into, (rank - 1) % n)
        sending.wait()
        total += into
        out = into
    x.copy_(total)"""
NOT_IN_PLACE = UNCHUNKED.replace("x.copy_(total)", "x = total")
ALL_SEND_FIRST = """def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    for _ in range(n - 1):
        dist.send(x, (rank + 1) % n)
        dist.recv(x, (rank - 1) % n)"""
NO_END = "def ring_all_reduce(x):\n    while True:\n        pass"


def notebook(k: int) -> str:
    """The k-th student's file."""
    right = cell_of("ring_all_reduce", answers.RIGHT["ring_all_reduce"][0])  # the course's own would not be run
    exercise = without_solution(pristine(EXERCISE))
    for cell in exercise.cells:
        if is_answer(cell):
            cell.source = ([right] * 6 + [UNCHUNKED, NOT_IN_PLACE, ALL_SEND_FIRST, NO_END])[k % 10]
    return release.text(exercise)


def ours(students: int, jobs: int, folder: Path) -> tuple[float, dict[str, float]]:
    submissions = folder / "submissions"
    submissions.mkdir()
    for k in range(students):
        (submissions / f"student{k:02}.ipynb").write_text(notebook(k), encoding="utf-8")
    began, out = time.perf_counter(), folder / "report"
    with contextlib.redirect_stdout(io.StringIO()):
        assert grade(["--score", "--jobs", str(jobs), "--out", str(out), str(submissions)]) == 0
    seconds = time.perf_counter() - began
    rows = (out / "scores.csv").read_text().splitlines()[1:]
    scores = {name: float(points) for name, points, *_ in csv.reader(rows)}
    assert sum(map(bool, scores.values())) >= 0.6 * students, "the right ones have no points"
    return seconds, scores


def theirs(students: int, folder: Path, where: Path) -> tuple[float, dict[str, float]]:
    course = Course(folder / "course", environment(where), EXERCISE)
    course.generate()
    for k in range(students):
        course.submit(f"student{k:02}", notebook(k))
    began = time.perf_counter()
    scores = course.autograde()
    return time.perf_counter() - began, {student: points for student, (points, _) in scores.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--students", type=int, default=60)
    parser.add_argument("--sample", type=int, help="so many of them for nbgrader, which takes its time (default: all)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--nbgrader", type=Path, help="a folder for nbgrader's environment, kept")
    options = parser.parse_args()
    sample = options.sample or options.students
    with tempfile.TemporaryDirectory() as folder:
        mine, scores = ours(options.students, options.jobs, Path(folder))
        other, sampled = theirs(sample, Path(folder), options.nbgrader or Path(folder) / "environment")
    print(f"ring submissions, one in five hanging; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'':22}{'submissions':>12}{'seconds':>9}{'for each':>10}{'isolated':>10}")
    each = []
    for name, count, seconds, isolated in (
        ("this course, --score", options.students, mine, "yes"),
        ("nbgrader autograde", sample, other, "no"),
    ):
        each.append(seconds / count)
        print(f"{name:22}{count:12}{seconds:9.1f}{each[-1]:10.2f}{isolated:>10}")
    alike = sum(scores[student] == points for student, points in sampled.items())
    print(f"{each[1] / each[0]:.1f} times the throughput; the same points for {alike} of {sample}")


if __name__ == "__main__":
    main()
