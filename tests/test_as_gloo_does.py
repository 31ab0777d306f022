"""What gloo refuses, the grader's wire refuses for the same reason, and what gloo takes it takes: calls by layout, shape and dtype."""

import re

import pytest

from grader import sandbox
from grader.switch import Switch
from helpers import RunError, run
from helpers.exercise.cases import Case
from tests.sampling import when

SOURCE = """
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

def laid_out(layout, dtype=torch.float32):
    numbers = (torch.arange(16) + dist.get_rank()).to(dtype)
    return {
        "plain": lambda: numbers[:4], "gaps": lambda: numbers[::4], "transposed": lambda: numbers[:4].view(2, 2).t(),
        "expanded": lambda: numbers[1:2].expand(4),
    }[layout]()

def dense(x): return torch.zeros(x.shape, dtype=x.dtype)
def two(make): return [make(), make()]
def at_root(values): return values if dist.get_rank() == 0 else None
def into(tensor, call):
    call(tensor)
    return tensor
def message(x, to):
    works = [dist.isend(x, to), dist.irecv(y := dense(x), to)]
    for work in works: work.wait()
    return y

CALLS = {
    "all_reduce": lambda x: into(x, dist.all_reduce),
    "broadcast": lambda x: into(x, lambda y: dist.broadcast(y, 1)),
    "reduce": lambda x: into(x, lambda y: dist.reduce(y, 0)) if dist.get_rank() == 0 else into(x, lambda y: dist.reduce(y, 0)) * 0,
    "all_gather": lambda x: into(two(lambda: dense(x)), lambda y: dist.all_gather(y, x)),
    "gather": lambda x: into(at_root(two(lambda: dense(x))), lambda y: dist.gather(x, y)),
    "scatter": lambda x: into(dense(x), lambda y: dist.scatter(y, at_root([x, x.flip(0)]))),
    "scatter into": lambda x: into(x, lambda y: dist.scatter(y, at_root(two(lambda: (dense(x) + 3).to(x.dtype))))),
    "reduce_scatter": lambda x: into(dense(x), lambda y: dist.reduce_scatter(y, [x, x])),
    "reduce_scatter into": lambda x: into(x, lambda y: dist.reduce_scatter(y, two(lambda: torch.arange(4).to(x).view(x.shape)))),
    "all_to_all": lambda x: into(two(lambda: dense(x)), lambda y: dist.all_to_all(y, [x, x.flip(0)])),
    "all_to_all_single": lambda x: into(dense(x), lambda y: dist.all_to_all_single(y, x)),
    "all_to_all_single into": lambda x: into(x, lambda y: dist.all_to_all_single(y, torch.arange(4).to(x).view(x.shape))),
    "all_gather_single": lambda x: into(dense(torch.cat([x, x])), lambda y: dist.all_gather_single(y, x)),
    "reduce_scatter_single": lambda x: into(dense(x)[:len(x) // 2], lambda y: dist.reduce_scatter_single(y, x)),
    "message": lambda x: message(x, 1 - dist.get_rank()),
    "message to itself": lambda x: message(x, dist.get_rank()),
}
for shape in ((8,), (2, 4), (4, 2), (1, 8), (2, 2, 2)):
    CALLS[f"all_gather_single into {shape}"] = lambda x, shape=shape: into(torch.zeros(shape).to(x.dtype), lambda y: dist.all_gather_single(y, x))
for shapes in ((2,), (2, 2, 2), (2, 1)):
    CALLS[f"all_gather into {shapes}"] = lambda x, shapes=shapes: into([torch.zeros(4 // n, *[n] * (n > 1)).to(x.dtype) for n in shapes], lambda y: dist.all_gather(y, x))
    CALLS[f"all_to_all of {shapes}"] = lambda x, shapes=shapes: into(two(lambda: dense(x)), lambda y: dist.all_to_all(y, [torch.zeros(n).to(x.dtype) for n in shapes]))
CALLS["all_gather twice into one"] = lambda x: into([dense(x)] * 2, lambda y: dist.all_gather(y, x))
CALLS["broadcast from nobody"] = lambda x: into(x, lambda y: dist.broadcast(y, 5))
for name in ("AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
    CALLS[f"all_reduce {name}"] = lambda x, op=getattr(ReduceOp, name): into(x, lambda y: dist.all_reduce(y, op))

def outcome(name, layout, dtype):
    try:
        return CALLS[name](laid_out(layout, dtype))
    except Exception as error:
        reason = "Pair is not connected" if "Pair is not connected" in str(error) else str(error).splitlines()[0]
        return f"{type(error).__name__}: {reason}"[:70]

def table(rows):
    return [outcome(name, layout, getattr(torch, dtype)) for name, layout, dtype in rows]
"""
NAMES = {}
exec(SOURCE, NAMES)
DTYPES = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64".split()
SHAPED = [name for name in NAMES["CALLS"] if re.search("into \\(|of \\(|from nobody|into one", name)]
LISTED = [name for name in NAMES["CALLS"] if name not in SHAPED and not name.startswith("all_reduce ")]
FEW = ("all_reduce", "broadcast", "all_gather", "all_to_all", "all_to_all_single", "message")
ENDS = {  # the course's own judgment ends the job, and no error reaches the rank
    *(
        (name, "gaps")
        for name in ("all_reduce", "broadcast", "reduce", "scatter", "scatter into", "reduce_scatter into")
    ),
    *((name, layout) for name in ("scatter", "scatter into") for layout in ("transposed", "expanded")),
    ("all_to_all_single into", "gaps"),
    ("all_gather twice into one", "plain"),
    *((name, "transposed") for name in ("reduce_scatter", "reduce_scatter into", "all_to_all_single into")),
}


ROWS = [(name, layout, "float32") for name in LISTED for layout in ("plain", "gaps", "transposed", "expanded")]
ROWS += [(name, "plain", "float32") for name in SHAPED]
ROWS += [(name, "plain", dtype) for name in NAMES["CALLS"] for dtype in DTYPES if name not in SHAPED]
ROWS += [(name, "plain", dtype) for name in FEW for dtype in ("uint16", "float8_e4m3fn")]


@pytest.fixture(scope="module")
def wire():
    pool = sandbox.Sandbox(walls=False)

    def graded(rows):
        judged = Switch(pool.world(2), {"table": SOURCE}, "table", pool.end_ranks)
        try:
            (done,) = judged.attempt([("table", SOURCE)], [Case(2)], [[(rows,), (rows,)]])
            return done.results
        finally:
            pool.dismiss()

    yield graded
    pool.close()


def on_gloo(rows):
    return run(NAMES["table"], rows, world_size=2).results


def test_a_rank_sees_the_same_result_or_error(wire):
    rows = [row for row in ROWS if row[:2] not in ENDS]
    rows.sort(
        key=lambda row: row[0].startswith("message") and row[:2] != ("message", "plain")
    )  # no recv after a refused send
    for name, theirs, ours in zip(rows * 2, sum(on_gloo(rows), []), sum(wire(rows), [])):
        assert repr(ours) == repr(theirs), name


@pytest.mark.parametrize(
    "name, layout", [pytest.param(*end, marks=when(k % 3 == 0, each_push=k % 3 == 1)) for k, end in enumerate(sorted(ENDS))]
)
def test_a_job_ends_with_the_same_verdict(wire, name, layout):
    said = []
    for runs in (on_gloo, wire):
        with pytest.raises(RunError) as error:
            runs([(name, layout, "float32")])
        said.append(str(error.value).splitlines()[0])
    assert said[0] == said[1]
