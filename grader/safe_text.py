"""Text for a terminal, a spreadsheet or the name of a file: without control characters and without formulas."""

import csv
import hashlib
import io
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from unicodedata import normalize

WIDTH = 24  # characters of a bar
MOST_SHOWN = 80  # of a name


def bar(what: str, done: int, of: int) -> None:
    """A progress bar; nothing where the output goes to a file. of: 0 takes it away."""
    if sys.stdout.isatty():
        filled = "#" * (WIDTH * done // of if of else 0)
        shown = f"{what} [{filled:.<{WIDTH}}] {done}/{of}" if of else ""
        print(f"\r\x1b[K{shown}", end="", flush=True)


def printable(text: str) -> str:
    """The text on one line, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


def short(text: str) -> str:
    """The text on one line of a table, without its middle if it is long."""
    return printable(text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN // 2]}...{text[-MOST_SHOWN // 2 :]}")


def no_formula(cell: str) -> str:
    """The cell as text, where a spreadsheet would compute it."""
    computed = cell.startswith(("=", "+", "-", "@", "\t")) and not re.fullmatch(r"-[\d.]+", cell)
    return f"'{cell}" if computed else cell


def as_csv(rows: Iterable[list[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)  # safe wherever ; separates, too
    return out.getvalue()


def read_csv(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns of a CSV file with a line of their names, and its rows. Raises OSError, ValueError or csv.Error."""
    try:
        text = normalize("NFC", path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("it isn't in UTF-8, which Excel calls CSV UTF-8 when you save") from None
    lines = csv.DictReader(io.StringIO(text), delimiter=max(",;\t", key=text.partition("\n")[0].count))
    rows = [{name.strip(): value or "" for name, value in row.items() if name} for row in lines]
    return [name.strip() for name in lines.fieldnames or ()], rows


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:20]


def slug(name: str) -> str:
    """A student's name as a part of a file name; no two names give one."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:60].strip("-")
    return "-".join(filter(None, [plain, digest(name)[:8]]))
