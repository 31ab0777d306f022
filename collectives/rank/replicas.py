"""Checksums of a rank's parameters, which tell whether ranks that should have the same still do."""

import zlib
from typing import Callable
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from . import torch_private
from .protocol import Checked, Message
from .tensors import summarise


class Replicas:
    """Tells of the checksum after each optimizer's first step and each `every`-th; every 0: never."""

    def __init__(self, every: int, emit: Callable[[Message], None]) -> None:
        self._every, self._emit = every, emit
        self._steps: WeakKeyDictionary[Optimizer, list[int]] = WeakKeyDictionary()  # -> its number, steps it has made
        self._hook = None

    def start(self) -> None:
        if self._every:
            self._hook = register_optimizer_step_post_hook(self._stepped)

    def stop(self) -> None:
        if self._hook:
            self._hook.remove()

    def _stepped(self, optimizer: Optimizer, *_) -> None:
        if torch.compiler.is_compiling():
            return
        made = self._steps.setdefault(optimizer, [len(self._steps), 0])
        made[1] += 1
        if made[1] == 1 or made[1] % self._every == 0:
            with torch_private.NoModes():
                self._emit(Checked(*made, _checksum(optimizer)))


def _checksum(optimizer: Optimizer) -> int:
    """Of what this rank holds of the optimizer's parameters, bit by bit."""
    checksum = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            own = summarise(torch_private.local(parameter.detach())).checksum
            checksum = zlib.crc32(own.to_bytes(4, "little"), checksum)
    return checksum
