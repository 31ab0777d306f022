"""Pictures of a division's cost: bars of memory, of seconds and of bytes, each in its parts."""

from itertools import cycle
from math import log2
from typing import Mapping, Sequence

from ..draw.canvas import FAINT, INK, SERIES, SOFT, TRAY, WIDTH, Canvas, Picture, heading, ink_on, text_width
from ..draw.labels import legend
from ..format import duration, size
from ..machines.gpu import gpu, gpus
from .bars import MEMORY, MIN_SHARE, SECONDS, bars, spare, title, validation_bands, verdict
from .search import Plans
from .step import BANDS, Step
from .validation import RUN_KINDS, Validation

SHADED = "#e9f0e6"
GENERATIONS = tuple(SERIES[k] for k in (0, 3, 1, 4, 2, 5))  # of GPUs, in the order of gpus.csv
HIGH = 22.0  # pixels of a bar
Parts = Mapping[str, float]


def draw_step(s: Step) -> Picture:
    """Bars, one below the other, each with its name before it and its parts below; and what to expect of the step."""
    sketch = Canvas()
    y = heading(sketch, *title(s))
    left, wide = 82.0, WIDTH - 82.0 - 130.0
    if not s.fits:
        sketch.text(left + wide + 8, y + HIGH / 2 + 7, verdict(s), 11.5, align="left", bold=True)
    for bar in bars(s):
        scale, shown, raised = wide / bar.whole, bar.legend(), 0
        sketch.text(left - 10, y + HIGH / 2, bar.name, 12.5, align="right")
        _bar(sketch, bar.parts, bar.tints, left, y, scale)
        if bar.name == "memory":
            (free, words), limit = spare(s), left + s.capacity * scale
            sketch.box(left + s.memory.total * scale, y + 6, free * scale, HIGH - 12, TRAY, radius=1)
            sketch.line([(limit, y - 3), (limit, y + HIGH + 3)], INK, 1.6 if s.fits else 3)
            shown.append((TRAY, words))
            raised = 0 if s.fits else 7
        sketch.text(left + wide + 8, y + HIGH / 2 - raised, bar.words, 11.5, align="left")
        legend(sketch, left, y + HIGH + 14, shown, between=15, right=WIDTH - 3)
        y += HIGH + 44
        if bar.name == "step":
            y = _draw_bands(sketch, s, left, y - 12, scale)
    sketch.reach(WIDTH, y - 16)
    return Picture([sketch], repr(s), f"Picture: memory, seconds and bytes of {s.model.name}, {s.division}")


def _draw_bands(sketch: Canvas, s: Step, left: float, y: float, scale: float) -> float:
    """The bands of the step's seconds, below its bar and to its scale; returns the y of the next row."""
    for kind, (low, median, high), words in validation_bands(s):
        sketch.text(left - 10, y + 5, kind, 10.5, SOFT, align="right")
        sketch.box(left + low * scale, y, (high - low) * scale, 10, SHADED, radius=1)
        middle = left + median * scale
        sketch.line([(middle, y - 1), (middle, y + 11)], INK, 1.6)
        sketch.text(WIDTH - 122, y + 5, words, 10.5, SOFT, align="left")
        y += 16
    return y + 14


def draw_plans(plans: Plans) -> Picture:
    """A row for each mixture of kinds: its degrees, its memory and its seconds, to one scale."""
    sketch, steps, first = Canvas(), plans.shown, plans[0]
    title = f"{first.model.name} on {first.division.gpus:,} x {first.machine.gpus.name}"
    y = heading(sketch, title, "the fastest way that fits of each mixture of kinds")
    y = _kinds(sketch, "memory", MEMORY, [s.memory._asdict() for s in steps], y)
    y = _kinds(sketch, "step", SECONDS, [s.seconds for s in steps], y) + 6
    label, memory_wide = 322.0, 180.0
    middle = label + memory_wide + 24
    time_wide = WIDTH - middle - 60
    longest = max(s.time for s in steps)
    for s in steps:
        sketch.text(0, y + 8, s.division.short, 10.5, align="left")
        sketch.box(label, y, memory_wide, 16, TRAY, radius=1)
        _bar(sketch, s.memory._asdict(), MEMORY, label, y, memory_wide / s.capacity, 16)
        _bar(sketch, s.seconds, SECONDS, middle, y, time_wide / longest, 16)
        sketch.text(middle + s.time * time_wide / longest + 6, y + 8, duration(s.time), 11, align="left")
        y += 22
    sketch.line([(label + memory_wide, y - 22 * len(steps)), (label + memory_wide, y - 6)], INK, 1.2)
    sketch.text(label + memory_wide, y + 6, size(first.capacity), 10.5, SOFT, align="right")
    sketch.reach(WIDTH, y + 12)
    return Picture([sketch], "", f"Picture: memory and seconds of {len(steps)} ways to divide {first.model.name}")


def _bar(sketch: Canvas, parts: Parts, tints: Mapping, x: float, y: float, scale: float, high: float = HIGH) -> None:
    for part, value in parts.items():
        wide = value * scale
        if wide > 0.3:
            sketch.box(x, y, wide, high, tints[part], radius=1)
            if wide > text_width(part, 10.5) + 8 and high > 14:
                sketch.text(x + wide / 2, y + high / 2, part, 10.5, ink_on(tints[part]))
        x += wide


def _kinds(sketch: Canvas, name: str, tints: Mapping, steps: Sequence[Parts], y: float) -> float:
    """The tints of all parts that count in some step; returns the y of the next line."""
    sketch.text(0, y, name, 11, align="left", bold=True)
    counted = {part for parts in steps for part, value in parts.items() if value > MIN_SHARE * sum(parts.values())}
    shown = ((tint, part) for part, tint in tints.items() if part in counted)
    legend(sketch, 60.0, y, shown, between=17)
    return y + 18


def draw_check(rows: Validation) -> Picture:
    """A dot for each run, published / planned seconds, a line for each source; hollow: it was fitted to."""
    sketch = Canvas()
    words = "seconds per step, one dot per run; shaded: where nine of ten should be; hollow: fitted to"
    y = heading(sketch, "Published / planned", words) + 4
    left, wide, low, high = 250.0, WIDTH - 290.0, 0.65, 4.5
    tints = dict(zip(dict.fromkeys(map(_generation, gpus())), cycle(GENERATIONS)))
    tints = {name: tint for name, tint in tints.items() if name in {_generation(row.gpu) for row in rows}}

    def x(ratio: float) -> float:
        return left + wide * log2(max(low, min(high, ratio)) / low) / log2(high / low)

    number = 0
    for kind in RUN_KINDS:
        if not (these := rows.of(kind)):
            continue
        sketch.text(left - 12, y + 7, "a rival's program" if kind == "rival" else kind, 11.5, align="right", bold=True)
        top, bottom = y + 18, y + 18 + 22 * len(these.sources)
        if band := BANDS.get(kind):
            sketch.box(x(band.low), top, x(band.high) - x(band.low), bottom - top, SHADED, radius=0)
            sketch.line([(x(band.median), top), (x(band.median), bottom)], SOFT, 1.4)
        for k, (source, runs) in enumerate(these.sources.items()):
            number += 1
            middle = top + 22 * k + 11
            sketch.text(left - 12, middle, f"[{number}] {_name(source)}", 11, align="right")
            sketch.line([(left, middle), (left + wide, middle)], FAINT, 0.6)
            for row in runs:
                tint = tints[_generation(row.gpu)]
                sketch.circle(x(row.ratio), middle, 4, tint if row.counts else "#ffffff", tint, 1.4)
        y = bottom + 4
    for ratio in (0.75, 1, 1.25, 1.5, 2, 3, 4):
        sketch.text(x(ratio), y + 10, f"{ratio:g}", 11, SOFT)
    for k, (name, tint) in enumerate(tints.items()):
        sketch.circle(12 + 96 * k, y + 32, 4, tint, tint)
        sketch.text(22 + 96 * k, y + 32, name, 11, SOFT, align="left")
    sketch.reach(WIDTH, y + 42)
    alt = "Picture: published seconds over the planner's, one dot per run, one line per source"
    return Picture([sketch], repr(rows), alt)


def _generation(name: str) -> str:
    return gpu(name).value("generation", "a picture")


def _name(source: str) -> str:
    """Its first words."""
    words = source.split(", ")
    table = f", {words[-1]}" * (words[-1].startswith("table") and "github" not in source)
    return words[0].removeprefix("github.com/")[:34] + table
