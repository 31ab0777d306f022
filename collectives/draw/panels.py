"""The picture of some calls of a run, a panel each: a collective, a barrier, or messages in time."""

from itertools import chain, groupby
from typing import Sequence

from ..format import span
from ..log import provenance
from ..log.calls import Call
from ..log.collectives import shapes
from ..log.text import NO_LETTERS, block_table, block_tables, call_letters, call_title, column_names, status
from .barrier import barrier
from .canvas import SOFT, WIDTH, Area, Canvas, Picture, heading
from .cells import NEVER_CALLED, STYLES, Grid, Tray
from .flow import caption, chunked, flow, flow_width
from .labels import RankLabels, column_name
from .spacetime import space_time


def draw_calls(shown: list[list[Call]], calls: Sequence[Call] = (), letters: bool = False) -> Picture:
    """The picture of blocks of calls (see log/calls.py): a panel each; consecutive calls that are alike share one.

    calls: all calls of the run, by which each panel numbers its own; no numbers if the run has only one.
    letters: as Run.draw has it.
    """
    if not shown:
        nothing, words = Canvas(), "no communication"
        nothing.text(0, 10, words, tint=SOFT, align="left")
        return Picture([nothing], words, f"Picture: {words}")
    places = {id(call.events[0]): k for k, call in enumerate(calls, 1)} if len(calls) > 1 else {}
    alike = [list(blocks) for _, blocks in groupby(shown, _sameness)]
    sketches, alts = zip(*(panel(blocks[0], _numbers(blocks, places), letters) for blocks in alike))
    return Picture(sketches, block_tables(shown, letters), "Picture: " + "; ".join(alts))


def _sameness(block: list[Call]) -> object:
    """Equal for calls whose panels would be: the same call, with the same numbers, from the same line."""
    return id(block) if block[0].is_message else (block_table(block), _line(block))


def _line(calls: list[Call]) -> str:
    """The line from which all ranks made these calls: 'train, line 10'; '' if it differs, or is not known."""
    lines = {str(e.line) if e.line else "" for call in calls for e in call}
    return lines.pop() if len(lines) == 1 else ""


def _numbers(blocks: list[list[Call]], places: dict[int, int]) -> str:
    """The numbers: 'call 1 of 2 · train, line 10'; 'calls 1-3 of 3, alike · train, line 10'; '' if all are shown."""
    calls = list(chain.from_iterable(blocks))
    if not places or len(blocks) == 1 and len(calls) == len(places):
        return ""
    said = f"call{'s' * (len(calls) > 1)} {span([places[id(call.events[0])] for call in calls])} of {len(places)}"
    return " · ".join(filter(None, [said + ", alike" * (len(blocks) > 1), _line(calls)]))


def panel(block: list[Call], which: str = "", letters: bool = False) -> tuple[Canvas, str]:
    """The picture of one block, and its description in a few words.  which: as returned by `_numbers`."""
    call = block[0]
    if call.is_message:
        return space_time(block, which=which)
    if shapes(call.op) == (None, None):
        return barrier(call, which), f"{call.op}, ranks {span(call.group)}"
    of = call_letters(call) if letters else NO_LETTERS
    words = f"{call.events[0].how}, ranks {span(call.group)}, {' and '.join(column_names(of))}"
    return collective(call, which, of), words


def collective(call: Call, which: str = "", letters: tuple[str, str] = NO_LETTERS) -> Canvas:
    """Every rank's values before and after, side by side, with lines between them for where the data went.

    Rows are ranks, columns are slots, and both keep their place from before to after.  The
    color of a cell is the rank its data came from; a dark cell combines every rank.
    """
    made = {e.rank: i for i, e in enumerate(call)}
    ranks = call.group
    between = flow_width(call)
    labels = RankLabels(ranks, roots=(e.root for e in call))
    before, after = provenance.read(call)
    for style in STYLES:
        grid = Grid(call, before, after, style)
        if labels.width + 2 * grid.width + between + 40 <= WIDTH:
            break
    sketch = Canvas()
    title, _, rest = call_title(call).partition(", ")
    y = heading(sketch, title if provenance.agree(call) else "ranks disagree", rest, which)
    head = Area(0, 0, sketch.width, y)
    left = labels.width + 18  # of the cells before
    right = left + grid.width + between
    for x, word, letter in zip((left, right), ("before", "after"), letters):
        column_name(sketch, x + grid.width / 2, y + 5, word, letter)
    y += 22
    pitch = grid.high + (8 if grid.high < 20 else 16) + chunked(call) * 2 * min(len(ranks), 8)
    tops = [y + i * pitch for i in range(len(ranks))]
    for rank, top in zip(ranks, tops):
        middle = top + grid.high / 2
        labels.draw(sketch, labels.width, middle, rank, stripe=grid.high)
        held, got = (grid.before[made[rank]], grid.after[made[rank]]) if rank in made else ([], [])
        grid.draw_row(sketch, left, top, held, Tray())
        grid.draw_row(sketch, right, top, got, Tray())
        if rank not in made:
            sketch.text(left + grid.width / 2, middle, NEVER_CALLED, 12, SOFT)
        elif words := status(call.events[made[rank]]):
            x, align = (right + grid.width + 14, "left") if got else (right + grid.width / 2, "center")
            sketch.text(x, middle, words, 12, SOFT, align=align)
    flow(sketch, call, grid, left, left + grid.width + 8, right - 8, [top + grid.high / 2 for top in tops])
    sketch.reach(0, tops[-1] + grid.high + 4)
    cut, end = right - 6, sketch.height
    names, before = Area(0, y - 22, left - 8, end - y + 22), Area(0, y - 22, cut, end - y + 22)
    sketch.narrow = [[head], [before], [names, before._replace(x=cut, width=sketch.width - cut)]]
    caption(sketch, call, grid, left - 4)
    return sketch
