"""A learner's answer in a cell, the cell's real value, and whether they fit."""

import math
import re
from typing import Any, NamedTuple

import torch

from collectives.format import number, short
from collectives.log.event import Summary

# --- one answer ---------------------------------------------------------------------------


class Want(NamedTuple):
    """The real value of one cell."""

    kind: str  # "number", "word", "undefined", "nothing", "never"; an answer may also be "blank"
    text: str
    value: Any = None


UNDEFINED = Want("undefined", "undefined")
NEVER_COMPLETED = Want("never", "never completed")
NO_VALUE = Want("nothing", "nothing")
_WORDS = {
    "undefined": {"?", "undefined", "undef"},
    "nothing": {"-", "none", "nothing", "∅"},
    "never": {"never", "hangs", "hang", "stuck", "waits"},
}
_PLAIN = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789", "_ ()'\"")


class LearnersAnswer(Want):
    """The learner's answer in one cell."""


def parse_answer(words: Any) -> LearnersAnswer:
    words = "" if words is None else str(words).strip()
    low = words.lower().replace("−", "-")
    for kind, names in _WORDS.items():
        if low in names:
            return LearnersAnswer(kind, words)
    if low in ("true", "false"):
        return LearnersAnswer("number", words, low == "true")
    for kind in (int, float, complex):
        try:
            return LearnersAnswer("number", words, kind(low))
        except ValueError:
            pass
    if match := re.fullmatch(r"(-?\d+)/(\d*[1-9]\d*)", low):
        return LearnersAnswer("number", words, int(match[1]) / int(match[2]))
    return LearnersAnswer("word" if words else "blank", words, plain(words))


def plain(words: str) -> str:
    """A word without differences in spelling: 'c₂' is 'c2', 'sum a' is 'Σa'."""
    return re.sub(r"^(sum|sigma|sumof|s(?=[a-z]$))", "σ", words.translate(_PLAIN).casefold())


def wants(value: Any) -> list[Want]:
    """The cells of a value: a number each, in row-major order."""
    if value is None:
        return [NO_VALUE]
    if isinstance(value, (bool, int, float, complex)):
        return [Want("number", number(value), value)]
    if isinstance(value, torch.Tensor):
        return [cell for v in value.flatten().tolist() for cell in wants(v)]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return [cell for v in value for cell in wants(v)]
    words = str(value) if isinstance(value, (str, Summary)) else short(value)
    return [Want("word", words, plain(words))]


def is_unread(answer: LearnersAnswer, want: Want) -> bool:
    """Whether a number is wanted, and this isn't one: a slip of the pen, and not a wrong answer."""
    return answer.kind == "word" and want.kind == "number"


def fits(answer: LearnersAnswer, want: Want) -> bool:
    if answer.kind != want.kind:
        return answer.kind == "blank" and want.kind == "nothing"
    if want.kind == "word":
        return answer.value == want.value
    return want.kind != "number" or _close(answer.value, want.value)


def _close(a: Any, b: Any) -> bool:
    """Whether two numbers are equal, to the few digits that a picture shows."""
    if a == b or a != a and b != b:
        return True
    if isinstance(b, int) or a != a or b != b or not isinstance(b, complex) and (math.isinf(b) or b == int(b)):
        return not isinstance(a, complex) and abs(a) >= 1e6 and number(float(a)) == number(float(b))
    return abs(a - b) <= 5e-3 * abs(b)


def numbers_of(value: Any) -> list:
    """All numbers in a captured value; none of a Summary."""
    if isinstance(value, (list, tuple)):
        return [number for part in value for number in numbers_of(part)]
    return value.flatten().tolist() if isinstance(value, torch.Tensor) else []
