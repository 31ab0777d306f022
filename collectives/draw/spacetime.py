"""The picture of messages in time: a lane per rank, a column per step, an arrow per message.

A step is logical, not measured: messages that did not wait for each other share one.  A lane has the
color of the data that its rank sent or was sent last: pale before, gray where it may be several ranks'.
It is dashed through the steps in which the rank has no message, but waits for one to come.
"""

import math
from collections import Counter, defaultdict
from itertools import pairwise

from ..format import dtype_name, size, span
from ..log.calls import Call
from ..log.collectives import RECEIVES
from ..log.text import peer_status, status
from ..log.transfers import Transfer, read
from .canvas import ANYBODYS, GRID, IDLE, INK, SOFT, WIDTH, Canvas, colour, heading, text_width
from .chips import Chips, chip, point_along
from .labels import RankLabels

MAX_MESSAGES = 400  # in one picture
MAX_SHARED = 24  # if more messages than this share one value, it is not drawn
NARROW = 64  # pixels: in a narrower step, values would cover arrows that cross lanes
CHIP, LANE = 18, 6  # pixels: the height of a value in flight, of a lane


def space_time(calls: list[Call], until: int | None = None, which: str = "") -> tuple[Canvas, str]:
    """The picture of some messages, and its description in a few words.

    until: leaves out everything after this step, from 0; -1 leaves out all steps.
    which: the calls' numbers in the run, in words.
    """
    every = read(calls[:MAX_MESSAGES])
    ranks = sorted({rank for call in calls for rank in call.group})
    count = 1 + max(m.step for m in every)
    title, rest = titles(calls, count if len(calls) <= MAX_MESSAGES else 0)
    sketch = Canvas()
    y = heading(sketch, title, rest, which)
    labels = RankLabels(ranks)
    left = labels.width + 14
    notes = {e.rank: peer_status(e) for m in every for e in m.events if status(e)}
    room = WIDTH - left - max((text_width(words, 11.5) + 14 for words in notes.values()), default=0)
    crowd = max(Counter(m.step for m in every).values()) > 1.5 * len(ranks)
    column = min(max(room / count, 46.0), 130 if count > 2 else 380 if crowd else 190)
    bands = math.ceil(count / max(1, int(room / column + 0.01)))
    each = math.ceil(count / bands)  # too many steps for one line continue below, as in music
    said = {chip(m.value, column - 12) for m in every}
    same = said.pop() if len(said) == 1 and len(every) > MAX_SHARED else ""  # on each arrow it would only hide arrows
    rows = {rank: row for row, rank in enumerate(ranks)}
    far = sum(m.source is not None and abs(rows[m.target] - rows[m.source]) > 1 for m in every)
    covering = column < NARROW and 2 * far > len(every) > MAX_SHARED
    drawn: list[Lanes] = []
    for first in range(0, count, each):
        steps = range(first, min(first + each, count))
        drawn.append(Lanes(ranks, left, y, column, steps, every, until, chips=not same and not covering))
        band(sketch, drawn[-1], labels, notes if steps.stop == count else {})
        y = sketch.height + 22
    if len(calls) > MAX_MESSAGES:
        sketch.text(0, y, f"and {len(calls) - MAX_MESSAGES} more messages", 11.5, SOFT, align="left")
        y += 18
    none = " (gray: none yet)" * any(picture.idle(rank) for picture in drawn for rank in ranks)
    legend = [f"lane color: whose data the rank last sent or received{none}"]
    legend += [f"every message carries {same}"] * bool(same)
    legend += ["dashed: waits"] * any(picture.waits(rank) for picture in drawn for rank in ranks)
    legend += ["gray: several ranks hold equal numbers, so the source is ambiguous"] * any(
        m.sent and m.origin is None and m.value is not None for m in every
    )
    legend += ["too small for numbers: see the table"] * (crowded(every, ranks) or covering)
    sketch.text(0, y - 4, " · ".join(legend), 10.5, SOFT, align="left")
    return sketch, f"{title}, ranks {span(tuple(ranks))}"


def crowded(messages: list[Transfer], ranks: list[int]) -> bool:
    """Whether a step has no room for values, nor for thick lines."""
    return max(Counter(m.step for m in messages).values(), default=0) > 3 * len(ranks)


def titles(calls: list[Call], steps: int) -> tuple[str, str]:
    """Two lines above the picture. steps: how many the messages take; 0: not known."""
    firsts = [call.events[0] for call in calls]
    what = f"{size(sum(e.nbytes for e in firsts))} in total"
    if len({(e.dtype, e.shape, e.nbytes) for e in firsts}) == 1 and firsts[0].dtype is not None:
        what = f"{dtype_name(firsts[0].dtype)} {list(firsts[0].shape)}, {size(firsts[0].nbytes)}"
        what += " each" * (len(calls) > 1)
    rest = f"ranks {span(tuple(sorted({rank for call in calls for rank in call.group})))}, {what}"
    arrived = sum(call.is_complete and call.events[-1].end is not None for call in calls)
    if arrived < len(calls):
        return f"{arrived} of {len(calls)} message{'s' * (len(calls) > 1)} arrived", rest
    if len(calls) == 1:
        kind = {"send": "message", "recv": "message"}.get(calls[0].op, calls[0].op)
        return "{} {} -> {}".format(kind, *calls[0].events[0].ends), rest
    return f"{len(calls)} messages" + (f" in {steps} step{'s' * (steps > 1)}" if steps else ""), rest


def tint(origin: int | None) -> str:
    """The color of the rank that data came from; gray if it may be several ranks'."""
    return ANYBODYS if origin is None else colour(origin)


class Lanes:
    """Where the lanes of some steps are, and where each message leaves one and arrives at another.  In pixels.

    A lane per rank, and the columns of the steps side by side; nothing is drawn.

    every: all messages of the picture, by step.  until: everything after this step is left out.  chips: whether the
    messages' values are written on them.
    """

    def __init__(self, ranks, left, top, column, steps: range, every, until: int | None, chips: bool = True) -> None:
        self.ranks, self.left, self.column, self.steps, self.chips = ranks, left, column, steps, chips
        self.here = [m for m in every if m.step in steps]
        self.at: dict[int, list[Transfer]] = defaultdict(list)
        self.busy: dict[int, set[int]] = {rank: set() for rank in ranks}  # the steps in which a rank has a message
        for m in every:
            self.at[m.step].append(m)
            for rank in {m.source, m.target} & set(ranks):
                self.busy[rank].add(m.step)
        self.pairs = Counter((m.step, m.source, m.target) for m in self.here)
        self.row = {rank: i for i, rank in enumerate(ranks)}
        wide = len(ranks) <= 4 or len(ranks) <= 8 and any(self.meets(m) for m in self.here)
        self.pitch = 46 if wide else 38 if len(ranks) <= 8 else 26
        self.around = {id(m) for m in self.here if self._wraps(m)}  # id() of messages that close a ring
        outside = self.pitch * 0.5 + CHIP / 2 if self.around else 13
        self.top = top + outside
        self.foot = self.top + self.pitch * (len(ranks) - 1) + outside
        self.right = left + column * len(steps)
        self.every = [m for m in every if until is None or m.step <= until]  # steps that are left out keep their place
        self.here = [m for m in self.here if until is None or m.step <= until]
        self.changes = {rank: self._changes(rank) for rank in ranks}

    def meets(self, m: Transfer) -> bool:
        """Whether another message goes the opposite way in the same step."""
        return (m.step, m.target, m.source) in self.pairs

    def _wraps(self, m: Transfer) -> bool:
        """Whether it goes from the last lane to the first (or back) and the others one lane on: the ring closes."""
        if not m.arrived or abs(self.hop(m)) < max(2, len(self.ranks) - 1):
            return False
        others = [o for o in self.at[m.step] if o is not m]
        on = -1 if self.hop(m) > 0 else 1
        return others != [] and all(self.hop(o) == on and o.source != m.source and o.target != m.target for o in others)

    def hop(self, m: Transfer) -> int:
        """The number of lanes that a message goes down."""
        return 0 if m.source is None else self.row[m.target] - self.row[m.source]

    def x(self, step: float) -> float:
        return self.left + (step - self.steps.start) * self.column

    def y(self, rank: int) -> float:
        return self.top + self.pitch * self.row[rank]

    def span(self, m: Transfer) -> tuple[float, float]:
        """Where this message's arrow starts and ends along x; two between the same ranks are drawn side by side."""
        x, pad = self.x(m.step), min(14, self.column * 0.14)
        twins = [o for o in self.at[m.step] if (o.source, o.target) == (m.source, m.target)]
        shift = min(40, self.column * 0.6 / len(twins))
        k = next(i for i, o in enumerate(twins) if o is m)
        return x + pad + shift * k, x + self.column - pad - shift * (len(twins) - 1 - k)

    def waits(self, rank: int) -> set[int]:
        """The steps in which the rank has no message, though more are to come for it."""
        return {k for k in self.steps if k not in self.busy[rank] and k < max(self.busy[rank], default=0)}

    def _changes(self, rank: int) -> list[tuple[float, int | None]]:
        """A lane's (time, in steps from the very first; origin of the data that its rank sends or gets from then)."""
        found = []
        for m in self.every:
            begin, end = (self.steps.start + (x - self.left) / self.column for x in self.span(m))
            if m.source == rank and m.sent and m.value is not None:
                found.append((begin, m.origin))
            if m.target == rank and m.arrived and m.events[0].op != "signal":
                found.append((end, m.origin))
        found.sort(key=lambda change: change[0])
        own = found and found[0][1] == rank  # it had its own data from the beginning
        return [(0, rank)] * bool(own) + found

    def stretches(self, rank: int, stop: float) -> list[tuple[float, float, bool]]:
        """The parts of a lane, up to a time in steps, that look alike: (begin, end, whether the rank waits)."""
        first, waits = self.steps.start, self.waits(rank)
        edges = {first, stop} | {k + d for k in waits for d in (0, 1)}
        edges |= {at for at, _ in self.changes[rank] if first < at < stop}
        return [(begin, end, int(begin + 1e-6) in waits) for begin, end in pairwise(sorted(edges))]

    def held(self, rank: int, when: float) -> str:
        """The color of a lane at a time, in steps: IDLE before its rank has sent or received anything."""
        return next((tint(origin) for at, origin in reversed(self.changes[rank]) if at <= when + 1e-6), IDLE)

    def idle(self, rank: int) -> bool:
        """Whether a part of the rank's lane is solid before it has sent or received anything."""
        parts = self.stretches(rank, self.steps.stop)
        return any(not waits and self.held(rank, begin) == IDLE for begin, _, waits in parts)


def band(sketch: Canvas, lanes: Lanes, labels: RankLabels, notes: dict[int, str]) -> None:
    """Draw some steps: a line per rank, and the messages between them.  notes: rank -> words at the end of its line."""
    for k in range(lanes.steps.start, lanes.steps.stop + 1):
        sketch.line([(lanes.x(k), lanes.top - 13), (lanes.x(k), lanes.foot)], GRID, 1)
    for k in lanes.steps:
        words = f"step {k + 1}" if lanes.column >= 56 else str(k + 1)
        sketch.text(lanes.x(k + 0.5), lanes.foot + 11, words, 11.5, SOFT)
    if lanes.column < 56:
        sketch.text(lanes.left - 14, lanes.foot + 11, "step", 11.5, SOFT, align="right")
    for rank in lanes.ranks:
        labels.draw(sketch, lanes.left - 14, lanes.y(rank), rank)
        _lane(sketch, lanes, rank, notes.get(rank, ""))
    chips = Chips(CHIP, 11.5, 1.5)
    for m in lanes.here:
        _message(sketch, lanes, chips, m)
    chips.draw(sketch)


def _lane(sketch: Canvas, lanes: Lanes, rank: int, words: str) -> None:
    """Draw a lane in the color of the data that the rank sent or was sent last; dashed where it waits for a message."""
    y, last = lanes.y(rank), lanes.steps.stop
    stop = last - 0.5 * ("waiting" in words)
    for begin, end, waits in lanes.stretches(rank, stop):
        ends = [(lanes.x(begin), y), (lanes.x(end), y)]
        if waits:
            sketch.line(ends, SOFT, 1.4, dashed=True)
        else:
            sketch.line(ends, lanes.held(rank, begin), LANE, butt=True)
    if stop < last:
        sketch.line([(lanes.x(stop), y), (lanes.right, y)], SOFT, 1.4, dashed=True)
    if words:
        sketch.text(lanes.right + 12, y, words, 11.5, align="left")


def _message(sketch: Canvas, lanes: Lanes, chips: Chips, m: Transfer) -> None:
    (x0, x1), y1, fill = lanes.span(m), lanes.y(m.target), tint(m.origin)
    y0 = y1 - 1.5 * lanes.pitch if m.source is None else lanes.y(m.source)
    hops, down = max(1, abs(lanes.hop(m))), 1 if y1 > y0 else -1
    start, end = (x0, y0 + down * LANE / 2), (x1, y1 - down * LANE / 2)
    if not m.arrived:
        if m.sent:
            stop = point_along(start, end, 0.42 / hops)
            sketch.line([start, stop], fill, 2)
            for tilt in (-4, 4):
                sketch.line([(stop[0] - 4, stop[1] - tilt), (stop[0] + 4, stop[1] + tilt)], INK, 2)
        if m.events[-1].op in RECEIVES:
            sketch.arrow(point_along(start, end, 1 - 0.4 / hops), end, SOFT, 1.6, dashed=True)
        return
    thin = crowded(lanes.at[m.step], lanes.ranks)
    signal = m.events[0].op == "signal"
    words = "" if thin or not lanes.chips else f"signal {m.events[0].tag}" if signal else chip(m.value, lanes.column - 12)
    wide = text_width(words, 11.5) + 10
    if id(m) in lanes.around:
        half = (x1 - x0) / 2
        out, back = (x0 + half, y0 - down * lanes.pitch / 2), (x1 - half, y1 + down * lanes.pitch / 2)
        sketch.line([(x0, y0 - down * LANE / 2), out], fill, 2, dashed=True)
        sketch.arrow(back, (x1, y1 + down * LANE / 2), fill, 2, dashed=True)
        for place in (out, back) if words else ():
            chips.put(*place, wide, fill, words)
        return
    if hops > 1 and not thin:  # lift the arrow off the lanes it crosses
        sketch.line([point_along(start, end, t) for t in (0.4 / hops, 1 - 0.4 / hops)], "#ffffff", 5, butt=True)
    sketch.arrow(start, end, fill, 1.2 if thin else 2, dashed=signal)
    if words:
        parts = (0.22, 0.78) if lanes.meets(m) else (0.5, 0.3, 0.7)  # a free place between two lanes
        chips.put_along(start, end, hops, parts, wide, fill, words)
