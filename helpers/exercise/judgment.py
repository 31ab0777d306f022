"""The judgment of an answer, its values and its cost: a pure function of a run's outcome.

Nothing here runs an answer or words a verdict: a `Task` defines the expected result, an `Attempt` holds the outcome of
one case, `judge` compares them, and `feedback.explain` words the verdict.
"""

import sys
from dataclasses import replace
from itertools import chain
from typing import Any, Callable, Collection

import torch

from collectives.format import dtype_name
from collectives.log.collectives import of
from collectives.log.event import Event
from collectives.log.traffic import Traffic

from .cases import Case
from .task import ANY_VALUE, Attempt, Finding, Puzzle, Suspect, Task, WrongPart

# The error allowed in a result, relative to the largest number among the inputs.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}

STAYS = "on this rank, the tensor should stay as it was."
OtherCases = Collection[tuple[list[tuple], list[Any]]]

NOTHING_RETURNED = Suspect(
    lambda args: [None for _ in args],
    "the function returns None on these ranks. Printing a result does not return it, and neither does a call that returns None.",
    where_wrong=True,
)


def untouched(argument: int) -> Suspect:
    """The mistake of leaving an argument as it was."""
    return Suspect(
        lambda args: [arguments[argument] for arguments in args],
        "the tensor hasn't changed. What `x = ...`, `xs[k] = ...` or `torch.cat` makes is a new one; `x.copy_(...)` or `x[:] = ...` writes into "
        "the one that was passed in.",
        where_wrong=True,
    )


def judge(
    task: Task | Puzzle, case: Case, inputs: list[tuple], attempt: Attempt, budget: bool = True, others: OtherCases = ()
) -> Finding | None:
    """The first fault, or None.  inputs: each rank's arguments.  budget: whether the cost counts.

    others: the inputs and results of further cases. A mistake that predicts this result only, and not theirs, isn't named.
    """
    if isinstance(task, Puzzle):
        verdict = task.verdict(case, inputs[0], attempt.results[0], budget)
        outcomes = [(x, y) for (x,), (y,) in others]
        return replace(verdict, thought=task.thought_on(outcomes)) if outcomes and task.thought_on else verdict
    allowed, traffic = task.allowed, attempt.traffic
    return (
        _first("calls", attempt, lambda e: allowed is not None and e.op not in allowed)
        or _first("waits", attempt, lambda e: not e.waited)  # it explains any wrong number
        or _values(task, inputs, attempt, traffic, others)
        or _inputs(task, inputs, attempt, traffic)
        or _left(task, attempt)
        or (budget_finding(task, case, inputs, attempt) if budget else None)
    )


def budget_finding(task: Task | Puzzle, case: Case, inputs: list[tuple], attempt: Attempt) -> Finding | None:
    """The first limit that an otherwise right answer exceeds, or None."""
    puzzle = isinstance(task, Puzzle)
    return judge(task, case, inputs, attempt) if puzzle else _budget(task, case, inputs, attempt.traffic, attempt)


def unheard(task: Task | Puzzle, case: Case, inputs: list[tuple], attempt: Attempt) -> Finding | None:
    """The finding about a right result on a rank that received too little to know it: it came otherwise than by calls.

    For an answer that is right in all cases: one that is right in some by luck gets the reason why it is wrong.
    """
    if isinstance(task, Puzzle) or case.world_size == 1:
        return None
    traffic = attempt.traffic
    came = [got + read for got, read in zip(traffic.received, traffic.read or [0] * case.world_size)]
    short = {rank: need for rank, need in enumerate(task.needs(case, inputs)) if came[rank] < need - 1e-6}
    rank = min(short, key=lambda rank: came[rank] - short[rank], default=None)
    return None if rank is None else Finding("needs", (rank,), short[rank], came[rank], traffic=traffic)


def _first(aspect: str, attempt: Attempt, at_fault: Callable[[Event], bool]) -> Finding | None:
    """The finding about the first call that is at fault."""
    return next((Finding(aspect, (e.rank,), event=e) for e in chain(*attempt.events) if at_fault(e)), None)


def _values(task: Task, inputs: list[tuple], attempt: Attempt, traffic: Traffic, others: OtherCases) -> Finding | None:
    wanted, got = task.reference(inputs), attempt.results
    if not (wrong := _wrong(task, inputs, wanted, got)):
        return None
    first = next(iter(wrong))
    suspects = (*task.suspects, NOTHING_RETURNED, *_slips(task))
    suspects = [each for each in suspects if all(_explains(task, each, *o) for o in others)]
    thought = _thought(task, inputs, got, wrong, suspects)
    parts = [(part, x) for x, y in others for part in _wrong(task, x, task.reference(x), y).values()]
    if not thought and all(_form_only(part, _scale(task, x)) for part, x in parts):
        thought = _form_only(wrong[first], _scale(task, inputs))
    thought = thought or _root_only(attempt, wrong, wanted)
    thought = thought or ("" if "-inf" in task.thoughts.get("values", "") else _nan(wrong[first]))  # its own may be about that
    return Finding(
        "values", tuple(wrong), wanted[first], got[first], difference=wrong[first], traffic=traffic, thought=thought
    )


def _inputs(task: Task, inputs: list[tuple], attempt: Attempt, traffic: Traffic) -> Finding | None:
    """An argument that is changed and must not be, or must be and holds the wrong numbers."""
    if task.after is None:
        return None
    wanted = task.after(inputs)
    # One per argument, whatever a forged message claims about them.
    got = [(*left, *(None,) * len(own))[: len(own)] for left, own in zip(attempt.arguments, wanted)]
    if not (wrong := _wrong(task, inputs, wanted, got)):
        return None
    first, scale = next(iter(wrong)), _scale(task, inputs)
    (k, _), *within = wrong[first].place
    verdict = Finding(
        "inputs", tuple(wrong), wanted[first][k], got[first][k], k, wrong[first]._replace(place=tuple(within)), traffic
    )
    left = [arguments[k] for arguments in got]
    if not difference(wanted[first][k], inputs[first][k], scale):
        in_place = any(difference(after[k], before[k], scale) for after, before in zip(wanted, inputs))
        thought = _thought(task, inputs, left, wrong, list(task.suspects))
        return replace(verdict, thought=thought or STAYS) if in_place else verdict
    suspects = [untouched(k), *task.suspects, NOTHING_RETURNED]
    return replace(verdict, aspect="values", thought=_thought(task, inputs, left, wrong, suspects))


def _left(task: Task, attempt: Attempt) -> Finding | None:
    """The finding about flags on the arguments, or about a result that is one of them."""
    unwanted = {"flags": task.after is not None, "argument": task.new}
    return next((Finding(left, (rank,)) for rank, left in enumerate(attempt.left) if unwanted.get(left)), None)


def _wrong(task: Task, inputs: list[tuple], wanted: list, got: list) -> dict[int, WrongPart]:
    """The ranks without the expected result, each with the first difference."""
    scale = _scale(task, inputs)
    differences = {rank: difference(w, g, scale) for rank, (w, g) in enumerate(zip(wanted, got))}
    return {rank: what for rank, what in differences.items() if what}


def difference(wanted: Any, got: Any, scale: float) -> WrongPart | None:
    """The first difference worth mentioning.  scale: TOLERANCE is a part of it."""
    if wanted is ANY_VALUE:
        return None
    if isinstance(wanted, (tuple, list)):
        if not isinstance(got, (tuple, list)) or len(got) != len(wanted):
            return WrongPart(wanted, got)
        parts = (difference(w, g, scale) for w, g in zip(wanted, got))
        within = ((k, part) for k, part in enumerate(parts) if part)
        return next((part._replace(place=((k, len(wanted)), *part.place)) for k, part in within), None)
    if isinstance(wanted, torch.Tensor):
        alike = ("dtype", "shape", "layout")
        if not isinstance(got, torch.Tensor) or any(getattr(got, a) != getattr(wanted, a) for a in alike):
            return WrongPart(wanted, got)
        numbers = int(unequal(wanted, got, scale).sum())
        return WrongPart(wanted, got, numbers=numbers) if numbers else None
    value = got
    if _is_numpys(got) or isinstance(got, torch.Tensor) and got.numel() == 1 and wanted is not None:
        value = got.item()
    if isinstance(wanted, float) and isinstance(value, float):
        single = (torch.tensor(each, dtype=torch.float32) for each in (wanted, value))
        return WrongPart(wanted, value) if unequal(*single, scale) else None
    if type(value) is not type(wanted):
        return WrongPart(wanted, got)
    return WrongPart(wanted, value) if value != wanted else None


def _is_numpys(value: Any) -> bool:
    """Whether a value is a number of NumPy's, which a page doesn't have."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def unequal(wanted: torch.Tensor, got: torch.Tensor, scale: float) -> torch.Tensor:
    """The mask of the places where two tensors of one shape and dtype differ."""
    if wanted.dtype not in TOLERANCE:
        return wanted != got
    off = TOLERANCE[wanted.dtype] * scale
    return ~torch.isclose(got.double(), wanted.double(), rtol=0.0, atol=off, equal_nan=True)


def _scale(task: Task, inputs: list[tuple]) -> float:
    return task.scale(inputs) if task.scale else largest(inputs)


def largest(inputs: Any) -> float:
    """The largest finite magnitude among all numbers of the arguments; 1 if all are smaller."""
    if isinstance(inputs, (list, tuple)):
        return max((largest(value) for value in inputs), default=1.0)
    if not isinstance(inputs, torch.Tensor):
        return 1.0
    finite = inputs[inputs.isfinite()].double().abs()
    return max(1.0, float(finite.max())) if finite.numel() else 1.0


def _thought(task: Task, inputs: list[tuple], got: list, wrong: dict[int, Any], suspects: list[Suspect]) -> str:
    """The thought of the first suspect that gives these very results; "" if none does."""
    found = (suspect.thought for suspect in suspects if _predicts(task, suspect, inputs, got, wrong))
    return next(found, "")


def _predicts(task: Task, suspect: Suspect, inputs: list[tuple], got: list, wrong: Collection[int]) -> bool:
    scale, would = _scale(task, inputs), suspect.result(inputs)
    ranks = wrong if suspect.where_wrong else range(len(got))
    scales = [max(scale, largest(y)) if isinstance(y, torch.Tensor) else scale for y in would]  # large numbers' rounding
    return not any(difference(would[rank], got[rank], scales[rank]) for rank in ranks)


def _explains(task: Task, suspect: Suspect, inputs: list[tuple], got: list) -> bool:
    """Whether a mistake gives the results of this case, right or wrong."""
    return _predicts(task, suspect, inputs, got, _wrong(task, inputs, task.reference(inputs), got))


def _form_only(difference: WrongPart, scale: float) -> str:
    """The thought about numbers that are right in a dtype or shape that is not; "" where they are not right."""
    wanted, got, *_ = difference
    if not all(isinstance(value, torch.Tensor) and value.layout == torch.strided for value in (wanted, got)):
        return ""
    if got.numel() != wanted.numel() or got.is_complex():
        return ""
    if unequal(wanted.flatten(), got.flatten().to(wanted.dtype), scale).any():
        return ""
    name, shape = dtype_name(wanted.dtype), list(wanted.shape)
    if wanted.shape != got.shape:
        return f"the numbers are right, but not the shape. y.reshape({shape}) gives the same numbers in shape {shape}."
    return f"the numbers are right, but not the dtype. y.to(torch.{name}) gives the same numbers as {name}."


def _slips(task: Task) -> list[Suspect]:
    """Mistakes of all tasks: the right numbers by a wrong factor."""
    return [
        Suspect(lambda args, slip=slip: [_changed(y, slip, len(args)) for y in task.reference(args)], thought, True)
        for slip, thought in _SLIPS
    ]


_SLIPS = (
    (lambda y, n: y / n, "these are the right numbers, divided by the number of ranks once too often."),
    (lambda y, n: y * n, "these are the right numbers, times the number of ranks. Is each counted N times, or is a division missing?"),
)  # fmt: skip


def _changed(value: Any, slip: Callable, n: int) -> Any:
    if isinstance(value, (list, tuple)):
        return [_changed(each, slip, n) for each in value]
    if isinstance(value, torch.Tensor):
        return slip(value.double(), n).to(value.dtype)
    return slip(torch.tensor(value, dtype=torch.double), n).item() if type(value) is float else value


def _nan(difference: WrongPart) -> str:
    """The thought about NaNs where numbers are wanted."""
    wanted, got, *_ = difference
    floats = isinstance(wanted, torch.Tensor) and isinstance(got, torch.Tensor) and difference.numbers
    if not floats or not got.is_floating_point() or not (got.isnan() & ~wanted.isnan()).any():
        return ""
    return "where does the NaN come from? It's inf - inf, 0 / 0, 0 * inf, or memory that nothing was written to."


def _root_only(attempt: Attempt, wrong: Collection[int], wanted: list) -> str:
    """The thought about a collective that gives its result to one rank, where that one alone is right."""
    right = set(range(len(attempt.results))) - set(wrong)
    for e in chain(*attempt.events):
        if of(e.op).root == "dst" and right == {e.dst}:
            if all(wanted[rank] is None for rank in wrong):
                return f"rank {e.dst} alone should return the result. What do the others return?"
            return f"rank {e.dst} alone gets the result of {e.op}. Which collective gives it to all ranks?"
    return ""


def most_empty(world_size: int) -> int:
    """The number of a rank's calls that may carry no byte.

    A ring over ranks most of which have nothing makes 4 (N - 1). Many more could encode numbers that no budget counts,
    by their tags, order and count.
    """
    return 8 * world_size + 16


def _budget(task: Task, case: Case, inputs: list[tuple], traffic: Traffic, attempt: Attempt) -> Finding | None:
    budget = task.budget(case, inputs)
    for rank, count in enumerate(traffic.empty):
        if count > (most := most_empty(case.world_size)):
            return Finding("budget", (rank,), most, count, traffic=traffic, limit="empty")
    if budget.links is not None and (strangers := sorted(set(traffic.links) - budget.links)):
        return Finding("budget", strangers[0][:1], got=strangers[0], traffic=traffic, limit="links")
    for limit in ("read", "reads", "sent", "received", "messages", "largest", "calls"):
        limits, counts = getattr(budget, limit), getattr(traffic, limit)
        over = [r for r in range(case.world_size) if limits is not None and counts[r] > limits[r] + 1e-6]
        if over:
            most = max(over, key=lambda r: counts[r] - limits[r])
            return Finding("budget", (most,), limits[most], counts[most], traffic=traffic, limit=limit)
    if budget.steps is not None and traffic.steps > budget.steps:
        return Finding("budget", (), budget.steps, traffic.steps, traffic=traffic, limit="steps")
    for before, event in filter(None, map(_waits_between, attempt.events if budget.together else [])):
        return Finding("budget", (event.rank,), traffic=traffic, limit="together", event=event, before=before)
    for measure in budget.measures:
        counts = measure.count(attempt.events)
        for rank, (got, most) in enumerate(zip(counts, measure.most)):
            least = measure.least[rank] if measure.least else got
            if got > most or got < least:
                wanted = most if got > most else least
                return Finding("budget", (rank,), wanted, got, traffic=traffic, limit=measure.words)
    return None


def _waits_between(events: list[Event]) -> tuple[Event, Event] | None:
    """The call that a rank waited for first, and the first one that it made after that.

    A collective whose future was asked for ends when it is complete, whether or not its rank waits then, which doesn't
    prove a wait.  (On the graders' wire it ends when its rank waits, as every call does there.)
    """
    shared = [e for e in events if len(e.group) > 1]
    waited = [e for e in shared if e.end is not None and (e.waiting is not None or e.is_message or not e.async_op)]
    before = min(waited, key=lambda e: e.end, default=None)
    return next(((before, e) for e in shared if before and before.end <= e.start), None)
