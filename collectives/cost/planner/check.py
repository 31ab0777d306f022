"""Published training runs (machines/training_runs.csv), and what the planner predicts for them.

Three figures are fitted, on the eight rows marked so: the share of the peak that products reach on A100 and on H100,
and how often memory carries what a layer keeps.  All else is a data sheet's, NCCL's own, or assumed, as notes say.
"""

import statistics
import textwrap
from itertools import groupby, islice
from typing import Callable, NamedTuple

from ...format import aligned, duration
from ...frontend import show
from ...lazy import Later
from ...machines.figures import HERE, at, records
from ...machines.model import Machine
from ...machines.presets import machine
from ...machines.sweeps import FITTED  # here: PASSES in step.py, or a GPU's `products`, was taken from this very row
from ..calibration import Errors
from .division import Division, Memory, memory
from .shape import Shape, shape
from .step import Overlap, Step, step

GOAL = 0.2  # of the median row that nothing was fitted to

WHY = (  # what the planner does not know, where it errs most
    "[2] ZeRO-3 alone, as DeepSpeed was in 2021: 1,536 GPUs take as long as 768, as they would if each got its "
    "parameters at some 16 GB/s. NCCL's rings carry ten times that, and those the planner prices.",
    "[4] From 8,192 GPUs on: slow GPUs and crowded switches, of which the paper tells. The planner knows none.",
    "[7] MPT 13B on H100: hidden messages are probably not free; they take processors and memory from the products.",
    "[9] An H100 of 500 W with slower memory, which the planner takes for one of 700 W.",
    "[6] [10] One share of the peak for all of H100: programs of 2024 and 2025 reach more of it than those of 2023.",
)


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


class Published(NamedTuple):
    """One run.  seconds: of a step, as published or as it follows from what is."""

    what: str
    model: Shape
    division: Division
    batch: int
    machine: Machine
    seconds: float
    source: str
    framework: Framework
    role: str
    note: str | None

    def predict(self, products: float | None = None) -> Step:
        """The planner's step.  products: the share of the GPU's peak; None for gpus.csv's."""
        return step(self.model, self.division, self.batch, self.machine, **self.framework._asdict(), products=products)


class Allocated(NamedTuple):
    """What a run's log says of a GPU's memory: bytes between the steps, and at most."""

    what: str
    division: Division
    batch: int
    source: str
    between: float
    most: float

    def predict(self) -> Memory:
        return memory(shape(self.what), self.division, self.batch)


# What is published beside seconds -> what is counted of a token, in which unit, and whether by GPU.
COUNTED: dict[str, tuple[Callable[[Shape], float], float, bool]] = {
    "tokens/s": (lambda model: 1, 1, False),
    "tokens/s/GPU": (lambda model: 1, 1, True),
    "TFLOP/s/GPU, recomputed": (Shape.recomputed_flops, 1e12, True),  # the second forward is counted too
    "TFLOP/s/GPU, causal": (lambda model: model.flops(causal=True), 1e12, True),  # of attention the causal half
}
BETWEEN, MOST = "B between steps", "B at most"  # of a GPU's memory

SHARING = {name: kind for name, kind in Division.__annotations__.items() if name != "data"}
COLUMNS = dict(run=str, model=str, length=int, machine=str, gpus=int, batch=int) | SHARING
COLUMNS |= dict(framework=tuple(FRAMEWORKS), value=float, unit=("s/step", *COUNTED, BETWEEN, MOST))
COLUMNS |= dict(role=("", FITTED), note=str | None, source=str)
SETTING = tuple(column for column in COLUMNS if column not in ("value", "role", "note"))  # of which none comes twice


def _read() -> tuple[tuple[Published, ...], tuple[Allocated, ...]]:
    """Runs whose seconds are published, and those whose memory is, of which each has two rows."""
    runs, logs = [], {}
    for place, row in records(HERE / "training_runs.csv", COLUMNS, SETTING):
        what, gpus, batch, source = row["run"], row["gpus"], row["batch"], row["source"]
        with at(place):
            data = gpus // (row["tensor"] * row["pipeline"] * row["context"])  # GPUs that nothing else counts
            division = Division(data, **{name: row[name] for name in SHARING})
            if row["unit"] in (BETWEEN, MOST):
                logs.setdefault((what, division, batch, source), {})[row["unit"]] = row["value"]
                continue
            model = shape(row["model"]).with_(length=row["length"])
            seconds = row["value"]
            if row["unit"] in COUNTED:
                counted, unit, by_gpu = COUNTED[row["unit"]]
                seconds = counted(model) * model.length * batch / (row["value"] * unit * (gpus if by_gpu else 1))
            on, framework = machine(row["machine"], gpus), FRAMEWORKS[row["framework"]]
        runs.append(Published(what, model, division, batch, on, seconds, source, framework, row["role"], row["note"]))
    return tuple(runs), tuple(Allocated(*log, held[BETWEEN], held[MOST]) for log, held in logs.items())


RUNS, ALLOCATED = _read()


class ValidatedRun:
    """A published step beside the planner's."""

    def __init__(self, published: Published, step: Step) -> None:
        self.published, self.step = published, step
        self.gpu = published.machine.gpus.name
        self.error = step.time / published.seconds - 1  # predicted seconds / published - 1
        self.counts = not published.role  # nothing was fitted to it


class Validation(Errors):
    """ValidatedRuns; those that nothing was fitted to count."""

    @property
    def sources(self) -> dict[str, "Validation"]:
        """Source -> its rows."""
        return {source: Validation(rows) for source, rows in groupby(self, lambda row: row.published.source)}

    def of(self, gpu: str) -> "Validation":
        """The rows on this GPU."""
        return Validation(row for row in self if row.gpu == gpu)

    def __repr__(self) -> str:
        notes = list(dict.fromkeys(row.published.note for row in self if row.published.note))
        cells = [("", "GPU", "GPUs", "  divided", "published", "planner", "error")]
        for row in self:
            run = row.published
            mark = f" ({notes.index(run.note) + 1})" if run.note else ""
            of = (run.what, row.gpu, f"{run.division.gpus:,}", f"  {run.division.short}")
            times = (duration(run.seconds), duration(row.step.time), f"{row.error:+.0%}")
            cells.append((*of, *times, f" {run.role}{mark}"))
        table = aligned(cells, right=(2, 4, 5, 6), indent="  ", gap="", least=(20, 6, 6, 52, 10, 10, 7)).splitlines()
        lines, table = table[:1], iter(table[1:])
        for k, (source, rows) in enumerate(self.sources.items(), 1):
            lines += ["", f"  [{k}] {source}", *islice(table, len(rows))]
        lines += ["", *(f"  ({k}) {note}" for k, note in enumerate(notes, 1)), ""]
        if len(self) == len(RUNS):
            reasons = (textwrap.fill(why, 118, initial_indent="  ", subsequent_indent=" " * 6) for why in WHY)
            lines += ["  Where it errs most, and why:", *reasons, "", _memories(), ""]
        for gpu in dict.fromkeys(row.gpu for row in self):
            lines.append(f"  median error on {gpu}: {self.of(gpu).median:.1%}")
        many, close = len(self.counted), sum(abs(row.error) <= GOAL for row in self.counted)
        # Of the sources' medians: many rows alike weigh no more than few.
        sources = statistics.median(rows.median for rows in self.sources.values() if rows.counted)
        both = f"{self.median:.1%}; of the sources' medians: {sources:.1%}"
        lines.append(f"  median error of the {many} rows that nothing was fitted to: {both}")
        return "\n".join([*lines, f"  within {GOAL:.0%}: {close} of {many} rows"])

    draw = Later(".picture", "draw_check")

    def _ipython_display_(self) -> None:
        show(self.draw(), repr(self))


def _memories() -> str:
    """What logs say of memory, beside the planner."""
    line = "  {:<36}{:>14}{:>9}{:>7}{:>10}{:>9}{:>7}".format
    lines = [line("memory of a GPU, GiB", "between steps", "planner", "error", "at most", "planner", "error")]
    for log in ALLOCATED:
        held, cells = log.predict(), []
        for published, predicted in ((log.between, held.states), (log.most, held.total)):
            cells += [f"{published / 2**30:.1f}", f"{predicted / 2**30:.1f}", f"{predicted / published - 1:+.0%}"]
        lines.append(line(f"{log.what}: {log.division.short}", *cells))
    return "\n".join(lines)


def check() -> Validation:
    """Every published run with the planner's prediction; displayed, a line each with its source."""
    return Validation(ValidatedRun(run, run.predict()) for run in RUNS)
