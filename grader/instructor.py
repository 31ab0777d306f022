"""The instructor's command:   python -m helpers.grade --score --out report/ submissions/

Submissions are scored in parallel, each remembered as soon as it is done. A grader that was stopped or killed goes on
where it was: what has a record (folder.py) is not graded again.
"""

import argparse
import os
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Iterator

from . import assignment, class_report, roster, walls
from .entries import Entry, Naming, Owner, find, naming, remarks
from .folder import ReportFolder, Unfit, lasting, write
from .gradebook import Grading, students, unknown
from .safe_text import bar, printable
from .worker_pool import TRIES, NoWorker, WorkerPool, WorkItem


def grade(
    entries: list[Entry], folder: ReportFolder, workers: WorkerPool, progress: Callable[[int, int, str], None]
) -> list[Grading]:
    """All gradings, in the order of entries, without their pictures, which are in their records.

    progress: done, of how many, the last one's student. Raises NoWorker and, where a record can't be written, Unfit.
    """
    settings = {name: folder.settings[name] for name in ("seed", "pictures", "minutes")}
    gradings: dict[int, Grading] = {}

    def graded(k: int, grading: Grading) -> Grading:
        fields = {name: getattr(entries[k], name) for name in ("file", *Owner.__dataclass_fields__)}
        gradings[k] = replace(grading, pictures={}, **fields)
        return replace(grading, **fields)

    def work() -> Iterator[WorkItem]:
        for k, entry in enumerate(entries):
            content, problem = entry.read()
            if grading := Grading(problem=problem) if problem else folder.recall(entry, content):
                graded(k, grading)
            else:
                yield WorkItem(k, entry.file, content, settings)

    progress(0, len(entries), "")
    with closing(workers.scored(work())) as results:
        for item, grading in results:
            if grading:
                folder.remember(entries[item.number], item.content, graded(item.number, grading))
            else:  # not remembered: it may have been the machine's fault, and not be so again
                problem = f"{item.file} could not be graded: the grader itself failed over it, {TRIES} times."
                graded(item.number, Grading(problem=problem))
            progress(len(gradings), len(entries), entries[item.number].student)
    return [gradings[k] for k in range(len(entries))]


NO_SANDBOX = (
    "Submitted code would run with all your rights: it could read, change and send whatever you can. "
    "Only for code you trust, on a machine you can lose: --no-sandbox."
)


LASTING = ("exercises", "assignment", "names", "roster", "minutes")  # the first two replace each other


def score(options: argparse.Namespace) -> int:
    """Scores a class. 0: done. 1: done, and somebody has less than --fail-under. 2: it cannot be. 130: stopped, and goes on when asked again."""
    out, private = options.out, [path.resolve() for path in (*options.paths, options.out)]
    lasting_options, earlier = _lasting(options)
    try:
        if earlier:
            print(f"As before: {earlier}. An option that you give counts instead; --exercises all is without an assignment.")
        names = naming(options.names or "", options.one_student)
        entries = _entries(options.paths, out, names)
        listed = roster.read(list(map(Path, options.roster or [])))
        task = assignment.read(options.exercises or "", options.assignment and Path(options.assignment))
        if options.list:
            people = students([Grading(student=entry.student, id=entry.id) for entry in entries])
            print(class_report.listing(entries))
            print(*map(printable, [*remarks(entries, names), *listed.remarks(people)]), sep="\n")
            return 0
        ways = (not options.no_sandbox, not options.no_pictures, options.minutes or 5.0)
        folder = ReportFolder(out, options.seed, *ways, lasting_options)
        by_hand = out / "adjustments.csv"
        if not by_hand.exists():
            write(by_hand, ",".join(assignment.COLUMNS) + "\n")
        task = assignment.adjusted(task, by_hand)
        if not options.no_sandbox:
            walls.check(private)
    except (walls.Unavailable, Unfit, ValueError) as why:
        print(f"No sandbox: {why}\n{NO_SANDBOX}" if isinstance(why, walls.Unavailable) else why, file=sys.stderr)
        return 2
    if options.no_sandbox:
        print(f"WITHOUT A SANDBOX. {NO_SANDBOX}", file=sys.stderr)
    with closing(folder):
        try:
            with closing(WorkerPool(options.jobs, not options.no_sandbox, private)) as workers:
                gradings = grade(entries, folder, workers, ProgressBar())
            people = listed.completed(students(gradings, task), task)
            class_report.write_all(folder, people, gradings, options.gradescope)
            for name, text in listed.files(people).items():
                write(out / name, text)
        except (KeyboardInterrupt, NoWorker, Unfit) as why:
            stopped = isinstance(why, KeyboardInterrupt)
            kept = f"What is graded is kept in {out}; the same command goes on."
            print(f"\n{'Stopped.' if stopped else why} {kept}", file=sys.stderr)
            return 130 if stopped else 2
    bar("", 0, 0)
    lost = sum(not any(one.exercise and not one.untouched for one in student.gradings) for student in people)
    count = f"{len(people)} name{'s' * (len(people) != 1)}, {len(people) - lost} graded, {lost} with nothing to grade."
    print(class_report.table(people), f"\n{count}", sep="\n")
    for sentence in [*remarks(entries, names), *unknown(people), *listed.remarks(people)]:
        print(printable(sentence))
    files = "scores.csv, report.json, junit.xml, statistics.html, students/ (a page each), return.zip (the same pages)"
    print(f"{out}: {files}")
    few = [student for student in people if 100 * student.total < options.fail_under * max(1.0, student.most)]
    if few:
        print(f"{len(few)} of {len(people)} have less than {options.fail_under:g}% of the points.", file=sys.stderr)
    return 1 if few else 0


def _lasting(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The options that decide who is graded for which work, and in words the ones that an earlier grading gives."""
    current = {name: value for name in LASTING if (value := getattr(options, name)) is not None}
    names = {*current, *LASTING[:2]} if current.keys() & set(LASTING[:2]) else current
    earlier = {name: value for name, value in lasting(options.out).items() if name not in names}
    vars(options).update(earlier)
    words = (f"--{name} {word}" for name in earlier for word in (earlier[name] if name == "roster" else [earlier[name]]))
    return {**earlier, **current}, " ".join(words)


def _entries(paths: list[Path], out: Path, names: Naming) -> list[Entry]:
    """The files of a class. Raises Unfit where nothing is there, or it isn't clear whose it is."""
    if missing := [path for path in paths if not os.path.exists(path)]:
        raise Unfit(f"There is no file or folder {missing[0]}.")
    if len(paths) > 1 and any(map(os.path.isdir, paths)) and not names.student:
        within = paths[0].resolve().parent
        raise Unfit(f"Several folders would mix students up. Pass the one that holds all students: {within}")
    entries = find(paths, names)
    if not entries:
        raise Unfit(f"There is nothing in {', '.join(map(str, paths))}.")
    if any(out.resolve().is_relative_to(path.resolve()) for path in paths):
        raise Unfit(f"The report, {out}, is in the folder of submissions. Name one outside it with --out.")
    return entries


class ProgressBar:
    """The line with the grader's progress and the time that is left."""

    _first: tuple[int, float] | None = None  # count and time of the first result

    def __call__(self, done: int, of: int, student: str) -> None:
        self._first = self._first or ((done, time.monotonic()) if student else None)
        left = ""
        if self._first and done > self._first[0]:
            minutes = (time.monotonic() - self._first[1]) / (done - self._first[0]) * (of - done) / 60
            left = f" ({minutes:.1f} min left)"
        bar(f"{printable(student)}{left}", done, of)
        if not sys.stdout.isatty():
            print(f"{done}/{of} {printable(student)}".rstrip() + left, flush=True)
