"""A rank's messages as lines of JSON: what the collector reads from the network, and what a record holds.

A line is an array, [rank, kind, ...].  No line can make its reader execute anything, so a record is
safe to open, and a collector safe to reach.  Times are in seconds on the collector's clock.

    [r, "call", index, op, start, {...}]    the rank makes a call; the rest of its Event that is not the default
    [r, "waiting", index, since, limited, thread]
    [r, "done", index, end, waited, src, after]
    [r, "misused", index, how, line]
    [r, "began", work, index]  [r, "ended", work]  [r, "resumed"]  [r, "joining", [thread, ...]]
    [r, "returned"]  [r, "failed", {...}]   the script has ended; the fields of a Failure

A call that was complete before its line was sent carries "end", "waited" and "after" itself.  A group is
[rank, ...], or "first:beyond:step".  A line of source is [file, number, function, text].  A value is
{"shape", "dtype"}, with "data" for a tensor, "head", "tail" and "checksum" for a summary, or a list of values,
or, in a call, true: the shape and dtype of the call.
"""

import dataclasses
import json
from typing import Any, Callable, Iterator

import torch

from ..rank import protocol
from ..record.event import Event, Failure, Line, Summary, Value

PLAIN = ("src", "dst", "reduce_op", "nbytes", "async_op", "tag", "within", "group_name", "misuse", "waiting")
LISTS = ("shape", "strides", "non_dense")
LINES = ("line", "misused_at", "viewed_at")
_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Event)}


# --- written ------------------------------------------------------------------------------


def written(
    rank: int, messages: list[protocol.Message], shift: float, with_text: Callable[[Line], Line]
) -> Iterator[bytes]:
    """The lines of a rank's messages. shift: what its times lack to the collector's clock."""
    ended = {m.index: m for m in messages if type(m) is protocol.Completed}
    told: set[int] = set()  # calls whose line says all
    waits = {m.index: m.since for m in messages if type(m) is protocol.Waiting}
    for m in messages:
        if type(m) is protocol.Called:
            index = m.event.index
            if index in ended:
                told.add(index)
            line = _call(m.event, ended.get(index), waits.get(index), shift, with_text)
        elif type(m) in (protocol.Waiting, protocol.Completed) and m.index in told:
            continue
        else:
            line = _WRITTEN[type(m)](m, shift, with_text)
        yield json.dumps([rank, *line], separators=(",", ":"), default=_value).encode() + b"\n"


def _call(e: Event, done: protocol.Completed | None, since: float | None, shift: float, with_text) -> list:
    rest: dict[str, Any] = {"group": _ranks(e.group)}
    for name in PLAIN:
        if (value := getattr(e, name)) != _DEFAULTS[name]:
            rest[name] = value
    for name in LISTS:
        if value := getattr(e, name):
            rest[name] = value
    if e.dtype is not None:
        rest["dtype"] = str(e.dtype).removeprefix("torch.")
    if e.splits is not None:
        rest["splits"] = e.splits
    if e.line is not None:
        rest["line"] = with_text(e.line)
    if e.before is not None:
        rest["before"] = _brief(e.before, e)
    if done:
        if since is not None:
            rest["waiting"] = since + shift
        if done.src is not None:
            rest["from"] = done.src
        rest |= {"end": _at(done.end, shift), "waited": done.waited}
        if done.after is not None:
            rest["after"] = _brief(done.after, e)
    return ["call", e.index, e.op, e.start + shift, rest]


def _at(seconds: float | None, shift: float) -> float | None:
    return None if seconds is None else seconds + shift


def _ranks(group: tuple[int, ...]) -> str | tuple[int, ...]:
    if len(group) > 2:
        step = group[1] - group[0]
        if step > 0 and group == tuple(range(group[0], group[-1] + 1, step)):
            return f"{group[0]}:{group[-1] + 1}:{step}"
    return group


def _brief(value: Value, e: Event) -> Any:
    """True for a value of which the event's own shape and dtype are all that is known."""
    known = isinstance(value, Summary) and not value.head and value.shape == e.shape and value.dtype == e.dtype
    return True if known else _value(value)


def _value(value: Value) -> Any:
    if isinstance(value, (list, tuple)):
        return [_value(v) for v in value]
    if value is None:
        return None
    about = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if not isinstance(value, Summary):
        exact = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
        return about | {"data": exact.flatten().tolist()}
    if value.head:
        about |= {"head": value.head, "tail": value.tail, "checksum": value.checksum}
    return about


_WRITTEN: dict[type, Callable[..., list]] = {
    protocol.Waiting: lambda m, shift, _: ["waiting", m.index, m.since + shift, m.limited, m.thread],
    protocol.Completed: lambda m, shift, _: ["done", m.index, _at(m.end, shift), m.waited, m.src, _value(m.after)],
    protocol.Misused: lambda m, _, text: ["misused", m.index, m.how, m.line and text(m.line)],
    protocol.Resumed: lambda *_: ["resumed"],
    protocol.WorkBegan: lambda m, *_: ["began", m.work, m.index],
    protocol.WorkEnded: lambda m, *_: ["ended", m.work],
    protocol.Joining: lambda m, *_: ["joining", list(m.threads)],
    protocol.Returned: lambda *_: ["returned"],
    protocol.Failed: lambda m, _, text: ["failed", _failure(m.failure, text)],
}


def _failure(failure: Failure, text) -> dict:
    return vars(failure) | {"frames": [text(line) for line in failure.frames]}


# --- read ---------------------------------------------------------------------------------


def read(line: bytes | str) -> tuple[int, list[protocol.Message]]:
    """The rank of a line, and its messages. Raises ValueError for what is no line of a record."""
    try:
        rank, kind, *rest = json.loads(line)
        return rank, _called(rank, *rest) if kind == "call" else [_READ[kind](*rest)]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no line of a record: {bytes(line[:100])!r} ({error})") from error


def _called(rank: int, index: int, op: str, start: float, rest: dict) -> list[protocol.Message]:
    fields = {name: rest[name] for name in PLAIN if name in rest}
    fields |= {name: tuple(rest[name]) for name in LISTS if name in rest}
    fields |= {name: _line(rest[name]) for name in LINES if name in rest}
    if "dtype" in rest:
        fields["dtype"] = _dtype(rest["dtype"])
    if "splits" in rest:
        fields["splits"] = tuple(map(tuple, rest["splits"]))
    e = Event(rank, index, op, _group(rest["group"]), start=start, **fields)
    e.before, after = (_read_brief(rest.get(name), e) for name in ("before", "after"))
    if "waited" not in rest:
        return [protocol.Called(e)]
    return [protocol.Called(e), protocol.Completed(index, after, rest["end"], rest["waited"], rest.get("from"))]


def _read_brief(value: Any, e: Event) -> Value:
    return Summary(e.shape, e.dtype, e.nbytes, 0, (), ()) if value is True else _read_value(value)


def _group(ranks: str | list[int]) -> tuple[int, ...]:
    return tuple(range(*map(int, ranks.split(":")))) if isinstance(ranks, str) else tuple(ranks)


def _line(line: list | None) -> Line | None:
    return line and Line(*line)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{name} is no dtype")
    return found


def _read_value(value: Any) -> Value:
    if value is None:
        return None
    if isinstance(value, list):
        return [_read_value(v) for v in value]
    dtype, shape = _dtype(value["dtype"]), tuple(value["shape"])
    if "data" in value:
        if dtype.is_complex:
            return torch.view_as_complex(torch.tensor(value["data"], dtype=dtype.to_real()).reshape(*shape, 2))
        return torch.tensor(value["data"]).to(dtype).reshape(shape)
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    return Summary(
        shape, dtype, nbytes, value.get("checksum", 0), tuple(value.get("head", ())), tuple(value.get("tail", ()))
    )


def _named(thread: Any) -> Any:
    return tuple(thread) if isinstance(thread, list) else thread


_READ: dict[str, Callable[..., protocol.Message]] = {
    "waiting": lambda index, since, limited, thread: protocol.Waiting(index, since, limited, _named(thread)),
    "done": lambda index, end, waited, src, after: protocol.Completed(index, _read_value(after), end, waited, src),
    "misused": lambda index, how, line: protocol.Misused(index, how, _line(line)),
    "resumed": protocol.Resumed,
    "began": lambda work, index: protocol.WorkBegan(_named(work), index),
    "ended": lambda work: protocol.WorkEnded(_named(work)),
    "joining": lambda threads: protocol.Joining(set(map(_named, threads))),
    "returned": lambda: protocol.Returned(b"", (None, None), None, []),
    "failed": lambda fields: protocol.Failed(
        Failure(**fields | {"frames": [_line(line) for line in fields["frames"]]})
    ),
}
