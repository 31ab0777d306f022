"""Pictures of times and machines, for notebooks: each with its text twin, in an output of its own.

Apart from the package's front door, because matplotlib is slow to import and ranks do not draw.
"""

from __future__ import annotations

import base64
from itertools import cycle, groupby
from math import log10
from typing import Callable, Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from ..draw.canvas import FAINT, INK, SERIES, SOFT, WIDTH, Canvas, Picture, font, heading, ink_on, pale
from ..draw.png import encoded
from ..format import duration, size
from ..frontend import Shown
from .calibration import GROUPS, Table
from .fit import Fit
from .tuner import Nccl

INCH = 100  # pixels
TINTS = {name: pale(SERIES[k]) for name, k in {"Ring": 0, "Tree": 1, "NVLS": 2, "NVLSTree": 4}.items()}  # of algorithms
LINES = tuple((colour, dashes) for dashes in ("-", "--", ":") for colour in SERIES)  # of curves, in order
GROUP_COLOURS = dict(zip(GROUPS, SERIES))


class Chart(Figure):
    """Axes, one above the other, in the course's fonts and colours.  alt: one line saying what the picture is."""

    def __init__(self, alt: str, panels: int = 1, height: float = 400) -> None:
        self.alt, self.pixels = alt, (WIDTH, round(height))
        super().__init__(figsize=(WIDTH / INCH, height / INCH), dpi=2 * INCH, facecolor="white", layout="constrained")
        FigureCanvasAgg(self)
        self.panels: list[Axes] = list(self.subplots(panels, 1, squeeze=False)[:, 0])
        for ax in self.panels:
            ax.spines[["top", "right"]].set_visible(False)
            ax.spines[["left", "bottom"]].set_color(FAINT)
            ax.grid(True, color="#e8ebee", lw=0.8)
            ax.set_axisbelow(True)

    def __repr__(self) -> str:
        return self.alt

    def _repr_mimebundle_(self, include=None, exclude=None):
        if self.get_layout_engine() is not None:
            self._lay_out()
        shown = {"width": self.pixels[0], "height": self.pixels[1]}
        return {"image/png": base64.b64encode(self._png()).decode(), "text/plain": self.alt}, {"image/png": shown}

    def _png(self) -> bytes:
        self.canvas.draw()
        lines, patches = self.findobj(Line2D), self.findobj(Patch)
        inks = [each.get_color() for each in (*lines, *self.findobj(Text))]
        inks += [tint for line in lines for tint in (line.get_markerfacecolor(), line.get_markeredgecolor())]
        fills = [patch.get_facecolor() for patch in patches]
        tints = (frozenset(to_hex(tint) for tint in seen if to_rgba(tint)[3]) for seen in (fills, inks))
        return encoded(np.asarray(self.canvas.buffer_rgba()), *tints)

    def _lay_out(self) -> None:
        """Place the axes once: a layout engine starts from the last layout, and would move them with every drawing."""
        for ax in self.panels:
            for label in (*ax.get_xticklabels(), *ax.get_yticklabels()):
                label.set_fontproperties(_small())
                label.set_color(SOFT)
        self.draw_without_rendering()
        self.set_layout_engine(None)


# --- curves -------------------------------------------------------------------------------


def draw_message(measured: Sequence[tuple[float, float]], line: Fit) -> Shown:
    """Seconds of one message over its bytes: measured as dots, and the fitted α + β n as a line with its two parts."""
    chart = Chart(
        "Picture: seconds of a message against its bytes, log axes: flat up to some KiB, then a straight rise"
    )
    (ax,) = chart.panels
    x = [nbytes for nbytes, _ in measured]
    fine = [x[0] * (x[-1] / x[0]) ** (k / 100) for k in range(101)]
    equal = line.latency * line.bandwidth  # bytes that take as long as α
    rising = [n for n in fine if equal / 6 < n]
    ax.loglog(fine, [line.latency] * len(fine), color=SOFT, lw=1.2, ls="--")
    ax.loglog(rising, [n / line.bandwidth for n in rising], color=SOFT, lw=1.2, ls="--")
    ax.loglog(fine, [line.seconds(n) for n in fine], color=SERIES[0], lw=2)
    ax.loglog(x, [t for _, t in measured], "o", color=INK, ms=6)
    ax.loglog([equal], [2 * line.latency], "o", mfc="white", mec=INK, ms=8)
    _note(ax, "α/β: here both parts are equal", (equal, 2 * line.latency), (-12, 12), "right")
    _note(ax, "α, what every message costs", (x[-1], line.latency), (6, 0), "left")
    if rising:
        _note(ax, "β n, what the bytes cost", (rising[0], rising[0] / line.bandwidth), (10, -2), "left")
    ax.set_xlim(x[0] / 2, x[-1] * 40)
    _sizes(ax.xaxis, x[::2])
    _seconds(ax)
    _title(ax, "One message on this machine", "bytes")
    words = (
        f"latency α        {line.latency * 1e6:.1f} µs\n"
        f"bandwidth 1/β    {line.bandwidth / 1e9:.2f} GB/s\n"
        f"equal parts at   {said_bytes(equal)}\n"
        f"the line's error {line.error:.0%} (median)"
    )
    return Shown(chart, words)


def draw_seconds(
    panels: Mapping[str, Mapping[str, Callable[[float], float]]],
    xs: Sequence[float],
    unit: str = "bytes",
    every: int = 1,
    growth: bool = False,
) -> Shown:
    """Seconds over bytes or over GPUs, log axes, one panel for each title.

    panels: title -> name of a curve -> seconds at x.
    every: the words have each so-manieth x.  growth: and by what factor a curve ends higher.
    """
    titles = "; ".join(panels)
    chart = Chart(f"Picture: seconds against {unit}, log axes: {titles}", len(panels), 370 * len(panels))
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    styles = dict(zip(names, cycle(LINES)))
    said = said_bytes if unit == "bytes" else "{:,}".format
    lines = []
    for ax, (title, curves) in zip(chart.panels, panels.items()):
        times = {name: [seconds(x) for x in xs] for name, seconds in curves.items()}
        for name, t in times.items():
            (colour, dashes), marks = styles[name], "" if unit == "bytes" else "o"
            ax.loglog(xs, t, marks + dashes, color=colour, lw=2, ms=3.5)
        _ticks(ax.xaxis, [*xs[::4]] if unit == "bytes" else xs, said)
        _seconds(ax)
        _title(ax, title, unit)
        _label_ends(ax, [(name, xs[-1], t[-1], styles[name][0]) for name, t in times.items()])
        wide = max(map(len, (title, *times))) + 2
        lines.append(f"{title:<{wide}}" + "".join(f"{said(x):>9}" for x in xs[::every]) + "     growth" * growth)
        for name, t in times.items():
            grown = f"{t[-1] / t[0]:,.3g}" if t[-1] < 100 * t[0] else f"{t[-1] / t[0]:,.0f}"
            lines.append(
                f"{name:<{wide}}" + "".join(f"{duration(v):>9}" for v in t[::every]) + f"{grown + ' x':>11}" * growth
            )
        lines.append("")
    return Shown(chart, "\n".join(lines[:-1]))


def draw_errors(table: Table) -> Shown:
    """Model / published of every row over its bytes: full dots count, hollow ones were held out, crosses do not count."""
    chart = Chart(
        "Picture: the model's bus bandwidth over the published one, against bytes, a dot a row, by group", 1, 430
    )
    (ax,) = chart.panels
    ax.axhspan(1 / 1.2, 1.2, color="#e9f0e6", lw=0)
    ax.axhline(1, color=SOFT, lw=1)
    for row in table:
        colour, held = GROUP_COLOURS[row.group], row.role == "held out"
        if row.counts:
            face = "white" if held else colour
            ax.loglog([row.nbytes], [1 + row.error], "o", mfc=face, mec=colour, ms=5, mew=1.1)
        else:
            ax.loglog([row.nbytes], [1 + row.error], "x", color=FAINT, ms=5)
    ax.set_ylim(0.45, 4.3)
    _ticks(ax.yaxis, [0.5, 1 / 1.2, 1, 1.2, 2, 4], lambda v: f"{v:.2g}")
    _sizes(ax.xaxis, [4**k for k in range(2, 18, 2)])
    _title(ax, "Model / published, one dot a row", "bytes")
    ax.set_ylabel("model / published", fontproperties=_small(), color=SOFT)
    for k, (group, colour) in enumerate(GROUP_COLOURS.items()):
        _legend(ax, k, group, mfc=colour, mec=colour, marker="o")
    _legend(ax, 4, "held out", mfc="white", mec=INK, marker="o")
    _legend(ax, 5, "fitted or suspect, not counted", mec=FAINT, marker="x")
    high = sum(1 + row.error > 4.3 for row in table)
    if high:
        _note(ax, f"{high} suspect rows lie above", (table[0].nbytes, 4.3), (6, -8), "left")
    return Shown(chart, repr(table))


# --- NCCL's choices -----------------------------------------------------------------------


def draw_choices(prices: Mapping[int, Nccl], sizes: Sequence[int]) -> Shown:
    """The algorithm and the protocol that NCCL takes, a row for each number of GPUs, over bytes."""
    sketch = Canvas()
    top = heading(sketch, "What NCCL takes for an all_reduce", "rows are GPUs in nodes of 8, bytes to the right")
    left, high = 64.0, 26.0
    step = (WIDTH - left - 20.0) / len(sizes)
    lines = [f"{'GPUs':<8}takes, up to a size | that size | takes from there on ..."]
    for row, (count, price) in enumerate(prices.items()):
        y = top + row * (high + 4)
        sketch.text(left - 10, y + high / 2, f"{count:,}", 12, SOFT, align="right")
        spans, at = [], 0
        for (algorithm, protocol), same in groupby(price.choice(nbytes) for nbytes in sizes):
            wide = len(list(same))
            name = f"{algorithm} {protocol}"
            sketch.box(left + at * step, y, wide * step - 1, high, TINTS.get(algorithm, "#e8ebee"), radius=2)
            if wide * step > 58:
                short = algorithm if wide * step < 8 * len(name) else name
                sketch.text(left + (at + wide / 2) * step, y + high / 2, short, 11.5)
            spans += [said_bytes(sizes[at])] * bool(at) + [name]
            at += wide
        lines.append(f"{count:<8,}" + " | ".join(spans))
    y = top + len(prices) * (high + 4)
    for k, nbytes in enumerate(sizes):
        if k % 4 == 0:
            sketch.line([(left + k * step, y), (left + k * step, y + 5)], FAINT, 1)
            sketch.text(left + k * step, y + 14, said_bytes(nbytes), 11, SOFT)
    return Shown(
        Picture([sketch], "\n".join(lines), "Picture: NCCL's algorithm and protocol by number of GPUs and bytes"),
        "\n".join(lines),
    )


# --- machines -----------------------------------------------------------------------------

OWN_WIDTH, SHARED_WIDTH = 1.5, 5.0  # pixels, of a link that one GPU has, and of one that several share
RAILS = SERIES[:4]


def draw_machines() -> Shown:
    """The four machines of presets.py: who is linked to whom, and which links are shared."""
    words = (
        "NVLink node      any two GPUs through one switch: 450 GB/s each way, nothing shared (H100)\n"
        "PCIe node        four GPUs share one link of 55 GB/s to the other four\n"
        "rail-optimised   card i of every node is at rail switch i; inside a node NVSwitch leads to the other rails\n"
        "fat tree         all cards of a node at one leaf switch; they share the links above it"
    )
    sketches = [_nvlink(), _pcie(), _rail(), _tree()]
    return Shown(Picture(sketches, words, "Picture: NVLink node, PCIe node, rail-optimised cluster, fat tree"), words)


def _named(name: str, note: Iterable[str]) -> Canvas:
    sketch = Canvas()
    sketch.text(0, 8, name, 13.5, align="left", bold=True)
    for k, line in enumerate(note):
        sketch.text(0, 28 + 16 * k, line, 11, SOFT, align="left")
    return sketch


def _switch(sketch: Canvas, x: float, y: float, wide: float, words: str, fill: str = "#e8ebee") -> None:
    sketch.box(x, y, wide, 20, fill, radius=4)
    sketch.text(x + wide / 2, y + 10, words, 11, ink_on(fill))


def _gpu(sketch: Canvas, x: float, y: float, number: int) -> None:
    sketch.box(x, y, 20, 20, "#cfd6dc", radius=3)
    sketch.text(x + 10, y + 10, str(number), 10.5)


def _nvlink() -> Canvas:
    sketch = _named(
        "NVLink node", ("any two of 8 GPUs are one switch apart,", "450 GB/s each way, nothing shared (H100)")
    )
    _switch(sketch, 0, 70, 300, "NVSwitch")
    for i in range(8):
        sketch.line([(i * 39 + 14, 90), (i * 39 + 14, 122)], INK, 3)
        _gpu(sketch, i * 39 + 4, 122, i)
    return sketch


def _pcie() -> Canvas:
    sketch = _named("PCIe node", ("four GPUs share (thick) one link of 55 GB/s", "to the other four"))
    _switch(sketch, 100, 62, 100, "host")
    for half in range(2):
        left = half * 160
        sketch.line([(left + 70, 98), (124 + half * 52, 82)], INK, SHARED_WIDTH)
        _switch(sketch, left, 98, 140, "PCIe switch")
        for i in range(4):
            sketch.line([(left + i * 37 + 14, 118), (left + i * 37 + 14, 136)], INK, OWN_WIDTH)
            _gpu(sketch, left + i * 37 + 4, 136, half * 4 + i)
    return sketch


def _node(sketch: Canvas, left: float, y: float, ends: Callable[[int], tuple[float, float]], tint) -> None:
    """Four GPUs above their NVSwitch, each below its card, each card linked to a switch outside."""
    sketch.box(left, y, 112, 92, "#f7f8f9", FAINT, radius=4)
    for i in range(4):
        x = left + 17 + i * 26
        sketch.line([(x, y + 6), ends(i)], tint(i), 1.8)
        sketch.box(x - 9, y + 6, 18, 12, tint(i), radius=2)
        sketch.line([(x, y + 18), (x, y + 30)], INK, 1)
        sketch.line([(x, y + 50), (x, y + 64)], INK, 2.5)
        _gpu(sketch, x - 10, y + 30, i)
    _switch(sketch, left + 6, y + 64, 100, "NVSwitch")


def _rail() -> Canvas:
    note = (
        "card i of every node is at rail switch i; a message to",
        "another place changes rails inside the node, by NVLink",
    )
    sketch = _named("Rail-optimised", note)
    for i in range(4):
        _switch(sketch, 20 + i * 92, 62, 66, f"rail {i}", RAILS[i])
    for node in range(3):
        _node(sketch, node * 128, 128, lambda i: (20 + i * 92 + 16 * (node + 1), 82), lambda i: RAILS[i])
    return sketch


def _tree() -> Canvas:
    sketch = _named(
        "Fat tree",
        ("all cards of a node are at one leaf switch, and share", "(thick) the links above it, which may be too few"),
    )
    _switch(sketch, 134, 60, 100, "spine")
    for node in range(3):
        left = node * 128
        for k in (-10, 0, 10):
            sketch.line([(left + 56 + k, 96), (184 + (node - 1) * 30 + k * 0.6, 80)], INK, SHARED_WIDTH / 2)
        _switch(sketch, left, 96, 112, "leaf switch")
        _node(sketch, left, 128, lambda i: (left + 17 + i * 26, 116), lambda i: SOFT)
    return sketch


# --- axes ---------------------------------------------------------------------------------


def _small():
    properties = font().copy()
    properties.set_size(9)
    return properties


def said_bytes(nbytes: float) -> str:
    """Three figures and a unit: '25 MiB'."""
    for unit, many in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= many:
            return f"{nbytes / many:.3g} {unit}"
    return size(round(nbytes))


def _ticks(axis, at: Sequence[float], say: Callable[[float], str]) -> None:
    axis.set_ticks(list(at), [say(v) for v in at])
    axis.set_ticks([], minor=True)


def _sizes(axis, at: Sequence[float]) -> None:
    _ticks(axis, at, said_bytes)


def _seconds(ax: Axes) -> None:
    low, high = ax.get_ylim()
    ax.set_ylim(low, high)
    fine = log10(high / low) < 3
    _ticks(ax.yaxis, [m * 10.0**k for k in range(-7, 3) for m in ((1, 3) if fine else (1,)) if low <= m * 10.0**k <= high],
           duration)  # fmt: skip
    ax.set_ylabel("seconds", fontproperties=_small(), color=SOFT)


def _title(ax: Axes, words: str, x: str) -> None:
    bold = font(bold=True).copy()
    bold.set_size(10.5)
    ax.set_title(words, loc="left", fontproperties=bold, color=INK)
    ax.set_xlabel(x, fontproperties=_small(), color=SOFT)


def _note(ax: Axes, words: str, at: tuple[float, float], by: tuple[float, float], side: str) -> None:
    ax.annotate(words, at, by, textcoords="offset points", ha=side, va="center", fontproperties=_small(), color=INK)


def _legend(ax: Axes, k: int, words: str, **how) -> None:
    y = 0.96 - 0.07 * k
    ax.plot([1.02], [y], ls="", ms=5, transform=ax.transAxes, clip_on=False, **how)
    ax.text(1.035, y, words, fontproperties=_small(), color=INK, va="center", transform=ax.transAxes)


def _label_ends(ax: Axes, ends: list[tuple[str, float, float, str]], gap: float = 0.075) -> None:
    """Names curves at their right ends, moved apart where names would overlap."""
    ax.figure.draw_without_rendering()
    places, low = [], -1.0
    for name, x, y, colour in sorted(ends, key=lambda end: end[2]):
        across, up = ax.transAxes.inverted().transform(ax.transData.transform((x, y)))
        low = max(up, low + gap)
        places.append((name, across, up, low, colour))
    excess = max(0.0, low - 1.02)
    for name, across, up, at, colour in places:
        ax.plot([across, 1.03], [up, at - excess], color=colour, lw=1.2, transform=ax.transAxes, clip_on=False)
        ax.text(1.038, at - excess, name, fontproperties=_small(), color=INK, va="center", transform=ax.transAxes)
