"""What the planner predicts beside what was published, run by run.

Fitted are three figures, on the eight rows marked so: the share of the peak that products reach on A100 and on H100, and
how often the memory carries what a layer keeps.  Everything else is a data sheet's, NCCL's own, or said to be assumed.
"""

from __future__ import annotations

import statistics
import textwrap
from dataclasses import dataclass
from itertools import groupby

from ...format import aligned, duration
from ...frontend import show
from ..calibration import Errors
from .runs import ALLOCATED, RUNS, Published
from .step import Step

WIDE = 118  # characters of a line
GOAL = 0.2  # of the median row that nothing was fitted to

WHY = (  # what the planner does not know, where it errs most
    "[2] ZeRO-3 alone, as DeepSpeed was in 2021: 1,536 GPUs take as long as 768, as they would if each got its "
    "parameters at some 16 GB/s. NCCL's rings carry ten times that, and those the planner prices.",
    "[4] From 8,192 GPUs on: slow GPUs and crowded switches, of which the paper tells. The planner knows none.",
    "[7] MPT 13B on H100: hidden messages are probably not free; they take processors and memory from the products.",
    "[9] An H100 of 500 W with slower memory, which the planner takes for one of 700 W.",
    "[6] [10] One share of the peak for all of H100: programs of 2024 and 2025 reach more of it than those of 2023.",
)


@dataclass(frozen=True)
class ValidatedRun:
    """A published step beside the planner's."""

    published: Published
    step: Step

    @property
    def error(self) -> float:
        """Predicted seconds / published - 1."""
        return self.step.time / self.published.seconds - 1

    @property
    def counts(self) -> bool:
        """Whether nothing was fitted to it."""
        return not self.published.role


class Validation(Errors):
    """ValidatedRuns; those that nothing was fitted to count."""

    @property
    def by_source(self) -> dict[str, float]:
        """Source -> the median size of the error of its rows that count, so that many rows alike weigh no more than few."""
        return {
            source: Validation(rows).median for source, rows in self._sources().items() if any(r.counts for r in rows)
        }

    def of(self, gpu: str) -> Validation:
        """The rows on this GPU."""
        return Validation(row for row in self if row.published.machine.gpus.name == gpu)

    def _sources(self) -> dict[str, list[ValidatedRun]]:
        return {source: list(rows) for source, rows in groupby(self, lambda row: row.published.source)}

    def __repr__(self) -> str:
        notes = list(dict.fromkeys(row.published.note for row in self if row.published.note))
        head, *table = self._table(notes).splitlines()
        lines = [head]
        for k, (source, rows) in enumerate(self._sources().items(), 1):
            lines += ["", f"  [{k}] {source}", *table[: len(rows)]]
            del table[: len(rows)]
        lines += ["", *(f"  ({k}) {note}" for k, note in enumerate(notes, 1)), ""]
        if len(self) == len(RUNS):
            lines += ["  Where it errs most, and why:", *(_wrapped(reason) for reason in WHY), "", *_memories(), ""]
        counted = sum(row.counts for row in self)
        close = sum(row.counts and abs(row.error) <= GOAL for row in self)
        for gpu in dict.fromkeys(row.published.machine.gpus.name for row in self):
            lines.append(f"  median error on {gpu}: {self.of(gpu).median:.1%}")
        sources = statistics.median(self.by_source.values())
        lines.append(f"  median error of the {counted} rows that nothing was fitted to: {self.median:.1%}; of the sources' medians: {sources:.1%}")  # fmt: skip
        lines.append(f"  within {GOAL:.0%}: {close} of {counted} rows")
        return "\n".join(lines)

    def _table(self, notes: list[str]) -> str:
        """A line for each row, below the heads."""
        rows = [("", "GPU", "GPUs", "  divided", "published", "planner", "error")]
        for row in self:
            run = row.published
            mark = f" ({notes.index(run.note) + 1})" if run.note else ""
            of = (run.what, run.machine.gpus.name, f"{run.division.gpus:,}", f"  {run.division.short}")
            times = (duration(run.seconds), duration(row.step.time), f"{row.error:+.0%}")
            rows.append((*of, *times, f" {run.role}{mark}"))
        return aligned(rows, right=(2, 4, 5, 6), indent="  ", gap="", least=(20, 6, 6, 52, 10, 10, 7))

    def draw(self):
        """The Picture: a dot for each row, predicted / published, a line for each source."""
        from .picture import draw_check

        return draw_check(self, GOAL)

    def _ipython_display_(self) -> None:
        show(self.draw(), repr(self))


def _wrapped(words: str) -> str:
    return textwrap.fill(words, WIDE, initial_indent="  ", subsequent_indent="      ")


def _memories() -> list[str]:
    """What logs say of memory, beside the planner."""
    lines = [
        f"  {'memory of a GPU, GiB':<36}{'between steps':>14}{'planner':>9}{'error':>7}{'at most':>10}{'planner':>9}{'error':>7}"
    ]
    for log in ALLOCATED:
        held = log.predict()
        cells = ""
        for wide, published, predicted in ((14, log.between, held.states), (10, log.most, held.total)):
            cells += f"{published / 2**30:>{wide}.1f}{predicted / 2**30:>9.1f}{predicted / published - 1:>+7.0%}"
        lines.append(f"  {log.what + ': ' + log.division.short:<36}{cells}")
    return lines


def check() -> Validation:
    """Every published run with the planner's prediction; displayed, a line each with its source."""
    return Validation(ValidatedRun(run, run.predict()) for run in RUNS)
