"""A tensor in words, as torch prints it."""

from __future__ import annotations

import math

from . import dtypes
from .tensor import Tensor, nested

PRECISION, EDGES, MOST, WIDTH = 4, 3, 1000, 80


def written(tensor: Tensor) -> str:
    """tensor([1., 2.])"""
    writer = _writer(tensor.peek(), tensor)
    words, prefix = "", "tensor("
    if not tensor.numel():
        words = "[]" if len(tensor.shape) <= 1 else f"[], size={tuple(tensor.shape)}"
    elif not tensor.shape:
        words = writer(tensor.peek()[0])
    else:
        words = _rows(nested(tensor.peek(), tensor.shape), len(prefix), writer, tensor.numel() > MOST)
    usual = (dtypes.float32,) if not tensor.numel() else (dtypes.float32, dtypes.int64, dtypes.bool_)
    suffixes = [f"dtype={tensor.dtype}"] * (tensor.dtype not in usual)
    if tensor.node is not None:
        suffixes.append("grad_fn=<Backward0>")
    elif tensor.requires_grad:
        suffixes.append("requires_grad=True")
    return prefix + ", ".join([words, *suffixes]) + ")"


def _writer(values: list, tensor: Tensor):
    """How each number is written."""
    if not tensor.dtype.is_floating_point:
        width = max(map(len, map(str, values)), default=0) if tensor.shape else 0
        return lambda v: f"{v!s:>{width}}"
    finite = [abs(v) for v in values if math.isfinite(v) and v]
    if not finite:
        written_as, integral = "{:.0f}", True
        width = max((len(f"{v:.0f}") + 1 * math.isfinite(v) for v in values), default=0)
    else:
        least, most = min(finite), max(finite)
        integral = all(v == math.ceil(v) for v in finite)
        if most / least > 1000.0 or most > 1.0e8 or (least < 1.0e-4 and not integral):
            written_as = f"{{:.{PRECISION}e}}"
            width, integral = max(len(written_as.format(v)) for v in values), False
        elif integral:
            written_as = "{:.0f}"
            width = max(len(f"{v:.0f}") + 1 * math.isfinite(v) for v in values)
        else:
            written_as = f"{{:.{PRECISION}f}}"
            width = max(len(written_as.format(v)) for v in values)

    def words(v: float) -> str:
        text = written_as.format(v) + "." * (integral and math.isfinite(v))
        return f"{text:>{width}}"

    return words if tensor.shape else lambda v: words(v).strip()


def _rows(values: list, indent: int, words, abridged: bool) -> str:
    cut = abridged and len(values) > 2 * EDGES
    if not isinstance(values[0], list):
        parts = [words(v) for v in values]
        if cut:
            parts = [*parts[:EDGES], " ...", *parts[-EDGES:]]
        per_line = max(1, (WIDTH - indent) // (max(map(len, parts)) + 2))
        lines = [", ".join(parts[k : k + per_line]) for k in range(0, len(parts), per_line)]
        return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
    rows = [_rows(row, indent + 1, words, abridged) for row in values]
    if cut:
        rows = [*rows[:EDGES], "...", *rows[-EDGES:]]
    depth, inner = 0, values
    while isinstance(inner, list):
        depth, inner = depth + 1, inner[0] if inner else None
    return "[" + ("," + "\n" * (depth - 1) + " " * (indent + 1)).join(rows) + "]"
