"""The short tasks of chapter 24: blocks of eight bits, their sum, an outer step, fragments, and how rarely ranks must talk.

to_int8(x, block): x in integers of 8 bits, with a scale for each block.  part_of_sum(numbers, scales): a rank's part of the
sum.  outer_step(weights, anchor, momentum, lr, mu): the weights after a talk.  due_fragment(step, every, fragments): the
fragment that travels after a step.  steps_between(n, nbytes, bandwidth, compute, share): the fewest steps between two talks.
"""

from math import ceil
from typing import Any

import torch

from collectives.format import kind
from helpers.exercise import Budget, Case, Finding, Puzzle, Suspect, Task, valued

# --- to_int8 ------------------------------------------------------------------------------

TO_INT8 = "to_int8"


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape)))


def with_outlier() -> torch.Tensor:
    x = random(64)
    x[5] = 1000.0
    return x


def largest_is_negative() -> torch.Tensor:
    x = random(32)
    x[3] = -7.5
    return x


BLOCKS = {
    "a single block": lambda: (random(8), 8),
    "three blocks": lambda: (random(24), 8),
    "a block whose largest number is negative": lambda: (largest_is_negative(), 16),
    "blocks of different sizes of numbers": lambda: (
        random(32) * torch.tensor([1e-6, 1.0, 1e6, 30.0]).repeat_interleave(8),
        8,
    ),
    "a block of zeros": lambda: (torch.cat([random(16), torch.zeros(16)]), 16),
    "one number that is 1,000 times as large": lambda: (with_outlier(), 32),
}


def decoded(numbers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (numbers.view(len(scales), -1).double() * scales[:, None].double()).flatten()


def encoded(x: torch.Tensor, block: int, most: float = 127, rounded: bool = True, largest: Any = None) -> tuple:
    """The task's answer, and what people write instead: cut off, one scale, a scale of the largest signed number."""
    blocks = x.view(-1, block)
    scales = (largest(blocks) if largest else blocks.abs().amax(1)) / most
    numbers = blocks / scales.clamp_min(1e-30)[:, None]
    numbers = numbers.round() if rounded else numbers.trunc()
    return ((numbers.long() + 128) % 256 - 128).to(torch.int8).flatten(), scales


MISTAKES = (
    (
        lambda x, block: encoded(x, block, rounded=False),
        "`.to(torch.int8)` cuts off, and doesn't round. Round to the nearest integer first.",
    ),
    (
        lambda x, block: encoded(x, block, largest=lambda b: b.abs().amax().expand(len(b))),
        "all blocks have one scale, and the largest number decides for all. Each block has its own.",
    ),
    (
        lambda x, block: encoded(x, block, largest=lambda b: b.amax(1)),
        "the scale is that of the largest number with its sign. A negative number may be larger than that, and wraps.",
    ),
    (
        lambda x, block: encoded(x, block, most=128),
        "the largest number becomes 128, which an int8 doesn't have: it wraps to -128. How far does int8 reach?",
    ),
)


def is_like(got: torch.Tensor, wrong: tuple) -> bool:
    return torch.allclose(got, decoded(*wrong), rtol=1e-5, atol=1e-12)


def judged(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
    x, block = arguments
    wrong = f"{TO_INT8} is wrong for {case.kind}"
    if (
        not isinstance(result, (tuple, list))
        or len(result) != 2
        or not all(isinstance(t, torch.Tensor) for t in result)
    ):
        words = f"{wrong}: it must return two tensors, numbers and scales, not {kind(result)}."
        return Finding("values", words=words, thought="return numbers, scales")
    numbers, scales = result
    for name, tensor, dtype, length in (
        ("the numbers", numbers, torch.int8, len(x)),
        ("the scales", scales, torch.float32, len(x) // block),
    ):
        if tensor.dtype != dtype or tensor.shape != (length,):
            got = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            words = (
                f"{wrong}.\n  expected   {name} in {str(dtype).removeprefix('torch.')} [{length}]\n  got        {got}"
            )
            return Finding(
                "values", words=words, thought="flat tensors: a number for each element, a scale for each block."
            )
    got, limit = decoded(numbers, scales), x.view(-1, block).abs().amax(1).double() / 254
    error = (got - x.double()).view(-1, block).abs().amax(1)
    if bool((error <= limit * 1.001 + 1e-30).all()):
        return None
    at = int((~(error <= limit * 1.001 + 1e-30)).nonzero()[0])
    words = (
        f"{wrong}: numbers times scale are too far from block {at}.\n"
        f"  expected   at most {limit[at]:.4g} apart, half a scale\n  got        {error[at]:.4g}"
    )
    if got.isnan().any():
        thought = "0 / 0 is nan. What should the numbers of a block of zeros be?"
    else:
        thought = next((thought for mistake, thought in MISTAKES if is_like(got, mistake(x, block))), "")
    thought = thought or "a block's largest number, without its sign, becomes 127. What is the scale then?"
    return Finding("values", words=words, thought=thought)


def praised(case: Case, arguments: tuple, result: Any) -> str:
    x, block = arguments
    return f"{1 + 4 / block:g} bytes per element instead of 4, and each within half a scale."


TO_INT8_TASK = Puzzle(
    TO_INT8,
    tuple(Case(1, words) for words in BLOCKS),
    lambda d: BLOCKS[d.case.kind](),
    judged,
    praised,
    thoughts={
        "RankFailed": "x.view(-1, block) has a row for each block, and .abs().amax(1) each row's largest number."
    },
)


# --- part_of_sum --------------------------------------------------------------------------

NUMBERS = 4  # in a block
PARTS = tuple(Case(n, size=2 if n == 3 else 1, late=n - 1 if n == 4 else None) for n in (2, 3, 4, 5, 6, 7, 8, 1))


def numbers_and_scales(d):
    blocks = d.world_size * d.case.size
    numbers = torch.randint(-127, 128, (blocks * NUMBERS,), generator=d.own).to(torch.int8)
    return numbers, torch.randint(1, 9, (blocks,), generator=d.own) / 8


def values(numbers, scales):
    return decoded(numbers, scales).float()


def parts_of(args):
    total = sum(values(*pair) for pair in args)
    return list(total.chunk(len(args)))


def summed_as_bytes(args):
    """The integers added up as an all_reduce does, times the rank's own scales."""
    total = sum(numbers.long() for numbers, _ in args)
    wrapped = ((total + 128) % 256 - 128).to(torch.int8)
    return [values(wrapped, scales).chunk(len(args))[rank] for rank, (_, scales) in enumerate(args)]


def summed_first(args):
    """The integers added up in a wider type, times the rank's own scales."""
    total = sum(numbers.long() for numbers, _ in args)
    return [values(total, scales).chunk(len(args))[rank] for rank, (_, scales) in enumerate(args)]


def of_all_parts(case):
    n = case.world_size
    return (n - 1) * case.size * (NUMBERS + 4)


PART_OF_SUM = Task(
    "part_of_sum",
    PARTS,
    numbers_and_scales,
    parts_of,
    lambda case, args: Budget(
        "(N-1)/N of the numbers and scales, in two calls",
        sent=[of_all_parts(case)] * case.world_size,
        received=[of_all_parts(case)] * case.world_size,
        calls=[2] * case.world_size,
    ),
    needs=lambda case, args: [(case.world_size - 1) * case.size * NUMBERS] * case.world_size,
    parameters=("numbers", "scales"),
    suspects=(
        Suspect(
            summed_as_bytes,
            "the integers were added up in 8 bits, so they wrapped, and times this rank's scales. Every rank's numbers need "
            "that rank's scales first.",
        ),
        Suspect(
            summed_first,
            "the integers were added up before they were scaled. Ranks have different scales: multiply, then add.",
        ),
        Suspect(
            lambda args: [values(*pair).chunk(len(args))[rank] for rank, pair in enumerate(args)],
            "this is the rank's own version of its part. The other ranks' are missing.",
        ),
        Suspect(
            lambda args: [sum(values(*pair) for pair in args)] * len(args),
            "this is the whole sum. Rank r returns part r of it.",
        ),
        Suspect(
            lambda args: [
                torch.cat([values(*pair).chunk(len(args))[rank] for pair in args]) for rank in range(len(args))
            ],
            "these are all ranks' versions of this part, end to end. Add them up.",
        ),
    ),
    thoughts={
        "values": "an all_to_all gives rank r every rank's part r: of the numbers, and of the scales. After it, which scale belongs "
        "to which numbers?",
        "traffic": "the result is right, but ranks receive more than their part of each rank's numbers. Which collective sends each "
        "rank a different part?",
        "calls": "the result is right. One call for the numbers and one for the scales are enough.",
        "RankFailed": "after the all_to_all, view the numbers as [N, blocks of a part, numbers of a block], and the scales as "
        "[N, blocks of a part, 1].",
    },
)


# --- outer_step ---------------------------------------------------------------------------

OUTER = tuple(Case(n, size=3, late=n - 1 if n == 3 else None) for n in (2, 3, 4, 5, 6, 7, 8, 1)) + (
    Case(2, "fractions", 5),
    Case(4, "plain averaging", 4),
    Case(3, "no momentum yet", 2, torch.float64),
)
SETTINGS = {"plain averaging": (1.0, 0.0)}  # of any other kind of case: 0.7 and 0.9


def weights_and_states(d):
    lr, mu = SETTINGS.get(d.case.kind, (0.7, 0.9))
    momentum = d.numbers(d.case.size, common=True)
    if d.case.kind in ("plain averaging", "no momentum yet"):
        momentum.zero_()
    return d.numbers(d.case.size), d.numbers(d.case.size, common=True), momentum, lr, mu


def stepped(args, sign=1, divisor=None, only=None, nesterov=True, wide=torch.double):
    """(new weights, new momentum), in the case's dtype."""
    weights = [w.to(wide) for w, *_ in args] if only is None else [args[only][0].to(wide)]
    _, anchor, momentum, lr, mu = args[0]
    moved = sign * sum(anchor.to(wide) - w for w in weights) / (divisor or len(weights))
    new = mu * momentum.to(wide) + moved
    step = moved + mu * new if nesterov else new
    return (anchor.to(wide) - lr * step).to(anchor.dtype), new.to(anchor.dtype)


OUTER_STEP = Task(
    "outer_step",
    OUTER,
    weights_and_states,
    lambda args: [stepped(args)[0]] * len(args),
    lambda case, args: Budget(
        "one all_reduce of the weights",
        sent=[2 * (case.world_size - 1) / case.world_size * args[0][0].nbytes] * case.world_size,
        received=[2 * (case.world_size - 1) / case.world_size * args[0][0].nbytes] * case.world_size,
        calls=[1] * case.world_size,
    ),
    after=lambda args: [(weights, anchor, stepped(args)[1], lr, mu) for weights, anchor, _, lr, mu in args],
    needs=lambda case, args: [args[0][0].nbytes * (case.world_size > 1)] * case.world_size,
    parameters=("weights", "anchor", "momentum", "lr", "mu"),
    suspects=(
        Suspect(
            lambda args: [stepped(args, sign=-1)[0]] * len(args),
            "this walks away from where the ranks went. A gradient points uphill, so it is anchor - weights.",
        ),
        Suspect(
            lambda args: [stepped(args, divisor=1)[0]] * len(args),
            "this is the sum of the ranks' ways, and it should be their mean.",
        ),
        Suspect(
            lambda args: [stepped(args, only=rank)[0] for rank in range(len(args))],
            "each rank has stepped by its own way alone. From here on, the replicas are different models.",
        ),
        Suspect(
            lambda args: [stepped(args, nesterov=False)[0]] * len(args),
            "that is plain momentum. Nesterov's step is moved + mu * momentum, with the momentum that has just been updated.",
        ),
        Suspect(
            lambda args: [(sum(w.double() for w, *_ in args) / len(args)).to(args[0][0].dtype)] * len(args),
            "this is the mean of the weights: the outer step with lr = 1 and mu = 0. Where do lr and momentum go?",
        ),
        Suspect(
            lambda args: [stepped(args)[1]] * len(args),
            "this is the momentum. Return the weights: anchor - lr * (moved + mu * momentum).",
        ),
    ),
    thoughts={
        "values": "moved is the mean over ranks of anchor - weights. It plays the gradient: momentum = mu * momentum + moved, and "
        "the step is lr * (moved + mu * momentum), from the anchor.",
        "traffic": "the result is right, but more travels than one all_reduce. All ranks have the same anchor and momentum.",
        "calls": "the result is right, but there is more than one call. What do the ranks not know of each other?",
        "inputs": "momentum.mul_(mu).add_(moved) writes into the tensor that was passed. The other arguments stay as they are.",
    },
)

# --- due_fragment -------------------------------------------------------------------------


def due(step, every, fragments):
    gap = every // fragments
    return None if step % gap else (step // gap - 1) % fragments


DUE_FRAGMENT = valued(
    "due_fragment",
    {
        "step 20, every 20, 1 fragment": (20, 20, 1),
        "step 19, every 20, 1 fragment": (19, 20, 1),
        "step 40, every 20, 1 fragment": (40, 20, 1),
        "step 5, every 20, 4 fragments": (5, 20, 4),
        "step 10, every 20, 4 fragments": (10, 20, 4),
        "step 20, every 20, 4 fragments": (20, 20, 4),
        "step 25, every 20, 4 fragments": (25, 20, 4),
        "step 27, every 20, 4 fragments": (27, 20, 4),
        "step 1, every 1, 1 fragment": (1, 1, 1),
    },
    due,
    suspects={
        lambda step, every, fragments: (
            None if step % every else 0
        ): "this waits for `every` steps and forgets the fragments. "
        "With 4 of them, one travels every `every / 4` steps.",
        lambda step, every, fragments: (
            None if step % (every // fragments) else (step // (every // fragments)) % fragments
        ): "this starts with fragment 1. The first to travel is fragment 0.",
        lambda step, every, fragments: (
            None if step % (every // fragments) else step // (every // fragments) - 1
        ): "after the last fragment, fragment 0 is due again.",
        lambda step, every, fragments: -1 if step % (every // fragments) else due(step, every, fragments): "if no "
        "fragment is due, return None.",
    },
    thought="fragments take turns, one every `every / fragments` steps, so each has its own turn once in `every` steps.",
    praise="After step 1 of every 1, fragment {}.",
)

# --- steps_between ------------------------------------------------------------------------


def talk_seconds(n, nbytes, bandwidth):
    return 2 * (n - 1) / n * nbytes / bandwidth


def least_steps(n, nbytes, bandwidth, compute, share):
    exact = talk_seconds(n, nbytes, bandwidth) * (1 - share) / (share * compute)
    return max(1, ceil(exact))


STEPS_BETWEEN = valued(
    "steps_between",
    {
        "two data centers, 28 GB, 1.25 GB/s": (2, 28e9, 1.25e9, 4.0, 0.05),
        "two data centers, 7 GB, 12.5 GB/s": (2, 7e9, 12.5e9, 4.0, 0.05),
        "14 nodes, 10 GB, 0.18 GB/s": (14, 10e9, 0.18e9, 22.8, 0.043),
        "8 ranks, where every step may talk": (8, 1e6, 50e9, 1.0, 0.1),
        "4 ranks, half of the time": (4, 3e9, 1e9, 0.4, 0.5),
    },
    least_steps,
    suspects={
        lambda n, nbytes, bandwidth, compute, share: ceil(
            talk_seconds(n, nbytes, bandwidth) / (share * compute)
        ): "`share` is a part of the whole time, which is the talk and the steps together, not of the steps alone.",
        lambda n, nbytes, bandwidth, compute, share: max(
            1, ceil(nbytes / bandwidth * (1 - share) / (share * compute))
        ): "an all_reduce sends 2(N-1)/N times the bytes.",
        lambda n, nbytes, bandwidth, compute, share: max(
            1, int(talk_seconds(n, nbytes, bandwidth) * (1 - share) / (share * compute))
        ): "with the number rounded down, ranks wait a little longer than allowed. At least one step lies between two talks.",
        lambda n, nbytes, bandwidth, compute, share: (
            talk_seconds(n, nbytes, bandwidth) * (1 - share) / (share * compute)
        ): "steps are integers: round up.",
        lambda n, nbytes, bandwidth, compute, share: (
            ceil(talk_seconds(n, nbytes, bandwidth) * (1 - share) / (share * compute)) + 1
        ): "one step fewer is enough.",
    },
    thought="a talk takes 2(N-1)/N nbytes / bandwidth seconds, and H steps H * compute. Talk / (talk + H * compute) may be `share`.",
    praise="4 ranks may wait half of the time, so they talk every {} steps.",
)

TASKS = (TO_INT8_TASK, PART_OF_SUM, OUTER_STEP, DUE_FRAGMENT, STEPS_BETWEEN)
