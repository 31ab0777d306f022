"""The instructor's command:   python -m helpers.grade --score --out report/ submissions/

Submissions are scored in parallel, each remembered as soon as it is done. A grader that was stopped or killed goes on
where it was: what has a record (folder.py) is not graded again.
"""

import argparse
import os
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Callable, Iterator

from . import report, walls
from .entries import Entry, find
from .folder import ReportFolder, Unfit, recall, remember
from .gradebook import Grading, students
from .terminal import bar, printable
from .workers import TRIES, NoWorker, WorkItem, scored


def grade(
    entries: list[Entry], folder: ReportFolder, jobs: int, progress: Callable[[int, int, str], None]
) -> list[Grading]:
    """All gradings, in the order of entries.

    jobs: submissions at a time.  progress: done, of how many, the last one's student.  Raises workers.NoWorker, and
    folder.Unfit where a record cannot be written; what was graded before is kept.
    """
    gradings: dict[int, Grading] = {}
    places: dict[int, Path] = {}  # of the records to come

    def of_entry(k: int, grading: Grading) -> Grading:
        return replace(grading, student=entries[k].student, file=entries[k].file)

    def work() -> Iterator[WorkItem]:
        for k, entry in enumerate(entries):
            content, problem = entry.read()
            place = folder.place(entry, content)
            if problem:
                gradings[k] = of_entry(k, Grading(problem=problem))
            elif record := recall(place):
                gradings[k] = record
            else:
                places[k] = place
                yield WorkItem(k, entry.file, content, folder.seed, folder.pictures)

    progress(0, len(entries), "")
    with closing(scored(work(), jobs, folder.walls)) as results:
        for item, grading in results:
            k = item.number
            if grading:
                gradings[k] = of_entry(k, grading)
                remember(places[k], gradings[k])
            else:  # not remembered: it may have been the machine's fault, and not be so again
                problem = f"{item.file} could not be graded: the grader itself failed over it, {TRIES} times."
                gradings[k] = of_entry(k, Grading(problem=problem))
            progress(len(gradings), len(entries), entries[k].student)
    return [gradings[k] for k in range(len(entries))]


NO_SANDBOX = (
    "Submitted code would run with all your rights: it could read, change and send whatever you can. "
    "Only for code you trust, on a machine you can lose: --no-sandbox."
)


def score(options: argparse.Namespace) -> int:
    """Scores a class. 0: done. 2: it cannot be. 130: stopped, and goes on when asked again."""
    try:
        if not options.no_sandbox:
            walls.check()
        missing = [path for path in options.paths if not os.path.exists(path)]
        if missing:
            raise Unfit(f"There is no file or folder {missing[0]}.")
        submissions = find(options.paths)
        if not submissions:
            raise Unfit(f"There are no notebooks in {', '.join(map(str, options.paths))}.")
        folder = ReportFolder(options.out, options.seed, not options.no_sandbox, not options.no_pictures)
    except walls.Unavailable as why:
        print(f"No sandbox: {why}\n{NO_SANDBOX}", file=sys.stderr)
        return 2
    except Unfit as why:
        print(why, file=sys.stderr)
        return 2
    if options.no_sandbox:
        print(f"WITHOUT A SANDBOX. {NO_SANDBOX}", file=sys.stderr)
    with closing(folder):
        kept = f"What is graded is kept in {options.out}; the same command goes on."
        try:
            gradings = grade(submissions, folder, _jobs(options.jobs), _progress)
            report.write_all(folder, gradings, options.gradescope)
        except KeyboardInterrupt:
            print(f"\nStopped. {kept}", file=sys.stderr)
            return 130
        except (NoWorker, Unfit) as why:
            print(f"\n{why} {kept}", file=sys.stderr)
            return 2
    bar("", 0, 0)
    print(report.table(students(gradings)))
    print(f"\n{options.out}: scores.csv, report.json, junit.xml, statistics.html, students/ (a page each)")
    return 0


def _progress(done: int, of: int, student: str) -> None:
    if sys.stdout.isatty():
        bar(printable(student), done, of)
    else:
        print(f"{done}/{of} {printable(student)}".rstrip(), flush=True)


def _jobs(asked: int | None) -> int:
    if asked is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, asked)
