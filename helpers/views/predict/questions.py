"""The questions that `predict` can ask about a run.

They know nothing of widgets, nor of marks.  A question is made from a first run, of which it keeps the ranks' inputs
and the number of cells to fill in; the results are taken from the run that marks the answer.
"""

from dataclasses import dataclass
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import torch

from collectives.format import name_ranks, number
from collectives.launch.attempt import Outcome
from collectives.log import provenance
from collectives.log.calls import Call
from collectives.log.event import Event
from collectives.log.text import before_text, call_title, text
from collectives.outcome.errors import Mismatch, RankFailed, RunError, Stuck
from collectives.outcome.run import Run

from .answers import NEVER_COMPLETED, NO_VALUE, UNDEFINED, Want, numbers_of, plain, wants

MAX_CELLS = 12  # to fill in for one rank: more is typing, not thinking

VERDICTS = {
    "it finishes": Run,
    "some ranks wait forever (Stuck)": Stuck,
    "the ranks' calls do not fit together (Mismatch)": Mismatch,
    "a rank fails (RankFailed)": RankFailed,
}
DENIED = {
    Stuck: "No rank was left waiting",
    Mismatch: "No two calls disagreed",
    RankFailed: "No rank raised an error",
}


# --- questions ----------------------------------------------------------------------------


class ShownCell(NamedTuple):
    """A cell before the call."""

    text: str
    rank: int | None  # whose color it has; None: there is nothing of interest


class QuestionRow(NamedTuple):
    """One line to fill in: a rank, or the one line of a question that is not about ranks."""

    rank: int | None = None
    before: str = ""
    shown: Sequence[ShownCell] = ()
    root: bool = False
    asked: bool = True
    cells: int = 1


class FillIn:
    """Asks for the numbers that ranks hold after a call, or return.

    kind: "after", "returned", "chunks".  which: of the run's calls; -1: the last.  ranks: to be filled in; None: all.
    first: a run, of which nothing is kept that would give the answer.
    """

    ask = "grid"  # as the web module calls this kind of question
    one: int | None = None  # of several calls, the one that was named: its outcome is shown, and no other call

    def __init__(self, fn_name: str, kind: str, which: int, ranks: tuple[int, ...] | None, first: Outcome) -> None:
        self.fn_name, self.kind, self.which = fn_name, kind, which
        who = "each rank" if ranks is None else name_ranks(sorted(ranks))
        answers = self.wants(first)
        if kind == "returned":
            self.title = f"What does {fn_name} return on {who}?"
            rows = [QuestionRow(rank, *_brings(mine)) for rank, mine in enumerate(first.run.events)]
            self.before = "brings" if any(row.before not in ("", "-") for row in rows) else ""
        else:
            call, count = self.call(first.run), len(first.run.calls)
            self.one = which if which != -1 and count > 1 else None
            named = "this call" if self.one is None else f"call {which % count + 1} of {count}"
            verb = "do" if who.startswith("ranks") else "does"
            self.title = f"What {verb} {who} hold after {named}?  {call_title(call)}"
            before, _ = provenance.read(call)
            rows = [QuestionRow(e.rank, *self._holds(e, row), e.rank == e.root) for e, row in zip(call, before)]
            self.before = "before"
        asked = {row.rank for row in rows if ranks is None or row.rank in ranks}
        if not asked:
            raise ValueError(f"predict: rank={ranks} has no part in this call")
        most = max(len(answers.get(rank, ())) or 1 for rank in asked)
        if most > MAX_CELLS:
            raise ValueError(
                f"predict: {most} numbers per rank are too many to fill in. Ask for their letters with "
                'ask="chunks", or ask a question with choices=[...].'
            )
        self.rows = [row._replace(asked=row.rank in asked, cells=most) for row in rows]

    def _holds(self, e: Event, row: list[provenance.Slot]) -> tuple[str, list[ShownCell]]:
        """A rank's tensor before the call, in words and as cells."""
        letters = self.kind == "chunks"
        words = " ".join(slot.letter for slot in row) or "-" if letters else before_text(e)
        return words, [cell for slot in row for cell in _cells(slot, letters)]

    def call(self, done: Run) -> Call:
        return done.chosen(self.which)[0]

    def wants(self, outcome: Outcome) -> dict[int, list[Want]]:
        """rank -> the right values."""
        if self.kind == "returned":
            if outcome.error:
                return {rank: [NEVER_COMPLETED] for rank in range(outcome.run.world_size)}
            return {rank: wants(result) for rank, result in enumerate(outcome.run.results)}
        call = self.call(outcome.run)
        if self.kind == "chunks":
            _, after = provenance.read(call)
            return {e.rank: [_letter(e, slot) for slot in row] or [NO_VALUE] for e, row in zip(call, after)}
        return {e.rank: _results(e) for e in call}


def _letter(e: Event, slot: provenance.Slot) -> Want:
    if e.end is None or e.is_undefined:
        return NEVER_COMPLETED if e.end is None else UNDEFINED
    return Want("word", slot.letter, plain(slot.letter))


def _results(e: Event) -> list[Want]:
    if e.end is None:
        return [NEVER_COMPLETED] * max(1, len(numbers_of(e.before)))
    left = wants(e.after)
    return [UNDEFINED] * len(left) if e.is_undefined else left


def _brings(mine: list[Event]) -> tuple[str, list[ShownCell]]:
    """A rank's input to the first of its calls, in words and as cells."""
    words = before_text(mine[0]) if mine and mine[0].op != "recv" else "-"
    return words, [ShownCell(part, mine[0].rank) for part in _parts(mine[0].before)] if words != "-" else []


def _cells(slot: provenance.Slot, letters: bool) -> list[ShownCell]:
    # A buffer looks like data here: that it is about to be overwritten would be half of the answer.
    if letters or slot.value is None:
        return [ShownCell("", None) if slot.value is None else ShownCell(slot.letter, slot.origin)]
    return [ShownCell(part, slot.origin) for part in _parts(slot.value)]


def _parts(value: Any) -> list[str]:
    if isinstance(value, torch.Tensor) and value.dim() < 2 and 0 < value.numel() <= MAX_CELLS:
        return [number(v) for v in value.flatten().tolist()]
    if isinstance(value, (list, tuple)):
        return [part for v in value for part in _parts(v)]
    return [text(value)]


@dataclass
class Open:
    """Asks for something else than tensors: a number, some ranks, a word."""

    title: str
    answer: Callable[[Any], Any]
    ask, rows, before, one = "open", [QuestionRow()], "", None


@dataclass
class Choice:
    """Asks to choose one of some sentences."""

    title: str
    options: tuple[str, ...]
    right: Callable[[Run | RunError], str | None]  # the option that is right
    because: Mapping[str, str]  # option -> why it is wrong
    ends: Mapping[str, type]  # option -> the end of the run that it predicts
    ask, rows, before, one = "choice", [QuestionRow()], "", None

    def pick(self, words: Any) -> str:
        """An option from a learner's text: its words, their beginning, or its number from 1."""
        words = str(words).strip()
        if words.isdigit() and words not in self.options and 1 <= int(words) <= len(self.options):
            return self.options[int(words) - 1]
        found = [option for option in self.options if words and option.casefold().startswith(words.casefold())]
        if words and len(found) != 1:
            raise ValueError(f"{words!r} is not one of the choices: give its number, 1 to {len(self.options)}.")
        return found[0] if words else ""

    def why(self, option: str, outcome: Outcome) -> str:
        """Why an option is wrong: the author's reason, or the run's real end; '' if unknown."""
        if option in self.because:
            return self.because[option]
        end, done = self.ends.get(option), outcome.done
        if end is None or isinstance(done, end):
            return ""
        if isinstance(done, Run):
            return f"Every one of the {done.world_size} ranks returned."
        return f"{DENIED.get(end, 'It did not finish')}: {str(done).strip().splitlines()[0]}"


def waiting_ranks(done: Run | RunError) -> list[int] | None:
    return list(done.ranks) if isinstance(done, Stuck) else None
