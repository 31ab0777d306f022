"""Makes notebooks/mistakes.md: what plain gloo, torch's own checks and run() say of each mistake.

    make mistakes        (python -m tests.bench.mistakes_table; with names of reports, only their rows)

Every program of mistakes.py runs three ways: as plain gloo, a process a rank; the same with
TORCH_DISTRIBUTED_DEBUG=DETAIL; and with run(). Every report of reports/ runs in these ways, and under watch.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from helpers import RunError, run
from tests import ROOT
from tests.corpus import mistakes
from tests.corpus.mistakes import MISTAKES, Mistake
from tests.corpus.reports import REPORTS

PROGRAMS = {m.id: m.program for m in MISTAKES} | {name: module.job for name, module in REPORTS.items()}
PAGE = ROOT / "notebooks" / "mistakes.md"
WORLD_SIZE = 3
TIMEOUT = 3  # seconds: of the group, and of run() where only the clock can tell
AT_A_TIME = 3  # programs; they mostly wait
LONGEST = 140  # characters of a message that the page shows

# The outcomes of a rank, the most telling first, in the page's words.
KINDS = {
    "aborted": "**abort**",
    "error": "**error**",
    "absent": "**error**",  # torch's monitored barrier names who did not come
    "timed out": "**hang**",
    "hung": "**hang**",
    "lost": "**hang**",
    "returned": "**silence**",
}
HANGS = {kind for kind, words in KINDS.items() if words == "**hang**"}
SIGNS = {
    "absent": r"monitoredBarrier",
    "timed out": r"timed out|wait timeout",
    "lost": r"connection (closed|reset)|broken pipe|pair closure",
}
ADDRESS = re.compile(r" at 0x\w+")
# What a message says of its time, place and sender, and what follows the telling part.
NOISE = re.compile(
    r"RuntimeError: |\[?rank ?\d+\]:( ?\[\w\d+ .*?\])? ?|\[(enforce fail at )?/\S*?:\d+\] ?|"
    r"Detected mismatch between collectives on ranks\. |\.Collectives differ.*| Original exception:.*",
    re.IGNORECASE | re.DOTALL,
)
FINGERPRINT = re.compile(  # which torch prints with more detail than a row can hold
    r"CollectiveFingerPrint\(SequenceNumber=\d+, OpType=(\w+)(?:, TensorShape=(\[.*?\]), TensorDtypes=(\w+))?"
    r".*?(?=, but Rank|\.Collectives differ|$)",
    re.DOTALL,
)
# Whether the old or the new value is seen is a matter of time.
RACES = {"returned_before_wait", "read_before_wait", "write_before_wait", "reuse_before_wait", "use_before_received"}


class Outcome(NamedTuple):
    """What became of one rank, or of the whole program."""

    kind: str
    words: str  # the message, or what the tensors held in the end


# --- a rank, in a process of its own ------------------------------------------------------


def rank_process(program: str, rank: int, folder: str, detail: bool, pipe) -> None:
    os.dup2(os.open(f"{folder}/stderr-{rank}", os.O_WRONLY | os.O_CREAT), 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL" if detail else "OFF"
    dist.set_debug_level_from_env()
    # Each rank gets numbers of its own, so that wrong data shows.
    count = itertools.count()
    mistakes.ones = lambda *shape, dtype=torch.float32: torch.full(shape, (rank + 1) * 10 ** next(count)).to(dtype)
    filled = watch_outputs()
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(f"{folder}/store", WORLD_SIZE),
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=timedelta(seconds=TIMEOUT),
    )
    pipe.send("connected")
    pipe.recv()  # nobody starts, and perhaps ends, before all are connected
    try:
        PROGRAMS[program](rank, WORLD_SIZE)
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"
        kind = next((k for k, sign in SIGNS.items() if re.search(sign, message, re.IGNORECASE)), "error")
        pipe.send(Outcome(kind, message))
    else:
        kind = "returned"
        pipe.send(Outcome(kind, "" if program in REPORTS else ", then ".join(map(tensors, filled))))
    if kind != "error":  # as in a longer program: nobody hangs up before all have been heard
        pipe.poll(None)
    os._exit(0)


def watch_outputs() -> list:
    """What dist's functions, which do as before, will have been given to fill."""
    filled: list = []

    def watched(call, output: int):
        @functools.wraps(call)
        def same(*args, **kwargs):
            filled.extend(args[output : output + 1])
            return call(*args, **kwargs)

        return same

    first = "all_reduce reduce broadcast all_gather scatter reduce_scatter all_to_all_single recv".split()
    for name, output in {**dict.fromkeys(first, 0), "gather": 1}.items():
        setattr(dist, name, watched(getattr(dist, name), output))
    return filled


def tensors(value) -> str:
    """'1 1 2' for a vector; brackets around each row of a matrix and each tensor of a list."""
    if value is None:
        return ""
    if isinstance(value, list) or value.dim() > 1:
        return " ".join(f"[{tensors(part)}]" for part in value)
    return " ".join(f"{v:.4g}" for v in value.reshape(-1).tolist())


# --- all ranks of a program ---------------------------------------------------------------


def plainly(program: str, detail: bool = False) -> Outcome:
    """What plain gloo makes of a program of PROGRAMS."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.corpus.mistakes"])
    ranks, pipes = [], []
    outcomes: dict[int, Outcome] = {}
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(WORLD_SIZE):
            ours, theirs = context.Pipe()
            ranks.append(context.Process(target=rank_process, args=(program, rank, folder, detail, theirs)))
            ranks[-1].start()
            theirs.close()
            pipes.append(ours)
        try:
            for pipe in pipes:
                pipe.recv()
        except EOFError:  # a busy machine took longer than the timeout to connect them
            end(ranks, pipes)
            return plainly(program, detail)
        for pipe in pipes:
            pipe.send("start")
        while len(outcomes) < WORLD_SIZE:
            silent = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in outcomes}
            heard = wait(silent, timeout=5 * TIMEOUT)
            if not heard:
                outcomes |= dict.fromkeys(silent.values(), Outcome("hung", ""))
            for pipe in heard:
                try:
                    outcomes[silent[pipe]] = pipe.recv()
                except EOFError:  # it died without a word to us
                    last_words = Path(f"{folder}/stderr-{silent[pipe]}").read_text(errors="replace")
                    outcomes[silent[pipe]] = Outcome("aborted", last_words.partition("what():")[2])
        end(ranks, pipes)
    return told([outcomes[rank] for rank in range(WORLD_SIZE)], program)


def end(ranks: list, pipes: list) -> None:
    """End the processes of a program."""
    for rank, pipe in zip(ranks, pipes):
        pipe.close()
        rank.kill()
        rank.join()


def told(outcomes: list[Outcome], program: str) -> Outcome:
    """One outcome for all: the most telling, from the lowest rank that has it."""
    worst = min((o.kind for o in outcomes), key=list(KINDS).index)
    message = next(o.words for o in outcomes if o.kind == worst)
    alike = HANGS if worst in HANGS else {worst}  # which of the hangs it is, is a matter of time
    at = [r for r, o in enumerate(outcomes) if o.kind in alike]
    if worst == "returned":
        held: dict[str, list[int]] = {}
        for rank, o in enumerate(outcomes):
            held.setdefault(o.words, []).append(rank)
        words = "; ".join(f"{_ranks(at)} {'hold' if at[1:] else 'holds'} `{h}`" for h, at in held.items() if h)
        return Outcome(worst, "which value is used is a matter of time" if program in RACES else words)
    if worst == "hung":
        return Outcome(worst, "longer than the timeout")
    if worst == "timed out":
        message = message[: re.search(r"\d+ms|$", message).end()]
    return Outcome(worst, f"{_ranks(at)}: `{cut(shorter(message))}`")


def shorter(message: str) -> str:
    """The telling part of a message, without what differs from run to run, on one line."""
    message = FINGERPRINT.sub(lambda m: " ".join(filter(None, m.groups())), message)
    message = ADDRESS.sub("", NOISE.sub("", message.replace("running collective: ", "running ")))
    return " ".join(message.split())


def cut(words: str) -> str:
    if len(words) <= LONGEST:
        return words
    return words[:LONGEST].rsplit(" ", 1)[0] + " ..."


def _ranks(ranks: list[int]) -> str:
    return "all ranks" if len(ranks) == WORLD_SIZE else f"rank{'s' * (len(ranks) > 1)} {' and '.join(map(str, ranks))}"


def verdict(mistake: Mistake) -> tuple[str, str]:
    """What run() makes of the program: the error's name and the verdict's first line."""
    timeout = TIMEOUT if "out of time" in mistake.words else 30
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            run(lambda: mistake.program(dist.get_rank(), WORLD_SIZE), world_size=WORLD_SIZE, timeout=timeout)
    except RunError as error:
        return type(error).__name__, cut(ADDRESS.sub("", str(error).splitlines()[0]))
    return "", "nothing"


# --- real reports -------------------------------------------------------------------------

VERDICT = re.compile(r"^(?:Mismatch|Stuck|RankFailed|Standstill|Differs): .*", re.MULTILINE)
PLAIN, DETAIL, RUN, WATCH, SAME, EXPLAIN = "plain gloo", "DETAIL", "`run`", "`watch`", "`watch --same`", "`explain`"
NAMED, NARROWED, SILENT = "**named**", "verdict", "silent"
REPORTS_INTRO = """
## Reports of real programs

Of {total} bug reports, nearly all of them public, each rewritten as a small program in [tests/corpus/reports](../tests/corpus/reports), this course
names the cause of {named}, by one way of running at least. It says something about {narrowed} more, and nothing at all about {silent}.
Plain gloo names {plain}, DETAIL {detail}.
Those who wrote the judge have seen these reports, so expect less on yours. To add one that they haven't seen, write one more
file there.

*named*: the words contain the sentence that names the cause. *verdict*: they say where ranks differ, or wait, and not why.
*error*, *hang*, *abort*: as above. *silent*: nothing is printed. A dash: this way of running doesn't apply.
`explain` reads the log that the job leaves under DETAIL, without a recorder. The last column counts the ways that are silent.

| report | from | plain gloo | DETAIL | `run` | `watch` | `watch --same` | `explain` | silent |
|---|---|---|---|---|---|---|---|---|
"""


def told_by_run(name: str) -> str:
    """The verdict of run() on a report; where it has none, what a cell shows."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            job = REPORTS[name].job
            return repr(run(lambda: job(dist.get_rank(), dist.get_world_size()), world_size=WORLD_SIZE, timeout=60))
    except RunError as error:
        return f"{type(error).__name__}: {error}"


def told_by_watch(name: str, *options: str) -> str:
    """The lines that watch prints about a report under torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        watch = ["-m", "collectives.watch", "--record", f"{folder}/record", "--patience", "20", *options]
        return under_torchrun(name, *watch)


def told_by_explain(name: str) -> str:
    """The answer of explain on the log of a report under torchrun and DETAIL, and nothing where it recognizes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "job.log"
        log.write_text(under_torchrun(name, TORCH_DISTRIBUTED_DEBUG="DETAIL"))
        command = [sys.executable, "-m", "collectives", "explain", str(log)]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
    return "" if answer.startswith("Nothing is recognized") else answer


def under_torchrun(name: str, *before: str, **environment: str) -> str:
    """The standard error of a report's ranks and of torchrun.  before: the program that runs it, if one does."""
    launcher = f"--nproc-per-node {WORLD_SIZE} --rdzv-backend c10d --rdzv-endpoint localhost:0".split()
    command = [sys.executable, "-m", "torch.distributed.run", *launcher, *before, "-m", "tests.corpus.reports", name]
    streams = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True, "errors": "replace"}
    process = subprocess.Popen(command, **streams, cwd=ROOT, env={**os.environ, **environment})
    try:
        return process.communicate(timeout=240)[1]
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its ranks
        return process.communicate()[1]


def grade(name: str, words: str) -> str:
    """Whether words name the cause of a report."""
    if re.search(REPORTS[name].CAUSE, " ".join(words.split())):
        return NAMED
    return NARROWED if VERDICT.search(words) else SILENT


def plain_grade(name: str, detail: bool = False) -> str:
    """The grade of plain gloo on a report."""
    outcome = plainly(name, detail)
    if grade(name, outcome.words) == NAMED:
        return NAMED
    return SILENT if outcome.kind == "returned" else KINDS[outcome.kind].strip("*")


def grades(name: str) -> dict[str, str]:
    """The grade of each way of running a report."""
    same = grade(name, told_by_watch(name, "--same")) if hasattr(REPORTS[name], "SAME") else "-"
    own = {RUN: grade(name, told_by_run(name)), WATCH: grade(name, told_by_watch(name)), SAME: same}
    answer = told_by_explain(name)
    explained = NARROWED if answer and (found := grade(name, answer)) != NAMED else found if answer else SILENT
    return {PLAIN: plain_grade(name), DETAIL: plain_grade(name, detail=True), **own, EXPLAIN: explained}


def report_row(name: str, ways: dict[str, str]) -> str:
    module = REPORTS[name]
    title = module.__doc__.splitlines()[0].rstrip(".")
    return f"| {title} | {module.SOURCE} | {' | '.join([*ways.values(), silence(ways)])} |\n"


def silence(ways: dict[str, str]) -> str:
    """The ways that say nothing, of those that apply: '2 of 5'."""
    tried = [grade for grade in ways.values() if grade != "-"]
    return f"{tried.count(SILENT)} of {len(tried)}"


def counted(table: dict[str, dict[str, str]]) -> dict[str, int]:
    """The numbers of the headline, from every report's grades."""
    own = [{grade for way, grade in ways.items() if way not in (PLAIN, DETAIL)} for ways in table.values()]
    return {
        "total": len(table),
        "named": sum(NAMED in ways for ways in own),
        "narrowed": sum(NARROWED in ways and NAMED not in ways for ways in own),
        "silent": sum(ways <= {SILENT, "-"} for ways in own),
        "plain": sum(ways[PLAIN] == NAMED for ways in table.values()),
        "detail": sum(ways[DETAIL] == NAMED for ways in table.values()),
    }


def reports_section() -> str:
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return section(dict(zip(REPORTS, pool.map(grades, REPORTS))))


def section(table: dict[str, dict[str, str]]) -> str:
    """The page's part on reports, from every report's grades."""
    return REPORTS_INTRO.format(**counted(table)) + "".join(report_row(name, ways) for name, ways in table.items())


def page_row(name: str, text: str) -> str:
    """The row of a report on a page."""
    start = report_row(name, {}).removesuffix("0 of 0 |\n")
    [row] = re.findall(rf"^{re.escape(start)}.*$", text, re.MULTILINE)
    return row


def page_grades(name: str, text: str) -> dict[str, str]:
    ways = PLAIN, DETAIL, RUN, WATCH, SAME, EXPLAIN
    return dict(zip(ways, page_row(name, text).split(" | ")[2:-1], strict=True))


def graded_again(text: str, names: list[str]) -> str:
    """A page with the rows of some reports made again, or for the first time."""
    table = {name: grades(name) if name in names else page_grades(name, text) for name in REPORTS}
    return text[: text.index(REPORTS_INTRO.split("{")[0])] + section(table)


# --- the page -----------------------------------------------------------------------------

INTRO = """\
# Every mistake, three ways

{total} mistakes that can be made inside a rank function, each run for real with {world_size} ranks and torch {torch}:
as a plain gloo program, as the same with `TORCH_DISTRIBUTED_DEBUG=DETAIL`, and with this course's `run`.
The programs are in [tests/corpus/mistakes.py](../tests/corpus/mistakes.py); `make mistakes` runs them all again and writes this page.
[Chapter 18](18_when_it_hangs.ipynb) takes some of them apart.

Of {total} mistakes, plain gloo explains {plain}, DETAIL {detail}, this course {ours}.

| | says what is wrong | hangs until the timeout | ends the process | returns as if all were well |
|---|---|---|---|---|
{counts}

How to read it:

- **error**: some rank raises an error about the mistake, or one that names the rank that did not come. It counts as explained.
- **hang**: nothing happens until the timeout, and then the message does not say why. The groups here have a timeout
  of {timeout} s; gloo's default is 30 minutes. A group made by `new_group` doesn't inherit it: where it says "longer",
  we gave up.
- **abort**: the process of that rank ends at once, and no `try` can catch it.
- **silence**: every rank returns without an error. The page shows what the tensors held in the end. They were filled so
  that wrong numbers show: a rank's first tensor with 1 on rank 0, 2 on rank 1, 3 on rank 2; its second with 10, 20, 30,
  and so on.

A rank that returns or runs out of time keeps its connections, as in the middle of a longer program; one that raises
any other error ends. Of several ranks' messages, the lowest rank's is shown, and long ones are cut. All this is gloo:
NCCL was not run.

| mistake | plain gloo | DETAIL | `run` |
|---|---|---|---|
"""


def page() -> str:
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        plain = list(pool.map(plainly, [m.id for m in MISTAKES]))
        detail = list(pool.map(functools.partial(plainly, detail=True), [m.id for m in MISTAKES]))
    ours = [verdict(m) for m in MISTAKES]
    rows = []
    for mistake, p, d, (name, words) in zip(MISTAKES, plain, detail, ours):
        second = "the same" if p == d else f"{KINDS[d.kind]}, {d.words}"
        cells = [mistake.what, f"{KINDS[p.kind]}, {p.words}", second, f"**{name}**: `{words}`"]
        rows.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |\n")
    ways = [[KINDS[o.kind] for o in way] for way in (plain, detail)]
    ways.append([KINDS["hung" if "out of time" in words else "error" if name else "returned"] for name, words in ours])
    counts = [[way.count(KINDS[kind]) for kind in ("error", "hung", "aborted", "returned")] for way in ways]
    lines = [f"| {name} | {' | '.join(map(str, c))} |" for name, c in zip(("plain gloo", "DETAIL", "`run`"), counts)]
    intro = INTRO.format(
        total=len(MISTAKES), world_size=WORLD_SIZE, timeout=TIMEOUT, torch=torch.__version__.partition("+")[0],
        plain=counts[0][0], detail=counts[1][0], ours=counts[2][0], counts="\n".join(lines),
    )  # fmt: skip
    return intro + "".join(rows) + reports_section()


if __name__ == "__main__":
    names = sys.argv[1:]  # of reports; without any, all of the page is made
    PAGE.write_text(graded_again(PAGE.read_text(encoding="utf-8"), names) if names else page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
