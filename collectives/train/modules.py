"""The modules of a program as they are met: their names, their parameters, and how much of each this rank holds."""

import re
import weakref
from collections import defaultdict
from math import prod
from typing import Any, Callable, Iterator

import torch
import torch.nn as nn

from ..rank.torch_private import local


class Modules:
    """The modules that were met, by name, and the shape of each parameter before anybody cut it."""

    def __init__(self) -> None:
        self.name: dict[int, str] = {}
        self.shape: dict[str, tuple[int, ...]] = {}
        self._roots: list[nn.Module] = []
        self._all: list[tuple[str, weakref.ref]] = []  # a program may drop parts of a model: other ranks' experts
        self._shard = weakref.WeakValueDictionary()  # by name, of parameters that are cut
        self._gathered = weakref.WeakValueDictionary()  # what is in a shard's place for a moment

    def register(self, root: nn.Module) -> None:
        children = dict(root.named_children())
        while len(children) == 1 and (inside := children.get("module", children.get("_orig_mod"))) is not None:
            if id(inside) in self.name:
                break
            root, children = inside, dict(inside.named_children())  # what DistributedDataParallel or torch.compile wraps
        self._roots.append(root)
        for name, module in root.named_modules():
            if (key := id(module)) not in self.name:
                self.name[key] = name
                self._all.append((name, weakref.ref(module, lambda _, key=key: self.name.pop(key, None))))
        for name, p in self.parameters():
            self.shape.setdefault(name, tuple(p.shape))

    def layers(self) -> dict[str, int]:
        """Bytes of each layer's parameters, uncut."""
        total: dict[str, int] = defaultdict(int)
        for name, p in self.parameters():
            total[layer_of(name)] += prod(self.shape.get(name, p.shape)) * p.element_size()
        return dict(total)

    def note_shards(self) -> None:
        """To be called before a forward: while fully_shard has a parameter gathered, another is in its place."""
        for name, p in self.parameters():
            if type(p).__name__ == "DTensor":
                self._shard[name] = p

    def trained(self) -> list[torch.Tensor]:
        """All parameters, the shards of the ones gathered at the moment, and the gathered tensors.

        fully_shard keeps a gathered parameter without its memory, but with its whole gradient until that is reduced.
        """
        return [*(p for _, p in self.parameters()), *self._shard.values(), *self._gathered.values()]

    def gradients(self) -> list[torch.Tensor]:
        """Those of all that are trained."""
        return [p.grad for p in self.trained() if p.grad is not None]

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self._own(nn.Module.named_parameters)

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._own(nn.Module.named_buffers)

    def _own(self, named: Callable) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()  # tied ones count once, with the first name
        for name, ref in self._all:
            if (module := ref()) is None:
                continue
            for key, value in named(module, recurse=False):
                if id(value) not in seen:
                    seen.add(id(value))
                    yield f"{name}.{key}".lstrip("."), value

    def held(self) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
        """Per layer, the storages of parameters held in part, and of those held whole."""
        sharded: dict[str, dict[int, int]] = defaultdict(dict)
        whole: dict[str, dict[int, int]] = defaultdict(dict)
        seen: set[int] = set()
        for name, p in self.parameters():
            if name in self._shard and type(p).__name__ != "DTensor":
                self._gathered[name] = p
            for tensor in (p, self._shard.get(name)):
                if tensor is None or tensor.device.type == "meta":
                    continue
                mine = local(tensor)
                into = whole if mine.numel() == prod(self.shape.get(name, p.shape)) else sharded
                storage = mine.untyped_storage()
                if id(storage) not in seen:
                    seen.add(id(storage))
                    into[layer_of(name)][id(storage)] = storage.nbytes()
        return sharded, whole


def layer_of(name: str) -> str:
    """'block0.mlp.down.weight' -> 'block0'; 'layers.3.attention' -> 'layers.3'"""
    return re.match(r"[^.]*(\.\d+)?", name).group()
