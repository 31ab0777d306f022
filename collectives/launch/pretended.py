"""`run()` on pretended ranks: N ranks of a function in this process, with the calls, verdicts and pictures of real ranks.

It imports neither torch nor processes: in a page, `torch` is the small one of collectives/pretend.
"""

import time
from functools import partial
from typing import Any, Callable, Sequence

from ..outcome.errors import error, message_only
from ..outcome.run import Run
from ..pretend.distributed import Here
from ..pretend.private import copied, private
from ..pretend.scheduler import replay
from ..pretend.world import World
from .arguments import check_arguments

MAX_RANKS = 64


def run(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int = 4,
    timeout: float = 60.0,
    check: bool = True,
    whole: bool = False,
    record: bool = True,
    backend: str | None = None,
    device: str | None = None,
    fresh: bool = False,
    may_lose: int = 0,
    pretend: bool = False,
    **kwargs: Any,
) -> Run:
    """Do as `collectives.run`, where there are no processes. Each rank has its own copy of `fn` and of all it uses.

    timeout, whole, record, fresh, may_lose, pretend: accepted, and without effect.  Raises what `collectives.run` raises,
    and ValueError for what only real ranks have.
    """
    try:
        check_arguments(fn, world_size, timeout, MAX_RANKS, "this page computes them one after the other")
        for name, value, usual in (("backend", backend, "gloo"), ("device", device, "cpu")):
            if value not in (None, usual):
                raise ValueError(f"this page has no {name} {value!r}: its ranks are on the CPU, and use gloo's rules.")
    except (TypeError, ValueError) as wrong:
        raise message_only(wrong)
    return run_separately(fn, [(args, kwargs)] * world_size, check)


def run_separately(fn: Callable, arguments: Sequence[tuple[tuple, dict]], check: bool = True, quiet: bool = False) -> Run:
    """The run of a function on pretended ranks.  arguments: each rank's, by position and by name.

    quiet: print nothing of what ranks printed.  Raises RunError if it doesn't end well.
    """

    def program(rank: int) -> Callable[[], Any]:
        memo: dict[int, Any] = {}
        args, kwargs = arguments[rank]
        return partial(
            private(fn, memo),
            *(copied(value, memo) for value in args),
            **{name: copied(value, memo) for name, value in kwargs.items()},
        )

    began, before = time.perf_counter(), Here.world
    Here.world = World(len(arguments), check=check)
    try:
        ending = replay(Here.world, program)
    finally:
        Here.world = before
    seconds, unknown = time.perf_counter() - began, [None] * len(arguments)
    name = getattr(fn, "__name__", "fn")
    run = Run(len(arguments), ending.results, ending.events, ending.stdout, seconds, unknown, unknown[:], name)
    for rank, text in enumerate([] if quiet else run.stdout):
        for line in text.splitlines():
            print(f"[{rank}] {line}")
    if ending.verdict is not None:
        raise error(ending.verdict, run)
    return run
