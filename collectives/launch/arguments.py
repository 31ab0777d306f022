"""The arguments of `run()`, checked before any rank starts."""

import inspect
from typing import Any

from ..format import with_article


def check_arguments(fn: Any, world_size: Any, timeout: Any, most: int, why: str) -> None:
    """Raises TypeError or ValueError for arguments that cannot work.  most: of ranks, and why."""
    if not callable(fn):
        raise TypeError(
            f"run() needs a function to run on every rank, not {'None' if fn is None else with_article(fn)}. Pass the function "
            "without calling it: run(share), not run(share()) or run('share')."
        )
    if isinstance(world_size, bool) or not isinstance(world_size, int):
        raise TypeError(f"world_size is a number of processes, a whole number like 4, not {world_size!r}.")
    if not 1 <= world_size <= most:
        raise ValueError(f"world_size must be from 1 to {most}, not {world_size}: {why}.")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout is a number of seconds, not {timeout!r}.")
    if not timeout > 0:
        raise ValueError(f"timeout must be more than 0 seconds, not {timeout}.")
    if inspect.iscoroutinefunction(fn):
        raise TypeError("run() needs an ordinary function; an async one would return without having run.")
    if inspect.isgeneratorfunction(fn):
        raise TypeError("run() needs an ordinary function; one that yields would return without having run.")
