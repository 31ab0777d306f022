"""A rank's messages as lines of JSON: all that aren't mere numbers (message_encoder.py), and the content of a record.

A line is an array, [rank, kind, ...].  No line can make its reader execute anything, so a record is
safe to open, and a collector safe to reach.  Times are in seconds on the rank's clock.

    [r, "clock", seconds]                   offset to add to the rank's times from here on, for the record's clock
    [r, "signature", s, op, {...}]          from here on s denotes such calls: their Event's non-default fields
    [r, "call", index, s, start]            the rank makes a call
    [r, "call", index, op, start, {...}]    the same, in full
    [r, "waiting", index, since, limited, thread]
    [r, "after", s, after]                  the result of such calls, from here on
    [r, "done", index, end, waited, src, after]    a call is complete; without src and after, after is as before
    [r, "leaves", s, after]                 their result when they are issued, from here on
    [r, "issued", index, at, after]         it is in a device's stream; "done" may follow; without after, it's as before
    [r, "misused", index, how, line]        [r, "not finite", index]
    [r, "caught", what, line, calls, times] the program caught an exception
    [r, "began", work, index]  [r, "ended", work]  [r, "resumed"]  [r, "joining", [thread, ...]]
    [r, "group", index, group, line]        the rank calls new_group, as all ranks have to
    [r, "group", index, group, line, name, groups]    the same, with use_local_synchronization=True
    [r, "no group", index]                  such a call has ended in an exception
    [r, "checked", optimizer, step, checksum, calls]    the rank's parameters after that step
    [r, "returned"]  [r, "failed", {...}]   the script has ended; the fields of a Failure
    [r, "step", steps]                      the training steps that the rank had ended before the calls from here on
    [r, "anew", calls, [[lane, calls], ...], [[work, index], ...], steps]    summary of everything before
    [r, "skipped", ...]                     the same, where some messages are missing

In format 1 each call was written in full; one that was complete carried "end", "waited" and "after" itself.

A group is [rank, ...], or "first:beyond:step".  A line of source is [file, number, function, text].  A value is
{"shape", "dtype"}, with "data" for a tensor, "head", "tail" and "checksum" for a summary, or a list of values,
or, in a call, true: the shape and dtype of the call.
"""

import dataclasses
import json
import typing
from typing import Any, Callable, Hashable, Iterable

import torch

from ..format import dtype_name
from ..log import messages
from ..log.event import Event, Failure, Line, Summary, Value
from ..rank.tensors import outline

RETURN_MESSAGE = messages.Returned(b"", (None, None), None, [])  # of a script, which has no result
_SEPARATE = {"rank", "index", "op", "group", "start", "before", "step"}  # fields of an event that have their own place
_FIELDS = {f.name: f.default for f in dataclasses.fields(Event) if f.name not in _SEPARATE}
Text = Callable[[Line | None], Line | None]


# --- written ------------------------------------------------------------------------------


def encode_line(line: list) -> bytes:
    return json.dumps(line, separators=(",", ":"), default=_as_json).encode()


def of_call(e: Event, with_text: Text) -> list:
    """The line of a call, in full."""
    return ["call", e.index, e.op, e.start, _event_fields(e, with_text)]


def of_signature(number: int, e: Event, with_text: Text) -> list:
    """The line after which this number denotes calls like this one."""
    return ["signature", number, e.op, _event_fields(e, with_text)]


def _event_fields(e: Event, with_text: Text) -> dict[str, Any]:
    about: dict[str, Any] = {"group": _ranks(e.group)}
    for name, default in _FIELDS.items():
        if (value := getattr(e, name)) != default:
            about[name] = with_text(value) if isinstance(value, Line) else value
    if e.before is not None:
        about["before"] = _brief(e.before, e)
    return about


def of_message(m: messages.Message, with_text: Text) -> list:
    """The line of a message, but for a call."""
    return _WRITERS[type(m)](m, with_text)


def anew(
    calls: int, lanes: Iterable[tuple[tuple, int]], works: Iterable[tuple[Hashable, int | None]], step: int
) -> list:
    """The line that sums up a rank's messages until now. lanes: see Event.lane, with the calls made in each."""
    short = [[[*lane[:2], _ranks(lane[2]), *lane[3:]], made] for lane, made in lanes]
    return ["anew", calls, short, [list(work) for work in works], step]


def without_values(line: list) -> list:
    """The line with no more than shape and dtype of its tensors."""
    return [_outlined(part) for part in line]


def _outlined(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _outlined(value) for name, value in part.items()}
    if isinstance(part, list):
        return [_outlined(value) for value in part]
    return outline(part) if isinstance(part, torch.Tensor) else part


def _ranks(group: tuple[int, ...]) -> str | tuple[int, ...]:
    if len(group) > 2:
        step = group[1] - group[0]
        if step > 0 and group == tuple(range(group[0], group[-1] + 1, step)):
            return f"{group[0]}:{group[-1] + 1}:{step}"
    return group


def _brief(value: Value, e: Event) -> Value | bool:
    """True for a value of which the event's own shape and dtype are all that is known."""
    known = isinstance(value, Summary) and not value.head and value.shape == e.shape and value.dtype == e.dtype
    return known or value


def _as_json(value: torch.dtype | torch.Tensor | Summary) -> str | dict:
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    about = {"shape": value.shape, "dtype": value.dtype}
    if not isinstance(value, Summary):
        exact = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
        return about | {"data": exact.flatten().tolist()}
    if value.head:
        about |= {"head": value.head, "tail": value.tail, "checksum": value.checksum}
    return about


def _name(m: messages.Grouped) -> list:
    return [] if m.name is None else [m.name, m.groups]


_WRITERS: dict[type, Callable[..., list]] = {
    messages.Waiting: lambda m, _: ["waiting", *m],
    messages.Completed: lambda m, _: ["done", m.index, m.end, m.waited, m.src, m.after],
    messages.Issued: lambda m, _: ["issued", m.index, m.at, m.after],
    messages.NotFinite: lambda m, _: ["not finite", m.index],
    messages.Misused: lambda m, text: ["misused", m.index, m.how, text(m.line)],
    messages.Caught: lambda m, text: ["caught", m.error, text(m.line), m.calls, m.times],
    messages.Resumed: lambda *_: ["resumed"],
    messages.WorkBegan: lambda m, _: ["began", *m],
    messages.WorkEnded: lambda m, _: ["ended", *m],
    messages.Joining: lambda m, _: ["joining", list(m.threads)],
    messages.Checked: lambda m, _: ["checked", *m],
    messages.Grouped: lambda m, text: ["group", m.index, _ranks(m.ranks), text(m.line), *_name(m)],
    messages.Ungrouped: lambda m, _: ["no group", *m],
    messages.Returned: lambda *_: ["returned"],
    messages.Failed: lambda m, text: ["failed", vars(m.failure) | {"frames": [*map(text, m.failure.frames)]}],
}


# --- read ---------------------------------------------------------------------------------


def decode_line(line: bytes) -> list:
    """A line's parts: rank, kind, and more. Raises ValueError if it isn't a line of a record."""
    told = json.loads(line)
    if not isinstance(told, list) or len(told) < 2 or told[1] not in _READ:
        raise ValueError(f"not a line of a record: {line[:100]!r}")
    return told


class Reader:
    """Makes messages of the lines of one rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.shift = 0.0  # its clock offset
        self.signatures: dict[int, LineSignature] = {}
        self._under_way: dict[int, LineSignature] = {}  # by index
        self.step = 0  # training steps that it has ended

    def read(self, kind: str, *rest: Any) -> list[messages.Message]:
        """The messages of a line. Raises ValueError if it isn't a line of a record."""
        try:
            return _READ[kind](self, *rest)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"not a line of a record: {kind} {str(rest)[:100]} ({error})") from error

    def called(self, index: int, number: int, start: float) -> messages.Called:
        signature = self._under_way[index] = self.signatures[number]
        return messages.Called(signature.event(index, start + self.shift, self.step))

    def whole(self, index: int, number: int, start: float, since: float, end: float, waited: bool) -> messages.Called:
        """A call, with the messages that it is waited for and complete."""
        signature, shift = self.signatures[number], self.shift
        event = signature.event(index, start + shift, self.step)
        event.waiting, event.end, event.waited, event.after = since + shift, end + shift, waited, signature.after
        return messages.Called(event)

    def waiting(self, index: int, since: float, limited: bool, thread: Hashable) -> messages.Waiting:
        return messages.Waiting(index, since + self.shift, limited, thread)

    def done(self, index: int, end: float | None, waited: bool) -> messages.Completed:
        signature = self._under_way.pop(index, None)
        return messages.Completed(index, signature and signature.after, self._at(end), waited, None)

    def issued(self, index: int, at: float) -> messages.Issued:
        signature = self._under_way.get(index)
        return messages.Issued(index, signature and signature.leaves, at + self.shift)

    def _at(self, seconds: float | None) -> float | None:
        return None if seconds is None else seconds + self.shift

    # --- one for each kind of line --------------------------------------------------------

    def _clock(self, seconds: float) -> list:
        self.shift = seconds
        return []

    def _step(self, number: int) -> list:
        self.step = number
        return []

    def _signature(self, number: int, op: str, about: dict) -> list:
        self.signatures[number] = LineSignature(_event(self._rank, op, about))
        return []

    def _call(self, index: int, what: int | str, start: float, about: dict | None = None) -> list:
        if about is None:
            return [self.called(index, what, start)]
        done = [about.pop(name, None) for name in ("after", "end", "waited", "from")]  # of format 1
        event = _event(self._rank, what, about)
        event.index, event.start, event.step = index, start + self.shift, self.step
        if done[2] is None:
            return [messages.Called(event)]
        after, end, waited, src = done
        return [messages.Called(event), messages.Completed(index, _read_brief(after, event), end, waited, src)]

    def _waiting(self, index: int, since: float, limited: bool, thread: Any) -> list:
        return [self.waiting(index, since, limited, hashable(thread))]

    def _after(self, number: int, after: Any) -> list:
        self.signatures[number].after = _value(after)
        return []

    def _done(self, index: int, end: float | None, waited: bool, *rest: Any) -> list:
        if not rest:
            return [self.done(index, end, waited)]
        self._under_way.pop(index, None)
        src, after = rest
        return [messages.Completed(index, _value(after), self._at(end), waited, src)]

    def _leaves(self, number: int, after: Any) -> list:
        self.signatures[number].leaves = _value(after)
        return []

    def _issued(self, index: int, at: float, *after: Any) -> list:
        if not after:
            return [self.issued(index, at)]
        return [messages.Issued(index, _value(*after), at + self.shift)]

    def _anew(self, *_: Any) -> list:
        return []

    def _skipped(self, calls: int, lanes: list, works: list, step: int) -> list:
        self._under_way.clear()
        self.step = step
        made = {(op, name, _group(group), *ends): n for (op, name, group, *ends), n in lanes}
        return [messages.Skipped(calls, made, {hashable(work) for work, _ in works})]

    def _failed(self, fields: dict) -> list:
        return [messages.Failed(Failure(**fields | {"frames": [*map(_line, fields["frames"])]}))]


class LineSignature:
    """The fields that calls share.  after, leaves: their results when they are complete, and when they are issued."""

    __slots__ = "_class", "after", "leaves"

    def __init__(self, event: Event) -> None:
        common = vars(event) | {"kind": event.kind, "form": event.form}
        if not event.is_from_anyone:
            common["lane"] = event.lane
        self._class = type("Event", (Event,), common)  # the fields that its calls share are stored once
        self.after = self.leaves = None

    def event(self, index: int, start: float, step: int) -> Event:
        """Such a call, not complete."""
        event = object.__new__(self._class)
        event.index, event.start, event.step = index, start, step
        return event


def _event(rank: int, op: str, about: dict) -> Event:
    fields = {name: _CONVERTERS[name](value) for name, value in about.items()}
    before = fields.pop("before", None)
    event = Event(rank, 0, op, **fields)
    event.before = _read_brief(before, event)
    return event


def _read_brief(value: Any, e: Event) -> Value:
    return Summary(e.shape, e.dtype, e.nbytes, 0, (), ()) if value is True else _value(value)


def _value(value: Any) -> Value:
    if value is None:
        return None
    if isinstance(value, list):
        return [_value(v) for v in value]
    dtype, shape = _dtype(value["dtype"]), tuple(value["shape"])
    if "data" in value:
        if dtype.is_complex:
            return torch.view_as_complex(torch.tensor(value["data"], dtype=dtype.to_real()).reshape(*shape, 2))
        return torch.tensor(value["data"]).to(dtype).reshape(shape)
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    head, tail = (tuple(value.get(end, ())) for end in ("head", "tail"))
    return Summary(shape, dtype, nbytes, value.get("checksum", 0), head, tail)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{name} is not a dtype")
    return found


def _group(ranks: str | list[int]) -> tuple[int, ...]:
    return tuple(range(*map(int, ranks.split(":"))) if isinstance(ranks, str) else ranks)


def _line(line: list | None) -> Line | None:
    return line and Line(*line)


def hashable(value: Any) -> Any:
    """The value with tuples for the lists that JSON made of them."""
    return tuple(map(hashable, value)) if isinstance(value, list) else value


_BY_TYPE = {torch.dtype | None: _dtype, Line | None: _line}  # of fields; others are plain values, or tuples of them
_CONVERTERS: dict[str, Callable] = {
    name: _BY_TYPE.get(kind, hashable) for name, kind in typing.get_type_hints(Event, localns={"torch": torch}).items()
} | {"group": _group, "before": lambda value: value}
_READ: dict[str, Callable[..., list[messages.Message]]] = {
    "clock": Reader._clock,
    "step": Reader._step,
    "signature": Reader._signature,
    "call": Reader._call,
    "waiting": Reader._waiting,
    "after": Reader._after,
    "leaves": Reader._leaves,
    "done": Reader._done,
    "issued": Reader._issued,
    "not finite": lambda _, index: [messages.NotFinite(index)],
    "misused": lambda _, index, how, line: [messages.Misused(index, how, _line(line))],
    "caught": lambda _, what, line, *counts: [messages.Caught(what, _line(line), *counts)],
    "resumed": lambda _: [messages.Resumed()],
    "began": lambda _, work, index: [messages.WorkBegan(hashable(work), index)],
    "ended": lambda _, work: [messages.WorkEnded(hashable(work))],
    "joining": lambda _, threads: [messages.Joining(set(map(hashable, threads)))],
    "checked": lambda _, *checked: [messages.Checked(*checked)],
    "group": lambda _, index, group, line, *name: [messages.Grouped(index, _group(group), _line(line), *name)],
    "no group": lambda _, index: [messages.Ungrouped(index)],
    "returned": lambda _: [RETURN_MESSAGE],
    "failed": Reader._failed,
    "anew": Reader._anew,
    "skipped": Reader._skipped,
}
