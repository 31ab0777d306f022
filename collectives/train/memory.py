"""Bytes of memory that a rank holds, counted from storages.  Needs torch alone, so that any program can use it.

A storage counts once, however many tensors are views of it (torch keeps one Python object for each): the gradients of a layer that fully_shard reduced are
views of one buffer.  It counts whole: the padding of an uneven shard is memory.  A DTensor counts with what this rank
holds of it.  A tensor on the meta device has a storage with a size and no memory: it counts nothing.  A file mapped
into memory counts with its size, though its pages may not be resident (RssAnon in /proc/self/status knows).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Callable, Iterable, Iterator

import torch
import torch.nn as nn

from ..rank.torch_private import base, local
from .modules import layer_of

SUBCLASSES = ("DTensor", "AsyncCollectiveTensor")  # by name: importing them takes a second


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """All tensors of a value: of a tensor, a module, an optimizer, and of lists, tuples, sets and dicts of them."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, nn.Module):
        yield from values.parameters()
        yield from values.buffers()
    elif isinstance(values, torch.optim.Optimizer):
        yield from tensors_in(values.state)
    elif isinstance(values, dict):
        yield from tensors_in(list(values.values()))
    elif isinstance(values, Iterable) and not isinstance(values, (str, bytes)):
        for value in values:
            yield from tensors_in(value)


def storages(*values: Any) -> dict[int, int]:
    """The distinct storages under all tensors of `values`: their identity, and the bytes of each."""
    mine = (local(t) for t in tensors_in(values))
    return {id(s): s.nbytes() for s in (t.untyped_storage() for t in mine if t.device.type != "meta")}


def nbytes(*values: Any) -> int:
    """Bytes of memory under tensors, modules, optimizers, and lists and dicts of them."""
    return sum(storages(*values).values())


class Activations:
    """What autograd keeps for backward, counted as it comes and goes.

    with Activations(model.parameters()) as kept:
        loss = model(x).sum()
        kept.nbytes              # now
    kept.peak                    # the most at any moment

    owned: tensors that do not count, for they are there anyway: parameters.  Leaves that require a gradient, and
    views of them, are left out in any case.  What a checkpointed region recomputes in backward is not seen: another
    pair of hooks keeps it.
    """

    def __init__(self, owned: Iterable[torch.Tensor] | Callable[[], Iterable[torch.Tensor]] = ()) -> None:
        self._owned = owned if callable(owned) else lambda kept=list(owned): kept
        self.by_layer: dict[str, dict[int, int]] = defaultdict(dict)  # layer -> storage -> bytes
        self.nbytes = self.peak = 0
        self._users: dict[int, int] = defaultdict(int)  # storage -> kept tensors that lie in it
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def __enter__(self) -> Activations:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def __contains__(self, storage: int) -> bool:
        return storage in self._users

    def where(self) -> str:
        """The name of the module whose forward is running."""
        return ""

    def pack(self, tensor: torch.Tensor) -> _Kept:
        where, storage = self.where(), local(tensor).untyped_storage()
        if local(tensor).device.type == "meta" or self._is_owned(tensor, id(storage)):
            release = None
        else:
            release = self._keep(layer_of(where), id(storage), storage.nbytes())
        # An operator's own output, kept with its history, would keep what keeps it.
        return _Kept(tensor if tensor.grad_fn is None else tensor.detach(), where, release)

    def unpack(self, kept: _Kept) -> torch.Tensor:
        return kept.tensor

    def _is_owned(self, tensor: torch.Tensor, storage: int) -> bool:
        for t in (tensor, base(tensor)):
            if t is not None and t.is_leaf and t.requires_grad:
                return True
        return any(id(local(t).untyped_storage()) == storage for t in self._owned())

    def _keep(self, layer: str, storage: int, size: int) -> Callable[[], None]:
        self._users[storage] += 1
        if self._users[storage] == 1:
            self.by_layer[layer][storage] = size
            self.nbytes += size
            self.peak = max(self.peak, self.nbytes)

        def release() -> None:
            self._users[storage] -= 1
            if not self._users[storage]:
                del self._users[storage]
                for kept in self.by_layer.values():
                    self.nbytes -= kept.pop(storage, 0)

        return release


class _Kept:
    """A tensor that autograd keeps, and that says so when autograd lets go of it."""

    __slots__ = ("tensor", "where", "_release")

    def __init__(self, tensor: torch.Tensor, where: str, release: Callable[[], None] | None) -> None:
        self.tensor, self.where, self._release = tensor, where, release

    def __del__(self) -> None:
        if self._release is not None:
            self._release()
