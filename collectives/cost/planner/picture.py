"""Pictures of what a division costs: bars of memory, of seconds and of bytes, each in its parts."""

from __future__ import annotations

from math import log2
from typing import Mapping, Sequence

from ...draw.canvas import FAINT, INK, SERIES, SOFT, TRAY, WIDTH, Canvas, Picture, heading, ink_on, text_width
from ...draw.labels import legend
from ...format import duration, size

MEMORY = dict(zip(("parameters", "gradients", "optimizer", "activations", "gathered"), SERIES))
SECONDS = {
    "compute": FAINT,
    "tensor": SERIES[1],
    "context": SERIES[4],
    "bubble": "#dde1e5",
    "pipeline": SERIES[5],
    "data": SERIES[0],
    "optimizer": SERIES[2],
}
HIGH = 22.0  # pixels of a bar


def draw_step(s) -> Picture:
    """Of a Step: three bars, one below the other."""
    sketch = Canvas()
    y = heading(sketch, s.model.name, f"{s.division} on {s.division.gpus:,} x {s.machine.gpus.name}")
    left, wide = 74.0, WIDTH - 74.0 - 130.0
    scale = wide / (max(s.memory.total, s.capacity) * 1.02)
    limit = left + s.capacity * scale
    bottom = _row(sketch, "memory", s.memory.parts, MEMORY, size, y, left, scale)
    sketch.line([(limit, y - 3), (limit, y + HIGH + 3)], INK, 1.6 if s.fits else 3)
    notes = [(y if s.fits else y - 7, f"{size(s.memory.total)} of {size(s.capacity)}")]
    if not s.fits:
        sketch.text(left + wide + 8, y + HIGH / 2 + 7, "does not fit", 11.5, align="left", bold=True)
    notes.append((bottom, f"{duration(s.time)}, MFU {s.mfu:.0%}"))
    bottom = _row(sketch, "step", s.seconds, SECONDS, duration, bottom, left, wide / s.time)
    if whole := sum(s.sent.values()):
        notes.append((bottom, f"{size(whole)} a step"))
        bottom = _row(sketch, "sends", s.sent, SECONDS, size, bottom, left, wide / whole)
    for at, words in notes:
        sketch.text(left + wide + 8, at + HIGH / 2, words, 11.5, align="left")
    sketch.reach(WIDTH, bottom - 16)
    return Picture([sketch], repr(s), f"Picture: memory, seconds and bytes of {s.model.name}, {s.division}")


def _row(sketch: Canvas, name: str, parts: Mapping, tints: Mapping, say, y: float, left: float, scale: float) -> float:
    """A bar, its name before and its parts below; returns the y of the next."""
    sketch.text(left - 10, y + HIGH / 2, name, 12.5, align="right")
    _bar(sketch, parts, tints, left, y, scale)
    shown = [(tints[part], f"{part} {say(value)}") for part, value in parts.items() if _counts(value, parts)]
    legend(sketch, left, y + HIGH + 14, shown, between=15, right=WIDTH - 3)
    return y + HIGH + 44


def _bar(sketch: Canvas, parts: Mapping[str, float], tints: Mapping[str, str], left: float, y: float, scale: float, high: float = HIGH) -> None:  # fmt: skip
    x = left
    for part, value in parts.items():
        wide = value * scale
        if wide > 0.3:
            sketch.box(x, y, wide, high, tints[part], radius=1)
            if wide > text_width(part, 10.5) + 8 and high > 14:
                sketch.text(x + wide / 2, y + high / 2, part, 10.5, ink_on(tints[part]))
        x += wide


def draw_plans(steps: Sequence) -> Picture:
    """Of Steps: a row for each way: its degrees, its memory and its seconds, to one scale."""
    sketch = Canvas()
    first = steps[0]
    y = heading(
        sketch,
        f"{first.model.name} on {first.division.gpus:,} x {first.machine.gpus.name}",
        "the fastest way that fits of each mixture of kinds",
    )
    y = _kinds(sketch, "memory", MEMORY, steps, lambda s: s.memory.parts, y)
    y = _kinds(sketch, "step", SECONDS, steps, lambda s: s.seconds, y) + 6
    label, memory_wide = 300.0, 190.0
    middle = label + memory_wide + 24
    time_wide = WIDTH - middle - 60
    longest = max(s.time for s in steps)
    for s in steps:
        sketch.text(0, y + 8, s.division.short, 10.5, align="left")
        sketch.box(label, y, memory_wide, 16, TRAY, radius=1)
        _bar(sketch, s.memory.parts, MEMORY, label, y, memory_wide / s.capacity, 16)
        _bar(sketch, s.seconds, SECONDS, middle, y, time_wide / longest, 16)
        sketch.text(middle + s.time * time_wide / longest + 6, y + 8, duration(s.time), 11, align="left")
        y += 22
    sketch.line([(label + memory_wide, y - 22 * len(steps)), (label + memory_wide, y - 6)], INK, 1.2)
    sketch.text(label + memory_wide, y + 6, size(first.capacity), 10.5, SOFT, align="right")
    sketch.reach(WIDTH, y + 12)
    return Picture([sketch], "", f"Picture: memory and seconds of {len(steps)} ways to divide {first.model.name}")


def _kinds(sketch: Canvas, name: str, tints: Mapping, steps: Sequence, parts, y: float) -> float:
    sketch.text(0, y, name, 11, align="left", bold=True)
    shown = ((tint, part) for part, tint in tints.items() if any(_counts(parts(s)[part], parts(s)) for s in steps))
    legend(sketch, 60.0, y, shown, between=17)
    return y + 18


def _counts(value: float, parts: Mapping[str, float]) -> bool:
    """Whether a part is large enough to be named."""
    return value > 0.002 * sum(parts.values())


def draw_check(rows: Sequence, goal: float) -> Picture:
    """Of a Validation: a dot for each run, predicted / published seconds, a line for each source; hollow: it was fitted to."""
    sketch = Canvas()
    y = heading(
        sketch, "Predicted / published", f"seconds of a step, a dot a run; shaded: within {goal:.0%}; hollow: fitted to"
    )
    left, wide, low, high = 250.0, WIDTH - 290.0, 0.2, 1.5
    sources = list(dict.fromkeys(row.published.source for row in rows))

    def x(ratio: float) -> float:
        return left + wide * log2(ratio / low) / log2(high / low)

    bottom = y + 26 * len(sources)
    sketch.box(x(1 - goal), y, x(1 + goal) - x(1 - goal), bottom - y, "#e9f0e6", radius=0)
    sketch.line([(x(1), y), (x(1), bottom)], SOFT, 1)
    for k, source in enumerate(sources):
        middle = y + 26 * k + 13
        sketch.text(left - 12, middle, f"[{k + 1}] {_name(source)}", 11, align="right")
        sketch.line([(left, middle), (left + wide, middle)], FAINT, 0.6)
        for row in rows:
            if row.published.source == source:
                tint = SERIES[0] if row.published.machine.gpus.name == "A100" else SERIES[3]
                fill = tint if row.counts else "#ffffff"
                sketch.circle(x(max(low, min(high, 1 + row.error))), middle, 4, fill, tint, 1.4)
    for ratio in (0.25, 0.5, 0.8, 1, 1.2):
        sketch.text(x(ratio), bottom + 10, f"{ratio:g}", 11, SOFT)
    for k, (gpu, tint) in enumerate((("A100", SERIES[0]), ("H100", SERIES[3]))):
        sketch.circle(left + 70 * k, bottom + 30, 4, tint, tint)
        sketch.text(left + 70 * k + 10, bottom + 30, gpu, 11, SOFT, align="left")
    sketch.reach(WIDTH, bottom + 38)
    return Picture(
        [sketch], repr(rows), "Picture: the planner's seconds over the published ones, a dot a run, a line a source"
    )


def _name(source: str) -> str:
    """Its first words."""
    words = source.split(", ")
    return (
        f"{words[0]}, {words[-1]}"
        if "table" in words[-1] and "github" not in source
        else words[0].removeprefix("github.com/")
    )
