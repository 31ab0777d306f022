"""The learner's lines: with their text, and the innermost one in a rank's stack."""

import linecache
import re
from typing import Iterable

from ..log.event import Line
from .callers import is_learners

# A complete stack as faulthandler writes it: down to the line that started the server, or to where it gives up.
STACK = re.compile(r'Stack \(most recent call first\):\n((?:  File .*\n)*?)  (?:File "<string>".*|\.\.\.)\n')
FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')


def with_text(line: Line | None) -> Line | None:
    """The line with its source text, which only the notebook's kernel has for cells."""
    if line is None or line.text:
        return line
    return line._replace(text=linecache.getline(line.file, line.number).strip())


def last_place(stderr: str) -> tuple[Line | None, list[str]] | None:
    """innermost() of the last stack in this text; None if no stack is complete yet."""
    if not (stacks := STACK.findall(stderr)):
        return None
    return innermost(Line(file, int(number), name) for file, number, name in FRAME.findall(stacks[-1]))


def innermost(frames: Iterable[Line]) -> tuple[Line | None, list[str]]:
    """The learner's line in a stack, innermost frame first, and the functions above it."""
    inside: list[str] = []
    for line in frames:
        if is_learners(line.file):
            return line, inside
        inside.append(line.function)
    return None, inside
