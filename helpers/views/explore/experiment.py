"""What `explore()` offers, and the code that it runs."""

from __future__ import annotations

import linecache

from ...draw.canvas import Picture
from ...launch.attempt import Outcome, attempt
from ...record.collectives import COLLECTIVES
from ...results.errors import RunError
from ...results.run import Run

WORLD_SIZES = range(2, 9)
REDUCE_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8")
SIZES = (1, 2, 3, 4, 6, 8, 100, 10_000)
FILE = "<explore>"  # what the code's file is called in messages

_LIST = "[torch.zeros_like(x) for _ in range(world_size)] if rank == {root} else None"
CALLS = {
    "broadcast": ["dist.broadcast(x, src={root})"],
    "scatter": [
        "chunks = list(x.chunk(world_size)) if rank == {root} else None",
        "mine = torch.zeros({size}, dtype=torch.{dtype})",
        "dist.scatter(mine, chunks, src={root})",
    ],
    "gather": [f"parts = {_LIST}", "dist.gather(x, parts, dst={root})"],
    "reduce": ["dist.reduce(x, dst={root}, op=dist.ReduceOp.{reduce_op})"],
    "all_gather": ["y = torch.zeros(world_size * {size}, dtype=torch.{dtype})", "dist.all_gather_single(y, x)"],
    "all_reduce": ["dist.all_reduce(x, op=dist.ReduceOp.{reduce_op})"],
    "reduce_scatter": [
        "mine = torch.zeros({size}, dtype=torch.{dtype})",
        "dist.reduce_scatter_single(mine, x, op=dist.ReduceOp.{reduce_op})",
    ],
    "all_to_all": ["y = torch.zeros_like(x)", "dist.all_to_all_single(y, x)"],
    "barrier": ["dist.barrier()"],
}


def code(op: str, root: int, reduce_op: str, dtype: str, size: int) -> str:
    """The function that makes this call, as one would write it.

    size: numbers in the tensor, or in each rank's chunk of it.
    """
    lines = ["rank, world_size = dist.get_rank(), dist.get_world_size()"]
    count, step = (f"world_size * {size}", 100) if COLLECTIVES[op].gives == "all" else (size, 10)
    lines.append(f"x = (torch.arange({count}) + {step} * rank).to(torch.{dtype})")
    if op == "barrier":
        lines = []
    lines += [line.format(root=root, reduce_op=reduce_op, dtype=dtype, size=size) for line in CALLS[op]]
    return "\n    ".join(["def collective():", *lines]) + "\n"


def program(function: str, world_size: int) -> str:
    """All that is needed to run it in a notebook cell."""
    head = "import torch\nimport torch.distributed as dist\n\nfrom helpers import run\n\n\n"
    return f"{head}{function}\n\nrun(collective, world_size={world_size})"


def execute(function: str, world_size: int) -> Outcome:
    """Runs the code on real ranks."""
    linecache.cache[FILE] = (len(function), None, function.splitlines(True), FILE)
    names = {"__name__": "__main__"}  # so it travels to the ranks as what a notebook defines does
    exec(compile("import torch\nimport torch.distributed as dist\n", FILE, "exec"), names)
    exec(compile(function, FILE, "exec"), names)
    return attempt(names["collective"], (), {"world_size": world_size, "timeout": 10})


def reasons(op: str) -> dict[str, str]:
    """Which controls do not apply to a collective, and why."""
    found = {}
    if not COLLECTIVES[op].root:
        found["root"] = f"{op} has no root: every rank has the same part in it"
    if not COLLECTIVES[op].reduces:
        found["reduce_op"] = f"{op} combines nothing: it has no reduce op"
    if op == "barrier":
        found |= {name: "a barrier carries no tensor" for name in ("dtype", "size")}
    return found


class Experiment:
    """One choice of a collective and its settings, and the outcome of its run on real ranks.

    chosen: op, world_size, root, reduce_op, dtype, size.  `.run` is the Run, or the RunError it ended with;
    `.picture` and `.words` (the table, or the error) are the run's; `.code` is the whole program.
    """

    def __init__(self, chosen: dict) -> None:
        self.chosen = chosen
        self.rerun()

    def choose(self, **chosen) -> None:
        """Change some settings at once, and run. The root stays below the world size."""
        self.chosen |= chosen
        self.chosen["root"] = min(self.chosen["root"], self.chosen["world_size"] - 1)
        self.rerun()

    def rerun(self) -> None:
        asked = dict(self.chosen)
        world_size = asked.pop("world_size")
        self._function = code(**asked)
        self.outcome = execute(self._function, world_size)
        self.picture: Picture = self.outcome.run.draw()

    @property
    def run(self) -> Run | RunError:
        return self.outcome.done

    @property
    def code(self) -> str:
        return program(self._function, self.chosen["world_size"])

    @property
    def words(self) -> str:
        error = self.outcome.error
        return f"{type(error).__name__}: {error}" if error else self.outcome.run.table()
