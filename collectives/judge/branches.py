"""Whether two of the learner's lines are in different branches of one `if`, according to their source."""

import ast
import functools
import linecache
from itertools import combinations
from typing import Iterable

from ..log.event import Line


def alternatives(one: Line, other: Line) -> bool:
    """Whether a rank that reaches one of two lines does not, that time, reach the other.

    False if the source cannot be read.
    """
    if one.file != other.file:
        return False
    for branches in _choices("".join(linecache.getlines(one.file))):
        taken = [next((k for k, b in enumerate(branches) if line.number in b), None) for line in (one, other)]
        if None not in taken and taken[0] != taken[1]:
            return True
    return False


def same_place(lines: Iterable[Line]) -> bool:
    """Whether lines are as good as one: all the same, or all in different branches of one `if`."""
    return all(alternatives(one, other) for one, other in combinations(sorted(set(lines)), 2))


@functools.lru_cache(maxsize=32)
def _choices(source: str) -> list[list[range]]:
    """For each `if` and `match` of a source, the lines of its branches."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a cell with commands of IPython's
        return []
    bodies = [[node.body, node.orelse] for node in ast.walk(tree) if isinstance(node, ast.If)]
    bodies += [[case.body for case in node.cases] for node in ast.walk(tree) if isinstance(node, ast.Match)]
    return [[range(body[0].lineno, body[-1].end_lineno + 1) for body in choice if body] for choice in bodies]
