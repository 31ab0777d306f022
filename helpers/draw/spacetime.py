"""Pictures of time: a lane a rank, a column a step, an arrow a message; and the barrier.

A step is logical, not measured: messages that did not wait for each other share one.  A lane has the
colour of the data that its rank sent or was sent last: pale before, grey where it may be several ranks'.
It is dashed through the steps in which the rank has no message, but waits for one to come.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import pairwise
from typing import NamedTuple, Sequence

import torch

from ..format import dtype_name, number, size, span
from ..record.calls import Call
from ..record.event import Event, Summary, Value
from ..record.messages import Message, ends, read
from ..record.text import call_title
from .canvas import INK, REDUCED, SOFT, WIDTH, Canvas, colour, heading, ink_on, label_width, rank_label, text_width
from .chunks import draw_chunk

IDLE = "#dfe3e7"  # a lane before data arrives
GRID = "#e9ecef"
ANYBODYS = "#51575e"  # data that may be several ranks', for their numbers are equal
MAX_MESSAGES = 400  # in one picture
CHIP = 18  # pixels, the height of a value on its way
LANE = 6


def space_time(calls: list[Call], until: int | None = None) -> tuple[Canvas, str]:
    """The picture of some messages, and what it shows in a few words.

    until: leaves out what happens after this step, from 0; -1 leaves out everything.
    """
    every = read(calls[:MAX_MESSAGES])
    ranks = sorted({rank for call in calls for rank in call.group})
    count = 1 + max(m.step for m in every)
    title, rest = titles(calls, count if len(calls) <= MAX_MESSAGES else 0)
    sketch = Canvas()
    y = heading(sketch, title, rest)
    left = label_width(ranks)
    notes = {e.rank: note(e) for m in every for e in m.events if status(e)}
    room = WIDTH - left - max((text_width(words, 11.5) + 14 for words in notes.values()), default=0)
    crowd = max(Counter(m.step for m in every).values()) > 1.5 * len(ranks)
    column = min(max(room / count, 46.0), 130 if count > 2 else 380 if crowd else 190)
    bands = math.ceil(count / max(1, int(room / column + 0.01)))
    each = math.ceil(count / bands)  # too many steps for one line go on below, like music
    drawn: list[Band] = []
    for first in range(0, count, each):
        steps = range(first, min(first + each, count))
        drawn.append(Band(sketch, ranks, left, y, column, steps, every, until))
        drawn[-1].draw(notes if steps.stop == count else {})
        y = sketch.height + 22
    if len(calls) > MAX_MESSAGES:
        sketch.text(0, y, f"and {len(calls) - MAX_MESSAGES} more messages", 11.5, SOFT, align="left")
        y += 18
    legend = ["lane: whose data its rank sent or got last"]
    legend += ["dashed: waits"] * any(each.waits(rank) for each in drawn for rank in ranks)
    legend += ["grey: may be several ranks', the numbers are equal"] * any(m.sent and m.origin is None for m in every)
    legend += ["no room for numbers: they are in the table"] * crowded(every, ranks)
    sketch.text(0, y - 4, " · ".join(legend), 10.5, SOFT, align="left")
    return sketch, f"{title}, ranks {span(tuple(ranks))}"


def crowded(messages: list[Message], ranks: list[int]) -> bool:
    """Whether a step has no room for values, nor for thick lines."""
    return max(Counter(m.step for m in messages).values(), default=0) > 3 * len(ranks)


def titles(calls: list[Call], steps: int) -> tuple[str, str]:
    """Two lines above the picture. steps: how many the messages take; 0: not known."""
    firsts = [call.events[0] for call in calls]
    what = f"{size(sum(e.nbytes for e in firsts))} in all"
    if len({(e.dtype, e.shape, e.nbytes) for e in firsts}) == 1 and firsts[0].dtype is not None:
        what = f"{dtype_name(firsts[0].dtype)} {list(firsts[0].shape)}, {size(firsts[0].nbytes)}"
        what += " each" * (len(calls) > 1)
    rest = f"ranks {span(tuple(sorted({rank for call in calls for rank in call.group})))}, {what}"
    arrived = sum(len(call.events) == 2 and call.events[1].end is not None for call in calls)
    if arrived < len(calls):
        return f"{arrived} of {len(calls)} message{'s' * (len(calls) > 1)} arrived", rest
    if len(calls) == 1:
        return "message {} -> {}".format(*ends(calls[0])), rest
    return f"{len(calls)} messages" + (f" in {steps} step{'s' * (steps > 1)}" if steps else ""), rest


def status(e: Event) -> str:
    """What a rank that is not through with its call is doing; '' for one that is."""
    if e.end is not None and (e.waited or not e.async_op):
        return ""
    return "not waited for" if e.async_op and e.waiting is None else "still waiting"


def tint(origin: int | None) -> str:
    """The colour of the rank that data came from; grey if it may be several ranks'."""
    return ANYBODYS if origin is None else colour(origin)


def note(e: Event) -> str:
    peer = f"to {e.dst}" if e.op == "send" else "from anyone" if e.src is None else f"from {e.src}"
    return f"{e.op} {peer}: {status(e)}"


class Band:
    """Some steps of the picture: a line for every rank, and what travels between them."""

    def __init__(self, sketch: Canvas, ranks: list[int], left, top, column, steps: range, every, until=None) -> None:
        self.sketch, self.ranks, self.left, self.column = sketch, ranks, left, column
        self.steps, self.every = steps, every  # every: all messages of the picture, by step
        self.here = [m for m in every if m.step in steps]
        self.at: dict[int, list[Message]] = defaultdict(list)
        self.busy: dict[int, set[int]] = {rank: set() for rank in ranks}  # the steps in which a rank has a message
        for m in every:
            self.at[m.step].append(m)
            for rank in {m.source, m.target} & set(ranks):
                self.busy[rank].add(m.step)
        self.matcher = Counter((m.step, m.source, m.target) for m in self.here)
        self.row = {rank: i for i, rank in enumerate(ranks)}
        wide = len(ranks) <= 4 or len(ranks) <= 8 and any(self.meets(m) for m in self.here)
        self.pitch = 46 if wide else 38 if len(ranks) <= 8 else 26
        self.around = {id(m) for m in self.here if self.wraps(m)}
        outside = self.pitch * 0.5 + CHIP / 2 if self.around else 13
        self.top = top + outside
        self.foot = self.top + self.pitch * (len(ranks) - 1) + outside
        self.right = left + column * len(steps)
        self.chips = Chips(CHIP, 11.5, 1.5, 4)
        if until is not None:  # everything keeps its place, whatever is left out
            self.here = [m for m in self.here if m.step <= until]
            self.every = [m for m in every if m.step <= until]

    def meets(self, m: Message) -> bool:
        """Whether another message goes the opposite way in the same step."""
        return (m.step, m.target, m.source) in self.matcher

    def wraps(self, m: Message) -> bool:
        """From the last lane to the first (or back) while the others go one lane on: the ring closes."""
        if not m.arrived or abs(self.hop(m)) < max(2, len(self.ranks) - 1):
            return False
        others = [o for o in self.at[m.step] if o is not m]
        on = -1 if self.hop(m) > 0 else 1
        alone = all(o.source != m.source and o.target != m.target for o in others)
        return alone and bool(others) and all(self.hop(o) == on for o in others)

    def hop(self, m: Message) -> int:
        return 0 if m.source is None else self.row[m.target] - self.row[m.source]

    def y(self, rank: int) -> float:
        return self.top + self.pitch * self.row[rank]

    def span(self, m: Message) -> tuple[float, float]:
        """Where this message's arrow starts and ends along x; two of the same kind lie side by side."""
        x, pad = self.left + (m.step - self.steps.start) * self.column, min(14, self.column * 0.14)
        twins = [o for o in self.at[m.step] if (o.source, o.target) == (m.source, m.target)]
        shift = min(40, self.column * 0.6 / len(twins))
        k = next(i for i, o in enumerate(twins) if o is m)
        return x + pad + shift * k, x + self.column - pad - shift * (len(twins) - 1 - k)

    def draw(self, notes: dict[int, str]) -> None:
        sketch = self.sketch
        for i in range(len(self.steps) + 1):
            x = self.left + i * self.column
            sketch.line([(x, self.top - 13), (x, self.foot)], GRID, 1)
        for i, step in enumerate(self.steps):
            words = f"step {step + 1}" if self.column >= 56 else str(step + 1)
            sketch.text(self.left + (i + 0.5) * self.column, self.foot + 11, words, 11.5, SOFT)
        if self.column < 56:
            sketch.text(self.left - 14, self.foot + 11, "step", 11.5, SOFT, align="right")
        for rank in self.ranks:
            self.lane(rank, notes.get(rank, ""))
        for m in self.here:
            self.message(m)
        self.chips.draw(sketch)

    def lane(self, rank: int, words: str) -> None:
        """In the colour of what the rank sent or was sent last; dashed where it waits for its next message."""
        y, first, last = self.y(rank), self.steps.start, self.steps.stop
        self.sketch.text(self.left - 14, y, rank_label(rank), 13, align="right")
        changes = self.changes(rank)
        waits = self.waits(rank)
        stop = last - 0.5 * ("waiting" in words)
        edges = {first, stop} | {k + d for k in waits for d in (0, 1)} | {at for at, _ in changes if first < at < stop}
        for begin, end in pairwise(sorted(edges)):
            held = next((shade for at, shade in reversed(changes) if at <= begin + 1e-6), IDLE)
            ends = [(self.left + (at - first) * self.column, y) for at in (begin, end)]
            if int(begin + 1e-6) in waits:
                self.sketch.line(ends, SOFT, 1.4, dashed=True)
            else:
                self.sketch.line(ends, held, LANE, butt=True)
        if stop < last:
            x = self.left + (stop - first) * self.column
            self.sketch.line([(x, y), (self.right, y)], SOFT, 1.4, dashed=True)
        if words:
            self.sketch.text(self.right + 12, y, words, 11.5, align="left")

    def waits(self, rank: int) -> set[int]:
        """The steps in which the rank has no message, though more are to come for it."""
        return {k for k in self.steps if k not in self.busy[rank] and k < max(self.busy[rank], default=0)}

    def changes(self, rank: int) -> list[tuple[float, str]]:
        """(when, in steps from the first of all; colour from then on) of a lane."""
        found = []
        for m in self.every:
            begin, end = (m.step + (x - self.left) / self.column - (m.step - self.steps.start) for x in self.span(m))
            if m.source == rank and m.sent:
                found.append((begin, tint(m.origin)))
            if m.target == rank and m.arrived:
                found.append((end, tint(m.origin)))
        found.sort(key=lambda change: change[0])
        own = found and found[0][1] == colour(rank)  # data of its own was there from the beginning
        return [(0, colour(rank))] * bool(own) + found

    def message(self, m: Message) -> None:
        sketch, (x0, x1), y1 = self.sketch, self.span(m), self.y(m.target)
        y0 = y1 - 1.5 * self.pitch if m.source is None else self.y(m.source)
        lanes, down = max(1, abs(self.hop(m))), 1 if y1 > y0 else -1
        start, end = (x0, y0 + down * LANE / 2), (x1, y1 - down * LANE / 2)
        if not m.arrived:
            if m.sent:
                stop = along(start, end, 0.42 / lanes)
                sketch.line([start, stop], tint(m.origin), 2)
                for tilt in (-4, 4):
                    sketch.line([(stop[0] - 4, stop[1] - tilt), (stop[0] + 4, stop[1] + tilt)], INK, 2)
            if m.events[-1].op == "recv":
                sketch.arrow(along(start, end, 1 - 0.4 / lanes), end, SOFT, 1.6, dashed=True)
            return
        thin = crowded(self.at[m.step], self.ranks)
        words = "" if thin else chip(m.value, self.column - 12)
        wide = text_width(words, 11.5) + 10
        if id(m) in self.around:
            half = (x1 - x0) / 2
            out, back = (x0 + half, y0 - down * self.pitch / 2), (x1 - half, y1 + down * self.pitch / 2)
            sketch.line([(x0, y0 - down * LANE / 2), out], tint(m.origin), 2, dashed=True)
            sketch.arrow(back, (x1, y1 + down * LANE / 2), tint(m.origin), 2, dashed=True)
            for place in (out, back) if words else ():
                self.chips.put(*place, wide, tint(m.origin), words)
            return
        if lanes > 1 and not thin:  # lift the arrow off the lanes it crosses
            sketch.line([along(start, end, t) for t in (0.4 / lanes, 1 - 0.4 / lanes)], "#ffffff", 5, butt=True)
        sketch.arrow(start, end, tint(m.origin), 1.2 if thin else 2)
        if words:
            parts = (0.22, 0.78) if self.meets(m) else (0.5, 0.3, 0.7)  # a free place between two lanes
            self.chips.put_along(start, end, lanes, parts, wide, tint(m.origin), words)


class Parts(NamedTuple):
    """Whose parts a chunk on its way holds."""

    bits: int
    ranks: int  # of which a sum is made


class Chips:
    """Values on their way, on top of the arrows that carry them, none over another."""

    def __init__(self, high: float, size: float, edge: float = 1.0, radius: float = 3.0) -> None:
        self.high, self.size, self.edge, self.radius = high, size, edge, radius  # pixels
        self._placed: list[tuple[float, float, float, str | Parts, str]] = []  # x, y, width, fill, words

    def put(self, x: float, y: float, wide: float, fill: str | Parts, words: str) -> None:
        """fill: a colour, or what chunk it is."""
        self._placed.append((x, y, wide, fill, words))

    def put_along(self, start, end, lanes: int, parts: Sequence[float], wide: float, fill, words: str) -> None:
        """Put one at the first free place along an arrow that crosses so many lanes, best between two of them."""
        places = [(k + part) / lanes for part in parts for k in range(lanes)] + [t / 20 for t in range(3, 18)]
        spots = [along(start, end, t) for t in places]
        x, y = next((spot for spot in spots if self._free(*spot, wide)), None) or max(spots, key=self._room_at)
        self.put(x, y, wide, fill, words)

    def _room_at(self, spot: tuple[float, float]) -> float:
        return min(abs(spot[0] - x) + 2 * abs(spot[1] - y) for x, y, *_ in self._placed)

    def _free(self, x: float, y: float, wide: float) -> bool:
        return all(abs(x - cx) >= (wide + cw) / 2 or abs(y - cy) >= self.room for cx, cy, cw, *_ in self._placed)

    @property
    def room(self) -> float:
        """Pixels between two chips, one above the other."""
        return self.high - 1 if self.high > 14 else self.high

    def draw(self, sketch: Canvas) -> None:
        for x, y, wide, fill, words in self._placed:
            top = y - self.high / 2
            if isinstance(fill, Parts):
                sketch.box(x - wide / 2 - 1, top - 1, wide + 2, self.high + 2, "#ffffff")
                draw_chunk(sketch, x - wide / 2, top, wide, self.high, words, *fill, owner=False)
                continue
            sketch.box(x - wide / 2, top, wide, self.high, fill, "#ffffff", lw=self.edge, radius=self.radius)
            sketch.text(x, y, words, self.size, ink_on(fill))


def along(start, end, t: float) -> tuple[float, float]:
    return start[0] + (end[0] - start[0]) * t, start[1] + (end[1] - start[1]) * t


def chip(value: Value, room: float) -> str:
    """A message's value in a few characters, as many as there is room for (in pixels); '' for no value."""
    if isinstance(value, Summary):
        shown = [*value.head[:1], *value.tail[-1:]]
    else:
        shown = value.flatten().tolist() if isinstance(value, torch.Tensor) else []
    words = [number(v) for v in shown]
    if not words:
        return "…" if isinstance(value, Summary) else ""
    ends = f"{words[0]} … {words[-1]}" if len(words) > 1 else f"{words[0][:3]}…"
    whole = len(words) <= 4 and not isinstance(value, Summary)
    choices = [" ".join(words)] * whole + [ends, f"{words[0]} …", "…"]
    return next((each for each in choices if text_width(each, 11.5) + 10 <= room), "…")


# --- barrier ------------------------------------------------------------------------------

WAIT = 0.05  # seconds: shorter waits are not told apart


def barrier(call: Call) -> Canvas:
    """Lanes that stop where a rank arrives, and go on together."""
    sketch = Canvas()
    title, _, rest = call_title(call).partition(", ")
    y = heading(sketch, title, rest) + 8
    ranks = call.group
    left = label_width(ranks)
    bar, pitch = left + 250, 34 if len(ranks) <= 8 else 22
    made = {e.rank: e for e in call}
    latest = max(e.start for e in call)
    unit = max(WAIT * 4, latest - min(e.start for e in call)) / 180
    open_ = len(made) == len(ranks) and all(e.end is not None for e in call)
    for i, rank in enumerate(ranks):
        at, e = y + i * pitch, made.get(rank)
        sketch.text(left - 14, at, rank_label(rank), 13, align="right")
        if e is None:
            sketch.text(left, at, "never called", 12, SOFT, align="left")
            continue
        wait = latest - e.start if latest - e.start >= WAIT else 0.0
        x = bar - 24 - round(wait / unit)
        sketch.line([(left, at), (x, at)], colour(rank), LANE)
        sketch.line([(x, at), (bar, at)], SOFT, 1.4, dashed=True)
        sketch.circle(x, at, 5, colour(rank), "#ffffff", 1.5)
        if wait:
            sketch.text((x + bar) / 2, at - 9, f"waits {wait:.1g} s", 10.5, SOFT)
        if e.end is not None:
            sketch.line([(bar, at), (bar + 60, at)], colour(rank), LANE)
        else:
            sketch.text(bar + 14, at, status(e), 12, SOFT, align="left")
    sketch.box(bar - 4, y - 14, 8, pitch * (len(ranks) - 1) + 28, REDUCED if open_ else "#ffffff", REDUCED, radius=4)
    return sketch
