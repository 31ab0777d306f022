"""Opens the record of a job (its format: writer.py, lines.py) as a Run."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..judge.state import note
from ..lazy import Later
from ..log import messages
from ..log.calls import blocks
from ..log.event import Event
from ..log.text import block_table
from ..log.traffic import Traffic, count
from ..outcome.run import SHOWN_MESSAGES, Run
from . import lines
from .totals import Account, Totals
from .writer import FORMAT

SCREEN = 50  # lines


@dataclass(repr=False)
class Record(Run):
    """A Run of ranks that another program started, as far as its record goes.

    Times count from the start of rank 0. An event's `index` counts all calls of its rank, also dropped ones.
    """

    hosts: list[str] = field(default_factory=list)  # by rank
    totals: Totals = field(default_factory=Totals)  # of the whole job, see Totals
    verdict: str = ""  # as printed while it ran
    dropped: int = 0  # calls of all ranks that came before `.calls`, and are only in `.totals`
    about: dict = field(default_factory=dict)  # script, arguments, ...
    knows_blocked: bool = True  # whether it has the times when ranks began to block in calls that returned at once

    timeline = Later(".steps.timeline", "timeline")  # when it happened; `.save(path)` writes it for ui.perfetto.dev
    # Each rank's time in each of them, and the ranks that held others up.
    training_steps = Later(".steps.training_steps", "training_steps")
    bill = Later("..cost.bill", "bill")  # these calls' time on a machine

    @property
    def traffic(self) -> Traffic:
        """Bytes and messages of the calls that are here."""
        return count(self.events)

    def table(self, which: int | slice | None = None) -> str:
        """The calls in words: the given ones, or a screenful of the last."""
        if which is not None:
            return super().table(which)
        tables, lines, all_ = [], 0, blocks(self.calls)
        for block in reversed(all_):
            tables.append(block_table(block, SHOWN_MESSAGES))
            lines += tables[-1].count("\n") + 2
            if lines >= SCREEN:
                break
        if rest := len(all_) - len(tables):
            tables.append(
                f"{rest:,} calls or exchanges of messages before these; .table(slice(0, 10)) lists the first ten calls"
            )
        return "\n\n".join(reversed(tables))

    def part(self, which: slice) -> "Record":
        """The record of some of its calls, for a picture, a timeline or a bill of them."""
        chosen = {id(e) for call in self.chosen(which) for e in call}
        events = [[e for e in mine if id(e) in chosen] for mine in self.events]
        return replace(self, events=events, dropped=self.dropped + sum(map(len, self.events)) - sum(map(len, events)))


def load(folder: str | Path, beginning: bool = False) -> Record:
    """Open a record. beginning: the first calls, instead of the last ones, of a job too long to keep.

    Raises FileNotFoundError or ValueError for a folder that holds none.
    """
    folder = Path(folder)
    try:
        about = json.loads((folder / "about.json").read_text())
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} holds no record: it has no about.json.") from None
    if about.get("format") not in range(1, FORMAT + 1):
        raise ValueError(f"{folder} is in format {about.get('format')}; this version reads formats 1 to {FORMAT}.")
    files = sorted(folder.glob("[0-9]*.jsonl"))
    if not files:
        raise ValueError(f"{folder} holds no calls: the job ended before its ranks were connected.")
    n = about["world_size"]
    reader = _RecordReader(n, files[:1] if beginning else _last(files))
    account = _RecordReader(n, files[-1:]).account if beginning else reader.account
    verdict = folder / "verdict.txt"
    events = reader.events()
    hosts = dict(json.loads(line)[:2] for line in _lines(folder / "ranks.jsonl"))
    return Record(
        world_size=n, events=events, name=Path(about["script"]).name, began=about["began"],
        seconds=max((e.end or e.start for mine in events for e in mine), default=0.0),
        results=[None] * n, stdout=[""] * n, sent=[None] * n, received=[None] * n,  # which no collector sees
        hosts=[hosts.get(rank, "") for rank in range(n)], totals=account.totals,
        verdict=verdict.read_text() if verdict.exists() else "",
        dropped=sum(account.calls) - sum(map(len, events)), about=about,
    )  # fmt: skip


def _last(files: list[Path]) -> list[Path]:
    """The files that follow each other without a gap up to the last."""
    missing = [int(file.stem) - place for place, file in enumerate(files)]  # before each of them
    return files[missing.index(missing[-1]) :]


def _lines(path: Path) -> list[bytes]:
    """Lines of a file; one that a kill has cut short is left out."""
    data = path.read_bytes() if path.exists() else b""
    return data.split(b"\n")[:-1]


class _RecordReader:
    """The calls and totals in files that follow each other."""

    def __init__(self, world_size: int, files: list[Path]) -> None:
        head = _lines(files[0])[:1]
        self.account = Account(world_size, json.loads(head[0])["before"] if head else None)
        self._before = Counter(self.account.made)
        self._events: list[dict[int, Event]] = [{} for _ in range(world_size)]
        self._readers = list(map(lines.Reader, range(world_size)))
        for file in files:
            for line in _lines(file)[1:]:
                self._take(line)

    def _take(self, line: bytes) -> None:
        rank, *told = lines.decode_line(line)
        for message in self._readers[rank].read(*told):
            self.account.add(rank, message)
            if type(message) is messages.Called:
                self._events[rank][message.event.index] = message.event
            elif type(message) is messages.Skipped:  # nothing before it can be paired with other ranks' calls
                self._events[rank].clear()
                self._before.update(message.made)
            elif event := self._events[rank].get(getattr(message, "index", None)):
                note(event, message)

    def events(self) -> list[list[Event]]:
        """Per rank, the events from where on no partner of theirs is missing."""
        first: dict[tuple, int] = defaultdict(int)  # lane without its rank -> where all its ranks begin
        for lane, n in self._before.items():
            first[lane[1:]] = max(first[lane[1:]], n)
        kept = []
        made = self._before.copy()  # no two ranks share a lane
        for mine in self._events:
            kept.append([])
            for e in mine.values():
                lane = e.lane
                if made[lane] >= first[lane[1:]]:
                    kept[-1].append(e)
                made[lane] += 1
        return kept
