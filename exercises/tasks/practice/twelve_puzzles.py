"""Twelve functions with one line missing, in the order of the page.

LINES has the lines to choose from where nobody can write one, INPUTS what four ranks start with there: tools/puzzles.py runs
each line and records what came of it, and tools/specifications.py draws the ranks before and after the right one.
"""

import torch

from helpers.exercise import Budget, Case, OnError, Suspect, Task

SIZES = (2, 3, 4, 5, 6, 7, 8, 1)
ONE_NUMBER = tuple(Case(n, size=1, late=2 if n == 5 else None) for n in SIZES)
NAN = float("nan")


def puzzle(
    name,
    reference,
    thoughts,
    *,
    suspects=(),
    cases=ONE_NUMBER,
    draw=None,
    parameters=("x",),
    calls=1,
    allowed=None,
    most=None,
):
    """A Task of one element per rank.  suspects: result -> thought.  calls: per rank at most; None: any number.

    most: the bytes that a rank may receive, from the number of ranks; None: any number.
    """

    def budget(case, args):
        words = "any number of calls" if calls is None else f"{calls} call{'s' * (calls != 1)} per rank"
        words += ", and no more bytes than its own result needs" * bool(most)
        n = case.world_size
        return Budget(words, calls=None if calls is None else [calls] * n, received=most and [most(n)] * n)

    return Task(
        name,
        cases,
        draw or (lambda d: (torch.randint(1, 10, (1,), generator=d.own).float(),)),
        reference,
        budget,
        after=None,
        needs=lambda case, args: [0] * case.world_size,
        allowed=allowed,
        parameters=parameters,
        suspects=tuple(Suspect(result, thought) for result, thought in suspects),
        thoughts=thoughts,
    )


def own(args):
    return [x.clone() for (x,) in args]


def everywhere(value, args):
    return [value] * len(args)


def total(args):
    return sum(x for (x,) in args)


def nothing(args):
    return [None] * len(args)


def zeros(args):
    return [torch.zeros_like(x) for (x,) in args]


EVERYONES_SUM = puzzle(
    "everyones_sum",
    lambda args: everywhere(total(args), args),
    {
        "values": "which collective adds up and tells everyone?",
        "Stuck": "the others never make the call. A collective needs every rank of its group.",
    },
    suspects=[
        (nothing, "all_reduce returns None, and now that's what x is. The sum went into the tensor that you passed."),
        (own, "every rank still has its own number. Which call adds up what the ranks hold?"),
        (
            lambda args: everywhere(total(args) / len(args), args),
            "this is the mean. Adding up is what the call does if no op is named.",
        ),
    ],
)

LAST_WORD = puzzle(
    "last_word",
    lambda args: everywhere(args[-1][0], args),
    {
        "values": "whose number should arrive everywhere? That rank is the source.",
        "Mismatch": OnError(
            r"disagree on the src", "each rank names itself as the source. All must name the same rank: which one?"
        ),
        "RankFailed": OnError(r"root rank|Global rank", "ranks count from 0. What's the number of the last one?"),
    },
    suspects=[
        (
            lambda args: everywhere(args[0][0], args),
            "this is the first rank's number. What's the number of the last rank?",
        ),
        (
            lambda args: everywhere(max(x for (x,) in args), args),
            "this is the largest number. The last rank's needn't be.",
        ),
    ],
)


NANS = {  # a case's kind -> the ranks, of n, that have one
    "a NaN on the last rank": lambda n: [n - 1],
    "a NaN on the first rank": lambda n: [0],
    "a NaN on every rank": range,
    "a NaN on two ranks": lambda n: [0, n // 2],
}


def broken(args):
    return [bool(loss.isnan()) for (loss,) in args]


ANYONE_BROKEN = puzzle(
    "anyone_broken",
    lambda args: everywhere(any(broken(args)), args),
    {
        "values": "one rank with a 1 is enough. Which reduce op lets a single 1 win over zeros?",
        "Stuck": "only the broken ranks call, and the healthy ones don't know that they should. Let every rank call.",
    },
    suspects=[
        (
            lambda args: everywhere(all(broken(args)), args),
            "this tells you whether all of them are broken. Which op makes it any?",
        ),
        (
            lambda args: everywhere(broken(args)[-1], args),
            "this is what the last rank knows about itself. What if the NaN is somewhere else?",
        ),
        (
            lambda args: everywhere(sum(broken(args)) % 2 == 1, args),
            "this is True for an odd number of NaNs only. Two of them cancel out.",
        ),
        (broken, "every rank knows about itself only. The call must change `broken`, which is what's returned."),
        (
            lambda args: everywhere(broken(args)[0], args),
            "this is what the first rank knows about itself. What if the NaN is somewhere else?",
        ),
    ],
    cases=tuple(Case(n, kind, 1) for n in SIZES for kind in ("small numbers", *NANS)),
    draw=lambda d: (
        torch.full((1,), NAN) if d.rank in NANS.get(d.case.kind, lambda n: ())(d.world_size) else d.numbers(1),
    ),
    parameters=("loss",),
)

ROLL_CALL = puzzle(
    "roll_call",
    lambda args: everywhere(torch.cat([x for (x,) in args]), args),
    {
        "values": "which collective gives every rank everyone's number?",
        "RankFailed": OnError(
            r"got <class 'torch.Tensor'>|allgather",
            "read the signature: the output comes first. `all_gather` takes a list, so which form takes one large tensor?",
        ),
    },
    suspects=[
        (
            lambda args: everywhere(torch.zeros(len(args)), args),
            "nobody's x went into the call, so all that could arrive is zeros.",
        ),
    ],
)

SUM_AGAIN = puzzle(
    "sum_again",
    lambda args: everywhere(total(args), args),
    {
        "values": "after the reduce, rank 0 has the sum. How do the others get it?",
        "calls": "that would be a shortcut. reduce has left the sum on rank 0: which collective copies from one rank to all?",
        "Mismatch": OnError(
            r"disagree on the src", "each rank names itself as the source. Which rank has the sum?"
        ),
        "RankFailed": OnError(
            r"scatter_list",
            "scatter deals out a list that the source alone may pass. You need one tensor to go everywhere.",
        ),
    },
    calls=2,
    allowed=frozenset({"reduce", "broadcast", "scatter"}),
)


def rows(d):
    return (d.numbers(d.world_size),)


def columns(args):
    return list(torch.stack([row for (row,) in args]).T.contiguous())


MY_COLUMN = puzzle(
    "my_column",
    columns,
    {
        "values": "element k of your row belongs to rank k, and every rank has one for you.",
        "received": "the whole matrix came to every rank, which wants one column. Which collective sends each rank its own part?",
        "RankFailed": "each rank has N numbers before and N after. Which collective keeps the size? If that's the one you called: "
        "`all_to_all` takes lists, so which form takes one tensor?",
    },
    suspects=[
        (zeros, "`column` is still zeros. Did your row go into the call? The output comes first, then the input."),
        (own, "this is your row. Which call sends its elements to the others?"),
    ],
    most=lambda n: 4 * (n - 1),
    draw=rows,
    parameters=("row",),
)

MY_SUM = puzzle(
    "my_sum",
    lambda args: [column.sum().reshape(1) for column in columns(args)],
    {
        "values": "add up everyone's rows, element by element. Rank r wants element r alone.",
        "received": "all the sums came to every rank, which wants only one. Which collective scatters them?",
        "RankFailed": "N numbers must become one. Which collective adds up and scatters? If that's the one you called: "
        "`reduce_scatter` takes a list, so which form takes one tensor?",
    },
    suspects=[
        (
            lambda args: [torch.zeros(1) for _ in args],
            "`mine` is still zero. The sums went into `row`, all of them on every rank, where one was enough.",
        ),
        (
            lambda args: [row.sum().reshape(1) for (row,) in args],
            "this adds up your own row. Nothing came from the others.",
        ),
    ],
    most=lambda n: 4 * (n - 1),
    draw=rows,
    parameters=("row",),
)

PASS_RIGHT = puzzle(
    "pass_right",
    lambda args: [args[rank - 1][0] for rank in range(len(args))],
    {
        "values": "each rank wants the number of rank - 1, so to whom must it send its own?",
        "Stuck": "before any recv can return, somebody has to send, to a rank that receives from it, and not wait there first. "
        "Which of the three is missing?",
    },
    calls=2,
)

EVERY_LIST = puzzle(
    "every_list",
    lambda args: everywhere([mine for (mine,) in args], args),
    {
        "values": "which call gathers objects, of any size, on all ranks?",
        "RankFailed": OnError(
            r"'NoneType'>", "these are Python lists, and of different lengths. Which form of all_gather takes objects?"
        ),
    },
    suspects=[
        (nothing, "all_gather_object returns None. It fills the list that you pass first."),
        (
            lambda args: everywhere([None] * len(args), args),
            "rank 0 gave everyone its `lists`, which had nothing in it yet.",
        ),
    ],
    cases=tuple(Case(n, size=3, uneven=True) for n in SIZES),
    draw=lambda d: (d.integers(0, 10, d.case.length(d.rank)).int().tolist(),),
    parameters=("mine",),
    calls=None,
)

EVENS_ONLY = puzzle(
    "evens_only",
    lambda args: [sum(x for (x,) in args[::2]) if rank % 2 == 0 else x for rank, (x,) in enumerate(args)],
    {
        "values": "who must be in the group whose sum this is?",
        "Stuck": "the odd ranks don't come to the all_reduce, but this group has them as members. Which ranks should it have?",
        "RankFailed": OnError(
            r"unhashable type: 'list'", "a list of ranks isn't a group yet. Which call makes a group of them?"
        ),
        "Mismatch": "the odd ranks skip the call, but a group is made by every rank of the world. What if they make it too?",
    },
    suspects=[(own, "each even rank is alone in its group. Who else belongs to it?")],
    calls=None,
)


def before(args):
    return [sum((x for (x,) in args[:rank]), torch.zeros(1)) for rank in range(len(args))]


BEFORE_ME = puzzle(
    "before_me",
    before,
    {
        "values": "element k of `mine` is what rank k gets of your count. Which ranks come after you?",
        "RankFailed": OnError(r"outputShape|size", "`mine` needs one element for each rank."),
    },
    suspects=[
        (
            lambda args: [sum_before + x for sum_before, (x,) in zip(before(args), args)],
            "this counts your own items too. Your part begins where the ranks before you end.",
        ),
        (
            lambda args: [sum((x for (x,) in args[rank + 1 :]), torch.zeros(1)) for rank in range(len(args))],
            "this is what comes after you. Turn the comparison around.",
        ),
        (lambda args: everywhere(total(args), args), "this is the sum of all counts. Who shouldn't get yours?"),
    ],
    draw=lambda d: (torch.randint(0, 10, (1,), generator=d.own).float(),),
    parameters=("count",),
)

MIRRORED = puzzle(
    "mirrored",
    lambda args: [x for (x,) in args[::-1]],
    {
        "values": "`splits[k]` is how many elements go to rank k. Everything goes to one rank: which one?",
        "RankFailed": OnError(
            r"Split sizes",
            "the splits must add up to what you have, one element. Rank 0 faces rank N - 1: whom does rank r face?",
        ),
        "Mismatch": "what you send to a rank must be what it expects of you. Whom does rank r face in the mirror?",
    },
    suspects=[(own, "every rank sent its number to itself. Whom does it face in the mirror?")],
)

TASKS = (
    EVERYONES_SUM,
    LAST_WORD,
    ANYONE_BROKEN,
    ROLL_CALL,
    SUM_AGAIN,
    MY_COLUMN,
    MY_SUM,
    PASS_RIGHT,
    EVERY_LIST,
    EVENS_ONLY,
    BEFORE_ME,
    MIRRORED,
)

# One is right. The first is never: it is what comes to mind first.
LINES = {
    "everyones_sum": (
        "x = dist.all_reduce(x)",
        "dist.reduce(x, dst=0)",
        "dist.all_reduce(x)",
        "if dist.get_rank() == 0: dist.all_reduce(x)",
    ),
    "last_word": (
        "dist.broadcast(x, src=dist.get_world_size())",
        "dist.broadcast(x, src=dist.get_rank())",
        "dist.broadcast(x, src=0)",
        "dist.broadcast(x, src=dist.get_world_size() - 1)",
    ),
    "anyone_broken": (
        "if broken: dist.all_reduce(broken)",
        "dist.all_reduce(broken, op=dist.ReduceOp.MAX)",
        "dist.all_reduce(broken, op=dist.ReduceOp.MIN)",
        "dist.all_reduce(loss)",
    ),
    "roll_call": (
        "dist.all_gather(everyone, x)",
        "dist.all_gather_single(x, everyone)",
        "dist.broadcast(everyone, src=0)",
        "dist.all_gather_single(everyone, x)",
    ),
    "sum_again": (
        "dist.all_reduce(x)",
        "dist.broadcast(x, src=dist.get_rank())",
        "dist.broadcast(x, src=0)",
        "dist.scatter(x, [x] * dist.get_world_size(), src=0)",
    ),
    "my_column": (
        "dist.all_gather_single(column, row)",
        "dist.all_to_all_single(column, row)",
        "dist.all_to_all_single(row, column)",
        "column = row.clone()",
    ),
    "my_sum": (
        "dist.all_reduce(row)",
        "mine += row.sum()",
        "dist.all_to_all_single(mine, row)",
        "dist.reduce_scatter_single(mine, row)",
    ),
    "pass_right": (
        "dist.send(x, dst=(rank + 1) % n)",
        "sending = dist.isend(x, dst=(rank + 1) % n)",
        "sending = dist.isend(x, dst=(rank - 1) % n)",
        "sending = dist.irecv(y, src=(rank - 1) % n)",
    ),
    "every_list": (
        "dist.all_gather(lists, mine)",
        "lists = dist.all_gather_object(lists, mine)",
        "dist.broadcast_object_list(lists, src=0)",
        "dist.all_gather_object(lists, mine)",
    ),
    "evens_only": (
        "group = evens",
        "group = dist.new_group(evens)",
        "group = dist.group.WORLD",
        "group = dist.new_group([dist.get_rank()])",
    ),
    "before_me": (
        "mine = count.repeat(n)",
        "mine = count * (torch.arange(n) < rank)",
        "mine = count * (torch.arange(n) > rank)",
        "mine = count * (torch.arange(n) >= rank)",
    ),
    "mirrored": (
        "splits = [1] * n",
        "splits = [int(k == rank) for k in range(n)]",
        "splits = [int(k == n - rank) for k in range(n)]",
        "splits = [int(k == n - 1 - rank) for k in range(n)]",
    ),
}

NUMBERS = [(torch.tensor([number]),) for number in (1.0, 2.0, 3.0, 4.0)]
ROWS = [(10.0 * rank + torch.arange(4.0),) for rank in range(4)]
INPUTS = {
    "last_word": [(torch.tensor([number]),) for number in (3.0, 1.0, 4.0, 2.0)],
    "anyone_broken": [(torch.tensor([number]),) for number in (0.7, 0.6, NAN, 0.5)],
    "my_column": ROWS,
    "my_sum": ROWS,
    "every_list": [([1],), ([2, 2],), ([],), ([4, 4, 4],)],
    "before_me": [(torch.tensor([number]),) for number in (3.0, 1.0, 4.0, 2.0)],
}
