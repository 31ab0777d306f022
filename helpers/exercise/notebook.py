"""An exercise's notebook: which cells are answers and checks, and how the exercise comes out of its solution.

In a solution's answer cell stay the lines outside these marks, and go those between them:

    ### BEGIN SOLUTION          a `raise NotImplementedError()` takes their place,
    ### END SOLUTION
    ### BEGIN STUB              or, if there is one, this block without its "# "
    ### END STUB
"""

from __future__ import annotations

import re

import nbformat
from nbformat import NotebookNode

SOLUTION = re.compile(r"^([ \t]*)### BEGIN SOLUTION\n.*?^[ \t]*### END SOLUTION\n?", re.DOTALL | re.MULTILINE)
CHECK = re.compile(r"^check_(values|budget)\((\w+)\)$")  # the one line of a check cell: aspect, function
STUB = re.compile(r"^[ \t]*### BEGIN STUB\n(.*?)^[ \t]*### END STUB\n?", re.DOTALL | re.MULTILINE)
PLACEHOLDER = "raise NotImplementedError()  # your code in place of this line\n"


def is_answer(cell: NotebookNode) -> bool:
    """Whether the learner writes this cell."""
    return bool(cell.metadata.get("nbgrader", {}).get("solution"))


def is_check(cell: NotebookNode) -> bool:
    """Whether this cell gives points."""
    return bool(cell.metadata.get("nbgrader", {}).get("grade"))


def released(solution: NotebookNode) -> NotebookNode:
    """The exercise that a learner gets: the same cells, without answers and outputs."""
    exercise = nbformat.from_dict(solution)
    for cell in exercise.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            if is_answer(cell):
                cell.source = stubbed(cell.source)
    return exercise


def stubbed(source: str) -> str:
    source += "\n"
    stub = STUB.search(source)
    if stub:
        source = STUB.sub("", source)
        given = re.sub(r"^([ \t]*)# ?", r"\1", stub[1], flags=re.MULTILINE)
        given = re.sub(r"[ \t]+$", "", given, flags=re.MULTILINE)
        return SOLUTION.sub(lambda _: given, source).rstrip()
    return SOLUTION.sub(lambda match: match[1] + PLACEHOLDER, source).rstrip()
