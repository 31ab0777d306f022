"""from_owner(x, owner): the owner's tensor; settings_for_all(settings, owner): the owner's object; same_state(tensors): rank 0's, in place;
deal_cards(deck): every N-th of rank 0's numbers; deal_rows(table): this rank's part of the rows of rank 0's table,
of which there may be a few more than N divides.
"""

import torch
import torch.nn.functional as F

from helpers.exercise import Budget, Case, OnError, Suspect, Task

COLUMNS = 2
CASES = (
    Case(2, size=1),
    Case(2, "negative numbers", 3),
    Case(3, size=2),
    Case(3, size=1, late=0),
    Case(4, "fractions", 2),
    Case(5, size=1),
    Case(5, size=2, late=4),
    Case(6, size=2),
    Case(7, size=1),
    Case(8, size=1),
    Case(8, size=3),
    Case(1, size=3),
)


def draw(d):
    return (d.numbers(d.world_size * d.case.size + d.integer(0, d.world_size, common=True), COLUMNS),)


def reference(args):
    return list(args[0][0].tensor_split(len(args)))


def budget(case, args):
    n, most = case.world_size, reference(args)[0].nbytes
    return Budget(
        "rank 0 sends each of the others as many rows as the largest block has, and nothing else",
        sent=[(n - 1) * most] + [0] * (n - 1),
        received=[0] + [most] * (n - 1),
    )


def needs(case, args):
    return [0] + [block.nbytes for block in reference(args)[1:]]


def padded(args):
    blocks = reference(args)
    return [F.pad(block, (0, 0, 0, len(blocks[0]) - len(block))) for block in blocks]


DEAL_ROWS = Task(
    "deal_rows",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    parameters=("table",),
    suspects=(
        Suspect(
            lambda args: [table.tensor_split(len(args))[rank] for rank, (table,) in enumerate(args)],
            "these are rows of the rank's own table. Only rank 0's holds the numbers that count.",
        ),
        Suspect(
            lambda args: [args[0][0][rank :: len(args)] for rank in range(len(args))],
            "these are every N-th row. Rank r gets the r-th block of them.",
        ),
        Suspect(padded, "the padding is still there. How many of these rows are this rank's?"),
        Suspect(
            lambda args: list(F.pad(args[0][0], (0, 0, 0, -len(args[0][0]) % len(args))).chunk(len(args))),
            "these are equal blocks of a table with padding at its end. `tensor_split` has no padding: which rows are rank r's?",
        ),
    ),
    thoughts={
        "values": "rank 0 cuts the table into N blocks of rows, the longer ones first, and rank r gets the r-th.",
        "traffic": "a broadcast gives every rank the whole table. Which collective gives each its own part?",
        "inputs": "the numbers that arrive need their own buffer.",
        "RankFailed": OnError(
            r"_list`` must|ambiguous", "scatter takes a list, on rank 0 only, with one tensor for each rank. Who cuts?"
        ),
        "Stuck": "does every rank call, and not only rank 0?",
        "Mismatch": OnError(
            r"shape|element|length",
            "scatter needs pieces of one shape. What could make the shorter blocks as long as the longest?",
        ),
    },
)


FEW = tuple(Case(n, size=max(n, 3), late=2 if n == 5 else None) for n in (2, 3, 4, 5, 6, 7, 8, 1))


def calls(words, count):
    return lambda case, args: Budget(words, calls=[count] * case.world_size)


def none(case, args):
    return [0] * case.world_size


FROM_OWNER = Task(
    "from_owner",
    FEW,
    lambda d: (d.numbers(d.case.size), d.integer(0, d.world_size, common=True)),
    lambda args: [args[owner][0] for _, owner in args],
    calls("one call per rank", 1),
    needs=none,
    parameters=("x", "owner"),
    suspects=(
        Suspect(lambda args: [args[0][0]] * len(args), "these are rank 0's numbers. Who is the source here?"),
        Suspect(
            lambda args: [None] * len(args), "broadcast returns None. The numbers are in the tensor that you passed."
        ),
        Suspect(
            lambda args: [x for x, _ in args], "every rank still has its own numbers. Which tensor does broadcast fill?"
        ),
    ),
    thoughts={
        "values": "which tensor does the owner pass in, and which one do the others pass in?",
        "inputs": "broadcast writes into the tensor that it gets. Pass it a copy of x.",
        "calls": "one broadcast is enough.",
        "Mismatch": OnError(
            r"disagree on the src",
            "all ranks must name the same source. `owner` is the same on every rank, and a rank's own number isn't.",
        ),
        "Stuck": "every rank makes the call, the owner and the others.",
    },
)


def settings_of_one(d):
    owner = d.integer(0, d.world_size, common=True)
    return {"lr": d.integer(1, 9), "batch": 8 * d.integer(1, 9)} if d.rank == owner else None, owner


SETTINGS_FOR_ALL = Task(
    "settings_for_all",
    FEW,
    settings_of_one,
    lambda args: [args[owner][0] for _, owner in args],
    lambda case, args: Budget("no limit"),
    needs=none,
    parameters=("settings", "owner"),
    suspects=(
        Suspect(
            lambda args: [settings for settings, _ in args],
            "this is what the rank was given. What arrives is in the list that you passed.",
        ),
        Suspect(lambda args: [[args[owner][0]] for _, owner in args], "this is the list. The settings are its element."),
        Suspect(lambda args: [args[0][0]] * len(args), "this is what rank 0 passed. Who is the source here?"),
        Suspect(
            lambda args: [None] * len(args),
            "None everywhere. The call returns None: what arrives is in the list, if the owner's list held its settings before.",
        ),
    ),
    thoughts={
        "values": "broadcast_object_list changes a list in place. Which element do you return?",
        "RankFailed": OnError(
            r"'NoneType' has no len|list",
            "every rank passes a list of one element, which may be None on the ranks that receive.",
        ),
        "Stuck": "every rank makes the call, and not only the one with the settings.",
        "Mismatch": OnError(
            r"disagree on the src",
            "all ranks must name the same source. `owner` is the same on every rank, and a rank's own number isn't.",
        ),
    },
)


ODD = 2**24 + 1  # float32 has no such number


def state(d):
    return ([d.numbers(2, 2), d.numbers(2), torch.tensor(ODD + 2 * d.integer(0, 99)), d.numbers(d.case.size)],)


def through_floats(args):
    weights, bias, samples, scale = args[0][0]
    return [[weights, bias, samples.float().to(samples.dtype), scale]] * len(args)


SAME_STATE = Task(
    "same_state",
    FEW,
    state,
    lambda args: [None] * len(args),
    calls("one call for each tensor", 4),
    after=lambda args: [args[0]] * len(args),
    needs=none,
    parameters=("tensors",),
    scale=lambda args: 10.0,  # of the floats: the integer must be exact
    suspects=(
        Suspect(
            lambda args: [[tensors[0], tensors[1], mine[2], tensors[3]] for (mine,) in args for (tensors,) in args[:1]],
            "the integer is still each rank's own. A counter is part of the model too.",
            where_wrong=True,
        ),
        Suspect(
            through_floats,
            "the integer was rounded on its way: float32 has no odd numbers above 2**24. What happens to it in one tensor with "
            "floats?",
        ),
    ),
    thoughts={
        "values": "each tensor must hold rank 0's numbers afterwards. Return nothing.",
        "calls": "one broadcast for each tensor.",
        "RankFailed": OnError(
            r"can't be cast", "nothing needs to be divided: rank 0's numbers should arrive as they are. Which collective does that?"
        ),
        "Mismatch": "do all ranks broadcast the same tensors in the same order?",
        "Stuck": "do all ranks make equally many calls?",
    },
)


DEAL_CARDS = Task(
    "deal_cards",
    FEW,
    lambda d: (d.numbers(d.world_size * d.case.size),),
    lambda args: [args[0][0][rank :: len(args)] for rank in range(len(args))],
    calls("one call per rank", 1),
    needs=none,
    parameters=("deck",),
    suspects=(
        Suspect(
            lambda args: [args[0][0].chunk(len(args))[rank] for rank in range(len(args))],
            "these are the cards that lie next to each other. Rank r wants the r-th, the (r + N)-th, and so on.",
        ),
        Suspect(
            lambda args: [deck[rank :: len(args)] for rank, (deck,) in enumerate(args)],
            "these are cards of the rank's own deck. Only rank 0's counts.",
        ),
    ),
    thoughts={
        "values": "`deck[r::N]` begins at card r and takes every N-th.",
        "inputs": "what arrives needs its own buffer.",
        "calls": "one scatter is enough.",
        "RankFailed": OnError(
            r"_list`` must|ambiguous",
            "scatter takes a list with one tensor for each rank, on rank 0 only, and None on the others.",
        ),
        "Mismatch": "`deck[r::N]` skips over other ranks' cards. `.contiguous()` puts its own next to each other.",
        "Stuck": "every rank makes the call.",
    },
)

TASKS = (DEAL_ROWS, FROM_OWNER, SETTINGS_FOR_ALL, SAME_STATE, DEAL_CARDS)
