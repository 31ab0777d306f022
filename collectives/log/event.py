"""What happened in a run, as plain data: `Event`, and the `Line`, `Summary` and `Failure` in it.

Everything that explains a run (the picture, the diagnosis, the grader) reads these objects.
"""

from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from ..format import dtype_name, numbers
from .collectives import of

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
    """Stands for a tensor too large to keep: `run(..., whole=True)` keeps it instead.

    checksum: the sum of each block of 1024 int64 that the tensor's bytes make, then CRC32 of the sums.
    Equal tensors have equal checksums; different ones, in practice, different checksums.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
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


# What a rank passed to a call, or was left with: a CPU tensor that nobody else holds,
# a Summary of a large one, a list of these where the call takes a list, or None.
Value = Any


def each(value: Any) -> list:
    """The tensors of a value, or of an argument: one, none, a list, or a list of lists."""
    if not isinstance(value, (list, tuple)):
        return [] if value is None else [value]
    flat = []
    for v in value:
        flat += v if isinstance(v, (list, tuple)) else (v,)
    return flat


class Lane(tuple):
    """What a rank's events have in common that are counted together: its group; for a message, both ends and the tag.

    The lanes of the events that belong with them differ in the first item alone; shared: the others.  place: of such
    an event in its call.  A group may have a thousand ranks, so the hash is worked out once.
    """

    shared: "Lane"
    place: int

    def __new__(cls, items: tuple) -> "Lane":
        lane = super().__new__(cls, items)
        lane._hash = tuple.__hash__(lane)
        return lane

    def __hash__(self) -> int:
        return self._hash


_shared = lru_cache(1024)(Lane)  # equal ones are the same object, and so found without a look at their items
_one = lru_cache(1024)(tuple)  # likewise


@dataclass(eq=False)
class Event:
    """One torch.distributed call, as one rank made it."""

    rank: int  # global
    index: int  # 0-based, in the order this rank made its calls
    op: str  # torch.distributed's name: "all_reduce", "all_gather_single", "send", ...
    group: tuple[int, ...]  # global ranks of the group, in group order
    src: int | None = None  # global rank: the root of broadcast and scatter, the source of recv
    dst: int | None = None  # global rank: the root of reduce and gather, the target of send
    reduce_op: str | None = None  # "SUM", "MAX", ...
    dtype: torch.dtype | None = None  # of what the rank passes in (of its buffer, if nothing)
    shape: tuple[int, ...] = ()  # likewise; a list's shape is its first tensor's
    nbytes: int = 0  # likewise, all tensors of a list together
    before: Value = None  # what the rank passes in; None where it passes nothing
    after: Value = None  # what the rank is left with; None where it gets nothing, or never got it
    line: Line | None = None
    start: float = 0.0  # seconds since the run began, when the call was made
    end: float | None = None  # when it was complete for this rank (async: waited for); None: never
    async_op: bool = False  # isend and irecv included
    waited: bool = False  # False: `after` is what stood when the rank function returned
    tag: int | None = None  # send and recv only
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # all_to_all_single: in, out
    within: str | None = None  # the torch function the learner called, if it was not `op` itself
    group_name: str = ""  # tells apart two groups of the same ranks
    non_dense: tuple[str, ...] = ()  # "in", "out": whether what it passes or fills is a view with gaps
    strides: tuple[int, ...] | None = None  # strides of a tensor that is not contiguous
    misuse: str | None = None  # what this rank did wrong with its tensors: "aliased", "read", "written"
    misused_at: Line | None = None  # where it read or wrote them too early
    viewed_at: Line | None = None  # where it took a NumPy or DLPack view of them before they were waited for
    waiting: float | None = None  # since when the rank was blocked in it; None: it never waited
    step: int = 0  # training steps that the rank had ended before; see rank/steps.py
    backend: str | None = None  # "gloo", "nccl", ...; None: not known
    # Since when a device's stream alone has had it, and the rank went on: `end` is then when something showed that it
    # was complete, None if nothing did. None: the rank waited for its end.
    issued: float | None = None
    captured: bool = False  # it went into a CUDA graph: it moves something at each replay, which nobody sees
    handling: str | None = None  # the exception that the program was handling when it made the call
    abandoned: bool = False  # whether its Work was let go of, or its rank ended, before it was complete
    non_finite: bool = False  # whether it passes in a NaN or an infinity, where that is looked for

    def __reduce__(self):
        """Numbers and strings alone: each name of a class or a field would take as long as ten of them."""
        values = [*_values(self)]
        if self.line:
            values[_LINE] = tuple(self.line)
        if self.dtype:
            values[_DTYPE] = _NAMES[self.dtype]
        if type(self.before) is Summary:
            values[_BEFORE] = _flat(self.before)
        return _event, tuple(values)

    @property
    def is_message(self) -> bool:
        return self.op in ("send", "recv")

    @property
    def ends(self) -> tuple[int | None, int]:
        """Who sends this message, and to whom; None: a recv from anyone."""
        return (self.rank, self.dst) if self.op == "send" else (self.src, self.rank)

    @property
    def is_from_anyone(self) -> bool:
        """A recv whose source is not known yet."""
        return self.op == "recv" and self.src is None

    @cached_property
    def lane(self) -> Lane:
        """The events that this one is counted with. To be asked for only once a recv's source is known."""
        if self.is_message:
            lane = Lane((self.op, self.group_name, self.group, *self.ends, self.tag))
            lane.place = int(self.op == "recv")
        else:
            lane = Lane((self.rank, self.group_name, self.group))
            lane.place = self.group.index(self.rank)
        lane.shared = _shared(lane[1:])
        return lane

    @cached_property
    def kind(self) -> tuple[str, int, str]:
        """What it is summed up under: its op, how many ranks its group has, and its dtype."""
        return self.op, len(self.group), "" if self.dtype is None else dtype_name(self.dtype)

    @cached_property
    def form(self) -> tuple:
        """All in which it may disagree with its partners, but for splits and lines. Equal ones are the same object."""
        own = self.misuse, self.non_dense, self.strides, self.backend, len(self.group)
        return _one((self.op, self.root, self.reduce_op, self.dtype, self.shape, self.nbytes, *own))

    @property
    def how(self) -> str:
        """A collective in a few words: 'all_reduce MAX', 'broadcast from 1'."""
        root = f" from {self.src}" if self.src is not None else f" to {self.dst}" if self.dst is not None else ""
        return self.op + (f" {self.reduce_op}" if self.reduce_op else "") + root

    @property
    def is_undefined(self) -> bool:
        """After reduce only the root's tensor means anything; the backends leave differing things."""
        collective, group = of(self.op), self.group
        if not (collective.reduces and collective.in_place):
            return False
        root = group.index(self.dst) if self.dst in group else None
        return collective.result(group, group.index(self.rank), root, len) is None

    @property
    def stands_in(self) -> bool:
        """Whether torch's Join made it, because this rank has run out of input: to match what torch calls elsewhere."""
        return self.within == "Join.__exit__"

    @property
    def is_scratch(self) -> bool:
        """A buffer that torch made itself: before the call it holds whatever its memory held."""
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
_DTYPES = {dtype_name(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def _event(*values) -> Event:
    event = Event(*values)
    if event.line:
        event.line = Line(*event.line)
    if event.dtype:
        event.dtype = _DTYPES[event.dtype]
    if type(event.before) is tuple:
        event.before = _summary(*event.before)
    return event


def _flat(s: Summary) -> tuple:
    return s.shape, _NAMES[s.dtype], s.nbytes, s.checksum, s.head, s.tail


def _summary(shape: tuple[int, ...], dtype: str, *rest) -> Summary:
    return Summary(shape, _DTYPES[dtype], *rest)


@dataclass
class Failure:
    """An exception as it left the learner's function."""

    kind: str  # the exception's class name
    message: str
    frames: list[Line]  # the learner's own, outermost first
    started: bool  # False: it never got as far as calling the function
    chain: str = ""  # the whole traceback, for those who want it
