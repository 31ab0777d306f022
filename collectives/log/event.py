"""The events of a run, as plain data: `Event`, and the `Line`, `Summary` and `Failure` in it.

Everything that explains a run (the picture, the diagnosis, the grader) reads these objects.
"""

from dataclasses import dataclass, fields
from functools import cache, cached_property, lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ..format import dtype_name, dtypes, numbers
from . import backends, collectives

if TYPE_CHECKING:
    import torch

MAIN = "main"  # the thread that runs the rank function


class Line(NamedTuple):
    """Where the learner's own code made a call."""

    file: str
    number: int  # 1-based
    function: str
    text: str = ""  # the source line, stripped

    def __str__(self) -> str:
        return f"{self.function}, line {self.number}"


@dataclass(frozen=True)
class Summary:
    """Replaces a tensor too large to keep: `run(..., whole=True)` keeps it instead.

    checksum: the sum of each block of 1024 int64 that the tensor's bytes make, then CRC32 of the sums.
    Equal tensors have equal checksums; different ones, in practice, different checksums.
    """

    shape: tuple[int, ...]
    dtype: "torch.dtype"
    nbytes: int
    checksum: int
    head: tuple[float, ...]  # first three elements, in row-major order
    tail: tuple[float, ...]  # last three

    def __reduce__(self):  # as an Event's
        return _summary, _flat(self)

    def __str__(self) -> str:
        if not self.head:  # of a record without values
            return f"{dtype_name(self.dtype)} {list(self.shape)}"
        ends = f"{numbers(self.head)} ... {numbers(self.tail)}"
        return f"{ends}  (#{self.checksum:08x})"


# A rank's input to a call, or its result: a CPU tensor that nothing else references,
# a Summary of a large one, a list of these where the call takes a list, or None.
Value = Any


def as_list(value: Any) -> list:
    """The tensors of a value, or of an argument: one, none, a list, or a list of lists."""
    if not isinstance(value, (list, tuple)):
        return [] if value is None else [value]
    flat = []
    for v in value:
        flat += v if isinstance(v, (list, tuple)) else (v,)
    return flat


class Lane(tuple):
    """The key by which a rank's events are counted: its group; for a message, both ends and the tag, if its backend has any.

    The lanes of matching events of other ranks differ in the first item alone; shared: the other items.  place: the
    event's position in its call.  A group may have a thousand ranks, so the hash is computed once.
    """

    shared: "Lane"
    place: int

    def __new__(cls, items: tuple) -> "Lane":
        lane = super().__new__(cls, items)
        lane._hash = tuple.__hash__(lane)
        return lane

    def __hash__(self) -> int:
        return self._hash


_interned_lane = lru_cache(1024)(Lane)  # equal ones are the same object, so a lookup compares no items
_interned_tuple = lru_cache(1024)(tuple)  # likewise


@dataclass(eq=False)
class Event:
    """One torch.distributed call, as one rank made it."""

    rank: int  # global
    index: int  # 0-based, in the order this rank made its calls
    op: str  # torch.distributed's name: "all_reduce", "all_gather_single", "send", ...
    group: tuple[int, ...]  # global ranks of the group, in group order
    src: int | None = None  # global rank: the root of broadcast and scatter, the source of recv, get and wait
    dst: int | None = None  # global rank: the root of reduce and gather, the target of send, put and signal
    reduce_op: str | None = None  # "SUM", "MAX", ...
    dtype: "torch.dtype | None" = None  # of the rank's input (or of its buffer, without an input)
    shape: tuple[int, ...] = ()  # likewise; a list's shape is its first tensor's
    nbytes: int = 0  # likewise, all tensors of a list together
    before: Value = None  # the rank's input; None where it passes nothing
    after: Value = None  # the rank's result; None where it gets nothing, or never got it
    line: Line | None = None
    start: float = 0.0  # seconds since the run began, when the call was made
    end: float | None = None  # when it was complete for this rank (async: waited for); None: never
    async_op: bool = False  # isend and irecv included
    waited: bool = False  # False: `after` is the value when the rank function returned
    tag: int | None = None  # a message's alone; for a signal and its wait, the number of the signal
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # all_to_all_single: in, out
    within: str | None = None  # the torch function the learner called, if it was not `op` itself
    group_name: str = ""  # distinguishes groups of the same ranks
    non_dense: tuple[str, ...] = ()  # "in", "out": a view with gaps; "order": these two store elements differently
    strides: tuple[int, ...] | None = None  # strides of a tensor that is not contiguous
    misuse: str | None = None  # this rank's misuse of its tensors: "aliased", "read", "returned", "written"
    misused_at: Line | None = None  # where it read or wrote them too early
    viewed_at: Line | None = None  # where it took a NumPy or DLPack view of them before they were waited for
    waiting: float | None = None  # since when the rank was blocked in it; None: it never waited
    step: int = 0  # training steps that the rank had ended before; see rank/step_marks.py
    backend: str | None = None  # "gloo", "nccl", ...; None: not known
    # When the rank left the call to a device's stream: `end` is then when that was seen to be over. None: it waited.
    issued: float | None = None
    captured: bool = False  # it went into a CUDA graph: it moves data at each replay, which is not recorded
    handling: str | None = None  # the exception that the program was handling when it made the call
    abandoned: bool = False  # whether its Work was dropped, or its rank ended, before it was complete
    discarded: str | None = None  # the expression that made its output, if nothing holds that: "x.contiguous()"
    non_finite: bool = False  # whether its input has a NaN or an infinity, if that is checked
    in_thread: bool = False  # whether a Python thread other than the main one made it
    cut_short: bool = False  # whether its rank was lost before it was complete

    def __reduce__(self):
        """Numbers and strings alone: each name of a class or a field would cost as much as ten of them."""
        values = [*_values(self)]
        if self.line:
            values[_LINE] = tuple(self.line)
        if self.dtype:
            values[_DTYPE] = _name(self.dtype)
        if type(self.before) is Summary:
            values[_BEFORE] = _flat(self.before)
        return _event, tuple(values)

    @property
    def is_message(self) -> bool:
        return self.op in (*collectives.SENDS, *collectives.RECEIVES)

    @property
    def ends(self) -> tuple[int | None, int]:
        """The sender and the receiver of this message; None: a recv from anyone."""
        return (self.rank, self.dst) if self.op in collectives.SENDS else (self.src, self.rank)

    @property
    def is_from_anyone(self) -> bool:
        """Whether this is a recv whose source is not known yet."""
        return self.op == "recv" and self.src is None

    @cached_property
    def lane(self) -> Lane:
        """The key by which this event is counted. Valid once a recv's source is known."""
        if self.is_message:
            tag = self.tag if backends.of(self.backend).matches_tags else None
            lane = Lane((self.op, self.group_name, self.group, *self.ends, tag))
            lane.place = int(self.op in collectives.RECEIVES)
        else:
            lane = Lane((self.rank, self.group_name, self.group))
            lane.place = self.group.index(self.rank)
        lane.shared = _interned_lane(lane[1:])
        return lane

    @cached_property
    def kind(self) -> tuple[str, int, str]:
        """Its key in summaries: its op, the size of its group, and its dtype."""
        return self.op, len(self.group), "" if self.dtype is None else dtype_name(self.dtype)

    @cached_property
    def form(self) -> tuple:
        """All in which it may disagree with its partners, except splits and lines. Equal forms are one object."""
        own = self.misuse, self.non_dense, self.strides, self.backend, len(self.group)
        return _interned_tuple((self.op, self.root, self.reduce_op, self.dtype, self.shape, self.nbytes, *own))

    @property
    def how(self) -> str:
        """A collective in a few words: 'all_reduce MAX', 'broadcast from 1'."""
        root = f" from {self.src}" if self.src is not None else f" to {self.dst}" if self.dst is not None else ""
        return self.op + (f" {self.reduce_op}" if self.reduce_op else "") + root

    @property
    def is_undefined(self) -> bool:
        """Whether its result is undefined: a reduce defines only the root's, and backends leave different values."""
        collective, group = collectives.of(self.op), self.group
        if not (collective.reduces and collective.in_place):
            return False
        root = group.index(self.dst) if self.dst in group else None
        return collective.result(group, group.index(self.rank), root, len) is None

    @property
    def stands_in(self) -> bool:
        """Whether torch's Join made it, because this rank has run out of input: to match torch's calls elsewhere."""
        return self.within == "Join.__exit__"

    @property
    def is_scratch(self) -> bool:
        """Whether its tensor is a buffer that torch made itself: before the call it has arbitrary contents."""
        return bool(self.within) and (self.op == "recv" or self.op == "broadcast" and self.rank != self.src)

    @property
    def root(self) -> int | None:
        """The global rank that is special in this collective, if any."""
        if self.is_message:
            return None
        return self.src if self.src is not None else self.dst


_fields = [f.name for f in fields(Event)]
_values = attrgetter(*_fields)
_BEFORE, _DTYPE, _LINE = map(_fields.index, ("before", "dtype", "line"))
_name = cache(dtype_name)


def _event(*values) -> Event:
    event = Event(*values)
    if event.line:
        event.line = Line(*event.line)
    if event.dtype:
        event.dtype = dtypes()[event.dtype]
    if type(event.before) is tuple:
        event.before = _summary(*event.before)
    return event


def _flat(s: Summary) -> tuple:
    return s.shape, _name(s.dtype), s.nbytes, s.checksum, s.head, s.tail


def _summary(shape: tuple[int, ...], dtype: str, *rest) -> Summary:
    return Summary(shape, dtypes()[dtype], *rest)


@dataclass
class Failure:
    """An exception as it left the learner's function."""

    kind: str  # the exception's class name
    message: str
    frames: list[Line]  # the learner's own, outermost first
    started: bool  # False: it failed before it called the function
    chain: str = ""  # the full traceback
