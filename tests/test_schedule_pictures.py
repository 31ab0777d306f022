"""Pictures of schedules read back: chunks in one style, trees, one chunk's journey, and nothing over a cell."""

import pytest

from collectives import algorithms as schedule
from collectives.algorithms.proof import follow
from collectives.draw.canvas import PALETTE, REDUCED, SOFT, WIDTH, Words, text_width
from tests import reading


def cells(shapes):
    """(box, kind, words) of every chunk: the number of its stripes for a partial sum, 'sum', or its rank's colour."""
    found = []
    for box in shapes.boxes:
        stripes = [b for b in shapes.boxes if b is not box and b.fill in PALETTE and box.holds(b.left, b.bottom)]
        words = " ".join(w.text for w in shapes.words if box.holds(w.x, w.y))
        if (box.fill, box.edge) == ("#ffffff", SOFT):
            found.append((box, len(stripes), words))
        elif box.fill == REDUCED:
            found.append((box, "sum", words))
        elif box.fill in PALETTE and words:
            found.append((box, box.fill, words))
    return found


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_journey_is_what_every_rank_holds_of_a_chunk(n):
    ring = schedule.ring_all_reduce(n)
    picture = ring.draw(style="journey")
    found = sorted(cells(reading.drawn(picture)), key=lambda cell: (cell[0].left, cell[0].top))
    found = [cell for cell in found if "a" in cell[2]]  # not of the small pictures beside
    states = [ring.initial(), *([dict(chunks) for chunks in held] for held in follow(ring))]
    held = [state[rank].get(0, 0) for state in states for rank in range(n)]
    want = [PALETTE[p.bit_length() - 1] if p.bit_count() == 1 else "sum" if p.bit_count() == n else p.bit_count() for p in held]  # fmt: skip
    assert [kind for _, kind, _ in found] == want
    moves = [m for step in ring.steps for m in step if 0 in m.chunks]
    assert len(reading.drawn(picture).arrows) == len(moves)
    assert f"rank {n - 1}" in picture.text.splitlines()[-1] and picture.text.endswith("Σa")


@pytest.mark.parametrize("n", [4, 8, 12])
def test_leaves_of_one_tree_are_inner_ranks_of_the_other(n):
    picture = schedule.double_tree_all_reduce(n).draw(style="trees")
    shapes = reading.drawn(picture)
    names = [w for w in shapes.words if w.text.isdigit() and w.size == 12]
    assert sorted(int(w.text) for w in names) == sorted(2 * list(range(n)))
    assert len([s for s in shapes.strokes if s.tint == SOFT]) == 2 * (n - 1)
    ringed = [int(w.text) for w in names for b in shapes.boxes if b.edge == reading.FAINT and b.holds(w.x, w.y)]
    assert len(ringed) == len(set(ringed)) == len([w for w in names if not w.bold]), "a leaf of both trees"


def test_a_picture_of_one_tree_is_as_large_as_the_tree():
    picture = schedule.tree_all_reduce(8).draw(style="trees")
    shapes = reading.drawn(picture)
    *_, under_title = sorted(w.y for w in shapes.words if w.text.startswith(("all_reduce", "sums go up")))
    (root,) = (w for w in shapes.words if w.text == "0")
    assert root.y - under_title < 40 and picture.pixels[0] < WIDTH / 2


def test_what_is_no_tree_is_not_drawn_as_one():
    with pytest.raises(ValueError, match="do not form a tree"):
        schedule.pairwise_all_to_all(4).draw(style="trees")


@pytest.mark.parametrize("style", ["grid", "lanes"])
def test_the_star_of_the_root_is_on_the_sheet(style):
    picture = schedule.chain_broadcast(4, pieces=3).draw(style=style)
    stars = [words for words in picture.artists if isinstance(words, Words) and words.words.startswith("★")]
    assert stars and all(w.position[0] >= text_width(w.words, 12, bold=True) for w in stars)


@pytest.mark.parametrize("algorithm", ["rabenseifner_all_reduce", "bruck_all_gather", "doubling_all_gather"])
def test_no_line_passes_over_a_cell(algorithm):
    made = getattr(schedule, algorithm)(4)
    for k in range(len(made.steps)):
        shapes = reading.drawn(made.draw(k + 1, style="grid"))
        boxes = [box for box, *_ in cells(shapes)]
        lines = [(s.points[0], s.points[-1]) for s in shapes.strokes] + [(a.start, a.tip) for a in shapes.arrows]
        for (x0, y0), (x1, y1) in lines:
            at = [(x0 + (x1 - x0) * t / 50, y0 + (y1 - y0) * t / 50) for t in range(51)]
            inside = [b for b in boxes if any(b.left + 2 < x < b.right - 2 and b.top + 2 < y < b.bottom - 2 for x, y in at)]  # fmt: skip
            assert not inside
        assert len(shapes.arrows) >= len(made.steps[k])


def test_sums_on_their_way_look_as_in_the_grid():
    ring = schedule.ring_all_reduce(4)
    chips = cells(reading.drawn(ring.draw(style="lanes")))
    assert {kind for _, kind, _ in chips if isinstance(kind, int)} == {2, 3}
    assert [words for _, kind, words in chips if kind == "sum"] and all(
        w.startswith("Σ") for _, k, w in chips if k == "sum"
    )
