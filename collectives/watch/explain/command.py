"""Explains other tools' records of a job: which ranks hold up which others, how they ended, or the calls they made.

It reads dumps of the flight recorder, watchdog and desync reports, tracebacks, torchrun's summary and error files, logs
of NCCL, RAS (text and JSON), NCCL Inspector, reports of nccl-tests, stacks of py-spy and faulthandler, kernel logs,
events of Kubernetes and Slurm, traces of torch.profiler; with any launcher's or log shipper's prefixes.
"""

import argparse
import signal
import sys
from pathlib import Path
from typing import Sequence

from ...format import wrap
from . import runs, story, traces
from .evidence import Evidence, gather, hours_apart, is_stream
from .text import listed

EPILOG = """
examples:
  python -m collectives explain fr/          the flight recorder's dumps of all ranks
  python -m collectives explain fr/ logs/    with the logs: of the job, of NCCL, of hosts and schedulers
  python -m collectives explain stacks/      stacks of py-spy or faulthandler, rank3.txt and so on, of one moment or two
  python -m collectives explain http://node0:25999    torch's debug server, asked twice, ten seconds apart
  python -m collectives explain ras://localhost       NCCL's RAS, on a host of the job, asked twice as well
  python -m collectives explain traces/      torch.profiler's traces, one of each rank
  python -m collectives explain record/      what collectives.watch said of a job that it recorded
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m collectives explain",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="files and folders; - reads standard input; the address of a debug server or of NCCL's RAS",
    )
    parser.add_argument(
        "--machine", metavar="NAME", help="of machines.csv: what collectives in traces are compared with"
    )
    options = parser.parse_args()
    try:
        said = explain(*options.paths, machine=options.machine)
    except (OSError, ValueError) as error:
        sys.exit(wrap(str(error)))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader of a pipe, such as head, may end first
    print(wrap(said))


def explain(*paths: str | Path, machine: str | None = None) -> str:
    """A report, in words, on the files under these paths.

    machine: of machines.csv, with which the collectives of traces are compared; by default one with the trace's GPU.
    Raises FileNotFoundError, or ValueError if they hold nothing known."""
    found = gather(paths)
    if found.is_empty:
        raise ValueError("\n".join([f"nothing under {', '.join(map(str, paths))} can be explained.", *found.said]))
    found.runs = runs.windows(found.moments, hours_apart)
    if len(found.runs) > 1 and all(Path(path).exists() and not is_stream(path) for path in paths):
        parts = _of_runs(paths, found, machine)
    else:
        found.runs = []
        parts = _of_run(found, machine)
        found.said = [*found.overlaps, *found.said]
    notes = "\n".join(found.said)
    if not parts:
        raise ValueError(f"nothing under {', '.join(map(str, paths))} can be explained.\n{notes}".rstrip())
    return "\n\n".join([*parts, *[notes] * bool(notes)])


def _of_runs(paths: Sequence[str | Path], all_runs: Evidence, machine: str | None) -> list[str]:
    """The paragraphs on several runs, one after the other."""
    evidence = [gather(paths, window, all_runs) for window in all_runs.runs]
    steps = [
        max((run.steps[path] for path in run.steps if runs.is_within(all_runs.spans.get(path), run.window)), default=None)
        for run in evidence
    ]
    sources = ((run.launches, all_runs.launches, run.window.last) for run in evidence)
    hosts = [launches.hosts_at(at) or of_all.hosts_at(at) for launches, of_all, at in sources]
    parts = ["\n".join([runs.headline(all_runs.runs), *runs.repeats(steps, hosts)])]
    for k, run in [*enumerate(evidence, 1)][-runs.MOST_RUNS :]:
        parts += [f"--- Run {k} ---", *_of_run(run, machine)]
        if run.undated:
            parts.append(f"Which run {listed(run.undated)} {'is' if len(run.undated) == 1 else 'are'} of isn't known, for lack of times: told with this one.")
    return parts


def _of_run(evidence: Evidence, machine: str | None) -> list[str]:
    """The paragraphs on the evidence of one run."""
    parts = story.verdict(evidence)
    if evidence.traces:
        parts.append("\n".join(traces.words(evidence.traces, machine)))
    if evidence.nccl.processes or evidence.nccl.versions and not parts:
        parts.append("\n".join(evidence.nccl.words()))
    if evidence.measured.rows or evidence.measured.faults:
        parts.append("\n".join(evidence.measured.words()))
    return [*parts, *map(_of_record, evidence.records)]


def _of_record(folder: Path) -> str:
    """The verdict on a recorded job, and how to look further."""
    told = folder / "verdict.txt"
    said = told.read_text().strip() if told.exists() else "Nothing was found wrong with this job while it ran."
    return (
        f"{folder} is a record of collectives.watch.\n{said}\n\n"
        f'collectives.jobs.load("{folder}") opens its calls; python -m collectives steps {folder} shows its training steps.'
    )
