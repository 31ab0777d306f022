"""Lines of logs, read one after the other, without the prefixes that launchers and log shippers put before them.

A file may have gigabytes: no more than a block of it is in memory, and a block without a mark is not split.
"""

import json
import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from itertools import chain
from typing import BinaryIO, Iterable, Iterator, NamedTuple, Protocol, Sequence

from . import kubernetes

BLOCK = 4 << 20
LONGEST = 1 << 16  # bytes of a line that are read
TRACEBACK = b"Traceback (most recent"
FRAME = b"  File "
AFTER_FRAME = 10  # lines that are read after a frame of a traceback, whose exception may have any name
DIGITS = b"0123456789"
MOST_SHAPES = 200_000  # that are known
SAMPLE = 1 << 20  # bytes from which the width of a terminal is found


class LogLine(NamedTuple):
    """A line without its prefixes.

    at: seconds since the epoch, None where unknown.  rank, host: as a prefix names them.  stream: a name of the
    writer within the file.
    """

    text: str
    at: float | None = None
    rank: int | None = None
    host: str = ""
    stream: str = ""


# --- blocks -------------------------------------------------------------------------------


def blocks(file: BinaryIO) -> Iterator[bytes]:
    """The file in blocks of whole lines."""
    rest = b""
    while block := file.read(BLOCK):
        block = rest + block
        end = block.rfind(b"\n") + 1
        if end == 0 and len(block) < LONGEST:
            rest = block
            continue
        end = end or len(block)
        yield block[:end]
        rest = block[end:]
    if rest:
        yield rest


def _is_in(mark: bytes, text: bytes, block: bytes) -> bool:
    """Whether a mark is in the block.  text: its lines without digits, each once."""
    return mark.translate(None, DIGITS) in text and mark in block


class LineReader(Protocol):
    """Something that knows lines of a kind."""

    marks: tuple[bytes, ...]
    inner: tuple[bytes, ...]

    def begin(self, path: str, rank: int | None) -> None: ...

    def read(self, line: LogLine) -> bool: ...


@dataclass
class Text:
    """A file's lines, as far as readers know them: each line that matters has a mark, and others are passed over.

    A reader's marks are of lines by which it knows its kind; its inner ones count only after one of those.  width: the width of the terminal that broke its lines, once they have been read; 0: unbroken.  unended: the last line, if nothing ends it.
    """

    file: BinaryIO
    readers: Sequence[LineReader]
    near: float | None = None  # a time of the job, that gives its stamps their year
    width: int = 0
    unended: str = ""
    ranks: set[int] = field(default_factory=set)  # that begin torch's lines
    writers: dict[int, LogLine] = field(default_factory=dict)  # by rank, the first line that names it
    step: int | None = None  # the last step of training that it names
    stepped: float | None = None  # the time of a line that names the step before
    _opened: list[LineReader] = field(default_factory=list)  # that have seen a mark of theirs
    _shapes: dict[bytes, bool] = field(default_factory=dict)  # lines without digits, and whether they have a mark

    def __iter__(self) -> Iterator[LogLine]:
        first, left = True, 0
        for block in blocks(self.file):
            last = block[block.rfind(b"\n") + 1 :][:LONGEST]
            self.unended = line(last.decode(errors="replace")).text if last else ""
            if first:
                self._find_width(block[:SAMPLE])
                first = False
            if self.width:
                block = self._joined(block)
            self._find_step(block)
            writers = set(re.findall(rb"\[rank\d+\]:?", block))
            self.ranks |= {int(name[5:-2]) for name in writers if name.endswith(b":")}
            for name in writers:
                if (rank := int(name[5:].rstrip(b"]:"))) not in self.writers:
                    at = block.find(name)
                    raw = block[block.rfind(b"\n", 0, at) + 1 :][:LONGEST].partition(b"\n")[0]
                    self.writers[rank] = line(raw.decode(errors="replace"), self.near)
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n").removesuffix(b"\n")
            raws, shapes = block.split(b"\n"), block.translate(None, DIGITS).split(b"\n")
            different = set(shapes)
            self._sort(different, block)
            if left <= 0 and not any(map(self._shapes.get, different)):
                continue
            skipped = b""
            for raw, shape in zip(raws, shapes):
                left = AFTER_FRAME if FRAME in shape else left - 1
                if left > 0 or self._shapes[shape]:
                    if skipped and TRACEBACK in raw:  # a logger's line, that may name the rank
                        yield line(skipped[:LONGEST].decode(errors="replace"), self.near)
                    yield line(raw[:LONGEST].decode(errors="replace"), self.near)
                    skipped = b""
                else:
                    skipped = raw

    def _sort(self, shapes: set[bytes], block: bytes) -> None:
        """Note which of these shapes, of lines without their digits, have a mark."""
        if len(self._shapes) > MOST_SHAPES:
            self._shapes.clear()
        text = b"\n".join(shapes - self._shapes.keys())
        for reader in self.readers:
            if reader not in self._opened and any(_is_in(mark, text, block) for mark in reader.marks):
                self._opened.append(reader)
                self._shapes = {shape: True for shape, is_wanted in self._shapes.items() if is_wanted}
        fresh = shapes - self._shapes.keys()
        text = b"\n".join(fresh)
        candidates = chain(*(reader.marks for reader in self.readers), *(reader.inner for reader in self._opened))
        marks = [mark.translate(None, DIGITS) for mark in dict.fromkeys(candidates) if _is_in(mark, text, block)]
        self._shapes |= {shape: any(mark in shape for mark in marks) for shape in fresh}

    def _find_step(self, block: bytes) -> None:
        number, at = _last_step(block)
        if number is not None:
            self.step = number
        if at >= 0:
            raw = block[block.rfind(b"\n", 0, at) + 1 :][:LONGEST].partition(b"\n")[0]
            self.stepped = line(raw.decode(errors="replace"), self.near).at

    def _find_width(self, sample: bytes) -> None:
        """A terminal's width is the length of many lines, and no line is longer."""
        lines = [raw for raw in sample.replace(b"\r", b"").split(b"\n")]
        longest = max(map(len, lines))
        full = [k for k, raw in enumerate(lines[:-1]) if len(raw) == longest]
        ends = {lines[k][-8:] for k in full}  # a message that is repeated ends alike
        if 60 <= longest <= 512 and 3 <= len(full) < 0.9 * len(lines) and len(full) * 8 >= len(lines) and len(ends) > 1:
            fresh = sum(map(_is_fresh, lines))
            if fresh and sum(_is_fresh(lines[k + 1]) for k in full) * 4 < len(full):
                self.width = longest

    def _joined(self, block: bytes) -> bytes:
        joined: list[bytes] = []
        is_full = False
        for raw in block.replace(b"\r", b"").split(b"\n"):
            if is_full and not _is_fresh(raw):
                joined[-1] += raw
            else:
                joined.append(raw)
            is_full = len(raw) == self.width
        return b"\n".join(joined)


_STEP = re.compile(rb"(?:step|iter(?:ation)?)[\"']?[ =:#\[]{1,8}(\d+)")
STEP_TRIES = 2000


def _last_step(block: bytes) -> tuple[int | None, int]:
    """The step of training that the last line with one names, and the place in the block where the last smaller one is; -1 for none."""
    for word in (b"step", b"iter"):
        at, last = len(block), None
        for _ in range(STEP_TRIES):
            at = block.rfind(word, 0, at)
            if at < 0:
                break
            if step := _STEP.match(block, at):
                if last is not None and int(step[1]) < last:
                    return last, at
                last = last if last is not None else int(step[1])
        if last is not None:
            return last, -1
    return None, -1


def _is_fresh(raw: bytes) -> bool:
    """Whether a line begins as a logger's does."""
    return bool(
        re.match(
            rb"(\x1b\[\d+m)?(\[(rank|default|pod/|E|W|I|\d{4}-)|\(\w+ pid=|\d{4}-\d\d-\d\d|[EWIF]\d{4} |\d+: |\S+:\d+:\d+ \[)",
            raw,
        )
    )


# --- prefixes -----------------------------------------------------------------------------

_COLOR = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\[\d{1,2}m(?=\(|\[|\s)")
_RANK = re.compile(r"\[rank(\d+)\]:?\s?")  # torch's c10d logger, and torchrun's exceptions, since 2.2
_PREFIXES = (
    re.compile(r"\[pod/(?P<host>[\w.\-]+)/(?P<stream>[\w.\-]+)\] "),  # kubectl logs --prefix
    re.compile(
        r"\((?P<stream>[\w.:<>]+ pid=\d+)(?:, ip=(?P<host>[\w.\-:]+))?\) ?(?:\[repeated \d+x[^\]]*\] ?)?"
    ),  # Ray
    re.compile(r"\[(?!rank)(?P<stream>[a-z_]+\d+)\]: ?"),  # torchrun --tee: a role and a local rank
    re.compile(r"(?P<stream>\d{1,5}): "),  # srun --label: a task
    re.compile(r"(?P<stream>stdout|stderr) [FP] "),  # containerd's and CRI-O's files
)
_STAMPS = (
    re.compile(
        r"\[?(?P<date>\d{4}-\d\d-\d\d)[T _](?P<time>\d\d:\d\d(?::\d\d)?)(?P<part>[.,]\d+)?(?P<zone>Z|[+\-]\d\d:?\d\d)?\]?[:,]? *-? *"
    ),
    re.compile(r"\[\w{3} (?P<month>\w{3}) +(?P<day>\d+) (?P<time>\d\d:\d\d:\d\d) (?P<year>\d{4})\] *"),  # dmesg -T
    re.compile(
        r"(?P<month>[A-Z][a-z]{2}) +(?P<day>\d+) (?P<time>\d\d:\d\d:\d\d) (?P<host>[\w.\-]+) (?=[\w.\-/]+(?:\[\d+\])?: )"
    ),  # syslog
)
# glog, as c10d ([E510 03:01:02.864467604 file:line]) and torch's Python (W0909 09:36:50.000000 pid file:line]) use it
_GLOG = re.compile(r"\[?[EWIF](?P<month>\d\d?)(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d)(?P<part>\.\d+)?")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TEXT = ("log", "message", "msg", "textPayload", "text", "MESSAGE", "body", "line")
_TIME = ("time", "timestamp", "@timestamp", "ts", "asctime")
_HOST = ("host", "hostname", "node", "node_name", "_HOSTNAME")


def line(text: str, near: float | None = None) -> LogLine:
    """A line of a log: its text, and what its prefixes report.  near: a time of the job, that gives a stamp its year."""
    text = _COLOR.sub("", text).rstrip()
    at, rank, host, stream = None, None, "", ""
    if text.startswith("{"):
        text, at, host, stream = _unpacked(text)
    seen = True
    while seen and text:
        seen = False
        for pattern in _STAMPS:
            if found := pattern.match(text):
                at, text, seen = _seconds(**found.groupdict(), near=at or near) or at, text[found.end() :], True
                host = found.groupdict().get("host") or host
        for pattern in _PREFIXES:
            if found := pattern.match(text):
                about = found.groupdict()
                host, stream = about.get("host") or host, about.get("stream") or stream
                text, seen = text[found.end() :], True
        if found := _RANK.match(text):
            rank, text, seen = int(found[1]), text[found.end() :], True
    if found := _GLOG.match(text):  # more precise than the time at which a shipper took it
        at = _seconds(**found.groupdict(), near=at or near) or at
    return LogLine(text, at, rank, host, stream)


def _unpacked(text: str) -> tuple[str, float | None, str, str]:
    """The text of a log shipper's JSON, with its time, host and stream; other JSON stays as it is."""
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return text, None, "", ""
    return unpacked(data) or (text, None, "", "")


def unpacked(data: object) -> tuple[str, float | None, str, str] | None:
    """(text, time, host, stream) of a log shipper's record; None for something else."""
    if not isinstance(data, dict):
        return None
    if event := kubernetes.event_in(data):
        data = dict(zip(("text", "time"), event))
    about = {
        **data,
        **{k: v for name in ("jsonPayload", "kubernetes", "resource", "labels") for k, v in _items(data.get(name))},
    }
    about |= dict(_items(_first(about, ("labels",))))
    text = _first(about, _TEXT)
    if not isinstance(text, str):
        return None
    stamp = _first(about, _TIME)
    at = _STAMPS[0].match(stamp) if isinstance(stamp, str) else None
    seconds = _seconds(**at.groupdict()) if at else float(stamp) if isinstance(stamp, (int, float)) else None
    while seconds and seconds > 1e11:  # milliseconds, or less
        seconds /= 1e3
    names = (_first(about, _HOST), _first(about, ("pod_name", "pod", "container_id", "stream")))
    host, stream = (name if isinstance(name, str) else "" for name in names)
    return text.rstrip("\n"), seconds, host, stream


def _items(value: object) -> Iterable:
    return value.items() if isinstance(value, dict) else ()


def _first(about: dict, names: Iterable[str]) -> object:
    return next((about[name] for name in names if name in about), None)


@lru_cache(4096)
def _day(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float | None:
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def _seconds(
    time: str, date: str | None = None, part: str | None = None, zone: str | None = None, month: str | None = None,
    day: str | None = None, year: str | None = None, host: str | None = None, near: float | None = None,
) -> float | None:  # fmt: skip
    """Seconds since the epoch, as if all clocks had one time zone; without a year, in the one next to `near`, or this year."""
    if date:
        y, mo, d = map(int, date.split("-"))
    else:
        mo = _MONTHS.index(month) + 1 if month in _MONTHS else int(month) if month and month.isdigit() else 0
        y = int(year) if year else (datetime.fromtimestamp(near, timezone.utc) if near else datetime.now()).year
        d = int(day or 0)
    day_and_time = (mo, d, *map(int, (time + ":00")[:8].split(":")))
    at = _day(y, *day_and_time)
    if near and not (date or year):
        at = min(filter(None, (_day(y + k, *day_and_time) for k in (-1, 0, 1))), key=lambda at: abs(at - near), default=None)
    return None if at is None else at + float(f"0.{part[1:]}" if part else 0)


def dated(sample: bytes) -> list[float]:
    """The times in a part of a log whose stamps have a year."""
    text = sample.decode(errors="replace")
    times = (_seconds(**found.groupdict()) for pattern in _STAMPS[:2] for found in pattern.finditer(text))
    return [at for at in times if at and at > 1e9]  # a clock that was set


def clock(at: float | None) -> str:
    """' at 03:01:57'; nothing for an unknown time."""
    return "" if at is None else f" at {datetime.fromtimestamp(at, timezone.utc):%H:%M:%S}"


def listed(names: Iterable[object], most: int = 4, gap: str = ", ") -> str:
    """The first few names: 'node0, node1, node2, node3, ...'"""
    texts = [*map(str, names)]
    return gap.join([*texts[:most], *["..."] * (len(texts) > most)])


def seconds_of(time: str) -> float | None:
    """Seconds since the epoch of a time alone, as a line of a log begins with."""
    return line(f"{time} .").at


def stamp(at: float | None) -> str:
    """A time as a prefix of a line."""
    return "" if at is None else f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%dT%H:%M:%S.%fZ} "
