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
OTHER_ORDER = "these are the right ones, in a different order."


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
        return Finding("values", words=words, thought=thought_on([(arguments, result)]))

    def thought_on(outcomes: list[tuple[tuple, Any]]) -> str:
        """The thought of the first suspect with all these results.  outcomes: arguments and results."""
        if outcomes[-1][1] is None and all(right(*values) is not None for values in given.values()):
            return "printing a value doesn't return it."
        known = (suspects or {}).items()
        of_known = next((said for wrong, said in known if all(is_equal(y, wrong(*x)) for x, y in outcomes)), "")
        return of_known or (OTHER_ORDER if all(_same_items(y, right(*x)) for x, y in outcomes) else thought)

    def draw(d: Draw) -> tuple:
        return tuple(each.clone() if isinstance(each, torch.Tensor) else each for each in given[d.case.kind])

    cases, sentence = tuple(Case(1, kind) for kind in given), lambda case, x, y: praise.format(value_words(y))
    return Puzzle(name, cases, draw, verdict, sentence, thought_on=thought_on)


def _same_items(got: Any, expected: Any) -> bool:
    several = isinstance(got, (list, tuple)) and isinstance(expected, (list, tuple))
    return several and sorted(map(repr, got)) == sorted(map(repr, expected))


def is_equal(got: Any, expected: Any) -> bool:
    """Whether two values agree: shapes and dtypes exactly, numbers to one part in 100,000; a list may be a tuple."""
    if isinstance(expected, torch.Tensor):
        return difference(expected, got, largest([expected])) is None
    if isinstance(expected, (list, tuple)):
        return isinstance(got, (list, tuple, range)) and len(got) == len(expected) and all(map(is_equal, got, expected))
    if isinstance(expected, (bool, str, type(None))):
        return type(got) is type(expected) and got == expected
    number = got.item() if isinstance(got, torch.Tensor) and got.numel() == 1 else got
    if isinstance(number, bool) or not isinstance(number, (int, float)) or abs(number) > MAX_NUMBER:
        return False
    return isclose(number, expected, rel_tol=1e-5, abs_tol=1e-9)


def value_words(value: Any) -> str:
    """A value in a line."""
    return f"{value:.6g}" if isinstance(value, float) else in_words(value)
