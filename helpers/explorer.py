"""`explore()`: every collective under your hands.

    from helpers import explore

    explore()

Choose the collective, the number of ranks, the root, the reduce op, the dtype and the size.
Each change runs the code that stands beside the controls on real ranks, and shows what they
held before and after.
"""

from __future__ import annotations

import io
import linecache

import numpy as np
from PIL import Image

from .canvas import Picture
from .page import Interactive
from .questions import Outcome, attempt

WORLD_SIZES = range(2, 9)
REDUCE_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8")
SIZES = (1, 2, 3, 4, 6, 8, 100, 10_000)
ROOTED = {"broadcast": "src", "scatter": "src", "gather": "dst", "reduce": "dst"}
REDUCING = ("reduce", "all_reduce", "reduce_scatter")
CHUNKED = ("scatter", "reduce_scatter", "all_to_all")  # a rank passes a chunk for every rank
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
    count, step = (f"world_size * {size}", 100) if op in CHUNKED else (size, 10)
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


def explore(
    op: str = "all_reduce",
    world_size: int = 4,
    root: int = 0,
    reduce_op: str = "SUM",
    dtype: str = "float32",
    size: int = 3,
) -> Explorer:
    """Controls for one collective, and the picture and table of its real run, which follow them.

    op: a collective, by torch's name.  world_size: 2 to 8 ranks.  root: src or dst.
    reduce_op: "SUM", ...  dtype: "float32", ...  size: numbers in the tensor, or in each
    rank's chunk of it; one of SIZES.

    The last expression of a cell, it shows itself.  Raises ValueError for a start that
    the controls do not offer.
    """
    offered = dict(
        op=CALLS, world_size=WORLD_SIZES, root=range(world_size), reduce_op=REDUCE_OPS, dtype=DTYPES, size=SIZES
    )
    chosen = dict(op=op, world_size=world_size, root=root, reduce_op=reduce_op, dtype=dtype, size=size)
    for name, value in chosen.items():
        if value not in offered[name]:
            raise ValueError(f"explore: {name} is one of {', '.join(map(str, offered[name]))}, not {value!r}.")
    return Explorer(chosen)


def reasons(op: str) -> dict[str, str]:
    """Which controls do not apply to a collective, and why."""
    found = {}
    if op not in ROOTED:
        found["root"] = f"{op} has no root: every rank has the same part in it"
    if op not in REDUCING:
        found["reduce_op"] = f"{op} combines nothing: it has no reduce op"
    if op == "barrier":
        found |= {name: "a barrier carries no tensor" for name in ("dtype", "size")}
    return found


class Explorer(Interactive):
    """The state of the controls and the outcome of the run that belongs to it.

    `.controls`: name -> ipywidget.  `.code`: what ran.  `.run`: its Run, or the RunError.
    """

    def __init__(self, chosen: dict) -> None:
        self._chosen = chosen
        self._panel = None
        self.rerun()

    @property
    def controls(self) -> dict:
        return self.panel.controls

    @property
    def run(self):
        return self._outcome.done

    @property
    def code(self) -> str:
        return program(self._function, self._chosen["world_size"])

    @property
    def png(self) -> bytes:
        return _png(self._picture)

    def choose(self, **chosen) -> None:
        """Sets some controls at once, and runs."""
        self._chosen |= chosen
        self._chosen["root"] = min(self._chosen["root"], self._chosen["world_size"] - 1)
        self.rerun()

    def rerun(self) -> None:
        asked = dict(self._chosen)
        world_size = asked.pop("world_size")
        self._function = code(**asked)
        self._outcome = execute(self._function, world_size)
        self._picture: Picture = self._outcome.run.draw()

    @property
    def words(self) -> str:
        """The table of the run, and the error if there is one."""
        error = self._outcome.error
        return f"{type(error).__name__}: {error}" if error else self._outcome.run.table()

    def __repr__(self) -> str:
        return f"{self.code}\n\n{self.words}"

    @property
    def panel(self):
        if self._panel is None:
            from .panel import Panel

            self._panel = Panel(self)
        return self._panel

    def unattended(self) -> tuple[Picture, str]:
        return self._picture, repr(self)

    def _repr_mimebundle_(self, include=None, exclude=None):
        image, metadata = self._picture._repr_mimebundle_()
        data = {"image/png": image["image/png"], "text/plain": repr(self)}
        try:
            kind = "application/vnd.jupyter.widget-view+json"
            data[kind] = self.panel.box._repr_mimebundle_()[kind]
        except ImportError:  # no ipywidgets: picture and text are left
            pass
        return data, metadata


def _png(picture: Picture) -> bytes:
    """The image at once rather than small: it is looked at and thrown away, not kept in a file."""
    picture.canvas.draw()
    file = io.BytesIO()
    Image.fromarray(np.asarray(picture.canvas.buffer_rgba())).convert("RGB").save(file, "png", compress_level=1)
    return file.getvalue()
