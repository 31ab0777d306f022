"""Published training runs (machines/training_runs.csv), and the planner's predictions for them.

Four figures are fitted, on the rows marked so, each source weighing the same: IN_STEP in compute.py, and the passes of
three programs.  All else is a data sheet's, NCCL's own, a kernel benchmark's, or assumed, see the notes.  The plan's
omissions are measured by published runs: BANDS in step.py are `Validation.band` of published over planned seconds.
"""

import statistics
import textwrap
from itertools import groupby, islice, takewhile
from typing import Callable, Iterable, NamedTuple

from ..cost.spread import spread
from ..format import align, duration
from ..frontend import show
from ..lazy import Later
from ..machines.data_sheets import FOLDER, at, records
from ..machines.gpu import gpu
from ..machines.presets import machine
from ..machines.topology import Machine
from .division import GATHER, RECOMPUTE, Division
from .memory import MARGIN, Memory, memory
from .shape import Shape, shape
from .software import PROGRAMS
from .step import BANDS, Band, Step, step

GOAL = 0.12  # error of the median row of a source outside the fit
RUN_KINDS = {
    "benchmark": "Makers' benchmarks of their programs",
    "production": "Production runs",
    "rival": "Measured by the makers of a different program, so of no use for a band",
}
FITTED_ROLE = "fitted"  # a row's role: PASSES or IN_STEP were taken from it

WHY = (  # what the planner does not know, where it errs most
    "ZeRO-3 alone, as DeepSpeed was in 2021: 1,536 GPUs take as long as 768, as they would if each got its parameters "
    "at some 16 GB/s. NCCL's rings carry ten times that, and those the planner prices.",
    "InternLM: optimizer states sharded over 256 and 1,024 GPUs (ZeRO 1), with four cards of 100 Gb/s per node. The "
    "planner hides what that sends.",
    "GPT-OSS: products and attention of unusual widths (2,880 and 64), for which no kernel was good yet.",
    "From 8,192 GPUs onward: slow GPUs and crowded switches, as MegaScale's paper reports. The planner models neither.",
    "MPT 13B on H100: hidden messages are probably not free; they take processors and memory from the products.",
    "DeepSeek-V3 in production: products in 8 bits, which the planner prices as 16.",
)


class Published(NamedTuple):
    """One run.  seconds: of a step, as published or as it follows from what is."""

    what: str
    model: Shape
    division: Division
    batch: int
    machine: Machine
    seconds: float
    source: str
    program: str
    kind: str  # of RUN_KINDS
    role: str
    note: str | None

    @property
    def mfu(self) -> float:
        """The model FLOPs utilization, of the operations that Shape.flops counts."""
        flops = self.model.flops() * self.model.length * self.batch / self.seconds
        return flops / self.division.gpus / gpu(self.machine.gpus.name).value("peak", "a check")

    def predict(self) -> Step:
        """The planner's step."""
        return step(self.model, self.division, self.batch, self.machine, program=self.program)


class Allocated(NamedTuple):
    """A GPU's memory in a run's log: bytes at most, and between the steps if it has them."""

    what: str
    model: Shape
    division: Division
    batch: int
    source: str
    most: float
    between: float | None

    def predict(self) -> Memory:
        return memory(self.model, self.division, self.batch)


# A published quantity besides seconds -> its count per token, its unit, and whether it is per GPU.
SIZES: dict[str, tuple[Callable[[Shape], float], float, bool]] = {
    "tokens/s": (lambda model: 1, 1, False),
    "tokens/s/GPU": (lambda model: 1, 1, True),
    "TFLOP/s/GPU, recomputed": (Shape.recomputed_flops, 1e12, True),  # the second forward is counted too
    "TFLOP/s/GPU, causal": (lambda model: model.flops(causal=True), 1e12, True),  # of attention the causal half
}
BETWEEN, PEAK = "B between steps", "B at most"  # of a GPU's memory

SHARING = dict(tensor=int, pipeline=int, context=int, shard=int, copies=int, experts=int, gather=GATHER, sequence=bool)
SHARING |= dict(chunks=int, microbatch=int, recompute=RECOMPUTE)
COLUMNS = dict(run=str, model=str, length=int, machine=str, gpus=int, batch=int) | SHARING
COLUMNS |= dict(program=tuple(PROGRAMS), kind=tuple(RUN_KINDS), value=float, unit=("s/step", *SIZES, BETWEEN, PEAK))
COLUMNS |= dict(role=("", FITTED_ROLE), note=str | None, source=str)
SETTING = tuple(column for column in COLUMNS if column not in ("value", "role", "note"))  # of which none comes twice


def _read() -> tuple[tuple[Published, ...], tuple[Allocated, ...]]:
    """Runs whose seconds are published, and those whose memory is."""
    runs, logs = [], {}
    for place, row in records(FOLDER / "training_runs.csv", COLUMNS, SETTING):
        what, gpus, batch, source = row["run"], row["gpus"], row["batch"], row["source"]
        with at(place):
            model = shape(row["model"]).with_(length=row["length"])
            data = gpus // (row["tensor"] * row["pipeline"] * row["context"])  # GPUs that nothing else counts
            division = Division(data, **{name: row[name] for name in SHARING})
            if row["unit"] in (BETWEEN, PEAK):
                logs.setdefault((what, model, division, batch, source), {})[row["unit"]] = row["value"]
                continue
            seconds = row["value"]
            if row["unit"] in SIZES:
                counted, unit, by_gpu = SIZES[row["unit"]]
                seconds = counted(model) * model.length * batch / (row["value"] * unit * (gpus if by_gpu else 1))
            on = machine(row["machine"], gpus)
        how = (row["program"], row["kind"], row["role"], row["note"])
        runs.append(Published(what, model, division, batch, on, seconds, source, *how))
    return tuple(runs), tuple(Allocated(*log, held[PEAK], held.get(BETWEEN)) for log, held in logs.items())


RUNS, ALLOCATED = _read()


class ValidatedRun:
    """A published step beside the planner's."""

    def __init__(self, published: Published, step: Step) -> None:
        self.published, self.step = published, step
        self.gpu = published.machine.gpus.name
        self.ratio = published.seconds / step.time
        self.expected = BANDS.get(published.kind, BANDS["benchmark"]).median * step.time  # seconds
        self.error = self.expected / published.seconds - 1
        self.counts = not published.role  # nothing was fitted to it

    @property
    def seconds(self) -> tuple[str, str, str]:
        """Published, expected, and how far off: the words of a table."""
        return duration(self.published.seconds), duration(self.expected), f"{self.error:+.0%}"


class Validation(list):
    """ValidatedRuns; only rows that nothing was fitted to count."""

    @property
    def counted(self) -> "Validation":
        return Validation(row for row in self if row.counts)

    @property
    def median(self) -> float:
        """The median size of the error of the rows that count."""
        return statistics.median(abs(row.error) for row in self.counted)

    @property
    def sources(self) -> dict[str, "Validation"]:
        """Source -> its rows."""
        return {source: Validation(rows) for source, rows in groupby(self, lambda row: row.published.source)}

    def of(self, kind: str) -> "Validation":
        """The rows of one of RUN_KINDS."""
        return Validation(row for row in self if row.published.kind == kind)

    def band(self) -> Band:
        """Published seconds / planned ones, as of a new source."""
        ratios = {source: [row.ratio for row in rows] for source, rows in self.sources.items()}
        return Band(*spread(ratios))

    def unseen(self) -> tuple[float, float]:
        """The median error and the share inside the band, of rows whose source is left out of the band.

        Sources weigh the same; each in turn is left out of the band that judges it.
        """
        errors, inside = [], []
        for source, rows in self.sources.items():
            band = Validation(row for row in self if row.published.source != source).band()
            errors.append(statistics.median(abs(band.median / row.ratio - 1) for row in rows))
            inside.append(statistics.mean(band.low <= row.ratio <= band.high for row in rows))
        return statistics.median(errors), statistics.mean(inside)

    def __repr__(self) -> str:
        notes = list(dict.fromkeys(row.published.note for row in self if row.published.note))
        head = ("", "GPU", "GPUs", "  divided", "published", "expected", "error")
        parts, k = [], 0
        for kind in RUN_KINDS:
            if rows := self.of(kind):
                parts += [_title(kind), rows._table(head, notes, k), ""]
                k += len(rows.sources)
        parts += [*(f"  ({k}) {note}" for k, note in enumerate(notes, 1)), ""]
        if len(self) == len(RUNS):
            reasons = (textwrap.fill(why, 118, initial_indent="  ", subsequent_indent=" " * 4) for why in WHY)
            parts += ["  Where it errs most, and why:", *reasons, "", _memories(), ""]
        return "\n".join([*parts, self.summary])

    def _table(self, head: tuple, notes: list[str], before: int) -> str:
        """The rows, below their sources, which are numbered from `before` on."""
        cells = [head]
        for row in self:
            run = row.published
            mark = f" ({notes.index(run.note) + 1})" if run.note else ""
            of = (run.what, row.gpu, f"{run.division.gpus:,}", f"  {run.division.short}")
            cells.append((*of, *row.seconds, f" {run.role}{mark}"))
        table = align(cells, right=(2, 4, 5, 6), indent="  ", gap="", least=(27, 10, 6, 52, 10, 10, 7))
        return self._below_sources(table, before)

    def errors(self, kind: str) -> str:
        """Published and expected seconds of one of RUN_KINDS; the sources are numbered as in the picture."""
        rows, earlier = self.of(kind), takewhile(lambda other: other != kind, RUN_KINDS)
        cells = [("", "GPU", "GPUs", "published", "expected", "error")]
        cells += [(r.published.what, r.gpu, f"{r.published.division.gpus:,}", *r.seconds) for r in rows]
        table = align(cells, right=(2, 3, 4, 5), indent="  ")
        before = sum(len(self.of(other).sources) for other in earlier)
        return f"{_title(kind)}\n{rows._below_sources(table, before)}"

    def _below_sources(self, table: str, before: int) -> str:
        head, *lines = table.splitlines()
        lines, parts = iter(lines), [head]
        for k, (source, rows) in enumerate(self.sources.items(), before + 1):
            parts += ["", f"  [{k}] {source}", *islice(lines, len(rows))]
        return "\n".join(parts)

    @property
    def summary(self) -> str:
        """The bands of makers' benchmarks and of production, and the errors of sources left out of them."""
        lines = []
        for kind, band in BANDS.items():
            rows = self.of(kind)
            if len(rows.sources) > 1:
                error, inside = rows.unseen()
                lines.append(
                    f"  {kind}: published / planned {band.low:g} to {band.high:g}, median {band.median:g}; "
                    f"{len(rows)} rows of {len(rows.sources)} sources"
                )
                lines.append(
                    f"    each source judged by the others' band: median error {error:.0%}, {inside:.0%} inside it"
                )
                held = rows.untouched
                median = statistics.median(source.median for source in held.sources.values())
                many = sum(band.low <= row.ratio <= band.high for row in held)
                lines.append(
                    f"    {len(held.sources)} sources not used for fitting: median error {median:.0%}, "
                    f"{many} of {len(held)} rows inside"
                )
        return "\n".join(lines)

    @property
    def untouched(self) -> "Validation":
        """The rows of sources of which no row was fitted to."""
        return Validation(row for rows in self.sources.values() if len(rows.counted) == len(rows) for row in rows)

    draw = Later(".plan_charts", "draw_check")

    def _ipython_display_(self) -> None:
        show(self.draw(), repr(self))


def _title(kind: str) -> str:
    factor = BANDS.get(kind, BANDS["benchmark"]).median
    return f"{RUN_KINDS[kind]}; expected: planned seconds x {factor:g}"


def _memories() -> str:
    """The table of memory in logs, next to the planner's."""
    line = "  {:<62}{:>14}{:>9}{:>7}{:>10}{:>9}{:>7}".format
    lines = [line("memory of a GPU, GiB", "between steps", "planner", "error", "at most", "planner", "error")]
    for run in ALLOCATED:
        held, cells = run.predict(), []
        for published, predicted in ((run.between, held.states), (run.most, held.total)):
            figures = published and (
                f"{published / 2**30:.1f}",
                f"{predicted / 2**30:.1f}",
                f"{predicted / published - 1:+.0%}",
            )
            cells += figures or ("", "", "")
        lines.append(line(f"{run.what}, {run.model.length:,} tokens: {run.division.short}", *cells))
    within = sum(run.most <= run.predict().total * (1 + MARGIN) for run in ALLOCATED)
    lines.append(f"  {within} of {len(ALLOCATED)} peaks are within the {MARGIN:.0%} that a plan keeps free.")
    return "\n".join(lines)


def check(runs: Iterable[Published] = RUNS) -> Validation:
    """Every published run with the planner's prediction; displayed, a line each with its source."""
    return Validation(ValidatedRun(run, run.predict()) for run in runs)
