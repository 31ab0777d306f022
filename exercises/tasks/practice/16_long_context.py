"""merge_parts, needed_blocks, zigzag_positions, to_heads and fewest_bytes: attention over a row that is cut."""

import torch

from helpers.exercise import Budget, Case, Suspect, Task, valued


def parts(count: int, queries: int, scale: float) -> tuple:
    """Means and lses of so many parts; lses around `scale`."""
    g = torch.Generator().manual_seed(count)
    means = [torch.randn(queries, 2, generator=g) for _ in range(count)]
    return means, [scale + 2 * torch.randn(queries, 1, generator=g) for _ in range(count)]


def merge_parts(means, lses):
    lses = torch.stack(lses)
    return ((lses - lses.logsumexp(0)).exp() * torch.stack(means)).sum(0)


def needed_blocks(rank, n):
    return list(range(rank, -1, -1))


def zigzag_positions(rank, n, length):
    pieces = torch.arange(length).chunk(2 * n)
    return torch.cat([pieces[rank], pieces[-1 - rank]]).tolist()


def fewest_bytes(n, heads, keys, gathered=lambda n: 4 * (n - 1)):
    gather = gathered(n) * keys / heads
    by_heads = 2 * (2 + 2 * max(keys, n) / heads) * (n - 1) / n
    return "gather" if gather < by_heads else "heads"


HEAD, POSITIONS, WIDTH = 1, 2, 2
CASES = tuple(Case(n, size=size, late=late) for n, size, late in ((2, 1, None), (2, 2, None), (3, 1, 2), (4, 2, None), (5, 1, None), (6, 1, None), (7, 1, 0), (8, 2, None), (1, 2, None)))  # fmt: skip


def draw(d):
    return (d.numbers(d.case.size * d.world_size, POSITIONS, WIDTH),)


def traded(args):
    n = len(args)
    return [torch.cat([x.chunk(n)[rank] for (x,) in args], 1) for rank in range(n)]


def shares(case, args):
    n = case.world_size
    return [(n - 1) / n * args[0][0].nbytes] * n


def budget(case, args):
    return Budget("what the other ranks need of x", sent=shares(case, args), received=shares(case, args))


TASKS = (
    valued(
        "merge_parts",
        {
            "one query, two parts": parts(2, 1, 0.0),
            "three queries, four parts": parts(4, 3, 1.0),
            "large scores": parts(3, 2, 300.0),
            "very negative scores": parts(3, 2, -300.0),
        },
        merge_parts,
        suspects={
            lambda means, lses: torch.stack(means).mean(0): "all parts count alike here. Which part should weigh more?",
            lambda means, lses: (
                sum(m * lse for m, lse in zip(means, lses)) / sum(lses)
            ): "lse is the logarithm of the weight.",
            lambda means, lses: sum(
                m * lse.exp() for m, lse in zip(means, lses)
            ): "the weights must add up to 1. Divide by Z.",
            lambda means, lses: sum(m * lse.exp() for m, lse in zip(means, lses)) / sum(lse.exp() for lse in lses): (
                "exp of a large lse overflows, and of a very negative one it's 0. Subtract something from all of them first."
            ),
        },
        thought="the weight of a part is Z of the part over Z of all. What's that in lse?",
    ),
    valued(
        "needed_blocks",
        {"rank 2 of 4": (2, 4), "rank 0 of 4": (0, 4), "rank 3 of 4": (3, 4), "rank 1 of 3": (1, 3), "alone": (0, 1)},
        needed_blocks,
        suspects={
            lambda rank, n: [
                (rank - hop) % n for hop in range(n)
            ]: "some of these blocks are masked entirely. Which positions come later than yours?",
            lambda rank, n: list(
                range(rank + 1)
            ): "the right owners. In which order do they arrive, your own block being the first?",
            lambda rank, n: [
                (rank + hop) % n for hop in range(n)
            ]: "blocks come from the left: after one hop you hold your left neighbor's.",
            lambda rank, n: list(range(rank - 1, -1, -1)): "your own block counts, too.",
        },
        thought="after hop h you hold the block of rank (rank - h) % n. Which of them are before your positions?",
    ),
    valued(
        "zigzag_positions",
        {"rank 0 of 2": (0, 2, 8), "rank 1 of 2": (1, 2, 8), "rank 1 of 4": (1, 4, 16), "alone": (0, 1, 4)},
        zigzag_positions,
        suspects={
            lambda rank, n, length: (
                torch.arange(length).chunk(n)[rank].tolist()
            ): "that's contiguous: rank 0 has little to do, and the last rank all.",
            lambda rank, n, length: list(range(rank, length, n)): "that's striped, every n-th position. Zigzag gives a rank two "
            "pieces: one from the front, and one from the back.",
            lambda rank, n, length: torch.cat(
                [torch.arange(length).chunk(2 * n)[k] for k in (rank, rank + n)]
            ).tolist(): ("the second piece is counted from the back: rank 0's is the last one."),
            lambda rank, n, length: [
                *torch.arange(length).chunk(2 * n)[rank].tolist(),
                *torch.arange(length).chunk(2 * n)[-1 - rank].flip(0).tolist(),
            ]: ("the right positions, but keep each piece in order."),
        },
        thought="there are 2n pieces. Which is the r-th from the back?",
    ),
    Task(
        "to_heads",
        CASES,
        draw,
        traded,
        budget,
        needs=shares,
        suspects=(
            Suspect(
                lambda args: [torch.cat([x.chunk(len(args))[rank] for (x,) in args], 0) for rank in range(len(args))],
                "what arrives is the same heads at other positions. Along which dimension do you join it?",
            ),
            Suspect(
                lambda args: [
                    torch.cat([x.chunk(len(args))[rank] for (x,) in reversed(args)], 1) for rank in range(len(args))
                ],
                "the heads are right, and the positions are in the wrong order: rank 0's come first.",
            ),
            Suspect(
                lambda args: [torch.cat([x for (x,) in args], 1)[: len(args[0][0]) // len(args)] for _ in args],
                "every rank has the first heads. Which group is rank r's?",
            ),
        ),
        thoughts={
            "values": "cut x along its heads, send piece r to rank r, and join what arrives along the positions.",
            "traffic": "you don't need all heads of every rank. Which call sends each rank a different piece?",
        },
    ),
    valued(
        "fewest_bytes",
        {
            "8 ranks, 128 heads, 8 of keys": (8, 128, 8),
            "16 ranks, 128 heads, 8 of keys": (16, 128, 8),
            "32 ranks, 128 heads, 8 of keys": (32, 128, 8),
            "64 ranks, 64 heads, 2 of keys": (64, 64, 2),
            "8 ranks, as many keys as queries": (8, 32, 32),
            "4 ranks, 32 heads, 8 of keys": (4, 32, 8),
            "10 ranks, 40 heads, 8 of keys": (10, 40, 8),
        },
        fewest_bytes,
        suspects={
            lambda *given: fewest_bytes(
                *given, lambda n: 6 * n - 4
            ): "that's the ring. A gather's backward is one reduce_scatter.",
        },
        thought="gather: 4 (n-1) blocks of keys. By heads: (n-1)/n of q, k, v and o, and again backward.",
    ),
)
