"""A panel: controls, and their effect, requested from the kernel at every change."""

from typing import TYPE_CHECKING, Any, NamedTuple, Sequence

from ...frontend import Interactive

if TYPE_CHECKING:
    from ...draw.canvas import Picture


class Control(NamedTuple):
    """A choice of one of some values: buttons side by side, or a slider."""

    name: str
    options: Sequence[tuple[str, Any]]  # as it is shown, and the value
    value: Any
    label: str = ""
    buttons: bool = False

    def described(self) -> dict:
        """As the web module takes it."""
        labels, values = zip(*self.options)
        return {
            "name": self.name,
            "label": self.label or self.name,
            "options": labels,
            "at": values.index(self.value),
            "buttons": self.buttons,
        }


class Panelled(Interactive):
    """A figure that draws itself, and in Jupyter has controls that change it.

    A subclass has `draw()`, a repr, `controls()` and `react(chosen)`, which takes a value for each control's name and
    returns what to show: "words" (a sentence, announced), "picture" (see `shown`) or "bars" (see
    collectives/planner/bars.py), "text" (a table; "prose": text that
    may be broken), "code", "off" (control -> why it does not apply), "most" (slider -> the last place it can be moved
    to).  "at" moves the controls, if it is there.
    """

    def figure(self):
        from .widget import Figure  # anywidget may be missing

        controls = self.controls()
        return Figure(describe_panel(self), lambda places: self.react(at(controls, places)))


def describe_panel(panel) -> dict:
    """A panel for the web module: its controls, and their present content.  panel: has `controls()` and `react()`."""
    controls = panel.controls()
    now = panel.react({control.name: control.value for control in controls})
    return {"kind": "panel", "controls": [control.described() for control in controls], "now": now}


def at(controls: Sequence[Control], places: dict[str, int]) -> dict:
    """The values of controls at these places."""
    return {control.name: control.options[places[control.name]][1] for control in controls}


def picture_data(picture: "Picture", alt: str) -> dict:
    """A Picture as the module takes it: {src, alt, width}."""
    return picture.image() | {"alt": alt}
