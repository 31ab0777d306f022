"""The widget of a prediction: what each rank brings, cells to fill in, and Run.

Until Run it holds nothing but the question: the answer is in no widget and no message.
"""

from __future__ import annotations

import asyncio
from html import escape

import ipywidgets as widgets

from .blank import wide
from .canvas import FAINT, colour, ink_on
from .lanes import rank_label
from .markup import SMALL, TEXT, box, failure, image, prose, table
from .prediction import Prediction, outcome_picture, outcome_text, reasons, summary
from .questions import Choice, Grid, Mark, Row, Shown

CELL = 68  # pixels: six digits
LINE = 28  # pixels: as high as ipywidgets makes an input
LATE = 0.15  # seconds: how long Enter waits for the text before it, if there is any to come
RIGHT, WRONG = "var(--jp-success-color1, #2e7d32)", "var(--jp-error-color1, #d32f2f)"
GOOD, BAD = f'<b style="color: {RIGHT}">✓</b>', f'<b style="color: {WRONG}">✗</b>'


class Form:
    def __init__(self, prediction: Prediction) -> None:
        self.prediction, question = prediction, prediction.question
        self.cells: list[list[widgets.Text]] = []
        self.choice: widgets.ToggleButtons | None = None
        self.button = widgets.Button(
            description="Run",
            button_style="primary",
            tooltip="Run the ranks and mark the prediction (Enter)",
            layout={"margin": "6px 2px"},
        )
        self.button.on_click(lambda _: self.submit())
        self._answers: list[list[widgets.HTML]] = []
        self._said = widgets.HTML()
        self._warned = False
        self._entered: asyncio.TimerHandle | None = None  # Enter was pressed, the text is on its way
        parts = [widgets.HTML(f'<div style="{TEXT}"><b>Predict.</b> {escape(question.title)}</div>')]
        if isinstance(question, Choice):
            # Not RadioButtons: JupyterLab takes their arrow keys for itself.
            self.choice = widgets.ToggleButtons(options=question.options, index=None, style={"button_width": "auto"})
            parts.append(self.choice)
        else:
            parts.append(self._grid())
        self.box = box(*parts, self.button, self._said)
        self.fill()

    def _grid(self) -> widgets.Widget:
        question = self.prediction.question
        rows, room = question.rows, 0.0
        if question.before:
            room = max(sum(wide(cell) + 4 for cell in row.shown) for row in rows)
        lines = []
        for row in rows:
            made = [self._cell(row, k) for k in range(row.cells if row.asked else 0)]
            answers = [widgets.HTML(layout={"width": f"{CELL}px", "margin": "0 2px", "display": "none"}) for _ in made]
            self.cells.append(made)
            self._answers.append(answers)
            # What has no room goes on in the next line, rather than out of the page.
            cells = [widgets.VBox([cell, said]) for cell, said in zip(made, answers)]
            cells = widgets.HBox(cells, layout={"flex_flow": "row wrap"})
            line = [widgets.HTML(_brings(row, room)), cells]
            lines.append(widgets.HBox(line, layout={"flex_flow": "row wrap", "align_items": "flex-start"}))
        if isinstance(question, Grid):
            hint = "Tab: next cell. Enter: run. A whole row may go into its first cell. ?: undefined. never: the call never ends. Empty: nothing there."
            lines.append(widgets.HTML(f'<div style="{SMALL}">{hint}</div>'))
        return widgets.VBox(lines, layout={"margin": "4px 0"})

    def _cell(self, row: Row, k: int) -> widgets.Text:
        grid = isinstance(self.prediction.question, Grid)
        where = f"rank {row.rank}, number {k + 1}" if grid else "your answer"
        layout = {"width": f"{CELL if grid else 220}px", "margin": "2px"}
        cell = widgets.Text(placeholder="?", tooltip=where, layout=layout, continuous_update=False)
        cell.on_msg(lambda _, content, __: self._enter() if content.get("event") == "submit" else None)
        cell.observe(lambda _: self._arrived(), "value")
        return cell

    def _enter(self) -> None:
        """Enter in a cell. The browser says so first, and sends the text that was typed after it."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # no browser
            self.submit()
            return
        if self._entered is None:
            self._entered = loop.call_later(LATE, self._arrived)

    def _arrived(self) -> None:
        if self._entered is not None:
            self._entered.cancel()
            self._entered = None
            self.submit()

    @property
    def filled(self) -> list[list[str]]:
        if self.choice is not None:
            return [[self.choice.value or ""]]
        texts = [[cell.value for cell in row] for row in self.cells]
        return [row or [""] * asked.cells for row, asked in zip(texts, self.prediction.question.rows)]

    def fill(self) -> None:
        """Shows what the prediction holds: its answers, and its marks if it has been marked."""
        filled = self.prediction.filled
        if self.choice is not None:
            self.choice.value = filled[0][0] or None
        for row, texts in zip(self.cells, filled):
            for cell, words in zip(row, texts):
                cell.value = words
        if self.prediction.result:
            self._show()

    def submit(self) -> None:
        """Runs the ranks and shows what came of it."""
        self.prediction.filled = self.filled
        if not self._warned and not any(words.strip() for row in self.prediction.filled for words in row):
            self._warned = True
            self._say(
                f'<div style="{TEXT}">Nothing is filled in yet. A guess is enough; Run once more shows the answer without one.</div>'
            )
            return
        self.button.disabled, self.button.description = True, "Running"
        try:
            self.prediction.mark()
            self.fill()
        except KeyboardInterrupt:
            self._say(f'<div style="{TEXT}">Interrupted.</div>')
        except Exception as error:
            self._say(failure(error))
        finally:
            self.button.disabled, self.button.description = False, "Run again"

    def _show(self) -> None:
        result, question = self.prediction.result, self.prediction.question
        for marks, answers in zip(result.marks, self._answers):
            for mark, said in zip(marks, answers):
                said.value, said.layout.display = _verdict(mark), None
                said.layout.width = f"{CELL}px" if isinstance(question, Grid) else "auto"
        lines = [f"<b>{escape(summary(result, None))}</b>"]
        if isinstance(question, Choice):
            lines += _chosen(result.marks[0][0])
        lines += map(escape, reasons(result, question))
        picture = outcome_picture(result.outcome)
        shown = image(picture.png(), picture.alt, picture.pixels) if picture else ""
        words = (prose if result.outcome.error else table)(outcome_text(result.outcome))
        if picture and not result.outcome.error:
            words = f"<details><summary>as text</summary>{words}</details>"
        self._say(f'<div role="status" style="{TEXT}">{"<br>".join(lines)}</div>{shown}{words}')

    def _say(self, html: str) -> None:
        self._said.value = html


def _brings(row: Row, room: float) -> str:
    if row.rank is None:
        return ""
    cells = "".join(map(_cell, row.shown))
    bar = f'<span style="width: 4px; height: 26px; border-radius: 2px; background: {colour(row.rank)}; margin: 0 6px"></span>'
    name = f'<span style="width: 62px; text-align: right; font-weight: {700 if row.root else 400}">{rank_label(row.rank, row.root)}</span>'
    before = f'<span style="display: flex; width: {room:.0f}px">{cells}</span><span style="margin: 0 8px; opacity: 0.6">→</span>'
    return f'<div style="{TEXT}; display: flex; align-items: center; height: {LINE}px; white-space: nowrap">{name}{bar}{before if room else ""}</div>'


def _cell(cell: Shown) -> str:
    style = f"box-sizing: border-box; width: {wide(cell):.0f}px; height: 26px; line-height: 24px; margin-right: 4px; text-align: center; border-radius: 3px; "
    if cell.rank is None:
        style += f"border: 1px dashed {FAINT}; opacity: 0.75"
    else:
        style += f"border: 1px solid {colour(cell.rank)}; background: {colour(cell.rank)}; color: {ink_on(colour(cell.rank))}"
    return f'<span style="{style}">{escape(cell.text)}</span>'


def _verdict(mark: Mark) -> str:
    sign = "" if mark.right is None else GOOD if mark.right else BAD
    words = "right" if mark.right else escape(mark.want.text)
    return f'<div style="{TEXT}; font-size: 12px; text-align: center; overflow-wrap: anywhere">{sign} {words}</div>'


def _chosen(mark: Mark) -> list[str]:
    lines = [f"{GOOD} {escape(mark.want.text)}"]
    return lines if mark.right is not False else [f"{BAD} {escape(mark.given.text)}", *lines]
