"""A prediction: the question about a run, the answer that was given, and the run that marked it."""

from typing import Any, Callable, Mapping

import torch

from collectives.draw.canvas import Picture
from collectives.figures.web.panel import picture_data
from collectives.format import align
from collectives.frontend import RECORDING, Interactive, answer, attended
from collectives.launch.attempt import Outcome
from collectives.outcome.errors import RunError
from collectives.outcome.run import Run

from ... import progress
from ..web import PREDICT
from .answers import wants
from .blank_picture import blank
from .marking import MarkedCell, Result, mark, mark_words, outcome_picture, outcome_text, reasons, summary
from .questions import Choice, FillIn, Open
from .recording import question_data, record_prediction, reply


class Prediction(Interactive):
    """A question about a run, the answer that was given, and the run that marked it.

    `.run` is that Run, or the RunError that it ended with; None before there is one.  `.right` and `.of`: the number of
    right cells, and of all.  A notebook shows a form to fill in, or the outcome if no one can answer.  Until a run
    marks an answer, the form's model holds nothing but the question: the answer is in no widget and no message.
    """

    def __init__(self, question: FillIn | Open | Choice, attempt: Callable[[], Outcome], name: str) -> None:
        self.question, self._attempt, self.name = question, attempt, name
        self.filled: list[list[str]] = [[""] * row.cells for row in question.rows]
        self.result: Result | None = None
        self._recording = None

    @property
    def run(self) -> Run | RunError | None:
        return self.result.outcome.done if self.result else None

    @property
    def right(self) -> int:
        return self.result.right if self.result else 0

    @property
    def of(self) -> int:
        return self.result.of if self.result else sum(row.cells for row in self.question.rows if row.asked)

    def answer(self, answers: Any) -> "Prediction":
        """Answers without the widget, runs the ranks and marks; see `answers` of predict()."""
        self.filled = self._read(answers)
        self.mark()
        return self

    def mark(self) -> Result:
        """Run the ranks and mark the filled cells."""
        self.filled = [_spread_cells(cells) for cells in self.filled]
        self.result = self.ran()
        if self.result.tried:
            progress.predicted(self.name, self.question.title, self.right, self.of)
        return self.result

    def ran(self) -> Result:
        """Run the ranks, and mark the filled cells without keeping the marks."""
        return mark(self.question, self.filled, self._attempt())

    def _read(self, answers: Any) -> list[list[str]]:
        if isinstance(self.question, Choice):
            return [[self.question.pick(answers)]]
        if isinstance(self.question, Open):
            return [[answers.strip() if isinstance(answers, str) else ", ".join(_tokens(answers))]]
        asked = [row.rank for row in self.question.rows if row.asked]
        if not isinstance(answers, Mapping):
            rows = [answers] if len(asked) == 1 and not _is_rows(answers) else list(answers)
            if len(rows) != len(asked):
                raise ValueError(f"answers has {len(rows)} rows, and {len(asked)} ranks are asked for: one row each.")
            answers = dict(zip(asked, rows))
        filled = []
        for row in self.question.rows:
            value = answers.get(row.rank, "") if row.asked else ""
            words = [value.strip()] if isinstance(value, str) and row.cells == 1 else _tokens(value)
            filled.append(words + [""] * (row.cells - len(words)))
        return filled

    def __repr__(self) -> str:
        """The question as text, with the filled cells, marked once it ran."""
        question, result = self.question, self.result
        lines = [f"Predict. {question.title}"]
        if isinstance(question, Choice):
            lines += self._choices()
        elif isinstance(question, Open):
            lines.append("  " + (mark_words(result.marks[0][0]) if result else f"answer: {self.filled[0][0] or '_'}"))
        else:
            lines.append(self.table(result and result.marks, mark_words))
        if not result:
            example = "[...]" if isinstance(question, FillIn) else "..."
            return "\n".join([*lines, f"Without the widget: predict(..., answers={example})"])
        lines += [summary(result, question), *reasons(result, question)]
        return "\n".join([*lines, "", outcome_text(result.outcome, question.one)]).rstrip()

    def _choices(self) -> list[str]:
        signs = {}
        if self.result:
            mark = self.result.marks[0][0]
            signs = dict.fromkeys(self.question.options, "  ") | {mark.given.value: "✗ ", mark.want.value: "✓ "}
        return [f"  {signs.get(option, '')}{k}  {option}" for k, option in enumerate(self.question.options, 1)]

    def table(self, marked: list[list[MarkedCell]] | None, say: Callable[[MarkedCell], str]) -> str:
        """The rows to fill in as text; with marks, each as `say` has it."""
        head = self.question.before
        lines = [("rank", *(head, "") * bool(head), "returned" if self.question.kind == "returned" else "after")]
        for k, row in enumerate(self.question.rows):
            after = "  ".join(map(say, marked[k])) if marked else " ".join("_" * row.cells * row.asked)
            lines.append((f"{row.rank}{'*' * row.root}", *(row.before, " ->") * bool(head), after))
        return align(lines, indent="  ", least=(5,))

    # --- in a notebook --------------------------------------------------------------------

    def figure(self):
        """The form."""
        from collectives.figures.web.widget import Figure  # anywidget may be missing

        return Figure(question_data(self.question) | {"live": True}, lambda sent: self.submit(**sent), PREDICT)

    def submit(self, filled: list[list[str]], show: bool = False) -> dict:
        """Run the ranks, mark, and return the reply: marks and reasons, and with `show` the answer too."""
        self.filled, self.widget().kept = filled, {"filled": filled}
        result = self.mark()
        said = reply(result, self.question, show)
        if "after" in said and (picture := outcome_picture(result.outcome, self.question.one)):
            said["after"]["picture"] = picture_data(picture, picture.alt)
        return said

    def recording(self) -> dict | None:
        """The question and its encoded key; None where an answer was given already."""
        return self._recording

    def _ipython_display_(self) -> None:
        if attended():
            return super()._ipython_display_()
        from IPython.display import display

        picture, words = self.unattended()
        if self.recording():
            image, measures = (picture.image("png"), {"image/png": picture.measures()}) if picture else (None, {})
            given = self.table(None, str) if self.question.before else ""
            return display(answer(words, image, given), raw=True, metadata={RECORDING: self.recording()} | measures)
        for what, raw in (({"text/plain": words}, True), (picture, False)):
            if what is not None:
                display(what, raw=raw)

    def preview(self) -> Picture | None:
        if self.result:
            return outcome_picture(self.result.outcome, self.question.one)
        return blank(self.question) if isinstance(self.question, FillIn) else None

    def unattended(self) -> tuple[Picture | None, str]:
        """The outcome as picture and text, for a front end that cannot answer. Usually the run's table suffices."""
        if self.result:
            return outcome_picture(self.result.outcome, self.question.one), repr(self)
        question, result = self.question, self.ran()
        self._recording = record_prediction(question, result)
        lines = [question.title]
        if not isinstance(question, FillIn):
            lines.append(f"  {result.marks[0][0].want.text}")
        elif question.kind == "chunks":
            lines.append(self.table(result.marks, lambda mark: mark.want.text))
        lines += ["", outcome_text(result.outcome, question.one)]
        return outcome_picture(result.outcome, question.one), "\n".join(lines).rstrip()


# --- the answers --------------------------------------------------------------------------


def _tokens(value: Any) -> list[str]:
    """One row of answers, a text for each cell."""
    if isinstance(value, str):
        return value.split() or [""]
    if isinstance(value, (list, tuple, set)):
        return [token for part in value for token in ([part] if isinstance(part, str) else _tokens(part))]
    return [str(want.value) if want.kind == "number" else want.text for want in wants(value)]


def _is_rows(answers: Any) -> bool:
    one = answers[0] if isinstance(answers, (list, tuple)) and len(answers) == 1 else None
    return isinstance(one, (str, list, tuple, torch.Tensor))


def _spread_cells(cells: list[str]) -> list[str]:
    """A whole row typed into its first cell goes to all of its cells."""
    words = cells[0].split()
    return words if len(words) == len(cells) and not any(cell.strip() for cell in cells[1:]) else cells
