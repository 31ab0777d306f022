"""divide(parameters, layers, kept, memory, gpus, batch), priced by the planner.
average_gradient(gradient, tensor, pipeline), on real ranks."""

from functools import cache
from itertools import chain, product
from numbers import Integral
from typing import Any, Iterator, NamedTuple

import torch

from collectives.format import duration, kind, size
from collectives.planner import MARGIN, Division, Shape, Step, cluster, memory, shape, step
from helpers.exercise import Budget, Case, Finding, Puzzle, Suspect, Task

# --- the division -------------------------------------------------------------------------

NAME = "divide"
LENGTH = 8192  # tokens of a sequence
# Times the fastest division, without the budget and with it: what fits is known without arithmetic, (gpus // 8, 8, 1, 3).
TOLERABLE, SLOWER = 1.4, 1.15
FILLED = {"H100": 60 * 2**30, "H200": 98 * 2**30}  # bytes: three quarters of a GPU's memory
DEGREES = ("data", "tensor", "pipeline", "shard")


class Job(NamedTuple):
    """What is to be divided, and over what."""

    model: str
    gpus: int
    batch: int  # sequences per step
    gpu: str = "H100"
    layers: int = 0  # 0: as many as the model has
    head: int = 0  # numbers in a head; 0: as many as in the model's
    filled: int = 0  # bytes, three quarters of a GPU's memory; 0: of the memory that such a GPU has

    @property
    def shape(self) -> Shape:
        model = shape(self.model)
        head = self.head or model.hidden // model.heads
        ffn = model.ffn and model.ffn * head * model.heads // model.hidden // 8 * 8  # tensor ranks divide it
        layers = self.layers or model.layers
        return model.with_(length=LENGTH, layers=layers, hidden=head * model.heads, ffn=ffn)

    @property
    def figures(self) -> tuple[int, ...]:
        """The arguments of divide."""
        kept = memory(self.shape, Division(recompute="pointwise"), 1).activations
        return int(self.shape.parameters), self.shape.layers, int(kept), self.memory, self.gpus, self.batch

    @property
    def memory(self) -> int:
        """Bytes that a GPU should hold at most."""
        return self.filled or FILLED[self.gpu]


JOBS = {
    "Llama 3 8B on 8 GPUs": Job("Llama 3 8B", 8, 64),
    "GPT 7.5B on 64 GPUs": Job("GPT 7.5B", 64, 128),
    "Llama 3 70B on 256 GPUs": Job("Llama 3 70B", 256, 512),
    "Llama 3 70B on 128 H200s": Job("Llama 3 70B", 128, 256, "H200"),
    "Llama 3 8B on 64 GPUs": Job("Llama 3 8B", 64, 32),
    "GPT 7.5B on 16,384 GPUs": Job("GPT 7.5B", 16384, 2048),
    "Llama 3 70B on 4,096 GPUs": Job("Llama 3 70B", 4096, 2048),
    "Llama 3 405B on 4,096 GPUs": Job("Llama 3 405B", 4096, 2048),
    "Llama 3 405B on 16,384 GPUs": Job("Llama 3 405B", 16384, 2048),
}
DRAWN = {  # what a case says -> models, GPUs
    "a model of up to 25 billion parameters": (
        ("Llama 2 7B", "LLaMA 13B", "GPT 18B", "GPT 22B", "Nemotron-4 15B"), (64, 128, 256, 512)),
    "a model of 35 to 80 billion parameters": (
        ("GPT 39B", "LLaMA 65B", "GPT 76B", "Llama 2 70B"), (256, 512, 1024)),
    "a model of 130 to 180 billion parameters": (
        ("GPT 146B", "GPT 175B", "BLOOM 176B", "GLM 130B"), (1024, 2048)),
}  # fmt: skip


# How often each is drawn, with one of many depths, widths, batches and memories: two jobs that are alike in all of these
# have different answers, since one batch can be divided and the next can't, so no table of jobs has the answer to the next.
TIMES = 3
# Per step, for each eight GPUs, by a case's number: the first leaves room for many stages, the others have odd divisors.
SEQUENCES = (4, 8, 16), range(4, 17), range(4, 17)
GIB = range(44, 61)  # of an H100's memory


def depths(model: str) -> range:
    """Numbers of layers up to a quarter more and fewer than the model has."""
    layers = shape(model).layers
    return range(layers - layers // 8 * 2, layers + layers // 8 * 2 + 1, 2)


def widths(model: str) -> range:
    """Numbers in a head, up to a quarter more and fewer than the model has."""
    head = shape(model).hidden // shape(model).heads
    return range(head - head // 4, head + head // 4 + 1)


def draw_job(d) -> tuple[int, ...]:
    """The arguments of divide."""
    if d.case.kind in JOBS:
        return JOBS[d.case.kind].figures
    model, gpus = (among[d.integer(0, len(among))] for among in DRAWN[d.case.kind])
    drawn = (depths(model), widths(model), SEQUENCES[d.case.size], GIB)
    layers, head, sequences, gib = (among[d.integer(0, len(among))] for among in drawn)
    return Job(model, gpus, gpus // 8 * sequences, layers=layers, head=head, filled=gib * 2**30).figures


@cache
def job_of(figures: tuple[int, ...]) -> Job:
    """The Job that has these figures."""
    _, layers, _, filled, gpus, batch = figures
    named = [job for job in JOBS.values() if job.figures == figures]
    models = chain(*(names for names, *_ in DRAWN.values()))
    drawn = (
        Job(model, gpus, batch, layers=layers, head=head, filled=filled) for model in models for head in widths(model)
    )
    return next(job for job in chain(named, drawn) if job.figures == figures)


@cache
def priced(job: Job, data: int, tensor: int, pipeline: int, shard: int) -> Step:
    """The price of a division, its pipeline interleaved layer by layer. Raises ValueError for one that isn't possible."""
    chunks = -(-job.shape.layers // pipeline) if pipeline > 1 else 1
    way = Division(data, tensor, pipeline, shard=shard, chunks=chunks, recompute="pointwise")
    capacity = job.filled / 0.75 if job.filled else None
    return step(job.shape, way, job.batch, cluster(job.gpu, job.gpus), program="FSDP", capacity=capacity)


def possible(job: Job) -> Iterator[Step]:
    """The prices of all divisions whose degrees are powers of two, with tensor ranks in one node."""
    for tensor, pipeline, shard in product((1, 2, 4, 8), (1, 2, 4, 8, 16, 32, 64), range(4)):
        try:
            yield priced(job, job.gpus // (tensor * pipeline), tensor, pipeline, shard)
        except ValueError:
            continue


@cache
def fastest(job: Job) -> Step:
    """The fastest division that fills 90% of `memory` at most, so a count that is less exact finds one as fast."""
    return min((s for s in possible(job) if s.memory.total <= 0.9 * job.memory), key=lambda s: s.time)


def degrees_of(result: Any, gpus: int) -> tuple[int, ...]:
    """data, tensor, pipeline, shard. Raises ValueError for a result that isn't these, or not for so many GPUs."""
    if not isinstance(result, (tuple, list)) or len(result) != len(DEGREES):
        what = f"{len(result)} values" if isinstance(result, (tuple, list)) else kind(result)
        raise ValueError(f"it must return four integers, (data, tensor, pipeline, shard), not {what}.")
    for name, value in zip(DEGREES, result):
        if isinstance(value, bool) or not isinstance(value, Integral):
            shown = value if isinstance(value, float) else kind(value)
            raise ValueError(f"{name} must be an integer, not {shown}.")
        least, most, what = (0, 3, "a stage of ZeRO") if name == "shard" else (1, gpus, "a number of GPUs")
        if not least <= value <= most:
            given = f"{int(value):,}" if abs(value) < 1e9 else "so many"
            raise ValueError(f"{name} must be {what}, {least} to {most:,}, not {given}.")
    data, tensor, pipeline, shard = map(int, result)
    if (used := data * tensor * pipeline) != gpus:
        idle = f", so {gpus - used:,} would idle" * (used < gpus)
        raise ValueError(f"data x tensor x pipeline is {used:,}, and there are {gpus:,} GPUs{idle}.")
    return data, tensor, pipeline, shard


def verdict(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
    job = job_of(arguments)
    wrong = f"{NAME} is wrong with {situation(job)}"
    try:
        degrees = degrees_of(result, job.gpus)
    except ValueError as what:
        return Finding("values", words=f"{wrong}: {what}", thought=thought_about(str(what)))
    try:
        s = priced(job, *degrees)
    except ValueError as what:
        words = f"{wrong}. {degrees} isn't possible: {what}"
        return Finding("values", words=words, thought=thought_about(str(what)))
    if not s.fits:
        words = f"{wrong}. {degrees} doesn't fit.\n{filled(s)}"
        return Finding("values", words=words, thought=too_much(s), shows=s)
    best, slower = fastest(job), SLOWER if budget else TOLERABLE
    if s.time <= slower * best.time:
        return None
    slow = max(SLOW, key=lambda part: s.seconds[part] - best.seconds[part])
    spent, thought = SLOW[slow]
    words = (
        f"{NAME} fits, but it's slow with {situation(job)}.\n"
        f"  allowed    {duration(slower * best.time)}\n"
        f"  got        {duration(s.time)} with {degrees}, of which {duration(s.seconds[slow])} are {spent}"
    )
    return Finding("budget" if budget else "values", words=words, thought=thought, shows=s)


def situation(job: Job) -> str:
    model, mine = shape(job.model), job.shape
    parts = []
    if mine.layers != model.layers:
        parts.append(f"{mine.layers} layers")
    if mine.hidden != model.hidden:
        parts.append(f"width {mine.hidden:,}")
    changed = f" with {' and '.join(parts)}" if parts else ""
    return f"{job.model}{changed} on {job.gpus:,} {job.gpu}s, {job.batch:,} sequences per step"


def filled(s: Step) -> str:
    """What a GPU would hold, and what fits."""
    states, activations = s.memory.states + s.memory.gathered, s.memory.activations
    return (
        f"  fits       {size(room(s))} per GPU, with {MARGIN:.0%} to spare\n"
        f"  takes      {size(s.memory.total)}: states {size(states)}, activations {size(activations)}"
    )


def room(s: Step) -> float:
    """Bytes of which 20% more fit as well."""
    return s.capacity / (1 + MARGIN)


def too_much(s: Step) -> str:
    """What to think about, from what takes too much memory."""
    if s.memory.activations > room(s):
        return (
            "the activations alone are too much. More data ranks don't help, since each takes a whole sequence, nor do stages, "
            "since the first keeps a sequence for every stage. Which ranks share a sequence?"
        )
    if s.memory.states > room(s):
        return (
            "the states alone are too much: 16 bytes per parameter. Tensor ranks and stages divide all 16. How many does each "
            "stage of ZeRO leave whole?"
        )
    return "states and activations fit one without the other. Which of them costs less to divide?"


def thought_about(what: str) -> str:
    return next((THOUGHTS[words] for words in THOUGHTS if words in what), "")


def praise(case: Case, arguments: tuple, result: Any) -> str:
    job = job_of(arguments)
    s = priced(job, *degrees_of(result, job.gpus))
    fitting = [other for other in possible(job) if other.fits]
    best = min(fitting, key=lambda other: other.time)
    beside = f"The fastest of {len(fitting)} that fit takes {duration(best.time)}: {best.division}."
    if s.time <= best.time:
        beside = f"None of the {len(fitting)} that fit is faster."
    return f"{case.kind}: {s.division} takes {duration(s.time)} per step.\n{beside}"


THOUGHTS = {  # words of what is wrong -> one thing to think about
    "not None": "printing a division doesn't return it.",
    "integer": "the last line is `return data, tensor, pipeline, shard`. // divides integers, and / makes a float.",
    "must divide the batch": "reach the batch: each data rank needs a sequence. Which ranks can share one?",
    "microbatches of a replica": "a replica has batch / data sequences, which go through its stages in groups of as many as "
    "there are stages. Fewer stages, or fewer replicas?",
    "heads": "a tensor rank computes whole heads. 1, 2, 4, or 8 tensor ranks divide the heads of all these models.",
    "layers": "all stages have equally many layers, and embedding and output may each take a layer's place. Do so many stages "
    "divide `layers`, or `layers` + 2?",
    "x pipeline is": "choose tensor ranks and stages first. How many data ranks does that leave?",
    "a number of GPUs": "degrees are integers from 1. `gpus // (tensor * pipeline)` is 0 where these two alone are too many.",
    "a stage of ZeRO": "shard says what data ranks share: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too.",
}
SLOW = {  # part of a step's seconds -> what they are spent on, and one thing to think about
    "data": (
        "waiting for what the data ranks send",
        "does T reach F/B? With ZeRO 3, every microbatch gathers all weights. B is small where the ring is long, and where a node "
        "has 8 tensor ranks: then only one of its eight cards is a data rank's. Stages can hold parameters whole.",
    ),
    "tensor": (
        "waiting for what the tensor ranks send",
        "tensor ranks wait for all that they send. Would fewer do?",
    ),
    "bubble": (
        "the pipeline's bubble",
        "stages idle for (stages - 1) / chunks microbatches per step. Would fewer stages do, or fewer replicas, so each has more "
        "sequences?",
    ),
}

# --- the gradients ------------------------------------------------------------------------


def draw(d):
    """A gradient of this rank's piece of the model; tensor ranks and stages of a replica."""
    tensor, pipeline = (int(degree.split()[1]) for degree in d.case.kind.split(", "))
    return d.numbers(d.case.size), tensor, pipeline


def case(ranks: int, tensor: int, pipeline: int, length: int, **options) -> Case:
    return Case(ranks, f"tensor {tensor}, pipeline {pipeline}", length, **options)


def like(args, values):
    return [value.to(gradient.dtype) for (gradient, *_), value in zip(args, values)]


def averaged(args, same):
    """Per rank, the mean of the gradients of the ranks that `same` takes for holders of one piece.

    same: of (tensor, data, pipeline) coordinates, those in which two such ranks agree.
    """
    places, _ = coordinates(args)
    groups = [[k for k, other in enumerate(places) if same(other) == same(mine)] for mine in places]
    return like(args, [sum(args[k][0].double() for k in group) / len(group) for group in groups])


def coordinates(args):
    """(tensor, data, stage) of each rank, and how many data ranks there are."""
    _, tensor, pipeline = args[0]
    data = len(args) // (tensor * pipeline)
    return [(rank % tensor, rank // tensor % data, rank // tensor // data) for rank in range(len(args))], data


def reference(args):
    return averaged(args, lambda place: (place[0], place[2]))


def scaled(args, by):
    return like(args, [value.double() * by for value in reference(args)])


def transposed(args):
    """As if the stages of a replica were neighbors, and its data ranks far apart."""
    _, tensor, pipeline = args[0]
    stage = [rank // tensor % pipeline for rank in range(len(args))]
    groups = [
        [k for k in range(len(args)) if (k % tensor, stage[k]) == (r % tensor, stage[r])] for r in range(len(args))
    ]
    return like(args, [sum(args[k][0].double() for k in group) / len(group) for group in groups])


def budget(case, args):
    _, data = coordinates(args)
    limit = [2 * (data - 1) / data * args[0][0].nbytes] * case.world_size
    return Budget("2(d-1)/d of the gradient's bytes per rank, for d data ranks: what the planner prices", limit, limit)


def needs(case, args):
    """The sum of the other data ranks' gradients, where there are any."""
    _, data = coordinates(args)
    return [args[0][0].nbytes * (data > 1)] * case.world_size


TASKS = (
    Puzzle(
        NAME,
        tuple(
            Case(1, kind, k)
            for kind in (*list(JOBS)[:4], *DRAWN, *list(JOBS)[4:])
            for k in range(TIMES if kind in DRAWN else 1)
        ),
        draw_job,
        verdict,
        praise,
        {"RankFailed": "does it need anything but its six numbers? There is no planner where graders run it."},
    ),
    Task(
        "average_gradient",
        (
            case(2, 2, 1, 3),
            case(2, 1, 2, 3),
            case(4, 2, 1, 4),
            case(4, 1, 2, 6),
            case(6, 3, 1, 4, dtype=torch.float64),
            case(6, 1, 2, 6, late=2),
            case(8, 2, 2, 8),
            case(8, 1, 4, 6),
            case(3, 1, 1, 6),
            case(5, 5, 1, 3),
            case(7, 1, 1, 7),
            case(1, 1, 1, 4),
        ),
        draw,
        reference,
        budget,
        after=None,
        needs=needs,
        parameters=("gradient", "tensor", "pipeline"),
        suspects=(
            Suspect(
                lambda args: [gradient for gradient, *_ in args],
                "this is the rank's own gradient. Which other ranks hold the same piece?",
            ),
            Suspect(
                lambda args: averaged(args, lambda place: place[1:]),
                "this is averaged over tensor ranks. They hold different pieces of the same layers.",
            ),
            Suspect(
                transposed,
                "here the stages of a replica are neighbors. In this task all ranks of the first stage come first.",
            ),
            Suspect(
                lambda args: averaged(args, lambda place: place[:2]),
                "this is averaged over the stages. They hold different layers.",
            ),
            Suspect(
                lambda args: averaged(args, lambda place: place[:1]),
                "this is averaged over the stages, too. They hold different layers.",
            ),
            Suspect(
                lambda args: scaled(args, coordinates(args)[1]),
                "this is the sum over the data ranks. How many are there?",
            ),
            Suspect(
                lambda args: scaled(args, coordinates(args)[1] / len(args)),
                "this is divided by all ranks. How many gradients went into the sum?",
            ),
            Suspect(
                lambda args: averaged(args, lambda place: ()),
                "this is averaged over all ranks. Tensor ranks hold different pieces of a layer, and stages hold different layers.",
            ),
        ),
        thoughts={
            "values": "write down tensor, data, and stage of each rank. Which ranks agree in tensor and stage?",
            "traffic": "only ranks with the same piece exchange gradients, in groups of their own: one all_reduce in each.",
            "Mismatch": "every rank must call new_group for every group, in the same order, even for those it isn't in.",
            "Stuck": "every rank must call new_group for every group, in the same order, even for those it isn't in.",
            "RankFailed": "try it by hand with the line below. Is there a group for every rank, with any number of data ranks?",
        },
    ),
)
