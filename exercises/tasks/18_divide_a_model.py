"""divide(model, gpus, batch), priced by the planner, and average_gradient(gradient, tensor), on real ranks."""

from functools import cache
from typing import Any

import torch

from collectives.cost.planner import Division, Shape, Step, cluster, plan, shape, step
from collectives.format import duration, kind
from helpers.exercise import Budget, Case, Finding, Puzzle, Suspect, Task

SLOWER = 1.1  # times the planner's first choice
JOBS = {  # model, GPUs, and sequences per step
    "Llama 3 8B on 8 GPUs": ("Llama 3 8B", 8, 64),
    "GPT 7.5B on 64 GPUs": ("GPT 7.5B", 64, 128),
    "Llama 3 70B on 256 GPUs": ("Llama 3 70B", 256, 512),
    "Llama 3 405B on 8,192 GPUs": ("Llama 3 405B", 8192, 2048),
    "Llama 3 405B on 16,384 GPUs": ("Llama 3 405B", 16384, 2048),
}


def job(name: str) -> tuple[Shape, int, int]:
    """The arguments of a case."""
    model, gpus, batch = JOBS[name]
    return shape(model).with_(length=8192), gpus, batch


def priced(way: Division, model: Shape, gpus: int, batch: int) -> Step:
    return step(model, way, batch, cluster("H100", gpus), program="FSDP")


@cache
def least(name: str) -> float:
    """Seconds of the planner's first choice."""
    model, gpus, batch = job(name)
    return plan(model, cluster("H100", gpus), batch, program="FSDP")[0].time


def verdict(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
    if not isinstance(result, Division):
        thought = "printing a value doesn't return it." if result is None else ""
        return Finding("values", words=f"divide must return a Division, not {kind(result)}.", thought=thought)
    where = f"{case.kind}, {arguments[2]:,} sequences: {result}"
    try:
        s = priced(result, *arguments)
    except ValueError as error:
        return Finding("values", words=f"{where} isn't possible. {error}", thought="which numbers must divide which?")
    if not s.fits:
        words = f"{where} takes {s.memory.total / 2**30:.0f} GiB, and 20% more doesn't fit."
        parts = "states" if s.memory.total - s.memory.activations > s.memory.activations else "activations"
        thought = f"{parts} take most of it. What shards them, or recomputes them?"
        return Finding("values", words=words, thought=thought)
    if not budget or s.time <= SLOWER * least(case.kind):
        return None
    longest = max((name for name in s.seconds if name != "compute"), key=s.seconds.get)
    words = f"{where} fits and takes {duration(s.time)}; at most {duration(SLOWER * least(case.kind))} is allowed."
    thought = f"it loses {duration(s.seconds[longest])} to {longest}. What makes that less?"
    return Finding("budget", words=words, thought=thought)


def praise(case: Case, arguments: tuple, result: Division) -> str:
    return f"{case.kind}: {result} takes {duration(priced(result, *arguments).time)}."


def draw(d):
    """A gradient of this rank's data, and how many tensor ranks a replica has."""
    return d.numbers(d.case.size), int(d.case.kind.split()[0])


def replicas(args, rank):
    """The gradients of the ranks that hold the same piece of the model."""
    tensor = args[0][1]
    return [gradient.double() for gradient, _ in args[rank % tensor :: tensor]]


def like(args, values):
    return [value.to(gradient.dtype) for (gradient, _), value in zip(args, values)]


def reference(args):
    return like(args, [sum(replicas(args, rank)) / len(replicas(args, rank)) for rank in range(len(args))])


def over_all(args):
    return like(args, [sum(gradient.double() for gradient, _ in args) / len(args)] * len(args))


def over_tensor(args):
    tensor = args[0][1]
    first = [rank - rank % tensor for rank in range(len(args))]
    return like(args, [sum(g.double() for g, _ in args[k : k + tensor]) / tensor for k in first])


def summed(args):
    return like(args, [sum(replicas(args, rank)) for rank in range(len(args))])


def divided_by_all(args):
    return like(args, [sum(replicas(args, rank)) / len(args) for rank in range(len(args))])


def budget(case, args):
    data = case.world_size // args[0][1]
    limit = [2 * (data - 1) / data * case.size * case.dtype.itemsize] * case.world_size
    return Budget("2(d-1)/d of the gradient's bytes per rank, for d data ranks: what the plan prices", limit, limit)


def needs(case, args):
    """The sum of the other replicas' gradients, where there are any."""
    alone = case.world_size == args[0][1]
    return [0 if alone else case.size * case.dtype.itemsize] * case.world_size


def case(ranks, tensor, size, **options):
    return Case(ranks, f"{tensor} tensor rank{'s' * (tensor > 1)}", size, **options)


TASKS = (
    Puzzle("divide", tuple(Case(1, name) for name in JOBS), lambda d: job(d.case.kind), verdict, praise),
    Task(
        "average_gradient",
        (
            case(2, 1, 3),
            case(2, 2, 3),
            case(4, 2, 4),
            case(4, 1, 8),
            case(6, 3, 4, dtype=torch.float64),
            case(6, 2, 6, late=2),
            case(8, 2, 8),
            case(8, 4, 6),
            case(3, 1, 6),
            case(5, 5, 3),
            case(7, 1, 7),
            case(1, 1, 4),
        ),
        draw,
        reference,
        budget,
        after=None,
        needs=needs,
        parameters=("gradient", "tensor"),
        suspects=(
            Suspect(over_all, "gradients of different pieces are averaged. Which ranks hold the same piece?"),
            Suspect(over_tensor, "this is averaged within a replica. Its ranks hold different pieces of the model."),
            Suspect(summed, "this is the sum over the replicas. How many are there?"),
            Suspect(divided_by_all, "this is divided by all ranks. How many gradients went into the sum?"),
        ),
        thoughts={
            "values": "tensor ranks are neighbors. Which ranks have the same place in their replica as this one?",
            "traffic": "only replicas exchange gradients, in groups of their own: one all_reduce in each.",
            "Mismatch": "every rank must call new_group for every group, in the same order, even for those it isn't in.",
            "Stuck": "every rank must call new_group for every group, in the same order, even for those it isn't in.",
        },
    ),
)
