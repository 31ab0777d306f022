"""The calls of a training step, summarized: hundreds of them as a table of phase, layer, operation, group and bytes.

"Sent" is the minimum that the call must move, shared evenly by the ranks (log/traffic.py): 2 (N - 1) / N of the
bytes for an all_reduce over N ranks, and so on; exact, as a fraction.
"""

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Iterable, Sequence

from ..draw.canvas import FAINT, INK, SOFT, TRAY, WIDTH, Canvas, Picture, heading, text_width
from ..draw.labels import legend
from ..format import align, dtype_name
from ..log.collectives import RECEIVES
from ..log.event import Event
from ..log.traffic import count
from ..outcome.run import Run
from .modules import layer_of
from .observer import PHASES, PhaseMark
from .view import View, exact, extent, said_layers

TURN = {phase: k for k, phase in enumerate(PHASES)}  # of a phase in a training step


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
        of = {id(e): mark for events, row in zip(run.events, marks or ()) for e, mark in zip(events, row)}
        self.rows = _rows(run, of, step)
        self.total_calls, self.total_sent = _totals(self.rows, run.world_size)

    def by(self, *fields: str) -> dict[tuple, tuple[list[int], list[Fraction]]]:
        """Calls and bytes sent, per rank, added up over rows alike in these fields of CallRow: by("phase", "op")."""
        alike: dict[tuple, list[CallRow]] = defaultdict(list)
        for row in self.rows:
            alike[tuple(getattr(row, field) for field in fields)].append(row)
        return {key: _totals(rows, self.world_size) for key, rows in alike.items()}

    def sent(self, rank: int = 0, **only: str) -> Fraction:
        """Bytes that a rank sends in all rows with these values: sent(phase="backward"), sent(op="all_reduce SUM")."""
        return sum((r.sent[rank] for r in self.rows if all(getattr(r, k) == v for k, v in only.items())), Fraction())

    def __repr__(self) -> str:
        head = ("phase", "operation", "group", "layers", "calls", "bytes per call", "sent per rank")
        body, last, mixed = [], "", len({row.dtype for row in self.rows}) > 1
        for row in self.rows:
            phase, last = ("" if row.phase == last else row.phase), row.phase
            op, layers = f"{row.op} {row.dtype}" if mixed else row.op, said_layers(row.layers)
            body.append((phase, op, row.group, layers, extent(row.calls), extent(row.nbytes), extent(row.sent)))
        body.append(("total", "", "", "", extent(self.total_calls), "", extent(self.total_sent)))
        return align([head, *body], right=(4, 5, 6), rule=True)

    def draw(self) -> Picture:
        """A bar a row: the bytes that a rank sends, the busiest one where they differ."""
        lines = [
            (row.phase, f"{row.op}, {row.group}", said_layers(row.layers), extent(row.calls), [max(row.sent)])
            for row in self.rows
        ]
        title = f"calls of {self.name}"
        words = f"{extent(self.total_calls)} calls per rank, which sends {extent(self.total_sent)} B"
        return Picture([_bars(title, words, lines)], repr(self), f"Picture: {title}, by phase and operation")


class CallsComparison(View):
    """Two summaries side by side, a line for each phase, operation and group, or what else of CallRow `by` names.

    by=("op", "group"): where one makes in "update" what the other makes in "backward".
    .same: whether calls and bytes agree in every line.
    """

    def __init__(
        self,
        ours: Calls,
        theirs: Calls,
        names: Sequence[str] = ("by hand", "torch's"),
        by: Sequence[str] = ("phase", "op", "group"),
    ) -> None:
        self.names, self.by = names, by
        left, right = ours.by(*by), theirs.by(*by)
        none = _totals((), ours.world_size)
        every = sorted({**left, **right}, key=lambda key: TURN.get(key[0], -1))
        self.lines = [(key, *left.get(key, none), *right.get(key, none)) for key in every]
        self.totals = ours.total_calls, ours.total_sent, theirs.total_calls, theirs.total_sent
        self.verdicts = [_verdict(*numbers, names) for _, *numbers in self.lines]
        self.same = set(self.verdicts) <= {"same"}

    def __repr__(self) -> str:
        ours, theirs = self.names
        words = ("operation" if field == "op" else field for field in self.by)
        head = (*words, f"{ours}: calls", "sent per rank", f"{theirs}: calls", "sent per rank", "")
        body, last, k = [], None, len(self.by)
        for (key, *numbers), verdict in zip(self.lines, self.verdicts):
            first, last = "" if key[0] == last and self.by[0] == "phase" else key[0], key[0]
            body.append((first, *key[1:], *map(extent, numbers), verdict))
        body.append(("total", *[""] * (k - 1), *map(extent, self.totals), ""))
        return align([head, *body], right=range(k, k + 4), rule=True)

    def draw(self) -> Picture:
        lines = []
        for key, calls, sent, other, also in [*self.lines, (("total", ""), *self.totals)]:
            phase = key[0] if self.by[0] == "phase" or key[0] == "total" else ""
            what = ", ".join(key[1:] if phase else key)
            lines.append((phase, what, "", f"{extent(calls)} | {extent(other)}", [max(sent), max(also)]))
        title = f"{self.names[0]} and {self.names[1]}"
        words = "calls and bytes agree in every line" if self.same else "what a rank calls and sends"
        return Picture([_bars(title, words, lines, self.names)], repr(self), f"Picture: {title}, calls and bytes")


compare = CallsComparison


# --- rows ---------------------------------------------------------------------------------


def _rows(run: Run, marks: dict[int, PhaseMark], step: int | None) -> list[CallRow]:
    made: dict[tuple, dict[str, list[Event]]] = {}  # the fields of a row -> layer -> its calls
    for e in chain.from_iterable(run.events):
        mark = marks.get(id(e)) or PhaseMark("", "", 0)
        if step is None or mark.step == step:
            op = f"{e.op} {e.reduce_op}" if e.reduce_op else e.op
            key = (mark.phase, op, _group(e, run.world_size), dtype_name(e.dtype) if e.dtype else "")
            made.setdefault(key, defaultdict(list))[layer_of(mark.where)].append(e)
    bytes_sent = _sent_bytes(run)
    rows = []
    for key, layers in made.items():
        alike: dict[tuple, list[str]] = defaultdict(list)  # layers where the same happens share a row
        for layer, events in layers.items():
            calls, sent = [0] * run.world_size, [Fraction()] * run.world_size
            for e in events:
                calls[e.rank] += 1
                sent[e.rank] += bytes_sent[id(e)]
            sizes = [e.nbytes for e in events]
            alike[tuple(calls), tuple(sent), (min(sizes), max(sizes))].append(layer)
        for (calls, sent, sizes), names in alike.items():
            rows.append(CallRow(*key, sizes, names, [c * len(names) for c in calls], [b * len(names) for b in sent]))
    return sorted(rows, key=lambda row: TURN.get(row.phase, -1))


def _totals(rows: Iterable[CallRow], world_size: int) -> tuple[list[int], list[Fraction]]:
    """Calls and bytes sent of all these rows, per rank."""
    calls, sent = [0] * world_size, [Fraction()] * world_size
    for row in rows:
        calls = [a + b for a, b in zip(calls, row.calls)]
        sent = [a + b for a, b in zip(sent, row.sent)]
    return calls, sent


def _sent_bytes(run: Run) -> dict[int, Fraction]:
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


def _group(e: Event, world_size: int) -> str:
    """'4 ranks'; '2 ranks, 4 apart' on a mesh; for a message where the other end is, by the shorter way round."""
    if e.is_message:
        other, word = (e.src, "from") if e.op in RECEIVES else (e.dst, "to")
        if other is None:
            return "from anyone"
        step = other - e.rank
        step -= world_size * (1 if step > 0 else -1) * (2 * abs(step) > world_size)
        return f"{word} rank {'+' if step > 0 else '-'} {abs(step)}"
    size = f"{len(e.group)} rank{'s' * (len(e.group) > 1)}"
    gaps = {b - a for a, b in zip(e.group, e.group[1:])}
    return size if gaps <= {1} else f"{size}, {gaps.pop()} apart" if len(gaps) == 1 else f"{size}: {e.group}"


def _verdict(calls: list, sent: list, other: list, also: list, names: Sequence[str]) -> str:
    if not any(other):
        return f"only {names[0]}"
    if not any(calls):
        return f"only {names[1]}"
    if sent != also and any([*sent, *also]):
        return ""
    return "same" if calls == other else "same bytes"


# --- the drawing --------------------------------------------------------------------------

ROW, BAR = 21, 13  # pixels
TINTS = (INK, FAINT)
Bar = tuple[str, str, str, str, list[Fraction]]  # its phase, calls, layers and their number; bytes on each side


def _bars(title: str, words: str, lines: list[Bar], names: Sequence[str] = ()) -> Canvas:
    sketch = Canvas()
    y = heading(sketch, title, words) + 6
    lefts = [0.0]
    for head, *column in zip(("", "", "layers", "calls"), *(words for *words, _ in lines)):
        head *= any(column)
        sketch.text(lefts[-1], y, head, 11, SOFT, align="left")
        wide = max(text_width(word, 12) for word in (head, *column))
        lefts.append(lefts[-1] + wide + 16 * (wide > 0))
    left = lefts.pop()
    most = max((size for *_, sizes in lines for size in sizes), default=0) or 1
    room = WIDTH - left - text_width(f"{exact(most)} B, both", 11.5) - 12
    if names:
        entries = ((tint, f"{name}, bytes that a rank sends") for tint, name in zip(TINTS, names))
        legend(sketch, left, y, entries, pad=6, between=24)
    else:
        sketch.text(left, y, "bytes that a rank sends", 11, SOFT, align="left")
    y += 20
    before = None
    for phase, *labels, sizes in lines:
        shown = [(size, tint) for size, tint in zip(sizes, TINTS) if size]
        high, thick = (ROW, BAR) if len(shown) < 2 else (ROW + 8, 11)
        y += (high - ROW) / 2
        if before not in (None, phase):
            sketch.line([(0, y - high / 2 - 1), (WIDTH, y - high / 2 - 1)], TRAY, 1.5)
        for x, word, tint in zip(lefts, ("" if phase == before else phase, *labels), (SOFT, INK, SOFT, INK)):
            sketch.text(x, y, word, 12, tint, align="left")
        before = phase
        words = [f"{exact(size)} B" for size, _ in shown]
        if len(shown) == 2 and words[0] == words[1]:
            words = [f"{words[0]}, both", ""]
        for i, ((size, tint), said) in enumerate(zip(shown, words)):
            top = y - (thick + 1) * len(shown) / 2 + i * (thick + 1)
            wide = max(float(size / most) * room, 1.5)
            sketch.box(left, top, wide, thick, tint, radius=1.5)
            middle = y if said.endswith("both") else top + thick / 2
            sketch.text(left + wide + 6, middle, said, 11, SOFT, align="left")
        if not shown:
            sketch.text(left, y, "0 B", 11, SOFT, align="left")
        y += high / 2 + ROW / 2
    return sketch
