"""How something shows itself in a notebook: as a widget where somebody can use it, else as a picture and its words."""

import os
import sys
from pathlib import Path
from typing import Any


def show(picture: Any, words: str, recording: dict | None = None, words_first: bool = False) -> None:
    """Two outputs: of one that held both, GitHub and the website would show the picture only.

    recording: what the website plays in their place. It is the first output's metadata, which nobody shows
    and nbval does not compare, whatever it does with a type of data that it does not know.
    """
    from IPython.display import display

    outputs = [] if picture is None else [(picture, False)]
    outputs.insert(0 if words_first else 1, ({"text/plain": words}, True))
    for what, raw in outputs:
        display(what, raw=raw, metadata={RECORDING: recording} if recording else {})
        recording = None


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

    A program that executes a notebook (nbval, nbconvert, the website) says that it takes no
    questions: its requests have allow_stdin=False.
    """
    at = shell()
    request = at.get_parent() if hasattr(at, "get_parent") else {}
    return request.get("content", {}).get("allow_stdin", True)


def notebook() -> str | None:
    """The name of the notebook that somebody works in, without its ending; None where the front end does not tell."""
    at = shell()
    if at is None or not attended():
        return None
    path = os.environ.get("JPY_SESSION_NAME") or at.user_ns.get("__vsc_ipynb_file__")  # JupyterLab, VS Code
    return Path(path).stem if path else None


def shell():
    """IPython's, if this is one."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


class StatusLine:
    """A line in the output of a cell that runs, which changes and goes away; in an attended notebook only."""

    def __init__(self) -> None:
        self._handle, self._words = None, ""

    def say(self, words: str) -> None:
        """Show the words, in place of those before."""
        if words == self._words:
            return
        self._words = words
        if self._handle is not None:
            self._handle.update({"text/plain": words}, raw=True)
        elif hasattr(shell(), "kernel") and attended():
            from IPython.display import DisplayHandle

            self._handle = DisplayHandle()
            self._handle.display({"text/plain": words}, raw=True)


WIDGET = "application/vnd.jupyter.widget-view+json"
RECORDING = "collectives"


class Interactive:
    """Base of an object that a notebook shows as a widget where one can be used, else as a picture and words.

    A subclass has `figure()` (a new widget; may raise ImportError), `draw()` or `preview()`, and `__repr__`.
    """

    words_first = False  # of the two that `unattended` returns
    _widget = None

    def widget(self):
        """The widget, made when first asked for."""
        if self._widget is None:
            self._widget = self.figure()
        return self._widget

    def preview(self) -> Any:
        """The picture where there are no widgets; None: it is drawn nowhere else."""
        return self.draw()

    def unattended(self) -> tuple[Any, str]:
        """A picture or None, and words, for a program that executes the notebook."""
        return self.preview(), repr(self)

    def _ipython_display_(self) -> None:
        if attended():
            raise NotImplementedError  # IPython then takes _repr_mimebundle_
        show(*self.unattended(), self.recording(), self.words_first)

    def recording(self) -> dict | None:
        """What the website plays instead of the picture, as JSON; asked for after `unattended`. None: nothing."""
        return None

    def _repr_mimebundle_(self, include=None, exclude=None):
        words = {"text/plain": repr(self)}
        try:
            view = {"version_major": 2, "version_minor": 0, "model_id": self.widget().model_id}
            return words | {WIDGET: view}, {}
        except ImportError:  # no widgets: picture and words are left
            picture = self.preview()
        image, shown = picture._repr_mimebundle_() if picture is not None else ({}, {})
        return image | words, shown
