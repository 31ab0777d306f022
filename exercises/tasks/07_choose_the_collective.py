"""Eight small jobs, each with one collective that does it with the fewest bytes. One serves twice, scatter never."""

import torch

from helpers.exercise import ANY_VALUE, LARGE, Budget, Case, Suspect, Task

CASES = (
    Case(2),
    Case(3, "negative numbers", 2),
    Case(4, size=4, dtype=torch.int64),
    Case(5, "fractions", 3, late=0),
    Case(6, "close together, above 2**30", 3, torch.int64),
    Case(7, size=2, dtype=torch.bfloat16),
    Case(8, size=3, late=5),
    Case(1),
)


def one(d):
    return (d.numbers(d.case.size),)


def one_a_rank(d):
    return (d.numbers(d.world_size, d.case.size),)


def total(args):
    return sum(x.double() for (x,) in args).to(args[0][0].dtype)


def stacked(args):
    return torch.stack([x for (x,) in args])


def on_zero(value, args):
    return [value] + [ANY_VALUE] * (len(args) - 1)


def limits(words, zero, others, steps=None):
    """A budget; zero and others: what rank 0 and any other rank may (send, receive), in buffers of `size` numbers."""

    def budget(case, args):
        n, whole = case.world_size, case.size * case.dtype.itemsize
        sent, received = ([whole * times(n)] + [whole * more(n)] * (n - 1) for times, more in zip(zero, others))
        sent, received = ([0], [0]) if n == 1 else (sent, received)
        return Budget(words, sent, received, steps=steps, least=max(sent + received))

    return budget


def nothing(n):
    return 0


def buffers(n):
    return n - 1


def single(n):
    return 1


def around(n):
    return 2 * (n - 1) / n


def same(words, times, steps=None):
    return limits(words, (times, times), (times, times), steps)


def necessary(zero, others):
    """Needs; zero and others: what rank 0 and any other rank must receive, in buffers of `size` numbers."""

    def needs(case, args):
        n, whole = case.world_size, case.size * case.dtype.itemsize
        return [whole * zero(n)] + [whole * others(n)] * (n - 1)

    return needs


def job(name, draw, reference, budget, needs, wanted, thought, **more):
    """A task of its own thoughts: `wanted` says what to return, `thought` asks who needs what moved too much."""
    thoughts = {
        "traffic": thought,
        "values": wanted,
        "steps": "one collective does the job of these in one go, and shares the work among all ranks.",
        "RankFailed": "which arguments does this call take on this rank? A list to gather into belongs on its root only, and a "
        "buffer must be as large as what arrives in it.",
        "Stuck": "do all ranks make the call? Those that need no result have to take part too.",
        "Mismatch": "every rank must name the same collective and the same root, with tensors of one shape and dtype.",
    }
    return Task(name, CASES, draw, reference, budget, needs=needs, after=None, thoughts=thoughts, **more)


def exchanged(args):
    return [torch.stack([x[rank] for (x,) in args]) for rank in range(len(args))]


TASKS = (
    job(
        "rows_for_checkpoint",
        one,
        lambda args: on_zero(stacked(args), args),
        limits("rank 0 receives N-1 rows, the others send one", (nothing, buffers), (single, nothing)),
        necessary(buffers, nothing),
        "on rank 0, row r of the table is rank r's x.",
        "only rank 0 writes the checkpoint. Do the others need any row?",
    ),
    job(
        "summed_gradient",
        one,
        lambda args: [total(args) for _ in args],
        same("2(N-1)/N of a tensor sent and received by each rank, in one call", around, steps=1),
        necessary(single, single),
        "every rank returns the sum of all ranks' tensors.",
        "every rank needs the sum and nothing else: not every rank's gradient. And no rank should do all the work.",
        large=Case(4, "fractions", LARGE),
        suspects=(
            Suspect(
                lambda args: [(total(args).double() / len(args)).to(total(args).dtype)] * len(args),
                "this is the mean over the ranks; their sum is wanted.",
            ),
            Suspect(lambda args: on_zero(total(args), args), "rank 0 has the sum. All ranks step their optimizer."),
        ),
    ),
    job(
        "tokens_to_experts",
        one_a_rank,
        exchanged,
        same("N-1 rows sent and received by each rank", buffers),
        necessary(buffers, buffers),
        "rank r returns what the ranks have for it: row r of each rank's table, in rank order.",
        "each row has one destination. No other rank needs to see it.",
        parameters=("rows",),
    ),
    job(
        "same_settings",
        one,
        lambda args: [args[0][0] for _ in args],
        limits("rank 0 sends its tensor once, the others receive one", (single, nothing), (nothing, single)),
        necessary(nothing, single),
        "every rank returns rank 0's numbers.",
        "one rank has it, all need it. Nothing has to be added up, and no rank needs the others' tensors.",
    ),
    job(
        "my_part_of_gradient",
        one_a_rank,
        lambda args: list(total(args)),
        same("N-1 rows sent and received by each rank", buffers),
        necessary(single, single),
        "rank r returns one row: the sum of row r over all ranks.",
        "each rank needs the sum of one row. Who needs the sums of the others?",
        parameters=("rows",),
    ),
    job(
        "my_head",
        one_a_rank,
        exchanged,
        same("N-1 rows sent and received by each rank", buffers),
        necessary(buffers, buffers),
        "row i of what rank r returns is head r of rank i's tokens: row r of its table.",
        "rank r computes head r only. Who needs the rows of the other heads?",
        parameters=("heads",),
    ),
    job(
        "whole_table",
        one,
        lambda args: [stacked(args) for _ in args],
        same("every rank sends and receives N-1 tensors", buffers),
        necessary(buffers, buffers),
        "row r of the table is rank r's x, on every rank.",
        "every rank needs every rank's tensor, unchanged.",
    ),
    job(
        "total_for_log",
        one,
        lambda args: on_zero(total(args), args),
        limits("rank 0 receives one tensor, the others send one", (nothing, single), (single, nothing)),
        necessary(single, nothing),
        "rank 0 returns the sum of all ranks' tensors.",
        "only rank 0 writes the log, so only rank 0 needs the sum, and it needs nothing but the sum.",
    ),
)
