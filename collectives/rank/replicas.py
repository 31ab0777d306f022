"""Checksums of a rank's parameters, which show whether replicas are still equal."""

import itertools
import zlib
from typing import Callable, Iterable
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ..log.messages import Checked, Message
from . import torch_private
from .device import streams_of
from .tensors import summarise


class Replicas:
    """Reports the checksum after each optimizer's first step and each `every`-th."""

    def __init__(self, every: int, emit: Callable[[Message], None], calls: Callable[[], int]) -> None:
        self._every, self._emit, self._calls = every, emit, calls
        self._numbers = itertools.count()
        self._steps: WeakKeyDictionary[Optimizer, list[int]] = WeakKeyDictionary()  # -> its number, steps made

    def start(self) -> None:
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: Optimizer, *_) -> None:
        if torch.compiler.is_compiling():
            return
        if optimizer not in self._steps:
            self._steps[optimizer] = [next(self._numbers), 0]
        made = self._steps[optimizer]
        made[1] += 1
        if made[1] == 1 or made[1] % self._every == 0:
            with torch_private.NoModes():
                parameters = [p for group in optimizer.param_groups for p in group["params"]]
                checksum = _checksum(parameters)
                # Nobody need ask whether ranks hold different parts of a DTensor.
                asks = made[1] == 1 and not any(type(p).__name__ == "DTensor" for p in parameters)
                gradients = _checksum(p.grad for p in parameters) if asks else None
            if checksum is not None:
                if gradients is not None:
                    self._emit(Checked(made[0], 0, gradients, self._calls()))
                self._emit(Checked(*made, checksum, self._calls()))


def _checksum(tensors: Iterable[torch.Tensor | None]) -> int | None:
    """A checksum of this rank's part of the tensors, bit by bit; None while a CUDA graph is captured."""
    checksum = 0
    for tensor in tensors:
        if tensor is None:
            continue
        shard = torch_private.local(
            tensor
        ).detach()  # not the reverse: without modes, a DTensor's detach is its empty shell
        streams = streams_of(shard.device)
        if streams and streams.capturing():
            return None
        if shard.layout == torch.strided:
            checksum = zlib.crc32(summarise(shard).checksum.to_bytes(4, "little"), checksum)
    return checksum
