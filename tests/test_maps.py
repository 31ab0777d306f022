"""The maps: what is drawn in each, read back, is what they say in words."""

import re

import pytest
import torch

from collectives.draw.canvas import PALETTE, REDUCED
from helpers.views import family, global_tensor, nodes, rendezvous
from tests import reading


def owners(shown, size):
    """(y, x, words, rank whose colour it has) of every number in one of the ranks' colours, by place."""
    shapes = reading.drawn(shown.picture)
    boxes = [box for box in shapes.boxes if box.fill in PALETTE]
    found = [
        (round(w.y), round(w.x), w.text, PALETTE.index(b.fill))
        for w in shapes.words
        for b in boxes
        if w.size == size and b.holds(w.x, w.y)
    ]
    return sorted(found)


@pytest.mark.parametrize("n", [2, 4, 6])
def test_the_family_has_every_chunk_of_every_collective(n):
    shapes = reading.drawn(family(n).picture)
    cells = [w.text for w in shapes.words for b in shapes.boxes if b.fill in (*PALETTE, REDUCED) and b.holds(w.x, w.y)]
    sums = [text for text in cells if text.startswith("Σ")]
    assert len(sums) == n + n + n * n + (n + n * n)  # reduce, reduce_scatter, all_reduce, and its two halves
    # broadcast, scatter, gather, all_gather, all_to_all: before and after; the three that add up, and all_reduce again
    assert len(cells) - len(sums) == (n + n * n) + 2 * n + 2 * n + (n + n * n) + 2 * n * n + 4 * n * n
    assert {"reduce_scatter", "all_gather", "barrier", "all_to_all"} <= {word.text for word in shapes.words}
    assert re.search("broadcast +every rank gets what one has +reduce", repr(family(n)))


def test_all_to_all_turns_rows_into_columns():
    """The chunks of its panel's right grid are those of the left one with rows and columns changed."""
    n, shown = 3, family(3)
    title = next(w for w in reading.drawn(shown.picture).words if w.text == "all_to_all")
    below = [(y, x, text, rank) for y, x, text, rank in owners(shown, 12) if 0 < y - title.y < 100 and x < 400]
    rows = [[(t[0], r) for y, _, t, r in below if y == at] for at in sorted({y for y, *_ in below})]
    before, after = [row[:n] for row in rows], [row[n:] for row in rows]
    assert after == [list(column) for column in zip(*before)]
    assert before[1] == [("a", 1), ("b", 1), ("c", 1)]


def test_a_rank_is_its_node_times_the_local_world_size_and_its_local_rank():
    shown = nodes(2, 4, dims=("dp", "tp"))
    grid = owners(shown, 13)
    assert [(text, rank) for *_, text, rank in grid] == [(f"rank {rank}", rank) for rank in range(8)]
    assert len({y for y, *_ in grid}) == 2 and len({x for _, x, *_ in grid}) == 4
    assert "dp: ranks 0, 4; ranks 1, 5; ranks 2, 6; ranks 3, 7" in repr(shown)
    assert "tp: ranks 0-3; ranks 4-7" in repr(shown)
    with pytest.raises(ValueError, match="not 9 nodes of 8"):
        nodes(9, 8)


@pytest.mark.parametrize("n", [2, 5, 8])
def test_every_rank_meets_every_other(n):
    shapes = reading.drawn(rendezvous(n).picture)
    to_board = [arrow for arrow in shapes.arrows if arrow.tint in PALETTE[:n]]
    assert len(to_board) == 2 * n and sum(arrow.dashed for arrow in to_board) == n
    assert len(shapes.arrows) - len(to_board) == n * (n - 1) // 2
    assert f"{n * (n - 1) // 2} connections" in repr(rendezvous(n))


@pytest.mark.parametrize("dim", [0, 1])
def test_shards_are_one_tensor(dim):
    whole = torch.arange(24).reshape(4, 6)
    shards = list(whole.chunk(2, dim))
    numbers = owners(global_tensor(shards, dim, "w"), 12)
    middle = (max(x for _, x, *_ in numbers) + min(x for _, x, *_ in numbers)) / 2
    right = sorted(n for n in numbers if n[1] > middle)[-24:] if dim else [n for n in numbers if n[1] > middle]
    want = [(f"{v}", rank) for i, row in enumerate(whole.tolist()) for j, v in enumerate(row) for rank in [(i // 2, j // 3)[dim]]]  # fmt: skip
    assert [(text, rank) for *_, text, rank in right] == want
    assert sorted(text for *_, text, _ in numbers) == sorted(2 * [text for text, _ in want])
    with pytest.raises(ValueError, match="not shards of one tensor along dimension 0"):
        global_tensor([torch.zeros(2, 3), torch.zeros(2, 2)])
