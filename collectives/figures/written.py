"""A reader's code on a page of the website: executed, proved, counted, and recorded so that it plays there.

A page has Python and its standard library, in the browser.  So this module, and all that it imports, needs no more.
"""

import traceback
from contextlib import redirect_stdout
from io import StringIO
from math import prod
from typing import Any, Callable, Sequence

from ..algorithms.count import count
from ..algorithms.pipeline.count import count as count_pipeline
from ..algorithms.pipeline.pipeline import Pipeline, kept, plan
from ..algorithms.pipeline.proof import WrongPipeline
from ..algorithms.pipeline.proof import prove as prove_pipeline
from ..algorithms.proof import WrongSchedule, prove
from ..algorithms.schedule import Schedule, add, copy, title
from ..cost.message_cost import seconds
from ..format import duration, number, size
from ..machines.presets import gpu_nodes
from .incident import Incident
from .playback import playback

PAUSE = 900  # milliseconds a step is shown while it plays
MOST_PRINTED = 2000  # characters
FILE = "<your code>"
BUILTINS = {"Schedule": Schedule, "add": add, "copy": copy, "Pipeline": Pipeline}  # names that need no import


class WrongAnswer(Exception):
    """The result is not the one asked for.  plays: a recording that shows it; board: it among the others."""

    def __init__(self, words: str, plays: dict | None = None, board: list | None = None) -> None:
        super().__init__(words)
        self.plays, self.board = plays, board


def evaluate(source: str, task: dict) -> dict:
    """The outcome of code: {printed, words, plays, board} if it is right, else {printed, failure, line, plays, board}.

    task: {name, kind, cases, board}.  The code defines the function `name`, which returns a Schedule, for the kind
    "pipeline" the rows of one, and for the kind "incident" who is drained and why; then the task has the fields of an
    Incident for its cases.  A case has the `arguments` that it is called with, and what it must return then: `is`
    (attributes and their values) and bounds, `steps` of a schedule, `keeps` and `time` of a pipeline.  The first case
    is played.  board: {arguments, rows, sizes, node, most}; rows as `standing` makes them, for the other entries, and
    the most seconds at each size.
    line: of the code, where it failed; None where no line raised.
    """
    printed = StringIO()
    with redirect_stdout(printed):
        try:
            found = _judge(_defined(source, task["name"]), task)
        except WrongAnswer as wrong:
            found = {"failure": str(wrong), "line": None, "plays": wrong.plays, "board": wrong.board}
        except (Exception, SystemExit) as error:
            line = _line(error)
            where = f"line {line}: " if line else ""
            words = error.msg if isinstance(error, SyntaxError) else str(error)
            words = f"{where}{type(error).__name__}: {words}"
            if isinstance(error, ImportError):
                words += f". A page has Python's standard library, and of the course {', '.join(BUILTINS)}."
            found = {"failure": words, "line": line, "plays": None}
    return {"printed": printed.getvalue()[:MOST_PRINTED], **found}


def standings(s: Schedule, sizes: Sequence[int] = (), node: int = 1) -> list:
    """Its row on the board: [name, steps, bytes of the busiest rank in S], or [name, seconds of each size, steps].

    sizes: bytes.  node: ranks in a node, of machines.gpu_nodes.
    """
    counted = count(s)
    if not sizes:
        return [s.name, counted.steps, float(counted.most)]
    return [s.name, *(seconds(s, nbytes, gpu_nodes(s.world_size, node)) for nbytes in sizes), counted.steps]


def _defined(source: str, name: str) -> Callable:
    names = {"__name__": "__main__", **BUILTINS}
    exec(compile(source, FILE, "exec"), names)
    if not callable(names.get(name)):
        raise WrongAnswer(f"There is no function {name} in the code: it begins with `def {name}(`.")
    return names[name]


def _judge(function: Callable, task: dict) -> dict:
    if task["kind"] == "incident":
        return _incident(Incident(*task["incident"]), function())
    check = _pipeline if task["kind"] == "pipeline" else _schedule
    calls = [f"{task['name']}({', '.join(map(str, case['arguments']))})" for case in task["cases"]]
    first, *_ = [check(call, function(*case["arguments"]), case) for call, case in zip(calls, task["cases"])]
    first["words"] += f"\nProved: {', '.join(calls)}."
    if board := task.get("board"):
        first["board"] = _ranked(function(*board["arguments"]), board, first["plays"])
    return first


def _ranked(s: Schedule, board: dict, plays: dict) -> list[list]:
    """The rows of the board with this one's: the least first, of times their product."""
    sizes = board.get("sizes", ())
    mine = ["yours", *standings(s, sizes, board.get("node", 1))[1:]]
    rows = sorted([*board["rows"], mine], key=lambda row: prod(row[1:-1]) if sizes else row[:0:-1])
    for nbytes, took, most in zip(sizes, mine[1:], board.get("most", ())):
        if took > most:
            words = (
                f"It is right, but not fast enough: {size(nbytes)} takes {duration(took)}; the limit is {duration(most)}."
            )
            raise WrongAnswer(words, plays, rows)
    return rows


def _incident(incident: Incident, answer: Any) -> dict:
    if mistake := incident.mistake(answer):
        words, thought = mistake
        raise WrongAnswer(f"{words}\nThink: {thought}" if thought else words)
    return {"words": incident.debrief(answer), "plays": None}


def _compare(call: str, what: Any, case: dict) -> None:
    for name, wanted in case.get("is", {}).items():
        if getattr(what, name) != wanted:
            raise WrongAnswer(f"{call} has {name}={getattr(what, name)!r}; it should be {wanted!r}.")


def _schedule(call: str, s: Any, case: dict) -> dict:
    if not isinstance(s, Schedule):
        raise WrongAnswer(f"{call} returns {_kind(s)}; it should be a Schedule.")
    _compare(call, s, case)
    try:
        prove(s)
    except WrongSchedule as wrong:
        until = Schedule(s.collective, s.world_size, s.steps[: wrong.step], s.chunks, s.root, s.name)
        plays = _plays(until)
        plays["says"][-1] = str(wrong)
        raise WrongAnswer(f"{call} is wrong: {wrong}", plays) from None
    counted, most = count(s), case.get("steps")
    words = (
        f"{counted.steps} steps, at least {counted.bound.steps}; the busiest rank sends or receives {counted.most} S, at "
        f"least {counted.bound.bytes} S."
    )
    if most is not None and counted.steps > most:
        raise WrongAnswer(f"{call} is right, but takes {counted.steps} steps; {most} are enough.", _plays(s))
    return {"words": words, "plays": _plays(s)}


def _plays(s: Schedule) -> dict:
    return {"kind": "steps", "title": title(s), "pause": PAUSE, **playback(s)}


def _pipeline(call: str, rows: Any, case: dict) -> dict:
    if not isinstance(rows, (list, tuple)):
        raise WrongAnswer(f"{call} returns {_kind(rows)}; it should be a list of lists, one for each rank.")
    try:
        s = Pipeline(rows, "yours")
    except (ValueError, TypeError) as wrong:
        raise WrongAnswer(f"{call} is wrong: {wrong}") from None
    try:
        prove_pipeline(s)
    except WrongPipeline as wrong:
        raise WrongAnswer(f"{call} is wrong: {wrong}", _orders(s)) from None
    _compare(call, s, case)
    counted = count_pipeline(s)
    if counted.peaks and max(counted.peaks) > case.get("keeps", max(counted.peaks)):
        rank = counted.peaks.index(max(counted.peaks))
        raise WrongAnswer(
            f"{call} is wrong: rank {rank} keeps {number(counted.peaks[rank])} microbatches at a time, and {case['keeps']} are "
            "allowed.",
            _orders(s),
        )
    if counted.time > case.get("time", counted.time):
        words = f"{call} is right, but slow: a step takes {number(counted.time)}, and the limit is {case['time']}."
        raise WrongAnswer(words, _orders(s))
    words = f"A step takes {number(counted.time)}, of which the busiest rank works {number(counted.work)}: a bubble of "
    words += f"{counted.of_work:.0%} of the work. A rank keeps at most {number(max(counted.peaks))} microbatches."
    return {"words": words, "plays": _orders(s)}


def _orders(s: Pipeline) -> dict:
    """A pipeline in time, a lane per rank: [stage, kind, microbatch, start, end] per action, and activations kept."""
    lanes, starved = plan(s)
    said = [f"rank {w.rank} waits at {w.action} for {w.needs}" for w in starved]
    return {
        "kind": "orders",
        "title": s.title,
        "lanes": [[[*box.action, box.start, box.end] for box in lane] for lane in lanes],
        "keeps": [max(kept(s, rank)) for rank in range(s.ranks)],
        "starved": said,
    }


def _line(error: BaseException) -> int | None:
    """The last line of the code that an error went through; a SyntaxError's own."""
    if isinstance(error, SyntaxError) and error.filename == FILE:
        return error.lineno
    mine = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE]
    return mine[-1] if mine else None


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"
