"""Pictures of time: a lane a rank, a column a step, an arrow a message; and the barrier.

A step is logical, not measured: messages that did not wait for each other share one.
"""

from __future__ import annotations

import math
from collections import Counter

import torch

from .canvas import INK, REDUCED, SOFT, WIDTH, Sketch, colour, heading, ink_on, text_width
from .messages import Message, ends, read
from .record import Call, Event, Summary, Value
from .twin import call_title, dtype_name, number, size, span

IDLE = "#dfe3e7"  # a lane before data arrives
GRID = "#e9ecef"
MOST_MESSAGES = 400  # in one picture
CHIP = 18  # pixels, the height of a value on its way
LANE = 6


def space_time(calls: list[Call], until: int | None = None) -> tuple[Sketch, str]:
    """The picture of some messages, and what it shows in a few words.

    until: leaves out what happens after this step, from 0; -1 leaves out everything.
    """
    every = read(calls[:MOST_MESSAGES])
    ranks = sorted({rank for call in calls for rank in call.group})
    count = 1 + max(m.step for m in every)
    title, rest = titles(calls, count)
    sketch = Sketch()
    y = heading(sketch, title, rest)
    left = label_width(ranks)
    notes = {e.rank: note(e) for m in every for e in m.events if status(e)}
    room = WIDTH - left - max((text_width(words, 11.5) + 14 for words in notes.values()), default=0)
    crowd = max(Counter(m.step for m in every).values()) > 1.5 * len(ranks)
    column = min(max(room / count, 46.0), 130 if count > 2 else 380 if crowd else 190)
    bands = math.ceil(count / max(1, int(room / column + 0.01)))
    each = math.ceil(count / bands)  # too many steps for one line go on below, like music
    for first in range(0, count, each):
        steps = range(first, min(first + each, count))
        Band(sketch, ranks, left, y, column, steps, every, until).draw(notes if steps.stop == count else {})
        y = sketch.height + 22
    if len(calls) > MOST_MESSAGES:
        sketch.text(0, y, f"and {len(calls) - MOST_MESSAGES} more messages", 11.5, SOFT, align="left")
    return sketch, f"{title}, ranks {span(tuple(ranks))}"


def titles(calls: list[Call], steps: int) -> tuple[str, str]:
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
    return f"{len(calls)} messages in {steps} step{'s' * (steps > 1)}", rest


def status(e: Event) -> str:
    """What a rank that is not through with its call is doing; '' for one that is."""
    if e.end is not None and (e.waited or not e.async_op):
        return ""
    return "not waited for" if e.async_op and e.waiting is None else "still waiting"


def note(e: Event) -> str:
    peer = f"to {e.dst}" if e.op == "send" else "from anyone" if e.src is None else f"from {e.src}"
    return f"{e.op} {peer}: {status(e)}"


def rank_label(rank: int, root: bool = False) -> str:
    """'rank 2', with a star before a root."""
    return "★ " * root + f"rank {rank}"


def label_width(ranks) -> float:
    return max(text_width(rank_label(rank), 13) for rank in ranks) + 14


class Band:
    """Some steps of the picture: a line for every rank, and what travels between them."""

    def __init__(self, sketch: Sketch, ranks: list[int], left, top, column, steps: range, every, until=None) -> None:
        self.sketch, self.ranks, self.left, self.column = sketch, ranks, left, column
        self.steps, self.every = steps, every  # every: all messages of the picture, by step
        self.here = [m for m in every if m.step in steps]
        self.at: dict[int, list[Message]] = {step: [m for m in self.here if m.step == step] for step in steps}
        self.pairs = Counter((m.step, m.source, m.target) for m in self.here)
        self.row = {rank: i for i, rank in enumerate(ranks)}
        wide = len(ranks) <= 4 or len(ranks) <= 8 and any(self.meets(m) for m in self.here)
        self.pitch = 46 if wide else 38 if len(ranks) <= 8 else 26
        self.around = {id(m) for m in self.here if self.wraps(m)}
        outside = self.pitch * 0.5 + CHIP / 2 if self.around else 13
        self.top = top + outside
        self.foot = self.top + self.pitch * (len(ranks) - 1) + outside
        self.right = left + column * len(steps)
        self.chips: list[tuple[float, float, float, Message, str]] = []  # x, y, width
        if until is not None:  # everything keeps its place, whatever is left out
            self.here = [m for m in self.here if m.step <= until]
            self.every = [m for m in every if m.step <= until]

    def meets(self, m: Message) -> bool:
        """Whether another message goes the opposite way in the same step."""
        return (m.step, m.target, m.source) in self.pairs

    def wraps(self, m: Message) -> bool:
        """From the last lane to the first (or back) while others go one lane on: the ring closes."""
        if not m.arrived or abs(self.hop(m)) < max(2, len(self.ranks) - 1):
            return False
        others = [o for o in self.at[m.step] if o is not m]
        on = -1 if self.hop(m) > 0 else 1
        alone = all(o.source != m.source and o.target != m.target for o in others)
        return alone and any(self.hop(o) == on for o in others)

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
        for x, y, wide, m, words in self.chips:
            fill = colour(m.origin)
            sketch.box(x - wide / 2, y - CHIP / 2, wide, CHIP, fill, "#ffffff", lw=1.5, radius=4)
            sketch.text(x, y, words, 11.5, ink_on(fill))

    def lane(self, rank: int, words: str) -> None:
        """In the rank's colour if it has data of its own to send, else in that of what it was sent last."""
        y, x, stop = self.y(rank), self.left, self.right - self.column * 0.5 * ("waiting" in words)
        self.sketch.text(self.left - 14, y, rank_label(rank), 13, align="right")
        own = any(m.sent and m.origin == m.source == rank for m in self.every)
        tint = colour(rank) if own else IDLE
        for m in self.every:
            if m.target == rank and m.arrived and m.step < self.steps.stop and not own:
                if m.step in self.steps:
                    self.sketch.line([(x, y), (self.span(m)[1], y)], tint, LANE, butt=True)
                    x = self.span(m)[1]
                tint = colour(m.origin)
        self.sketch.line([(x, y), (stop, y)], tint, LANE, butt=True)
        if stop < self.right:
            self.sketch.line([(stop, y), (self.right, y)], SOFT, 1.4, dashed=True)
        if words:
            self.sketch.text(self.right + 12, y, words, 11.5, align="left")

    def message(self, m: Message) -> None:
        sketch, (x0, x1), y1 = self.sketch, self.span(m), self.y(m.target)
        y0 = y1 - 1.5 * self.pitch if m.source is None else self.y(m.source)
        lanes, down = max(1, abs(self.hop(m))), 1 if y1 > y0 else -1
        start, end = (x0, y0 + down * LANE / 2), (x1, y1 - down * LANE / 2)
        if not m.arrived:
            if m.sent:
                stop = _along(start, end, 0.42 / lanes)
                sketch.line([start, stop], colour(m.origin), 2)
                for tilt in (-4, 4):
                    sketch.line([(stop[0] - 4, stop[1] - tilt), (stop[0] + 4, stop[1] + tilt)], INK, 2)
            if m.events[-1].op == "recv":
                sketch.arrow(_along(start, end, 1 - 0.4 / lanes), end, SOFT, 1.6, dashed=True)
            return
        crowded = len(self.at[m.step]) > 3 * len(self.ranks)  # no room for values, nor for thick lines
        words = "" if crowded else chip(m.value, self.column - 12)
        wide = text_width(words, 11.5) + 10
        if id(m) in self.around:
            half = (x1 - x0) / 2
            out, back = (x0 + half, y0 - down * self.pitch / 2), (x1 - half, y1 + down * self.pitch / 2)
            sketch.line([(x0, y0 - down * LANE / 2), out], colour(m.origin), 2, dashed=True)
            sketch.arrow(back, (x1, y1 + down * LANE / 2), colour(m.origin), 2, dashed=True)
            self.chips += [(*place, wide, m, words) for place in (out, back) if words]
            return
        if lanes > 1 and not crowded:  # lift the arrow off the lanes it crosses
            sketch.line([_along(start, end, t) for t in (0.4 / lanes, 1 - 0.4 / lanes)], "#ffffff", 5, butt=True)
        sketch.arrow(start, end, colour(m.origin), 1.2 if crowded else 2)
        for part in (0.22, 0.78) if self.meets(m) else (0.5, 0.3, 0.7):  # a free place between two lanes
            for k in range(lanes if words else 0):
                x, y = _along(start, end, (k + part) / lanes)
                if all(abs(x - cx) >= (wide + cw) / 2 or abs(y - cy) >= CHIP - 1 for cx, cy, cw, *_ in self.chips):
                    self.chips.append((x, y, wide, m, words))
                    return


def _along(start, end, t: float) -> tuple[float, float]:
    return start[0] + (end[0] - start[0]) * t, start[1] + (end[1] - start[1]) * t


def chip(value: Value, room: float) -> str:
    """A message's value in a few characters; '' if it takes more room (in pixels) than there is."""
    if isinstance(value, torch.Tensor) and value.numel() <= 4:
        words = " ".join(number(v) for v in value.flatten().tolist())
    elif isinstance(value, torch.Tensor):
        words = " … ".join(number(v) for v in value.flatten()[[0, -1]].tolist())
    elif isinstance(value, Summary):
        words = " … ".join(number(v) for v in (*value.head[:1], *value.tail[-1:]))
    else:
        words = ""
    return words if text_width(words, 11.5) + 10 <= room else ""


# --- barrier ------------------------------------------------------------------------------

WAIT = 0.05  # seconds: shorter waits are not told apart


def barrier(call: Call) -> Sketch:
    """Lanes that stop where a rank arrives, and go on together."""
    sketch = Sketch()
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
