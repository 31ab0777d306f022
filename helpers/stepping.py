"""step(): a run's messages, or a schedule, one step at a time; with a slider, and as a still of all steps."""

from __future__ import annotations

import html
from functools import lru_cache
from typing import TYPE_CHECKING, Callable, NamedTuple

from .canvas import Picture
from .lanes import space_time
from .messages import Message, read
from .page import Interactive
from .record import Run, blocks
from .twin import size, text

if TYPE_CHECKING:
    from .schedule import Schedule

PAUSE = 900  # milliseconds a step is shown while it plays


class Frame(NamedTuple):
    """What is shown at one place of the slider."""

    draw: Callable[[], Picture]
    says: str  # what happens, in words


class Steps(Interactive):
    """What `step` returns: `.frames`, `.still` (the picture of all steps), and in Jupyter a slider over them.

    Where there are no widgets (a preview, a file that was only opened) the still and the text show.
    """

    def __init__(self, title: str, frames: list[Frame], still: Picture) -> None:
        self.title, self.frames, self.still = title, frames, still
        self._picture = lru_cache(maxsize=None)(lambda k: self.frames[k].draw())
        self._view = None

    def draw(self, k: int) -> Picture:
        """The picture at place k of the slider, from 0. Raises IndexError beyond the last."""
        if not 0 <= k < len(self.frames):
            raise IndexError(
                f"there is no step {k}: places go from 0, before the first step, to {len(self.frames) - 1}"
            )
        return self._picture(k)

    def __repr__(self) -> str:
        return "\n".join([self.title, *(f"  {frame.says}" for frame in self.frames)])

    def widget(self):
        """The ipywidgets view, made when first asked for."""
        if self._view is None:
            self._view = self._made()
        return self._view

    def _made(self):
        import ipywidgets as widgets

        from .markup import TEXT, box, image

        last = len(self.frames) - 1
        # Play keeps the time, out of sight: its own buttons have no names for a screen reader.
        clock = widgets.Play(min=0, max=last, interval=PAUSE, layout={"display": "none"})
        button = widgets.Button(tooltip="Play the steps, or pause", layout={"width": "90px"})
        slider = widgets.IntSlider(
            min=0,
            max=last,
            description="step",
            readout=False,
            tooltip="The arrow keys move it too",
            style={"description_width": "32px"},
            layout={"flex": "0 1 420px", "min_width": "0"},
        )
        widgets.jslink((clock, "value"), (slider, "value"))
        picture, says = widgets.HTML(), widgets.HTML()

        def name(*_) -> None:
            button.description, button.icon = ("Pause", "pause") if clock.playing else ("Play", "play")

        def toggle(*_) -> None:
            clock.playing = not clock.playing

        def show(*_) -> None:
            k = slider.value
            drawn, words = self.draw(k), self.frames[k].says
            picture.value = image(drawn.png(), f"{self.title}: {words}", drawn.pixels)
            says.value = f'<div aria-live="polite" style="{TEXT}">{html.escape(words)}</div>'

        button.on_click(toggle)
        clock.observe(name, "playing")
        slider.observe(show, "value")
        name()
        show()
        return box(widgets.HBox([button, slider, clock]), says, picture)

    def unattended(self) -> tuple[Picture, str]:
        return self.still, repr(self)

    def _repr_mimebundle_(self, include=None, exclude=None):
        data, metadata = self.still._repr_mimebundle_()
        data["text/plain"] = repr(self)
        try:
            data |= self.widget()._repr_mimebundle_()
            data["text/plain"] = repr(self)
        except ImportError:
            pass  # the still has it all
        return data, metadata


def step(what: Run | Schedule) -> Steps:
    """Steps through the messages of a run (a ring or a tree of send and recv), or through a schedule.

    Raises ValueError for a run without messages: a collective is one call, and what goes on
    inside it is not recorded.
    """
    if isinstance(what, Run):
        return _of_run(what)
    return _of_schedule(what)


# --- a run --------------------------------------------------------------------------------


def _of_run(run: Run) -> Steps:
    calls = [call for call in run.calls if call.is_message]
    if not calls:
        raise ValueError(
            f"{run.name} sent no messages of its own: step() shows what goes by send and recv. "
            "What goes on inside a collective is shown by a schedule, see helpers.schedule."
        )
    messages = read(calls)
    count = 1 + max(m.step for m in messages)
    frames = [Frame(lambda k=k: _so_far(calls, k), _said(messages, k, count, run.world_size)) for k in range(-1, count)]
    title = f"{run.name}: {len(calls)} message{'s' * (len(calls) > 1)} in {count} step{'s' * (count > 1)}"
    others = len(blocks(run.calls)) > 1 and len(run.calls) - len(calls)
    if others:
        title += f" (and {others} collective{'s' * (others > 1)}, not shown)"
    return Steps(title, frames, _so_far(calls, count))


def _so_far(calls, k: int) -> Picture:
    sketch, alt = space_time(calls, k)
    return Picture([sketch], alt, f"Picture: {alt}")


def _said(messages: list[Message], k: int, count: int, world_size: int) -> str:
    so_far = sum(m.events[0].nbytes for m in messages if m.step <= k)
    if k < 0:
        return f"before:  {count} step{'s' * (count > 1)} to come"
    now = [m for m in messages if m.step == k]
    went = ", ".join(f"{'?' if m.source is None else m.source} -> {m.target} [{text(m.value)}]" for m in now)
    later = {rank for m in messages if m.step > k for rank in (m.source, m.target)}
    idle = sorted(later - {rank for m in now for rank in (m.source, m.target)} - {None})
    waits = f"; rank{'s' * (len(idle) > 1)} {', '.join(map(str, idle))} wait{'s' * (len(idle) == 1)}" if idle else ""
    return f"step {k + 1}:  {went}{waits}; {size(so_far)} so far"


# --- a schedule ---------------------------------------------------------------------------


def _of_schedule(schedule: Schedule) -> Steps:
    from .schedule.text import said, title

    ranks, total, frames = range(schedule.world_size), 0, []
    for k, messages in enumerate([*schedule.steps, []]):
        if messages:
            busy = {rank for m in messages for rank in (m.source, m.target)}
            idle = [str(rank) for rank in ranks if rank not in busy]
            words = f"step {k + 1}:  " + ", ".join(said(schedule, m) for m in messages)
            words += f"; rank{'s' * (len(idle) > 1)} {', '.join(idle)} wait{'s' * (len(idle) == 1)}" if idle else ""
            total += sum(len(m.chunks) for m in messages)
        else:
            words = "the end" if k == len(schedule.steps) else f"step {k + 1}:  nothing is sent"
        share = f"{total}/{schedule.cuts} S so far" if total % schedule.cuts else f"{total // schedule.cuts} S so far"
        frames.append(Frame(lambda k=k: schedule.draw(k + 1), f"{words}; {share}"))
    return Steps(title(schedule), frames, schedule.draw())
