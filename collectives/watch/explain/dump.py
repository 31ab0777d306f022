"""A flight-recorder dump, read: the last calls of one rank, as torch wrote them down.

The format is defined by torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, versions 2.0 to 2.10 (torch 2.3 to 2.15),
as a pickle or as JSON.  TorchComms' hook writes the same, as does the hook for backends that record nothing
themselves. A dump lists a rank's calls on its device and their states, but no root, reduce op or tag.
"""

import ast
import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import isnan, nan
from typing import Any, Iterable, NamedTuple

from ...log import backends
from . import ops
from .plain import Unusable

VERSIONS = "2"  # of the format: a version with a different first number is a different format


class ProcessGroup(NamedTuple):
    """ranks: of the whole job, in group order; None where the dump does not list them."""

    name: str
    desc: str
    ranks: tuple[int, ...] | None

    def __hash__(self) -> int:
        return hash((self.name, self.desc))  # each call is looked up by its group, which may have thousands of ranks


class Frame(NamedTuple):
    """The place in a program's own code that made a call."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        return f"{self.function}, {self.file.rpartition('/')[2]}:{self.number}"


class Signature(NamedTuple):
    """One rank's arguments to a call.

    sizes, results: the shapes of the input tensors and of the output tensors.  ends: a message's sender and receiver;
    None where unknown.  parts: of several calls at once.
    """

    op: str
    dtypes: tuple[str, ...] = ()
    sizes: tuple[tuple[int, ...], ...] = ()
    results: tuple[tuple[int, ...], ...] = ()
    ends: tuple[int, int] | None = None
    parts: tuple["Signature", ...] = ()

    @property
    def is_message(self) -> bool:
        return self.op in ("send", "recv")

    @property
    def messages(self) -> list["Signature"]:
        """The sends and receives in it."""
        if not self.parts:
            return [self] if self.is_message else []
        return [part for part in self.parts if part.is_message]


class Launch(NamedTuple):
    """One call of one rank, or several that its device was given at once."""

    index: int  # in the order that this rank made its calls
    group: ProcessGroup
    number: int  # of the collectives of this rank on this group; -1: of messages alone
    what: Signature
    made: int  # nanoseconds
    over: bool | None  # whether it has ended; None: not known, it may have failed
    began: bool  # whether the device had come to it
    ended: int | None = None  # nanoseconds, when that was noticed
    seconds: float | None = None  # it took, by the device's own clock
    place: Frame | None = None
    limit: float | None = None  # seconds, after which a log reports that it timed out


@dataclass(eq=False, slots=True)
class Form:
    """All that is alike in many launches, of all ranks: an object for each, compared by identity."""

    group: ProcessGroup
    what: Signature
    over: bool | None
    began: bool
    place: Frame | None
    limit: float | None = None
    messages: list[Signature] = field(init=False)

    def __post_init__(self) -> None:
        self.messages = self.what.messages


class Launches(Sequence[Launch]):
    """The launches of a rank, in columns: a thousand ranks' two thousand each take 100 MB, as objects a gigabyte."""

    def __init__(self, launches: Iterable[Launch] = ()) -> None:
        self.forms: list[Form] = []
        self.indices, self.numbers, self.made, self.ended = array("q"), array("q"), array("q"), array("q")
        self.seconds = array("d")
        for x in launches:
            form = Form(x.group, x.what, x.over, x.began, x.place, x.limit)
            self.add(form, x.index, x.number, x.made, x.ended, x.seconds)

    def add(
        self, form: Form, index: int, number: int, start: int, ended: int | None = None, seconds: float | None = None
    ) -> None:
        self.forms.append(form)
        self.indices.append(index)
        self.numbers.append(number)
        self.made.append(start)
        self.ended.append(ended or 0)
        self.seconds.append(nan if seconds is None else seconds)

    def __len__(self) -> int:
        return len(self.forms)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        form, seconds = self.forms[at], self.seconds[at]
        return Launch(
            self.indices[at], form.group, self.numbers[at], form.what, self.made[at], form.over, form.began,
            self.ended[at] or None, None if isnan(seconds) else seconds, form.place, form.limit,
        )  # fmt: skip


@dataclass
class Dump:
    """The last calls of one rank."""

    rank: int
    path: str
    version: str
    backend: str  # "nccl", "gloo", ...
    library: str  # and its version, "" where unknown
    groups: dict[str, ProcessGroup]  # by name
    launches: Launches
    dropped: int  # calls that came before
    whole: bool  # False: calls are left out in between, as a dump of active ones does
    unknown: list[str] = field(default_factory=list)  # facts that it lacks, as the end of a sentence
    from_log: bool = False  # it isn't a dump, but made from a log's lines about the rank
    written: int = 0  # nanoseconds since the epoch, when all this was so; 0: unknown, as in a dump
    callers: dict[Frame, tuple[Frame, ...]] = field(default_factory=dict)  # by a call's place, the frames around it


def rank_of(path: str) -> int | None:
    """The rank in a file's name: the number at its end, an ending like .json aside."""
    found = re.search(r"(\d+)(?:\.[a-z]+)*$", path.rpartition("/")[2])
    return int(found[1]) if found else None


def is_dump(data: Any) -> bool:
    return isinstance(data, dict) and ("entries" in data or "pg_config" in data or "pg_status" in data)


def read(data: Any, path: str, known: dict) -> Dump:
    """A dump, unpickled or from JSON.

    known: signatures, groups and places that are alike in many calls, shared between dumps.  Raises Unusable.
    """
    version = str(data.get("version", ""))
    if version.split(".")[0] != VERSIONS:
        raise Unusable(f"has format {version or 'of no version'}, and versions {VERSIONS}.x are read")
    rank = data.get("rank", rank_of(path))
    if "entries" not in data and not data.get("pg_config"):
        raise Unusable("holds no entries, so it reports nothing about its rank: left out")
    if not isinstance(rank, int):
        raise Unusable("does not say of which rank it is: its name should end with the rank, as rank_3 does")
    try:
        return _Reader(data, rank, path, version, known).dump()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, SyntaxError, OverflowError) as error:
        raise Unusable(f"is not a complete dump: {type(error).__name__}: {error}") from error


class _Reader:
    def __init__(self, data: dict, rank: int, path: str, version: str, known: dict) -> None:
        self._data, self._rank, self._path, self._version, self._known = data, rank, path, version, known
        self._entries = data.get("entries") or []
        self._groups = {
            name: self._shared(ProcessGroup(name, about.get("desc", ""), _ranks(about.get("ranks"))))
            for name, about in (data.get("pg_config") or {}).items()
        }
        self._stacks: dict[tuple[int, ...], tuple[str, Frame | None]] = {}
        self._callers: dict[Frame, tuple[Frame, ...]] = {}
        self._forms: dict[tuple, Form] = {}
        states = {e["state"] for e in self._entries if "state" in e}
        # A recorder that never sees a state change marks the end by retiring an entry, even one that failed.
        self._told_by_state = bool(states - {"scheduled"})

    def dump(self) -> Dump:
        entries, records = self._entries, [e["record_id"] for e in self._entries]
        unknown, whole = [], records == list(range(records[0], records[0] + len(records))) if records else True
        launches = self._launches(self._numbers(unknown))
        names = {title.partition(":")[0] for title in {e["profiling_name"] for e in entries}}
        if entries and not any(e.get("frames") for e in entries):
            unknown.append("on which lines the calls were made")
        if entries and not self._told_by_state:
            unknown.append("when a call ended, or whether it failed")
        if not any(backends.of(name).records_messages for name in names) and _leaves_gaps(entries):
            unknown.append("the sends and receives, which gloo does not record")
        return Dump(
            self._rank, self._path, self._version, " and ".join(sorted(names)), str(self._data.get("comm_lib_version", "")),
            self._groups, launches, records[0] if records else 0, whole, unknown, callers=self._callers,
        )  # fmt: skip

    def _numbers(self, unknown: list[str]) -> list[int]:
        """Each entry's number of its collective on its group."""
        told = [e.get("collective_seq_id", e.get("seq_id")) for e in self._entries]
        if None in told:
            raise Unusable("has entries without collective_seq_id")
        if not told or any(number != e["record_id"] for number, e in zip(told, self._entries)):
            return told
        # TorchComms has one number for all groups: each group's are counted here.
        made: Counter[str] = Counter()
        if told[0]:  # the count of earlier ones is lost: count from the last that has ended
            made.update({_name(e): 0 for e in self._entries})
            made.subtract(_name(e) for e in self._entries if e.get("retired"))
            unknown.append("how many calls were made on each group before the first that it holds")
        numbers = []
        for e in self._entries:
            made[_name(e)] += 1
            numbers.append(made[_name(e)])
        return numbers

    def _launches(self, numbers: list[int]) -> Launches:
        launches = Launches()
        batch: list[dict] = []
        after = zip([*self._entries[1:], None], [*numbers[1:], None])
        for e, number, (following, number_after) in zip(self._entries, numbers, after):
            batch.append(e)
            if number_after == number and following is not None and _belongs(e, following):
                continue
            is_whole = len(batch) > 1 and e["profiling_name"].endswith(ops.COALESCED)
            for entries in [batch] if is_whole else [[part] for part in batch]:
                self._add(launches, entries, number)
            batch = []
        return launches

    def _add(self, launches: Launches, entries: list[dict], number: int) -> None:
        """Add the launch that these entries are of."""
        key = _key(entries[0]) if len(entries) == 1 else tuple(map(_key, entries))
        if (form := self._forms.get(key)) is None:
            form = self._forms[key] = self._form(entries)
        first, last = entries[0], entries[-1]
        milliseconds = last.get("duration_ms")
        launches.add(
            form, first["record_id"], -1 if form.messages else number, int(first.get("time_created_ns") or 0),
            int(last.get("time_discovered_completed_ns") or 0), None if milliseconds is None else milliseconds / 1e3,
        )  # fmt: skip

    def _form(self, entries: list[dict]) -> Form:
        last = entries[-1]
        group = self._group(last)
        state, retired = last.get("state"), last.get("retired", False)
        if self._told_by_state:
            over, began = state == "completed", state != "scheduled"
        else:
            # Where states do not show which calls wait in a stream, a call that was made is in flight.
            backend = backends.of(last["profiling_name"].partition(":")[0])
            over, began = None if retired else False, retired or not backend.records_starts
        inner, place = self._stack(entries[0])
        if len(entries) == 1:
            what = self._signature(last, group, inner)
        else:
            calls = tuple(self._signature(e, group, self._stack(e)[0]) for e in entries[:-1])
            what = calls[0] if len(calls) == 1 else self._shared(Signature(ops.COALESCED, parts=calls))
        about = group, what, over, began, place
        return self._known.setdefault(about, Form(*about))

    def _group(self, e: dict) -> ProcessGroup:
        name = _name(e)
        if name not in self._groups:
            desc = "" if isinstance(e["process_group"], str) else e["process_group"][1]
            self._groups[name] = self._shared(ProcessGroup(name, desc, None))
        return self._groups[name]

    def _signature(self, e: dict, group: ProcessGroup, inner: str) -> Signature:
        """inner: the op that the innermost frame is of."""
        sizes, results = tuple(map(tuple, e.get("input_sizes") or ())), tuple(map(tuple, e.get("output_sizes") or ()))
        dtypes = e.get("input_dtypes") or e.get("output_dtypes") or ()
        key = (e["profiling_name"], group, sizes, results, inner, *dtypes)
        if key not in self._known:
            op, ends = _read_title(e["profiling_name"])
            if ends and group.ranks:
                ends = group.ranks[ends[0]], group.ranks[ends[1]]
            # gloo's all_reduce may be a reduce_scatter_single
            op = inner if ops.is_known(inner) and inner != "barrier" else op
            names = tuple(map(ops.dtype_of, dict.fromkeys(dtypes)))
            self._known[key] = self._shared(Signature(op, names, sizes, results, ends))
        return self._known[key]

    def _stack(self, e: dict) -> tuple[str, Frame | None]:
        """The op that the innermost frame is of, and the first frame that is neither torch's nor an installed package's."""
        frames = e.get("frames")
        if not frames:
            return "", None
        key = tuple(map(id, frames))  # a dump has each frame once
        if key not in self._stacks:
            places = [*map(self._shared, own_frames(Frame(f["filename"], f["line"], f["name"]) for f in frames))]
            place = places[0] if places else None
            if place:
                self._callers[place] = tuple(places[1:])
            self._stacks[key] = ops.op_of(frames[0]["name"]), place
        return self._stacks[key]

    def _shared(self, value: Any) -> Any:
        return self._known.setdefault(value, value)


def _leaves_gaps(entries: list[dict]) -> bool:
    """Whether some group has made operations between these."""
    last: dict[str, int] = {}
    for e in entries:
        name, number = _name(e), e["op_id"]
        if number != last.setdefault(name, number - 1) + 1:
            return True
        last[name] = number
    return False


def _key(e: dict) -> tuple:
    """The same for entries of one dump that are alike, in all but their number and times."""
    return (
        e["profiling_name"], _name(e), e.get("state"), e.get("retired", False),
        tuple(map(tuple, e.get("input_sizes") or ())), tuple(map(tuple, e.get("output_sizes") or ())),
        tuple(e.get("input_dtypes") or e.get("output_dtypes") or ()), tuple(map(id, e.get("frames") or ())),
    )  # fmt: skip


def _name(e: dict) -> str:
    group = e["process_group"]
    return group if isinstance(group, str) else group[0]


def _belongs(e: dict, following: dict) -> bool:
    """Whether two entries with one number may be of one launch: torch numbers the launches of a group, coalesced or not."""
    if e.get("is_p2p") != following.get("is_p2p") or _name(e) != _name(following):
        return False
    return not e.get("is_p2p") or e.get("p2p_seq_id") == following.get("p2p_seq_id")


def in_torch(file: str) -> bool:
    return "/torch/" in file or file.startswith(("<", "??")) or not file or "torchcomms/" in file


def own_frames(frames: Iterable[Frame]) -> list[Frame]:
    """The frames that are neither torch's nor an installed package's; without any such, the ones that aren't torch's."""
    outside = [frame for frame in frames if not in_torch(frame.file)]
    return [frame for frame in outside if "-packages/" not in frame.file and not frame.file.endswith((".pyx", ".pxi"))] or outside


def _ranks(value: Any) -> tuple[int, ...] | None:
    """The ranks in "[0, 1]", or in a list; None for no ranks."""
    if isinstance(value, str):
        return _parsed(value)
    return tuple(map(int, value)) if value else None


@cache
def _parsed(text: str) -> tuple[int, ...] | None:
    """Likewise. A thousand ranks have the same groups of a thousand."""
    return _ranks(ast.literal_eval(text)) if text else None


def _read_title(title: str) -> tuple[str, tuple[int, int] | None]:
    """The op of "nccl:send 0->1", and (sender, receiver) as ranks of the group."""
    name, _, meta = title.rpartition(":")[2].partition(" ")
    op = ops.op_of(name)
    if found := re.fullmatch(r"(\d+)(->|<-)(\d+)", meta.strip()):
        a, b = int(found[1]), int(found[3])
        return op, (a, b) if found[2] == "->" else (b, a)
    return op, None
