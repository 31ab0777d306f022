"""A figure in JupyterLab: one anywidget model with the recording, and the kernel's answers to questions beyond it."""

import time
from pathlib import Path
from typing import Any, Callable

import anywidget
import traitlets

from . import FIGURES, module


class Figure(anywidget.AnyWidget):
    """A widget drawn from `data` by the file `drawn_by`; None: the library's own for this kind of data.

    `answer` takes a question of the front end and returns the reply.  An exception of it is sent as its failure,
    since it would be lost in a callback.  `kept`: the state a figure begins with when it is drawn again.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    data = traitlets.Dict().tag(sync=True)
    kept = traitlets.Any(None, allow_none=True).tag(sync=True)
    born = traitlets.Float().tag(sync=True)  # Unix time: a figure that appears because its cell was run takes the keys

    def __init__(self, data: dict, answer: Callable[[Any], dict] | None = None, drawn_by: Path | None = None) -> None:
        drawn_by = drawn_by or next(file for file in FIGURES if file.stem == data["kind"])
        super().__init__(data=data, _esm=module(drawn_by), born=time.time())
        self._answer = answer
        self.on_msg(lambda _, question, __: self.send(self.answered(question)))

    def answered(self, question: Any) -> dict:
        """The reply to the front end."""
        try:
            return self._answer(question)
        except KeyboardInterrupt:
            return {"failure": "Interrupted."}
        except Exception as error:
            return {"failure": f"{type(error).__name__}: {error}"}
