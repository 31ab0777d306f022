"""A pipeline schedule in time: a lane a rank, a box an action, and below each lane what is kept."""

from typing import Sequence

from ...draw.canvas import AMOUNT, INK, SERIES, SOFT, TRAY, WIDTH, Canvas, Picture, heading, ink_on, pale, text_width
from ...draw.labels import RankLabels, legend
from ...format import number
from .count import count
from .model import Action, Box, Costs, Pipeline, kept, plan

TINTS = {"F": SERIES[1], "B": SERIES[0], "I": SERIES[4], "W": SERIES[2]}
PALE = {kind: pale(tint) for kind, tint in TINTS.items()}  # of a rank's second stage, third, ...
WORDS = {"F": "forward", "B": "backward", "I": "backward, input half", "W": "weights' half"}
HATCH = "#dde1e5"
LANE, STAIR, GAP = 24, 26, 10  # pixels: a lane's height, the curve below it, to the next lane
NOTE = 78  # pixels at the right
SMALLEST = 6.5  # of a number in a box


def draw_pipeline(s: Pipeline, costs: Costs = Costs()) -> Picture:
    """Boxes to scale; hatched: the rank waits.  A second colour tone is a rank's second stage.

    A curve as high as it can be is all microbatches, so that pictures of as many can be compared.
    Where there is a deadlock, the picture ends at it.
    """
    lanes, stuck = plan(s, costs)
    sketch = Canvas()
    if stuck:
        words = "; ".join(f"rank {w.rank} is at {w.action} and needs {w.needs}" for w in stuck[:3])
        subtitle = f"a deadlock: {words}"
    else:
        c = count(s, costs)
        subtitle = (
            f"bubble {c.of_work:.1%} of the work, {c.of_time:.1%} of the time; a rank keeps at most {number(max(c.peaks))} "
            f"microbatch{'es' * (max(c.peaks) != 1)}"
        )
    y = heading(sketch, s.title, subtitle)
    y = _legend(sketch, s, y, "number: microbatch; grey curve: activations kept")
    labels = RankLabels(range(s.ranks))
    left = labels.width + 14
    until = max((lane[-1].end for lane in lanes if lane), default=1.0)
    scale = (WIDTH - left - NOTE) / until
    for rank, lane in enumerate(lanes):
        labels.draw(sketch, left - 14, y + LANE / 2, rank)
        _lane(sketch, s, rank, lane, left, scale, y, until)
        _stairs(sketch, lane, kept(s, rank), s.microbatches, left, scale, y + LANE + 2, until)
        y += LANE + STAIR + GAP
    sketch.reach(WIDTH, y)
    return Picture([sketch], repr(s), f"Picture: {s.title}, in time")


def draw_beside(s: Pipeline, run, costs: Costs) -> Picture:
    """The plan, and below it what a run of its program did, to one scale, in seconds.

    run: its results are what `program` returned on each rank.
    """
    planned, _ = plan(s, costs)
    origin = min(done.start for mine in run.results for done in mine)
    measured = [[Box(d.action, d.start - origin, d.end - origin) for d in mine] for mine in run.results]
    until = max(lane[-1].end for lanes in (planned, measured) for lane in lanes)
    sketch = Canvas()
    labels = RankLabels(range(s.ranks))
    left = labels.width + 14
    scale = (WIDTH - left - 8) / until
    y = heading(sketch, s.title, "above as drawn, below as it ran, to one scale")
    y = _legend(sketch, s, y, "number: microbatch")
    lines = [s.title]
    for what, lanes in (("planned", planned), ("ran", measured)):
        end = max(lane[-1].end for lane in lanes)
        words = f"{what}: {end * 1e3:.0f} ms"
        sketch.text(left, y + 4, words, 11.5, SOFT, align="left")
        lines.append(f"  {words}")
        y += 16
        for rank, lane in enumerate(lanes):
            labels.draw(sketch, left - 14, y + LANE / 2, rank)
            _lane(sketch, s, rank, lane, left, scale, y, end)
            y += LANE + 4
        y += 10
    return Picture([sketch], "\n".join(lines), f"Picture: {s.title}, as planned and as it ran")


def _legend(sketch: Canvas, s: Pipeline, y: float, also: str) -> float:
    kinds = [kind for kind in TINTS if any(a.kind == kind for a in s.place)]
    entries = [*((TINTS[kind], WORDS[kind]) for kind in kinds), (_hatched, "waits")]
    x = legend(sketch, 0.0, y + 3.5, entries, sample=(14, 11), between=19)
    sketch.text(x, y + 3.5, also, 11, SOFT, align="left")
    return y + 22


def _lane(sketch: Canvas, s: Pipeline, rank: int, lane: Sequence[Box], left, scale, y, until) -> None:
    at, stages = 0.0, s.held(rank)
    for box in [*lane, Box(Action(0, "F", 0), until, until)]:
        if (box.start - at) * scale > 1:
            _hatched(sketch, left + at * scale, y, (box.start - at) * scale, LANE)
        at = box.end
    for box in lane:
        tint = (TINTS if box.action.stage == stages[0] else PALE)[box.action.kind]
        x, wide = left + box.start * scale, (box.end - box.start) * scale
        sketch.box(x + 0.4, y, max(wide - 0.8, 0.6), LANE, tint, radius=1.5)
        words = str(box.action.microbatch)
        size = min(11.0, 11.0 * (wide - 2) / max(text_width(words, 11), 1))
        if size >= SMALLEST:
            sketch.text(x + wide / 2, y + LANE / 2, words, size, ink_on(tint))


def _hatched(sketch: Canvas, x: float, y: float, wide: float, high: float) -> None:
    sketch.box(x, y, wide, high, TRAY, radius=0)
    step = 7.0
    at = x - high
    while at < x + wide:
        start, end = max(at, x), min(at + high, x + wide)
        if end > start:
            sketch.line([(start, y + high - (start - at)), (end, y + high - (end - at))], HATCH, 0.9, butt=True)
        at += step


def _stairs(sketch: Canvas, lane: Sequence[Box], after: Sequence[float], highest, left, scale, y, until) -> None:
    """Activations kept: they appear when a forward begins, and go when a backward ends."""
    foot, before = y + STAIR, 0.0
    changes = []
    for box, now in zip(lane, after):
        if now != before:
            changes.append((box.start if now > before else box.end, now))
        before = now
    for (start, held), (end, _) in zip(changes, [*changes[1:], (until, 0.0)]):
        tall = held / highest * (STAIR - 4)
        if tall:
            sketch.box(left + start * scale, foot - tall, (end - start) * scale, tall, AMOUNT, radius=0)
    sketch.line([(left, foot), (left + until * scale, foot)], SOFT, 0.8)
    sketch.text(left + until * scale + 8, foot - 9, f"keeps {number(max(after, default=0))}", 11.5, INK, align="left")
