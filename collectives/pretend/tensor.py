"""A small tensor: numbers in an array, and views that share it.

Its memory, views and indexing are here, arithmetic is in arithmetic.py.  A float32 is rounded as it is stored, so each
operation rounds once, as torch's do.
"""

from __future__ import annotations

import operator
from array import array
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, Callable, Iterable, Iterator, Sequence

from . import dtypes
from .dtypes import Absent, dtype


class Size(tuple):
    """A shape."""

    def numel(self) -> int:
        return prod(self)

    def __repr__(self) -> str:
        return f"torch.Size({list(self)})"

    def __getitem__(self, at):
        part = super().__getitem__(at)
        return Size(part) if isinstance(at, slice) else part


class Storage:
    """Memory.  guards: called with "read" or "written", and the first place and the one after the last."""

    __slots__ = ("data", "guards")

    def __init__(self, data: array) -> None:
        self.data: array = data
        self.guards: list[Callable[[str, int, int], None]] = []

    def touch(self, how: str, places: Sequence[int]) -> None:
        if places:
            for guard in list(self.guards):
                guard(how, min(places), max(places) + 1)


class StridedLayout:
    """How numbers are laid out; there is one way here."""

    def __repr__(self) -> str:
        return "torch.strided"


class CpuDevice:
    """Where a tensor is: on the CPU."""

    type, index = "cpu", None

    def __init__(self, name: Any = "cpu") -> None:
        if str(name).partition(":")[0] != "cpu":
            raise Absent(f"this page has no {name}: its ranks compute on the CPU")

    def __repr__(self) -> str:
        return "device(type='cpu')"

    def __str__(self) -> str:
        return "cpu"

    def __eq__(self, item: object) -> bool:
        return isinstance(item, CpuDevice)

    def __hash__(self) -> int:
        return hash("cpu")


strided, CPU = StridedLayout(), CpuDevice()


@lru_cache(maxsize=1024)
def steps(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of numbers without gaps."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class Tensor:
    """Numbers of one kind in a shape.

    requires_grad, grad: as torch's.  node: how it was computed, for backward; None: it is not followed.
    """

    __slots__ = ("storage", "dtype", "shape", "strides", "offset", "requires_grad", "grad", "node", "__weakref__")
    __module__ = "torch"  # as error messages name it
    layout, device, is_quantized, is_meta, is_cpu, is_cuda, is_sparse = strided, CPU, False, False, True, False, False

    def __init__(
        self, storage: Storage, kind: dtype, shape: Iterable[int], strides: Sequence[int], offset: int
    ) -> None:
        self.storage, self.dtype, self.shape, self.offset = storage, kind, Size(shape), offset
        self.strides = tuple(strides)
        self.requires_grad, self.grad, self.node = False, None, None

    # How results follow from it, and how it is printed: arithmetic.py gives it these, with its operators.
    _follow_view: Callable[[Tensor, Tensor], Tensor]
    _follow_choice: Callable[[Tensor, Tensor, Sequence[int]], Tensor]
    _writes_into: Callable[[Tensor], None]

    # --- memory -------------------------------------------------------------------------------

    def places(self) -> Sequence[int]:
        """Where its numbers are in its memory, in the order of its elements."""
        if self.is_contiguous():
            return range(self.offset, self.offset + self.numel())
        axes = [range(0, size * step, step) if step else [0] * size for size, step in zip(self.shape, self.strides)]
        return [self.offset + sum(at) for at in product(*axes)]

    def peek(self) -> list:
        """Its numbers, in the order of its elements. Not a use by the program."""
        data = self.storage.data
        if self.is_contiguous():
            numbers = data[self.offset : self.offset + self.numel()].tolist()
        else:
            numbers = [data[place] for place in self.places()]
        return list(map(bool, numbers)) if self.dtype is dtypes.bool_ else numbers

    def values(self) -> list:
        """Its numbers, in the order of its elements."""
        if self.storage.guards:
            self.storage.touch("read", self.places())
        return self.peek()

    def poke(self, values: Iterable) -> None:
        """Store numbers, in the order of its elements. Not a use by the program."""
        data, fit = self.storage.data, self.dtype.fit
        for place, value in zip(self.places(), values):
            data[place] = fit(value)

    def store(self, values: Iterable) -> None:
        """Store numbers, in the order of its elements."""
        if self.storage.guards:
            self.storage.touch("written", self.places())
        self.poke(values)

    def numel(self) -> int:
        return prod(self.shape)

    nelement = numel

    def element_size(self) -> int:
        return self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.numel() * self.dtype.itemsize

    def data_ptr(self) -> int:
        return self.storage.data.buffer_info()[0] + self.offset * self.dtype.itemsize

    def storage_offset(self) -> int:
        return self.offset

    def stride(self, dim: int | None = None):
        return self.strides if dim is None else self.strides[dim]

    def is_contiguous(self, memory_format: Any = None) -> bool:
        if self.strides == steps(tuple(self.shape)):
            return True
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size != 1 and stride != step:
                return self.numel() == 0
            step *= size
        return True

    def size(self, dim: int | None = None):
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return len(self.shape)

    ndimension = dim

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def is_complex(self) -> bool:
        return False

    @property
    def is_leaf(self) -> bool:
        return self.node is None

    @property
    def grad_fn(self):
        return self.node

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        if requires_grad and not self.dtype.is_floating_point:
            raise RuntimeError("only Tensors of floating point dtype can require gradients")
        self.requires_grad = requires_grad
        return self

    @property
    def data(self) -> Tensor:
        return self.detach()

    def detach(self) -> Tensor:
        return Tensor(self.storage, self.dtype, self.shape, self.strides, self.offset)

    # --- as Python's numbers ------------------------------------------------------------------

    def tolist(self):
        return nested(self.values(), self.shape)

    def item(self):
        if self.numel() != 1:
            raise RuntimeError(f"a Tensor with {self.numel()} elements cannot be converted to Scalar")
        return self.values()[0]

    def __bool__(self) -> bool:
        if self.numel() != 1:
            many = "no values is ambiguous" if not self.numel() else "more than one value is ambiguous"
            raise RuntimeError(f"Boolean value of Tensor with {many}")
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.numel() != 1 or self.dtype.is_floating_point:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor")
        return iter([self[k] for k in range(self.shape[0])])

    def __hash__(self) -> int:
        return id(self)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if not self.shape else object.__format__(self, spec)

    def __deepcopy__(self, memo: dict) -> Tensor:
        twin = new(self.peek(), self.shape, self.dtype)
        twin.requires_grad = self.requires_grad
        return twin

    def numpy(self):
        raise Absent("this page has no NumPy")

    # --- views --------------------------------------------------------------------------------

    def as_view(self, shape: Iterable[int], strides: Sequence[int], offset: int) -> Tensor:
        """Other elements of the same memory."""
        return self._follow_view(Tensor(self.storage, self.dtype, shape, strides, offset))

    def view(self, *shape) -> Tensor:
        if len(shape) == 1 and isinstance(shape[0], dtype):
            return self._reinterpreted(shape[0])
        target = sizes(shape, self.numel())
        if not self.is_contiguous():
            if (strides := self._strides_as(target)) is not None:
                return self.as_view(target, strides, self.offset)
            raise RuntimeError(
                "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
                "contiguous subspaces). Use .reshape(...) instead."
            )
        return self.as_view(target, steps(tuple(target)), self.offset)

    def _strides_as(self, target: Sequence[int]) -> tuple[int, ...] | None:
        """The strides of this shape if the memory allows it; None if not."""
        strides: list[int] = []
        groups = [(size, step) for size, step in zip(self.shape, self.strides) if size != 1]
        merged: list[list[int]] = []
        for size, step in groups:
            if merged and merged[-1][1] == size * step:
                merged[-1] = [merged[-1][0] * size, step]
            else:
                merged.append([size, step])
        for size in reversed(target):
            if size == 1:
                strides.append(1)
                continue
            if not merged or merged[-1][0] % size:
                return None
            strides.append(merged[-1][1])
            merged[-1] = [merged[-1][0] // size, merged[-1][1] * size]
            if merged[-1][0] == 1:
                merged.pop()
        return tuple(reversed(strides)) if not merged else None

    def _reinterpreted(self, kind: dtype) -> Tensor:
        flat = self.contiguous()
        raw = array(flat.dtype.code, [int(v) if flat.dtype is dtypes.bool_ else v for v in flat.values()]).tobytes()
        count = len(raw) // kind.itemsize
        shape = (*self.shape[:-1], self.shape[-1] * self.dtype.itemsize // kind.itemsize) if self.shape else (count,)
        return new(array(kind.code, raw).tolist(), shape, kind)

    def view_as(self, like: Tensor) -> Tensor:
        return self.view(like.shape)

    def reshape(self, *shape) -> Tensor:
        target = sizes(shape, self.numel())
        if not self.is_contiguous() and self._strides_as(target) is None:
            return self.contiguous().view(target)
        return self.view(target)

    def reshape_as(self, like: Tensor) -> Tensor:
        return self.reshape(like.shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        if not self.shape:
            return self.reshape(1)
        first, last = place(start_dim, self.ndim), place(end_dim, self.ndim)
        return self.reshape(*self.shape[:first], prod(self.shape[first : last + 1]), *self.shape[last + 1 :])

    ravel = flatten

    def contiguous(self, memory_format: Any = None) -> Tensor:
        return self if self.is_contiguous() else self.clone()

    def permute(self, *dims) -> Tensor:
        order = [place(dim, self.ndim) for dim in spread(dims)]
        return self.as_view([self.shape[k] for k in order], [self.strides[k] for k in order], self.offset)

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        order = list(range(self.ndim))
        first, second = place(dim0, self.ndim), place(dim1, self.ndim)
        order[first], order[second] = second, first
        return self.permute(*order)

    def t(self) -> Tensor:
        return self.transpose(0, 1) if self.ndim == 2 else self.permute(*range(self.ndim))

    @property
    def T(self) -> Tensor:
        return self.permute(*reversed(range(self.ndim)))

    mT = property(lambda self: self.transpose(-1, -2))

    def squeeze(self, dim: int | None = None) -> Tensor:
        dims = [k for k, size in enumerate(self.shape) if size != 1 or dim is not None and k != place(dim, self.ndim)]
        return self.as_view([self.shape[k] for k in dims], [self.strides[k] for k in dims], self.offset)

    def unsqueeze(self, dim: int) -> Tensor:
        at = place(dim, self.ndim + 1)
        step = self.shape[at] * self.strides[at] if at < self.ndim else 1
        shape, strides = [*self.shape], [*self.strides]
        shape.insert(at, 1)
        strides.insert(at, step)
        return self.as_view(shape, strides, self.offset)

    def expand(self, *shape) -> Tensor:
        target = list(spread(shape))
        extra = len(target) - self.ndim
        sizes_now, strides = [1] * extra + [*self.shape], [0] * extra + [*self.strides]
        for k, (size, have) in enumerate(zip(target, sizes_now)):
            if size == -1 and k >= extra:
                target[k] = have
            elif size != have:
                if have != 1:
                    raise RuntimeError(
                        f"The expanded size of the tensor ({size}) must match the existing size ({have}) at non-singleton "
                        f"dimension {k}.  Target sizes: {list(target)}.  Tensor sizes: {list(self.shape)}"
                    )
                strides[k] = 0
        return self.as_view(target, strides, self.offset)

    def expand_as(self, like: Tensor) -> Tensor:
        return self.expand(like.shape)

    def narrow(self, dim: int, start: int, length: int) -> Tensor:
        at = place(dim, self.ndim)
        if start < 0:
            start += self.shape[at]
        if start + length > self.shape[at]:
            raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({self.shape[at]}).")
        shape = [*self.shape]
        shape[at] = length
        return self.as_view(shape, self.strides, self.offset + start * self.strides[at])

    def select(self, dim: int, index: int) -> Tensor:
        at, index = place(dim, self.ndim), operator.index(index)
        size = self.shape[at]
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of bounds for dimension {at} with size {size}")
        rest = [k for k in range(self.ndim) if k != at]
        offset = self.offset + index % size * self.strides[at]
        return self.as_view([self.shape[k] for k in rest], [self.strides[k] for k in rest], offset)

    def unbind(self, dim: int = 0) -> tuple[Tensor, ...]:
        return tuple(self.select(dim, k) for k in range(self.shape[dim]))

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        size = self.shape[dim]
        if isinstance(split_size, int):
            lengths = [min(split_size, size - k) for k in range(0, size, split_size)] or [0]
        else:
            lengths = list(split_size)
            if sum(lengths) != size:
                raise RuntimeError(
                    f"split_with_sizes expects split_sizes to sum exactly to {size} (input tensor's size at dimension {dim}), "
                    f"but got split_sizes={lengths}"
                )
        starts = [sum(lengths[:k]) for k in range(len(lengths))]
        return tuple(self.narrow(dim, start, length) for start, length in zip(starts, lengths))

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        if chunks <= 0:
            raise RuntimeError("chunk expects `chunks` to be greater than 0, got: " + str(chunks))
        size = -(-self.shape[dim] // chunks)
        return self.split(size, dim) if size else tuple(self.narrow(dim, 0, 0) for _ in range(chunks))

    def tensor_split(self, indices_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        size = self.shape[dim]
        if isinstance(indices_or_sections, int):
            least, more = divmod(size, indices_or_sections)
            lengths = [least + (k < more) for k in range(indices_or_sections)]
            ends = [sum(lengths[: k + 1]) for k in range(len(lengths) - 1)]
        else:
            ends = [min(end, size) for end in indices_or_sections]
        bounds = [0, *ends, size]
        return tuple(self.narrow(dim, a, max(0, b - a)) for a, b in zip(bounds, bounds[1:]))

    # --- indexing -----------------------------------------------------------------------------

    def __getitem__(self, index) -> Tensor:
        view, chosen = self._basic(index)
        return view if chosen is None else view._gathered(*chosen)

    def __setitem__(self, index, value) -> None:
        self._writes_into()
        view, chosen = self.detach()._basic(index)
        target = view if chosen is None else view._numbered(*chosen)
        source = value.detach() if isinstance(value, Tensor) else tensor(value, dtype=self.dtype)
        while source.ndim > target.ndim and source.shape[0] == 1:
            source = source[0]
        try:
            source = source.expand(target.shape)
        except RuntimeError:
            raise RuntimeError(
                f"shape mismatch: value tensor of shape {list(source.shape)} cannot be broadcast to indexing result of shape "
                f"{list(target.shape)}"
            ) from None
        if chosen is None:
            view.store(source.values())
            return
        spots = view.places()
        data, fit = view.storage.data, view.dtype.fit
        if view.storage.guards:
            view.storage.touch("written", [spots[k] for k in target.peek()])
        for k, number in zip(target.peek(), source.values()):
            data[spots[k]] = fit(number)

    def _basic(self, index) -> tuple[Tensor, tuple[int, list[Tensor]] | None]:
        """The view that whole numbers, slices, None and ... select; the first dimension and indices that are tensors."""
        items = list(index) if isinstance(index, tuple) else [index]
        count = sum(item.ndim if _is_mask(item) else 1 for item in items if item is not None and item is not Ellipsis)
        if count > self.ndim:
            raise IndexError(f"too many indices for tensor of dimension {self.ndim}")
        if not any(item is Ellipsis for item in items):
            items.append(Ellipsis)
        at = next(k for k, item in enumerate(items) if item is Ellipsis)
        items[at : at + 1] = [slice(None)] * (self.ndim - count)
        view, dim, tensors, first = self, 0, [], 0
        for item in items:
            if item is None:
                view, dim = view.unsqueeze(dim), dim + 1
            elif isinstance(item, slice):
                begin, end, step = item.indices(view.shape[dim])
                if step < 0:
                    raise ValueError("step must be greater than zero")
                shape, strides = [*view.shape], [*view.strides]
                shape[dim], strides[dim] = len(range(begin, end, step)), view.strides[dim] * step
                offset = view.offset + begin * view.strides[dim] * (shape[dim] > 0)
                view, dim = view.as_view(shape, strides, offset), dim + 1
            elif isinstance(item, bool):
                raise Absent("this page has no index True or False")
            elif isinstance(item, int) or isinstance(item, Tensor) and not item.shape and not _is_mask(item):
                view = view.select(dim, int(item))
            else:
                item = item if isinstance(item, Tensor) else tensor(item)
                if item.dtype.is_floating_point:
                    raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
                parts = item.nonzero().unbind(1) if _is_mask(item) else [item]
                if tensors and dim != first + len(tensors):
                    raise Absent("this page has no index with two tensors that are not side by side")
                first = first if tensors else dim
                tensors += parts
                dim += len(parts)
        return view, (first, tensors) if tensors else None

    def _numbered(self, dim: int, indices: list[Tensor]) -> Tensor:
        """For each element that indices select, its number among the elements."""
        numbers = new(list(range(self.numel())), self.shape, dtypes.int64)
        shape: Sequence[int] = ()
        for index in indices:
            shape = broadcast(shape, index.shape)
        chosen = [index.expand(shape).values() for index in indices]
        bounds = self.shape[dim : dim + len(indices)]
        for of_dim, size in zip(chosen, bounds):
            for k in of_dim:
                if not -size <= k < size:
                    raise IndexError(f"index {k} is out of bounds for dimension {dim} with size {size}")
        flat = numbers.reshape(prod(self.shape[:dim]), *bounds, prod(self.shape[dim + len(indices) :]))
        picked = []
        for outer in range(flat.shape[0]):
            for at in zip(*chosen):
                part = flat[outer]
                for k in at:
                    part = part.select(0, k)
                picked += part.peek()
        return new(picked, (*self.shape[:dim], *shape, *self.shape[dim + len(indices) :]), dtypes.int64)

    def _gathered(self, dim: int, indices: list[Tensor]) -> Tensor:
        numbers = self._numbered(dim, indices)
        chosen, elements = numbers.peek(), self.values()
        return self._follow_choice(new([elements[k] for k in chosen], numbers.shape, self.dtype), chosen)


def _is_mask(item: Any) -> bool:
    if isinstance(item, list):
        return bool(item) and all(isinstance(k, bool) for k in item)
    return isinstance(item, Tensor) and item.dtype is dtypes.bool_


def spread(shape: Sequence) -> Sequence[int]:
    """A shape that was passed as several numbers, or as one sequence."""
    return shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape


def sizes(shape: Sequence, count: int) -> list[int]:
    """A shape for this number of elements, with the size that -1 means."""
    target = [operator.index(size) for size in spread(shape)]
    if -1 in target:
        rest = prod(size for size in target if size != -1)
        if not rest or count % rest:
            raise RuntimeError(f"shape '{target}' is invalid for input of size {count}")
        target[target.index(-1)] = count // rest
    if prod(target) != count:
        raise RuntimeError(f"shape '{target}' is invalid for input of size {count}")
    return target


def place(dim: int, ndim: int) -> int:
    """A dimension's place, which may be counted from the last."""
    if not -max(ndim, 1) <= dim < max(ndim, 1):
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-max(ndim, 1)}, {max(ndim, 1) - 1}], but got {dim})"
        )
    return dim % max(ndim, 1)


def broadcast(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    """The shape of a result of two shapes."""
    if left == right or not left:
        return tuple(right)
    ndim = max(len(left), len(right))
    a, b = (1,) * (ndim - len(left)) + tuple(left), (1,) * (ndim - len(right)) + tuple(right)
    for k, (x, y) in enumerate(zip(a, b)):
        if x != y and 1 not in (x, y):
            raise RuntimeError(
                f"The size of tensor a ({x}) must match the size of tensor b ({y}) at non-singleton dimension {k}"
            )
    return tuple(y if x == 1 else x for x, y in zip(a, b))


def new(values: Iterable, shape: Iterable[int], kind: dtype) -> Tensor:
    """A tensor with memory of its own."""
    if not kind.code:
        raise Absent(f"this page has no tensors of {kind}")
    data = array(kind.code, values if kind.is_floating_point else map(kind.fit, values))
    shape = tuple(shape)
    return Tensor(Storage(data), kind, shape, steps(shape), 0)


def nested(values: list, shape: Sequence[int]):
    """Numbers as lists in lists."""
    if not shape:
        return values[0]
    size = prod(shape[1:])
    return [nested(values[k * size : (k + 1) * size], shape[1:]) for k in range(shape[0])]


def tensor(data: Any, *, dtype: dtype | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """torch.tensor: a copy of numbers, lists of them, or tensors."""
    shape, values, kinds = _unpacked(data)
    kind = dtype
    if kind is None:
        kind = dtypes.float32
        for k, part in enumerate(kinds):
            kind = part if not k else dtypes.wider(kind, part)
    result = new(values, shape, kind)
    return result.requires_grad_() if requires_grad else result


as_tensor = tensor


def _unpacked(data: Any) -> tuple[tuple[int, ...], list, list[dtype]]:
    """Shape, numbers and kinds."""
    if isinstance(data, Tensor):
        return tuple(data.shape), data.values(), [data.dtype]
    if isinstance(data, (list, tuple, range)):
        parts = [_unpacked(part) for part in data]
        if len({shape for shape, *_ in parts}) > 1:
            (length, *_), (different, *_) = parts[0], next(part for part in parts if part[0] != parts[0][0])
            raise ValueError(
                f"expected sequence of length {length[0] if length else 0} at dim 1 (got {different[0] if different else 0})"
            )
        inner = parts[0][0] if parts else ()
        return (len(parts), *inner), [v for _, values, _ in parts for v in values], [k for *_, ks in parts for k in ks]
    if type(data) not in dtypes.BY_TYPE:
        if data is None:
            raise RuntimeError("Could not infer dtype of NoneType")
        raise TypeError(f"new(): invalid data type '{type(data).__name__}'")
    return (), [data], [dtypes.BY_TYPE[type(data)]]
