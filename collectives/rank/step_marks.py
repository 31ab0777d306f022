"""Counts a rank's training steps: by its optimizer, or by the program's own marks.

A step ends when the optimizer has stepped. If several alternate, the last one ends a step, which is known once the
first of them steps again; until then, each one that has made calls does.
"""

from __future__ import annotations

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

counting: list[Steps] = []  # of the tracers that are entered


class Steps:
    """count: steps that have ended, for the next call to report."""

    def __init__(self) -> None:
        self._ended, self._over = 0, False
        self._marked = False  # the program marks its steps itself
        self._since: list[int] = []  # optimizers that have stepped since the last step ended
        self._closing: int | None = None  # the optimizer that ends a step

    def start(self) -> None:
        counting.append(self)
        self._hook = register_optimizer_step_post_hook(self.stepped)

    def stop(self) -> None:
        self._hook.remove()
        counting.remove(self)

    @property
    def count(self) -> int:
        self._ended += self._over  # now: optimizers that step in turn, with no call between them, are one step
        self._over = False
        return self._ended

    def mark(self) -> None:
        """Called by the program when a step has ended."""
        self._marked = self._over = True

    def stepped(self, optimizer: Optimizer, *_) -> None:
        if torch.compiler.is_compiling() or self._marked:  # while it is traced, nothing is carried out
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
    """Mark the end of a training step, for a record's table of steps. Does nothing if nothing is recorded.

    Without it, a step ends when the optimizer steps. Calls before the first mark belong to the first step.
    """
    for steps in counting:
        steps.mark()
