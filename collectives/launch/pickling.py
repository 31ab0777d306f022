"""Functions and tensors as bytes."""

import ctypes
import inspect
import io
import pickle
import sys
import threading
from collections import ChainMap
from contextlib import suppress
from operator import attrgetter
from pkgutil import resolve_name
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, Callable, Iterable

try:
    import cloudpickle
except ModuleNotFoundError:
    raise ModuleNotFoundError("run() needs cloudpickle: pip install 'collectives-course[run]'") from None
import torch

from ..format import with_article
from ..rank import torch_private
from ..rank.tensors import is_dense
from .wire import Pickler


class _Packer(cloudpickle.Pickler):
    """cloudpickle's, which also collects the classes and functions of `__main__` that it packs by value."""

    dispatch_table = ChainMap({}, cloudpickle.Pickler.dispatch_table)

    def __init__(self, buffer: io.BytesIO, on_tensor: Callable[[torch.Tensor], None] | None) -> None:
        super().__init__(buffer)
        self._on_tensor = on_tensor
        self.definitions: dict[str, Any] = {}  # by the name that pickle finds them by

    def reducer_override(self, value: Any) -> Any:
        if issubclass(type(value), (type, FunctionType)) and getattr(value, "__module__", None) == "__main__":
            with suppress(Exception):  # a local name, or one that is gone; a class may raise anything
                if attrgetter(value.__qualname__)(sys.modules["__main__"]) is value:
                    self.definitions[value.__qualname__] = value
        elif self._on_tensor and isinstance(value, torch.Tensor):
            self._on_tensor(value)
        return super().reducer_override(value)


def _submodules(code: CodeType, used: Iterable[Any]) -> list[ModuleType]:
    """The loaded modules that a function reaches through a package it uses: concurrent.futures through concurrent."""
    reached = [value for value in used if isinstance(value, ModuleType) and value.__package__]
    given = len(reached)
    for package in reached:  # its submodules are reached in turn
        below = (sys.modules.get(f"{package.__name__}.{name}") for name in code.co_names)
        reached += filter(None, below)
    return reached[given:]


unpack = pickle.loads
_packing = threading.Lock()
_cloudpickles_own = cloudpickle.cloudpickle._find_imported_submodules


def pack(value: Any, definitions: bool = False, on_tensor: Callable[[torch.Tensor], None] | None = None) -> bytes:
    """Functions, classes and objects of a notebook as bytes, by value where they must be.

    definitions: also pack the names of the notebook's own functions and classes, for unpack_with_definitions.
    on_tensor: called with each tensor in the value before it is read.
    """
    buffer = io.BytesIO()
    with _packing:
        if kind := torch_private.unfinished():
            _Packer.dispatch_table[kind] = lambda tensor: _faithfully(tensor.wait())
        # cloudpickle's own version goes through all loaded modules for each function, and torch loads a
        # thousand: that takes most of the time. Others in this process keep theirs.
        cloudpickle.cloudpickle._find_imported_submodules = _submodules
        try:
            packer = _Packer(buffer, on_tensor)
            packer.dump(value)
            if definitions:
                packer.dump(packer.definitions)
        finally:
            cloudpickle.cloudpickle._find_imported_submodules = _cloudpickles_own
    return buffer.getvalue()


def pack_call(fn: Callable, args: tuple, kwargs: dict) -> bytes:
    """A function and its arguments as bytes. Raises TypeError, which names what cannot travel."""
    try:
        return pack((fn, args, kwargs), definitions=True)
    except Exception as error:
        remedy = "Make it inside the function: each rank then has its own."
        raise TypeError(f"{_culprit(fn, args, kwargs)} cannot travel to the ranks: {error}. {remedy}") from None


def _culprit(fn: Callable, args: tuple, kwargs: dict) -> str:
    """Name the argument or variable that cannot be packed."""
    arguments = [(f"argument {k}", value) for k, value in (*enumerate(args, 1), *kwargs.items())]
    named = []
    for function in (fn, *(value for _, value in arguments)):
        with suppress(TypeError):  # no function
            used = inspect.getclosurevars(function)
            variables = {**used.globals, **used.nonlocals}
            named += [(f"the variable {name} that the function uses", value) for name, value in variables.items()]
    named += arguments
    for name, value in named:
        try:
            pack(value)
        except Exception:
            return f"{name}, {with_article(value)},"
    return with_article(fn)


def unpack_with_definitions(data: bytes) -> Any:
    """The packed value. From here on, pickle finds the notebook's functions and classes in this `__main__`."""
    unpickler, main = pickle.Unpickler(io.BytesIO(data)), ModuleType("__main__")
    value = unpickler.load()
    for name, definition in sorted(unpickler.load().items()):  # an outer class before those within it
        *outer, last = name.split(".")
        holder = main
        for part in outer:
            if not hasattr(holder, part):
                setattr(holder, part, SimpleNamespace())  # a placeholder for a class that hasn't been packed
            holder = getattr(holder, part)
        if not hasattr(holder, last):
            setattr(holder, last, definition)
        if isinstance(definition, type):
            type.__setattr__(definition, "__qualname__", name)  # cloudpickle keeps only the last part
    sys.modules["__main__"] = main
    return value


def _plainly(tensor: torch.Tensor):
    """A tensor's parts for pickle: its raw bytes, if it is dense."""
    if not is_dense(tensor):
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
    """As _plainly, if torch's own pickle would carry no more than numbers and a shape."""
    plain = is_dense(tensor) and tensor.is_cpu and tensor.is_contiguous()
    if not plain or tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.__dict__:
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    return _own_tensor, _plainly(tensor)[1]


def _own_tensor(raw: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return _tensor(raw, dtype, shape).clone()  # in torch's own memory, so it can be resized


Pickler.dispatch_table[torch.Tensor] = _plainly
_Packer.dispatch_table[torch.Tensor] = _faithfully
# torch.ops and torch.classes are modules only in name, and cannot be pickled: each rank looks up its own.
for kind, name in torch_private.PICKLED_BY_NAME.items():
    _Packer.dispatch_table[kind] = lambda value, name=name: (resolve_name, (name(value),))
