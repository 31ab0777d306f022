"""Tensors as memory: their addresses, whether they overlap, how they travel, and summaries of large ones."""

import ctypes
import functools
import zlib
from typing import Any

import numpy as np
import torch

from ..log.event import Summary, Value

LARGE = 1024  # tensors with more elements are summarised
_NUMPY = {
    getattr(torch, name): np.dtype(name)
    for name in ("float16", "float32", "float64", "complex64", "complex128", "int8", "int16", "int32", "int64", "uint8")
} | {torch.bool: np.dtype(bool)}
_tolist = torch.Tensor.tolist  # before early_use.py replaces it: the recorder's reading isn't the program's
MAX_ELEMENTS = 1 << 16  # of a list, to be compared one by one


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte and of the end of its last; empty if it has no memory."""
    try:
        start = tensor.data_ptr()
    except RuntimeError:  # not strided, or a subclass that stands for other tensors
        return 0, 0
    if not start:  # empty, or on the meta device
        return 0, 0
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    reach = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    return start, start + (reach + 1) * tensor.element_size()


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are all in memory, as the numbers that they represent."""
    return tensor.layout == torch.strided and not tensor.is_quantized


def has_gaps(tensor: torch.Tensor) -> bool:
    if tensor.layout != torch.strided or tensor.is_contiguous():
        return False
    start, end = extent(tensor)
    return end - start > tensor.numel() * tensor.element_size()


def are_reordered(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
    """Whether tensors without gaps store their elements in a different order than those that are filled from them."""
    return len({_order(t) for t in (*inputs, *outputs) if t.layout == torch.strided and t.numel() > 1}) > 1


def non_dense(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> tuple[str, ...]:
    """The irregular layouts of a call's tensors, as in Event.non_dense."""
    gaps = ("in",) * any(map(has_gaps, inputs)) + ("out",) * any(map(has_gaps, outputs))
    return gaps or ("order",) * (outputs is not inputs and are_reordered(inputs, outputs))


def _order(tensor: torch.Tensor) -> tuple[int, ...]:
    """The dimensions of a tensor that have more than one index, from the largest stride to the smallest."""
    dims = [d for d, n in enumerate(tensor.shape) if n > 1]
    return tuple(sorted(dims, key=lambda d: -tensor.stride(d)))


def aliased(tensors: list[torch.Tensor]) -> bool:
    """Whether every tensor of a list shares memory with another one.

    Some tensors may overlap on purpose: Muon pads a list with one scratch tensor, several times. Views whose elements
    interleave (columns) share none. Above MAX_ELEMENTS, only dense tensors that overlap count as sharing.
    """
    tensors = [t for t in tensors if t.numel()]
    extents = [extent(t) for t in tensors]
    ordered = sorted(extents)
    if not any(end > start for (_, end), (start, _) in zip(ordered, ordered[1:])):
        return False
    if sum(t.numel() for t in tensors) > MAX_ELEMENTS:
        return all(
            any(k != i and start < e and s < end for k, (s, e) in enumerate(extents)) and not has_gaps(t)
            for i, (t, (start, end)) in enumerate(zip(tensors, extents))
        )
    addresses = [_addresses(t, start) for t, (start, _) in zip(tensors, extents)]
    _, names, counts = torch.cat(addresses).unique(return_inverse=True, return_counts=True)
    return all(bool(shared.any()) for shared in (counts > 1)[names].split([len(a) for a in addresses]))


def _addresses(tensor: torch.Tensor, start: int) -> torch.Tensor:
    """The addresses of a tensor's elements, each once."""
    addresses = torch.tensor([start])
    for n, stride in zip(tensor.shape, tensor.stride()):
        steps = torch.arange(n if stride else 1) * stride * tensor.element_size()
        addresses = (addresses[:, None] + steps).reshape(-1)
    return addresses


def capture(value: Any, whole: bool = False, scratch: bool = False) -> Value:
    """A tensor, or a list of them, as it is now and as it can travel; large ones as a Summary unless `whole`.

    scratch: its contents mean nothing, so a large one's Summary has no numbers.
    The result may share the tensor's memory: it must be written down before the program continues.
    """
    if value is None:
        return None
    if isinstance(value, list):
        return [capture(v, whole, scratch) for v in value]
    if value.layout != torch.strided:
        value = value.to_dense()
    if type(value) is not torch.Tensor:
        value = value.detach()  # a Parameter, say: what travels is a tensor
    if value.numel() > LARGE and not whole:
        return outline(value) if scratch else summarise(value)
    return value if value.is_cpu else value.detach().cpu()


def outline(value: Any, scratch: bool = False) -> Value:
    """Shape and dtype of a tensor, or of each in a list: a Summary without numbers. Reads none of its memory."""
    if value is None:
        return None
    if isinstance(value, list):
        return [outline(v) for v in value]
    return _outline(value.shape, value.dtype)


@functools.lru_cache(maxsize=4096)
def _outline(shape: torch.Size, dtype: torch.dtype) -> Summary:
    return Summary(tuple(shape), dtype, shape.numel() * dtype.itemsize, 0, (), ())


def summarise(tensor: torch.Tensor) -> Summary:
    """Shape, dtype, ends and checksum of a tensor; reads it once, at memory speed, on its own device.

    From a device, only the block sums, the bytes after the last block, and the ends are copied.
    """
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    dense = tensor if tensor.is_contiguous() else tensor.contiguous()
    nbytes = dense.nbytes
    whole = nbytes // (8 * LARGE) * 8 * LARGE
    # Summed along memory: twice as fast as across it, and sensitive to chunks that have swapped places.
    if dense.is_cpu:  # without torch's operators, which take several times as long
        raw = (ctypes.c_char * nbytes).from_address(dense.data_ptr())
        sums = np.add.reduce(np.frombuffer(raw, np.int64, whole // 8).reshape(-1, LARGE), 1)
        rest = memoryview(raw)[whole:]
    else:
        raw = dense.detach().view(-1).view(torch.uint8)
        aligned = raw.clone() if raw.storage_offset() % 8 else raw
        sums = aligned[:whole].view(torch.int64).reshape(-1, LARGE).sum(1).cpu().numpy()
        rest = raw[whole:].cpu().numpy()
    if dense.is_cpu and dense.dtype in _NUMPY:
        numbers = np.frombuffer(raw, _NUMPY[dense.dtype])
        head, tail = numbers[:3].tolist(), numbers[-3:].tolist()
    else:
        flat = dense.detach().view(-1)
        head, tail = _tolist(flat[:3]), _tolist(flat[-3:])
    checksum = zlib.crc32(rest, zlib.crc32(sums))
    return Summary(tuple(tensor.shape), tensor.dtype, nbytes, checksum, tuple(head), tuple(tail))
