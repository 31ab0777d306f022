"""A rank's messages as lines of JSON: what the collector reads from the network, and what a record holds.

A line is an array, [rank, kind, ...].  No line can make its reader execute anything, so a record is
safe to open, and a collector safe to reach.  Times are in seconds on the collector's clock.

    [r, "call", index, op, start, {...}]    the rank makes a call; the rest of its Event that is not the default
    [r, "waiting", index, since, limited, thread]
    [r, "done", index, end, waited, src, after]
    [r, "issued", index, at, after]    it is in a device's stream; "done" may follow
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

from ..format import dtype_name
from ..rank import protocol
from ..record.event import Event, Failure, Line, Summary, Value

PLAIN = (
    "src", "dst", "reduce_op", "nbytes", "async_op", "tag", "within", "group_name", "misuse", "waiting",
    "backend", "issued", "captured", "step",
)  # fmt: skip
LISTS = ("shape", "strides", "non_dense")
RETURNED = protocol.Returned(b"", (None, None), None, [])  # of a script, which has no result
_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Event)}


# --- written ------------------------------------------------------------------------------


def written(
    rank: int, messages: list[protocol.Message], shift: float, with_text: Callable[[Line | None], Line | None]
) -> Iterator[bytes]:
    """The lines of a rank's messages. shift: what its times lack to the collector's clock."""
    ended = {m.index: m for m in messages if type(m) is protocol.Completed}
    waits = {m.index: m.since for m in messages if type(m) is protocol.Waiting}
    issued = {m.index: m for m in messages if type(m) is protocol.Issued}
    told = {m.event.index for m in messages if type(m) is protocol.Called} & ended.keys()  # by the line of the call
    for m in messages:
        if type(m) is protocol.Called:
            index = m.event.index
            line = _call(m.event, ended.get(index), waits.get(index), issued.get(index), shift, with_text)
        elif type(m) in (protocol.Waiting, protocol.Issued, protocol.Completed) and m.index in told:
            continue
        else:
            line = _WRITTEN[type(m)](m, shift, with_text)
        yield json.dumps([rank, *line], separators=(",", ":"), default=_as_json).encode() + b"\n"


def _call(
    e: Event,
    done: protocol.Completed | None,
    since: float | None,
    issued: protocol.Issued | None,
    shift: float,
    with_text: Callable[[Line | None], Line | None],
) -> list:
    rest: dict[str, Any] = {"group": _ranks(e.group)}
    for name in (*PLAIN, *LISTS, "dtype", "splits"):
        if (value := getattr(e, name)) != _DEFAULTS[name]:
            rest[name] = value
    if e.line is not None:
        rest["line"] = with_text(e.line)
    if e.before is not None:
        rest["before"] = _brief(e.before, e)
    if done:
        if since is not None:
            rest["waiting"] = since + shift
        if done.src is not None:
            rest["from"] = done.src
        if issued:
            rest["issued"] = issued.at + shift
        rest |= {"end": _at(done.end, shift), "waited": done.waited}
        if (after := issued.after if issued else done.after) is not None:
            rest["after"] = _brief(after, e)
    return ["call", e.index, e.op, e.start + shift, rest]


def _at(seconds: float | None, shift: float) -> float | None:
    return None if seconds is None else seconds + shift


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


_WRITTEN: dict[type, Callable[..., list]] = {
    protocol.Waiting: lambda m, shift, _: ["waiting", m.index, m.since + shift, m.limited, m.thread],
    protocol.Completed: lambda m, shift, _: ["done", m.index, _at(m.end, shift), m.waited, m.src, m.after],
    protocol.Issued: lambda m, shift, _: ["issued", m.index, m.at + shift, m.after],
    protocol.Misused: lambda m, _, text: ["misused", m.index, m.how, text(m.line)],
    protocol.Resumed: lambda *_: ["resumed"],
    protocol.WorkBegan: lambda m, *_: ["began", *m],
    protocol.WorkEnded: lambda m, *_: ["ended", *m],
    protocol.Joining: lambda m, *_: ["joining", list(m.threads)],
    protocol.Returned: lambda *_: ["returned"],
    protocol.Failed: lambda m, _, text: ["failed", vars(m.failure) | {"frames": [*map(text, m.failure.frames)]}],
}


# --- read ---------------------------------------------------------------------------------


def read(line: bytes) -> tuple[int, list[protocol.Message]]:
    """The rank of a line, and its messages. Raises ValueError for what is no line of a record."""
    try:
        rank, kind, *rest = json.loads(line)
        return rank, _called(rank, *rest) if kind == "call" else [_READ[kind](*rest)]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no line of a record: {line[:100]!r} ({error})") from error


def _called(rank: int, index: int, op: str, start: float, rest: dict) -> list[protocol.Message]:
    fields = {name: rest[name] for name in PLAIN if name in rest}
    fields |= {name: convert(rest[name]) for name, convert in _CONVERTED.items() if name in rest}
    group = rest["group"]
    ranks = range(*map(int, group.split(":"))) if isinstance(group, str) else group
    e = Event(rank, index, op, tuple(ranks), start=start, **fields)
    e.before, after = (_read_brief(rest.get(name), e) for name in ("before", "after"))
    if "waited" not in rest:
        return [protocol.Called(e)]
    return [protocol.Called(e), protocol.Completed(index, after, rest["end"], rest["waited"], rest.get("from"))]


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
        raise TypeError(f"{name} is no dtype")
    return found


def _line(line: list | None) -> Line | None:
    return line and Line(*line)


def hashable(value: Any) -> Any:
    """What was a tuple before JSON made a list of it, or a plain value."""
    return tuple(value) if isinstance(value, list) else value


_CONVERTED: dict[str, Callable] = dict.fromkeys(LISTS, tuple) | {
    "dtype": _dtype,
    "splits": lambda splits: tuple(map(tuple, splits)),
    "line": _line,
}
_READ: dict[str, Callable[..., protocol.Message]] = {
    "waiting": lambda index, since, limited, thread: protocol.Waiting(index, since, limited, hashable(thread)),
    "done": lambda index, end, waited, src, after: protocol.Completed(index, _value(after), end, waited, src),
    "issued": lambda index, at, after: protocol.Issued(index, _value(after), at),
    "misused": lambda index, how, line: protocol.Misused(index, how, _line(line)),
    "resumed": protocol.Resumed,
    "began": lambda work, index: protocol.WorkBegan(hashable(work), index),
    "ended": lambda work: protocol.WorkEnded(hashable(work)),
    "joining": lambda threads: protocol.Joining(set(map(hashable, threads))),
    "returned": lambda: RETURNED,
    "failed": lambda fields: protocol.Failed(Failure(**fields | {"frames": [*map(_line, fields["frames"])]})),
}
