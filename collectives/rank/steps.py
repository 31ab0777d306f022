"""Counts the training steps of a rank: by its optimizer, or by the program's own marks.

A step ends when the optimizer has stepped. Of several that take turns, the one that comes last counts, which is known
once the first of them steps again; until then each counts that made calls of its own.
"""

from __future__ import annotations

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

_counting: list[Steps] = []  # of the tracers that are entered


class Steps:
    """count: steps that have ended, as the next call shall tell."""

    def __init__(self) -> None:
        self._ended, self._over = 0, False
        self._marked = False  # the program marks its steps itself
        self._since: list[int] = []  # optimizers that have stepped since the last step ended
        self._closing: int | None = None  # the optimizer that ends a step

    def start(self) -> None:
        _counting.append(self)
        self._hook = register_optimizer_step_post_hook(self._stepped)

    def stop(self) -> None:
        self._hook.remove()
        _counting.remove(self)

    @property
    def count(self) -> int:
        self._ended += self._over  # now: optimizers that step one after the other, without a call between, are one step
        self._over = False
        return self._ended

    def mark(self) -> None:
        """The program says that a step has ended."""
        self._marked = self._over = True

    def _stepped(self, optimizer: Optimizer, *_) -> None:
        if torch.compiler.is_compiling() or self._marked:  # while it is traced nothing happens
            return
        me = id(optimizer)
        if me in self._since:
            self._closing, self._since = self._since[-1], []
        self._since.append(me)
        if self._closing in (None, me):
            self._over = True
            if self._closing is not None:
                self._since.clear()


def step_ended() -> None:
    """Say that a training step has ended here, for a record's table of steps. Where nothing is recorded, does nothing.

    Without it a step ends when the optimizer steps. The calls before the first one are the first step's.
    """
    for steps in _counting:
        steps.mark()
