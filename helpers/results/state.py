"""Where every rank stands, as far as its messages have told."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Hashable

from ..record.calls import Call, Matcher
from ..record.event import MAIN, Event, Line
from .gloo import needs


@dataclass
class State:
    """Where every rank stands, as far as its messages have told."""

    world_size: int
    events: list[list[Event]] = field(default_factory=list)
    returned: set[int] = field(default_factory=set)
    matcher: Matcher = field(default_factory=Matcher)
    blocked: dict[int, Event] = field(default_factory=dict)  # rank -> the event its main thread waits in, without limit
    # rank -> what else may act there -> the event that it waits for, if it does: its other threads,
    # and what hangs on the future of a call under way.
    beside: dict[int, dict[Hashable, Event | None]] = field(default_factory=lambda: defaultdict(dict))
    # rank whose function has ended -> the threads that it waits for; daemons are not among them.
    joined: dict[int, set[Hashable]] = field(default_factory=dict)
    where: dict[int, Line] = field(default_factory=dict)  # rank -> the learner's line it is at, if asked
    inside: dict[int, list[str]] = field(default_factory=dict)  # and the functions that this line is inside, if asked

    def __post_init__(self) -> None:
        self.events = [[] for _ in range(self.world_size)]

    def called(self, event: Event) -> Call:
        self.events[event.rank].append(event)
        return self.matcher.add(event)

    def waits(self, event: Event, thread: Hashable) -> None:
        """A thread of the event's rank waits for it, without limit."""
        if thread in self.beside[event.rank]:
            self.beside[event.rank][thread] = event
        if thread == MAIN or thread in self.joined.get(event.rank, ()):
            self.blocked[event.rank] = event

    def joins(self, rank: int, threads: set[Hashable]) -> None:
        """A rank's function has ended, and the rank waits for these threads, which it left."""
        self.joined[rank] = threads
        if waiting := [e for thread, e in self.beside[rank].items() if e is not None and thread in threads]:
            self.blocked[rank] = waiting[0]

    def resumes(self, event: Event) -> None:
        """Nobody waits for the event any more."""
        if self.blocked.get(event.rank) is event:
            del self.blocked[event.rank]
        for thread, waited in self.beside[event.rank].items():
            if waited is event:
                self.beside[event.rank][thread] = None

    def blocked_or_done(self) -> set[int]:
        """The ranks that will not move by themselves: returned, or waiting for a call not made."""
        return {r for r in range(self.world_size) if all(self.waits_of(r))}

    def waits_of(self, rank: int) -> list[set[int]]:
        """For all in a rank that may act, the ranks without which it cannot: none if it runs."""
        acting = list(self.beside[rank].values())
        if rank not in self.returned and not self.joined.get(rank):
            acting.append(self.blocked.get(rank))
        return [set() if e is None else needs(e, self.matcher.of[id(e)]) for e in acting]
