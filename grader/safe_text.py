"""Text for a terminal or a spreadsheet: a progress bar, names without control characters, cells without formulas."""

import re
import sys

WIDTH = 24  # characters of a bar


def bar(what: str, done: int, of: int) -> None:
    """A progress bar; nothing where the output goes to a file. of: 0 takes it away."""
    if sys.stdout.isatty():
        filled = "#" * (WIDTH * done // of if of else 0)
        shown = f"{what} [{filled:.<{WIDTH}}] {done}/{of}" if of else ""
        print(f"\r\x1b[K{shown}", end="", flush=True)


def printable_lines(text: str) -> str:
    """The lines, each without control characters."""
    return "\n".join(map(printable, text.splitlines()))


def printable(text: str) -> str:
    """The text on one line, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


def no_formula(cell: str) -> str:
    """The cell as text, where a spreadsheet would compute it."""
    computed = cell.startswith(("=", "+", "-", "@", "\t")) and not re.fullmatch(r"-[\d.]+", cell)
    return f"'{cell}" if computed else cell
