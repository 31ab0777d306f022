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
from typing import Callable, Iterable, Iterator

from . import report, roster, walls
from .entries import Entry, find, naming
from .folder import ReportFolder, Unfit, recall, remember, write
from .gradebook import Grading, students
from .terminal import bar, printable, printable_lines
from .workers import TRIES, NoWorker, WorkItem, scored


def grade(
    entries: list[Entry],
    folder: ReportFolder,
    jobs: int,
    progress: Callable[[int, int, str], None],
    private: Iterable[Path] = (),
) -> list[Grading]:
    """All gradings, in the order of entries.

    jobs: submissions at a time.  progress: done, of how many, the last one's student.  private: as for
    walls.around.  Raises workers.NoWorker, and folder.Unfit where a record cannot be written; what was graded before is
    kept.
    """
    gradings: dict[int, Grading] = {}
    places: dict[int, Path] = {}  # of the records

    def graded(k: int, grading: Grading) -> Grading:
        entry = entries[k]
        gradings[k] = replace(grading, student=entry.student, file=entry.file, id=entry.id, late=entry.late)
        return gradings[k]

    def work() -> Iterator[WorkItem]:
        for k, entry in enumerate(entries):
            content, problem = entry.read()
            places[k] = folder.place(entry, content)
            if problem:
                graded(k, Grading(problem=problem))
            elif record := recall(places[k]):
                graded(k, record)
            else:
                yield WorkItem(k, entry.file, content, folder.seed, folder.pictures)

    progress(0, len(entries), "")
    with closing(scored(work(), jobs, folder.walls, private)) as results:
        for item, grading in results:
            if grading:
                remember(places[item.number], graded(item.number, grading))
            else:  # not remembered: it may have been the machine's fault, and not be so again
                problem = f"{item.file} could not be graded: the grader itself failed over it, {TRIES} times."
                graded(item.number, Grading(problem=problem))
            progress(len(gradings), len(entries), entries[item.number].student)
    return [gradings[k] for k in range(len(entries))]


NO_SANDBOX = (
    "Submitted code would run with all your rights: it could read, change and send whatever you can. "
    "Only for code you trust, on a machine you can lose: --no-sandbox."
)


def score(options: argparse.Namespace) -> int:
    """Scores a class. 0: done. 1: done, and somebody has less than --fail-under. 2: it cannot be. 130: stopped, and goes on when asked again."""
    private = [path.resolve() for path in (*options.paths, options.out)]
    try:
        if missing := [path for path in options.paths if not os.path.exists(path)]:
            raise Unfit(f"There is no file or folder {missing[0]}.")
        if not (submissions := find(options.paths, naming(options.names, options.one_student))):
            raise Unfit(f"There is nothing in {', '.join(map(str, options.paths))}.")
        listed = roster.read(options.roster) if options.roster else None
        folder = ReportFolder(options.out, options.seed, not options.no_sandbox, not options.no_pictures)
        if not options.no_sandbox:
            walls.check(private)
    except (walls.Unavailable, Unfit, ValueError) as why:
        print(f"No sandbox: {why}\n{NO_SANDBOX}" if isinstance(why, walls.Unavailable) else why, file=sys.stderr)
        return 2
    if options.no_sandbox:
        print(f"WITHOUT A SANDBOX. {NO_SANDBOX}", file=sys.stderr)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = cores if options.jobs is None else max(1, options.jobs)
    with closing(folder):
        kept = f"What is graded is kept in {options.out}; the same command goes on."
        try:
            gradings = grade(submissions, folder, jobs, _progress, private)
            people = students(gradings)
            report.write_all(folder, gradings, options.gradescope)
            about = roster.write(listed, people, lambda name, text: write(options.out / name, text)) if listed else ""
        except KeyboardInterrupt:
            print(f"\nStopped. {kept}", file=sys.stderr)
            return 130
        except (NoWorker, Unfit) as why:
            print(f"\n{why} {kept}", file=sys.stderr)
            return 2
    bar("", 0, 0)
    print(report.table(people))
    lost = sum(not any(grading.exercise for grading in student.gradings) for student in people)
    print(f"\n{len(people)} name{'s' * (len(people) != 1)}, {len(people) - lost} graded, {lost} with nothing to grade.")
    print(*filter(None, [printable_lines(about)]), sep="\n", end="\n" * bool(about))
    print(f"{options.out}: scores.csv, report.json, junit.xml, statistics.html, students/ (a page each)")
    few = [student for student in people if 100 * student.total < options.fail_under * max(1.0, student.most)]
    if few:
        print(f"{len(few)} of {len(people)} have less than {options.fail_under:g}% of the points.", file=sys.stderr)
    return 1 if few else 0


def _progress(done: int, of: int, student: str) -> None:
    bar(printable(student), done, of)
    if not sys.stdout.isatty():
        print(f"{done}/{of} {printable(student)}".rstrip(), flush=True)
