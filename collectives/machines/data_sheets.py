"""Figures of this package's CSV files, each checked, and kept with its source.

`data_sheets` reads files with a figure a row, and its unit: gpus.csv, links.csv, machines.csv.  `records` reads the
others, with a record a row.  A mistake is a ValueError that names the file and the line.
"""

import csv
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from types import NoneType
from typing import Any, Iterator, Mapping, NamedTuple, get_args

FOLDER = Path(__file__).parent
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
Column = Any  # one of READERS, or the words that are possible; with "" or `| None` a cell may be empty
READERS = {
    str: (str, "a text"),
    int: (int, "an integer"),
    float: (float, "a number"),
    bool: ({"yes": True, "no": False}.__getitem__, "yes or no"),
}
SHEET = {"name": str, "figure": str, "value": str, "unit": str | None, "source": str}  # columns of a figure a row


class Dimension(NamedTuple):
    """A figure's quantity, in the words of UNITS, and the count of its numbers; None for any count."""

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
        """One figure.  Raises ValueError where the file has none: it names the caller, and the file to add it to."""
        if figure not in self.figures:
            need = f"{needed_by} needs it: add its row, with unit and source, to {short(self.file)}."
            raise ValueError(f"the {self.kind} {self.name} has no figure {figure!r}, and {need}")
        return self.figures[figure].value


def data_sheets(kind: str, file: Path, schema: Mapping[str, Dimension]) -> dict[str, DataSheet]:
    """The data sheets of a file with a figure a row, by name.  schema: the figures that it may have."""
    sheets: dict[str, dict[str, Quantity]] = {}
    for place, row in records(file, SHEET, ("name", "figure")):
        with at(place):
            if row["figure"] not in schema:
                raise ValueError(f"no figure is called {row['figure']!r}, only {', '.join(schema)}.")
            value = _value(row["figure"], row["value"], row["unit"] or "", schema[row["figure"]])
        sheets.setdefault(row["name"], {})[row["figure"]] = Quantity(value, row["source"], place)
    return {name: DataSheet(kind, name, file, figures) for name, figures in sheets.items()}


def records(file: Path, columns: Mapping[str, Column], key: tuple[str, ...]) -> Iterator[tuple[str, dict]]:
    """(file and line, record) for each row of a file with a record per row.  key: columns that identify a record."""
    seen: dict[tuple, int] = {}
    with open(file, newline="", encoding="utf-8") as lines:
        reader = csv.reader(lines)
        head = next(reader, [])
        if head != list(columns):
            raise ValueError(f"{short(file)}, line 1: the columns are {', '.join(columns)}, not {', '.join(head)}.")
        for cells in reader:
            place = f"{short(file)}, line {reader.line_num}"
            with at(place):
                if len(cells) != len(head):
                    raise ValueError(f"{len(cells)} cells for {len(head)} columns; quote one that has a comma.")
                row = {column: _cell(column, cell, kind) for (column, kind), cell in zip(columns.items(), cells)}
                name = tuple(str(row[column]) for column in key)
                if name in seen:
                    raise ValueError(f"{', '.join(name)} is in line {seen[name]} already.")
            seen[name] = reader.line_num
            yield place, row


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


def _value(figure: str, words: str, unit: str, dimension: Dimension) -> Value:
    """The value of a figure's words, in SI units."""
    measures, many = dimension
    units = {unit: size for unit, (what, size) in UNITS.items() if what == measures}
    if unit not in units:
        raise ValueError(f"{figure} needs the unit {' or '.join(map(repr, units))}, not {unit!r}.")
    if measures == "words":
        return words
    try:  # decimal, so that 87.7 GB/s is 87.7e9 to the last bit
        numbers = [Decimal(word) * units[unit] for word in words.split()]
    except InvalidOperation:
        raise ValueError(f"{words!r} is not a number, nor several between spaces.") from None
    if many and len(numbers) != many:
        raise ValueError(f"{figure} needs {many} numbers, not {len(numbers)}.")
    values = tuple(map(int if measures == "count" else float, numbers))
    return values[0] if many == 1 else values


def _cell(column: str, cell: str, kind: Column) -> str | int | float | bool | None:
    possible = kind if isinstance(kind, tuple) else get_args(kind) or (kind,)
    if not cell and "" not in possible and NoneType not in possible:
        raise ValueError(f"the {column} is missing.")
    if possible is kind:
        if cell not in kind:
            raise ValueError(f"{column} is one of {', '.join(map(repr, kind))}, not {cell!r}.")
        return cell
    read, wanted = READERS[possible[0]]
    try:
        return read(cell) if cell else None
    except (KeyError, ValueError):
        raise ValueError(f"{column} is {wanted}, not {cell!r}.") from None
