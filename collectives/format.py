"""Numbers, sizes, ranks and dtypes in words, and words in columns: the same in every table, picture and message."""

import math
import textwrap
from functools import cache
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any, Iterable, Sequence

if TYPE_CHECKING:
    import torch

MOST_NAMED = 12  # ranks that are written out one by one
MOST_RUNS = 8  # of ranks in a row, in a sentence
COLUMNS = 100  # the longest line that is shown unbroken, in a notebook next to its outline too


def align(
    rows: Iterable[Sequence[str]],
    right: Iterable[int] = (),
    *,
    indent: str = "",
    gap: str = "  ",
    least: Sequence[int] = (),
    rule: bool = False,
) -> str:
    """Rows of words as a table, one line per row; a row may end early.

    right: the columns that are flush right.  indent: before each line.  gap: between two columns.
    least: the minimum width of each column, in characters.  rule: lines below the first row and above the last.
    """
    columns = list(zip_longest(*rows, fillvalue=""))
    widths = [max(map(len, column)) for column in columns]
    widths = [max(pair) for pair in zip_longest(widths, least[: len(widths)], fillvalue=0)]
    right = set(right)
    columns = [[f"{cell:>{w}}" if k in right else f"{cell:<{w}}" for cell in column]
               for k, (column, w) in enumerate(zip(columns, widths))]  # fmt: skip
    lines = [(indent + gap.join(cells)).rstrip() for cells in zip(*columns)]
    if rule:
        bar = "-" * max(map(len, lines))
        lines = [lines[0], bar, *lines[1:-1], bar, lines[-1]]
    return "\n".join(lines)


def wrap(text: str) -> str:
    """Lines; longer ones than COLUMNS characters are broken between words."""
    lines = [textwrap.wrap(line, COLUMNS, break_long_words=False, break_on_hyphens=False) for line in text.split("\n")]
    return "\n".join("\n".join(parts) for parts in lines)


def name_ranks(ranks: "Iterable[int]", most: int = MOST_NAMED) -> str:
    """'rank 3', 'ranks 0, 1 and 3', 'ranks 0-5, 7-1023', '64 ranks (0, 8, 16, ..., 504)'.  most: ranks that are written out."""
    ranks = list(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 4 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    if len(ranks) > most:
        brief = runs(ranks)
        return f"ranks {brief}" if brief == span(ranks) else f"{len(ranks):,} ranks ({brief})"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def with_article(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def kind(value: Any) -> str:
    """'a float32 tensor of shape [3]', 'None', 'an int'"""
    import torch  # takes a second, which a table of words can do without

    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        layout = "" if value.layout == torch.strided else f"{str(value.layout).removeprefix('torch.')} "
        name = f"{layout}{dtype_name(value.dtype)}"
        return f"{'an' if name[0] == 'i' else 'a'} {name} tensor of shape {list(value.shape)}"
    return with_article(value)


def numbers(values) -> str:
    """Each value as `number` writes it, fractions far smaller than the largest value with fewer digits.

    A float32 that remains of terms a thousand times as large has no more: further digits differ between processors.
    """
    largest = max((abs(v) for v in values if math.isfinite(abs(v))), default=1)

    def digits(v) -> int:
        return min(4, max(1, 5 - int(math.log10(largest) - math.log10(abs(v))))) if 0 < abs(v) < 1 else 4

    return " ".join(number(v, digits(v)) for v in values)


def number(v, digits: int = 4) -> str:
    """A number with at most this number of significant digits; a float with an integer value has no point."""
    if isinstance(v, bool):
        return "T" if v else "F"
    if isinstance(v, complex):
        return f"{v.real:.{digits}g}{v.imag:+.{digits}g}i"
    if isinstance(v, int) or (math.isfinite(v) and v == int(v) and abs(v) < 1e6):
        return str(int(v))
    return f"{v:.{digits}g}"


def brief(v) -> str:
    """As `number`, in about five characters."""
    if not isinstance(v, float) or not math.isfinite(v) or v == int(v):
        return number(v)
    return f"{v:.0e}" if abs(v) < 0.005 else f"{v:.2f}" if abs(v) < 10 else f"{v:.3g}"


def short(value: Any, width: int = 88) -> str:
    """repr in one line, cut in the middle when long."""
    line = " ".join(repr(value).split())
    return line if len(line) <= width else f"{line[: width - 24]} ... {line[-19:]}"


def size(nbytes: int) -> str:
    """'12 B', '1.5 KiB', '64 MiB'"""
    unit, *larger = "B", "KiB", "MiB", "GiB"
    while nbytes >= 1024 and larger:
        nbytes, unit = nbytes / 1024, larger.pop(0)
    return f"{nbytes:.4g} {unit}"


def duration(seconds: float) -> str:
    """'1,800 s', '1.5 s', '20 ms', '3.25 µs'"""
    if seconds >= 999.5:
        return f"{seconds:,.0f} s"
    for unit, factor in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 0.9995:  # is written as 1
            break
    return f"{seconds * factor:.3g} {unit}"


def span(ranks: Sequence[int]) -> str:
    """(0, 1, 2, 3) -> '0-3'; (0, 2) -> '0, 2'; (0, 1, 2, 5) -> '0-2, 5'"""
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), lambda at: at[1] - at[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def runs(ranks: Sequence[int]) -> str:
    """As `span`, without the middle ones of a long list: '0, 8, 16, ..., 504'"""
    parts = span(ranks).split(", ")
    return ", ".join(parts if len(parts) <= MOST_RUNS else [*parts[:3], "...", parts[-1]])


def dtype_name(dtype: "torch.dtype") -> str:
    return str(dtype).removeprefix("torch.")


@cache
def dtypes() -> "dict[str, torch.dtype]":
    """All dtypes, by name."""
    import torch

    return {dtype_name(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
