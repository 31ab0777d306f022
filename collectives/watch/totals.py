"""The totals of a job's calls, including the ones that its record no longer holds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import astuple, dataclass

from ..format import align, duration, size
from ..log import messages
from .lines import hashable

Kind = tuple[str, int, str]  # op, ranks of its group, dtype


@dataclass
class Total:
    """Calls of one kind, of all ranks."""

    calls: int = 0
    nbytes: int = 0  # of their inputs
    seconds: float = 0.0  # from the call to its end, overlapping calls counted separately; waited calls only
    issued: int = 0  # calls left to a device's stream: how long they took there is not known
    captured: int = 0  # calls that went into a CUDA graph, among those issued: each is counted once, its replays never


class Totals(dict[Kind, Total]):
    """The totals of all calls of a job, including the ones that the record no longer holds."""

    def __repr__(self) -> str:
        rows = [("op", "ranks", "dtype", "calls", "bytes", "seconds")]
        rows += [
            (op, f"{ranks:,}", dtype, f"{t.calls:,}", size(t.nbytes), duration(t.seconds))
            for (op, ranks, dtype), t in sorted(self.items(), key=lambda item: -item[1].nbytes)
        ]
        return "\n".join([align(rows), *self.unseen])

    @property
    def unseen(self) -> list[str]:
        """Sentences on what these figures leave out."""
        issued, captured = (sum(getattr(t, name) for t in self.values()) for name in ("issued", "captured"))
        said = []
        if issued:
            said.append(f"{issued:,} calls were left to a device's stream: their seconds there are not known.")
        if captured:
            said.append(f"{captured:,} of them went into CUDA graphs: they are counted once, and no replay is seen.")
        return said


class Account:
    """Counts of the lines of a record, as far as they have been read or written.

    made: lane (see Event.lane) -> its events.  calls: by rank.
    """

    def __init__(self, world_size: int, before: dict | None = None) -> None:
        before = before or {"made": [], "totals": [], "calls": [0] * world_size}
        self.made = defaultdict(int, {tuple(map(hashable, lane)): n for lane, n in before["made"]})
        self.totals = Totals({(op, ranks, dtype): Total(*rest) for op, ranks, dtype, *rest in before["totals"]})
        self.calls: list[int] = before["calls"]
        self.skipped = before.get("skipped", 0)  # calls among them that could not be read
        self._started: dict[tuple[int, int], tuple[Total, float]] = {}  # calls that are not complete

    def add(self, rank: int, message: messages.Message | None) -> None:
        if type(message) is messages.Called:
            e = message.event
            if (total := self.totals.get(e.kind)) is None:
                total = self.totals[e.kind] = Total()
            total.calls += 1
            total.nbytes += e.nbytes
            if e.captured:
                total.captured += 1
            self.calls[rank] += 1
            if e.end is None:
                self._started[rank, e.index] = total, e.start
            else:
                total.seconds += e.end - e.start
            if not e.is_from_anyone:
                self.made[e.lane] += 1
        elif type(message) is messages.Issued and (begun := self._started.pop((rank, message.index), None)):
            begun[0].issued += 1
        elif type(message) is messages.Completed and (begun := self._started.pop((rank, message.index), None)):
            total, start = begun
            total.seconds += 0.0 if message.end is None else message.end - start
        elif type(message) is messages.Skipped:
            self.skipped += message.calls - self.calls[rank]
            self.calls[rank] = message.calls
            self.made.update(message.made)
            self._started = {key: begun for key, begun in self._started.items() if key[0] != rank}

    def so_far(self) -> dict:
        """The same as plain data, for the first line of a file."""
        return {
            "made": list(self.made.items()),
            "totals": [[*kind, *astuple(total)] for kind, total in self.totals.items()],
            "calls": self.calls,
            "skipped": self.skipped,
        }
