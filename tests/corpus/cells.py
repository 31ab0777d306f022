"""Sources of answer cells, for tests of what happens to a notebook that is handed in."""

import ast
import sys
from functools import cache
from pathlib import Path
from typing import Callable

MEAN = "02_distributed_mean"
RIGHT = """def distributed_mean(x):
    y = x.clone() if x.is_floating_point() else x.float()
    dist.all_reduce(y)
    return y / dist.get_world_size()"""
WRONG = RIGHT.replace(" / dist.get_world_size()", "")  # the sum


def cell_of(name: str, answer: Callable) -> str:
    """An answer cell that defines `name` as an answer of answers.py or puzzles.py, with all that it uses there."""
    lines, imports, defined = _parsed(sys.modules[answer.__module__].__file__)
    needed, left = set(), [answer.__name__]
    while left:
        node = defined.get(left.pop())
        if node is not None and node not in needed:
            needed.add(node)
            kept = [node.args, *node.body] if isinstance(node, ast.FunctionDef) else [node]  # not its decorators
            left += [part.id for top in kept for part in ast.walk(top) if isinstance(part, ast.Name)]
    nodes = [*imports, *sorted(needed, key=lambda node: node.lineno)]
    parts = [
        "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in nodes
    ]  # a def's line is below its decorators
    return "\n".join([*parts, f"{name} = {answer.__name__}", ""])


@cache
def _parsed(file: str) -> tuple[list[str], list[ast.stmt], dict[str, ast.stmt]]:
    """A module's lines, its imports, and what each of its names is defined by."""
    source = Path(file).read_text(encoding="utf-8")
    imports, defined = [], {}
    for node in ast.parse(source).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if "tests" not in ast.unparse(node):  # a learner has no corpus
                imports.append(node)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined[node.name] = node
        elif isinstance(node, ast.Assign):
            names = (part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name))
            defined.update(dict.fromkeys(names, node))
    return source.splitlines(), imports, defined
