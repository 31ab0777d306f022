"""The letter of a tensor over a group of ranks, read off the ranks' parts: R, S or P, and where letters must change.

letters([{"x": x_0, "dx": dx_0}, {"x": x_1, "dx": dx_1}], {"x": x, "dx": dx})

R, replicated: each rank has the whole tensor.  S(d), sharded: the ranks' parts, concatenated along dimension d,
are the tensor.  P, partial: their parts add up to it.  These are DTensor's placements.  Anything else has
the letter "?".  Where one tensor has two names and its letter changes, a collective must come between.
"""

from functools import partial
from typing import Mapping, NamedTuple, Sequence

import torch

from ..draw.canvas import INK, SOFT, TRAY, WIDTH, Canvas, Picture, heading, ink_on, pale, text_width
from ..draw.labels import RankLabels, legend
from ..draw.palette import LETTERS as TINTS
from ..format import align
from .layout import UNIT_BOX, Box
from .view import View

TOLERANCE = 1e-4  # of the largest number of the whole tensor
WORDS = {"R": "equal", "S": "shards", "P": "partial sums", "?": "none of these"}
COLLECTIVES = {"PR": "all_reduce", "PS": "reduce_scatter", "SR": "all_gather", "RS": "cut, no call"}


def letter(held: Sequence[torch.Tensor], whole: torch.Tensor) -> str:
    """'R', 'S(0)', 'S(1)', ..., 'P' or '?'.  held: what each rank has; whole: the tensor as one process has it."""
    if all(_equal(t, whole) for t in held):
        return "R"
    for d in range(whole.dim()):
        if all(t.dim() == whole.dim() and _but(t, d) == _but(whole, d) for t in held):
            if _equal(torch.cat(list(held), d), whole):
                return f"S({d})"
    if all(t.shape == whole.shape for t in held) and _equal(sum(t.double() for t in held), whole):
        return "P"
    return "?"


def _but(t: torch.Tensor, d: int) -> tuple[int, ...]:
    return tuple(n for k, n in enumerate(t.shape) if k != d)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape:
        return False
    scale = float(b.abs().max()) if b.numel() else 0.0
    return torch.allclose(a.double(), b.double(), rtol=0.0, atol=TOLERANCE * scale)


class LetterChange(NamedTuple):
    """A tensor under two names with different letters, and the collective that turns one into the other."""

    source: str
    target: str
    op: str


class Letters(View):
    """The letter of every tensor of `whole`: a picture of the ranks' parts, values above gradients, and a text twin.

    `letters(...)["dx"]` is a letter; .steps are the collectives that the letters require.

    held: per rank, its tensors by name; names that `whole` lacks are left out.
    whole: the tensors as one process has them, in the order of the forward pass.  "dx" is the gradient of "x".
    arrows: False where the tensors are not made one from the other.
    Raises KeyError where a rank lacks a tensor.
    """

    def __init__(
        self, held: Sequence[Mapping[str, torch.Tensor]], whole: Mapping[str, torch.Tensor], arrows: bool = True
    ) -> None:
        missing = [f"{name} on rank {r}" for name in whole for r, tensors in enumerate(held) if name not in tensors]
        if missing:
            raise KeyError(f"there is no {missing[0]}: a rank returns all tensors whose letters are asked for, by name")
        self.arrows, self.world_size = arrows, len(held)
        self.of = {name: letter([tensors[name].detach() for tensors in held], t.detach()) for name, t in whole.items()}
        self.names = [name for name in whole if not (name[:1] == "d" and name[1:] in whole)]
        self.backward = any(f"d{name}" in whole for name in self.names)
        self.boxes = {name: _boxes(self.of[name], [tensors[name].shape for tensors in held]) for name in whole}
        self.steps = self._steps(whole)

    def __getitem__(self, name: str) -> str:
        return self.of[name]

    def _steps(self, whole: Mapping[str, torch.Tensor]) -> list[LetterChange]:
        changes: list[LetterChange] = []
        for a, b in zip(self.names, self.names[1:]) if self.arrows else ():
            for source, target in ((a, b), (f"d{b}", f"d{a}")):  # a gradient goes the other way
                if source in whole and target in whole and _equal(whole[source].detach(), whole[target].detach()):
                    if op := COLLECTIVES.get(self.of[source][0] + self.of[target][0]):
                        changes.append(LetterChange(source, target, op))
        return changes

    def __repr__(self) -> str:
        rows = [("tensor", "letter", "", "gradient" * self.backward, "")]
        for name in self.names:
            value, gradient = self.of[name], self.of.get(f"d{name}", "")
            rows.append((name, value, WORDS[value[0]], gradient, WORDS[gradient[0]] if gradient else ""))
        return "\n".join([align(rows), *(f"{s.source} -> {s.target}: {s.op}" for s in self.steps)])

    def draw(self) -> Picture:
        sketch = Canvas()
        used = [k for k in WORDS if any(of[0] == k for of in self.of.values())]
        y = heading(sketch, "who has what", "a box is the whole tensor, one row per rank") + 4
        samples = {**dict.fromkeys(WORDS, UNIT_BOX), "S": (0.0, 0.25, 1.0, 0.5)}
        entries = ((partial(_cell, of=k, box=samples[k]), f"{k}, {WORDS[k]}") for k in used)
        legend(sketch, 0.0, y, entries, sample=(30, 16), pad=8, between=30, size=12)
        labels = RankLabels(range(self.world_size), 12.5)
        lefts = [labels.width + 14]
        gaps = [self._gap(a, b) for a, b in zip(self.names, self.names[1:])]
        wide = min(88.0, (WIDTH - lefts[0] - sum(gaps)) / len(self.names))
        high, pitch = (24, 29) if self.world_size <= 4 else (13, 16)
        for gap in gaps:
            lefts.append(lefts[-1] + wide + gap)
        y += 34
        for prefix, title in (("", "forward"), ("d", "backward")):
            at = {prefix + name: x for name, x in zip(self.names, lefts) if prefix + name in self.of}
            if not at:
                continue
            if self.backward:
                sketch.text(0, y, title, 11.5, SOFT, align="left")
            for name, x in at.items():
                sketch.text(x + wide / 2, y, name, 12.5, bold=True)
                sketch.text(x + wide / 2, y + 18, self.of[name], 11.5, bold=True)
            y += 32
            for rank in range(self.world_size):
                labels.draw(sketch, lefts[0] - 10, y + high / 2, rank)
                for name, x in at.items():
                    _cell(sketch, x, y, wide, high, self.of[name][0], self.boxes[name][rank])
                y += pitch
            if self.arrows:
                self._arrows(sketch, prefix, at, wide, y - pitch * self.world_size / 2 - (pitch - high) / 2)
            y += 20
        alt = "Picture: what each rank has of " + ", ".join(f"{name} ({of})" for name, of in self.of.items())
        return Picture([sketch], repr(self), alt)

    def _gap(self, a: str, b: str) -> float:
        ops = [s.op for s in self.steps if {s.source, s.target} in ({a, b}, {f"d{a}", f"d{b}"})]
        return max((text_width(op, 11, bold=True) + 26 for op in ops), default=22)

    def _arrows(self, sketch: Canvas, prefix: str, at: Mapping[str, float], wide: float, y: float) -> None:
        """Draw arrows from each tensor to the next, with the collective's name where one is needed."""
        for a, b in zip(self.names, self.names[1:]):
            a, b = prefix + a, prefix + b
            if a not in at or b not in at:
                continue
            ends = (at[a] + wide + 4, y), (at[b] - 4, y)
            start, end = ends[::-1] if prefix else ends
            op = next((s.op for s in self.steps if {s.source, s.target} == {a, b}), "")
            sketch.arrow(start, end, INK if op else SOFT, 2.2 if op else 1.2, head=7)
            if op:
                sketch.text((start[0] + end[0]) / 2, y - 11, op, 11, bold=True)


letters = Letters


def _boxes(of: str, shapes: Sequence[Sequence[int]]) -> list[Box]:
    """Each rank's part of a tensor with this letter; rows go down, other dimensions to the right."""
    if of[0] != "S":
        return [UNIT_BOX] * len(shapes)
    d = int(of[2:-1])
    sizes = [shape[d] for shape in shapes]
    spans = [(sum(sizes[:rank]) / sum(sizes), size / sum(sizes)) for rank, size in enumerate(sizes)]
    return [(start, 0.0, share, 1.0) if d else (0.0, start, 1.0, share) for start, share in spans]


def _cell(sketch: Canvas, x, y, w, h, of: str, box: Box) -> None:
    """The whole as a tray, and in it what the rank has."""
    sketch.box(x, y, w, h, TRAY, radius=0)
    mine = (x + box[0] * w, y + box[1] * h, box[2] * w, box[3] * h)
    if of == "?":
        sketch.box(*mine, None, INK, dashed=True, radius=0, lw=1.2)
        sketch.text(x + w / 2, y + h / 2, "?", 13, bold=True)
    elif of == "P":
        sketch.box(*mine, pale(TINTS[of]), TINTS[of], radius=0, lw=1.2)
        sketch.text(x + w / 2, y + h / 2, "+", 15, bold=True)
    elif box[2] and box[3]:
        sketch.box(*mine, TINTS[of], radius=0)
        if of == "R":
            sketch.text(x + w / 2, y + h / 2, "=", 13, ink_on(TINTS[of]), bold=True)
