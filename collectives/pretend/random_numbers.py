"""Random numbers: the Mersenne twister, seeded as torch seeds it, so that a seed gives the numbers that it gives there."""

from __future__ import annotations

import math
import random
from functools import cached_property
from typing import Any

from . import dtypes
from .dtypes import dtype
from .tensor import Tensor, new, spread

BY_SIXTEEN = 16  # from this number on, normal numbers are result sixteen at a time


class Generator:
    """A source of random numbers."""

    def __init__(self, device: Any = "cpu") -> None:
        self.manual_seed(67280421310721)

    def manual_seed(self, seed: int) -> Generator:
        self._seed, self._normal = seed, None
        vars(self).pop("_twister", None)
        return self

    @cached_property
    def _twister(self) -> random.Random:
        state = [self._seed & 0xFFFFFFFF]
        for k in range(1, 624):
            state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + k) & 0xFFFFFFFF)
        twister = random.Random()
        twister.setstate((3, (*state, 624), None))
        return twister

    def initial_seed(self) -> int:
        return self._seed

    def bits(self, count: int) -> int:
        """32 or 64 random bits."""
        high = self._twister.getrandbits(32)
        return high if count == 32 else high << 32 | self._twister.getrandbits(32)

    def uniform(self, double: bool) -> float:
        """From 0 up to, and not including, 1."""
        return (self.bits(64) % 2**53) / 2**53 if double else (self.bits(32) % 2**24) / 2**24

    def normal(self) -> float:
        if self._normal is not None:
            value, self._normal = self._normal, None
            return value
        angle, radius = 2 * math.pi * self.uniform(True), math.sqrt(-2 * math.log1p(-self.uniform(True)))
        self._normal = radius * math.sin(angle)
        return radius * math.cos(angle)


class Default:
    """The generator of a program that names none."""

    generator = Generator()


def manual_seed(seed: int) -> Generator:
    return Default.generator.manual_seed(seed)


def randint(low, high=None, size=None, *, generator=None, dtype: dtype = dtypes.int64, device: Any = None) -> Tensor:
    if size is None:
        low, high, size = 0, low, high
    source, span = generator or Default.generator, high - low
    if span <= 0:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    count = math.prod(size)
    return new([low + source.bits(64 if span >= 2**28 else 32) % span for _ in range(count)], size, dtype)


def rand(
    *size, generator=None, dtype: dtype = dtypes.float32, device: Any = None, requires_grad: bool = False
) -> Tensor:
    source, shape = generator or Default.generator, spread(size)
    double = dtype is dtypes.float64
    result = new([source.uniform(double) for _ in range(math.prod(shape))], shape, dtype)
    return result.requires_grad_(requires_grad)


def randn(
    *size, generator=None, dtype: dtype = dtypes.float32, device: Any = None, requires_grad: bool = False
) -> Tensor:
    source, shape = generator or Default.generator, spread(size)
    return new(_normals(source, math.prod(shape), dtype), shape, dtype).requires_grad_(requires_grad)


def _normals(source: Generator, count: int, kind: dtype) -> list[float]:
    if count < BY_SIXTEEN:
        return [source.normal() for _ in range(count)]
    values = [source.uniform(kind is dtypes.float64) for _ in range(count)]
    for start in [*range(0, count - BY_SIXTEEN + 1, BY_SIXTEEN), *[count - BY_SIXTEEN] * (count % BY_SIXTEEN > 0)]:
        if start % BY_SIXTEEN:  # the last sixteen, again
            values[start:] = [source.uniform(kind is dtypes.float64) for _ in range(BY_SIXTEEN)]
        for k in range(start, start + BY_SIXTEEN // 2):
            first, second = 1 - values[k], values[k + BY_SIXTEEN // 2]
            radius, angle = math.sqrt(-2 * math.log(first)), 2 * math.pi * second
            values[k], values[k + BY_SIXTEEN // 2] = radius * math.cos(angle), radius * math.sin(angle)
    return values


def randperm(n: int, *, generator=None, dtype: dtype = dtypes.int64, device: Any = None) -> Tensor:
    source, order = generator or Default.generator, list(range(n))
    for k in range(n - 1):
        second = k + source.bits(32) % (n - k)
        order[k], order[second] = order[second], order[k]
    return new(order, (n,), dtype)


def rand_like(x: Tensor, **options: Any) -> Tensor:
    return rand(*x.shape, **{"dtype": x.dtype, **options})


def randn_like(x: Tensor, **options: Any) -> Tensor:
    return randn(*x.shape, **{"dtype": x.dtype, **options})
