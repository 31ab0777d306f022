"""Answers of the corpus on real ranks and on pretended ones, as plain data that can be compared.

    python -m tests.pretended EVERY [NAMES]   # of the pretended ranks' reports, one JSON object per line, the first and every k-th
    python -m tests.pretended programs        # the same of programs, a JSON list on stdin

Pretended ranks run in a Python whose torch is the small one, as on a page.
"""

import copy
import json
import linecache
import math
import re
import runpy
import sys
from contextlib import redirect_stdout
from functools import partial
from importlib import metadata
from io import StringIO
from itertools import chain, islice
from types import ModuleType

from helpers.course import ROOT, TASKS

PRACTICE = TASKS / "practice"
PAGES = ("00_start_here", "02_point_to_point", "03_one_to_many", "04_many_to_one", "05_many_to_many", "twelve_puzzles")
TORCH = tuple(map(int, metadata.version("torch").split(".")[:2]))  # the real one's
SLACK = 2e-6  # of a number, for sums in another order
FIELDS = (
    "op", "group", "src", "dst", "reduce_op", "shape", "nbytes", "splits", "within", "async_op", "waited", "tag", "misuse",
    "non_dense", "strides",
)  # fmt: skip


def plain(value):
    """A result as JSON has it."""
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return {"tensor": plain(value.detach().tolist()), "dtype": str(value.dtype), "shape": list(value.shape)}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__


def described(event):
    """An event without its times."""
    from collectives.log.event import Summary

    found = {name: plain(getattr(event, name)) for name in FIELDS}
    found["dtype"], found["line"] = (
        str(event.dtype),
        event.line and [event.line.number, event.line.function, event.line.text],
    )
    if TORCH >= (2, 15) and event.within and "object" in event.within:  # it brings objects by calls that take one tensor
        found["op"] = event.op.removesuffix("_single")
    values = [event.before, None if event.is_undefined else event.after]
    found["values"] = [
        None
        if isinstance(value, Summary) or not k and _is_buffer(event) or event.within and "object" in event.within
        else plain(value)
        for k, value in enumerate(values)
    ]  # fmt: skip
    found["ended"] = event.end is not None
    return found


def _is_buffer(event):
    """Whether what its tensor held before may be whatever was in its memory."""
    return event.op == "recv" or event.op == "broadcast" and event.rank != event.src


def tasks():
    """Each task, its answers by name, and the thought that a wrong one deserves."""
    from tests.corpus import practice, practice_middle, practice_small, puzzle_lines  # noqa: F401 (they add to practice)

    for page in PAGES:
        for task in runpy.run_path(str(PRACTICE / f"{page}.py"))["TASKS"]:
            answers = [(f"right {k}", fn) for k, fn in enumerate(practice.RIGHT[task.name])]
            answers += [(f"wrong {k}: {fn.__name__}", fn) for k, (fn, _) in enumerate(practice.WRONG[task.name])]
            yield task, answers


def without_exercises():
    """Leave out answers to the exercises, whose module needs more of torch than pretended ranks have."""
    source = (ROOT / "tests" / "corpus" / "answers.py").read_text(encoding="utf-8")
    module = ModuleType("tests.corpus.answers")
    exec(source[: source.index("\ndef here():")], vars(module))
    sys.modules[module.__name__] = module


def requests(every=1, names=()):
    """Each task, case and answer; or the first of them and every k-th."""
    everything = _everything(names)
    return islice(everything, 0, None, every)


def _everything(names):
    for task, answers in tasks():
        if not names or task.name in names:
            for which, answer in answers:
                for k, case in enumerate(task.cases):
                    yield task, case, k, which, answer


def on_real_ranks(task, case, answer):
    from helpers.exercise.on_rank import perform

    return run_really(case.world_size, perform, answer, [case.late], [task.arguments(case)])


def run_really(ranks, function, *args):
    """Results, the words of an error, and events."""
    from collectives.launch.run import run
    from collectives.outcome.errors import RunError

    try:
        with redirect_stdout(StringIO()):
            done = run(function, *args, world_size=ranks)
        return done.results, "", done.events
    except RunError as error:
        words = re.sub(r"\]:\d+\$", "]:0$", f"{type(error).__name__}: {error}")  # a port
        return None, words, error.run.events


def on_pretended_ranks(task, case, answer):
    from helpers.exercise import on_rank

    on_rank.LATE_SECONDS = 0
    inputs = task.arguments(case)

    def program(rank):
        given = [[None] * case.world_size]
        given[0][rank] = copy.deepcopy(inputs[rank])
        return partial(on_rank.perform, answer, [case.late], given)

    return pretend(case.world_size, program)


def pretend(ranks, program):
    """Results, the words of an error, and events, of a program as `replay` takes it."""
    from collectives.judge import wording
    from collectives.pretend.distributed import Here
    from collectives.pretend.scheduler import replay
    from collectives.pretend.world import World

    Here.world = World(ranks)
    done = replay(Here.world, program)
    words = wording.headline(done.verdict) if done.verdict else ""
    return None if words else done.results, words, done.events


def compiled(source):
    """The function `f` of a program."""
    import torch
    import torch.distributed as dist

    file = "<program>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = {"torch": torch, "dist": dist, "__name__": "__main__"}
    exec(compile(source, file, "exec"), names)
    return names["f"]


def of_program(source, ranks, really):
    """A report of a program."""
    function = compiled(source)
    results, words, events = run_really(ranks, function) if really else pretend(ranks, lambda rank: function)
    return {"results": plain(results), "words": words, "events": [[described(e) for e in own] for own in events]}


def judged(task, case, results, events):
    """What the check says of a run that came to its end."""
    from helpers.exercise.feedback import explain
    from helpers.exercise.judgment import judge
    from helpers.exercise.task import Attempt

    values, arguments, left = map(list, zip(*(own[0] for own in results)))
    attempt, inputs = Attempt(values, arguments, events, left=left), task.arguments(case)
    finding = judge(task, case, inputs, attempt)
    return "" if finding is None else explain(task, case, inputs, finding)


def report(task, case, k, which, answer, perform):
    found = {"task": task.name, "case": k, "ranks": case.world_size, "answer": which}
    try:
        results, words, events = perform(task, case, answer)
    except AttributeError as refused:
        if type(refused).__name__ != "Absent":
            raise
        return {**found, "refused": str(refused)}
    found |= {"results": plain(results), "words": words, "events": [[described(e) for e in own] for own in events]}
    if results is not None:
        from collectives.log.traffic import count

        traffic = count(events)
        found["traffic"] = [
            traffic.sent,
            traffic.received,
            traffic.messages,
            traffic.largest,
            traffic.calls,
            traffic.steps,
        ]
        found["says"] = judged(task, case, results, events)
    return found


def differences(real, pretended, where=""):
    """Where two reports differ, as words."""
    if isinstance(real, dict) and isinstance(pretended, dict):
        if "Mismatch" in real.get("words", ""):  # what such calls leave isn't defined
            for event in chain(*real["events"], *pretended["events"]):
                event.update(values=None, waited=None, ended=None)
            for report, other in ((real, pretended), (pretended, real)):  # nor how far a rank still gets after one
                report["events"] = [mine[: len(theirs)] for mine, theirs in zip(report["events"], other["events"])]
        keys = [key for key in dict.fromkeys([*real, *pretended])]
        return list(chain(*(differences(real.get(k), pretended.get(k), f"{where}.{k}") for k in keys)))
    if isinstance(real, str) and isinstance(pretended, str):  # a line of gloo's source, which each version moves
        real, pretended = (re.sub(r"\.cc:\d+\]", ".cc]", words) for words in (real, pretended))
    if isinstance(real, list) and isinstance(pretended, list) and len(real) == len(pretended):
        return list(chain(*(differences(a, b, f"{where}[{k}]") for k, (a, b) in enumerate(zip(real, pretended)))))
    if isinstance(real, float) and isinstance(pretended, (int, float)):
        close = abs(real - pretended) <= SLACK * max(1.0, abs(real))
        return [] if close else [f"{where}: {real} {pretended}"]
    return [] if real == pretended else [f"{where}:\n    real      {real}\n    pretended {pretended}"]


def main(which, *names):
    from collectives.pretend.torch_module import install

    install()
    without_exercises()
    if which == "programs":
        for source, ranks in json.load(sys.stdin):
            print(json.dumps(of_program(source, ranks, False)))
    else:
        for request in requests(int(which), names):
            print(json.dumps(report(*request, on_pretended_ranks)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
