"""Keeps pretended ranks running without threads: each is called until it can't go on, and from its start again when it can.

Its calls give what they gave the first time, so it comes to where it was.  A program must do the same when it is
called again; torch's random numbers and Python's do.
"""

from __future__ import annotations

import random
from contextlib import redirect_stdout
from io import StringIO
from typing import Any, Callable, NamedTuple

from ..judge.verdict import Verdict
from ..log import messages
from ..log.event import Event
from . import random_numbers
from .autograd import Following
from .dtypes import Absent
from .world import RUNS, Rank, Suspended, World

SECONDS = 10.0  # in the verdict on ranks that wait for something that isn't a call


class Ending(NamedTuple):
    """How a program ended.  verdict: None if all ranks returned, and all is well."""

    results: list[Any]
    events: list[list[Event]]
    stdout: list[str]
    verdict: Verdict | None


def replay(world: World, program: Callable[[int], Callable[[], Any]]) -> Ending:
    """Run a program on all ranks.  program: called with a rank's number before each of its runs; gives what it calls.

    Raises Absent if the program uses something that is not here.
    """
    printed = [""] * world.size
    for rank in world.ranks:
        rank.emit(messages.Began())
    while ready := [rank for rank in world.ranks if not rank.ended and rank.can_go_on]:
        for rank in ready:
            if rank.can_go_on:
                printed[rank.number] = _go(world, rank, program)
    verdict = world.verdict(SECONDS)
    return Ending([rank.result for rank in world.ranks], world.monitor.events, printed, verdict)


def _go(world: World, rank: Rank, program: Callable[[int], Callable[[], Any]]) -> str:
    """Run a rank's function until it ends or can't go on.  Returns what it printed."""
    random_numbers.manual_seed(rank.number)
    random.seed(rank.number)
    Following.on = True
    out = StringIO()
    world.current = rank
    rank.begin()
    try:
        with redirect_stdout(out):
            rank.returned(_called(program(rank.number)))
    except Suspended:
        pass
    except Absent:
        raise
    except (Exception, SystemExit) as error:
        rank.failed(error)
    finally:
        rank.run = world.current = None
    return out.getvalue()


def _called(function: Callable[[], Any]) -> Any:
    return function()


RUNS["code"] = _called.__code__
