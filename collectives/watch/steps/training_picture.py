"""The picture of training steps: each rank's time in them, each one's length, and the rank that held up the others."""

from ...draw.canvas import AMOUNT, FAINT, GRID, INK, SOFT, WIDTH, Canvas, Picture, colour, heading, text_width
from ...draw.labels import RankLabels, legend
from ...format import duration
from .step_times import RankStep, StepTimes, TrainingStep
from .timeline import PARTS, dashed
from .training_words import straggler, usual

RANKS = 16  # rows: the ranks that the others waited for longest
COLUMNS = 120  # of more steps, several share a column, which shows the slowest of them
HIGH = 120  # pixels of the slowest step


def draw_steps(steps: StepTimes) -> Picture:
    """A bar for each rank, of its steps on average, and a column for each step, of its ranks on average.

    Raises ValueError if there is no step.
    """
    if not steps:
        raise ValueError(f"{steps.run.name} has no training steps to draw.")
    count = f"{len(steps):,} training step{'s' * (len(steps) > 1)}"
    alt = f"Picture: {count} of {steps.run.name}, {steps.run.world_size} ranks"
    return Picture([_ranks(steps, count), _columns(steps)], repr(steps), alt)


def _ranks(steps: StepTimes, count: str) -> Canvas:
    sketch, told = Canvas(), usual(steps)
    parts = {rank: part for rank, part in steps.by("rank").items() if any(rank in step.ranks for step in told)}
    first, *rest = straggler(steps).split("\n")
    y = heading(sketch, f"{count} of {steps.run.name}", " ".join([first, *rest]), "by rank: an average step") + 4
    shown = sorted(sorted(parts, key=lambda rank: -parts[rank].caused)[:RANKS])
    labels = RankLabels(shown)
    left = labels.width + 14
    legend(sketch, left, y, PARTS, sample=(18, 12), pad=6, between=22)
    sketch.text(WIDTH, y, "others waited for it", 11, SOFT, align="right")
    y += 26
    means = {rank: _mean([step.ranks[rank] for step in told if rank in step.ranks]) for rank in shown}
    room = WIDTH - left - text_width("others waited for it", 11) - 24
    scale = room / max(max(sum(times[:3]) for times in means.values()), 1e-9)
    worst = max(means, key=lambda rank: means[rank][3])
    for rank in shown:
        labels.draw(sketch, left - 14, y, rank)
        x = left
        for seconds, tint in zip(means[rank], (AMOUNT, None, colour(rank))):
            place = x, y - 9, seconds * scale, 18
            if seconds * scale >= 0.5:
                sketch.tiles([place], tint) if tint else dashed(sketch, *place)
            x += seconds * scale
        sketch.text(WIDTH, y, duration(means[rank][3]), 11, align="right", bold=rank == worst)
        y += 26
    if len(shown) < len(parts):
        sketch.text(
            left, y, f"and {len(parts) - len(shown):,} ranks that the others waited for less", 11, SOFT, align="left"
        )
        y += 20
    sketch.reach(WIDTH - 1, y)
    return sketch


def _mean(steps: list[RankStep]) -> tuple[float, float, float, float]:
    """Seconds worked, waited, moved and caused."""
    times = zip(*((step.worked, step.waited, step.moved, step.caused) for step in steps))
    return tuple(sum(each) / len(steps) for each in times)


def _columns(steps: StepTimes) -> Canvas:
    """Each step as the mean of its ranks, and below it the color of the rank that the others waited for longest."""
    sketch = Canvas()
    each = -(-len(steps) // COLUMNS)
    columns = [max(steps[k : k + each], key=lambda step: step.seconds) for k in range(0, len(steps), each)]
    words = (
        "every step, its ranks on average"
        if each == 1
        else f"the slowest of every {each:,} steps, its ranks on average"
    )
    sketch.text(0, 8, words, 12, align="left", bold=True)
    slowest = max(sum(_of_ranks(step)) for step in columns) or 1e-9
    left, top = text_width(duration(slowest), 10.5) + 10, 30
    wide = (WIDTH - left) / len(columns)
    foot = top + HIGH
    for share in (0, 0.5, 1):
        y = foot - HIGH * share
        sketch.line([(left, y), (WIDTH, y)], GRID, 1)
        sketch.text(left - 8, y, duration(slowest * share) if share else "0", 10.5, SOFT, align="right")
    thick = min(wide * 0.8, 40)
    for k, step in enumerate(columns):
        x, y = left + (k + 0.5) * wide - thick / 2, foot
        for seconds, tint in zip(_of_ranks(step), (AMOUNT, None, SOFT)):
            high = HIGH * seconds / slowest
            if high >= 0.5 and tint:
                sketch.tiles([(x, y - high, thick, high)], tint)
            elif high >= 1:
                sketch.box(x, y - high, thick, high, "#ffffff", FAINT, dashed=thick > 6, radius=0)
            y -= high
        if step.late is not None:
            sketch.tiles([(x, foot + 4, thick, 7)], colour(step.late))
    apart = -(-60 // max(1, int(wide)))
    for k in range(0, len(columns), apart):
        sketch.text(left + (k + 0.5) * wide, foot + 22, f"{columns[k].number:,}", 10.5, SOFT)
    y = foot + 42
    late = sorted({step.late for step in columns if step.late is not None})
    if late:
        sketch.text(0, y, "the others waited longest for", 11, INK, align="left")
        entries = [(colour(rank), f"rank {rank}") for rank in late[:8]]
        legend(sketch, text_width("the others waited longest for", 11) + 14, y, entries, pad=6, between=22)
    sketch.reach(WIDTH - 1, y + 10)
    return sketch


def _of_ranks(step: TrainingStep) -> tuple[float, float, float]:
    """Seconds worked, waited and moved by its ranks on average."""
    return _mean(list(step.ranks.values()))[:3]
