"""Drawings of a run's foundations: how ranks find each other, which rank is where, one tensor in shards.

A notebook shows each with the same in words.
"""

from itertools import combinations, product
from typing import Sequence

import torch

from collectives.draw.canvas import FAINT, INK, SOFT, TRAY, WIDTH, Canvas, Picture, colour, heading, text_width
from collectives.draw.labels import RankLabels, rank_label
from collectives.format import align, brief, span
from collectives.frontend import Shown


def _show(sketches: list[Canvas], lines: list[str], title: str) -> Shown:
    words = "\n".join(line.rstrip() for line in lines)
    return Shown(Picture(sketches, words, f"Picture: {title}"), words)


# --- node x local rank --------------------------------------------------------------------


def nodes(count: int = 2, per_node: int = 4, dims: tuple[str, str] | None = None) -> Shown:
    """The grid of node and local rank, with the rank of each process.

    count: number of nodes.  per_node: processes of a node, its local world size (a GPU each).
    dims: names of a device mesh's two dimensions to mark, as ("dp", "tp"): over the nodes, and over the processes of one.
    Raises ValueError for less than one, or for more than 64 ranks.
    """
    if count < 1 or per_node < 1 or count * per_node > 64:
        raise ValueError(f"1 to 64 ranks can be drawn, not {count} nodes of {per_node}")
    sketch = Canvas()
    y = heading(sketch, f"{count * per_node} ranks on {count} nodes", "rank = node x local world size + local rank") + 8
    wide, high, left = min(92.0, (WIDTH - 130) / per_node - 10), 40.0, 104.0
    for k in range(per_node):
        sketch.text(left + k * (wide + 10) + wide / 2, y, f"local rank {k}" if wide > 70 else f"{k}", 11.5, SOFT)
    y += 20
    inner_wide = per_node * (wide + 10) - 10
    for node in range(count):
        top = y + node * (high + 34)
        sketch.box(left - 12, top - 10, inner_wide + 24, high + 20, "#f7f8f9", FAINT, radius=6)
        sketch.text(left - 24, top + high / 2, f"node {node}", 13, align="right")
        for k in range(per_node):
            rank = node * per_node + k
            x = left + k * (wide + 10)
            words = rank_label(rank) if wide > 52 else str(rank)
            sketch.boxed(x, top, wide, high, words, 13, colour(rank), radius=4)
    foot = y + count * (high + 34) - 14
    if dims:
        right = left + inner_wide + 30
        down, across = ((right, y), (right, foot - 14)), ((left, foot + 8), (left + inner_wide, foot + 8))
        for start, end in (down, down[::-1], across, across[::-1]):
            sketch.arrow(start, end, INK, 1.6)
        sketch.text(right + 10, (y + foot - 14) / 2, f"{dims[0]}: between nodes", 12, align="left")
        sketch.text(left + inner_wide / 2, foot + 24, f"{dims[1]}: inside a node", 12)
    cells = [("node ", *(f"local {k}" for k in range(per_node)))]
    cells += [(str(n), *(f"rank {n * per_node + k:<2}" for k in range(per_node))) for n in range(count)]
    rows = [align(cells)]
    ranks = torch.arange(count * per_node).reshape(count, per_node)
    for dim, groups in zip(dims or (), (ranks.T, ranks)):
        rows.append(f"{dim}: " + "; ".join(f"ranks {span(group)}" for group in groups.tolist()))
    return _show([sketch], rows, f"{count * per_node} ranks on {count} nodes")


# --- rendezvous ---------------------------------------------------------------------------

STAGES = (
    ("1  every rank knows one address", "and its own rank, and how many there are"),
    ("2  notes on rank 0's board", "each leaves its own address, reads the others'"),
    ("3  connections between the ranks", "data travels here, not via the board"),
)


def rendezvous(world_size: int = 4) -> Shown:
    """The picture of how ranks that know one address find each other: three stages side by side.

    world_size: 2 to 8.  Raises ValueError for others.
    """
    if world_size not in range(2, 9):
        raise ValueError(f"the meeting is drawn for 2 to 8 ranks, not {world_size}")
    sketches = [_stage(k, world_size) for k in range(3)]
    text = [
        f"1  each of {world_size} ranks knows MASTER_ADDR:MASTER_PORT, its RANK and WORLD_SIZE",
        "2  rank 0 keeps a store there; each rank writes its own address into it and reads the others'",
        f"3  {world_size * (world_size - 1) // 2} connections, one for each pair of ranks (gloo; NCCL connects those that its algorithms need)",
    ]
    return _show(sketches, text, f"{world_size} ranks meet at an address, in three stages")


def _stage(k: int, n: int) -> Canvas:
    sketch = Canvas()
    sketch.text(0, 8, STAGES[k][0], 13, align="left", bold=True)
    sketch.text(0, 26, STAGES[k][1], 10.5, SOFT, align="left")
    pitch, top, x = 150 / max(3, n - 1), 62, 6
    ys = [top + pitch * rank for rank in range(n)]
    if k == 2:
        for a, b in combinations(range(n), 2):
            depth = 26 * (b - a)
            sketch.bow(x + 62, ys[a], ys[b], depth * 0.75, SOFT, 1.6, head=0.1)
            sketch.reach(x + 62 + depth, ys[b])
    else:
        left, above = x + 128, top - 14  # of the board
        sketch.box(left, above, 112, 22 + 20 * n if k else 46, TRAY, INK if k else SOFT, dashed=not k, radius=4)
        for i, words in enumerate(("the store",) if k else ("MASTER_ADDR", ":MASTER_PORT")):
            sketch.text(left + 56, above + 13 + 17 * i, words, 10.5, INK, mono=not k, bold=bool(k))
        for rank in range(n):
            middle = above + (31 + 20 * rank if k else 24)
            sketch.arrow((x + 66, ys[rank]), (left - 2, middle), colour(rank), 1.8, dashed=not k, head=8)
            if k:
                sketch.boxed(left + 8, middle - 8, 96, 16, f"{rank_label(rank)} is at …", 10, colour(rank), radius=2)
    high = min(26, pitch - 4)
    for rank in range(n):
        sketch.boxed(x, ys[rank] - high / 2, 62, high, rank_label(rank), 12, colour(rank), radius=4)
    return sketch


# --- one tensor in shards -----------------------------------------------------------------

SHOWN_ROWS, SHOWN_COLUMNS = 16, 12


def global_tensor(shards: Sequence[torch.Tensor], dim: int = 0, name: str = "x") -> Shown:
    """Shards as the one tensor that they are: each rank's part, and its place in the whole.

    shards: of rank 0, 1, ...; one or two dimensions, alike but along `dim`.  dim: along which they are cut.
    Raises ValueError for shards that do not fit together, or more than 16 x 12 numbers.
    """
    try:
        whole = torch.cat(list(shards), dim)
    except (RuntimeError, TypeError, IndexError) as error:
        raise ValueError(f"these are not shards of one tensor along dimension {dim}: {error}") from None
    grid = whole.reshape(1, -1) if whole.dim() == 1 else whole
    cut = dim % whole.dim()
    along = cut + (whole.dim() == 1)  # 0: rows are cut, 1: columns
    if whole.dim() > 2 or grid.shape[0] > SHOWN_ROWS or grid.shape[1] > SHOWN_COLUMNS:
        raise ValueError(f"at most {SHOWN_ROWS} x {SHOWN_COLUMNS} numbers in two dimensions can be drawn, not {list(whole.shape)}")  # fmt: skip
    owner = [rank for rank, shard in enumerate(shards) for _ in range(shard.shape[dim])]
    words = [[brief(v) for v in row] for row in grid.tolist()]
    cell = max(26.0, *(text_width(w, 12) + 10 for row in words for w in row))
    sketch = Canvas()
    shapes = {str(list(shard.shape)) for shard in shards}
    each = f"{len(shards)} shards {shapes.pop()}" if len(shapes) == 1 else f"{len(shards)} shards"
    y = heading(sketch, f"{name}: one tensor {list(whole.shape)}", f"{each}, cut along dimension {cut}") + 20
    labels = RankLabels(range(len(shards)))
    left, high, at = labels.width + 22, 24.0, y
    held = [[] for _ in shards]  # of each rank: the places of its numbers in the whole
    for place in product(*map(range, grid.shape)):
        held[owner[place[along]]].append(place)
    local = left + max((len({j for _, j in mine}) for mine in held), default=0) * cell
    sketch.text((left + local) / 2, y - 12, "what a rank has", 11.5, SOFT)
    for rank, mine in enumerate(held):
        rows, columns = sorted({i for i, _ in mine}), sorted({j for _, j in mine})
        labels.draw(sketch, left - 12, at + max(1, len(rows)) * high / 2, rank)
        for i, j in mine:
            _number(sketch, left + columns.index(j) * cell, at + rows.index(i) * high, cell, high, words[i][j], rank)
        if not mine:
            sketch.text(left + 4, at + high / 2, "∅", 13, FAINT, align="left")
        at += max(1, len(rows)) * high + 12
    right, top, middle = local + 110, y + max(0.0, (at - 12 - y - grid.shape[0] * high) / 2), (y + at - 12) / 2
    sketch.text(right + grid.shape[1] * cell / 2, y - 12, "the tensor that it is", 11.5, SOFT)
    sketch.text((local + right) / 2, middle - 14, "is one", 11, SOFT)
    sketch.arrow((local + 20, middle), (right - 20, middle), INK, 2)
    for i, j in product(*map(range, grid.shape)):
        _number(sketch, right + j * cell, top + i * high, cell, high, words[i][j], owner[(i, j)[along]])
    start, lines = 0, [f"{name}: {list(whole.shape)}"]
    for rank, shard in enumerate(shards):
        stop = start + shard.shape[dim]
        index = ", ".join([":"] * cut + [f"{start}:{stop}"])
        lines.append(f"  rank {rank}   {name}[{index}]   {shard.tolist()}")
        start = stop
    return _show([sketch], lines, f"{len(shards)} shards as one tensor {list(whole.shape)}")


def _number(sketch: Canvas, x, y, wide, high, words: str, rank: int) -> None:
    sketch.boxed(x, y, wide - 2, high - 2, words, 12, colour(rank), radius=2)
