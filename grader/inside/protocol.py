"""Values as a JSON header and raw bytes: the wire format between an untrusted rank and the scorer.

Nothing is ever unpickled.  Everything from a rank is bounded and checked before it is used: sizes, dtypes, shapes,
nesting, text.
"""

import io
import json
import struct
from math import prod
from operator import index
from typing import Any

import numpy
import torch

HEAD = struct.Struct("!II")  # bytes of header, bytes of body
MAX_HEADER_BYTES, MAX_BODY_BYTES = 1 << 18, 1 << 24
MAX_TEXT_CHARACTERS = 8000
MAX_DEPTH = 4  # of lists in lists
PLAIN = (type(None), bool, int, float, str, numpy.generic)  # kept in a header as they are
_NAMES = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint64 uint32 uint16 uint8 "
_NAMES += "bool complex64 complex128"
DTYPES = {name: getattr(torch, name) for name in _NAMES.split()}


class Malformed(ValueError):
    """Bytes that no honest rank sends. The message names the kind."""


def frame(header: dict[str, Any], body: bytes = b"") -> bytes:
    head = json.dumps(header, default=index).encode()  # NumPy's integers, too
    return HEAD.pack(len(head), len(body)) + head + body


class FrameReader:
    """Collects bytes as they come and hands out (header, body). Raises Malformed."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        self._buffer += data
        messages = []
        while len(self._buffer) >= HEAD.size:
            head, body = HEAD.unpack_from(self._buffer)
            if head > MAX_HEADER_BYTES or body > MAX_BODY_BYTES:
                raise Malformed("a message that is too large")
            end = HEAD.size + head + body
            if len(self._buffer) < end:
                break
            try:
                header = json.loads(self._buffer[HEAD.size : HEAD.size + head])
            except (ValueError, RecursionError):
                raise Malformed("a message that cannot be read") from None
            if not isinstance(header, dict):
                raise Malformed("a message that says nothing")
            messages.append((header, bytes(self._buffer[HEAD.size + head : end])))
            del self._buffer[:end]
        return messages


def encode(value: Any) -> tuple[Any, bytes]:
    """A value for a header, and the bytes of the tensors in it, one after the other."""
    body = bytearray()
    return _encode(value, body, MAX_DEPTH), bytes(body)


def _encode(value: Any, body: bytearray, depth: int) -> Any:
    value = value.item() if isinstance(value, numpy.generic) else value
    if value is None or isinstance(value, (int, float)):
        return value
    if isinstance(value, str):
        return value[:MAX_TEXT_CHARACTERS]
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_quantized:
        name = str(value.dtype).removeprefix("torch.")
        if name in DTYPES:
            flat = value.detach().reshape(-1).clone(memory_format=torch.contiguous_format)
            body += flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
            by_columns = value.dim() == 2 and not value.is_contiguous() and value.t().is_contiguous()
            return {"columns" if by_columns else "tensor": [name, list(value.shape)]}
    if type(value) is dict and depth > 1 and all(isinstance(key, PLAIN) for key in value):
        return {"dict": [_encode(pair, body, depth - 1) for pair in value.items()]}
    nested = isinstance(value, (list, tuple)) and not all(isinstance(v, PLAIN) for v in value)
    if isinstance(value, (list, tuple)) and depth > nested:  # a named tuple, too
        return {"list" if isinstance(value, list) else "tuple": [_encode(v, body, depth - 1) for v in value]}
    return {"other": type(value).__name__}


def decode(value: Any, body: bytes) -> Any:
    """The value again, of which every tensor is new and plain. Raises Malformed."""
    rest = io.BytesIO(body)
    decoded = _decode(value, rest, MAX_DEPTH)
    if rest.read(1):
        raise Malformed("bytes that belong to nothing")
    return decoded


def _decode(value: Any, body: io.BytesIO, depth: int) -> Any:
    if isinstance(value, int) and value.bit_length() > 64:
        raise Malformed("a number of more than 64 bits")
    if value is None or isinstance(value, (int, float)):
        return value
    if isinstance(value, str):
        return text(value)
    if not isinstance(value, dict) or len(value) != 1 or depth == 0:
        raise Malformed("a value that is not one")
    ((kind, what),) = value.items()
    if kind in ("list", "tuple") and isinstance(what, list):
        parts = [_decode(v, body, depth - 1) for v in what]
        return parts if kind == "list" else tuple(parts)
    if kind == "dict" and isinstance(what, list):
        pairs = [_decode(pair, body, depth - 1) for pair in what]
        if all(type(pair) is tuple and len(pair) == 2 and isinstance(pair[0], PLAIN) for pair in pairs):
            return dict(pairs)
    if kind == "other":
        name = "".join(c for c in text(what)[:40] if c.isalnum() or c == "_") or "object"
        return type(name, (), {"__repr__": lambda self: f"<{name}>"})()  # a stand-in
    if kind in ("tensor", "columns"):
        dtype, shape = layout(what)
        raw = bytearray(body.read(dtype.itemsize * prod(shape)))
        if len(raw) != dtype.itemsize * prod(shape):
            raise Malformed("a tensor with fewer bytes than its shape says")
        if not raw:
            return torch.empty(shape, dtype=dtype)
        tensor = torch.frombuffer(raw, dtype=dtype).reshape(shape)
        return tensor.t().contiguous().t() if kind == "columns" and tensor.dim() == 2 else tensor
    raise Malformed("a value that is not one")


def layout(what: Any) -> tuple[torch.dtype, tuple[int, ...]]:
    """dtype and shape from [name, list of sizes]. Raises Malformed."""
    match what:
        case [str(name), list(shape)] if name in DTYPES and len(shape) <= 8:
            sizes = all(type(size) is int and 0 <= size <= MAX_BODY_BYTES for size in shape)
            if sizes and prod(max(1, size) for size in shape) <= MAX_BODY_BYTES:  # else torch's strides overflow
                return DTYPES[name], tuple(shape)
    raise Malformed("a tensor that says nothing of its dtype and shape")


def one_line(value: Any, most: int) -> str:
    """Printable text on one line: an answer's words must not begin a line of a report."""
    return " ".join(text(value, most).split())


def text(value: Any, most: int = MAX_TEXT_CHARACTERS) -> str:
    """Printable text and line ends only: it goes to terminals, files and pages."""
    if not isinstance(value, str):
        raise Malformed("something that is not text")
    kept = value[:most]
    return kept if kept.isprintable() else "".join(c for c in kept if c in "\n\t" or c.isprintable())
