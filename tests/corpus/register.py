"""Where the answers to tasks are kept, by the task's name."""

from __future__ import annotations

from collections import defaultdict
from typing import Callable

Right = dict[str, list[Callable]]
Wrong = dict[str, list[tuple[Callable, str]]]


def register() -> tuple[Right, Wrong, Callable, Callable]:
    """Two empty tables, of right answers and of wrong ones with words each deserves, and the decorators that fill them."""
    rights: Right = defaultdict(list)
    wrongs: Wrong = defaultdict(list)

    def right(name: str) -> Callable:
        def keep(fn):
            rights[name].append(fn)
            return fn

        return keep

    def wrong(name: str, words: str) -> Callable:
        def keep(fn):
            wrongs[name].append((fn, words))
            return fn

        return keep

    return rights, wrongs, right, wrong
