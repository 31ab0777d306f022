"""Kinds of numbers: their memory, their range, and what two kinds become together."""

from __future__ import annotations

from math import inf
from struct import pack, unpack
from typing import Any, NamedTuple


class Absent(AttributeError):
    """Something of torch that is not here. Its message is a sentence for the reader."""


class dtype:
    """A kind of numbers.  code: array's, "" where no tensor of this kind can be made here."""

    def __init__(self, name: str, code: str, itemsize: int, rank: int) -> None:
        self.name, self.code, self.itemsize, self.rank = name, code, itemsize, rank
        self.is_floating_point, self.is_complex = rank >= FLOATING, False
        self.is_signed = name not in ("bool", "uint8")
        self._modulus = 1 << 8 * itemsize
        self._lowest = -self._modulus // 2 if self.is_signed else 0

    def __repr__(self) -> str:
        return f"torch.{self.name}"

    def __reduce__(self) -> str:
        return self.name

    def fit(self, value: Any) -> Any:
        """A value as this kind keeps it, but for the digits that a float has too many: whole numbers wrap around."""
        if self.is_floating_point:
            return float(value)
        if self is bool_:
            return value != 0
        if self._lowest <= value < self._lowest + self._modulus and type(value) is int:
            return value
        if value != value or value in (float("inf"), float("-inf")):
            return self._lowest
        return (int(value) - self._lowest) % self._modulus + self._lowest


def single(value: float) -> float:
    """The float32 nearest to a number."""
    try:
        return unpack("f", pack("f", value))[0]
    except OverflowError:
        return inf if value > 0 else -inf


FLOATING = 10  # ranks of kinds: truths, whole numbers, and from here on floats
bool_ = dtype("bool", "B", 1, 0)
uint8 = dtype("uint8", "B", 1, 1)
int8 = dtype("int8", "b", 1, 2)
int16 = dtype("int16", "h", 2, 3)
int32 = dtype("int32", "i", 4, 4)
int64 = dtype("int64", "q", 8, 5)
float16 = dtype("float16", "", 2, FLOATING)
bfloat16 = dtype("bfloat16", "", 2, FLOATING + 1)
float32 = dtype("float32", "f", 4, FLOATING + 2)
float64 = dtype("float64", "d", 8, FLOATING + 3)
KINDS = (bool_, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64)
BY_TYPE = {bool: bool_, int: int64, float: float32}  # of Python's numbers


class finfo(NamedTuple):
    """Limits of a kind of floats."""

    eps: float
    max: float
    min: float
    tiny: float


def limits(kind: dtype = float32) -> finfo:
    if kind is float32:
        return finfo(2.0**-23, (2 - 2.0**-23) * 2.0**127, -(2 - 2.0**-23) * 2.0**127, 2.0**-126)
    if kind is float64:
        return finfo(2.0**-52, (2 - 2.0**-52) * 2.0**1023, -(2 - 2.0**-52) * 2.0**1023, 2.0**-1022)
    raise Absent(f"this page has no limits of {kind}")


class iinfo(NamedTuple):
    """Limits of a kind of whole numbers."""

    max: int
    min: int


def whole_limits(kind: dtype) -> iinfo:
    return iinfo(kind._lowest + kind._modulus - 1, kind._lowest)


def category(kind: dtype) -> int:
    """0: truths, 1: whole numbers, 2: floats."""
    return 2 if kind.is_floating_point else int(kind is not bool_)


def wider(a: dtype, b: dtype) -> dtype:
    """The kind of a result of two."""
    if {a, b} == {uint8, int8}:
        return int16
    return a if a.rank >= b.rank else b


def of_results(operands: list[tuple[dtype, int]]) -> dtype:
    """The kind of a result.  operands: kinds and how much they count: 2 for tensors, 1 for those without dimensions, 0 for
    numbers; a category alone is decided by those that count less.
    """
    chosen: dtype | None = None
    for weight in (2, 1, 0):
        of_weight = None
        for kind, counts_as in operands:
            if counts_as == weight:
                of_weight = kind if of_weight is None else wider(of_weight, kind)
        if of_weight is not None and (chosen is None or category(of_weight) > category(chosen)):
            chosen = of_weight
    assert chosen is not None
    return chosen
