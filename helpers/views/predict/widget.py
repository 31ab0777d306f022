"""The widget of a prediction: what the front end sends is marked by a run, and what came of it is sent back.

Until then its model holds nothing but the question: the answer is in no widget and no message.
"""

from __future__ import annotations

from ..web.panel import shown
from ..web.widget import Figure
from .marking import outcome_picture
from .prediction import Prediction
from .recording import asked, reply


class Form:
    """`.figure` is the widget; `submit` does what its buttons do."""

    def __init__(self, prediction: Prediction) -> None:
        self.prediction = prediction
        self.figure = Figure(
            asked(prediction.question) | {"live": True},
            lambda sent: self.submit(sent["filled"], sent["show"]),
        )

    def submit(self, filled: list[list[str]], show: bool = False) -> dict:
        """Runs the ranks, marks, and says what came of it: marks and reasons, and with `show` the answer too."""
        self.prediction.filled = filled
        result = self.prediction.mark()
        said = reply(result, self.prediction.question, show)
        if "after" in said and (picture := outcome_picture(result.outcome)):
            said["after"]["picture"] = shown(picture, picture.alt)
        return said
