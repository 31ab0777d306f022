"""Figures read from this package's data files, each checked, and kept with its source.

All files are CSV with a head, and have a source for each row.  Two kinds:

- a figure a row, with its unit: `data_sheets` reads gpus.csv, links.csv and machines.csv;
- a record a row, with columns of its own: `records` reads the others.

A mistake in a file is a ValueError that names the file and the line.
"""

from __future__ import annotations

import csv
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from types import NoneType
from typing import Any, Iterator, Mapping, NamedTuple, get_args

HERE = Path(__file__).parent
HEAD = ("name", "figure", "value", "unit", "source")
UNITS = {  # unit -> what it measures, and its size in SI units
    "": ("words", Decimal(1)),
    "count": ("count", Decimal(1)),
    "share": ("share", Decimal(1)),
    "µs": ("seconds", Decimal("1e-6")),
    "GiB": ("bytes", Decimal(2**30)),
    "GB/s": ("bytes/s", Decimal(10**9)),
    "TB/s": ("bytes/s", Decimal(10**12)),
    "TFLOP/s": ("FLOP/s", Decimal(10**12)),
}
Value = str | int | float | tuple  # a tuple where a figure has several numbers
# What a column has: one of READERS, or the words that are possible.  A cell may be empty where "" is one of the words,
# or where the type is `| None`.
Column = Any
READERS = {
    str: (str, "a text"),
    int: (int, "an integer"),
    float: (float, "a number"),
    bool: ({"yes": True, "no": False}.__getitem__, "yes or no"),
}


class Dimension(NamedTuple):
    """What a figure measures, in the words of UNITS, and how many numbers it has; None for any number of them."""

    measures: str
    numbers: int | None = 1


WORDS, COUNT, SHARE, SPEED, SECONDS = map(Dimension, ("words", "count", "share", "bytes/s", "seconds"))


class Quantity(NamedTuple):
    """A figure's value in SI units, and where it is from.  place: file and line."""

    value: Value
    source: str
    place: str


@dataclass(frozen=True, eq=False)
class DataSheet:
    """All figures of one thing, by their names.  kind: "GPU", "link" or "machine".  file: where its rows are."""

    kind: str
    name: str
    file: Path
    figures: Mapping[str, Quantity]

    def value(self, figure: str, needed_by: str) -> Value:
        """One figure.  Raises ValueError where the file has none: it names who needs it, and the file to add it to."""
        if figure not in self.figures:
            raise ValueError(
                f"the {self.kind} {self.name} has no figure {figure!r}, and {needed_by} needs it: "
                f"add its row, with unit and source, to {short(self.file)}."
            )
        return self.figures[figure].value


def data_sheets(kind: str, file: Path, schema: Mapping[str, Dimension]) -> dict[str, DataSheet]:
    """The data sheets of a file with a figure a row, by name.  schema: the figures that it may have."""
    sheets: dict[str, dict[str, Quantity]] = {}
    for place, row in _rows(file, HEAD, ("name", "figure"), optional={"unit"}):
        if row["figure"] not in schema:
            raise ValueError(f"{place}: no figure is called {row['figure']!r}, only {', '.join(schema)}.")
        value = _value(place, row, schema[row["figure"]])
        sheets.setdefault(row["name"], {})[row["figure"]] = Quantity(value, row["source"], place)
    return {name: DataSheet(kind, name, file, figures) for name, figures in sheets.items()}


def records(file: Path, columns: Mapping[str, Column], key: tuple[str, ...]) -> Iterator[tuple[str, dict]]:
    """(file and line, record) for each row of a file with a record a row.  key: columns that tell two records apart."""
    words = {column: kind if isinstance(kind, tuple) else get_args(kind) for column, kind in columns.items()}
    optional = {column for column, possible in words.items() if "" in possible or NoneType in possible}
    for place, row in _rows(file, tuple(columns), key, optional):
        yield place, {column: _cell(place, column, row[column], kind) for column, kind in columns.items()}


@contextmanager
def at(place: str) -> Iterator[None]:
    """Within it, a ValueError names the file and the line."""
    try:
        yield
    except ValueError as reason:
        raise ValueError(f"{place}: {reason}") from None


def short(file: Path) -> str:
    """A file's place, from its package on."""
    return "/".join(file.parts[-3:])


def _rows(file: Path, head: tuple, key: tuple, optional: set) -> Iterator[tuple[str, dict[str, str]]]:
    """(file and line, row): columns as in `head`, empty cells in `optional` alone, `key` only once."""
    seen: dict[tuple, int] = {}
    with open(file, newline="", encoding="utf-8") as lines:
        reader = csv.reader(lines)
        columns = next(reader, [])
        if tuple(columns) != head:
            raise ValueError(f"{short(file)}, line 1: the columns are {', '.join(head)}, not {', '.join(columns)}.")
        for cells in reader:
            place = f"{short(file)}, line {reader.line_num}"
            if len(cells) != len(head):
                raise ValueError(f"{place}: {len(cells)} cells for {len(head)} columns; quote one that has a comma.")
            row = dict(zip(head, cells))
            for column, cell in row.items():
                if not cell and column not in optional:
                    raise ValueError(f"{place}: the {column} is missing.")
            name = tuple(row[column] for column in key)
            if name in seen:
                raise ValueError(f"{place}: {', '.join(name)} is in line {seen[name]} already.")
            seen[name] = reader.line_num
            yield place, row


def _value(place: str, row: dict[str, str], dimension: Dimension) -> Value:
    """The value of a row of HEAD's columns, its unit checked."""
    measures, size = UNITS.get(row["unit"], ("nothing known", None))
    if measures != dimension.measures:
        units = " or ".join(repr(unit) for unit, (what, _) in UNITS.items() if what == dimension.measures)
        raise ValueError(f"{place}: {row['figure']} needs the unit {units}, not {row['unit']!r}.")
    if measures == "words":
        return row["value"]
    try:  # decimal, so that 87.7 GB/s is 87.7e9 to the last bit
        numbers = [Decimal(word) * size for word in row["value"].split()]
    except InvalidOperation:
        raise ValueError(f"{place}: {row['value']!r} is not a number, nor several between spaces.") from None
    if len(numbers) != (dimension.numbers or len(numbers)):
        raise ValueError(f"{place}: {row['figure']} needs {dimension.numbers} numbers, not {len(numbers)}.")
    values = tuple(map(int if measures == "count" else float, numbers))
    return values if dimension.numbers != 1 else values[0]


def _cell(place: str, column: str, cell: str, kind: Column) -> str | int | float | bool | None:
    if isinstance(kind, tuple):
        if cell not in kind:
            raise ValueError(f"{place}: {column} is one of {', '.join(map(repr, kind))}, not {cell!r}.")
        return cell
    read, wanted = READERS[get_args(kind)[0] if get_args(kind) else kind]
    try:
        return read(cell) if cell else None
    except (KeyError, ValueError):
        raise ValueError(f"{place}: {column} is {wanted}, not {cell!r}.") from None
