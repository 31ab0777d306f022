"""The widget of `explore()`: controls, the code they make, and the picture and table of its run."""

from __future__ import annotations

from html import escape

import ipywidgets as widgets

from .explorer import CALLS, DTYPES, REDUCE_OPS, SIZES, WORLD_SIZES, Explorer, reasons
from .markup import SMALL, box, failure, image, prose, table

LABEL = {"description_width": "84px"}
WIDE = {"width": "310px", "max_width": "100%", "margin": "2px"}


class Panel:
    def __init__(self, explorer: Explorer) -> None:
        self.explorer, now = explorer, explorer._chosen
        made = dict(style=LABEL, layout=WIDE)
        # Buttons and sliders, no Dropdown: JupyterLab takes its arrow keys for itself.
        self.controls = {
            "op": widgets.ToggleButtons(options=list(CALLS), value=now["op"], style={"button_width": "auto"}),
            "world_size": widgets.IntSlider(
                now["world_size"], WORLD_SIZES[0], WORLD_SIZES[-1], description="world size", **made
            ),
            "root": widgets.IntSlider(now["root"], 0, now["world_size"] - 1, description="root", **made),
            "reduce_op": widgets.SelectionSlider(
                options=REDUCE_OPS, value=now["reduce_op"], description="reduce op", **made
            ),
            "dtype": widgets.SelectionSlider(options=DTYPES, value=now["dtype"], description="dtype", **made),
            "size": widgets.SelectionSlider(
                options=[(f"{size:,}", size) for size in SIZES], value=now["size"], description="numbers", **made
            ),
        }
        self._told = {
            "op": "which collective all ranks call",
            "world_size": "how many ranks",
            "root": "src or dst: the rank with a part of its own",
            "reduce_op": "how numbers of several ranks become one",
            "dtype": "the kind of numbers in the tensors",
            "size": "numbers in the tensor, or in each rank's chunk of it",
        }
        self._busy = False
        self.notes = widgets.HTML(layout=WIDE)  # the reasons stand here too: who does not use a mouse sees no tooltip
        self.code = widgets.Textarea(layout={"width": "auto", "height": "250px"}, tooltip="The code that runs, to copy")
        self.code.add_class("collectives-code")
        self._seen = widgets.HTML()
        for control in self.controls.values():
            control.observe(self._moved, "value")
        self.code.observe(lambda _: self._restore(), "value")
        self._show()
        op, *others = self.controls.values()
        left = widgets.VBox([*others, self.notes])
        right = widgets.VBox([self.code], layout={"flex": "1 1 330px", "min_width": "0"})
        top = widgets.HBox([left, right], layout={"flex_flow": "row wrap"})
        self.box = box(op, top, self._seen)

    def _moved(self, change) -> None:
        # The browser sends a control's next value only when this one has been dealt with, and
        # then the latest: so there is never a queue of runs that nobody waits for.
        if self._busy:
            return
        chosen = {name: control.value for name, control in self.controls.items()}
        try:
            self.explorer.choose(**chosen)
            self._show()
        except KeyboardInterrupt:
            self._seen.value = "Interrupted."
        except Exception as error:
            self._seen.value = failure(error)

    def _show(self) -> None:
        explorer, now = self.explorer, self.explorer._chosen
        why = reasons(now["op"])
        self._busy = True  # these changes are ours
        try:
            self.controls["root"].max = now["world_size"] - 1
            self.controls["root"].value = now["root"]
            for name, control in self.controls.items():
                control.disabled, control.tooltip = name in why, why.get(name, self._told[name])
        finally:
            self._busy = False
        lines = "<br>".join(escape(f"{self.controls[name].description}: {reason}") for name, reason in why.items())
        self.notes.value = f'<div style="{SMALL}">{lines}</div>'
        self._restore()
        picture = explorer._picture
        shown = image(explorer.png, picture.alt, picture.pixels) if any(explorer._outcome.run.events) else ""
        self._seen.value = shown + (prose if explorer._outcome.error else table)(explorer.words)

    def _restore(self) -> None:
        self.code.value = self.explorer.code
