"""Arithmetic on tensors: element by element, along a dimension, of matrices, and in place.

Each computes in Python's doubles and rounds once, when its result is stored.
"""

from __future__ import annotations

import math
import operator
from functools import reduce
from itertools import accumulate
from typing import Any, Callable, NamedTuple, Sequence

from . import dtypes
from .autograd import Following, backward, follow, follow_choice, follow_view, writes_into
from .dtypes import Absent, dtype
from .printing import written
from .refusals import TYPE_NAMES
from .tensor import Tensor, broadcast, nested, new, place, spread, tensor

Function = Callable[..., Any]
ADDED_IN_ORDER = 8  # numbers: fewer are added one after the y


# --- element by element -----------------------------------------------------------------------


def kind_of(*operands: Any) -> dtype:
    """The kind of a result of tensors and Python's numbers."""
    kinds = {x.dtype for x in operands if isinstance(x, Tensor)}
    if len(kinds) == 1 and (kind := kinds.pop()).is_floating_point:
        return kind
    return dtypes.of_results([
        (x.dtype, 2 if x.shape else 1) if isinstance(x, Tensor) else (dtypes.BY_TYPE[type(x)], 0) for x in operands
    ])  # fmt: skip


def as_operand(x: Any, kind: dtype) -> Tensor:
    return x if isinstance(x, Tensor) else new([x], (), kind if dtypes.category(kind) == 2 else dtypes.BY_TYPE[type(x)])


def elementwise(function: Function, kind: dtype, *operands: Tensor) -> Tensor:
    """A function of the elements of tensors, whose shapes are made equal."""
    shape: Sequence[int] = ()
    for x in operands:
        shape = broadcast(shape, x.shape)
    columns = [(x if x.shape == shape else x.detach().expand(shape)).values() for x in operands]
    return new(map(function, *columns), shape, kind)


def folded(gradient: Tensor, like: Tensor) -> Tensor:
    """A gradient, summed over the dimensions along which an operand was repeated."""
    while gradient.ndim > like.ndim:
        gradient = total(gradient, 0)
    for k, size in enumerate(like.shape):
        if size == 1 != gradient.shape[k]:
            gradient = total(gradient, k, keepdim=True)
    return gradient


def _binary(name: str, function: Function, slopes: Function | None = None, kind: Function = kind_of) -> tuple:
    """An operation on two tensors, or on one and a number: plain, reflected and in place.

    slopes: (gradient, x, y, result) -> the gradients of both.
    """

    def plain(x: Any, y: Any) -> Any:
        if not isinstance(x, (Tensor, bool, int, float)) or not isinstance(y, (Tensor, bool, int, float)):
            return NotImplemented
        result_kind = kind(x, y)
        a, b = as_operand(x, result_kind), as_operand(y, result_kind)
        result = elementwise(function, result_kind, a, b)
        if not Following.on or not (a.requires_grad or b.requires_grad):
            return result
        if slopes is None:
            raise Absent(f"this page has no gradient of {name}")

        def back(gradient: Tensor) -> list[Tensor | None]:
            parts = slopes(gradient, a.detach(), b.detach(), result.detach())
            return [folded(part, x) if x.requires_grad else None for part, x in zip(parts, (a, b))]

        return follow(result, [a, b], back)

    def reflected(x: Tensor, y: Any) -> Any:
        return plain(y, x)

    def in_place(x: Tensor, y: Any) -> Any:
        writes_into(x)
        old = new(x.peek(), x.shape, x.dtype) if x.storage.guards else x.detach()  # to write is more than to read
        result = plain(old, y.detach() if isinstance(y, Tensor) else y)
        if result is NotImplemented:
            return result
        if dtypes.category(result.dtype) > dtypes.category(x.dtype):
            source, target = (TYPE_NAMES.get(kind.name, kind.name) for kind in (result.dtype, x.dtype))
            raise RuntimeError(f"result type {source} can't be cast to the desired output type {target}")
        if result.shape != x.shape:
            raise RuntimeError(
                f"output with shape {list(x.shape)} doesn't match the broadcast shape {list(result.shape)}"
            )
        x.store(result.peek())
        return x

    return plain, reflected, in_place


def _true_kind(*operands: Any) -> dtype:
    kind = kind_of(*operands)
    return kind if kind.is_floating_point else dtypes.float32


def _divided(a: float, b: float) -> float:
    if b:
        return a / b
    if a != a or not a:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _integral(function: Function) -> Function:
    def divided(a: Any, b: Any) -> Any:
        if isinstance(a, float) or isinstance(b, float):
            return function(a, b) if b else math.nan if function is operator.mod else _divided(a, b)
        if not b:
            raise RuntimeError("ZeroDivisionError")
        return function(a, b)

    return divided


def _power(a: Any, b: Any) -> Any:
    try:
        value = a**b
    except OverflowError:
        return math.inf
    except ZeroDivisionError:
        return math.inf
    return math.nan if isinstance(value, complex) else value


def _larger(a: Any, b: Any) -> Any:
    return a if a != a or a >= b else b


def _smaller(a: Any, b: Any) -> Any:
    return a if a != a or a <= b else b


def _truth(*_: Any) -> dtype:
    return dtypes.bool_


def _no_truths(*operands: Any) -> dtype:
    kind = kind_of(*operands)
    if kind is dtypes.bool_:
        raise RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` operator "
            "instead."
        )
    return kind


BINARY = {
    "add": _binary("+", operator.add, lambda g, x, y, r: (g, g)),
    "sub": _binary("-", operator.sub, lambda g, x, y, r: (g, -g), _no_truths),
    "mul": _binary("*", operator.mul, lambda g, x, y, r: (g * y, g * x)),
    "truediv": _binary("/", _divided, lambda g, x, y, r: (g / y, -g * r / y), _true_kind),
    "floordiv": _binary("//", _integral(operator.floordiv)),
    "mod": _binary("%", _integral(operator.mod)),
    "pow": _binary("**", _power, lambda g, x, y, r: (g * y * x ** (y - 1), g * r * log(x))),
    "and": _binary("&", operator.and_),
    "or": _binary("|", operator.or_),
    "xor": _binary("^", operator.xor),
    "lshift": _binary("<<", operator.lshift),
    "rshift": _binary(">>", operator.rshift),
}
COMPARED = {
    name: _binary(name, getattr(operator, name), None, _truth)[0] for name in ("lt", "le", "gt", "ge", "eq", "ne")
}
maximum = _binary("maximum", _larger, lambda g, x, y, r: (g * (x >= y), g * (x < y)))[0]
minimum = _binary("minimum", _smaller, lambda g, x, y, r: (g * (x <= y), g * (x > y)))[0]
logical_and = _binary("logical_and", lambda a, b: bool(a) and bool(b), None, _truth)[0]
logical_or = _binary("logical_or", lambda a, b: bool(a) or bool(b), None, _truth)[0]
bitwise_and, bitwise_or, bitwise_xor = (BINARY[name][0] for name in ("and", "or", "xor"))


def add(x: Any, y: Any, *, alpha: float = 1) -> Tensor:
    return x + (y if alpha == 1 else y * alpha)


def sub(x: Any, y: Any, *, alpha: float = 1) -> Tensor:
    return x - (y if alpha == 1 else y * alpha)


def add_(x: Tensor, y: Any, *, alpha: float = 1) -> Tensor:
    return BINARY["add"][2](x, y if alpha == 1 else y * alpha)


def sub_(x: Tensor, y: Any, *, alpha: float = 1) -> Tensor:
    return BINARY["sub"][2](x, y if alpha == 1 else y * alpha)


def div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode == "floor":
        return x // y
    if rounding_mode == "trunc":
        return trunc(x / y) if kind_of(x, y).is_floating_point else trunc(x.double() / y).to(kind_of(x, y))
    return x / y


def lerp(x: Tensor, end: Tensor, weight: Any) -> Tensor:
    return x + weight * (end - x)


def _unary(function: Function, slope: Function | None = None, kind: Function = lambda k: k, name: str = "") -> Function:
    """slope: (gradient, x, result) -> the gradient of x."""

    def applied(x: Tensor) -> Tensor:
        result = elementwise(function, kind(x.dtype), x)
        if not Following.on or not x.requires_grad or not result.dtype.is_floating_point:
            return result
        if slope is None:
            raise Absent(f"this page has no gradient of {name}")
        return follow(result, [x], lambda g: [slope(g, x.detach(), result.detach())])

    return applied


def _as_float(kind: dtype) -> dtype:
    return kind if kind.is_floating_point else dtypes.float32


def _guarded(function: Function, out: float = math.nan) -> Function:
    """A function of math, which raises where torch gives an infinity or a NaN."""

    def applied(v: float) -> float:
        try:
            return function(v)
        except (OverflowError, ValueError):
            return v if v != v else out

    return applied


def _log(v: float) -> float:
    return math.nan if v < 0 or v != v else -math.inf if v == 0 else math.log(v)


def _rounded(function: Function) -> Function:
    return lambda v: float(function(v)) if math.isfinite(v) else v


neg = _unary(operator.neg, lambda g, x, r: -g)
abs_ = _unary(abs, lambda g, x, r: g * sign(x))
exp = _unary(_guarded(math.exp, math.inf), lambda g, x, r: g * r, _as_float)
log = _unary(_log, lambda g, x, r: g / x, _as_float)
log2 = _unary(lambda v: _log(v) / math.log(2), None, _as_float, "log2")
sqrt = _unary(lambda v: math.sqrt(v) if v >= 0 else math.nan, lambda g, x, r: g / (2 * r), _as_float)
rsqrt = _unary(lambda v: 1 / math.sqrt(v) if v > 0 else math.inf if v == 0 else math.nan, None, _as_float, "rsqrt")
sin = _unary(_guarded(math.sin), lambda g, x, r: g * cos(x), _as_float)
cos = _unary(_guarded(math.cos), lambda g, x, r: -g * sin(x), _as_float)
tanh = _unary(math.tanh, lambda g, x, r: g * (1 - r * r), _as_float)
sigmoid = _unary(lambda v: 1 / (1 + math.exp(-v)) if v > -700 else 0.0, lambda g, x, r: g * r * (1 - r), _as_float)
relu = _unary(lambda v: v if v != v or v > 0 else type(v)(0), lambda g, x, r: g * (x > 0))
sign = _unary(lambda v: v if v != v else type(v)((v > 0) - (v < 0)), lambda g, x, r: g * 0)
square = _unary(lambda v: v * v, lambda g, x, r: 2 * g * x)
reciprocal = _unary(lambda v: _divided(1.0, v), lambda g, x, r: -g * r * r, _as_float)
floor, ceil, trunc, round_ = (
    _unary(_rounded(f), lambda g, x, r: g * 0) for f in (math.floor, math.ceil, math.trunc, round)
)
isnan, isinf, isfinite = (_unary(f, None, _truth) for f in (math.isnan, math.isinf, math.isfinite))
logical_not = _unary(lambda v: not v, None, _truth)


def bitwise_not(x: Tensor) -> Tensor:
    return logical_not(x) if x.dtype is dtypes.bool_ else elementwise(operator.invert, x.dtype, x)


def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    if min is not None:
        x = maximum(x, min)
    return x if max is None else minimum(x, max)


def where(condition: Tensor, x: Any = None, y: Any = None):
    if x is None:
        return condition.nonzero().unbind(1)
    kind = kind_of(x, y)
    a, b = as_operand(x, kind), as_operand(y, kind)
    result = elementwise(lambda c, left, right: left if c else right, kind, condition, a, b)
    return follow(result, [a, b], lambda g: [folded(g * condition, a), folded(g * ~condition, b)])


def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return where(mask, new([value if not isinstance(value, Tensor) else value.item()], (), x.dtype), x)


# --- along a dimension ------------------------------------------------------------------------


class Extremes(NamedTuple):
    """Values and where they are."""

    values: Tensor
    indices: Tensor


def lines(x: Tensor, dim: int) -> list[list[int]]:
    """For each element of a result without this dimension, the numbers of the elements along it."""
    at = place(dim, x.ndim)
    size = x.shape[at] if x.shape else 1
    inner = math.prod(x.shape[at + 1 :])
    starts = [outer * size * inner + k for outer in range(math.prod(x.shape[:at])) for k in range(inner)]
    return [[start + k * inner for k in range(size)] for start in starts]


def without(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> list[int]:
    return [1 if k in dims else size for k, size in enumerate(shape) if keepdim or k not in dims]


def reduced(x: Tensor, function: Function, dim: Any, keepdim: bool, kind: dtype) -> tuple[Tensor, list[list[int]]]:
    """A function of lists of elements, along one dimension, several, or all; and which elements went into each."""
    if dim is None or dim == ():
        groups, shape = [list(range(x.numel()))], [1] * (x.ndim * keepdim)
    else:
        dims = sorted({place(d, x.ndim) for d in (dim if isinstance(dim, (tuple, list)) else (dim,))})
        groups = [[k] for k in range(x.numel())]
        numbers = new(range(x.numel()), x.shape, dtypes.int64)
        order = [k for k in range(x.ndim) if k not in dims] + dims
        count = math.prod(x.shape[d] for d in dims) if x.shape else 1
        flat = numbers.permute(*order).reshape(-1, count).peek() if x.numel() and x.shape else list(range(x.numel()))
        rows = math.prod(without(x.shape, dims, False))
        groups = [flat[k * count : (k + 1) * count] for k in range(rows)]
        shape = without(x.shape, dims, keepdim)
    values = x.values()
    return new([function([values[k] for k in group]) for group in groups], shape, kind), groups


def total(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: dtype | None = None) -> Tensor:
    kind = dtype or (x.dtype if x.dtype.is_floating_point else dtypes.int64)
    if dtype is not None and dtype.is_floating_point != x.dtype.is_floating_point:
        x = x.to(dtype)
    add_up = sum
    if kind.is_floating_point and all(map(math.isfinite, x.peek())):
        add_up = _added if kind is dtypes.float32 else math.fsum
    result, groups = reduced(x, add_up, dim, keepdim, kind)
    return follow(result, [x], lambda g: [_spread_out(g, groups, x)])


def _added(values: list[float]) -> float:
    """A sum of few float32 rounds after each addition, as torch's does; of many, whose order differs, once."""
    if len(values) >= ADDED_IN_ORDER:
        return math.fsum(values)
    return reduce(lambda a, b: dtypes.single(a + b), values, 0.0)


def _spread_out(gradient: Tensor, groups: list[list[int]], x: Tensor, factor: float = 1.0) -> Tensor:
    parts = [0.0] * x.numel()
    for group, value in zip(groups, gradient.peek()):
        for k in group:
            parts[k] = value * factor
    return new(parts, x.shape, x.dtype)


def mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: dtype | None = None) -> Tensor:
    if dtype is not None:
        x = x.to(dtype)
    if not x.dtype.is_floating_point:
        kind_name = {"bool": "Bool", "int64": "Long", "int32": "Int", "uint8": "Byte"}.get(x.dtype.name, x.dtype.name)
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. "
            f"Got: {kind_name}"
        )
    summed = total(x, dim, keepdim)
    return summed / (x.numel() // max(1, summed.numel()) if x.numel() else 0)


def prod(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    kind = x.dtype if x.dtype.is_floating_point else dtypes.int64
    return _unfollowed("prod", x) or reduced(x, math.prod, dim, keepdim, kind)[0]


def _unfollowed(name: str, x: Tensor) -> None:
    if Following.on and x.requires_grad:
        raise Absent(f"this page has no gradient of {name}")


def _place_of(better: Function) -> Function:
    def result(values: list) -> int:
        best = 0
        for k, value in enumerate(values):
            if values[best] == values[best] and (value != value or better(value, values[best])):
                best = k
        return best

    return result


_largest, _least = _place_of(operator.gt), _place_of(operator.lt)


def _extreme(name: str, at: Function, of_two: Function) -> tuple[Function, Function, Function]:
    """max, amax and argmax, or min, amin and argmin."""

    def nonempty(x: Tensor, dim: Any) -> None:
        if not x.numel() and dim is None:
            raise RuntimeError(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the "
                "'dim' argument."
            )

    def value(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        nonempty(x, dim)
        indices, groups = reduced(x, at, dim, keepdim, dtypes.int64)
        chosen = [group[k] for group, k in zip(groups, indices.peek())]
        elements = x.peek()
        return follow_choice(x, new([elements[k] for k in chosen], indices.shape, x.dtype), chosen)

    def place_(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        nonempty(x, dim)
        return reduced(x, at, dim, keepdim, dtypes.int64)[0]

    def extremes(x: Tensor, dim: Any = None, keepdim: bool = False):
        if isinstance(dim, Tensor):
            return of_two(x, dim)
        return value(x) if dim is None else Extremes(value(x, dim, keepdim), place_(x, dim, keepdim))

    return extremes, value, place_


max_, amax, argmax = _extreme("max", _largest, maximum)
min_, amin, argmin = _extreme("min", _least, minimum)


def exists(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return reduced(x, any, dim, keepdim, dtypes.bool_)[0]


def every(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return reduced(x, all, dim, keepdim, dtypes.bool_)[0]


def count_nonzero(x: Tensor, dim: Any = None) -> Tensor:
    return (x != 0).sum(dim)


def var(x: Tensor, dim: Any = None, keepdim: bool = False, *, correction: int = 1, unbiased: bool = True) -> Tensor:
    off = x - mean(x, dim, keepdim=True)
    count = x.numel() // max(1, mean(x.detach(), dim).numel())
    return total(off * off, dim, keepdim) / (count - (correction if unbiased else 0))


def std(x: Tensor, dim: Any = None, keepdim: bool = False, *, correction: int = 1, unbiased: bool = True) -> Tensor:
    return sqrt(var(x, dim, keepdim, correction=correction, unbiased=unbiased))


def norm(x: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Tensor:
    if p in (2, 2.0, "fro"):
        return sqrt(total(x * x, dim, keepdim))
    if p == math.inf:
        return amax(abs_(x), dim, keepdim)
    return total(abs_(x) ** p, dim, keepdim) ** (1 / p)


def cumsum(x: Tensor, dim: int, *, dtype: dtype | None = None) -> Tensor:
    _unfollowed("cumsum", x)
    kind, elements = dtype or (x.dtype if x.dtype.is_floating_point else dtypes.int64), x.values()
    result: list = [0] * x.numel()
    for line in lines(x, dim):
        for k, value in zip(line, accumulate(elements[k] for k in line)):
            result[k] = value
    return new(result, x.shape, kind)


def sort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Extremes:
    _unfollowed("sort", x)
    elements, values, indices = x.values(), [0] * x.numel(), [0] * x.numel()
    for line in lines(x, dim):
        order = sorted(
            range(len(line)),
            key=lambda k: (elements[line[k]] != elements[line[k]], elements[line[k]]),
            reverse=descending,
        )
        if descending:  # equal ones keep their order
            order = sorted(range(len(line)), key=lambda k: (elements[line[k]] == elements[line[k]], -elements[line[k]]))
        for k, spot in enumerate(line):
            values[spot], indices[spot] = elements[line[order[k]]], order[k]
    return Extremes(new(values, x.shape, x.dtype), new(indices, x.shape, dtypes.int64))


def argsort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    return sort(x, dim, descending).indices


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Extremes:
    if k > (x.shape[dim] if x.shape else 1):
        raise RuntimeError("selected index k out of range")
    values, indices = sort(x, dim, descending=largest)
    return Extremes(values.narrow(dim, 0, k).contiguous(), indices.narrow(dim, 0, k).contiguous())


def softmax(x: Tensor, dim: int, dtype: dtype | None = None) -> Tensor:
    if dtype is not None:
        x = x.to(dtype)
    powers = exp(x - amax(x.detach(), dim, keepdim=True))
    return powers / total(powers, dim, keepdim=True)


def logsumexp(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    most = amax(x.detach(), dim, keepdim=True)
    result = log(total(exp(x - most), dim, keepdim=True)) + most
    return result if keepdim else result.squeeze(dim)


def nonzero(x: Tensor, as_tuple: bool = False):
    marked = [k for k, value in enumerate(x.values()) if value]
    rows = [[number // math.prod(x.shape[d + 1 :]) % x.shape[d] for d in range(x.ndim)] for number in marked]
    result = new([at for row in rows for at in row], (len(rows), x.ndim), dtypes.int64)
    return result.unbind(1) if as_tuple else result


def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    values = x.values()
    counts = [0] * max(minlength, max(values, default=-1) + 1)
    for k, weight in zip(values, weights.values() if weights is not None else [1] * len(values)):
        counts[k] += weight
    return new(counts, (len(counts),), dtypes.int64 if weights is None else weights.dtype)


def unique(x: Tensor, sorted: bool = True) -> Tensor:
    values = [*dict.fromkeys(sort(x.flatten()).values.peek())]
    return new(values, (len(values),), x.dtype)


def flip(x: Tensor, *dims) -> Tensor:
    numbers = new(range(x.numel()), x.shape, dtypes.int64)
    for dim in spread(dims):
        numbers = cat([numbers.narrow(dim, k, 1) for k in reversed(range(x.shape[dim]))], dim)
    elements, chosen = x.values(), numbers.peek()
    return follow_choice(x, new([elements[k] for k in chosen], x.shape, x.dtype), chosen)


def roll(x: Tensor, shifts: int, dims: int | None = None) -> Tensor:
    if dims is None:
        return roll(x.flatten(), shifts, 0).view(x.shape)
    size = x.shape[dims]
    cut = -shifts % size if size else 0
    return cat([x.narrow(dims, cut, size - cut), x.narrow(dims, 0, cut)], dims)


# --- of matrices ------------------------------------------------------------------------------


def matmul(x: Tensor, y: Tensor) -> Tensor:
    if not isinstance(y, Tensor):
        return NotImplemented
    if x.ndim > 2 or y.ndim > 2:
        raise Absent("this page has no product of stacks of matrices")
    if not x.ndim or not y.ndim:
        raise RuntimeError("extremes arguments to matmul need to be at least 1D")
    if x.dtype is not y.dtype:
        names = {"float32": "float", "float64": "double", "int64": "long int", "int32": "int"}
        left, right = (names.get(t.dtype.name, t.dtype.name) for t in (x, y))
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {left} != {right}")
    a = x if x.ndim == 2 else x.unsqueeze(0)
    b = y if y.ndim == 2 else y.unsqueeze(1)
    if a.shape[1] != b.shape[0]:
        if x.ndim == y.ndim == 1:
            raise RuntimeError(
                f"inconsistent tensor size, expected tensor [{x.shape[0]}] and src [{y.shape[0]}] to have the same number of "
                "elements, but got " + f"{x.shape[0]} and {y.shape[0]} elements respectively"
            )
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({a.shape[0]}x{a.shape[1]} and {b.shape[0]}x{b.shape[1]})"
        )
    rows, columns = nested(a.values(), a.shape) if a.numel() else [[]] * a.shape[0], nested(b.T.values(), b.T.shape)
    columns = columns if b.numel() else [[]] * b.shape[1]
    values = [sum(map(operator.mul, row, column)) for row in rows for column in columns]
    result = new(values, (a.shape[0], b.shape[1]), x.dtype)
    result = follow(result, [a, b], lambda g: [matmul(g, b.detach().T), matmul(a.detach().T, g)])
    if x.ndim == 1:
        result = result.squeeze(0)
    return result.squeeze(-1) if y.ndim == 1 else result


def outer(x: Tensor, y: Tensor) -> Tensor:
    return x.unsqueeze(1) * y.unsqueeze(0)


# --- new tensors ------------------------------------------------------------------------------


def clone(x: Tensor, memory_format: Any = None) -> Tensor:
    return follow(new(x.values(), x.shape, x.dtype), [x], lambda g: [g])


def to(x: Tensor, *targets, dtype: dtype | None = None, copy: bool = False, **_: Any) -> Tensor:
    for part in targets:
        dtype = part if isinstance(part, dtypes.dtype) else part.dtype if isinstance(part, Tensor) else dtype
    if dtype is None or dtype is x.dtype:
        return x.clone() if copy else x
    elements = x.dtype
    return follow(new(x.values(), x.shape, dtype), [x], lambda g: [new(g.peek(), g.shape, elements)])


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    if not isinstance(tensors, (list, tuple)):
        raise TypeError(
            f"cat(): argument 'tensors' (position 1) must be tuple of Tensors, not {type(tensors).__name__}"
        )
    if not tensors:
        raise RuntimeError("torch.cat(): expected a non-empty list of Tensors")
    for k, x in enumerate(tensors):
        if not isinstance(x, Tensor):
            raise TypeError(f"expected Tensor as element {k} in argument 0, but got {type(x).__name__}")
        if not x.shape:
            raise RuntimeError(f"zero-dimensional tensor (at position {k}) cannot be concatenated")
    parts = [x for x in tensors if tuple(x.shape) != (0,)] or [tensors[0]]
    at, kind = place(dim, parts[0].ndim), kind_of(*tensors)
    for k, x in enumerate(parts[1:], 1):
        if any(a != b for d, (a, b) in enumerate(zip(x.shape, parts[0].shape)) if d != at) or x.ndim != parts[0].ndim:
            raise RuntimeError(
                f"Sizes of tensors must match except in dimension {at}. Expected size "
                f"{next((b for d, (a, b) in enumerate(zip(x.shape, parts[0].shape)) if d != at and a != b), parts[0].ndim)} but got "
                f"size {next((a for d, (a, b) in enumerate(zip(x.shape, parts[0].shape)) if d != at and a != b), x.ndim)} for "
                f"tensor number {k} in the list."
            )
    inner = math.prod(parts[0].shape[at + 1 :])
    flat = [x.values() for x in parts]
    values = []
    for outer_ in range(math.prod(parts[0].shape[:at])):
        for x, elements in zip(parts, flat):
            width = x.shape[at] * inner
            values += elements[outer_ * width : (outer_ + 1) * width]
    shape = [*parts[0].shape]
    shape[at] = sum(x.shape[at] for x in parts)
    result = new(values, shape, kind)
    return follow(result, parts, lambda g: [p.contiguous() for p in g.split([x.shape[at] for x in parts], at)])


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    if not tensors:
        raise RuntimeError("stack expects a non-empty TensorList")
    for k, x in enumerate(tensors):
        if x.shape != tensors[0].shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(tensors[0].shape)} at entry 0 and {list(x.shape)} at "
                f"entry {k}"
            )
    return cat([x.unsqueeze(dim) for x in tensors], dim)


def repeat(x: Tensor, *counts) -> Tensor:
    counts = spread(counts)
    if len(counts) < x.ndim:
        raise RuntimeError("Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor")
    result = x.reshape(*[1] * (len(counts) - x.ndim), *x.shape) if len(counts) > x.ndim else x
    for dim, count in enumerate(counts):
        result = cat([result] * count, dim) if count else result.narrow(dim, 0, 0).clone()
    return result


def repeat_interleave(x: Tensor, repeats: Any, dim: int | None = None) -> Tensor:
    if dim is None:
        x, dim = x.flatten(), 0
    counts = repeats.tolist() if isinstance(repeats, Tensor) else [repeats] * x.shape[dim]
    chosen = [k for k, count in enumerate(counts) for _ in range(count)]
    return index_select(x, dim, tensor(chosen, dtype=dtypes.int64))


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return x[(slice(None),) * place(dim, x.ndim) + (index,)]


def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    at, elements, ndim = place(dim, x.ndim), x.values(), x.ndim
    chosen = []
    for number, k in enumerate(index.values()):
        spot = [number // math.prod(index.shape[d + 1 :]) % index.shape[d] for d in range(ndim)]
        spot[at] = k
        chosen.append(sum(i * math.prod(x.shape[d + 1 :]) for d, i in enumerate(spot)))
    return follow_choice(x, new([elements[k] for k in chosen], index.shape, x.dtype), chosen)


def index_add_(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    writes_into(x)
    for k, at in enumerate(index.tolist()):
        part = x.detach().select(dim, at)
        part.add_(source.select(dim, k))
    return x


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    rows, columns = x.shape[-2:]
    keep = tensor([[c <= r + diagonal for c in range(columns)] for r in range(rows)])
    return where(keep, x, new([0], (), x.dtype))


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    rows, columns = x.shape[-2:]
    keep = tensor([[c >= r + diagonal for c in range(columns)] for r in range(rows)])
    return where(keep, x, new([0], (), x.dtype))


# --- in place ---------------------------------------------------------------------------------


def copy_(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    writes_into(x)
    x.store(source.detach().expand(x.shape).values() if source.shape != x.shape else source.values())
    return x


def fill_(x: Tensor, value: Any) -> Tensor:
    writes_into(x)
    number = value.item() if isinstance(value, Tensor) else value
    x.store([number] * x.numel())
    return x


def zero_(x: Tensor) -> Tensor:
    return fill_(x, 0)


def nan_to_num(x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    most = dtypes.limits(x.dtype)
    ends = {math.inf: most.max if posinf is None else posinf, -math.inf: most.min if neginf is None else neginf}
    values = x.values()
    result = new([nan if a != a else ends.get(a, a) for a in values], x.shape, x.dtype)
    return follow(result, [x], lambda g: [g * new([float(math.isfinite(a)) for a in values], x.shape, x.dtype)])


# --- comparison -------------------------------------------------------------------------------


def equal(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and x.values() == y.values()


def isclose(x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    def close(a: float, b: float) -> bool:
        return a == b or equal_nan and a != a and b != b or math.isfinite(b - a) and abs(a - b) <= atol + rtol * abs(b)

    return elementwise(close, dtypes.bool_, x, y)


def allclose(x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    return all(isclose(x, y, rtol, atol, equal_nan).peek())


# --- as methods -------------------------------------------------------------------------------

METHODS: dict[str, Function] = {
    "abs": abs_, "max": max_, "min": min_, "any": exists, "all": every, "round": round_, "sum": total, "mul": BINARY["mul"][0],
    "multiply": BINARY["mul"][0], "divide": div, "pow": BINARY["pow"][0], "remainder": BINARY["mod"][0],
    "floor_divide": BINARY["floordiv"][0], "mm": matmul, "dot": matmul, "mv": matmul, "absolute": abs_, "clip": clamp,
    "subtract": sub, "concat": cat, "negative": neg, "masked_select": Tensor.__getitem__, "greater": COMPARED["gt"],
    "less": COMPARED["lt"], "take_along_dim": lambda x, indices, dim: gather(x, dim, indices),
    **COMPARED,
    **{f.__name__: f for f in (
        add, sub, div, lerp, clamp, where, masked_fill, mean, prod, count_nonzero, var, std, norm, cumsum, sort, argsort,
        topk, softmax, logsumexp, nonzero, bincount, unique, flip, roll, matmul, outer, clone, repeat_interleave, index_select,
        gather, tril, triu, nan_to_num, equal, isclose, allclose,
    )},
    "neg": neg, "exp": exp, "log": log, "log2": log2, "sqrt": sqrt, "rsqrt": rsqrt, "sin": sin, "cos": cos, "tanh": tanh,
    "sigmoid": sigmoid, "relu": relu, "sign": sign, "square": square, "reciprocal": reciprocal, "floor": floor, "ceil": ceil,
    "trunc": trunc, "isnan": isnan, "isinf": isinf, "isfinite": isfinite, "logical_not": logical_not, "maximum": maximum,
    "minimum": minimum, "amax": amax, "amin": amin, "argmax": argmax, "argmin": argmin, "logical_and": logical_and,
    "logical_or": logical_or, "bitwise_and": bitwise_and, "bitwise_or": bitwise_or, "bitwise_xor": bitwise_xor,
    "bitwise_not": bitwise_not,
}  # fmt: skip
_ONLY_METHODS: dict[str, Function] = {
    "to": to, "repeat": repeat, "backward": backward, "copy_": copy_, "fill_": fill_, "zero_": zero_, "add_": add_, "sub_": sub_,
    "mul_": BINARY["mul"][2], "div_": BINARY["truediv"][2], "index_add_": index_add_, "cpu": lambda x: x,
    "type_as": lambda x, y: to(x, y.dtype), "new_tensor": lambda x, data, **o: tensor(data, **{"dtype": x.dtype, **o}),
    **{name: (lambda kind: lambda x: to(x, kind))(kind) for name, kind in (
        ("float", dtypes.float32), ("double", dtypes.float64), ("long", dtypes.int64), ("int", dtypes.int32),
        ("bool", dtypes.bool_), ("byte", dtypes.uint8),
    )},
}  # fmt: skip


def _in_place(function: Function) -> Function:
    def applied(x: Tensor, *args, **kwargs) -> Tensor:
        writes_into(x)
        x.store(function(x.detach(), *args, **kwargs).peek())
        return x

    return applied


def _not_there(x: Tensor, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise Absent(f"this page has no Tensor.{name}")


def _install() -> None:
    """Give Tensor its operators and methods."""
    setattr(Tensor, "_follow_view", follow_view)
    setattr(Tensor, "_follow_choice", follow_choice)
    setattr(Tensor, "_writes_into", writes_into)
    setattr(Tensor, "__repr__", written)
    for name, (plain, reflected, in_place) in BINARY.items():
        setattr(Tensor, f"__{name}__", plain)
        setattr(Tensor, f"__r{name}__", reflected)
        setattr(Tensor, f"__i{name}__", in_place)
    for name, function in {**METHODS, **_ONLY_METHODS}.items():
        setattr(Tensor, name, function)
    for name in ("clamp", "exp", "neg", "abs", "sqrt", "relu", "masked_fill", "square", "tanh", "round", "pow"):
        setattr(Tensor, f"{name}_", _in_place(METHODS[name]))
    for name, function in COMPARED.items():
        setattr(Tensor, f"__{name}__", function)
    for name, function in {"neg": neg, "abs": abs_, "matmul": matmul, "invert": bitwise_not}.items():
        setattr(Tensor, f"__{name}__", function)
    setattr(Tensor, "__getattr__", _not_there)


_install()
