"""Pictures of times and machines, each with its text twin; loaded late, as matplotlib is slow to import."""

from itertools import cycle, groupby
from typing import Callable, Collection, Mapping, Sequence

from ..draw.canvas import FAINT, INK, SERIES, SOFT, WIDTH, Canvas, Picture, heading, pale
from ..draw.chart import Chart, key, label_ends, note, seconds_axis, small_font, ticks, titled
from ..format import align, duration, size
from ..frontend import Shown
from ..machines.sweeps import HELD_OUT
from .calibration import Calibration
from .fit import Fit
from .result import Cost
from .tuner import Nccl

TINTS = {name: pale(SERIES[k]) for name, k in {"Ring": 0, "Tree": 1, "NVLS": 2, "NVLSTree": 4}.items()}  # of algorithms
LINES = tuple((colour, dashes) for dashes in ("-", "--", ":") for colour in SERIES)  # of curves, in order
ALGORITHMS = ("ring", "binomial tree", "recursive doubling", "halving and doubling", "double tree")  # as LINES has them
PLACES = {"one node": SERIES[0], "several nodes": SERIES[2]}  # the start of a group's name -> its color


def draw_message(measured: Sequence[tuple[float, float]], line: Fit) -> Shown:
    """Seconds of one message over its bytes: measured as dots, and the fitted α + β n as a line with its two parts."""
    alt = "Picture: seconds of a message against its bytes, log axes: flat up to some KiB, then a straight rise"
    chart = Chart(alt)
    (ax,) = chart.panels
    x, times = zip(*measured)
    fine = [x[0] * (x[-1] / x[0]) ** (k / 100) for k in range(101)]
    equal = line.latency * line.bandwidth  # bytes that take as long as α
    rising = [n for n in fine if equal / 6 < n]
    ax.loglog(fine, [line.latency] * len(fine), color=SOFT, lw=1.2, ls="--")
    ax.loglog(rising, [n / line.bandwidth for n in rising], color=SOFT, lw=1.2, ls="--")
    ax.loglog(fine, [line.seconds(n) for n in fine], color=SERIES[0], lw=2)
    ax.loglog(x, times, "o", color=INK, ms=6)
    ax.loglog([equal], [2 * line.latency], "o", mfc="white", mec=INK, ms=8)
    note(ax, "α/β: both parts are equal", (equal, 2 * line.latency), (-12, 12), "right")
    note(ax, "α, what every message costs", (x[-1], line.latency), (6, 0), "left")
    if rising:
        note(ax, "β n, what the bytes cost", (rising[0], rising[0] / line.bandwidth), (10, -2), "left")
    ax.set_xlim(x[0] / 2, x[-1] * 40)
    ticks(ax.xaxis, x[::2], said_bytes)
    seconds_axis(ax)
    titled(ax, "One message on this machine", "bytes")
    words = (
        f"latency α        {line.latency * 1e6:.1f} µs\n"
        f"bandwidth 1/β    {line.bandwidth / 1e9:.2f} GB/s\n"
        f"both equal at    {said_bytes(equal)}\n"
        f"median error     {line.error:.0%}"
    )
    return Shown(chart, words)


def draw_seconds(
    panels: Mapping[str, Mapping[str, Callable[[float], float | Cost]]],
    xs: Sequence[float],
    unit: str = "bytes",
    every: int = 1,
    growth: bool = False,
) -> Shown:
    """Seconds over bytes or over GPUs, log axes, one panel for each title.

    panels: title -> name of a curve -> seconds at x, or the Cost.  Around a Cost with a band it is drawn pale; where one
    is an extrapolation, the marks of all curves are hollow and the title says so.
    every: the words have one x in `every`.  growth: and the factor between a curve's last and first value.
    """
    alt = f"Picture: seconds against {unit}, log axes: {'; '.join(panels)}"
    chart = Chart(alt, len(panels), 370 * len(panels))
    styles = _styles(dict.fromkeys(name for curves in panels.values() for name in curves))
    said = said_bytes if unit == "bytes" else "{:,}".format
    tables = []
    for ax, (title, curves) in zip(chart.panels, panels.items()):
        costs = {name: [seconds(x) for x in xs] for name, seconds in curves.items()}
        times = {name: [_seconds(cost) for cost in of] for name, of in costs.items()}
        extrapolated = {
            x: cost.beyond for of in costs.values() for x, cost in zip(xs, of) if isinstance(cost, Cost) and cost.beyond
        }
        for name, t in times.items():
            (colour, dashes), marks = styles[name], "" if unit == "bytes" else "o"
            ax.loglog(xs, t, marks + dashes, color=colour, lw=2, ms=3.5)
            bands = [cost.band for cost in costs[name] if isinstance(cost, Cost) and cost.band]
            if len(bands) == len(xs):
                ax.fill_between(xs, *zip(*bands), color=colour, alpha=0.16, lw=0)
            far = [(x, at) for x, at in zip(xs, t) if x in extrapolated]
            if far and marks:
                ax.loglog(*zip(*far), "o", mfc="white", mec=colour, ms=5)
        ticks(ax.xaxis, [*xs[::4]] if unit == "bytes" else xs, said)
        seconds_axis(ax)
        titled(ax, f"{title} (hollow: extrapolated)" if extrapolated and unit != "bytes" else title, unit)
        label_ends(ax, [(name, xs[-1], t[-1], styles[name][0]) for name, t in times.items()])
        rows = [(f"{title}  ", *map(said, xs[::every]), *["growth"] * growth)]
        for name, t in times.items():
            grown = f"{t[-1] / t[0]:,.3g}" if t[-1] < 100 * t[0] else f"{t[-1] / t[0]:,.0f}"
            rows.append((f"{name}  ", *map(duration, t[::every]), *[f"{grown} x"] * growth))
            if all(isinstance(cost, Cost) and cost.band for cost in costs[name]):
                for word, end in (("nine of ten, from", 0), ("to", 1)):
                    ends = (duration(cost.band[end]) for cost in costs[name][::every])
                    rows.append((f"  {word}  ", *ends, *[""] * growth))
        least = (0, *[9] * len(xs[::every]), 11)
        words = align(rows, right=range(1, len(rows[0])), gap="", least=least)
        tables.append(words + "".join(f"\nextrapolated: {why}" for why in [*extrapolated.values()][:1]))
    return Shown(chart, "\n\n".join(tables))


def _styles(names: Collection[str]) -> dict[str, tuple[str, str]]:
    """Each curve's color and dashes; one of ALGORITHMS looks the same in every picture."""
    known = {name: LINES[k] for name in names for k, algorithm in enumerate(ALGORITHMS) if name.endswith(algorithm)}
    free = cycle(line for line in LINES if line not in known.values())
    return {name: known.get(name) or next(free) for name in names}


def _seconds(cost: float | Cost) -> float:
    return cost.seconds if isinstance(cost, Cost) else cost


NEAR = "#e9f0e6"


def draw_errors(table: Calibration) -> Shown:
    """Published / model's time of every row over its bytes: full dots count, hollow are held out.

    Crosses are fitted or suspect, and do not count.
    """
    alt = "Picture: the published time over the model's, against bytes, one dot per row"
    chart = Chart(alt, height=430)
    (ax,) = chart.panels
    ax.axhspan(1 / 1.2, 1.2, color=NEAR, lw=0)
    ax.axhline(1, color=SOFT, lw=1)
    least, most = 0.45, 6.5
    for row in table:
        if row.counts:
            colour = PLACES[row.group.split(",")[0]]
            face = "white" if row.role == HELD_OUT else colour
            ax.loglog([row.nbytes], [row.times], "o", mfc=face, mec=colour, ms=5, mew=1.1)
        else:
            ax.loglog([row.nbytes], [row.times], "x", color=FAINT, ms=3.5)
    ax.set_ylim(least, most)
    ticks(ax.yaxis, [0.5, 1 / 1.2, 1, 1.2, 2, 4], lambda v: f"{v:.2g}")
    ticks(ax.xaxis, [4**k for k in range(2, 18, 2)], said_bytes)
    titled(ax, "Published time / model's time, one dot per row", "bytes")
    ax.set_ylabel("published / model", fontproperties=small_font(), color=SOFT)
    for k, (place, colour) in enumerate(PLACES.items()):
        key(ax, k, place, mfc=colour, mec=colour, marker="o")
    key(ax, 2, "held out", mfc="white", mec=INK, marker="o")
    key(ax, 3, "fitted or suspect, not counted", mec=FAINT, marker="x")
    key(ax, 4, "shaded: off by at most 1.2 times", mfc=NEAR, mec=NEAR, marker="s")
    if high := sum(row.times > most for row in table):
        note(ax, f"{high} suspect rows are off the top", (table[0].nbytes, most), (6, -8), "left")
    return Shown(chart, repr(table))


def draw_choices(prices: Mapping[int, Nccl], sizes: Sequence[int]) -> Shown:
    """The algorithm and the protocol that NCCL picks, a row for each number of GPUs, over bytes."""
    sketch = Canvas()
    top = heading(
        sketch,
        "What NCCL 2.30.7's estimates choose for an all_reduce",
        "a row for each number of GPUs, 8 per node; buffer size from left to right; color: algorithm",
    )
    left, high = 64.0, 26.0
    step = (WIDTH - left - 20.0) / len(sizes)
    rows = [("GPUs", "picks, up to a size | that size | picks from there on ...")]
    for row, (count, price) in enumerate(prices.items()):
        y = top + row * (high + 4)
        sketch.text(left - 10, y + high / 2, f"{count:,}", 12, SOFT, align="right")
        spans = []
        for (algorithm, protocol), (at, *more) in groupby(range(len(sizes)), lambda k: price.choice(sizes[k])):
            x, wide, name = left + at * step, (1 + len(more)) * step, f"{algorithm} {protocol}"
            sketch.box(x, y, wide - 1, high, TINTS.get(algorithm, "#e8ebee"), radius=2)
            if wide > 58:
                sketch.text(x + wide / 2, y + high / 2, algorithm if wide < 8 * len(name) else name, 11.5)
            spans += [said_bytes(sizes[at])] * bool(at) + [name]
        rows.append((f"{count:,}", " | ".join(spans)))
    y = top + len(prices) * (high + 4)
    for k in range(0, len(sizes), 4):
        sketch.line([(left + k * step, y), (left + k * step, y + 5)], FAINT, 1)
        sketch.text(left + k * step, y + 14, said_bytes(sizes[k]), 11, SOFT)
    words = align(rows, gap="", least=(8,))
    return Shown(Picture([sketch], words, "Picture: NCCL's algorithm and protocol by number of GPUs and bytes"), words)


OWN_WIDTH, SHARED_WIDTH = 1.5, 5.0  # pixels, of a link that one GPU has, and of one that several share
RAILS = SERIES[:4]


def draw_machines() -> Shown:
    """The four machines of presets.py, with their links, shared ones marked."""
    words = (
        "NVLink node      any two GPUs through one switch: 450 GB/s each way, nothing shared (H100)\n"
        "PCIe node        four GPUs share one link, 55 GB/s, to the other four\n"
        "rail-optimized   card i of every node connects to rail switch i; NVSwitch leads to the other rails\n"
        "fat tree         all cards of a node connect to one leaf switch and share the links above it"
    )
    sketches = [
        _sketch(_nvlink, "NVLink node", "any two of 8 GPUs are one switch apart,\n"
                "450 GB/s each way, nothing shared (H100)"),
        _sketch(_pcie, "PCIe node", "four GPUs share one link (thick), 55 GB/s,\nto the other four"),
        _sketch(_rail, "Rail-optimized", "card i of every node connects to rail switch i; to reach\n"
                "another rail, a message crosses NVLink inside its node first"),
        _sketch(_tree, "Fat tree", "all cards of a node connect to one leaf switch and share\n"
                "the links above it (thick), which may be too few"),
    ]  # fmt: skip
    return Shown(Picture(sketches, words, "Picture: NVLink node, PCIe node, rail-optimized cluster, fat tree"), words)


def _sketch(draw: Callable[[Canvas], None], name: str, note: str) -> Canvas:
    sketch = Canvas()
    sketch.text(0, 8, name, 13.5, align="left", bold=True)
    for k, line in enumerate(note.splitlines()):
        sketch.text(0, 28 + 16 * k, line, 11, SOFT, align="left")
    draw(sketch)
    return sketch


def _nvlink(sketch: Canvas) -> None:
    _switch(sketch, 0, 70, 300, "NVSwitch")
    _gpus(sketch, range(8), 14, 39, 90, 122, 3)


def _pcie(sketch: Canvas) -> None:
    _switch(sketch, 100, 62, 100, "host")
    for half in range(2):
        left = half * 160
        sketch.line([(left + 70, 98), (124 + half * 52, 82)], INK, SHARED_WIDTH)
        _switch(sketch, left, 98, 140, "PCIe switch")
        _gpus(sketch, range(half * 4, half * 4 + 4), left + 14, 37, 118, 136, OWN_WIDTH)


def _rail(sketch: Canvas) -> None:
    for i in range(4):
        _switch(sketch, 20 + i * 92, 62, 66, f"rail {i}", RAILS[i])
    for node in range(3):
        _node(sketch, node * 128, [(20 + i * 92 + 16 * (node + 1), 82) for i in range(4)], RAILS)


def _tree(sketch: Canvas) -> None:
    _switch(sketch, 134, 60, 100, "spine")
    for node in range(3):
        left = node * 128
        for k in (-10, 0, 10):
            sketch.line([(left + 56 + k, 96), (184 + (node - 1) * 30 + k * 0.6, 80)], INK, SHARED_WIDTH / 2)
        _switch(sketch, left, 96, 112, "leaf switch")
        _node(sketch, left, [(left + 17 + i * 26, 116) for i in range(4)], [SOFT] * 4)


def _switch(sketch: Canvas, x: float, y: float, wide: float, words: str, fill: str = "#e8ebee") -> None:
    sketch.boxed(x, y, wide, 20, words, 11, fill, radius=4)


def _gpus(sketch: Canvas, numbers: range, x: float, apart: float, y0: float, y1: float, wide: float) -> None:
    """GPUs in a row at y1, each linked to what is at y0 above it.  x: the middle of the first.  wide: of a link."""
    for k, number in enumerate(numbers):
        middle = x + k * apart
        sketch.line([(middle, y0), (middle, y1)], INK, wide)
        sketch.box(middle - 10, y1, 20, 20, "#cfd6dc", radius=3)
        sketch.text(middle, y1 + 10, str(number), 10.5)


def _node(sketch: Canvas, left: float, ends: Sequence[tuple[float, float]], tints: Sequence[str]) -> None:
    """Four GPUs above their NVSwitch, each below its card, each card linked to a switch outside."""
    y = 128
    sketch.box(left, y, 112, 92, "#f7f8f9", FAINT, radius=4)
    for i, (end, tint) in enumerate(zip(ends, tints)):
        x = left + 17 + i * 26
        sketch.line([(x, y + 6), end], tint, 1.8)
        sketch.box(x - 9, y + 6, 18, 12, tint, radius=2)
        sketch.line([(x, y + 50), (x, y + 64)], INK, 2.5)
    _gpus(sketch, range(4), left + 17, 26, y + 18, y + 30, 1)
    _switch(sketch, left + 6, y + 64, 100, "NVSwitch")


def said_bytes(nbytes: float) -> str:
    """Three figures and a unit: '25 MiB'."""
    for unit, many in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= many:
            return f"{nbytes / many:.3g} {unit}"
    return size(round(nbytes))
