"""How an object shows itself in a notebook: as a widget where somebody can use it, else as a picture and its words."""

import os
import sys
import time
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any, Iterator


def show(picture: Any, words: str, recording: dict | None = None) -> None:
    """Emit picture and text as two outputs: GitHub and the website show only the picture of a combined one.

    Words that follow their picture are folded, so after Shift+Enter the screen has the picture.  In a notebook where
    somebody is working, both are one output, which a front end shows sooner.
    recording: the data that the website plays instead. It is the first output's metadata, which no front end shows
    and nbval never compares, whereas it may compare an output of a type that it does not know.
    """
    from IPython.display import display

    if picture is not None and has_viewer():
        return display(twin(words, image_html(picture.image())), raw=True)
    outputs = [] if picture is None else [(picture, False)]
    outputs.append(({"text/plain": words} if picture is None else twin(words), True))
    for what, raw in outputs:
        display(what, raw=raw, metadata={RECORDING: recording} if recording else {})
        recording = None


def twin(words: str, picture: str = "", kind: str = "twin", fold: bool = True) -> dict[str, str]:
    """An output: text, which a notebook shows folded, below the HTML of a picture; a program has the text alone.

    kind: the suffix of the element's class, "collectives-KIND".
    """
    shown = f"<details><summary>as text</summary>{_pre(words)}</details>" if fold else _pre(words)
    return {"text/plain": words, "text/html": f'<div class="collectives-{kind}">{picture}{shown}</div>'}


def answer(words: str, image: dict | None, given: str = "") -> dict[str, str]:
    """An output: a question, which is the words' first line, and its answer, which a notebook shows folded.

    GitHub and VS Code show stored outputs that JupyterLab folds; they keep this fold.  JupyterLab shows the first line,
    of the HTML, of an output that it folds.  A program has the words alone.
    image: the answer's picture, as for image_html.  given: what the question is about, above the fold.
    """
    question, _, answered = words.partition("\n")
    picture = "" if image is None else f"<img {_attributes(image)}>"
    folded = f"<details><summary>The answer</summary>{picture}{_pre(answered.strip(chr(10)))}</details>"
    shown = f"{escape(question, quote=False)}\n{_pre(given) if given else ''}{folded}"
    return {"text/plain": words, "text/html": shown}


def _pre(words: str) -> str:
    return f'<pre style="white-space: pre; overflow-x: auto">{escape(words)}</pre>'


# Pictures are as dark as JupyterLab's or VS Code's page, and JupyterLab breaks the long lines of outputs between words.
PAGE = """
[data-jp-theme-light=false] .collectives-picture, .vscode-dark .collectives-picture { color-scheme: dark }
.jp-OutputArea-output.jp-RenderedText pre { word-break: normal; overflow-wrap: anywhere }"""


def image_html(image: dict) -> str:
    """An image in HTML; one that can be light or dark follows the front end's page.  image: its src, alt and width."""
    return f'<style>{PAGE}</style><img class="collectives-picture" {_attributes(image)}>'


def _attributes(image: dict) -> str:
    return " ".join(f'{name}="{escape(str(value))}"' for name, value in image.items())


class Shown:
    """A picture and its words, as the last value of a cell."""

    def __init__(self, picture: Any, words: str) -> None:
        self.picture, self.words = picture, words

    def __repr__(self) -> str:
        return self.words

    def _ipython_display_(self) -> None:
        show(self.picture, self.words)


def attended() -> bool:
    """Whether somebody may be there to use a widget.

    A program that executes a notebook (nbval, nbconvert, the website) declares that it answers no
    questions: its requests have allow_stdin=False.
    """
    at = shell()
    request = at.get_parent() if hasattr(at, "get_parent") else {}
    return request.get("content", {}).get("allow_stdin", True)


def has_viewer() -> bool:
    """Whether this is a notebook's kernel, and somebody may be looking at its output now."""
    return hasattr(shell(), "kernel") and attended()


def notebook() -> str | None:
    """The name of the open notebook, without its ending; None if the front end does not report it."""
    at = shell()
    if at is None or not attended():
        return None
    path = os.environ.get("JPY_SESSION_NAME") or at.user_ns.get("__vsc_ipynb_file__")  # JupyterLab, VS Code
    return Path(path).stem if path else None


def shell():
    """IPython's, if this is one."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


FIRST_STATUS_SECONDS, STATUS_SECONDS = 2.0, 1.0  # until a cell shows its state, and between two such lines
STATUS = {"collectives_status": True}  # metadata of its output, which is not to be saved
# Whoever is gone, as a kernel that was restarted, can't take its line away: a line that isn't repeated disappears.
STATUS_STYLE = """<style>.collectives-status { animation: collectives-gone 0s 5s forwards }
@keyframes collectives-gone { to { visibility: hidden; height: 0; margin: 0 } }</style>"""


class StatusLine:
    """A line in the output of a running cell, which changes and disappears; in an attended notebook only."""

    def __init__(self) -> None:
        self._handle, self._next = None, time.monotonic() + FIRST_STATUS_SECONDS

    @property
    def is_due(self) -> bool:
        """Whether the next words may be shown."""
        return time.monotonic() >= self._next

    def say(self, words: str) -> None:
        """Show the words instead of the previous ones."""
        self._next = time.monotonic() + STATUS_SECONDS
        line = f'{STATUS_STYLE}<pre class="collectives-status">{escape(words)}</pre>' if words else ""
        output = {"text/plain": words, "text/html": line}
        if self._handle is None:
            from IPython.display import DisplayHandle

            self._handle = DisplayHandle()
            self._handle.display(output, raw=True, metadata=STATUS)
        else:
            self._handle.update(output, raw=True, metadata=STATUS)

    def end(self) -> None:
        """Make it disappear."""
        if self._handle is not None:
            self.say("")


WIDGET = "application/vnd.jupyter.widget-view+json"
RUN_AGAIN = "Run this cell again for its controls."
# In JupyterLab, the still is hidden by a live figure before it, and otherwise hides the empty output of a missing one.
# It appears late, so that the figure can be drawn first.
STILL_STYLE = """<style>
.jp-OutputArea-child:has(.collectives) + .jp-OutputArea-child:has(.collectives-still) { display: none }
.jp-OutputArea-child:has(+ .jp-OutputArea-child .collectives-still) .jupyter-widgets:not(:has(*)) { display: none }
.collectives-still { animation: collectives-wait 1s steps(1) backwards }
@keyframes collectives-wait { from { max-height: 0; overflow: hidden } }
</style>"""
RECORDING = "collectives"


class Interactive:
    """Base of an object that a notebook shows as a widget where one can be used, else as a picture and words.

    A subclass has `figure()` (a new widget; may raise ImportError), `draw()` or `preview()`, and `__repr__`.
    """

    _widget = None

    def widget(self):
        """The widget, created at first use."""
        if self._widget is None:
            self._widget = self.figure()
        return self._widget

    def preview(self) -> Any:
        """The picture for where there are no widgets; None: it is not drawn there."""
        return self.draw()

    def unattended(self) -> tuple[Any, str]:
        """A picture or None, and words, for a program that executes the notebook."""
        return self.preview(), repr(self)

    def _ipython_display_(self) -> None:
        if not attended():
            return show(*self.unattended(), self.recording())
        from IPython.display import display

        for output in self.outputs():
            display(output, raw=True)

    def outputs(self) -> Iterator[dict]:
        """The data of two outputs: the widget, if widgets are available, and the still.

        The second is for a front end that has no model of the widget: the notebook was opened again, in a new kernel.
        """
        with suppress(ImportError):
            yield {
                WIDGET: {"version_major": 2, "version_minor": 0, "model_id": self.widget().model_id},
                "text/plain": "",
            }
        picture = self.preview()
        image = "" if picture is None else image_html(picture.image())
        yield twin(repr(self), f"{STILL_STYLE}<p>{RUN_AGAIN}</p>{image}", "still", fold=picture is not None)

    def recording(self) -> dict | None:
        """The data that the website plays instead of the picture, as JSON; used after `unattended`. None: nothing."""
        return None
