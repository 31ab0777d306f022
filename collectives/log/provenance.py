"""The content of a picture's cells: the captured values of a collective, slot by slot.

A slot is one tensor, or one rank's chunk of a tensor.  It names the rank its data came from only where the captured
values bear that out, so that a result which nobody sent, or a sum with a rank missing, can be seen in the picture.
"""

from dataclasses import replace
from functools import lru_cache, partial, reduce
from itertools import chain
from typing import NamedTuple

import torch

from .calls import Call
from .collectives import of, shapes
from .event import Event, Summary, Value, as_list

SIGNS = {"SUM": "Σ", "PRODUCT": "Π", "BAND": "&", "BOR": "|", "BXOR": "⊕"}  # the others are words
_COMBINE = {
    "SUM": lambda parts: parts.sum(0),
    "AVG": lambda parts: parts.mean(0),
    "PRODUCT": lambda parts: parts.prod(0),
    "MIN": lambda parts: parts.amin(0),
    "MAX": lambda parts: parts.amax(0),
    "BAND": partial(reduce, torch.bitwise_and),
    "BOR": partial(reduce, torch.bitwise_or),
    "BXOR": partial(reduce, torch.bitwise_xor),
}


class Slot(NamedTuple):
    column: int
    value: Value  # a tensor or a Summary, without ends if only the size is known; None: not worth showing
    letter: str  # a chunk's letter and rank, for where there is no room for numbers
    kind: str  # see below
    origin: int | None = None  # the rank it came from
    joined: bool = False  # one tensor with the slot to its left
    share: float = 1.0  # of the value, from its beginning, that came from `origin`


# Kinds: "data" came from `origin`, all of it or this `share`; "buffer" is about to be overwritten;
# "reduced" combines every rank; "undefined" means nothing by contract; "unknown" is anything else.
Row = list[Slot]


def agree(call: Call) -> bool:
    """Whether all ranks made the same call, whatever their tensors."""
    return len({e.how for e in call}) == 1


def read(call: Call) -> tuple[list[Row], list[Row]]:
    """Each rank's input to a call, and its result."""
    before = [_before(call, e) for e in call]
    given = {e.rank: row for e, row in zip(call, before)}
    after = [_placed(e.after, shapes(e.op)[1] or "whole", call, e, 1) for e in call]
    return before, [[_explain(call, e, given, *placed) for placed in row] for e, row in zip(call, after)]


def _before(call: Call, e: Event) -> Row:
    buffer = e.src is not None and e.rank != e.src and not e.is_message
    kind, shape = "buffer" if buffer else "data", shapes(e.op)[0] or "whole"
    if buffer and shape == "all":
        shape = "own"
    scratch = buffer and e.is_scratch
    return [
        Slot(column, None if scratch else value, letter(column, e.rank), kind, e.rank, joined)
        for column, value, joined in _placed(e.before, shape, call, e, 0)
    ]


def _explain(call: Call, e: Event, given: dict[int, Row], column: int, value: Value, joined: bool) -> Slot:
    """The slot of a call's result, with its origin if the values agree with it."""
    if e.is_undefined:
        return Slot(column, value, "?", "undefined")
    same = next((slot for slot in given[e.rank] if slot.column == column), None) if of(e.op).in_place else None
    left_alone = same is not None and _equal(value, same.value)
    untouched = e.async_op and not e.waited and left_alone
    sources = _sources(call, e, column)
    parts = [_sent_value(given.get(rank), chunk) for rank, chunk in sources]
    if e.reduce_op:
        sign = SIGNS.get(e.reduce_op, e.reduce_op.lower() + " ") + letter(column)
        if agree(call) and not untouched and _is_reduction(value, parts, e.reduce_op):
            return Slot(column, value, sign, "reduced", None, joined)
    elif len({other.op for other in call}) == len(sources) == 1:
        ((sender, chunk),) = sources
        if share := _copied_share(value, parts[0]):
            return Slot(column, value, letter(chunk, sender), "data", sender, joined, share)
    return same if left_alone else Slot(column, value, "?", "unknown", None, joined)


@lru_cache(8)
def _slots(op: str, group: tuple[int, ...]) -> list:
    """Each rank's input to an op, as the names of its slots: the rank and the column."""
    return of(op).given(len(group), lambda place, column: ((group[place], column),))


def _sources(call: Call, e: Event, column: int) -> tuple[tuple[int, int], ...]:
    """The names of the slots from which a call makes the one in this column."""
    collective, group = of(e.op), call.group
    if e.root is not None and e.root not in group:
        return ()
    root = None if e.root is None else group.index(e.root)
    left = collective.result(_slots(e.op, group), group.index(e.rank), root, lambda parts: tuple(chain(*parts))) or ()
    begin = column if collective.in_place else column - column % len(group)  # of its tensor, in a call of several
    return tuple((rank, begin + k) for rank, k in (left[column % len(group)] if isinstance(left, list) else left))


def _sent_value(row: Row | None, column: int) -> Value:
    """A rank's input for a column: its only tensor, if it passes one."""
    row = row or []
    return row[0].value if len(row) == 1 else next((slot.value for slot in row if slot.column == column), None)


def letter(chunk: int, rank: int | None = None) -> str:
    """'c₂' for the third chunk of rank 2's data."""
    below = "".join(chr(0x2080 + int(digit)) for digit in str(rank)) if rank is not None else ""
    return chr(97 + chunk % 26) + below


def _placed(value: Value, shape: str, call: Call, e: Event, side: int) -> list[tuple[int, Value, bool]]:
    """(column, tensor, joined) for everything in a captured value."""
    mine = call.group.index(e.rank)
    if isinstance(value, (list, tuple)):
        flat = [v for v in as_list(value) if v is not None]
        if e.op.endswith("_coalesced") and shape != "whole":  # several calls in one: a row of slots for each tensor
            placed = ((k, *slot) for k, v in enumerate(flat) for slot in _placed(v, shape, call, e, side))
            return [(k * len(call.group) + column, v, joined) for k, column, v, joined in placed]
        return [(mine if shape == "own" and len(flat) == 1 else column, v, False) for column, v in enumerate(flat)]
    if value is None:
        return []
    if shape == "all":
        chunks = _chunks(value, len(call.group), (e.splits or ((), ()))[side])
        return [(column, v, column > 0) for column, v in enumerate(chunks)]
    return [(mine if shape == "own" else 0, value, False)]


def _chunks(value: Value, n: int, splits: tuple[int, ...]) -> list[Value]:
    """A tensor's chunks along its first dimension: by the splits, or n equal ones."""
    rows = value.shape[0] if value.shape else 0
    if splits and sum(splits) != rows:
        return [value]
    if isinstance(value, Summary):  # its parts have a size, but no values that are known
        return [replace(value, shape=(r, *value.shape[1:]), head=(), tail=()) for r in splits or (rows // n,) * n]
    if splits:
        return list(value.split(list(splits)))
    if rows == n:
        return list(value)  # stacked: a row for every rank
    if value.numel() % n:
        return [value]
    return list(value.chunk(n) if rows and rows % n == 0 else value.reshape(n, -1))


def _equal(a: Value, b: Value) -> bool:
    if isinstance(a, Summary) and isinstance(b, Summary):
        return a.checksum == b.checksum
    tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    if not tensors or a.dtype != b.dtype or a.numel() != b.numel():
        return False
    a, b = a.flatten(), b.flatten()
    return bool(((a == b) | ((a != a) & (b != b))).all())  # NaN is the same as NaN here


def _copied_share(value: Value, sent: Value) -> float:
    """The share of the value, from its beginning, that equals the sent value; parts of a Summary are believed.

    A buffer may be larger than the message, and of a different dtype: it then has the sender's bytes.
    """
    if not isinstance(value, torch.Tensor) or not isinstance(sent, torch.Tensor):
        whole = is_whole(value) and is_whole(sent)
        return float(_equal(value, sent) if whole else sent is not None)
    if _equal(value, sent):
        return 1.0
    got, came = (x.contiguous().reshape(-1).view(torch.uint8) for x in (value, sent))
    if not 0 < came.numel() <= got.numel():
        return 0.0
    return came.numel() / got.numel() if torch.equal(got[: came.numel()], came) else 0.0


def is_whole(value: Value) -> bool:
    """Whether this is the Summary of a tensor as it was captured, not of a chunk."""
    return isinstance(value, Summary) and bool(value.head)


def _is_reduction(value: Value, parts: list[Value], op: str) -> bool:
    """Whether value combines all the parts; what cannot be computed here is believed."""
    if not parts or any(part is None for part in parts):
        return False
    if not all(isinstance(part, torch.Tensor) for part in [value, *parts]):
        return True
    if any(part.numel() != value.numel() or part.dtype != value.dtype for part in parts):
        return False
    if op not in _COMBINE or value.is_complex() or op == "AVG" and not value.is_floating_point():
        return True
    together = torch.stack([part.flatten() for part in parts])
    if value.dtype == torch.bool:  # bytes to the backend: a sum of truths may be 2
        truths = _COMBINE[op]((together.view(torch.uint8) != 0).byte()) != 0
        return torch.equal(truths, value.flatten().view(torch.uint8) != 0)
    if not value.is_floating_point():
        return torch.equal(_COMBINE[op](together).to(value.dtype), value.flatten())  # wraps as the backend does
    # The backend chooses the order of the additions: allow for rounding.
    slack = len(parts) * torch.finfo(value.dtype).eps
    want = _COMBINE[op](together.double()).to(value.dtype).double()
    size = together.double().abs().sum(0).nan_to_num(0, 0).amax().item() if value.numel() else 0.0
    return torch.allclose(value.flatten().double(), want, rtol=slack, atol=slack * size, equal_nan=True)
