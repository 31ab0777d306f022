"""The widget of `explore()`: controls, the code they make, and the picture and table of its run."""

from __future__ import annotations

from ..web.panel import Control, panel, shown
from .experiment import CALLS, DTYPES, REDUCE_OPS, SIZES, WORLD_SIZES, Experiment, reasons


def controls(chosen: dict) -> list[Control]:
    """What can be chosen, and what is."""

    def control(name: str, options, label: str = "", buttons: bool = False) -> Control:
        return Control(
            name, [(f"{o:,}" if isinstance(o, int) else o, o) for o in options], chosen[name], label, buttons
        )

    return [
        control("op", CALLS, "collective", buttons=True),
        control("world_size", WORLD_SIZES, "world size"),
        control("root", range(WORLD_SIZES[-1])),
        control("reduce_op", REDUCE_OPS, "reduce op"),
        control("dtype", DTYPES),
        control("size", SIZES, "numbers"),
    ]


def figure(experiment: Experiment):
    """The widget of an experiment.  Raises ImportError without anywidget."""

    def react(chosen: dict) -> dict:
        if chosen != experiment.chosen:
            experiment.choose(**chosen)
        now = experiment.chosen
        return {
            "picture": shown(experiment.picture, experiment.picture.alt)
            if any(experiment.outcome.run.events)
            else None,
            "text": experiment.words,
            "prose": experiment.outcome.error is not None,
            "code": experiment.code,
            "off": reasons(now["op"]),
            "most": {"root": now["world_size"] - 1},
            "at": {"root": now["root"]},
        }

    return panel(controls(experiment.chosen), react)
