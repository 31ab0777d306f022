"""mean_in_8_bits(gradient, error): the mean over ranks in 8 bits, whose rounding errors are sent with the next gradient."""

import torch

from helpers.exercise import Budget, Case, Suspect, Task

BLOCK = 32  # elements that share a scale
ROW_BYTES = BLOCK + 4

CASES = (
    Case(2, "fractions", 64),
    Case(2, "an error from before", 64),
    Case(3, "fractions", 96, late=0),
    Case(3, "an error from before", 70),
    Case(4, "fractions", 10),
    Case(4, "a gradient of zeros", 128),
    Case(5, "an error from before", 200, late=4),
    Case(6, "fractions", 192),
    Case(7, "one number that is 1,000 times as large", 230),
    Case(8, "an error from before", 300),
    Case(8, "fractions", 256, late=2),
    Case(1, "an error from before", 40),
)


def draw(d):
    while True:
        args = [gradient_and_error(d, rank) for rank in range(d.world_size)]
        if is_clear(args):
            return args[d.rank]


def gradient_and_error(d, rank):
    """A rank's arguments, from what is drawn alike on all ranks."""
    size, kind = d.case.size, d.case.kind
    gradient, error = (torch.randn(size, generator=d.common) for _ in range(2))
    if kind != "an error from before":
        error.zero_()
    if kind == "a gradient of zeros" and rank == 0:
        gradient.zero_()
    if kind.startswith("one number") and rank == 1:
        gradient[size // 2] = 1000.0
    return gradient, error


def is_clear(args):
    """Whether no number is halfway between two integers, where the last bit of its sum would decide."""
    mean = sum(map(rounded, sums_of(args))) / len(args)
    return all(halfway(x) > 1e-4 for x in (*sums_of(args), mean))


def halfway(x):
    """How near to halfway between two integers a number comes, in units of its scale."""
    blocks = x.view(-1, BLOCK)
    steps = blocks / (blocks.abs().amax(1, keepdim=True) / 127).clamp_min(1e-30)
    return float((steps - steps.floor() - 0.5).abs().min())


def sums_of(args, feedback=True):
    """Each rank's gradient and error, with zeros up to N equal parts of whole blocks."""
    sums = [gradient + error if feedback else gradient for gradient, error in args]
    zeros = padded_length(len(sums[0]), len(args)) - len(sums[0])
    return [torch.nn.functional.pad(x, (0, zeros)) for x in sums]


def rounded(x):
    """x, in whole blocks, as it arrives."""
    blocks = x.view(-1, BLOCK)
    scales = blocks.abs().amax(1, keepdim=True) / 127
    return ((blocks / scales.clamp_min(1e-30)).round().to(torch.int8) * scales).flatten()


def padded_length(length, n):
    return -(-length // (BLOCK * n)) * BLOCK * n


def exchanged(args, feedback=True, second=True, own_exact=False, whole=False, divisor=None):
    """Per rank (mean, error).  second: whether the owner of a part keeps what its rounding lost, and the rest likewise."""
    n, length = len(args), len(args[0][0])
    padded = sums_of(args, feedback)
    arrived = [x if whole else rounded(x) for x in padded]
    errors = [x - y for x, y in zip(padded, arrived)]
    mean = sum(arrived) / (divisor or n)
    result = mean if whole else torch.cat([rounded(part) for part in mean.chunk(n)])
    means = [result.clone() for _ in args]
    for rank in range(n):
        size = len(mean) // n
        part = slice(rank * size, (rank + 1) * size)
        if second:
            errors[rank][part] += n * (mean - result)[part]
        if own_exact:
            means[rank][part] = mean[part]
    return [(m[:length], e[:length]) for m, e in zip(means, errors)]


def means(args, **options):
    return [mean for mean, _ in exchanged(args, **options)]


def errors(args, **options):
    return [error for _, error in exchanged(args, **options)]


def budget(case, args):
    n = case.world_size
    limit = [2 * (n - 1) / n * padded_length(case.size, n) / BLOCK * ROW_BYTES] * n
    return Budget(
        "2(N-1)/N bytes per element of the padded gradient, and a scale of 4 bytes for each 32, in at most four calls",
        sent=limit,
        received=limit,
        calls=[4] * n,
        least=2 * (n - 1) / n * case.size,
    )


def needs(case, args):
    """A byte for each element that others own."""
    n = case.world_size
    part = padded_length(case.size, n) // n
    return [case.size - max(0, min(part, case.size - rank * part)) for rank in range(n)] if n > 1 else [0]


TASK = Task(
    "mean_in_8_bits",
    CASES,
    draw,
    means,
    budget,
    needs=needs,
    after=lambda args: [(gradient, error) for (gradient, _), error in zip(args, errors(args))],
    new=True,
    parameters=("gradient", "error"),
    suspects=(
        Suspect(
            lambda args: means(args, feedback=False),
            "the error of earlier steps isn't in it. Add it to the gradient before you round.",
        ),
        Suspect(
            lambda args: means(args, own_exact=True),
            "a rank keeps its own part as it was before the second rounding, so its replica differs from the others'. Use what "
            "you sent.",
        ),
        Suspect(
            lambda args: means(args, whole=True),
            "this is the exact mean, which no 8 bits can carry. Round before the first exchange, and again before the second.",
        ),
        Suspect(lambda args: means(args, divisor=1), "this is the sum over ranks. The result is the mean."),
        Suspect(
            lambda args: errors(args, second=False),
            "the second rounding loses something as well. The rank that rounds a part of the mean keeps N times what that part "
            "lost, for the sum over ranks lost it N times.",
        ),
        Suspect(
            lambda args: [old + new for (_, old), new in zip(args, errors(args))],
            "the old error is still in it. It went into what was sent, so the new one replaces it.",
        ),
        Suspect(
            lambda args: [-error for error in errors(args)],
            "this is what was sent minus what should have been. Turn it around.",
        ),
    ),
    thoughts={
        "values": "four steps: add the error, round to blocks of 32 and exchange; add up in float32 and divide; round again and gather. "
        "Zeros fill the gradient up to N equal parts of whole blocks.",
        "sent": "the result is right. Numbers travel as int8, with 4 bytes for each 32 of them. Does each rank get only its part "
        "of the others' numbers?",
        "received": "the result is right. Numbers travel as int8, with 4 bytes for each 32 of them. Does each rank get only its "
        "part of the others' numbers?",
        "calls": "numbers and scales are two calls per exchange, or one if a row of bytes holds both.",
        "RankFailed": "a part has whole blocks of 32 numbers: pad the gradient to a multiple of 32 N. And 0 / 0 isn't an int8.",
        "Mismatch": "all ranks pad to the same length, whatever their gradient holds.",
    },
)
