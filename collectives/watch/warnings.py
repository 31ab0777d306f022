"""Warnings about a job, each given once, no verdicts: a first NaN, replicas that differ, caught or later errors."""

import time
from collections import defaultdict
from math import inf
from typing import Iterable

from ..format import name_ranks
from ..judge.wording.phrases import alike, drop_note, source
from ..log import messages
from ..log.calls import Call
from ..log.event import Event, Failure
from ..log.text import all_discarded

GRACE_SECONDS = 0.5  # for other ranks' earlier calls, whose messages come later
KEPT_CHECKS = 64  # that lack ranks


class Notes:
    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._non_finite: dict[
            int, tuple[Event, Call]
        ] = {}  # of each rank, the first that passes in a NaN or an infinity
        self._due = self._due_discarded = inf  # time.monotonic() at which that, and a lost result, is reported
        self._checks: dict[tuple, dict[int, tuple]] = defaultdict(dict)  # (optimizer, step) -> checksum, calls by rank
        self._replicas: dict[int, list[list[int]]] = {}  # by optimizer, ranks that had the same parameters at first
        self._alike: dict[int, int] = {}  # by optimizer, the last step after which they had
        self._took: dict[int, list[list[int]]] = {}  # by optimizer, ranks whose first step took the same gradients
        # Optimizers after whose first step no two ranks were alike; None once some were, or it has been reported.
        self._apart: int | None = 0
        self._dropped: dict[int, tuple[Event, int]] = {}  # by rank, the first message that gloo may lose; how many more
        self._discarded: list[Event] = []  # calls whose result nobody can read, still to be reported
        self._places: set[tuple] = set()  # ranks and places of all such calls
        self._told: list[str] = []

    def not_finite(self, event: Event, call: Call) -> None:
        """A rank passes a NaN or an infinity to a call."""
        if not self._non_finite:
            self._due = time.monotonic() + GRACE_SECONDS
        self._non_finite.setdefault(event.rank, (event, call))

    def checked(self, rank: int, message: messages.Checked) -> None:
        """Add a checksum of a rank's parameters."""
        optimizer, step, *state = message
        at = self._checks[optimizer, step]
        at[rank] = tuple(state)
        if len(at) == self._world_size:
            del self._checks[optimizer, step]
            self._compare(optimizer, step, at)
        elif len(self._checks) > KEPT_CHECKS:
            del self._checks[min(self._checks, key=lambda key: key[1])]

    def dropped(self, send: Event) -> None:
        """A rank has dropped a message that gloo may lose."""
        first, more = self._dropped.get(send.rank, (send, -1))
        self._dropped[send.rank] = first, more + 1

    def discarded(self, event: Event) -> None:
        """A rank makes a call whose result nobody can read."""
        place = event.rank, event.line, event.discarded
        if place not in self._places:
            self._places.add(place)
            self._due_discarded = self._due_discarded if self._discarded else time.monotonic() + GRACE_SECONDS
            self._discarded.append(event)

    def ended_well(self, failed: list[str]) -> None:
        """The job has ended, and no fault was noticed.  failed: sentences on calls whose error the program caught."""
        self._told += failed + [drop_note(*of) for of in self._dropped.values()]

    def caught(self) -> None:
        """All ranks have returned, though a call could never finish."""
        self._told.append("all ranks have returned all the same: the program caught that a call could not finish")

    def failed(self, rank: int, failure: Failure) -> None:
        """A rank has raised its own error after the verdict that a call could never finish."""
        where = f", {source(failure.frames[-1])}" if failure.frames else ""
        self._told.append(f"after that, rank {rank} raised {failure.kind}: {failure.message}{where}")

    def due(self, at_the_end: bool) -> list[str]:
        """The warnings due now; at the end, all that are left."""
        if at_the_end:
            self._warn_of_unlike_replicas()
        told, self._told = self._told, []
        if self._discarded and (at_the_end or time.monotonic() > self._due_discarded):
            told += all_discarded(self._discarded)
            self._discarded = []
        if self._non_finite and (time.monotonic() > self._due or at_the_end and self._due < inf):
            firsts, self._due = list(self._non_finite.values()), inf
            own = [e for e, _ in firsts if not any(_received(e, call) for _, call in firsts)]  # given to all others
            e = min(own or [e for e, _ in firsts], key=lambda e: e.start)
            told += [f"rank {e.rank} passes a NaN or an infinity to {e.op} #{e.index + 1}, the first: {source(e.line)}"]
        return told

    def _compare(self, optimizer: int, step: int, states: dict[int, tuple]) -> None:
        if step == 0:
            checksums = {rank: checksum for rank, (checksum, _) in states.items()}
            self._took[optimizer] = _group_equal(sorted(checksums), checksums)
            return
        replicas = self._replicas.get(optimizer)
        if replicas is None:
            self._replicas[optimizer] = _group_equal(range(self._world_size), states)
            if len(self._replicas[optimizer]) < self._world_size or self._world_size == 1:
                self._apart = None
            elif self._apart is not None and optimizer in self._took:
                self._apart += 1
        else:
            self._warn_of_unlike_replicas()
        for ranks in replicas or []:
            if len({states[rank][1] for rank in ranks}) > 1:  # they are not at the same place: uneven batches, say
                self._replicas[optimizer] = []
            elif len(parted := _group_equal(ranks, states)) > 1:
                whose = "; ".join(map(name_ranks, sorted(parted, key=len, reverse=True)))
                self._told.append(
                    f"the parameters of replicas differ after step {step}: {whose}. "
                    f"After step {self._alike[optimizer]} they were the same."
                )
                self._replicas[optimizer] = []
        self._alike[optimizer] = step

    def _warn_of_unlike_replicas(self) -> None:
        """Warn, once, if no two ranks had the same parameters after the first step of any optimizer."""
        if not self._apart:
            return
        self._apart = None
        same = [ranks for took in self._took.values() for ranks in took if len(ranks) > 1]
        if same:
            self._told.append(
                f"{name_ranks(same[0])} take the same gradients, and their parameters differ from the first step on: these "
                "replicas were never alike. broadcast the parameters before the first step, or draw them from one seed."
            )
        else:
            self._told.append(
                "no two ranks had the same parameters after the first step: divided, or never alike? "
                "`python -m collectives.watch --same` compares them with one process."
            )


def _received(e: Event, call: Call) -> bool:
    """Whether an event's rank had taken part in this call before."""
    return any(part.rank == e.rank and part.index < e.index for part in call)


def _group_equal(ranks: Iterable[int], states: dict[int, tuple]) -> list[list[int]]:
    """The ranks, grouped by equal state."""
    return [*alike((rank, states[rank]) for rank in ranks).values()]
