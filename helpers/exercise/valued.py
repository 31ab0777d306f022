"""The Puzzle of a function with one right value for its arguments: a number, a tensor, text, or a list of these.

TASK = valued("idle_share", {"two stages": (2, 1, 8)}, right, suspects={forgets_chunks: "..."}, thought="...")
"""

from collections.abc import Callable
from math import isclose
from typing import Any

import torch

from .cases import Case, Draw
from .feedback import in_words
from .judgment import difference, largest
from .task import Finding, Puzzle

MAX_NUMBER = 1e300  # no answer is a larger number, or infinity


def valued(
    name: str,
    given: dict[str, tuple],
    right: Callable[..., Any],
    *,
    thought: str,
    suspects: dict[Callable[..., Any], str] | None = None,
    praise: str = "",
) -> Puzzle:
    """A Puzzle whose answer must return the result of `right`, numbers to one part in 100,000.

    given: each case's name and its arguments.  suspects: a wrong function, and the thought for an answer that returns
    the same; `thought` is for all others.  praise: the sentence on the last case's result, which replaces {}.
    """

    def verdict(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
        expected = right(*arguments)
        if is_equal(result, expected):
            return None
        words = f"{name} is wrong for {case.kind}.\n  expected   {value_words(expected)}\n  got        {value_words(result)}"
        if result is None and all(right(*values) is not None for values in given.values()):
            return Finding("values", words=words, thought="printing a value doesn't return it.")
        known = (said for wrong, said in (suspects or {}).items() if is_equal(result, wrong(*arguments)))
        return Finding("values", words=words, thought=next(known, thought))

    def draw(d: Draw) -> tuple:
        return tuple(each.clone() if isinstance(each, torch.Tensor) else each for each in given[d.case.kind])

    cases = tuple(Case(1, kind) for kind in given)
    return Puzzle(name, cases, draw, verdict, lambda case, arguments, result: praise.format(value_words(result)))


def is_equal(got: Any, expected: Any) -> bool:
    """Whether two values agree: shapes and dtypes exactly, numbers to one part in 100,000; a list may be a tuple."""
    if isinstance(expected, torch.Tensor):
        return difference(expected, got, largest([expected])) is None
    if isinstance(expected, (list, tuple)):
        listed = isinstance(got, (list, tuple)) and len(got) == len(expected)
        return listed and all(map(is_equal, got, expected))
    if isinstance(expected, (bool, str, type(None))):
        return type(got) is type(expected) and got == expected
    number = got.item() if isinstance(got, torch.Tensor) and got.numel() == 1 else got
    if isinstance(number, bool) or not isinstance(number, (int, float)) or abs(number) > MAX_NUMBER:
        return False
    return isclose(number, expected, rel_tol=1e-5, abs_tol=1e-9)


def value_words(value: Any) -> str:
    """A value in a line."""
    return f"{value:.6g}" if isinstance(value, float) else in_words(value)
