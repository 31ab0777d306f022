"""The world's own use of tensors: it copies, cuts, adds and fills them without guards or autograd."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, Callable, Iterator, Sequence

from . import arithmetic
from .tensor import Tensor, new


class TensorValues:
    """The same for any kind of tensor.  copy: a copy nobody else sees.  write: fill a tensor from another of as many elements.

    join: one flat tensor of several.  larger, smaller: of two tensors, element by element.
    """

    tensor_type: type = Tensor
    larger, smaller = staticmethod(arithmetic.maximum), staticmethod(arithmetic.minimum)

    def copy(self, x: Any) -> Any:
        return new(x.peek(), x.shape, x.dtype)

    def write(self, x: Any, source: Any) -> None:
        x.poke(source.peek())

    def tensors_in(self, value: Any) -> Iterator[Tensor]:
        """The tensors of a result that guards watch."""
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple, dict)):
            for part in value.values() if isinstance(value, dict) else value:
                yield from self.tensors_in(part)

    def join(self, parts: Sequence[Any]) -> Any:
        return arithmetic.cat([part.reshape(-1) for part in parts])

    def total(self, op: str, parts: Sequence[Any], count: int) -> Any:
        """The reduction of tensors, in order.  count: of ranks, for an average."""
        total = reduce(self.two(op, parts[0]), parts)
        return total / count if op == "AVG" else total

    def two(self, op: str, like: Any) -> Callable[[Any, Any], Any]:
        """The reduction of two tensors."""
        truths = str(like.dtype) == "torch.bool"
        functions: dict[str, Callable] = {
            "SUM": (lambda a, b: a | b) if truths else (lambda a, b: a + b),
            "AVG": lambda a, b: a + b,
            "PRODUCT": (lambda a, b: a & b) if truths else (lambda a, b: a * b),
            "MIN": (lambda a, b: a & b) if truths else self.smaller,
            "MAX": (lambda a, b: a | b) if truths else self.larger,
            "BAND": lambda a, b: a & b,
            "BOR": lambda a, b: a | b,
            "BXOR": lambda a, b: a ^ b,
        }
        return functions[op]


def cut(x: Any, sizes: Sequence[int]) -> list[Any]:
    """A tensor's parts along its first dimension, flat."""
    row = math.prod(x.shape[1:])
    flat, parts, at = x.reshape(-1), [], 0
    for size in sizes:
        parts.append(flat[at * row : (at + size) * row])
        at += size
    return parts
