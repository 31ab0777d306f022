"""Messages from a run's sends and recvs: their steps in time, and whose data they carry."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import torch

from .record import Call, Event, Summary, Value


class Message(NamedTuple):
    """One send and its recv, or whichever of them was made."""

    source: int | None  # global rank; None: a recv from anyone, for whom nobody sent anything
    target: int  # global rank
    step: int  # from 0, see steps_of
    value: Value  # what was sent
    origin: int | None  # the first rank to send this value: a rank that passes a value on does not own it
    sent: bool
    arrived: bool
    events: list[Event]


def read(calls: list[Call]) -> list[Message]:
    """The messages, by step."""
    found = []
    brought: dict[int | None, list[tuple[Value, int | None]]] = defaultdict(list)  # to a rank: values and their origins
    for step, k in sorted((step, k) for k, step in enumerate(steps_of(calls))):
        events = calls[k].events
        first, last = events[0], events[-1]
        source, target = ends(calls[k])
        sent, arrived = first.op == "send", len(events) == 2 and last.end is not None
        value = first.before if sent else None
        origin = next((whose for what, whose in reversed(brought[source][-16:]) if _same(what, value)), source)
        if arrived:
            brought[target].append((value, origin))
        found.append(Message(source, target, step, value, origin, sent, arrived, events))
    return found


def ends(call: Call) -> tuple[int | None, int]:
    """Who sends this message, and to whom."""
    e = call.events[0]
    return (e.rank, e.dst) if e.op == "send" else (e.src, e.rank)


def _same(a: Value, b: Value) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return isinstance(a, Summary) and a == b


def steps_of(calls: list[Call]) -> list[int]:
    """The step of each message, from 0: one more than the last it had to wait for.

    A message follows those that had ended on one of its two ranks before its call there
    was made.  So isend and irecv that were under way together share a step.
    """
    of = {id(e): k for k, call in enumerate(calls) for e in call}
    made: dict[int, list[Event]] = defaultdict(list)
    for call in calls:
        for e in call:
            made[e.rank].append(e)
    follows: list[set[tuple[int, str]]] = [set() for _ in calls]
    for mine in made.values():
        for e in mine:
            earlier = (d for d in mine if d.index < e.index and d.end is not None and d.end <= e.start)
            follows[of[id(e)]].update((of[id(d)], d.op) for d in earlier)
    step: dict[int, int] = {}
    left = list(range(len(calls)))
    while left:
        ready = [k for k in left if all(j in step for j, _ in follows[k])]
        if not ready:  # a send that ends before it is received holds nobody up
            ready = [k for k in left if all(j in step for j, op in follows[k] if op == "recv")] or left[:1]
        after = {k: 1 + max((step[j] for j, _ in follows[k] if j in step), default=-1) for k in ready}
        step.update(after)
        left = [k for k in left if k not in step]
    return [step[k] for k in range(len(calls))]
