"""schedule_within(ranks, microbatches, limit): a pipeline schedule that keeps to a memory limit, and is fast.
train_two_stages(w, x, t, microbatches): a training step with two stages on each rank."""

from typing import Any, Iterator

import torch

from collectives.algorithms.pipeline import Pipeline, WrongPipeline, gpipe, one_at_a_time, one_f_one_b, table
from collectives.algorithms.pipeline.pipeline import kept
from collectives.format import kind, number
from collectives.log.event import Event
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


TIMED = "a limit below the ranks"  # drawn, so no table of the published situations has it
SLOWER = 1.05  # times the schedule of `greedy`, in TIMED
FEW = "fewer microbatches than ranks, and than the limit"
DRAWN = {  # what a case says -> (least, most) of ranks, microbatches, limit; in FEW, of the last two above the first
    "a tight limit": ((3, 6), (4, 12), (1, 3)),
    FEW: ((1, 3), (1, 3), (1, 3)),
    "a limit above the ranks": ((1, 4), (5, 12), (5, 9)),
    TIMED: ((5, 8), (9, 14), (2, 4)),
}


def draw_pipeline(d) -> tuple[int, int, int]:
    """ranks, microbatches, limit"""
    if d.case.kind in PIPELINES:
        return PIPELINES[d.case.kind]
    first, second, third = (d.integer(least, most + 1) for least, most in DRAWN[d.case.kind])
    return (first + second, first, first + third) if d.case.kind == FEW else (first, second, third)


def greedy(ranks: int, microbatches: int, limit: int) -> Pipeline:
    """The schedule in which whoever can start first does so, backward rather than forward."""
    rows, free = [[] for _ in range(ranks)], [0] * ranks
    begun = {kind: [0] * ranks for kind in "FB"}
    ended = {("F", -1, k): 0 for k in range(microbatches)}

    def startable() -> Iterator[tuple[int, str, int]]:
        for rank, (f, b) in enumerate(zip(begun["F"], begun["B"])):
            forth = ended.get(("F", rank - 1, f))
            back = ended.get(("B", rank + 1, b) if rank < ranks - 1 else ("F", rank, b))
            if b < f and back is not None:
                yield max(free[rank], back), "B", rank
            if f - b < limit and forth is not None:
                yield max(free[rank], forth), "F", rank

    for _ in range(2 * ranks * microbatches):
        start, kind, rank = min(startable())
        k = begun[kind][rank]
        rows[rank].append(f"{kind}{k}")
        free[rank] = ended[kind, rank, k] = start + (1 if kind == "F" else 2)
        begun[kind][rank] += 1
    return Pipeline(rows, "greedy")


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
        words = f"{wrong}: rank {rank} keeps {number(most[rank])} microbatches at a time, and the limit is {limit}."
        return Finding("values", words=words, thought=THOUGHTS["keeps"], shows=s)
    time = s.count().time
    goal = SLOWER * greedy(*arguments).count().time if case.kind == TIMED else GOALS.get(case.kind)
    if not budget or goal is None or time <= goal:
        return None
    slow = f"{SCHEDULE} is right, but slow with {situation(*arguments)}"
    words = f"{slow}: a step takes {number(time)}, and the limit is {number(goal)}."
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
    "is done": "each forward and each backward belongs in a rank's list exactly once.",
    "no forward": "are all microbatches in the lists, even if they don't divide evenly?",
    "no backward": "which backwards are left when the last forward is done?",
    "before": "a backward uses what its forward kept.",
    "never finish": "a rank that waits for a gradient needs the ranks behind it to get that far, with no more forwards than "
    "it has sent.",
    "keeps": "a microbatch is kept from its forward until its backward (or W). Before a forward, count those you have.",
    "slow": (
        "look for the rank that waits although an input for it is there. Ranks behind the first one don't have to "
        "follow a fixed turn: what could this one do at that moment?"
    ),
}

# --- the step -----------------------------------------------------------------------------

TRAIN = "train_two_stages"
MICROBATCHES = {"4 microbatches": 4, "6 microbatches": 6, "3 microbatches": 3, "2 microbatches": 2, "8 microbatches": 8}
CASES = (
    Case(2, "4 microbatches", 3),
    Case(3, "6 microbatches", 3),
    Case(6, "3 microbatches", 2),
    Case(7, "8 microbatches", 3),
    Case(3, "4 microbatches", 4, late=2),
    Case(4, "6 microbatches", 3),
    Case(4, "8 microbatches", 3, late=0),
    Case(5, "2 microbatches", 3),
    Case(8, "6 microbatches", 3),
    Case(1, "4 microbatches", 3),
)
ROWS = {6: 3, 7: 1}  # of a microbatch, by world size; 2 elsewhere


def draw(d):
    """The weights of this rank's two stages; the batch, the same on all ranks."""
    microbatches = MICROBATCHES[d.case.kind]
    shape = microbatches * ROWS.get(d.world_size, 2), d.case.size
    x, t = (d.numbers(*shape, common=True) / 9 for _ in range(2))
    return d.numbers(2, d.case.size, d.case.size) / 9, x, t, microbatches


def in_turns(n):
    """(rank, which of its two) of each stage, in the model's order."""
    return [(stage % n, stage // n) for stage in range(2 * n)]


def gradients(args, order=in_turns):
    weights = [w.double().requires_grad_() for w, *_ in args]
    _, x, t, _ = args[0]
    y = x.double()
    for rank, place in order(len(args)):
        y = torch.tanh(y @ weights[rank][place].T)
    torch.nn.functional.mse_loss(y, t.double()).backward()
    return [w.grad.float() for w in weights]


def ahead(events: list[list[Event]]) -> list[float]:
    """Per rank, messages that it sends before the first one that it receives."""
    return [_ahead(mine) for mine in events]


def _ahead(mine: list[Event]) -> int:
    arrived = min((e.end for e in mine if e.op == "recv" and e.end is not None), default=float("inf"))
    return sum(e.op == "send" and e.start < arrived for e in mine)


def budget(case, args):
    n = case.world_size
    _, x, _, m = args[0]
    messages = [m * ((2 if rank < n - 1 else 1) + (2 if rank > 0 else 1)) if n > 1 else 0 for rank in range(n)]
    moved = [x.numel() // m * 4 * k for k in messages]
    least = [min(n, m) if n > 1 and rank == 0 else 0 for rank in range(n)]
    return Budget(
        "a message for each microbatch, boundary and direction, between neighbors in the ring; and rank 0 sends its first "
        "min(N, microbatches) before it receives anything",
        moved,
        moved,
        messages,
        links={(r, (r + way) % n) for r in range(n) for way in (1, -1)},
        measures=(Measure(AHEAD, ahead, [float("inf")] * n, least),),
    )


def needs(case, args):
    """Activations and gradients, or the other stages' weights, where they are smaller."""
    n, (w, x, *_) = case.world_size, args[0]
    return [min(w.nbytes // 2, x.nbytes) * 2 * (n > 1)] * n


AHEAD = "messages sent before the first one arrives"


def times_m(args):
    return [g * args[0][3] for g in gradients(args)]


def last_microbatch_only(args):
    m, rows = args[0][3], len(args[0][1]) // args[0][3]
    return [g / m for g in gradients([(w, x[-rows:], t[-rows:], m) for w, x, t, m in args])]


def one_after_the_other(n):
    """As if a rank's two stages came one right after the other."""
    return [(rank, place) for rank in range(n) for place in range(2)]


TASKS = (
    Puzzle(
        SCHEDULE,
        tuple(Case(1, kind) for kind in (*list(PIPELINES)[:3], *list(DRAWN)[:-1], *list(PIPELINES)[3:5], TIMED, *list(PIPELINES)[5:])),
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
        parameters=("w", "x", "t", "microbatches"),
        imports=("torch.fx.experimental.symbolic_shapes",),  # by y.backward(gradient)
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
            Suspect(
                lambda args: gradients(args, one_after_the_other),
                "these are the gradients of a model in which a rank's two stages follow each other. Here w[1] is stage rank + N: "
                "what leaves w[0] goes to the next rank, and comes back to w[1] after a trip around the ring.",
            ),
            Suspect(
                lambda args: [g.flip(0) for g in gradients(args)],
                "the gradients of the rank's two stages have changed places.",
            ),
            Suspect(
                lambda args: [torch.stack([g[1], g[1]]) for g in gradients(args)],
                "both are the gradient of the second stage. What does the first stage's backward have to wait for?",
            ),
        ),
        thoughts={
            "values": "which stages are wrong? If it's all but the last, a gradient was taken for a different one: between two "
            "neighbors, messages of both stages and both directions arrive in the order in which they were sent, unless they "
            "have tags.",
            "Stuck": "a send that blocks goes on only when its neighbor receives, and here the ring is closed: whom does the last "
            "rank wait for? isend, and wait at the end. If you do: does every rank receive in the order in which its neighbor "
            "sends?",
            "Mismatch": "does every rank receive in the order in which its neighbor sends? The last stage, on rank N-1, has the "
            "loss and sends no activation on; stage 0 sends no gradient back.",
            "calls": "stages have different parameters: there is nothing to add up between ranks.",
            "messages": "one message for each microbatch, boundary, and direction: 2N stages have 2N - 1 boundaries.",
            "traffic": "a microbatch's activation, of the shape of its rows of x, and the gradient of it.",
            "links": "stage s is on rank s % N. Its activation goes to rank (s + 1) % N, and its input's gradient back to rank "
            "(s - 1) % N.",
            AHEAD: "with one microbatch at a time, one rank computes and the others wait. Let rank 0 send several on before it "
            "takes up its second stage.",
        },
    ),
)  # fmt: skip
