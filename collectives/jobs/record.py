"""Opens the record of a job (its format: writer.py, lines.py) as a Run."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Iterator

from ..judge.run import Run
from ..judge.state import note
from ..rank import protocol
from ..record.calls import lane_of
from ..record.event import Event
from ..record.traffic import Traffic, count
from . import lines
from .totals import Account, Totals
from .writer import FORMAT


@dataclass(repr=False)
class Record(Run):
    """A Run of ranks that somebody else started, as far as its record holds it.

    Times count from the start of rank 0. An event's `index` counts all calls of its rank, also dropped ones.
    """

    hosts: list[str] = field(default_factory=list)  # by rank
    totals: Totals = field(default_factory=Totals)  # of the whole job, see Totals
    verdict: str = ""  # what was printed while it ran
    dropped: int = 0  # calls of all ranks that came before `.calls`, and are only in `.totals`
    about: dict = field(default_factory=dict)  # script, arguments, ...

    @property
    def traffic(self) -> Traffic:
        """Bytes and messages of the calls that are here."""
        return count(self.events)

    def part(self, which: slice) -> Record:
        """The record of some of its calls, for a picture, a timeline or a bill of them."""
        chosen = {id(e) for call in self.chosen(which) for e in call}
        events = [[e for e in mine if id(e) in chosen] for mine in self.events]
        return replace(self, events=events, dropped=self.dropped + sum(map(len, self.events)) - sum(map(len, events)))

    def timeline(self):
        """When it happened; `.save(path)` writes a file for ui.perfetto.dev."""
        from ..play.timeline import timeline

        return timeline(self)

    def bill(self, machine, **options: Any):
        """What these calls would take on a machine, see cost.bill."""
        from ..cost.bill import bill

        return bill(self, machine, **options)


def load(folder: str | Path, beginning: bool = False) -> Record:
    """Open a record. beginning: the first calls, in place of the last ones, of a job too long to keep.

    Raises FileNotFoundError or ValueError for a folder that holds none.
    """
    folder = Path(folder)
    try:
        about = json.loads((folder / "about.json").read_text())
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} holds no record: it has no about.json.") from None
    if about.get("format") != FORMAT:
        raise ValueError(f"{folder} is in format {about.get('format')}; this version reads format {FORMAT}.")
    files = sorted(folder.glob("[0-9]*.jsonl"))
    if not files:
        raise ValueError(f"{folder} holds no calls: the job ended before its ranks were connected.")
    parts = files[:1] if beginning else _last(files)
    n = about["world_size"]
    reader = _RecordReader(n, _before(parts[0]))
    for part in parts:
        for line in _lines(part):
            reader.take(line)
    totals = reader if parts[-1] == files[-1] else _RecordReader(n, _before(files[-1])).through(files[-1])
    verdict = folder / "verdict.txt"
    events = reader.events()
    dropped = sum(totals.account.calls) - sum(map(len, events))
    hosts = dict(json.loads(line)[:2] for line in _lines_of(folder / "ranks.jsonl"))
    last = max((e.end or e.start for mine in events for e in mine), default=0.0)
    return Record(
        n,
        [None] * n,
        events,
        [""] * n,
        last,
        [None] * n,
        [None] * n,
        Path(about["script"]).name,
        [hosts.get(rank, "") for rank in range(n)],
        totals.account.totals,
        verdict.read_text() if verdict.exists() else "",
        dropped,
        about,
    )


def _last(files: list[Path]) -> list[Path]:
    """Of all files, those that follow each other up to the last."""
    numbers = [int(file.stem) for file in files]
    start = len(files) - 1
    while start and numbers[start - 1] == numbers[start] - 1:
        start -= 1
    return files[start:]


def _lines_of(path: Path) -> list[bytes]:
    """Lines of a file; one that a kill has cut short is left out."""
    data = path.read_bytes() if path.exists() else b""
    return data.split(b"\n")[:-1]


def _before(path: Path) -> dict | None:
    first = next(iter(_lines_of(path)), None)
    return json.loads(first)["before"] if first else None


def _lines(path: Path) -> Iterator[bytes]:
    yield from _lines_of(path)[1:]


class _RecordReader:
    """Takes the lines of a record in. before: what had come when they begin."""

    def __init__(self, world_size: int, before: dict | None) -> None:
        self.account = Account(world_size, before)
        self._made = dict(self.account.made)
        self._events: list[dict[int, Event]] = [{} for _ in range(world_size)]

    def take(self, line: bytes) -> None:
        rank, messages = lines.read(line)
        for message in messages:
            self.account.add(rank, message)
            if type(message) is protocol.Called:
                self._events[rank][message.event.index] = message.event
            elif event := self._events[rank].get(getattr(message, "index", None)):
                note(event, message)

    def through(self, path: Path) -> _RecordReader:
        for line in _lines(path):
            self.take(line)
        return self

    def events(self) -> list[list[Event]]:
        """Per rank, the events from where on no partner of theirs is missing."""
        first: dict[tuple, int] = defaultdict(int)  # lane without its rank -> where all its ranks begin
        for lane, n in self._made.items():
            first[lane[1:]] = max(first[lane[1:]], n)
        kept = []
        for mine in self._events:
            made = dict(self._made)
            kept.append([])
            for e in mine.values():
                lane = lane_of(e)
                place = made.get(lane, 0)
                made[lane] = place + 1
                if place >= first[lane[1:]]:
                    kept[-1].append(e)
        return kept
