"""What a verdict shows: wanted beside got, and the traffic beside its budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..errors import source as line_of
from ..record import Event
from ..traffic import Traffic
from ..twin import dtype_name, number, size, text
from .cases import Case

if TYPE_CHECKING:
    from .judge import Budget

SHOWN = 10  # numbers of a tensor
INPUTS = 8  # ranks whose inputs are shown


def kind(value: Any) -> str:
    """'a float32 tensor of shape [3]', 'None', 'an int'"""
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        return f"a {dtype_name(value.dtype)} tensor of shape {list(value.shape)}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def these(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def source(e: Event) -> str:
    return line_of(e.line)


def values(case: Case, parameters: tuple[str, ...], given: list[tuple], wanted: Any, got: Any, wrong: list[int]) -> str:
    """All ranks' inputs; wanted above got on the first rank that is wrong, marked where they differ; the other ranks."""
    lines = [f"  input: {case}"]
    for r, arguments in enumerate(given[:INPUTS]):
        lines.append(f"    rank {r}   {_inputs(parameters, arguments)}".rstrip())
    lines += _pairs(wanted, got, wrong[0])
    if wrong[1:]:
        lines.append(f"Also wrong on {these(wrong[1:])}.")
    return "\n".join(lines)


def _inputs(parameters: tuple[str, ...], arguments: tuple) -> str:
    if len(arguments) == 1:
        return _input(arguments[0])
    return ", ".join(f"{name} = {_input(value)}" for name, value in zip(parameters, arguments))


def _input(value: Any) -> str:
    return text(value) if isinstance(value, (torch.Tensor, list)) else str(value)


def _pairs(wanted: Any, got: Any, rank: int) -> list[str]:
    if isinstance(wanted, (tuple, list)) and isinstance(got, (tuple, list)) and len(wanted) == len(got):
        parts = zip(wanted, got)
        return next((_pairs(w, g, rank) for w, g in parts if _marks(w, g)), [])
    label = f"rank {rank}"
    blank = " " * len(label)
    if isinstance(wanted, torch.Tensor) and isinstance(got, torch.Tensor) and wanted.shape == got.shape:
        return _aligned(wanted, got, label)
    return [f"  {label}   wanted   {_input(wanted)}", f"  {blank}   got      {_input(got)}"]


def _marks(wanted: Any, got: Any) -> bool:
    if isinstance(wanted, torch.Tensor) and isinstance(got, torch.Tensor) and wanted.shape == got.shape:
        return not torch.equal(wanted.double(), got.double())
    return wanted is not got and wanted != got


def _aligned(wanted: torch.Tensor, got: torch.Tensor, label: str) -> list[str]:
    flat_wanted, flat_got = wanted.flatten().tolist(), got.flatten().tolist()
    words = [(number(w), number(g)) for w, g in zip(flat_wanted, flat_got)]
    differ = [w != g for w, g in words]
    if not any(differ):  # the difference is smaller than what is shown
        words = [(str(w), str(g)) for w, g in zip(flat_wanted, flat_got)]
        differ = [w != g for w, g in words]
    first = max(0, min(differ.index(True) if True in differ else 0, len(words) - SHOWN))
    part = slice(first, first + SHOWN)
    note = f"   (numbers {first} to {min(first + SHOWN, len(words)) - 1} of {len(words)})" if len(words) > SHOWN else ""
    widths = [max(len(w), len(g)) for w, g in words[part]]
    rows = ["  ".join(f"{pair[k]:>{wide}}" for pair, wide in zip(words[part], widths)) for k in (0, 1)] + [
        "  ".join(
            ("^" * len(pair[1]) if d else "").rjust(wide) for pair, d, wide in zip(words[part], differ[part], widths)
        )
    ]
    blank = " " * len(label)
    lines = [
        f"  {label}   wanted   {rows[0]}{note}",
        f"  {blank}   got      {rows[1]}",
        f"  {blank}            {rows[2]}",
    ]
    return [line.rstrip() for line in lines if line.strip()]


def cost(traffic: Traffic, budget: Budget) -> str:
    """One line: the busiest rank, the steps, and the budget in the statement's words."""
    most = max([*(budget.sent or ()), *(budget.received or ())], default=None)
    here = "" if most is None else f"; here at most {size_of(most)}"
    return f"Traffic: {spent(traffic) if traffic.ops else 'none'}. The budget: {budget.words}{here}."


def spent(traffic: Traffic) -> str:
    """'the busiest rank moves 24 B in 4 messages and 4 steps'; of collectives only the least is known"""
    moved = size(round(traffic.busiest))
    if any(traffic.messages):
        return f"the busiest rank moves {moved} in {_plural(max(traffic.messages), 'message')} and {_plural(traffic.steps, 'step')}"
    return f"the busiest rank has to move {moved} ({', '.join(sorted(traffic.ops))})"


def _plural(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def traffic(case: Case, moved: Traffic, budget: Budget) -> str:
    """Each rank's traffic beside its budget."""
    columns = {"sent": size_of, "received": size_of, "messages": str}
    kept = {k: show for k, show in columns.items() if getattr(budget, k) is not None}
    rows = [["rank"] + [word for k in kept for word in (k, "budget")]]
    for r in range(case.world_size):
        row = [str(r)]
        for k, show in kept.items():
            is_, may = getattr(moved, k)[r], getattr(budget, k)[r]
            row += [show(is_) + " !" * (is_ > may + 1e-6), show(may)]
        rows.append(row)
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  " + "   ".join(f"{word:<{wide}}" for word, wide in zip(row, widths)).rstrip() for row in rows]
    if budget.steps is not None:
        lines.append(f"  steps  {moved.steps}{' !' * (moved.steps > budget.steps)}, budget {budget.steps}")
    return "\n".join([f"  input: {case}", *lines, f"The budget: {budget.words}."])


def size_of(nbytes: float) -> str:
    return size(round(nbytes, 1))
