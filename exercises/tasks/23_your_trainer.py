"""train_by_plan(plan, sizes, shards, x, t, microbatches): steps of training on a mesh of ranks that a plan describes.
resume_by_plan(plan, sizes, names, saved, saved_plan, x, t, microbatches): the same from a killed job's newest complete checkpoint.
"""

from math import prod

import torch

from collectives.log.event import Event
from helpers.exercise import Budget, Case, Measure, Suspect, Task

RATE, CLIP = 0.5, 0.5
WIDTH, HIDDEN, ROWS = 4, 12, 2  # ROWS: of a microbatch
BATCHES = torch.tensor([1.0, 0.3, 1.0])  # how large each step's numbers are: the second gradient isn't clipped
NAMES = ("pp", "dp", "fs", "tp")
SMALL_SUMS = 256  # bytes per step, for sums of a few numbers

# --- plans ----------------------------------------------------------------------------------


def plan_of(words):
    """[("dp", 2), ("tp", 4)] from "dp 2 x tp 4"."""
    parts = (part.split() for part in words.split(" x "))
    return [(name, int(ranks)) for name, ranks in parts]


def ranks_in(plan):
    """Ranks along each of NAMES, by name."""
    return {name: dict(plan).get(name, 1) for name in NAMES}


def position(plan, rank):
    """A rank's coordinate along each of NAMES, by name."""
    found = dict.fromkeys(NAMES, 0)
    for name, ranks in reversed(plan):
        rank, found[name] = divmod(rank, ranks)
    return found


def stage_layers(layers, stage, stages):
    """The layers of a stage: the first ones have one more where they aren't cut evenly."""
    size, left = divmod(layers, stages)
    first = stage * size + min(stage, left)
    return range(first, first + size + (stage < left))


def shard_of(weights, plan, rank):
    """A rank's shard of each of its stage's layers, [layers, numbers].  weights: of each layer, (up, down)."""
    ranks, at = ranks_in(plan), position(plan, rank)
    rows = []
    for k in stage_layers(len(weights), at["pp"], ranks["pp"]):
        up, down = weights[k]
        flat = torch.cat([up.chunk(ranks["tp"], 1)[at["tp"]].flatten(), down.chunk(ranks["tp"], 0)[at["tp"]].flatten()])
        flat = torch.nn.functional.pad(flat, (0, -len(flat) % ranks["fs"]))
        rows.append(flat.chunk(ranks["fs"])[at["fs"]])
    return torch.stack(rows) if rows else up.new_zeros(0, 0)


def assembled(shards, plan, layers):
    """The weights of each layer, from all ranks' shards."""
    ranks, found = ranks_in(plan), {}
    for rank, mine in enumerate(shards):
        at = position(plan, rank)
        for k, row in zip(stage_layers(layers, at["pp"], ranks["pp"]), mine):
            found[k, at["tp"], at["fs"]] = row
    weights, part = [], HIDDEN // ranks["tp"]
    for k in range(layers):
        flats = [torch.cat([found[k, tp, fs] for fs in range(ranks["fs"])]) for tp in range(ranks["tp"])]
        up = torch.cat([flat[: WIDTH * part].view(WIDTH, part) for flat in flats], 1)
        weights.append((up, torch.cat([flat[WIDTH * part : 2 * WIDTH * part].view(part, WIDTH) for flat in flats])))
    return weights


# --- what one process computes --------------------------------------------------------------


def trained(weights, x, t, scale=1.0, norm=lambda gradients: sum(g.square().sum() for g in gradients).sqrt()):
    """The losses of all steps, and the weights after the last.  scale: of the gradient.  norm: of it, for clipping."""
    flat = [w.double().clone() for pair in weights for w in pair]
    losses = []
    for inputs, targets in zip(x.double(), t.double()):
        flat = [w.detach().requires_grad_() for w in flat]
        y = inputs
        for up, down in zip(flat[::2], flat[1::2]):
            y = y + torch.tanh(y @ up) @ down
        loss = torch.nn.functional.mse_loss(y, targets)
        gradients = [scale * g for g in torch.autograd.grad(loss, flat)]
        factor = RATE * min(1.0, CLIP / float(norm(gradients)))
        flat = [w.detach() - factor * g for w, g in zip(flat, gradients)]
        losses.append(loss.detach())
    return torch.stack(losses) if losses else torch.zeros(0), list(zip(flat[::2], flat[1::2]))


def rows_of_all(parts, plan):
    """The rows of all replicas, [steps, rows, width].  parts: each rank's."""
    ranks, places = ranks_in(plan), [position(plan, rank) for rank in range(len(parts))]
    found = {place["dp"] * ranks["fs"] + place["fs"]: part for place, part in zip(places, parts)}
    return torch.cat([found[k] for k in sorted(found)], 1)


def outcome(plan, weights, x, t, losses_of=lambda losses, rank: losses, **mistake):
    """What each rank returns: losses and its shards."""
    losses, new = trained(weights, x, t, **mistake)
    dtype = x.dtype
    new = [(up.to(dtype), down.to(dtype)) for up, down in new]
    return [(losses_of(losses, r).to(dtype), shard_of(new, plan, r)) for r in range(prod(n for _, n in plan))]


# --- what an answer may send ----------------------------------------------------------------


def is_gather(e: Event) -> bool:
    return e.op.startswith("all_gather") and len(e.group) > 1


def gathered(layer_bytes: float):
    """A count, per rank, of the times that its all_gathers have made a layer complete."""
    return lambda events: [sum(e.nbytes * len(e.group) for e in mine if is_gather(e)) / layer_bytes for mine in events]


def summed_in_a_row(events: list[list[Event]]) -> list[float]:
    """Per rank, the most reduce_scatters between two all_gathers: layers that were complete at the same time."""
    found = []
    for mine in events:
        longest = now = 0
        for e in mine:
            now = 0 if is_gather(e) else now + (e.op.startswith("reduce_scatter") and len(e.group) > 1)
            longest = max(longest, now)
        found.append(longest)
    return found


def under_way(plan):
    """A count, per rank, of the microbatches that it had sent on and whose gradient had not come back: the most at one time."""
    stages = [position(plan, rank)["pp"] for rank in range(prod(n for _, n in plan))]

    def most(events: list[list[Event]]) -> list[float]:
        found = []
        for rank, mine in enumerate(events):
            sent = [(e.start, 1) for e in mine if e.op == "send" and stages[e.dst] == stages[rank] + 1]
            arrived = [e for e in mine if e.op == "recv" and e.end is not None]
            back = [(e.end, -1) for e in arrived if stages[e.src] == stages[rank] + 1]
            now = highest = 0
            for _, change in sorted(sent + back):
                now += change
                highest = max(highest, now)
            found.append(highest)
        return found

    return most


GATHERS = "gathers of a layer"
IN_A_ROW = "layers in a backward pass that are complete at once"
UNDER_WAY = "microbatches under way to later stages"


def budget_of(plan, layers, microbatches, steps, itemsize):
    """The budget of some steps: what each mesh dimension has to send, and what a rank may hold."""
    ranks, n = ranks_in(plan), prod(k for _, k in plan)
    flat = 2 * WIDTH * HIDDEN // ranks["tp"]
    padded = (flat + -flat % ranks["fs"]) * itemsize
    activation = ROWS * WIDTH * itemsize

    def around(k):
        return (k - 1) / k

    sent, gathers, most_gathers, in_flight, largest = [], [], [], [], []
    for rank in range(n):
        stage = position(plan, rank)["pp"]
        own = len(stage_layers(layers, stage, ranks["pp"]))
        shards = 3 * microbatches * around(ranks["fs"]) * padded + 2 * around(ranks["dp"]) * padded / ranks["fs"]
        sums = 2 * microbatches * 2 * around(ranks["tp"]) * activation
        messages = microbatches * ((stage > 0) + (stage < ranks["pp"] - 1)) * activation
        sent.append(steps * (own * (shards + sums) + messages + SMALL_SUMS))
        largest.append(max(padded, activation, own * padded / ranks["fs"]))
        gathers.append(steps * microbatches * (2 * own - 1) * (ranks["fs"] > 1))
        most_gathers.append(steps * microbatches * 2 * own)
        in_flight.append(min(ranks["pp"] - stage, microbatches) * (stage < ranks["pp"] - 1) * (steps > 0))
    return Budget(
        "per step, each microbatch gathers a layer twice and sums its gradients once over fs, sends an activation and its "
        "gradient from stage to stage, and sums two activations per layer over tp; dp sums each gradient once; 256 B are for sums "
        "of a few numbers. No call has more than one layer, one activation, or this rank's shards",
        sent=sent,
        received=sent,
        largest=largest,
        measures=(
            Measure(GATHERS, gathered(padded), most_gathers, gathers),
            Measure(IN_A_ROW, summed_in_a_row, [2] * n),
            Measure(UNDER_WAY, under_way(plan), in_flight, in_flight),
        ),
    )


def microbatches_of(plan):
    return 4 if dict(plan).get("pp", 1) > 1 else 2


def drawn(d, plan):
    """The first weights, and this rank's rows of x and t."""
    ranks, at = ranks_in(plan), position(plan, d.rank)
    weights = [
        tuple(d.numbers(*shape, common=True) / 18 for shape in ((WIDTH, HIDDEN), (HIDDEN, WIDTH)))
        for _ in range(d.case.size)
    ]
    replicas = ranks["dp"] * ranks["fs"]
    shape = len(BATCHES), replicas * microbatches_of(plan) * ROWS, WIDTH
    x, t = (d.numbers(*shape, common=True) / 9 * BATCHES.view(-1, 1, 1).to(d.case.dtype) for _ in range(2))
    replica = at["dp"] * ranks["fs"] + at["fs"]
    return weights, *(rows.chunk(replicas, 1)[replica].contiguous() for rows in (x, t))


def least_received(plan, case, x):
    """Bytes that a rank has to receive: of the sum of others' gradients, of an activation, or of their rows, the fewest."""
    ranks = ranks_in(plan)
    shard = 2 * WIDTH * HIDDEN * case.dtype.itemsize // (ranks["tp"] * ranks["fs"])
    return min(shard, x.nbytes) * (case.world_size > 1)


# --- train_by_plan --------------------------------------------------------------------------


def draw(d):
    plan = plan_of(d.case.kind)
    weights, x, t = drawn(d, plan)
    return plan, (d.case.size, WIDTH, HIDDEN), shard_of(weights, plan, d.rank), x, t, microbatches_of(plan)


def start(args):
    """The plan, all weights, and all rows of x and of t."""
    plan, (layers, *_), *_ = args[0]
    weights = assembled([mine[2] for mine in args], plan, layers)
    return plan, weights, *(rows_of_all([mine[k] for mine in args], plan) for k in (3, 4))


def result(args, **mistake):
    return outcome(*start(args), **mistake)


def copies_counted(plan):
    """The norm as if every rank's gradient counted, its dp copies too."""
    return lambda gradients: (ranks_in(plan)["dp"] * sum(g.square().sum() for g in gradients)).sqrt()


def unclipped(gradients):
    return torch.tensor(CLIP / 2)


def of_replicas(plan):
    ranks = ranks_in(plan)
    return ranks["dp"] * ranks["fs"]


def budget(case, args):
    plan, (layers, *_), shards, x, _, microbatches = args[0]
    return budget_of(plan, layers, microbatches, len(x), case.dtype.itemsize)


def needs(case, args):
    return [least_received(plan, case, x) for plan, _, _, x, *_ in args]


def mistakes(result_of):
    """The suspects of both tasks.  result_of: from arguments and a mistake, what each rank returns."""

    def losses_times(factor_of):
        return lambda args: result_of(args, losses_of=lambda losses, rank: factor_of(args[0][0]) * losses)

    return (
        Suspect(
            lambda args: result_of(args, norm=copies_counted(args[0][0])),
            "the norm counts each gradient once per copy: ranks along dp have the same shard.",
        ),
        Suspect(
            lambda args: result_of(args, norm=unclipped), "nothing is clipped. Where does the gradient's norm come in?"
        ),
        Suspect(
            lambda args: result_of(args, scale=of_replicas(args[0][0])),
            "the gradient is too large by the number of replicas. The loss is the mean over the rows of all of them, and each "
            "replica has a share of it.",
        ),
        Suspect(
            lambda args: result_of(args, scale=1 / of_replicas(args[0][0])),
            "the gradient is too small by the number of replicas. If each rank's loss is a share of the whole batch's, gradients are "
            "summed, and nothing is divided.",
        ),
        Suspect(
            lambda args: result_of(args, scale=args[0][-1]),
            "the gradient is too large by the number of microbatches. Each one's loss is a share of the batch's.",
        ),
        Suspect(
            losses_times(lambda plan: ranks_in(plan)["tp"]),
            "the losses are counted once per tp rank: all of these compute the loss of the same rows.",
        ),
        Suspect(
            losses_times(of_replicas),
            "the losses are sums over replicas. They should be the mean over the rows of the whole batch.",
        ),
    )


THOUGHTS = {
    "values": "which plan is the first to fail? With dp alone, only sums of gradients can be wrong. Add fs, then tp, then pp, and "
    "compare one step's loss first: it shows the forward pass alone.",
    "traffic": "per layer and microbatch: two all_gathers and one reduce_scatter over fs, two sums of activations over tp. Per step, one "
    "sum over dp. What do your calls send more than once, or to ranks along the wrong dimension?",
    "largest": "a layer at a time: gather it, use it, let it go.",
    GATHERS: "a layer is complete only while it is used, so it's gathered for each forward and again for its backward.",
    IN_A_ROW: "in the backward pass, a layer's weights go before the layer after the next is gathered.",
    UNDER_WAY: "1F1B: stage s of p sends p - s microbatches on, then waits for a gradient before each further one.",
    "Stuck": "do all ranks make the same groups in the same order, and all members of a group the same calls? With stages, does each "
    "rank receive in the order in which its neighbor sends, and does it use isend?",
    "Mismatch": "which dimension does each call's group belong to? The plan says the order of the dimensions, outermost first, and a "
    "dimension that isn't in it has one rank.",
    "RankFailed": "try the plan by hand with the cell below. Does a stage need what it doesn't have: x, t, a neighbor?",
}
PLANS = (  # world size, plan, layers, and what else
    (2, "dp 2", 2), (2, "fs 2", 4), (2, "tp 2", 2), (2, "pp 2", 3), (3, "pp 3", 4), (3, "fs 3", 3), (4, "fs 2 x tp 2", 3),
    (4, "tp 2 x dp 2", 2), (4, "pp 2 x fs 2", 4), (5, "dp 5", 2), (6, "fs 3 x pp 2", 4), (7, "fs 7", 2), (8, "dp 2 x fs 2 x tp 2", 3),
    (8, "pp 2 x tp 2 x dp 2", 4), (1, "dp 1", 2),
)  # fmt: skip
TRAIN = Task(
    "train_by_plan",
    tuple(Case(n, plan, layers, torch.float64 if n in (3, 7) else torch.float32) for n, plan, layers in PLANS),
    draw,
    result,
    budget,
    needs=needs,
    after=None,
    scale=lambda args: 1.0,
    parameters=("plan", "sizes", "shards", "x", "t", "microbatches"),
    outputs=("losses", "shards"),
    imports=("torch.fx.experimental.symbolic_shapes",),  # by y.backward(gradient)
    suspects=mistakes(result),
    thoughts=THOUGHTS,
)

# --- resume_by_plan -------------------------------------------------------------------------

KILLED = {  # plan -> the plan of the job that was killed
    "dp 2": "tp 2 x fs 2", "tp 2": "pp 3", "pp 2": "dp 1", "fs 3": "pp 2 x dp 2", "dp 2 x fs 2": "tp 3", "fs 5": "tp 2 x pp 2",
    "pp 3 x tp 2": "fs 4", "dp 7": "fs 2 x pp 2 x tp 2", "dp 2 x fs 2 x tp 2": "pp 2 x tp 2 x dp 2",
    "pp 2 x tp 2 x dp 2": "dp 2 x fs 3", "dp 1": "fs 3 x tp 2",
}  # fmt: skip
FOLDERS = (  # names of a folder's checkpoints in the order in which they are listed, and which of them are incomplete
    (("step1", "step0", "step2"), ("step2",)),
    (("step0", "step2", "step1"), ()),
    (("step10", "step9", "step8"), ()),
    (("step8", "step11", "step10", "step9"), ("step11",)),
)


def draw_folder(d):
    plan, killed = plan_of(d.case.kind), plan_of(KILLED[d.case.kind])
    weights, x, t = drawn(d, plan)
    names, incomplete = FOLDERS[d.world_size % len(FOLDERS)]
    first = min(map(steps_in, names))
    x, t = (torch.cat([rows[:1].expand(first, -1, -1), rows]) for rows in (x, t))  # the steps before, which nobody uses
    world, saved = prod(k for _, k in killed), []
    for name in names:
        scale = 1 + (steps_in(name) - first) / 8  # each checkpoint has other weights
        shards = [shard_of([(scale * up, down / scale) for up, down in weights], killed, rank) for rank in range(world)]
        if name in incomplete:
            shards[d.integer(0, world, common=True)] = None
        saved.append(shards)
    return plan, (d.case.size, WIDTH, HIDDEN), list(names), saved, killed, x, t, microbatches_of(plan)


def steps_in(name):
    return int(name.removeprefix("step"))


def newest_complete(names, saved):
    complete = [name for name, shards in zip(names, saved) if not any(shard is None for shard in shards)]
    return max(complete, key=steps_in)


def steps_left(mine):
    """The steps that follow the newest complete checkpoint."""
    _, _, names, saved, _, x, *_ = mine
    return len(x) - steps_in(newest_complete(names, saved))


def resumed(args, newest=newest_complete, done=steps_in, **mistake):
    """What each rank returns.  newest: the checkpoint that is chosen.  done: from its name, steps of x that are left out."""
    plan, (layers, *_), names, saved, killed, *_ = args[0]
    name = newest(names, saved)
    weights = assembled(saved[names.index(name)], killed, layers)
    x, t = (rows_of_all([mine[k] for mine in args], plan)[done(name) :] for k in (5, 6))
    return outcome(plan, weights, x, t, **mistake)


def last_by_name(names, saved):
    complete = [name for name, shards in zip(names, saved) if not any(shard is None for shard in shards)]
    return max(complete)


def last_listed(names, saved):
    return [name for name, shards in zip(names, saved) if not any(shard is None for shard in shards)][-1]


RESUME = Task(
    "resume_by_plan",
    tuple(
        Case(prod(k for _, k in plan_of(plan)), plan, layers)
        for plan, layers in (
            ("dp 2", 2), ("tp 2", 3), ("pp 2", 2), ("fs 3", 4), ("dp 2 x fs 2", 2), ("fs 5", 2), ("pp 3 x tp 2", 3), ("dp 7", 2),
            ("dp 2 x fs 2 x tp 2", 2), ("pp 2 x tp 2 x dp 2", 4), ("dp 1", 2),
        )
    ),
    draw_folder,
    resumed,
    lambda case, args: budget_of(args[0][0], case.size, args[0][-1], steps_left(args[0]), case.dtype.itemsize),
    needs=lambda case, args: [least_received(plan, case, x[:1]) for plan, _, _, _, _, x, *_ in args],
    after=None,
    scale=lambda args: 1.0,
    parameters=("plan", "sizes", "names", "saved", "saved_plan", "x", "t", "microbatches"),
    outputs=("losses", "shards"),
    imports=TRAIN.imports,
    suspects=(
        Suspect(
            lambda args: resumed(args, newest=last_by_name),
            "this is the last name in the order of text, in which step9 comes after step10.",
        ),
        Suspect(
            lambda args: resumed(args, newest=last_listed),
            "this is the last checkpoint in the list, which isn't sorted. Which one has the most steps?",
        ),
        Suspect(
            lambda args: resumed(args, done=lambda name: 0),
            "the steps that the checkpoint has behind it are made once more: after step k, the next batch is x[k].",
        ),
        Suspect(
            lambda args: resumed(args, done=lambda name: steps_in(name) + 1),
            "a batch is left out: after step k, the next batch is x[k].",
        ),
        *mistakes(resumed),
    ),
    thoughts={
        **THOUGHTS,
        "values": "does train_by_plan pass? Then look at the weights: which ranks of the killed job had the shards of layer 0, and in which "
        "order do they make up `up` and `down`? Its plan is `saved_plan`, yours is `plan`.",
        "RankFailed": "a rank that was killed has left None. And the killed job's ranks, shards and stages differ from yours: their "
        "number is the product of `saved_plan`.",
    },
)  # fmt: skip
TASKS = (TRAIN, RESUME)
