"""The cost of a run: bytes, messages and steps, counted from its events alone."""

from collections import Counter
from dataclasses import dataclass, field

from . import collectives
from .calls import Call, pair
from .event import Event
from .transfers import steps_of


@dataclass
class Traffic:
    """Per rank: payload in bytes, without a backend's headers, and messages.

    A message counts as it is.  A collective counts as the bytes that any algorithm must move if all
    ranks share the work evenly: `least` of log/collectives.py, which has the sources.
    """

    sent: list[float]
    received: list[float]
    messages: list[int]  # that a rank sends by itself, without a collective
    largest: list[float] = field(default_factory=list)  # bytes of the largest buffer that a rank passes to one call
    steps: int = 0  # the longest chain of calls that had to wait for one another
    links: Counter = field(default_factory=Counter)  # (source, target) -> messages
    ops: Counter = field(default_factory=Counter)  # op, by its torch name -> calls of all ranks
    calls: list[int] = field(default_factory=list)  # collectives and messages that a rank makes with others
    empty: list[int] = field(default_factory=list)  # the ones among them that carry no byte
    read: list[float] = field(default_factory=list)  # bytes that a rank reads of files; only an exercise's are counted
    reads: list[int] = field(default_factory=list)  # its number of requests for them

    @property
    def busiest(self) -> float:
        """Bytes of the rank that sends or receives most."""
        return max(self.sent + self.received)


def count(events: list[list[Event]]) -> Traffic:
    """The traffic of a run.  events: per rank, in call order."""
    n = len(events)
    traffic = Traffic([0.0] * n, [0.0] * n, [0] * n, [0.0] * n)
    traffic.ops.update(e.op for mine in events for e in mine)
    calls = [call for call in pair(events) if len(call.group) > 1]
    for call in calls:
        for e, (out, in_) in zip(call, _bytes_of_ranks(call)):
            traffic.largest[e.rank] = max(traffic.largest[e.rank], _buffer(e, call))
            traffic.sent[e.rank] += out
            traffic.received[e.rank] += in_
            if e.op in (*collectives.SENDS, "get"):
                traffic.messages[e.rank] += 1
                traffic.links[e.ends] += 1
            if e.op in ("put", "get") or e.op == "signal" and len(call.events) == 1:  # the other rank makes no call
                side = traffic.sent if e.op == "get" else traffic.received
                side[e.src if e.op == "get" else e.dst] += e.nbytes
    traffic.calls = [sum(len(e.group) > 1 for e in mine) for mine in events]
    traffic.empty = [sum(len(e.group) > 1 and not e.nbytes for e in mine) for mine in events]
    traffic.steps = 1 + max(steps_of(calls), default=-1)
    return traffic


def _buffer(e: Event, call: Call) -> float:
    """Bytes that a rank passes to a call to be sent, or that it receives there if they are more."""
    collects = collectives.shapes(e.op) == ("own", "all") and e.root in (None, e.rank)
    return sum(other.nbytes for other in call) if collects else e.nbytes


def _bytes_of_ranks(call: Call) -> list[tuple[float, float]]:
    """Per event: bytes sent, bytes received."""
    if call.is_message:
        return [(e.nbytes, 0) if e.op in collectives.SENDS else (0, e.nbytes) for e in call]
    n, collective = len(call.group), collectives.of(call.op)
    if collective.gives is None:
        return [(0, 0) for _ in call]
    if collective.personal:
        chunks, places = [_chunks(e) for e in call], [call.group.index(e.rank) for e in call]
        return [(sum(c) - c[k], sum(o[k] for o in chunks if o is not c)) for c, k in zip(chunks, places)]
    share, total = collectives.least(call.op, n), sum(e.nbytes for e in call)

    def moved(e: Event) -> tuple[float, float]:
        if e.root not in (None, e.rank):
            return (0, e.nbytes) if collective.root == "src" else (e.nbytes, 0)
        if collective.gives == "own":  # nbytes is a piece
            return (0, e.nbytes * (n - 1)) if collective.root else (e.nbytes * (n - 1), total - e.nbytes)
        return share * e.nbytes * (collective.root != "dst"), share * e.nbytes * (collective.root != "src")

    return [moved(e) for e in call]


def _chunks(e: Event) -> list[float]:
    """The bytes an all_to_all sends to each member of its group."""
    if isinstance(e.before, list):
        return [chunk.nbytes for chunk in e.before]
    rows = e.shape[0] if e.shape else 0
    if e.splits and e.splits[0] and rows:
        return [e.nbytes * mine / rows for mine in e.splits[0]]
    return [e.nbytes / len(e.group)] * len(e.group)
