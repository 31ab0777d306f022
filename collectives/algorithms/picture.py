"""Pictures of a schedule: the ranks' chunks between the steps, or the messages in time.

Rows are ranks.  chunk_grid.py draws the one, schedule_spacetime.py the other.
"""

import textwrap

from ..draw.canvas import INK, WIDTH, Canvas, Picture
from .chunk_grid import SIDE_BY_SIDE, grids
from .journey import journey
from .proof import WrongSchedule, follow
from .schedule import Schedule, title
from .schedule_spacetime import lanes
from .trees import draw_trees

MAX_RANKS, MAX_CHUNKS = 8, 16  # that a grid can show


def draw_schedule(s: Schedule, step: int | None = None, style: str | None = None) -> Picture:
    """The picture of a schedule.

    step: 1 ... number of steps: the ranks' chunks before it, and its messages; one more: the end.  None: all of it.
    style: "grid" shows every rank's part of every chunk, "lanes" the messages in time, "trees" which rank gets data
        from whom (ValueError if no tree does), "journey" all moments of the first chunk.  None: grid or lanes,
        whichever suits.
    A schedule that is wrong is drawn up to the step that cannot be done, with the reason.
    Raises ValueError for a step that is not there, or a grid too large to be read.
    """
    if style not in (None, "grid", "lanes", "trees", "journey"):
        raise ValueError(f'style is "grid", "lanes", "trees" or "journey", not {style!r}.')
    if step is not None and style in ("trees", "journey"):
        raise ValueError(f"{style} shows all steps at once: leave out step, or take style='grid'.")
    if step is not None and not 1 <= step <= len(s.steps) + 1:
        raise ValueError(f"there is no step {step}: this schedule has {len(s.steps)}, from 1; one more shows the end.")
    fits = s.world_size <= MAX_RANKS and s.chunks <= MAX_CHUNKS and not s.facts.personal
    if style == "grid" and not fits:
        raise ValueError(
            f"a grid shows at most {MAX_RANKS} ranks and {MAX_CHUNKS} chunks, and no all_to_all: take style='lanes'."
        )
    states, wrong = [s.initial()], None  # the chunks before the first step and after each that can be done
    try:
        for held in follow(s):
            states.append([dict(chunks) for chunks in held])
        s.prove()
    except WrongSchedule as why:
        wrong = why
    if style is None:
        few = s.world_size <= SIDE_BY_SIDE and s.chunks > 1
        style = "grid" if fits and (few or step is not None) else "lanes"
    text = s.table()
    if style == "grid":
        sketches = grids(s, states, step)
    elif style in ("trees", "journey"):
        sketches, told = draw_trees(s) if style == "trees" else journey(s, states)
        text += "\n" + told
    else:
        sketches = [lanes(s, states, range(len(s.steps)) if step is None else range(step - 1, min(step, len(s.steps))))]
    if wrong and (step is None or step == len(states)):
        text += f"\n✗ {wrong}"
        sketches.append(sketch := Canvas())
        sketch.reach(WIDTH - 1, 0)  # a line of its own
        for k, line in enumerate(textwrap.wrap(f"✗ {wrong}", 118)):
            sketch.text(0, 8 + 17 * k, line, 12.5, INK, align="left", bold=True)
    return Picture(sketches, text, f"Picture: {title(s)}" + f", step {step}" * (step is not None))
