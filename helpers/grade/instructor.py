"""The instructor's command:   python -m helpers.grade --score --out report/ submissions/"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing

from . import batch, gradebook, report, sandbox
from .terminal import bar, printable
from .workers import NoWorker

NO_SANDBOX = (
    "Submitted code would run with all your rights: it could read, change and send whatever you can. "
    "Only for code you trust, on a machine you can lose: --no-sandbox."
)


def score(options: argparse.Namespace) -> int:
    """Scores a class. 0: done. 2: it cannot be. 130: stopped, and goes on when asked again."""
    try:
        if not options.no_sandbox:
            sandbox.check()
        missing = [path for path in options.paths if not os.path.exists(path)]
        if missing:
            raise batch.Unfit(f"There is no file or folder {missing[0]}.")
        entries = batch.find(options.paths)
        if not entries:
            raise batch.Unfit(f"There are no notebooks in {', '.join(map(str, options.paths))}.")
        folder = batch.Report(options.out, options.seed, not options.no_sandbox, not options.no_pictures)
    except sandbox.Unavailable as why:
        print(f"No sandbox: {why}\n{NO_SANDBOX}", file=sys.stderr)
        return 2
    except batch.Unfit as why:
        print(why, file=sys.stderr)
        return 2
    if options.no_sandbox:
        print(f"WITHOUT A SANDBOX. {NO_SANDBOX}", file=sys.stderr)
    with closing(folder):
        kept = f"What is graded is kept in {options.out}; the same command goes on."
        try:
            gradings = folder.grade(entries, _jobs(options.jobs), _progress)
            report.write_all(folder, gradings, options.gradescope)
        except KeyboardInterrupt:
            print(f"\nStopped. {kept}", file=sys.stderr)
            return 130
        except (NoWorker, batch.Unfit) as why:
            print(f"\n{why} {kept}", file=sys.stderr)
            return 2
    bar("", 0, 0)
    print(report.table(gradebook.students(gradings)))
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
