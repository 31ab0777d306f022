"""Whether an answer is right, and what it costs: a pure function of what came out of a run.

Nothing here runs an answer.  A `Task` says what is wanted, an `Attempt` holds what came
out of one case, `judge` compares them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable

import torch

from ..record import Event
from ..traffic import Traffic, count
from . import words
from .cases import Case, Draw, ranks
from .puzzle import Puzzle

ANY = object()  # a wanted result that does not matter
# How far a result may be off, as a part of the largest number that goes in.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Budget:
    """The most an answer may move. Lists hold one number a rank; None: not limited."""

    words: str  # as the statement says it
    sent: list[float] | None = None  # bytes
    received: list[float] | None = None  # bytes
    messages: list[int] | None = None  # sent
    steps: int | None = None
    links: set[tuple[int, int]] | None = None  # (source, target): who may send to whom
    least: float | None = None  # bytes: fewer are impossible for the busiest rank


@dataclass(frozen=True)
class Suspect:
    """A mistake people make, known by its result."""

    result: Callable[[list[tuple]], list[Any]]  # from all ranks' arguments, one a rank
    thought: str


@dataclass(frozen=True)
class Task:
    """What one function must do."""

    name: str  # of the function
    cases: tuple[Case, ...]
    draw: Callable[[Draw], tuple]  # the arguments of one rank
    reference: Callable[[list[tuple]], list[Any]]  # what each rank must return
    budget: Callable[[Case, list[tuple]], Budget]
    after: Callable[[list[tuple]], list[tuple]] | None = lambda args: args  # the arguments afterwards; None: whatever
    allowed: frozenset[str] | None = None  # ops; None: all
    scale: Callable[[list[tuple]], float] | None = None  # TOLERANCE is a part of this
    parameters: tuple[str, ...] = ("x",)  # of the function
    suspects: tuple[Suspect, ...] = ()
    thoughts: dict[str, str] = field(default_factory=dict)  # aspect -> one thing to think about

    def arguments(self, case: Case, seed: str = "") -> list[tuple]:
        """What each rank's function is called with."""
        return [self.draw(Draw(seed, self.name, case, rank)) for rank in range(case.world_size)]


@dataclass
class Attempt:
    """What came out of one case."""

    results: list[Any]  # per rank: what the function returned
    arguments: list[tuple]  # per rank: its arguments afterwards
    events: list[list[Event]]  # per rank


@dataclass(frozen=True)
class Verdict:
    """Why an answer is not right. aspect: "calls", "inputs", "values", "waits" or "budget"."""

    aspect: str
    headline: str
    details: str
    thought: str
    shows: Any = None  # what can be drawn of it, besides the run

    def __str__(self) -> str:
        return "\n".join(
            part for part in (self.headline, self.details, f"Think: {self.thought}" * bool(self.thought)) if part
        )


def judge(task: Task | Puzzle, case: Case, given: list[tuple], attempt: Attempt, budget: bool = True) -> Verdict | None:
    """The first thing that is wrong, or None.

    given: the arguments each rank got.  budget: whether what it costs counts.
    """
    if isinstance(task, Puzzle):
        return task.verdict(case, given[0], attempt.results[0], budget)
    traffic = count(attempt.events)
    return (
        _calls(task, attempt)
        or _values(task, case, given, attempt, traffic)
        or _inputs(task, case, given, attempt)
        or _waits(task, attempt)
        or (_budget(task, case, given, traffic) if budget else None)
    )


# --- values -------------------------------------------------------------------------------


def _values(task: Task, case: Case, given: list[tuple], attempt: Attempt, traffic: Traffic) -> Verdict | None:
    wanted = task.reference(given)
    wrong = _wrong(task, given, wanted, attempt.results)
    if not wrong:
        return None
    rank, what = next(iter(wrong.items()))
    headline = f"{task.name} is wrong on rank {rank} of {ranks(case.world_size)}: {what}"
    details = words.values(case, task.parameters, given, wanted[rank], attempt.results[rank], list(wrong))
    details += "\n" + words.cost(traffic, task.budget(case, given))
    return Verdict("values", headline, details, _suspicion(task, given, attempt.results, list(wrong)))


def _wrong(task: Task, given: list[tuple], wanted: list, got: list) -> dict[int, str]:
    """The ranks whose result is not the wanted one, each with what is wrong in a few words."""
    scale = _scale(task, given)
    found = {rank: difference(w, g, scale) for rank, (w, g) in enumerate(zip(wanted, got))}
    return {rank: what for rank, what in found.items() if what}


def difference(wanted: Any, got: Any, scale: float) -> str:
    """In a few words; '' if there is none worth mentioning."""
    if wanted is ANY:
        return ""
    if isinstance(wanted, (tuple, list)):
        if not isinstance(got, (tuple, list)) or len(got) != len(wanted):
            return f"it must return {len(wanted)} things, not {words.kind(got)}."
        each = [difference(w, g, scale) for w, g in zip(wanted, got)]
        return next((f"result {k + 1} of {len(each)}: {what}" for k, what in enumerate(each) if what), "")
    if isinstance(wanted, torch.Tensor):
        if not isinstance(got, torch.Tensor):
            return f"it must return a tensor, not {words.kind(got)}."
        if got.dtype != wanted.dtype or got.shape != wanted.shape:
            return f"it must return {words.kind(wanted)}, not {words.kind(got)}."
        bad = int(unequal(wanted, got, scale).sum())
        return (
            f"{bad} of {wanted.numel()} number{'s' * (wanted.numel() != 1)} differ{'s' * (wanted.numel() == 1)}."
            * bool(bad)
        )
    if isinstance(got, torch.Tensor) and got.numel() == 1 and wanted is not None:
        got = got.item()
    if isinstance(wanted, float) and type(got) is float:
        wanted, got = torch.tensor(wanted, dtype=torch.float32), torch.tensor(got, dtype=torch.float32)
        return f"it returned {got.item():g}, not {wanted.item():g}." * bool(unequal(wanted, got, scale))
    if type(got) is not type(wanted):
        return f"it must return {words.kind(wanted)}, not {words.kind(got)}."
    return f"it returned {got}, not {wanted}." * (got != wanted)


def unequal(wanted: torch.Tensor, got: torch.Tensor, scale: float) -> torch.Tensor:
    """Where two tensors of one shape and dtype differ."""
    if wanted.dtype not in TOLERANCE:
        return wanted != got
    off = TOLERANCE[wanted.dtype] * scale
    return ~torch.isclose(got.double(), wanted.double(), rtol=0.0, atol=off, equal_nan=True)


def _scale(task: Task, given: list[tuple]) -> float:
    return task.scale(given) if task.scale else largest(given)


def largest(given: Any) -> float:
    """The largest finite magnitude among all numbers of the arguments; 1 if all are smaller."""
    if isinstance(given, (list, tuple)):
        return max((largest(value) for value in given), default=1.0)
    if not isinstance(given, torch.Tensor):
        return 1.0
    finite = given.double().abs()
    finite = finite[finite.isfinite()]
    return max(1.0, float(finite.max())) if finite.numel() else 1.0


def _suspicion(task: Task, given: list[tuple], got: list, wrong: list[int]) -> str:
    """What to think about, from the mistake that gives these very results."""
    scale = _scale(task, given)
    for suspect in task.suspects:
        would = suspect.result(given)
        if not any(difference(w, g, scale) for w, g in zip(would, got)):
            return suspect.thought
    if all(got[rank] is None for rank in wrong):
        return "the function returns nothing on these ranks. Printing a result does not return it."
    return task.thoughts.get("values", "")


# --- inputs, calls, waits -----------------------------------------------------------------


def _inputs(task: Task, case: Case, given: list[tuple], attempt: Attempt) -> Verdict | None:
    if task.after is None:
        return None
    wanted = task.after(given)
    wrong = _wrong(task, given, wanted, attempt.arguments)
    if not wrong:
        return None
    rank = next(iter(wrong))
    scale = _scale(task, given)
    k = next(k for k, (w, g) in enumerate(zip(wanted[rank], attempt.arguments[rank])) if difference(w, g, scale))
    to_be_kept = not difference(wanted[rank][k], given[rank][k], scale)
    if to_be_kept:
        headline = f"{task.name} changes its input on rank {rank} of {ranks(case.world_size)}."
        thought = "whoever called the function may still need its tensor. Which line writes into it? Work on a copy."
    else:
        headline = f"{task.name} leaves the wrong numbers in its tensor on rank {rank} of {ranks(case.world_size)}."
        thought = _after_suspicion(task, given, attempt.arguments, list(wrong), k)
    details = words.values(case, task.parameters, given, wanted[rank][k], attempt.arguments[rank][k], list(wrong))
    if not to_be_kept:
        details += "\n" + words.cost(count(attempt.events), task.budget(case, given))
    return Verdict("inputs" if to_be_kept else "values", headline, details, thought)


def _after_suspicion(task: Task, given: list[tuple], after: list[tuple], wrong: list[int], k: int) -> str:
    if not any(difference(given[rank][k], after[rank][k], _scale(task, given)) for rank in wrong):
        return (
            "the tensor is as it was before. `x = ...` only gives a new tensor the old name; "
            "`x.copy_(...)` or `x[:] = ...` writes into the one that was passed in."
        )
    return _suspicion(task, given, [arguments[k] for arguments in after], wrong)


def _calls(task: Task, attempt: Attempt) -> Verdict | None:
    if task.allowed is None:
        return None
    for mine in attempt.events:
        for e in mine:
            if e.op not in task.allowed:
                name = e.within or e.op
                return Verdict(
                    "calls",
                    f"{task.name} calls {name}, which this exercise does without.",
                    f"  rank {e.rank}   {words.source(e)}",
                    task.thoughts.get("calls", f"what is left is {', '.join(sorted(task.allowed))}."),
                )
    return None


def _waits(task: Task, attempt: Attempt) -> Verdict | None:
    for mine in attempt.events:
        for e in mine:
            if not e.waited:
                return Verdict(
                    "waits",
                    f"{task.name} never waits for its {'i' * e.is_message}{e.op} on rank {e.rank}.",
                    f"  rank {e.rank}   {words.source(e)}",
                    "until work.wait() returns, nobody knows whether the data has moved. Keep the work, and wait.",
                )
    return None


# --- budget -------------------------------------------------------------------------------


def _budget(task: Task, case: Case, given: list[tuple], traffic: Traffic) -> Verdict | None:
    allowed = task.budget(case, given)

    def verdict(aspect: str, what: str, also: str = "") -> Verdict:
        headline = f"{task.name} is right with {ranks(case.world_size)}, but {what}"
        details = "\n".join(filter(None, [words.traffic(case, traffic, allowed), also]))
        return Verdict("budget", headline, details, task.thoughts.get(aspect, ""))

    if allowed.links is not None and (strangers := sorted(set(traffic.links) - allowed.links)):
        source, target = strangers[0]
        return verdict("links", f"rank {source} sends to rank {target}, and may not.")
    for aspect in ("sent", "received", "messages"):
        limits, counts = getattr(allowed, aspect), getattr(traffic, aspect)
        over = [r for r in range(case.world_size) if limits is not None and counts[r] > limits[r] + 1e-6]
        if over:
            rank = max(over, key=lambda r: counts[r] - limits[r])
            if aspect == "messages":
                return verdict(aspect, f"rank {rank} sends {counts[rank]} messages; {limits[rank]} are enough.")
            verb = {"sent": "sends", "received": "receives"}[aspect]
            return verdict(
                aspect, f"rank {rank} {verb} {words.size_of(counts[rank])}; {words.size_of(limits[rank])} are enough."
            )
    if allowed.steps is not None and traffic.steps > allowed.steps:
        return verdict("steps", f"takes {traffic.steps} steps; {allowed.steps} are enough.")
    return None
