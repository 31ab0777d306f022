"""Eight small jobs, each with one collective that does it with the fewest bytes."""

import torch

from helpers.exercise import ANY, Budget, Case, Suspect, Task

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


def table_on_zero(d):
    table = d.numbers(d.world_size, d.case.size) if d.rank == 0 else None
    return table, torch.zeros(d.case.size, dtype=d.case.dtype)


def total(args):
    return sum(x.double() for (x,) in args).to(args[0][0].dtype)


def stacked(args):
    return torch.stack([x for (x,) in args])


def on_zero(value, args):
    return [value] + [ANY] * (len(args) - 1)


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


def job(name, draw, reference, budget, needs, thought, **more):
    thoughts = {
        "traffic": thought,
        "values": thought,
        "steps": "one collective does the job of these in one go, and shares the work among all ranks.",
        "RankFailed": "which arguments does this call take on this rank? A list to gather into or to scatter from "
        "belongs on its root only, and a buffer must be as large as what arrives in it.",
        "Stuck": "do all ranks make the call? Those that need no result have to take part too.",
        "Mismatch": "every rank must name the same collective and the same root, with tensors of one shape and dtype.",
    }
    return Task(name, CASES, draw, reference, budget, needs=needs, after=None, thoughts=thoughts, **more)


TASKS = (
    job(
        "same_settings",
        one,
        lambda args: [args[0][0] for _ in args],
        limits("rank 0 sends its tensor once, the others receive one", (single, nothing), (nothing, single)),
        necessary(nothing, single),
        "one rank has it, all need it. Nothing has to be added up, and no rank needs the others' tensors.",
    ),
    job(
        "total_for_log",
        one,
        lambda args: on_zero(total(args), args),
        limits("rank 0 receives one tensor, the others send one", (nothing, single), (single, nothing)),
        necessary(single, nothing),
        "only rank 0 writes the log, so only rank 0 needs the sum, and it needs nothing but the sum.",
    ),
    job(
        "whole_table",
        one,
        lambda args: [stacked(args) for _ in args],
        same("every rank sends and receives N-1 tensors", buffers),
        necessary(buffers, buffers),
        "every rank needs every rank's tensor, unchanged.",
    ),
    job(
        "my_row",
        table_on_zero,
        lambda args: [args[0][0][rank] for rank in range(len(args))],
        limits("rank 0 sends N-1 rows, the others receive one", (buffers, nothing), (nothing, single)),
        necessary(nothing, single),
        "each rank needs one row, and each a different one. Why should the other rows travel to it?",
        parameters=("table", "row"),
    ),
    job(
        "rows_for_checkpoint",
        one,
        lambda args: on_zero(stacked(args), args),
        limits("rank 0 receives N-1 rows, the others send one", (nothing, buffers), (single, nothing)),
        necessary(buffers, nothing),
        "only rank 0 writes the checkpoint. Do the others need any row?",
    ),
    job(
        "summed_gradient",
        one,
        lambda args: [total(args) for _ in args],
        same("2(N-1)/N of a tensor sent and received by each rank, in one call", around, steps=1),
        necessary(single, single),
        "every rank needs the sum and nothing else: not every rank's gradient. And no rank should do all the work.",
        suspects=(
            Suspect(
                lambda args: [(total(args).double() / len(args)).to(total(args).dtype)] * len(args),
                "this is the mean over the ranks; their sum is wanted.",
            ),
            Suspect(lambda args: on_zero(total(args), args), "rank 0 has the sum. All ranks step their optimizer."),
        ),
    ),
    job(
        "my_part_of_gradient",
        one_a_rank,
        lambda args: list(total(args)),
        same("N-1 rows sent and received by each rank", buffers),
        necessary(single, single),
        "each rank needs the sum of one row. Who needs the sums of the others?",
    ),
    job(
        "tokens_to_experts",
        one_a_rank,
        lambda args: [torch.stack([x[rank] for (x,) in args]) for rank in range(len(args))],
        same("N-1 rows sent and received by each rank", buffers),
        necessary(buffers, buffers),
        "each row has one destination. No other rank needs to see it.",
    ),
)
