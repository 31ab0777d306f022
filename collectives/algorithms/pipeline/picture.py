"""A pipeline schedule in time: a lane per rank, a box per action, and below each lane the kept activations."""

from typing import Sequence

from ...draw.canvas import AMOUNT, INK, SERIES, SOFT, TRAY, WIDTH, Canvas, Picture, heading, ink_on, pale, text_width
from ...draw.labels import RankLabels, legend
from ...format import number
from .count import count
from .pipeline import Box, Costs, Pipeline, kept, plan

TINTS = {"F": SERIES[1], "B": SERIES[0], "I": SERIES[4], "W": SERIES[2]}
PALE = {kind: pale(tint) for kind, tint in TINTS.items()}  # of a rank's second stage, third, ...
WORDS = {"F": "forward", "B": "backward", "I": "backward, input half", "W": "weights' half"}
HATCH = "#dde1e5"
LANE, STAIR, GAP = 24, 26, 10  # pixels: a lane's height, the curve below it, to the next lane
NOTE = 78  # pixels at the right
STROKE = 7.0  # pixels from one of the hatching to the next
SMALLEST = 6.5  # of a number in a box


def draw_pipeline(s: Pipeline, costs: Costs = Costs()) -> Picture:
    """The picture of a pipeline schedule, to scale; hatched: the rank waits.  A second tone is a rank's second stage.

    A curve's full height is all microbatches, so that pictures with equally many can be compared.
    Where there is a deadlock, the picture ends at it.
    """
    lanes, stuck = plan(s, costs)
    if stuck:
        words = "; ".join(f"rank {w.rank} is at {w.action} and needs {w.needs}" for w in stuck[:3])
        subtitle = f"a deadlock: {words}"
    else:
        c = count(s, costs)
        most = max(c.peaks)
        subtitle = (
            f"bubble {c.of_work:.1%} of the work, {c.of_time:.1%} of the time; a rank keeps at most {number(most)} "
            f"microbatch{'es' * (most != 1)}"
        )
    until = max((lane[-1].end for lane in lanes if lane), default=1.0)
    sheet = _Sheet(s, subtitle, "Number: microbatch. Gray: activations kept.", until, NOTE)
    for rank, lane in enumerate(lanes):
        sheet.lane(rank, lane, until)
        sheet.stairs(lane, kept(s, rank)[: len(lane)], until)  # a deadlock ends a lane before its order does
        sheet.below += LANE + STAIR + GAP
    sheet.reach(WIDTH, sheet.below)
    return Picture([sheet], repr(s), f"Picture: {s.title}, in time")


def draw_beside(s: Pipeline, run, costs: Costs) -> Picture:
    """The plan, and below it a run of its program, to one scale, in seconds.

    run: its results are those returned by `program` on each rank.
    """
    planned, _ = plan(s, costs)
    origin = min(done.start for mine in run.results for done in mine)
    measured = [[Box(d.action, d.start - origin, d.end - origin) for d in mine] for mine in run.results]
    ends = [max(lane[-1].end for lane in lanes) for lanes in (planned, measured)]
    sheet = _Sheet(s, "Top: as planned. Bottom: as it ran. Same scale.", "number: microbatch", max(ends), 8)
    lines = [s.title]
    for what, lanes, end in zip(("planned", "ran"), (planned, measured), ends):
        words = f"{what}: {end * 1e3:.0f} ms"
        sheet.text(sheet.left, sheet.below + 4, words, 11.5, SOFT, align="left")
        lines.append(f"  {words}")
        sheet.below += 16
        for rank, lane in enumerate(lanes):
            sheet.lane(rank, lane, end)
            sheet.below += LANE + 4
        sheet.below += 10
    return Picture([sheet], "\n".join(lines), f"Picture: {s.title}, as planned and as it ran")


class _Sheet(Canvas):
    """Lanes to one scale, under a heading and a legend.

    .left: where time 0 is.  .scale: pixels a unit of time.  .below: where the next lane is.
    """

    def __init__(self, s: Pipeline, subtitle: str, note: str, until: float, margin: float) -> None:
        """until: when the last action ends.  margin: pixels to the right of it."""
        super().__init__()
        self.s, self.labels = s, RankLabels(range(s.ranks))
        self.left = self.labels.width + 14
        self.scale = (WIDTH - self.left - margin) / until
        y = heading(self, s.title, subtitle)
        kinds = [kind for kind in TINTS if any(a.kind == kind for a in s.place)]
        entries = [*((TINTS[kind], WORDS[kind]) for kind in kinds), (_hatched, "waits")]
        if (most := max(len(s.held(rank)) for rank in range(s.ranks))) > 1:
            entries.append((PALE[kinds[0]], "second stage" if most == 2 else "later stages"))
        x = legend(self, 0.0, y + 3.5, entries, sample=(14, 11), between=19)
        self.text(x, y + 3.5, note, 11, SOFT, align="left")
        self.below = y + 22

    def x(self, time: float) -> float:
        return self.left + time * self.scale

    def lane(self, rank: int, lane: Sequence[Box], until: float) -> None:
        y, stages = self.below, self.s.held(rank)
        self.labels.draw(self, self.left - 14, y + LANE / 2, rank)
        for begin, end in zip([0.0, *(box.end for box in lane)], [*(box.start for box in lane), until]):
            if (end - begin) * self.scale > 1:
                _hatched(self, self.x(begin), y, (end - begin) * self.scale, LANE)
        for box in lane:
            tint = (TINTS if box.action.stage == stages[0] else PALE)[box.action.kind]
            x, wide = self.x(box.start), (box.end - box.start) * self.scale
            self.box(x + 0.4, y, max(wide - 0.8, 0.6), LANE, tint, radius=1.5)
            words = str(box.action.microbatch)
            size = min(11.0, 11.0 * (wide - 2) / max(text_width(words, 11), 1))
            if size >= SMALLEST:
                self.text(x + wide / 2, y + LANE / 2, words, size, ink_on(tint))

    def stairs(self, lane: Sequence[Box], after: Sequence[float], until: float) -> None:
        """Activations kept: they appear when a forward begins, and go when a backward ends."""
        foot = self.below + LANE + 2 + STAIR
        changes = [
            (box.start if now > before else box.end, now)
            for box, before, now in zip(lane, [0, *after], after)
            if now != before
        ]
        for (start, held), (end, _) in zip(changes, [*changes[1:], (until, 0.0)]):
            if tall := held / self.s.microbatches * (STAIR - 4):
                self.box(self.x(start), foot - tall, (end - start) * self.scale, tall, AMOUNT, radius=0)
        self.line([(self.left, foot), (self.x(until), foot)], SOFT, 0.8)
        most = number(max(after, default=0))
        self.text(self.x(until) + 8, foot - 9, f"keeps {most}", 11.5, INK, align="left")


def _hatched(sketch: Canvas, x: float, y: float, wide: float, high: float) -> None:
    sketch.box(x, y, wide, high, TRAY, radius=0)
    at = x - high
    while at < x + wide:
        start, end = max(at, x), min(at + high, x + wide)
        if end > start:
            sketch.line([(start, y + high - (start - at)), (end, y + high - (end - at))], HATCH, 0.9, butt=True)
        at += STROKE
