"""A schedule's messages and bytes, counted, and the minimum that its collective needs.

Bytes are payload, without the headers of any transport.
"""

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain

from ..format import align
from .schedule import Schedule, title

Bytes = int | Fraction  # without a buffer size: in units of S, the whole buffer


@dataclass(frozen=True, repr=False)
class Bound:
    """The least that any algorithm needs for this collective.

    steps: where a rank takes part in as many messages at a time as this schedule's ranks do: in a step with p sends a
        rank, the ranks that know something grow at most (p + 1)-fold (Bruck et al. 1997, doi 10.1109/71.642949).
    bytes: that some rank must send or receive.
    """

    steps: int
    bytes: Bytes
    formula: str
    source: str


@dataclass(frozen=True, repr=False)
class Count:
    """Lists are per rank.  Bytes in units of S if no buffer size was given."""

    schedule: Schedule
    nbytes: int | None
    steps: int
    messages: list[int]  # sent
    sent: list[Bytes]
    received: list[Bytes]
    added: list[Bytes]  # bytes that each rank adds to its own
    bound: Bound

    @property
    def total(self) -> Bytes:
        """Bytes of all messages together."""
        return sum(self.sent)

    @property
    def most(self) -> Bytes:
        """Bytes that the busiest rank sends, or receives if that is more."""
        return max(*self.sent, *self.received)

    @property
    def busiest(self) -> int:
        """The rank that sends or receives most."""
        most = self.most
        return next(rank for rank, both in enumerate(zip(self.sent, self.received)) if most in both)

    def __repr__(self) -> str:
        unit = "S" if self.nbytes is None else "bytes"
        columns = self.messages, self.sent, self.received, self.added
        figures = [[said_bytes(amount) for amount in row] for row in zip(*columns)]
        rows = [["rank", "messages", f"sends {unit}", f"receives {unit}", f"adds {unit}"]]
        if len(set(zip(*columns))) == 1:
            rows.append(["each", *figures[0]])
        else:
            rows += [[str(rank), *row] for rank, row in enumerate(figures[:16])]
            rows += [["..."]] * (len(figures) > 16)
        rows.append(["all", *(said_bytes(sum(column)) for column in columns)])
        table = align(rows, right=range(5), indent="  ", gap="   ")
        least = f"{said_bytes(self.bound.bytes)} = {self.bound.formula}"
        return (
            f"{title(self.schedule)}\n{table}\n  steps          {self.steps}, at least {self.bound.steps}\n"
            f"  busiest rank   {self.busiest}: {said_bytes(self.most)} {unit}, at least {least}\n"
            f"  bound from     {self.bound.source}"
        )


def said_bytes(amount: Bytes) -> str:
    return str(amount) if isinstance(amount, int) or amount.denominator <= 1000 else f"{float(amount):.4g}"


def count(s: Schedule, nbytes: int | None = None, itemsize: int = 1) -> Count:
    """Counts messages, bytes and steps, per rank.

    nbytes: size S of the buffer; None counts in units of S, exactly.
    itemsize: bytes of an element.  Where elements do not divide evenly, the first chunks get one more, as in a run.
    Raises ValueError if nbytes isn't a multiple of itemsize, or has no equal pieces where they are needed.
    """
    if nbytes is None:
        sizes: list[Bytes] = [Fraction(1, s.cuts)] * s.cuts
    elif nbytes < 0 or nbytes % itemsize or not isinstance(nbytes, int):
        raise ValueError(f"{nbytes} bytes are not a number of elements of {itemsize} bytes.")
    else:
        sizes = [k * itemsize for k in s.sizes(nbytes // itemsize)]
    messages, sent, received, added = ([0] * s.world_size for _ in range(4))
    for m in chain.from_iterable(s.steps):
        size = sum(sizes[c % s.cuts] for c in m.chunks)
        messages[m.source] += 1
        sent[m.source] += size
        received[m.target] += size
        if m.adds:
            added[m.target] += size
    return Count(s, nbytes, len(s.steps), messages, sent, received, added, bound(s, nbytes))


def bound(s: Schedule, nbytes: int | None = None) -> Bound:
    """The least steps and bytes of the schedule's collective."""
    n, least = s.world_size, s.facts.least
    busy = [Counter(m.source for m in step) for step in s.steps] + [Counter(m.target for m in step) for step in s.steps]
    ports = max((most for c in busy for most in c.values()), default=1)
    steps = 0
    while (ports + 1) ** steps < n:
        steps += 1
    each = Fraction(least.parts(n), n) * (1 if nbytes is None else nbytes)
    whole = nbytes is not None and each.denominator == 1
    return Bound(steps, int(each) if whole else each, least.formula, least.source)
