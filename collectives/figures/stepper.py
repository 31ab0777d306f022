"""step(): a run's messages, or a schedule, one step at a time; with a slider, and as a still of all steps."""

from functools import cached_property, lru_cache
from itertools import groupby
from typing import Callable, Iterator, NamedTuple

from ..algorithms.schedule import Schedule, title
from ..draw.canvas import Picture
from ..draw.chips import chip
from ..draw.spacetime import space_time
from ..format import size
from ..frontend import Interactive
from ..log.text import peer_status, status, text
from ..log.transfers import Transfer, read
from ..outcome.run import Run
from .playback import playback, sentences, waiting_words

PAUSE = 900  # milliseconds a step is shown while it plays
CHIP_PIXELS = 110  # a value on its way: longer ones are left out


class Moment(NamedTuple):
    """The picture and the sentence at one place of the slider."""

    draw: Callable[[], Picture]
    says: str  # the events, in words


class Stepper(Interactive):
    """The result of `step`: `.frames`, `.still` (the picture of all steps), and in Jupyter a slider over them.

    Where there are no widgets (a preview, a file that was only opened) the still and the text show.
    """

    def __init__(self, title: str, frames: list[Moment], still: Callable[[], Picture], played: dict) -> None:
        self.title, self.frames, self._still, self._played = title, frames, still, played
        self._picture = lru_cache(maxsize=None)(lambda k: self.frames[k].draw())

    @cached_property
    def still(self) -> Picture:
        return self._still()

    def draw(self, k: int) -> Picture:
        """The picture at place k of the slider, from 0. Raises IndexError beyond the last."""
        last = len(self.frames) - 1
        if not 0 <= k <= last:
            raise IndexError(f"there is no step {k}: places go from 0, before the first step, to {last}")
        return self._picture(k)

    def __repr__(self) -> str:
        return "\n".join([self.title, *(f"  {frame.says}" for frame in self.frames)])

    def recording(self) -> dict:
        """The recording for the web module: the titles and sentences, and the messages of every step."""
        return {"kind": "steps", "title": self.title, "pause": PAUSE, **self._played}

    def figure(self):
        from .web.widget import Figure  # anywidget may be missing

        return Figure(self.recording())

    def preview(self) -> Picture:
        return self.still


def step(what: Run | Schedule) -> Stepper:
    """Step through the messages of a run (a ring or a tree of send and recv), or through a schedule.

    Raises ValueError for a run without messages: a collective is one call, and what goes on
    inside it is not recorded.
    """
    return _of_run(what) if isinstance(what, Run) else _of_schedule(what)


# --- a run --------------------------------------------------------------------------------


def _of_run(run: Run) -> Stepper:
    calls = [call for call in run.calls if call.is_message]
    if not calls:
        raise ValueError(
            f"{run.name} sent no messages of its own: step() shows what goes by send and recv. "
            "What goes on inside a collective is shown by a schedule, see collectives.algorithms."
        )
    messages = read(calls)
    steps = [list(step) for _, step in groupby(messages, lambda m: m.step)]
    says, count = list(_sentences(steps)), len(steps)
    frames = [Moment(lambda k=k: _so_far(calls, k), words) for k, words in enumerate(says, -1)]
    words = f"{run.name}: {len(calls)} message{'s' * (len(calls) > 1)} in {count} step{'s' * (count > 1)}"
    if others := len(run.calls) - len(calls):
        words += f" (and {others} collective{'s' * (others > 1)}, not shown)"
    return Stepper(words, frames, lambda: _so_far(calls, count), _lanes(messages, steps, says))


def _lanes(messages: list[Transfer], steps: list[list[Transfer]], says: list[str]) -> dict:
    """A run's messages as the web module plays them: [source, target, value, origin, whether it arrived]."""
    return {
        "view": "lanes",
        "says": says,
        "ranks": sorted({rank for m in messages for rank in (m.source, m.target) if rank is not None}),
        "owners": sorted({m.source for m in messages if m.sent and m.origin == m.source}),
        "steps": [
            [[m.source, m.target, chip(m.value, CHIP_PIXELS), m.origin, m.arrived] for m in step] for step in steps
        ],
        "notes": {e.rank: peer_status(e) for m in messages for e in m.events if status(e)},
    }


def _so_far(calls, k: int) -> Picture:
    sketch, alt = space_time(calls, k)
    return Picture([sketch], alt, f"Picture: {alt}")


def _sentences(steps: list[list[Transfer]]) -> Iterator[str]:
    """The sentences before the first step, and after each."""
    yield f"before:  {len(steps)} step{'s' * (len(steps) > 1)} to come"
    last = {rank: k for k, step in enumerate(steps) for m in step for rank in (m.source, m.target)}  # its last step
    sent = 0
    for k, now in enumerate(steps):
        sent += sum(m.events[0].nbytes for m in now)
        went = ", ".join(f"{'?' if m.source is None else m.source} -> {m.target} [{text(m.value)}]" for m in now)
        busy = {None, *(rank for m in now for rank in (m.source, m.target))}
        idle = sorted(rank for rank, end in last.items() if end > k and rank not in busy)
        yield f"step {k + 1}:  {went}{waiting_words(idle)}; {size(sent)} so far"


# --- a schedule ---------------------------------------------------------------------------


def _of_schedule(schedule: Schedule) -> Stepper:
    pictures = (lambda k=k: schedule.draw(k + 1) for k in range(len(schedule.steps) + 1))
    frames = [Moment(draw, words) for draw, words in zip(pictures, sentences(schedule))]
    return Stepper(title(schedule), frames, schedule.draw, playback(schedule))
