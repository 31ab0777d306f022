"""Keeps pretended ranks running without threads: each is called until it can't go on, and from its start again when it can.

Its calls give what they gave the first time, so it comes to where it was.  A program must do the same when it is
called again; torch's random numbers and Python's do.  A rank that has to wait calls the others from there first, which saves
half of the runs.
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

MOST_BEGUN = 8  # ranks, each called by the one before it
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
    scheduler = _Scheduler(world, program)
    for rank in world.ranks:
        rank.emit(messages.Began())
    while scheduler.run_ready():
        pass
    verdict = world.verdict(SECONDS)
    return Ending([rank.result for rank in world.ranks], world.monitor.events, scheduler.printed, verdict)


class _Scheduler:
    """Runs ranks one at a time; one that waits may have called others, so several are begun.

    refusal: of something that is not here, in a rank that another one called.
    """

    def __init__(self, world: World, program: Callable[[int], Callable[[], Any]]) -> None:
        self.world, self.program = world, program
        self.printed = [""] * world.size
        self.begun: list[Rank] = []
        self.refusal: Absent | None = None
        world.run_others = self.run_others

    def run_ready(self) -> bool:
        """Run each rank that can go on; False if all have to wait."""
        ready = [rank for rank in self.world.ranks if self._is_ready(rank)]
        for rank in ready:
            if self._is_ready(rank):
                self._go(rank)
                if self.refusal is not None:
                    raise self.refusal
        return bool(ready)

    def _is_ready(self, rank: Rank) -> bool:
        return not rank.ended and rank not in self.begun and rank.can_go_on

    def run_others(self) -> None:
        """Run the others for a rank that waits, until it can go on or they can't."""
        waiter = self.begun[-1]
        if len(self.begun) == MOST_BEGUN:
            return
        states = random.getstate(), random_numbers.Default.generator, Following.on
        random_numbers.Default.generator = random_numbers.Generator()
        order = self.world.ranks[waiter.number + 1 :] + self.world.ranks[: waiter.number]
        for rank in order:
            if self._is_ready(rank):
                self._go(rank)
                if self.refusal is not None or waiter.can_go_on:
                    break
        random.setstate(states[0])
        random_numbers.Default.generator, Following.on = states[1:]
        self.world.current = waiter

    def _go(self, rank: Rank) -> None:
        """Run a rank's function until it ends or can't go on."""
        random_numbers.manual_seed(rank.number)
        random.seed(rank.number)
        Following.on = True
        out = StringIO()
        self.world.current = rank
        self.begun.append(rank)
        rank.begin()
        try:
            with redirect_stdout(out):
                rank.returned(_called(self.program(rank.number)))
        except Suspended:
            pass
        except Absent as refusal:
            self.refusal = refusal
        except (Exception, SystemExit) as error:
            rank.failed(error)
        finally:
            rank.run = self.world.current = None
            self.begun.pop()
        self.printed[rank.number] = out.getvalue()


def _called(function: Callable[[], Any]) -> Any:
    return function()


RUNS["code"] = _called.__code__
