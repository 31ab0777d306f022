"""Published training runs: what was divided how, and how long a step took.  check() holds the planner to them.

They are machines/training_runs.csv, a published figure a row, each with the table it is from.  Where the source leaves
out what the planner must know, the note says what is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, NamedTuple

from ...machines.figures import HERE, at, records
from ...machines.model import Machine
from ...machines.presets import machine
from ...machines.sweeps import FITTED  # here: PASSES in step.py, or a GPU's `products`, was taken from this very row
from .division import Division
from .memory import Memory, memory
from .shape import Shape, shape
from .step import Overlap, Step, step


class Framework(NamedTuple):
    """What the software of a run does, beside its division."""

    flash: bool  # one kernel for attention
    overlap: Overlap  # what it computes meanwhile


FRAMEWORKS = {
    "Megatron-LM 2021": Framework(False, Overlap(0, 0, 0, 0)),  # and 2022: every message is waited for
    "Megatron-LM 2023": Framework(False, Overlap(0, 1, 1, 1)),  # messages of data and pipeline hide
    # And what is made of it, MegaScale and NeMo: tensor parallel products are cut, and their pieces sent meanwhile.
    "Megatron-LM 2024": Framework(True, Overlap(0.75, 1, 1, 1)),
    "DeepSpeed 2021": Framework(False, Overlap(0, 1, 1, 1)),
    "FSDP": Framework(True, Overlap(0, 1, 1, 1)),  # the next layer is gathered meanwhile
}


@dataclass(frozen=True)
class Published:
    """One run.  seconds: of a step, as published or as it follows from what is."""

    what: str
    model: Shape
    division: Division
    batch: int
    machine: Machine
    seconds: float
    source: str
    framework: Framework
    role: str = ""
    note: str = ""

    def predict(self, products: float | None = None) -> Step:
        """The planner's step.  products: the share of the GPU's peak; None for gpus.csv's."""
        how = self.framework._asdict()
        return step(self.model, self.division, self.batch, self.machine, **how, products=products)


@dataclass(frozen=True)
class Allocated:
    """What a run's log says of a GPU's memory: bytes between the steps, and at most."""

    what: str
    division: Division
    batch: int
    between: float
    most: float
    source: str

    def predict(self) -> Memory:
        return memory(shape(self.what), self.division, self.batch)


# What is published -> the seconds of a step that follow, from (model, batch, GPUs, figure).
TIMES: dict[str, Callable[[Shape, int, int, float], float]] = {
    "s/step": lambda model, batch, gpus, seconds: seconds,
    "tokens/s": lambda model, batch, gpus, tokens: batch * model.length / tokens,
    "tokens/s/GPU": lambda model, batch, gpus, tokens: batch * model.length / (tokens * gpus),
    "TFLOP/s/GPU, recomputed": lambda model, batch, gpus, tera: (  # the second forward is counted too
        model.recomputed_flops() * model.length * batch / (tera * 1e12 * gpus)
    ),
    "TFLOP/s/GPU, causal": lambda model, batch, gpus, tera: (  # of attention the causal half is counted
        model.flops(causal=True) * model.length * batch / (tera * 1e12 * gpus)
    ),
}
BETWEEN, MOST = "B between steps", "B at most"  # of a GPU's memory

COUNTS = ("tensor", "pipeline", "context", "chunks", "microbatch", "shard")
COLUMNS = dict(run=str, model=str, length=int, machine=str, gpus=int, batch=int)
COLUMNS |= dict.fromkeys(COUNTS, int) | dict(sequence=bool, recompute=str, framework=tuple(FRAMEWORKS))
COLUMNS |= dict(value=float, unit=(*TIMES, BETWEEN, MOST), role=("", FITTED), note=str, source=str)
SETTING = tuple(column for column in COLUMNS if column not in ("value", "role", "note"))  # of which none comes twice


def _read() -> tuple[tuple[Published, ...], tuple[Allocated, ...]]:
    """Runs whose seconds are published, and those whose memory is, of which each has two rows."""
    runs, logs = [], {}
    for place, row in records(HERE / "training_runs.csv", COLUMNS, SETTING, ("role", "note")):
        with at(place):
            if row["unit"] in TIMES:
                runs.append(_published(row))
            else:
                log = row["run"], _division(row), row["batch"], row["source"]
                logs.setdefault(log, {})[row["unit"]] = row["value"]
    return tuple(runs), tuple(
        Allocated(what, division, batch, held[BETWEEN], held[MOST], source)
        for (what, division, batch, source), held in logs.items()
    )


def _division(row: dict) -> Division:
    """How a row's GPUs share out the model; those that nothing else counts are data ranks."""
    data = row["gpus"] // (row["tensor"] * row["pipeline"] * row["context"])
    return Division(data, sequence=row["sequence"], recompute=row["recompute"], **{name: row[name] for name in COUNTS})


def _published(row: dict) -> Published:
    model = shape(row["model"]).with_(length=row["length"])
    seconds = TIMES[row["unit"]](model, row["batch"], row["gpus"], row["value"])
    on, framework = machine(row["machine"], row["gpus"]), FRAMEWORKS[row["framework"]]
    return Published(row["run"], model, _division(row), row["batch"], on, seconds, row["source"], framework,
                     row["role"], row["note"])  # fmt: skip


RUNS, ALLOCATED = _read()
