"""Pictures of what a division costs: bars of memory, of seconds and of bytes, each in its parts."""

from itertools import cycle
from math import log2
from typing import Mapping, Sequence

from ...draw.canvas import FAINT, INK, SERIES, SOFT, TRAY, WIDTH, Canvas, Picture, heading, ink_on, text_width
from ...draw.labels import legend
from ...format import duration, size
from ...machines.gpu import gpus
from .check import GOAL, Validation
from .search import Plans
from .step import Step

MEMORY = dict(zip(("parameters", "gradients", "optimizer", "activations", "gathered"), SERIES))
SECONDS = {"compute": FAINT, "tensor": SERIES[1], "context": SERIES[4], "bubble": "#dde1e5", "pipeline": SERIES[5],
           "data": SERIES[0], "optimizer": SERIES[2]}  # fmt: skip
GPUS = tuple(SERIES[k] for k in (0, 3, 1, 4, 2, 5))  # in the order of gpus.csv
HIGH = 22.0  # pixels of a bar
LEAST = 0.002  # of a bar, that a part is named
Parts = Mapping[str, float]


def draw_step(s: Step) -> Picture:
    """Three bars, one below the other, each with its name before it and its parts below."""
    sketch = Canvas()
    y = heading(sketch, s.model.name, f"{s.division} on {s.division.gpus:,} x {s.machine.gpus.name}")
    left, wide = 74.0, WIDTH - 74.0 - 130.0
    held, sent = s.memory.total, sum(s.sent.values())
    most = max(held, s.capacity) * 1.02
    limit = left + s.capacity * (wide / most)
    rows = [
        ("memory", s.memory._asdict(), MEMORY, size, most, f"{size(held)} of {size(s.capacity)}"),
        ("step", s.seconds, SECONDS, duration, s.time, f"{duration(s.time)}, MFU {s.mfu:.0%}"),
        ("sends", s.sent, SECONDS, size, sent, f"{size(sent)} a step"),
    ]
    if not s.fits:
        sketch.text(left + wide + 8, y + HIGH / 2 + 7, "does not fit", 11.5, align="left", bold=True)
    for name, parts, tints, say, whole, words in rows if sent else rows[:2]:
        sketch.text(left - 10, y + HIGH / 2, name, 12.5, align="right")
        _bar(sketch, parts, tints, left, y, wide / whole)
        if name == "memory":
            sketch.line([(limit, y - 3), (limit, y + HIGH + 3)], INK, 1.6 if s.fits else 3)
        raised = 7 if name == "memory" and not s.fits else 0
        sketch.text(left + wide + 8, y + HIGH / 2 - raised, words, 11.5, align="left")
        least = LEAST * sum(parts.values())
        shown = [(tints[part], f"{part} {say(value)}") for part, value in parts.items() if value > least]
        legend(sketch, left, y + HIGH + 14, shown, between=15, right=WIDTH - 3)
        y += HIGH + 44
    sketch.reach(WIDTH, y - 16)
    return Picture([sketch], repr(s), f"Picture: memory, seconds and bytes of {s.model.name}, {s.division}")


def draw_plans(plans: Plans) -> Picture:
    """A row for each mixture of kinds: its degrees, its memory and its seconds, to one scale."""
    sketch, steps, first = Canvas(), plans.shown, plans[0]
    title = f"{first.model.name} on {first.division.gpus:,} x {first.machine.gpus.name}"
    y = heading(sketch, title, "the fastest way that fits of each mixture of kinds")
    y = _kinds(sketch, "memory", MEMORY, [s.memory._asdict() for s in steps], y)
    y = _kinds(sketch, "step", SECONDS, [s.seconds for s in steps], y) + 6
    label, memory_wide = 300.0, 190.0
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
    counted = {part for parts in steps for part, value in parts.items() if value > LEAST * sum(parts.values())}
    shown = ((tint, part) for part, tint in tints.items() if part in counted)
    legend(sketch, 60.0, y, shown, between=17)
    return y + 18


def draw_check(rows: Validation) -> Picture:
    """A dot for each run, predicted / published seconds, a line for each source; hollow: it was fitted to."""
    sketch = Canvas()
    words = f"seconds of a step, a dot a run; shaded: within {GOAL:.0%}; hollow: fitted to"
    y = heading(sketch, "Predicted / published", words)
    left, wide, low, high = 250.0, WIDTH - 290.0, 0.2, 1.5
    tints = {name: tint for name, tint in zip(gpus(), cycle(GPUS)) if name in {row.gpu for row in rows}}

    def x(ratio: float) -> float:
        return left + wide * log2(ratio / low) / log2(high / low)

    bottom = y + 26 * len(rows.sources)
    sketch.box(x(1 - GOAL), y, x(1 + GOAL) - x(1 - GOAL), bottom - y, "#e9f0e6", radius=0)
    sketch.line([(x(1), y), (x(1), bottom)], SOFT, 1)
    for k, (source, runs) in enumerate(rows.sources.items()):
        middle = y + 26 * k + 13
        sketch.text(left - 12, middle, f"[{k + 1}] {_name(source)}", 11, align="right")
        sketch.line([(left, middle), (left + wide, middle)], FAINT, 0.6)
        for row in runs:
            fill = tints[row.gpu] if row.counts else "#ffffff"
            sketch.circle(x(max(low, min(high, 1 + row.error))), middle, 4, fill, tints[row.gpu], 1.4)
    for ratio in (0.25, 0.5, 0.8, 1, 1.2):
        sketch.text(x(ratio), bottom + 10, f"{ratio:g}", 11, SOFT)
    for k, (gpu, tint) in enumerate(tints.items()):
        sketch.circle(left + 70 * k, bottom + 30, 4, tint, tint)
        sketch.text(left + 70 * k + 10, bottom + 30, gpu, 11, SOFT, align="left")
    sketch.reach(WIDTH, bottom + 38)
    alt = "Picture: the planner's seconds over the published ones, a dot a run, a line a source"
    return Picture([sketch], repr(rows), alt)


def _name(source: str) -> str:
    """Its first words."""
    words = source.split(", ")
    if "table" in words[-1] and "github" not in source:
        return f"{words[0]}, {words[-1]}"
    return words[0].removeprefix("github.com/")
