"""Tensors as memory: where they lie, whether they overlap, how they travel, and what stands for a large one."""

from __future__ import annotations

import ctypes
import pickle
import zlib
from typing import Any

import numpy as np
import torch

from .record import Summary
from .wire import pickle_by

LARGE = 1024  # tensors with more elements are summarised


def each(tensors: Any) -> list:
    return list(tensors) if isinstance(tensors, (list, tuple)) else [] if tensors is None else [tensors]


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte and of the end of its last; empty if it has none."""
    if tensor.layout != torch.strided or tensor.numel() == 0 or tensor.device.type == "meta":
        return 0, 0
    start = tensor.data_ptr()
    reach = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    return start, start + (reach + 1) * tensor.element_size()


def has_gaps(tensor: torch.Tensor) -> bool:
    if tensor.layout == torch.strided and tensor.is_contiguous():
        return False
    start, end = extent(tensor)
    return end - start > tensor.numel() * tensor.element_size()


def overlap(tensors: Any) -> bool:
    """Whether tensors of a list share memory."""
    tensors = each(tensors)
    if len(tensors) < 2:
        return False
    extents = sorted(extent(t) for t in tensors if t.numel())
    return any(end > start for (_, end), (start, _) in zip(extents, extents[1:]))


def summarise(tensor: torch.Tensor) -> Summary:
    """Shape, dtype, ends and checksum of a tensor; reads it once, at memory speed."""
    flat = tensor.detach().contiguous().reshape(-1)
    raw = flat.view(torch.uint8)
    if raw.storage_offset() % 8:  # int64 below wants aligned bytes
        raw = raw.clone()
    data, whole = raw.numpy(), raw.numel() // (8 * LARGE) * 8 * LARGE
    # Added up along memory: twice as fast as across it, and it sees when chunks have changed places.
    sums = np.add.reduce(data[:whole].view(np.int64).reshape(-1, LARGE), axis=1)
    checksum = zlib.crc32(data[whole:], zlib.crc32(sums))
    head, tail = tuple(flat[:3].tolist()), tuple(flat[-3:].tolist())
    return Summary(tuple(tensor.shape), tensor.dtype, raw.numel(), checksum, head, tail)


def _plainly(tensor: torch.Tensor):
    """What pickle makes a tensor of: its raw bytes, where it is plain."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    dense = tensor
    if tensor.is_conj() or tensor.is_neg() or not tensor.is_contiguous():
        dense = tensor.detach().contiguous().resolve_conj().resolve_neg()
    raw = ctypes.string_at(dense.data_ptr(), dense.nbytes)
    return _tensor, (raw, tensor.dtype, tuple(tensor.shape))


def _tensor(raw: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


def _faithfully(tensor: torch.Tensor):
    """As _plainly, where torch's own pickle would carry no more than numbers and a shape."""
    if (
        tensor.layout != torch.strided or not tensor.is_cpu or tensor.is_quantized or tensor.requires_grad
        or tensor.is_conj() or tensor.is_neg() or not tensor.is_contiguous() or tensor.__dict__
    ):  # fmt: skip
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    return _own_tensor, _plainly(tensor)[1]


def _own_tensor(raw: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return _tensor(raw, dtype, shape).clone()  # with memory of torch's own: it can be resized


pickle_by(torch.Tensor, _plainly, _faithfully)
