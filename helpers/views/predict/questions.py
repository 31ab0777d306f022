"""What `predict` can ask about a run.

Knows nothing of widgets, nor of marks.  A question is made from a first run, of which it keeps what the
ranks brought and how many cells there are to fill in; what they were left with is taken
from the run that marks the answer.
"""

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, NamedTuple

import torch

from collectives.format import name_ranks, number
from collectives.judge.errors import Mismatch, RankFailed, RunError, Stuck
from collectives.judge.run import Run
from collectives.launch.attempt import Outcome
from collectives.record import provenance
from collectives.record.calls import Call
from collectives.record.event import Event
from collectives.record.text import before_text, call_title, text

from .answers import NEVER, NOTHING, UNDEFINED, Want, numbers_of, plain, wants

MAX_CELLS = 12  # to fill in for one rank: more is typing, not thinking

VERDICTS = {
    "it finishes": Run,
    "some ranks wait for ever (Stuck)": Stuck,
    "the ranks' calls do not fit together (Mismatch)": Mismatch,
    "a rank fails (RankFailed)": RankFailed,
}


# --- questions ----------------------------------------------------------------------------


class ShownCell(NamedTuple):
    """A cell before the call."""

    text: str
    rank: int | None  # whose colour it has; None: there is nothing of interest


@dataclass
class QuestionRow:
    """One line to fill in: a rank, or the one line of a question that is not about ranks."""

    label: str
    before: str = ""
    shown: list[ShownCell] = field(default_factory=list)
    cells: int = 1
    rank: int | None = None
    root: bool = False
    asked: bool = True


@dataclass
class FillIn:
    """Asks for the numbers that ranks hold after a call, or return."""

    fn_name: str
    kind: str  # "after", "returned", "chunks"
    which: int  # of the run's calls
    ranks: tuple[int, ...] | None
    first: Outcome

    def __post_init__(self) -> None:
        self.title, self.rows = self._rows(self.first)
        self.before = "before"
        if self.kind == "returned":
            self.before = "brings" if any(row.before not in ("", "-") for row in self.rows) else ""
        if not any(row.asked for row in self.rows):
            raise ValueError(f"predict: rank={self.ranks} has no part in this call")
        most = max(row.cells for row in self.rows if row.asked)
        if most > MAX_CELLS:
            raise ValueError(
                f"predict: {most} numbers a rank are too many to fill in. Ask for their letters with "
                'ask="chunks", or ask a question with choices=[...].'
            )
        for row in self.rows:
            row.cells = most
        del self.first  # with it goes the answer

    def _rows(self, outcome: Outcome) -> tuple[str, list[QuestionRow]]:
        answers, done = self.wants(outcome), outcome.run
        rows = []
        if self.kind == "returned":
            title = f"What does {self.fn_name} return on {self._who}?"
            for rank, mine in enumerate(done.events):
                shown, words = _brings(mine[0]) if mine else ([], "-")
                rows.append(QuestionRow(f"rank {rank}", words, shown, len(answers.get(rank, ())) or 1, rank))
        else:
            call = self.call(done)
            verb = "do" if self._who.startswith("ranks") else "does"
            title = f"What {verb} {self._who} hold after this call?  {call_title(call)}"
            before, _ = provenance.read(call)
            for e, row in zip(call, before):
                letters = self.kind == "chunks"
                words = " ".join(slot.letter for slot in row) or "-" if letters else before_text(e)
                shown = [cell for slot in row for cell in _cells(slot, letters)]
                rows.append(
                    QuestionRow(f"rank {e.rank}", words, shown, len(answers[e.rank]) or 1, e.rank, e.rank == e.root)
                )
        for row in rows:
            row.asked = self.ranks is None or row.rank in self.ranks
        return title, rows

    @property
    def _who(self) -> str:
        return "each rank" if self.ranks is None else name_ranks(sorted(self.ranks))

    def call(self, done: Run) -> Call:
        return done.chosen(self.which)[0]

    def wants(self, outcome: Outcome) -> dict[int, list[Want]]:
        """rank -> what is right."""
        if self.kind == "returned":
            if outcome.error:
                return {rank: [NEVER] for rank in range(outcome.run.world_size)}
            return {rank: wants(result) for rank, result in enumerate(outcome.run.results)}
        call = self.call(outcome.run)
        if self.kind == "chunks":
            _, after = provenance.read(call)
            return {e.rank: [self._letter(e, slot) for slot in row] or [NOTHING] for e, row in zip(call, after)}
        return {e.rank: _left(e) for e in call}

    def _letter(self, e: Event, slot: provenance.Slot) -> Want:
        if e.end is None or e.is_undefined:
            return NEVER if e.end is None else UNDEFINED
        return Want("word", slot.letter, plain(slot.letter))


def _left(e: Event) -> list[Want]:
    if e.end is None:
        return [NEVER] * max(1, len(numbers_of(e.before)))
    count = wants(e.after)
    return [UNDEFINED] * len(count) if e.is_undefined else count


def _brings(e: Event) -> tuple[list[ShownCell], str]:
    """What a rank brings to its first call."""
    words = before_text(e)
    if e.op == "recv" or words == "-":
        return [], "-"
    return [ShownCell(part, e.rank) for part in _parts(e.before)], words


def _cells(slot: provenance.Slot, letters: bool) -> list[ShownCell]:
    # A buffer looks like data here: that it is about to be overwritten would be half of the answer.
    if letters or slot.value is None:
        return [
            ShownCell(slot.letter if slot.value is not None else "", slot.origin if slot.value is not None else None)
        ]
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

    def __post_init__(self) -> None:
        self.rows, self.before = [QuestionRow("answer")], ""


@dataclass
class Choice:
    """Asks to choose one of some sentences."""

    title: str
    options: tuple[str, ...]
    right: Callable[[Run | RunError], str | None]  # the option that is right
    because: Mapping[str, str] = field(default_factory=dict)  # option -> why it is wrong
    ends: Mapping[str, type] = field(default_factory=dict)  # option -> how it says that the run ends

    def __post_init__(self) -> None:
        self.rows, self.before = [QuestionRow("answer")], ""

    def pick(self, words: Any) -> str:
        """An option from what a learner wrote: its words, their beginning, or its number from 1."""
        words = str(words).strip()
        if words.isdigit() and 1 <= int(words) <= len(self.options):
            return self.options[int(words) - 1]
        found = [option for option in self.options if words and option.casefold().startswith(words.casefold())]
        if words and len(found) != 1:
            raise ValueError(f"{words!r} is none of the choices: give its number, 1 to {len(self.options)}.")
        return found[0] if words else ""

    def why(self, option: str, outcome: Outcome) -> str:
        """Why an option is wrong: the author's reason, or what the run did instead; '' if nobody knows."""
        if option in self.because:
            return self.because[option]
        return _not_so(self.ends[option], outcome.done) if option in self.ends else ""


def _not_so(end: type, done: Run | RunError) -> str:
    """Why a run did not end in this way."""
    if isinstance(done, end):
        return ""
    if isinstance(done, Run):
        return f"Every one of the {done.world_size} ranks returned."
    happened = str(done).strip().splitlines()[0]
    denied = {
        Stuck: "No rank was left waiting",
        Mismatch: "No two calls disagreed",
        RankFailed: "No rank raised an error",
    }
    return f"{denied.get(end, 'It did not finish')}: {happened}"


def waiting(done: Run | RunError) -> list[int] | None:
    return list(done.ranks) if isinstance(done, Stuck) else None
