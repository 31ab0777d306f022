"""A schedule's messages as trees: a rank below the one from which it gets its data, a tree for chunks that go alike.

Sums travel up the same edges, in other steps.
"""

from collections import defaultdict
from itertools import count
from typing import Iterable

from ..draw.canvas import FAINT, INK, SOFT, WIDTH, Canvas, colour, heading, ink_on, text_width
from ..draw.chips import point_along
from .schedule import Schedule, said_chunks, title

PITCH, LEVEL, RADIUS = 52, 62, 14  # pixels: between leaves, between levels, of a rank
Tree = dict[int, int]  # rank -> its parent


def trees(s: Schedule) -> list[tuple[tuple[int, ...], Tree]]:
    """(chunks, the tree that they go by), for each tree.  Raises ValueError for messages that make no tree."""
    found: dict[tuple, list[int]] = defaultdict(list)
    for chunk in range(s.chunks):
        moves = [m for step in s.steps for m in step if chunk in m.chunks]
        down = {m.target: m.source for m in moves if not m.adds}
        up = {m.source: m.target for m in moves if m.adds}
        tree = down or up
        if s.facts.root == "dst" and not s.facts.reduces:
            tree = {m.source: m.target for m in moves}
        roots = set(tree.values()) - set(tree)
        if len(tree) != s.world_size - 1 or len(roots) != 1 or down and up and down != up:
            raise ValueError(f"the messages of {s.name} do not form a tree: take style='lanes' or 'grid'.")
        found[tuple(sorted(tree.items()))].append(chunk)
    return [(tuple(chunks), dict(edges)) for edges, chunks in found.items()]


def draw_trees(s: Schedule) -> tuple[list[Canvas], str]:
    """A sheet for each tree, after one with the title, or one sheet for title and tree; and the trees in words."""
    found = trees(s)
    top = Canvas()
    kinds = {m.adds for step in s.steps for m in step}
    ways = ["sums go up"] * (True in kinds) + ["copies go down"] * (False in kinds)
    y = heading(top, title(s).partition(", ")[0], f"{', '.join(ways)}; edges show their steps; gray rim: a leaf")
    words = "\n".join(_tree_words(s, *each) for each in found)
    if len(found) == 1:
        _draw_tree(top, y, s, *found[0])
        return [top], words
    top.reach(WIDTH - 1, 0)
    sketches = [top]
    for chunks, tree in found:
        sketches.append(sketch := Canvas())
        sketch.text(0, 8, f"chunk{'s' * (len(chunks) > 1)} {said_chunks(s, chunks)}", 13, align="left", bold=True)
        _draw_tree(sketch, 24, s, chunks, tree)
    return sketches, words


def _children(tree: Tree) -> dict[int, list[int]]:
    """Inner rank -> the ranks below it."""
    below = defaultdict(list)
    for rank, parent in sorted(tree.items()):
        below[parent].append(rank)
    return below


def _list_words(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _tree_words(s: Schedule, chunks: tuple[int, ...], tree: Tree) -> str:
    below = _children(tree)
    (root,) = below.keys() - tree.keys()
    words = "; ".join(f"below {parent}: {_list_words(ranks)}" for parent, ranks in sorted(below.items()))
    leaves = _list_words(sorted(tree.keys() - below))
    return f"tree of {said_chunks(s, chunks)}: root {root}; {words}; leaves: {leaves}"


def _draw_tree(sketch: Canvas, top: float, s: Schedule, chunks: tuple[int, ...], tree: Tree) -> None:
    """Draws a tree, its root at the top."""
    below, places = _children(tree), {}
    columns = count()  # of leaves

    def place(rank: int, level: int) -> float:
        y = top + RADIUS + level * LEVEL
        if rank in below:
            xs = [place(child, level + 1) for child in below[rank]]
            x = (xs[0] + xs[-1]) / 2
            while any(abs(x - px) < 2 * RADIUS + 4 and py == y for px, py in places.values()):
                x += 6
        else:
            x = (next(columns) + 0.5) * PITCH
        places[rank] = x, y
        return x

    (root,) = below.keys() - tree.keys()
    place(root, 0)
    at: dict[frozenset, list[int]] = defaultdict(list)  # the two ranks of an edge -> steps
    for k, step in enumerate(s.steps, 1):
        for m in step:
            if set(m.chunks) & set(chunks):
                at[frozenset((m.source, m.target))].append(k)
    for edge in tree.items():
        sketch.line([places[rank] for rank in edge], SOFT, 1.6)
    for edge in tree.items():
        x, y = point_along(*(places[rank] for rank in edge), 0.42)
        steps = at[frozenset(edge)]
        words = _list_words(steps) if len(steps) <= 2 else f"{steps[0]}…{steps[-1]}"
        sketch.box(x - text_width(words, 10) / 2 - 2, y - 7, text_width(words, 10) + 4, 14, "#ffffff", radius=2)
        sketch.text(x, y, words, 10, INK)
    for rank, (x, y) in places.items():
        sketch.circle(x, y, RADIUS, colour(rank), None if rank in below else FAINT, 3.0)
        sketch.text(x, y, str(rank), 12, ink_on(colour(rank)), bold=rank in below)
