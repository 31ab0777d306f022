"""schedule_within(ranks, microbatches, limit): a pipeline schedule that keeps to a memory limit, and is fast.
train_within(w, x, t, microbatches, limit): the training step that carries one out."""

from typing import Any

import torch

from collectives.algorithms.pipeline import Pipeline, WrongPipeline, gpipe, one_at_a_time, one_f_one_b, table
from collectives.algorithms.pipeline.model import kept
from collectives.format import kind, number
from collectives.record.event import Event
from helpers.exercise import Budget, Case, Finding, Measure, Puzzle, Suspect, Task

# --- the schedule -------------------------------------------------------------------------

SCHEDULE = "schedule_within"
PIPELINES = {  # what a case says -> (ranks, microbatches, limit)
    "2 ranks, 4 microbatches, limit 2": (2, 4, 2),
    "3 ranks, 5 microbatches, limit 2": (3, 5, 2),
    "4 ranks, 8 microbatches, limit 1": (4, 8, 1),
    "4 ranks, 8 microbatches, limit 4": (4, 8, 4),
    "4 ranks, 8 microbatches, limit 3": (4, 8, 3),
    "8 ranks, 16 microbatches, limit 4": (8, 16, 4),
}
GOALS = {  # time, a forward being 1 and a backward 2
    "4 ranks, 8 microbatches, limit 4": 33,
    "4 ranks, 8 microbatches, limit 3": 42,
    "8 ranks, 16 microbatches, limit 4": 110,
}


DRAWN = {  # what a case says -> (least, most) of ranks, microbatches, limit
    "a tight limit": ((3, 6), (4, 12), (1, 3)),
    "fewer microbatches than the limit": ((2, 6), (1, 3), (3, 6)),
    "a limit above the ranks": ((1, 4), (5, 12), (5, 9)),
}


def draw_pipeline(d) -> tuple[int, int, int]:
    """ranks, microbatches, limit"""
    if d.case.kind in PIPELINES:
        return PIPELINES[d.case.kind]
    ranks, microbatches, limit = (d.integer(least, most + 1) for least, most in DRAWN[d.case.kind])
    return ranks, microbatches, limit


def situation(ranks: int, microbatches: int, limit: int) -> str:
    some = [(ranks, "rank"), (microbatches, "microbatch")]
    words = ", ".join(f"{k} {what}{'' if k == 1 else 'es' if what.endswith('h') else 's'}" for k, what in some)
    return f"{words}, limit {limit}"


def pipeline_of(result: Any, ranks: int, microbatches: int) -> Pipeline:
    """What was returned, as a Pipeline.  Raises ValueError for what is none of so many ranks and microbatches."""
    if not isinstance(result, (list, tuple)) or not all(isinstance(row, (list, tuple)) for row in result):
        raise ValueError(f"it must return a list of lists, one for each rank, not {kind(result)}.")
    if len(result) != ranks:
        raise ValueError(f"it must return {ranks} lists, one for each rank, not {len(result)}.")
    longest = 3 * microbatches
    for rank, row in enumerate(result):
        if len(row) > longest:
            raise ValueError(f"the list of rank {rank} has {len(row)} actions; {longest} are possible at most.")
    s = Pipeline([list(row) for row in result], SCHEDULE)
    for rank, row in enumerate(s.rows):
        for a in row:
            if a.stage != rank:
                raise ValueError(f"rank {rank} holds stage {rank} alone, and cannot do {a}.")
            if a.microbatch >= microbatches:
                raise ValueError(f"rank {rank} does {a.short}; microbatches are 0 to {microbatches - 1}.")
    return s


def verdict(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
    ranks, microbatches, limit = arguments
    wrong = f"{SCHEDULE} is wrong with {situation(*arguments)}"
    try:
        s = pipeline_of(result, ranks, microbatches)
    except ValueError as what:
        thought = THOUGHTS["nothing"] if result is None else THOUGHTS["shape"]
        return Finding("values", words=f"{wrong}: {what}", thought=thought)
    try:
        s.prove()
        missing = next((k for k in range(microbatches) if k >= s.microbatches), None)
        if missing is not None:
            raise WrongPipeline(f"{SCHEDULE}: there is no forward of microbatch {missing}.")
    except WrongPipeline as what:
        thought = next((THOUGHTS[words] for words in THOUGHTS if words in str(what)), "")
        return Finding("values", words=f"{wrong}.\n{what}", thought=thought, shows=s)
    most = [max(kept(s, rank)) for rank in range(ranks)]
    if max(most) > limit:
        rank = most.index(max(most))
        words = f"{wrong}: rank {rank} keeps {number(most[rank])} microbatches at a time, and {limit} are allowed."
        return Finding("values", words=words, thought=THOUGHTS["keeps"], shows=s)
    time, goal = s.count().time, GOALS.get(case.kind)
    if not budget or goal is None or time <= goal:
        return None
    words = f"{SCHEDULE} is right, but slow with {case.kind}: a step takes {number(time)}, and {goal} are allowed."
    return Finding("budget", words=f"{words}\n{board(s, limit)}", thought=THOUGHTS["slow"], shows=s)


def waves(ranks: int, microbatches: int, limit: int) -> Pipeline:
    """GPipe with so many microbatches at a time."""
    groups = [range(k, min(k + limit, microbatches)) for k in range(0, microbatches, limit)]
    row = [f"{what}{k}" for group in groups for what in "FB" for k in group]
    return Pipeline([row] * ranks, f"GPipe, {limit} at a time")


def board(mine: Pipeline, limit: int) -> str:
    """What else keeps to the limit, and this one."""
    shape = mine.ranks, mine.microbatches
    others = [
        one_at_a_time(*shape),
        waves(*shape, limit),
        one_f_one_b(*shape, limit),
        gpipe(*shape),
        one_f_one_b(*shape),
    ]
    fit = [s for s in others if max(max(kept(s, rank)) for rank in range(s.ranks)) <= limit]
    return repr(table([*{s.name: s for s in fit}.values(), mine]))


def praise(case: Case, arguments: tuple, result: Any) -> str:
    ranks, microbatches, limit = arguments
    s = pipeline_of(result, ranks, microbatches)
    c = s.count()
    return (
        f"With {ranks} ranks, {microbatches} microbatches and a limit of {limit} a step takes {number(c.time)}: bubble "
        f"{c.of_work:.0%} of the work.\n{board(s, limit)}"
    )


THOUGHTS = {
    "nothing": "the function returns nothing. Printing a schedule does not return it.",
    "shape": 'it returns a list of lists of text: [["F0", "F1", "B0", "B1"], ["F0", "B0", "F1", "B1"]] for 2 ranks.',
    "is done": "each forward and each backward belongs into a rank's list once.",
    "no forward": "are all microbatches in the lists, also where they do not divide evenly?",
    "no backward": "which backwards are left when the last forward is done?",
    "before": "a backward uses what its forward kept.",
    "never finish": "a rank that waits for a gradient needs the ranks behind it to get that far, with no more forwards than "
    "it has sent.",
    "keeps": "a microbatch is kept from its forward until its backward (or W). Before a forward, count those you have.",
    "slow": "look for the rank that waits although an input for it is there. Ranks behind the first one need not follow a "
    "fixed turn: what could this one do at that moment?",
}

# --- the step -----------------------------------------------------------------------------

TRAIN = "train_within"
STEPS = {  # what a case says -> (microbatches, limit)
    "4 microbatches, limit 2": (4, 2),
    "6 microbatches, limit 3": (6, 3),
    "3 microbatches, limit 1": (3, 1),
    "2 microbatches, limit 5": (2, 5),
    "5 microbatches, limit 4": (5, 4),
    "8 microbatches, limit 2": (8, 2),
}
CASES = (
    Case(2, "4 microbatches, limit 2", 3),
    Case(6, "3 microbatches, limit 1", 2),
    Case(7, "6 microbatches, limit 3", 3),
    Case(3, "5 microbatches, limit 4", 4, late=2),
    Case(4, "6 microbatches, limit 3", 3),
    Case(4, "8 microbatches, limit 2", 3, late=0),
    Case(5, "2 microbatches, limit 5", 3),
    Case(8, "6 microbatches, limit 3", 3),
    Case(1, "4 microbatches, limit 2", 3),
)
ROWS = {6: 3, 7: 1}  # of a microbatch, by world size; 2 elsewhere


def draw(d):
    """This rank's weights; the batch, the same on all ranks."""
    microbatches, limit = STEPS[d.case.kind]
    shape = microbatches * ROWS.get(d.world_size, 2), d.case.size
    x, t = (d.numbers(*shape, common=True) / 9 for _ in range(2))
    return d.numbers(d.case.size, d.case.size) / 9, x, t, microbatches, limit


def gradients(args):
    weights = [w.double().requires_grad_() for w, *_ in args]
    _, x, t, *_ = args[0]
    y = x.double()
    for w in weights:
        y = torch.tanh(y @ w.T)
    torch.nn.functional.mse_loss(y, t.double()).backward()
    return [w.grad.float() for w in weights]


def under_way(events: list[list[Event]]) -> list[float]:
    """Per rank, microbatches at most whose activation it has, and whose gradient it has not given back.

    Rank 0 has one from when it sends it on until its gradient arrives.  An irecv counts from the wait for it.
    """
    return [_under_way(rank, mine) for rank, mine in enumerate(events)]


def _under_way(rank: int, mine: list[Event]) -> int:
    comes, goes = (("send", 1), ("recv", 1)) if rank == 0 else (("recv", rank - 1), ("send", rank - 1))
    now = most = 0
    for e in sorted(mine, key=lambda e: (_when(e), e.index)):
        what = (e.op, e.dst if e.op == "send" else e.src)
        now += (what == comes) - (what == goes)
        most = max(most, now)
    return most


def _when(e: Event) -> float:
    return e.end if e.op == "recv" and e.end is not None else e.start


def budget(case, args):
    n = case.world_size
    _, x, _, m, limit = args[0]
    neighbours = [(r > 0) + (r < n - 1) for r in range(n)]
    moved = [x.numel() * 4 * k for k in neighbours]
    first = [min(limit, n, m) if n > 1 else 0] + [0] * (n - 1)
    return Budget(
        "a message for each microbatch, boundary and direction; on every rank at most `limit` microbatches under way, and "
        "on rank 0 as many as that, or as there are ranks",
        moved,
        moved,
        [m * k for k in neighbours],
        links={(r, r + way) for r in range(n) for way in (1, -1) if 0 <= r + way < n},
        measures=(Measure(UNDER_WAY, under_way, [limit] * n, first),),
    )


def needs(case, args):
    """From each side that there is, activations or gradients; or a stage's weights, where they are smaller."""
    n, (w, x, *_) = case.world_size, args[0]
    return [min(w.nbytes, x.nbytes) * ((rank > 0) + (rank < n - 1)) for rank in range(n)]


UNDER_WAY = "of its microbatches under way at once"


def times_m(args):
    return [g * args[0][3] for g in gradients(args)]


def last_microbatch_only(args):
    m, rows = args[0][3], len(args[0][1]) // args[0][3]
    return [g / m for g in gradients([(w, x[-rows:], t[-rows:], *rest) for w, x, t, *rest in args])]


TASKS = (
    Puzzle(
        SCHEDULE,
        tuple(Case(1, kind) for kind in (*list(PIPELINES)[:3], *DRAWN, *list(PIPELINES)[3:])),
        draw_pipeline,
        verdict,
        praise,
    ),
    Task(
        TRAIN,
        CASES,
        draw,
        gradients,
        budget,
        needs=needs,
        allowed=frozenset({"send", "recv"}),
        parameters=("w", "x", "t", "microbatches", "limit"),
        suspects=(
            Suspect(
                times_m,
                "all gradients are `microbatches` times too large. The batch's loss is the mean over microbatches: what must each "
                "one's loss be divided by before its backward?",
            ),
            Suspect(
                last_microbatch_only,
                "this is the last microbatch's part alone. A rank's gradient is the sum over all microbatches.",
            ),
        ),
        thoughts={
            "values": "which ranks are wrong? If only the last one is right, it goes backward in another order than the others: "
            "messages have no names, the first gradient is taken for the first microbatch's.",
            "Stuck": "a send that blocks goes on only when its neighbour receives. While you send to the right, what does your "
            "right neighbour do? isend, and wait at the end.",
            "calls": "stages have different parameters: there is nothing to add up between ranks.",
            "messages": "one message for each microbatch and direction, to each neighbour.",
            "traffic": "a microbatch's activation, of the shape of its rows of x, and the gradient of it.",
            "links": "a stage has a neighbour before it and one behind it, and talks to nobody else.",
            UNDER_WAY: "let every rank go through its row of a schedule that keeps to the limit, as schedule_within returns it.",
        },
    ),
)  # fmt: skip
