"""A schedule's messages as trees: a rank below the one from which it gets its data, a tree for chunks that go alike.

What is added up goes the same edges upwards, in other steps.
"""

from collections import defaultdict

from ..draw.canvas import FAINT, INK, SOFT, Canvas, colour, heading, ink_on, text_width
from .model import Schedule, said_chunks, title

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
            raise ValueError(f"the messages of {s.name} make no tree: take style='lanes' or 'grid'.")
        found[tuple(sorted(tree.items()))].append(chunk)
    return [(tuple(chunks), dict(edges)) for edges, chunks in found.items()]


def draw_trees(s: Schedule) -> tuple[list[Canvas], str]:
    """A sheet for each tree, after one with the title, or one sheet for title and tree; and the trees in words."""
    found = trees(s)
    top = Canvas()
    adds, copies = (any(m.adds is kind for step in s.steps for m in step) for kind in (True, False))
    ways = [words for words, there in (("sums go up", adds), ("copies go down", copies)) if there]
    below = heading(top, title(s).partition(", ")[0], f"{', '.join(ways)}; at each edge its steps; grey rim: a leaf")
    words = "\n".join(_said(s, *each) for each in found)
    if len(found) == 1:
        _draw_tree(top, below, s, *found[0])
        return [top], words
    top.reach(859, 0)
    return [top, *(_sheet(s, *each) for each in found)], words


def _sheet(s: Schedule, chunks: tuple[int, ...], tree: Tree) -> Canvas:
    """A tree under the chunks that take it."""
    sketch = Canvas()
    sketch.text(0, 8, f"chunk{'s' * (len(chunks) > 1)} {said_chunks(s, chunks)}", 13, align="left", bold=True)
    _draw_tree(sketch, 24, s, chunks, tree)
    return sketch


def _said(s: Schedule, chunks: tuple[int, ...], tree: Tree) -> str:
    below = defaultdict(list)
    for rank, parent in sorted(tree.items()):
        below[parent].append(str(rank))
    words = "; ".join(f"below {parent}: {', '.join(ranks)}" for parent, ranks in sorted(below.items()))
    return f"tree of {said_chunks(s, chunks)}: root {_root(tree)}; {words}; leaves: " + ", ".join(
        map(str, _leaves(tree))
    )


def _root(tree: Tree) -> int:
    (root,) = set(tree.values()) - set(tree)
    return root


def _leaves(tree: Tree) -> list[int]:
    return sorted(set(tree) - set(tree.values()))


def _draw_tree(sketch: Canvas, top: float, s: Schedule, chunks: tuple[int, ...], tree: Tree) -> None:
    """Draws a tree, its root at the top."""
    below: dict[int, list[int]] = defaultdict(list)
    for rank, parent in sorted(tree.items()):
        below[parent].append(rank)
    places: dict[int, tuple[float, float]] = {}
    leaves = 0

    def place(rank: int, level: int) -> float:
        nonlocal leaves
        y = top + RADIUS + level * LEVEL
        if not below[rank]:
            leaves += 1
            x = (leaves - 0.5) * PITCH
        else:
            xs = [place(child, level + 1) for child in below[rank]]
            x = (xs[0] + xs[-1]) / 2
            while any(abs(x - px) < 2 * RADIUS + 4 and py == y for px, py in places.values()):
                x += 6
        places[rank] = x, y
        return x

    place(_root(tree), 0)
    at: dict[tuple[int, int], list[int]] = defaultdict(list)  # (rank, parent) -> steps
    for k, step in enumerate(s.steps, 1):
        for m in step:
            if set(m.chunks) & set(chunks):
                edge = (m.source, m.target) if tree.get(m.source) == m.target else (m.target, m.source)
                at[edge].append(k)
    for rank, parent in tree.items():
        (x0, y0), (x1, y1) = places[rank], places[parent]
        sketch.line([(x0, y0), (x1, y1)], SOFT, 1.6)
    for rank, parent in tree.items():
        (x0, y0), (x1, y1) = places[rank], places[parent]
        steps = at[rank, parent]
        words = ", ".join(map(str, steps)) if len(steps) <= 2 else f"{steps[0]}…{steps[-1]}"
        x, y = x0 + (x1 - x0) * 0.42, y0 + (y1 - y0) * 0.42
        sketch.box(x - text_width(words, 10) / 2 - 2, y - 7, text_width(words, 10) + 4, 14, "#ffffff", radius=2)
        sketch.text(x, y, words, 10, INK)
    for rank, (x, y) in places.items():
        sketch.circle(x, y, RADIUS, colour(rank), None if below[rank] else FAINT, 3.0)
        sketch.text(x, y, str(rank), 12, ink_on(colour(rank)), bold=bool(below[rank]))
