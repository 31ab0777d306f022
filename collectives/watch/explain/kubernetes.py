"""Kubernetes' listings: events with their ages, an object that is described, and lists in JSON.

An age is cut to its last unit ("12m" is less than 13 minutes), and counts back from the listing's own time.
"""

import re
from contextlib import suppress
from datetime import datetime, timezone

_AGE = r"(?P<last>(?:\d+[dhms])+)(?:\s+\(x\d+ over (?P<first>\w+)\))?"
_LISTED = re.compile(rf"(?:{_AGE}\s+)?(?:Warning|Normal)\s.*?\b(?:node|pod)/(?P<name>[\w.\-]+)")
_RESTARTED = re.compile(rf"(?P<name>[\w.\-]+)\s+\d+/\d+\s+\w+\s+\d+ \({_AGE} ago\)")  # get pods
_DESCRIBED = re.compile(rf"\s*(?P<type>Warning|Normal)\s+(?P<reason>\w+)\s+{_AGE}\s+\S+\s+(?P<message>.*)")
_ALONE = re.compile(rb"^\w{3} (\w{3} +\d+ \d\d:\d\d:\d\d )([AP]M )?\w+ (20\d\d)\s*$|^(20\d\d-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)\S*\s*$", re.MULTILINE)
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


def seconds_of(age: str) -> float:
    """The seconds of an age: 4h12m."""
    return sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+)([dhms])", age))


def blur_of(age: str) -> float:
    """The seconds by which an age may be longer."""
    return _UNITS[age[-1]] if age else 0.0


def listed(text: str) -> tuple[str, str]:
    """The object of a listing's row, and its age, the first one of an event that came again; "" for another line."""
    row = _LISTED.match(text) or _RESTARTED.match(text)
    return (row["name"], row["first"] or row["last"] or "") if row else ("", "")


def as_listed(text: str, object_: str) -> str:
    """An event below the description of an object (pod/train-3), as a row of `kubectl get events`; other lines as they are."""
    row = _DESCRIBED.match(text)
    return f"{row['first'] or row['last']}  {row['type']}  {row['reason']}  {object_}  {row['message']}" if row else text


def listed_at(head: bytes) -> float | None:
    """The time of a listing: the only line of its file that is a time alone, as `date` prints it; None without."""
    times = set()
    for day, half, year, date, clock in _ALONE.findall(head):
        text, kind = (day + half + year, "%b %d %I:%M:%S %p %Y" if half else "%b %d %H:%M:%S %Y") if day else (date + clock, "%Y-%m-%d%H:%M:%S")
        times.add(time_of(text.decode(), kind))
    return times.pop() if len(times) == 1 else None


def time_of(text: str, kind: str = "%a, %d %b %Y %H:%M:%S") -> float | None:
    """Seconds since the epoch, as if all clocks had one time zone."""
    with suppress(ValueError):
        return datetime.strptime(text, kind).replace(tzinfo=timezone.utc).timestamp()
    return None


def event_in(record: dict) -> tuple[str, str] | None:
    """An event in JSON as a row of `kubectl get events`, and its time; None for another record."""
    subject = record.get("involvedObject") or record.get("regarding")
    if not isinstance(subject, dict):
        return None
    at = next(filter(None, map(record.get, ("firstTimestamp", "eventTime", "lastTimestamp"))), "")
    message = " ".join(str(record.get("message") or record.get("note") or "").split())
    return f"{record.get('type', 'Normal')} {record.get('reason')} {str(subject.get('kind')).lower()}/{subject.get('name')} {message}", at
