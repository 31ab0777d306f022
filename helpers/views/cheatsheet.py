"""Every collective on one page, from real runs:   python -m helpers.views.cheatsheet PICTURE.png [ranks]

Next to the PNG it writes an SVG, and a PDF to print. The cells were captured in a run with one number per chunk; the bytes were
counted in a second run, by the ranks' sockets, with a buffer large enough that gloo's headers vanish.
"""

import sys
from itertools import zip_longest
from pathlib import Path
from typing import Callable

import torch
import torch.distributed as dist

from collectives.draw.canvas import FAINT, REDUCED, SOFT, TRAY, Canvas, Picture, colour, heading, text_width
from collectives.draw.cells import JOINT, Grid, Style, Tray
from collectives.draw.flow import flow
from collectives.draw.paper import pdf
from collectives.format import align, wrap
from collectives.launch.run import run
from collectives.log import provenance
from collectives.log.calls import Call
from collectives.log.collectives import COLLECTIVES, Collective
from collectives.log.provenance import Slot
from collectives.log.text import rank_mark

COUNTED_NUMBERS = 840 * 300  # numbers in the buffer whose bytes are counted; divides by 2 to 8


def cheatsheet(world_size: int = 4) -> Picture:
    """The picture of every collective, from runs on `world_size` ranks; its `.text` has the same in words.

    world_size: 2 to 8.  Raises ValueError for others: their colors could not be distinguished.
    """
    if world_size not in range(2, 9):
        raise ValueError(f"the cheat sheet is for 2 to 8 ranks, not {world_size}")
    page, full = Canvas(), f"the full buffer of {world_size} chunks"
    legend = [
        f"Real runs on {world_size} ranks. A color is the rank that data came from, a letter the chunk; "
        "Σ sums over all ranks; ★ is the root.",
        f"Bytes: counted on gloo, in units of S, {full}. Its reduce_scatter is an all_reduce; NCCL's sends half.",
        "all_gather, reduce_scatter and all_to_all also come without _single, with a list of tensors for the chunks.",
    ]
    texts = ["\n".join(["Collectives", *map(wrap, legend)]).replace("★", "*")]
    y = heading(page, "Collectives")
    for i, words in enumerate(legend):
        page.text(0, y + 4 + i * LINE, words, 11.5, SOFT, align="left")
    for entry in COLLECTIVES.values():
        seen = run(_call(entry, world_size), world_size=world_size)
        counted = run(_call(entry, COUNTED_NUMBERS), world_size=world_size)
        notes = [("before", entry.needs), ("after", entry.leaves), ("sent", _shares(counted.sent))]
        notes += [("received", _shares(counted.received)), ("used for", entry.use)]  # label, and words
        _panel(page, entry, seen.calls[0], notes)
        texts.append(_text(entry, seen.calls[0], notes))
    return Picture([page], "\n\n".join(texts), f"Cheat sheet: every collective on {world_size} ranks")


def _call(entry: Collective, numbers: int) -> Callable[[], None]:
    """A program of one call, from rank 0 or to it; rank r's full buffer: `numbers` float32, from r * numbers up."""
    code, of_own = "\n".join(entry.code), entry.gives == "own"

    def program() -> None:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        full = torch.arange(float(numbers)) + numbers * rank
        x = full.chunk(world_size)[rank] if of_own else full
        filled = code.format(root=0, reduce_op="SUM", dtype="float32", size=numbers // world_size)
        exec(filled, {"torch": torch, "dist": dist, "rank": rank, "world_size": world_size, "x": x})

    return program


def _shares(counted: list[int | None]) -> str:
    """Bytes of every rank, as shares of the buffer where they are more than headers."""
    if None in counted:
        return "not counted on this system"
    full = COUNTED_NUMBERS * torch.float32.itemsize
    if max(counted) < full / 100:
        return " ".join(map(str, counted)) + "  bytes"
    return " ".join(f"{nbytes / full:.2f}" for nbytes in counted) + "  S"


# --- in words -----------------------------------------------------------------------------


def _text(entry: Collective, call: Call, notes: list[tuple[str, str]]) -> str:
    rows = []
    if entry.gives:
        for e, before, after in zip(call, *_chunked(call)):
            rows.append(f"{rank_mark(e):<2} {_letters(before, call)} -> {_letters(after, call)}")
    lines = align(zip_longest(rows, align(notes, gap=" ", least=(9,)).splitlines(), fillvalue=""), indent="  ", gap="   ")
    return f"{entry.op}   {entry.signature}\n{lines}"


def _letters(row: list[Slot], call: Call) -> str:
    words = {slot.column: "." if slot.kind == "buffer" else slot.letter for slot in row}
    return " ".join(f"{words.get(column, ''):<2}" for column in range(len(call.group)))


# --- drawn --------------------------------------------------------------------------------

CELL, LINE, ROOM = 19, 18, 84  # pixels: height of a cell, of a line of text, width between before and after


def _chunked(call: Call) -> tuple[list[list[Slot]], list[list[Slot]]]:
    """Every rank's slots before and after, a slot for every chunk."""
    n = len(call.group)
    return tuple([[part for slot in row for part in _cut(slot, n)] for row in rows] for rows in provenance.read(call))


def _cut(slot: Slot, n: int) -> list[Slot]:
    """A whole tensor as its chunks; a chunk is returned unchanged."""
    if slot.value.numel() < n:
        return [slot._replace(value=None) if slot.kind == "buffer" else slot]
    sign = provenance.SIGNS["SUM"] if slot.kind == "reduced" else ""
    return [
        slot._replace(
            column=c,
            value=None if slot.kind == "buffer" else part,
            letter="?" if slot.kind == "undefined" else sign + provenance.letter(c, slot.origin),
            joined=c > 0,
        )
        for c, part in enumerate(slot.value.chunk(n))
    ]


def _panel(page: Canvas, entry: Collective, call: Call, notes: list[tuple[str, str]]) -> None:
    """Draw one collective at the page's bottom: left the cells before and after, right the words."""
    n = len(call.group)
    style = Style("letters", 12, True, 3, 24) if n < 6 else Style("letters", 11, True, 2, 18)
    step = style.least + JOINT
    left, width = 40, n * step - JOINT
    right = left + width + ROOM
    beside = right + width + 30
    y = page.height + 12
    page.line([(0, y), (beside + 430, y)], TRAY, 1.5)
    y += 16
    page.text(0, y, entry.op, 15, align="left", bold=True, mono=True)
    tops = [y + 18 + i * (CELL + (6 if n < 6 else 4)) for i in range(n)]
    middles = [top + CELL / 2 for top in tops]
    for e, middle in zip(call, middles):
        root = e.rank == e.root
        page.text(left - 9, middle, f"{e.rank}{' ★' * root}", 12, align="right", bold=root)
    if not entry.gives:
        _meet(page, left, right + width, middles)
    else:
        before, after = _chunked(call)
        grid = Grid(call, before, after, style)
        grid.line = grid.high = CELL
        grid.lefts, grid.width = [column * step for column in range(n)], width  # lists no wider than tensors
        for x, rows in ((left, grid.before), (right, grid.after)):
            for top, row in zip(tops, rows):
                grid.draw_row(page, x, top, row, Tray(3, 2, 4))
        flow(page, call, grid, left, left + width + 6, right - 6, middles)
    page.text(beside, y, entry.signature, 11.5, align="left", mono=True)
    column = beside + max(text_width(label, 12) for label, _ in notes) + 12
    for i, (label, words) in enumerate(notes):
        page.text(beside, y + 23 + i * LINE, label, 12, SOFT, align="left")
        page.text(column, y + 23 + i * LINE, words, 12, align="left", mono=label in ("sent", "received"))


def _meet(page: Canvas, x0: float, x1: float, ys: list[float]) -> None:
    """Draw ranks that arrive one after the other and leave together."""
    middle = (x0 + x1) / 2
    for i, y in enumerate(ys):
        arrival = x0 + (middle - 20 - x0) * (i * 5 % len(ys) + 1) / len(ys)
        page.line([(x0, y), (arrival, y)], colour(i), 4)
        page.line([(arrival + 6, y), (middle - 8, y)], FAINT, 1.5, dashed=True)
        page.line([(middle + 8, y), (x1, y)], colour(i), 4)
    page.line([(middle, ys[0] - 10), (middle, ys[-1] + 10)], REDUCED, 5)


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2):
        print(__doc__.splitlines()[0], file=sys.stderr)
        return 2
    page = cheatsheet(*map(int, arguments[1:]))
    for suffix, content in ((".png", page.png()), (".svg", page.svg().encode()), (".pdf", pdf(page))):
        Path(arguments[0]).with_suffix(suffix).write_bytes(content)
    print(page.text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
