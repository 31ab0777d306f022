"""Bytes of memory that a rank holds, counted from storages.  Needs torch alone, so that any program can use it.

A storage counts once, however many tensors are views of it (torch keeps one Python object for each): the gradients of a
layer that fully_shard reduced are views of one buffer.  It counts whole: the padding of an uneven shard is memory.  A
DTensor counts with what this rank holds of it.  A tensor on the meta device has a storage with a size and no memory: it
counts nothing.  A file mapped into memory counts with its size, though its pages may not be resident (RssAnon in
/proc/self/status knows).
"""

import weakref
from collections import Counter, defaultdict
from dataclasses import dataclass
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


class Activations(torch.autograd.graph.saved_tensors_hooks):
    """The bytes that autograd keeps for backward, counted as they come and go.

    with Activations(model.parameters()) as kept:
        loss = model(x).sum()
        kept.nbytes              # now
    kept.peak                    # the most at any moment

    owned: tensors that do not count, for they are there anyway: parameters.  Leaves that require a gradient, and
    views of them, are left out in any case.  Tensors that a checkpointed region recomputes in backward are not seen:
    another pair of hooks keeps them.
    where: returns the name of the module whose forward is running.  used: called with it when backward comes to it.
    """

    def __init__(
        self,
        owned: Iterable[torch.Tensor] | Callable[[], Iterable[torch.Tensor]] = (),
        where: Callable[[], str] = lambda: "",
        used: Callable[[str], None] = lambda where: None,
    ) -> None:
        super().__init__(self._pack, self._unpack)
        self._owned = owned if callable(owned) else lambda kept=list(owned): kept
        self._where, self._used = where, used
        self.by_layer: dict[str, dict[int, int]] = defaultdict(dict)  # layer -> storage -> bytes
        self.nbytes = self.peak = 0
        self.users: Counter[int] = Counter()  # storage -> kept tensors in it

    def __enter__(self) -> "Activations":
        super().__enter__()
        return self

    def _pack(self, tensor: torch.Tensor) -> "_Activation":
        where, storage = self._where(), local(tensor).untyped_storage()
        # An operator's own output, kept with its history, would keep what keeps it.
        kept = _Activation(tensor if tensor.grad_fn is None else tensor.detach(), where)
        if local(tensor).device.type != "meta" and not self._is_owned(tensor, id(storage)):
            self.users[id(storage)] += 1
            if self.users[id(storage)] == 1:
                self.by_layer[layer_of(where)][id(storage)] = storage.nbytes()
                self.nbytes += storage.nbytes()
                self.peak = max(self.peak, self.nbytes)
            weakref.finalize(kept, self._release, id(storage)).atexit = False
        return kept

    def _unpack(self, kept: "_Activation") -> torch.Tensor:
        self._used(kept.where)
        return kept.tensor

    def _is_owned(self, tensor: torch.Tensor, storage: int) -> bool:
        if any(t is not None and t.is_leaf and t.requires_grad for t in (tensor, base(tensor))):
            return True
        return any(id(local(t).untyped_storage()) == storage for t in self._owned())

    def _release(self, storage: int) -> None:
        self.users[storage] -= 1
        if not self.users[storage]:
            del self.users[storage]
            for kept in self.by_layer.values():
                self.nbytes -= kept.pop(storage, 0)


@dataclass(eq=False)
class _Activation:
    """The object that autograd keeps instead of a tensor: its end shows that autograd freed it."""

    tensor: torch.Tensor
    where: str  # the module whose forward was running
