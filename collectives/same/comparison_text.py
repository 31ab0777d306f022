"""A comparison in words: the verdict, its reason, and the table."""

from ..format import align, wrap
from .findings import Comparison, TensorRow

MOST = 12  # rows


def text(found: Comparison) -> str:
    """The verdict, the reason, and a table of the tensors."""
    lines = [wrap(headline(found)), *(wrap(f"Note: {remark}.") for remark in found.remarks)]
    if rows := visible_rows(found):
        lines += ["", align([("tensor", f"on {found.world_size} ranks", "next to one process"), *rows])]
        if (hidden := len(found.rows) - len(rows)) > 0:
            lines.append(f"... and {hidden} more")
    return "\n".join(lines)


def headline(found: Comparison) -> str:
    """'Same: ...', 'Differs: ...' or 'Cannot compare: ...'"""
    return f"{found.verdict.capitalize()}: {found.reason.rstrip('.')}."


def visible_rows(found: Comparison) -> list[TensorRow]:
    """The rows to show: those that differ, and the first of the others, in order."""
    odd = [row for row in found.rows if not row.found.endswith("equal") and row.found]
    rest = [row for row in found.rows if row not in odd]
    chosen = [*odd[:MOST], *rest[: max(0, MOST - len(odd))]]
    return [row for row in found.rows if row in chosen][:MOST]
