"""The calls of a training step, summarized: hundreds of them as a table of phase, layer, operation, group and bytes.

"Sent" is the minimum that the call must move, shared evenly by the ranks (record/traffic.py): 2 (N - 1) / N of the
bytes for an all_reduce over N ranks, and so on; exact, as a fraction.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain
from typing import Sequence

from ..draw.canvas import FAINT, INK, SOFT, TRAY, WIDTH, Canvas, Picture, heading, text_width
from ..draw.labels import legend
from ..format import aligned, dtype_name
from ..judge.run import Run
from ..record.event import Event
from ..record.traffic import count
from .modules import layer_of
from .observer import PHASES, PhaseMark
from .view import View, exact, said_layers, spread

UNKNOWN = PhaseMark("", "", 0)


@dataclass
class CallRow:
    """Calls that are alike, over all ranks."""

    phase: str
    op: str  # "all_reduce SUM"
    group: str  # "4 ranks", "to rank + 1"
    dtype: str
    nbytes: tuple[int, int]  # of one call (Event.nbytes): the minimum and the maximum
    layers: list[str]
    calls: list[int]  # per rank
    sent: list[Fraction]  # per rank, bytes


class Calls(View):
    """The summary of a run: .rows, .total_calls and .total_sent (per rank), a text twin, a picture.

    marks: per rank, a PhaseMark for each event; None, or too few: phases and layers are not known.
    step: only calls of one step (PhaseMark.step).
    """

    def __init__(self, run: Run, marks: list[list[PhaseMark]] | None = None, step: int | None = None) -> None:
        self.name, self.world_size = run.name, run.world_size
        marks = marks or [[] for _ in run.events]
        of = {id(e): mark for events, row in zip(run.events, marks) for e, mark in zip(events, row)}
        self.rows = _rows(run, of, step)
        self.total_calls = [sum(row.calls[r] for row in self.rows) for r in range(run.world_size)]
        self.total_sent = [sum((row.sent[r] for row in self.rows), Fraction()) for r in range(run.world_size)]

    def by(self, *fields: str) -> dict[tuple, tuple[list[int], list[Fraction]]]:
        """Calls and bytes sent, per rank, added up over rows alike in these fields of CallRow: by("phase", "op")."""
        sums: dict[tuple, tuple[list[int], list[Fraction]]] = {}
        for row in self.rows:
            key = tuple(getattr(row, field) for field in fields)
            calls, sent = sums.get(key, _nothing(self.world_size))
            sums[key] = _plus(calls, row.calls), _plus(sent, row.sent)
        return sums

    def sent(self, rank: int = 0, **only: str) -> Fraction:
        """Bytes that a rank sends in all rows with these values: sent(phase="backward"), sent(op="all_reduce SUM")."""
        return sum((r.sent[rank] for r in self.rows if all(getattr(r, k) == v for k, v in only.items())), Fraction())

    def __repr__(self) -> str:
        head = ("phase", "operation", "group", "layers", "calls", "bytes a call", "sent a rank")
        body, last, mixed = [], "", len({row.dtype for row in self.rows}) > 1
        for row in self.rows:
            phase, last = ("" if row.phase == last else row.phase), row.phase
            op, layers, sizes = (
                f"{row.op} {row.dtype}" if mixed else row.op,
                said_layers(row.layers),
                spread(row.nbytes),
            )
            body.append((phase, op, row.group, layers, spread(row.calls), sizes, spread(row.sent)))
        body.append(("in all", "", "", "", spread(self.total_calls), "", spread(self.total_sent)))
        return aligned([head, *body], right=(4, 5, 6), rule=True)

    def draw(self) -> Picture:
        """A bar a row: the bytes that a rank sends, the busiest one where they differ."""
        lines = [
            Bar(row.phase, f"{row.op}, {row.group}", said_layers(row.layers), spread(row.calls), [max(row.sent)])
            for row in self.rows
        ]
        title = f"calls of {self.name}"
        words = f"{spread(self.total_calls)} calls a rank, which sends {spread(self.total_sent)} B"
        return bars(title, words, lines, [""], repr(self), f"Picture: {title}, by phase and operation")


def compare(
    ours: Calls,
    theirs: Calls,
    names: Sequence[str] = ("by hand", "torch's"),
    by: Sequence[str] = ("phase", "op", "group"),
) -> Comparison:
    """Two summaries side by side, a line for each phase, operation and group, or what else of CallRow `by` names.

    by=("op", "group"): where one makes in "update" what the other makes in "backward".
    """
    return Comparison(ours, theirs, tuple(names), tuple(by))


@dataclass(repr=False)
class Comparison(View):
    """Two summaries side by side; `.same` tells whether calls and bytes agree in every line."""

    ours: Calls
    theirs: Calls
    names: tuple[str, str]
    by: tuple[str, ...] = ("phase", "op", "group")
    lines: list[tuple[tuple, list, list, list, list]] = field(init=False)  # key, calls, sent, their calls, their sent

    def __post_init__(self) -> None:
        left, right = self.ours.by(*self.by), self.theirs.by(*self.by)
        every = sorted({**left, **right}, key=lambda key: PHASES.index(key[0]) if key[0] in PHASES else -1)
        none = _nothing(self.ours.world_size)
        self.lines = [(key, *left.get(key, none), *right.get(key, none)) for key in every]

    @property
    def same(self) -> bool:
        return all(_equal(calls, other) and _equal(sent, also) for _, calls, sent, other, also in self.lines)

    def __repr__(self) -> str:
        ours, theirs = self.names
        words = [HEADS.get(field, field) for field in self.by]
        head = (*words, f"{ours}: calls", "sent a rank", f"{theirs}: calls", "sent a rank", "")
        body, last = [], None
        for key, *numbers in self.lines:
            first = "" if key[0] == last and self.by[0] == "phase" else key[0]
            body.append((first, *key[1:], *map(spread, numbers), _verdict(*numbers, self.names)))
            last = key[0]
        body.append(("in all", *[""] * (len(self.by) - 1), *map(spread, self._totals), ""))
        k = len(self.by)
        return aligned([head, *body], right=range(k, k + 4), rule=True)

    @property
    def _totals(self) -> tuple[list, list, list, list]:
        return self.ours.total_calls, self.ours.total_sent, self.theirs.total_calls, self.theirs.total_sent

    def draw(self) -> Picture:
        lines = []
        for key, calls, sent, other, also in [*self.lines, (("in all",), *self._totals)]:
            total = key == ("in all",)
            phase = key[0] if total or self.by[0] == "phase" else ""
            what = ", ".join(key[1:] if phase else key)
            lines.append(Bar(phase, what, "", f"{spread(calls)} | {spread(other)}", [max(sent), max(also)]))
        title = f"{self.names[0]} beside {self.names[1]}"
        words = "calls and bytes agree in every line" if self.same else "what a rank calls and sends"
        return bars(title, words, lines, self.names, repr(self), f"Picture: {title}, calls and bytes")


HEADS = {"op": "operation"}  # of columns


# --- rows ---------------------------------------------------------------------------------


def _rows(run: Run, marks: dict[int, PhaseMark], step: int | None) -> list[CallRow]:
    made: dict[tuple, dict[str, list[Event]]] = {}  # the fields of a row -> layer -> its calls
    for e in chain.from_iterable(run.events):
        mark = marks.get(id(e), UNKNOWN)
        if step is None or mark.step == step:
            key = (mark.phase, _op(e), _group(e, run.world_size), dtype_name(e.dtype) if e.dtype else "")
            made.setdefault(key, defaultdict(list))[layer_of(mark.where)].append(e)
    bytes_sent = _sent(run)
    rows = []
    for key, layers in made.items():
        alike: dict[tuple, list[str]] = defaultdict(list)  # layers where the same happens share a row
        for layer, events in layers.items():
            calls, sent = _nothing(run.world_size)
            for e in events:
                calls[e.rank] += 1
                sent[e.rank] += bytes_sent[id(e)]
            sizes = [e.nbytes for e in events]
            alike[tuple(calls), tuple(sent), (min(sizes), max(sizes))].append(layer)
        for (calls, sent, sizes), names in alike.items():
            rows.append(CallRow(*key, sizes, names, [c * len(names) for c in calls], [b * len(names) for b in sent]))
    return sorted(rows, key=lambda row: PHASES.index(row.phase) if row.phase in PHASES else -1)


def _nothing(world_size: int) -> tuple[list[int], list[Fraction]]:
    """No calls and no bytes, per rank."""
    return [0] * world_size, [Fraction()] * world_size


def _plus(some: Sequence, more: Sequence) -> list:
    return [a + b for a, b in zip(some, more)]


def _sent(run: Run) -> dict[int, Fraction]:
    """id(event) -> the bytes that its rank sends for it."""
    sent = {}
    for call in run.calls:
        alone: list[list[Event]] = [[] for _ in range(run.world_size)]
        for e in call:
            alone[e.rank].append(e)
        moved = count(alone).sent
        for e in call:
            sent[id(e)] = Fraction(moved[e.rank]).limit_denominator(len(e.group))  # a float of some N-ths
    return sent


def _op(e: Event) -> str:
    return f"{e.op} {e.reduce_op}" if e.reduce_op else e.op


def _group(e: Event, world_size: int) -> str:
    """'4 ranks'; '2 ranks, 4 apart' on a mesh; for a message where the other end is, by the shorter way round."""
    if e.is_message:
        other, word = (e.dst, "to") if e.op == "send" else (e.src, "from")
        if other is None:
            return "from anyone"
        step = other - e.rank
        step -= world_size * (1 if step > 0 else -1) * (2 * abs(step) > world_size)
        return f"{word} rank {'+' if step > 0 else '-'} {abs(step)}"
    size = f"{len(e.group)} rank{'s' * (len(e.group) > 1)}"
    gaps = {b - a for a, b in zip(e.group, e.group[1:])}
    return size if gaps <= {1} else f"{size}, {gaps.pop()} apart" if len(gaps) == 1 else f"{size}: {e.group}"


def _equal(a: Sequence, b: Sequence) -> bool:
    return list(a) == list(b) or not any(a) and not any(b)


def _verdict(calls, sent, other, also, names: Sequence[str]) -> str:
    if not any(other):
        return f"only {names[0]}"
    if not any(calls):
        return f"only {names[1]}"
    if _equal(sent, also):
        return "same" if _equal(calls, other) else "same bytes"
    return ""


# --- the drawing --------------------------------------------------------------------------

ROW, BAR = 21, 13  # pixels
TINTS = (INK, FAINT)


@dataclass
class Bar:
    """A line of the picture: words, and a number of bytes for each side."""

    phase: str
    what: str
    layers: str
    calls: str
    sizes: list[Fraction]


def bars(title: str, words: str, lines: list[Bar], names: Sequence[str], text: str, alt: str) -> Picture:
    sketch = Canvas()
    y = heading(sketch, title, words) + 6
    columns = [[getattr(line, word) for line in lines] for word in ("phase", "what", "layers", "calls")]
    columns[3] = [*columns[3], "calls"]
    lefts = [0.0]
    for column in columns:
        wide = max((text_width(word, 12) for word in column), default=0)
        lefts.append(lefts[-1] + wide + 16 * (wide > 0))
    most = max((size for line in lines for size in line.sizes), default=Fraction()) or Fraction(1)
    room = WIDTH - lefts[4] - text_width(f"{exact(most)} B, both", 11.5) - 12
    sketch.text(lefts[3], y, "calls", 11, SOFT, align="left")
    x = lefts[4]
    if len(names) == 1:
        sketch.text(x, y, "bytes that a rank sends", 11, SOFT, align="left")
    else:
        entries = ((tint, f"{name}, bytes that a rank sends") for tint, name in zip(TINTS, names))
        legend(sketch, x, y, entries, pad=6, between=24)
    y += 20
    for line, before in zip(lines, [None, *lines]):
        shown = [(size, tint) for size, tint in zip(line.sizes, TINTS) if size]
        if len(shown) == 2 and shown[0][0] == shown[1][0] and len(names) > 1:
            words = [f"{exact(shown[0][0])} B, both", ""]
        else:
            words = [f"{exact(size)} B" for size, _ in shown]
        high = ROW if len(shown) < 2 else ROW + 8
        y += (high - ROW) / 2
        if before is not None and before.phase != line.phase:
            sketch.line([(0, y - high / 2 - 1), (WIDTH, y - high / 2 - 1)], TRAY, 1.5)
        if before is None or before.phase != line.phase:
            sketch.text(lefts[0], y, line.phase, 12, SOFT, align="left")
        for k, word in ((1, line.what), (2, line.layers), (3, line.calls)):
            sketch.text(lefts[k], y, word, 12, SOFT if k == 2 else INK, align="left")
        thick = BAR if len(shown) < 2 else 11
        for i, ((size, tint), said) in enumerate(zip(shown, words)):
            top = y - (thick + 1) * len(shown) / 2 + i * (thick + 1)
            wide = max(float(size / most) * room, 1.5)
            sketch.box(lefts[4], top, wide, thick, tint, radius=1.5)
            middle = y if said.endswith("both") else top + thick / 2
            sketch.text(lefts[4] + wide + 6, middle, said, 11, SOFT, align="left")
        if not shown:
            sketch.text(lefts[4], y, "0 B", 11, SOFT, align="left")
        y += high / 2 + ROW / 2
    return Picture([sketch], text, alt)
