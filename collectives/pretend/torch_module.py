"""torch, as far as it is here: a module of that name, for a program on pretended ranks."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any, Callable

from . import arithmetic, distributed, dtypes, random_numbers
from .autograd import Following
from .dtypes import Absent, dtype
from .tensor import CpuDevice, Size, Tensor, as_tensor, new, spread, strided, tensor

VERSION = "2.13.0+pretend"


def _filled(value: Any) -> Callable:
    def result(*size, dtype: dtype = dtypes.float32, device: Any = None, requires_grad: bool = False) -> Tensor:
        shape = [int(n) for n in spread(size)]
        if any(n < 0 for n in shape):
            raise RuntimeError(f"Trying to create tensor with negative dimension {min(shape)}: {shape}")
        return new([value] * math.prod(shape), shape, dtype).requires_grad_(requires_grad)

    return result


zeros, filled_with_ones = _filled(0), _filled(1)


def full(size, fill_value, *, dtype: dtype | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    shape = (size,) if isinstance(size, int) else size
    value = fill_value.item() if isinstance(fill_value, Tensor) else fill_value
    return new([value] * math.prod(shape), shape, dtype or dtypes.BY_TYPE[type(value)]).requires_grad_(requires_grad)


def _like(function: Callable) -> Callable:
    def result(x: Tensor, *args, dtype: dtype | None = None, memory_format: Any = None, **options: Any) -> Tensor:
        return function(tuple(x.shape), *args, dtype=dtype or x.dtype, **options)

    return result


def _new(function: Callable) -> Callable:
    def result(x: Tensor, *args, dtype: dtype | None = None, **options: Any) -> Tensor:
        return function(*args, dtype=dtype or x.dtype, **options)

    return result


def arange(
    start, end=None, step=1, *, dtype: dtype | None = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    if end is None:
        start, end = 0, start
    start, end, step = (x.item() if isinstance(x, Tensor) else x for x in (start, end, step))
    integral = all(isinstance(x, int) for x in (start, end, step))
    count = max(0, math.ceil((end - start) / step))
    kind = dtype or (dtypes.int64 if integral else dtypes.float32)
    return new([start + k * step for k in range(count)], (count,), kind).requires_grad_(requires_grad)


def linspace(start: float, end: float, steps: int, *, dtype: dtype = dtypes.float32, device: Any = None) -> Tensor:
    step = (end - start) / max(1, steps - 1)
    return new(
        [start + k * step if k < steps / 2 else end - (steps - 1 - k) * step for k in range(steps)], (steps,), dtype
    )


def eye(n: int, m: int | None = None, *, dtype: dtype = dtypes.float32, device: Any = None) -> Tensor:
    columns = n if m is None else m
    return new([float(r == c) for r in range(n) for c in range(columns)], (n, columns), dtype)


def is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


def is_grad_enabled() -> bool:
    return Following.on


def no_grad() -> Following:
    return Following(False)


def enable_grad() -> Following:
    return Following(True)


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    squares = (input - target) ** 2
    return {"mean": arithmetic.mean, "sum": arithmetic.total, "none": lambda x: x}[reduction](squares)


def pad(input: Tensor, pad: Any, mode: str = "constant", value: float = 0) -> Tensor:
    if mode != "constant":
        raise Absent(f"this page has no pad(..., mode={mode!r})")
    for k in range(len(pad) // 2):
        dim = -1 - k
        for count, before in zip(pad[2 * k : 2 * k + 2], (True, False)):
            if count < 0:
                input = input.narrow(dim, -count * before, input.shape[dim] + count)
            elif count:
                shape = [*input.shape]
                shape[dim] = count
                more = full(shape, value, dtype=input.dtype)
                input = arithmetic.cat([more, input] if before else [input, more], dim)
    return input


def _submodule(name: str, names: dict[str, Any]) -> ModuleType:
    result = ModuleType(name)
    for key, value in names.items():
        setattr(result, key, value)

    def not_there(missing: str) -> Any:
        if missing.startswith("__"):
            raise AttributeError(missing)
        raise Absent(f"this page has no {name}.{missing}")

    setattr(result, "__getattr__", not_there)
    return result


METHODS_ONLY = {
    "new_zeros": _new(zeros),
    "new_ones": _new(filled_with_ones),
    "new_full": _new(full),
    "new_empty": _new(zeros),
}
NAMES: dict[str, Any] = {
    "Tensor": Tensor, "Size": Size, "dtype": dtype, "device": CpuDevice, "Generator": random_numbers.Generator, "tensor": tensor,
    "as_tensor": as_tensor, "zeros": zeros, "ones": filled_with_ones, "empty": zeros, "full": full, "arange": arange, "linspace": linspace,
    "eye": eye, "zeros_like": _like(zeros), "ones_like": _like(filled_with_ones), "empty_like": _like(zeros), "full_like": _like(full),
    "rand": random_numbers.rand, "randn": random_numbers.randn, "randint": random_numbers.randint,
    "randperm": random_numbers.randperm, "rand_like": random_numbers.rand_like, "randn_like": random_numbers.randn_like,
    "manual_seed": random_numbers.manual_seed, "no_grad": no_grad, "enable_grad": enable_grad, "inference_mode": no_grad,
    "is_tensor": is_tensor, "is_grad_enabled": is_grad_enabled, "cat": arithmetic.cat, "stack": arithmetic.stack,
    "concatenate": arithmetic.cat, "finfo": dtypes.limits, "iinfo": dtypes.whole_limits, "inf": math.inf, "nan": math.nan,
    "pi": math.pi, "e": math.e, "strided": strided, "contiguous_format": "contiguous_format", "__version__": VERSION,
    **arithmetic.METHODS,
    **{kind.name: kind for kind in dtypes.KINDS},
    "float": dtypes.float32, "double": dtypes.float64, "long": dtypes.int64, "int": dtypes.int32, "half": dtypes.float16,
    "short": dtypes.int16,
    **{name: getattr(Tensor, name) for name in (
        "reshape", "flatten", "permute", "transpose", "squeeze", "unsqueeze", "narrow", "select", "unbind", "split", "chunk",
        "tensor_split", "numel", "t", "is_floating_point",
    )},
}  # fmt: skip
FUNCTIONAL: dict[str, Any] = {
    "mse_loss": mse_loss, "pad": pad, "relu": arithmetic.relu, "softmax": arithmetic.softmax, "sigmoid": arithmetic.sigmoid,
}  # fmt: skip


def modules() -> dict[str, ModuleType]:
    """torch and its parts, by name."""
    functional = _submodule("torch.nn.functional", FUNCTIONAL)
    nn = _submodule("torch.nn", {"functional": functional})
    dist = distributed.module()
    torch = _submodule("torch", {**NAMES, "distributed": dist, "nn": nn})
    setattr(torch, "__path__", [])
    return {"torch": torch, "torch.distributed": dist, "torch.nn": nn, "torch.nn.functional": functional}


def install() -> ModuleType:
    """Make `import torch` give this one, in a Python without torch."""
    parts = modules()
    for name, function in METHODS_ONLY.items():
        setattr(Tensor, name, function)
    sys.modules.update(parts)
    return parts["torch"]
