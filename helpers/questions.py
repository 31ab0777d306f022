"""What `predict` can ask about a run, how an answer is read, and how it is marked.

Knows nothing of widgets.  A question is made from a first run, of which it keeps what the
ranks brought and how many cells there are to fill in; what they were left with is taken
from the run that marks the answer.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Callable, NamedTuple, Sequence

import torch

from . import slots
from .errors import Mismatch, RankFailed, RunError, Stuck, _ranks
from .launch import run
from .record import Call, Event, Run, Summary
from .twin import before_text, call_title, number, short, text

MOST_CELLS = 12  # to fill in for one rank: more is typing, not thinking

VERDICTS = {
    "it finishes": Run,
    "some ranks wait for ever (Stuck)": Stuck,
    "the ranks' calls do not fit together (Mismatch)": Mismatch,
    "a rank fails (RankFailed)": RankFailed,
}


@dataclass
class Outcome:
    """What running the function came to."""

    run: Run  # what was recorded, until the end or until the error
    error: RunError | None
    printed: str

    @property
    def done(self) -> Run | RunError:
        """What an author's `answer` is asked about: the error if there is one, else the run."""
        return self.error or self.run

    def answer(self, of: Callable[[Run | RunError], Any]) -> Any:
        """An author's answer; the error itself where the author did not think of one."""
        try:
            return of(self.done)
        except Exception:
            if self.error:
                raise self.error from None
            raise


def attempt(fn: Callable, args: Sequence, kwargs: dict) -> Outcome:
    """Runs it, and keeps to itself what the ranks print and how the run ends."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            done, error = run(fn, *args, **kwargs), None
        except RunError as failed:
            done, error = failed.run, failed
    if done is None:  # interrupted, where interrupts are not passed on
        raise KeyboardInterrupt
    return Outcome(done, error, printed.getvalue())


# --- one answer ---------------------------------------------------------------------------


class Want(NamedTuple):
    """What one cell really holds."""

    kind: str  # "number", "word", "undefined", "nothing", "never"
    text: str
    value: Any = None


UNDEFINED = Want("undefined", "undefined")
NEVER = Want("never", "never completed")
NOTHING = Want("nothing", "nothing")
_WORDS = {
    "undefined": {"?", "undefined", "undef"},
    "nothing": {"-", "none", "nothing", "∅"},
    "never": {"never", "hangs", "hang", "stuck", "waits"},
}
_PLAIN = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789", "_ ()'\"")


class Given(NamedTuple):
    """What the learner put into one cell."""

    text: str
    kind: str  # as of Want, or "blank"
    value: Any = None


def given(words: Any) -> Given:
    words = "" if words is None else str(words).strip()
    low = words.lower()
    for kind, names in _WORDS.items():
        if low in names:
            return Given(words, kind)
    if low in ("true", "false"):
        return Given(words, "number", low == "true")
    for kind in (int, float, complex):
        try:
            return Given(words, "number", kind(low))
        except ValueError:
            pass
    if match := re.fullmatch(r"(-?\d+)/(\d*[1-9]\d*)", low):
        return Given(words, "number", int(match[1]) / int(match[2]))
    return Given(words, "word" if words else "blank", _plain(words))


def _plain(words: str) -> str:
    """A word without what people write differently: 'c₂' is 'c2', 'sum a' is 'Σa'."""
    return re.sub(r"^(sum|sigma|sumof|s(?=[a-z]$))", "σ", words.translate(_PLAIN).casefold())


def wants(value: Any) -> list[Want]:
    """The cells of a value: a number each, in row-major order."""
    if value is None:
        return [NOTHING]
    if isinstance(value, (bool, int, float, complex)):
        return [Want("number", number(value), value)]
    if isinstance(value, torch.Tensor):
        return [cell for v in value.flatten().tolist() for cell in wants(v)]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return [cell for v in value for cell in wants(v)]
    words = str(value) if isinstance(value, (str, Summary)) else short(value)
    return [Want("word", words, _plain(words))]


def fits(answer: Given, want: Want) -> bool:
    if answer.kind != want.kind:
        return answer.kind == "blank" and want.kind == "nothing"
    if want.kind == "word":
        return answer.value == want.value
    return want.kind != "number" or _close(answer.value, want.value)


def _close(a: Any, b: Any) -> bool:
    """Equal, or as near as the few digits of a picture can tell."""
    if a == b or a != a and b != b:
        return True
    if isinstance(b, int) or a != a or b != b or not isinstance(b, complex) and (math.isinf(b) or b == int(b)):
        return not isinstance(a, complex) and abs(a) >= 1e6 and number(float(a)) == number(float(b))
    return abs(a - b) <= 5e-3 * abs(b)


def numbers_of(value: Any) -> list:
    return [cell.value for cell in wants(value) if cell.kind == "number"]


# --- questions ----------------------------------------------------------------------------


class Shown(NamedTuple):
    """A cell before the call."""

    text: str
    rank: int | None  # whose colour it has; None: there is nothing of interest


@dataclass
class Row:
    """One line to fill in: a rank, or the one line of a question that is not about ranks."""

    label: str
    before: str = ""
    shown: list[Shown] = field(default_factory=list)
    cells: int = 1
    rank: int | None = None
    root: bool = False
    asked: bool = True


class Mark(NamedTuple):
    given: Given
    want: Want
    right: bool | None  # None: not answered
    why: str = ""


@dataclass
class Grid:
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
        if most > MOST_CELLS:
            raise ValueError(
                f"predict: {most} numbers a rank are too many to fill in. Ask for their letters with "
                'ask="chunks", or ask a question with choices=[...].'
            )
        for row in self.rows:
            row.cells = most
        del self.first  # with it goes the answer

    def _rows(self, outcome: Outcome) -> tuple[str, list[Row]]:
        answers, done = self.wants(outcome), outcome.run
        rows = []
        if self.kind == "returned":
            title = f"What does {self.fn_name} return on {self._who}?"
            for rank, mine in enumerate(done.events):
                shown, words = _brings(mine[0]) if mine else ([], "-")
                rows.append(Row(f"rank {rank}", words, shown, len(answers.get(rank, ())) or 1, rank))
        else:
            call = self.call(done)
            verb = "do" if self._who.startswith("ranks") else "does"
            title = f"What {verb} {self._who} hold after this call?  {call_title(call)}"
            before, _ = slots.read(call)
            for e, row in zip(call, before):
                letters = self.kind == "chunks"
                words = " ".join(slot.letter for slot in row) or "-" if letters else before_text(e)
                shown = [cell for slot in row for cell in _cells(slot, letters)]
                rows.append(Row(f"rank {e.rank}", words, shown, len(answers[e.rank]) or 1, e.rank, e.rank == e.root))
        for row in rows:
            row.asked = self.ranks is None or row.rank in self.ranks
        return title, rows

    @property
    def _who(self) -> str:
        return "each rank" if self.ranks is None else _ranks(sorted(self.ranks))

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
            _, after = slots.read(call)
            return {e.rank: [self._letter(e, slot) for slot in row] or [NOTHING] for e, row in zip(call, after)}
        return {e.rank: _left(e) for e in call}

    def _letter(self, e: Event, slot: slots.Slot) -> Want:
        if e.end is None or e.is_undefined:
            return NEVER if e.end is None else UNDEFINED
        return Want("word", slot.letter, _plain(slot.letter))

    def mark(self, filled: list[list[str]], outcome: Outcome) -> list[list[Mark]]:
        """filled: the text of every cell, a list for each row."""
        from .reasons import why  # a reason is given by what is here

        answers = self.wants(outcome)
        tried = any(cell.strip() for row in filled for cell in row)
        marked = []
        for row, texts in zip(self.rows, filled):
            if not row.asked:
                marked.append([])
                continue
            right = answers.get(row.rank) or [NOTHING]
            right = right if len(right) > 1 else right * row.cells if right[0].kind in ("undefined", "never") else right
            marks = []
            for k, (text_, want) in enumerate(zip_longest(texts, right, fillvalue=None)):
                answer, want = given(text_), want or NOTHING
                if k and answer.kind == "blank" and want.kind == "nothing":
                    continue  # nothing was expected there, and nothing is: no merit in that
                good = fits(answer, want) if answer.kind != "blank" or tried and want.kind == "nothing" else None
                reason = why(self, outcome, row.rank, k, answer, want) if good is False else ""
                marks.append(Mark(answer, want, good, reason))
            marked.append(marks)
        return marked


def _left(e: Event) -> list[Want]:
    if e.end is None:
        return [NEVER] * max(1, len(numbers_of(e.before)))
    count = wants(e.after)
    return [UNDEFINED] * len(count) if e.is_undefined else count


def _brings(e: Event) -> tuple[list[Shown], str]:
    """What a rank brings to its first call."""
    words = before_text(e)
    if e.op == "recv" or words == "-":
        return [], "-"
    return [Shown(part, e.rank) for part in _parts(e.before)], words


def _cells(slot: slots.Slot, letters: bool) -> list[Shown]:
    # A buffer looks like data here: that it is about to be overwritten would be half of the answer.
    if letters or slot.value is None:
        return [Shown(slot.letter if slot.value is not None else "", slot.origin if slot.value is not None else None)]
    return [Shown(part, slot.origin) for part in _parts(slot.value)]


def _parts(value: Any) -> list[str]:
    if isinstance(value, torch.Tensor) and value.dim() < 2 and 0 < value.numel() <= MOST_CELLS:
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
        self.rows, self.before = [Row("answer")], ""

    def mark(self, filled: list[list[str]], outcome: Outcome) -> list[list[Mark]]:
        words = filled[0][0]
        right = wants(outcome.answer(self.answer))
        said = [given(word) for word in re.split(r"[,;\s]+|\band\b|\branks?\b", words) if word]
        want = Want("answer", ", ".join(cell.text for cell in right) or "none")
        if not said:
            return [[Mark(given(""), want, None)]]
        if any(cell.kind == "word" for cell in right):
            return [[Mark(given(words), want, any(fits(given(words), cell) for cell in right))]]
        unordered = [cell for cell in said if cell.kind != "nothing"]
        good = len(unordered) == len([c for c in right if c.kind != "nothing"]) and all(
            fits(a, b) for a, b in zip(unordered, right)
        )
        return [[Mark(given(words), want, good)]]


@dataclass
class Choice:
    """Asks to choose one of some sentences."""

    title: str
    options: tuple[str, ...]
    right: Callable[[Run | RunError], str | None]  # the option that is right

    def __post_init__(self) -> None:
        self.rows, self.before = [Row("answer")], ""

    def pick(self, words: Any) -> str:
        """An option from what a learner wrote: its words, their beginning, or its number from 1."""
        words = str(words).strip()
        if words.isdigit() and 1 <= int(words) <= len(self.options):
            return self.options[int(words) - 1]
        found = [option for option in self.options if words and option.casefold().startswith(words.casefold())]
        if words and len(found) != 1:
            raise ValueError(f"{words!r} is none of the choices: give its number, 1 to {len(self.options)}.")
        return found[0] if words else ""

    def mark(self, filled: list[list[str]], outcome: Outcome) -> list[list[Mark]]:
        picked, right = filled[0][0], outcome.answer(self.right)
        if right not in self.options:
            raise ValueError(f"predict: the answer is {right!r}, and that is none of the choices {self.options}")
        answer = Given(picked, "word" if picked else "blank", picked)
        return [[Mark(answer, Want("word", right, right), picked == right if picked else None)]]


def waiting(done: Run | RunError) -> list[int] | None:
    return list(done.ranks) if isinstance(done, Stuck) else None
