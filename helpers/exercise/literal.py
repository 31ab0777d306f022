"""An argument of an answer as Python that makes it again, for a line to paste."""

from __future__ import annotations

from typing import Any

import torch

from ..format import dtype_name


def literal(value: Any) -> str:
    """Python that makes this value again, of torch's names only. Raises ValueError where there is none that is short."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_complex():
        return _tensor(value)
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        return repr(value)
    raise ValueError(f"{type(value).__name__} has no short literal")


def _tensor(value: torch.Tensor) -> str:
    usual = torch.float32 if value.is_floating_point() else torch.int64
    dtype = "" if value.dtype in (usual, torch.bool) else f", dtype=torch.{dtype_name(value.dtype)}"
    if not value.numel():
        dtype = "" if value.dtype == torch.float32 else f", dtype=torch.{dtype_name(value.dtype)}"
        return f"torch.zeros({', '.join(map(str, value.shape))}{dtype})"
    return f"torch.tensor({_numbers(value)}{dtype})"


def _numbers(value: torch.Tensor) -> str:
    if value.dim():
        return f"[{', '.join(map(_numbers, value))}]"
    if not value.is_floating_point():
        return str(value.item())
    if not value.isfinite():
        return {"inf": "torch.inf", "-inf": "-torch.inf", "nan": "torch.nan"}[str(value.item())]
    if value.dtype == torch.float64:
        return repr(value.item())
    short = str(value.float().numpy())  # the fewest digits that give this number again
    return short.removesuffix("0") if short.endswith(".0") else short
