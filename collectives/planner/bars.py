"""A step's memory, seconds and bytes as bars, each in its parts; for a picture, and for a page."""

from typing import Callable, Mapping, NamedTuple

from ..draw.palette import FAINT, SERIES
from ..format import duration, size
from .step import Step

MEMORY = {"parameters": SERIES[3], "gradients": SERIES[1], "optimizer": SERIES[2], "activations": SERIES[0],
          "gathered": SERIES[4]}  # fmt: skip
# A part that sends gradients has their color, one that passes activations theirs, and one that gathers "gathered"'s.
SECONDS = {"compute": FAINT, "tensor": SERIES[5], "context": MEMORY["gathered"], "experts": "#9ef9b0", "bubble": "#dde1e5",
           "pipeline": MEMORY["activations"], "data": MEMORY["gradients"], "optimizer": MEMORY["optimizer"]}  # fmt: skip
MIN_SHARE = 0.002  # of a bar, that a part is named
KEPT_FREE = "#88888844"  # on a light page and on a dark one


class Bar(NamedTuple):
    """whole: the value of the bar's full width.  words: next to it."""

    name: str
    parts: Mapping[str, float]
    tints: Mapping[str, str]
    said: Callable[[float], str]
    whole: float
    words: str

    def legend(self) -> list[tuple[str, str]]:
        """Tint and words of each part that is large enough."""
        least = MIN_SHARE * sum(self.parts.values())
        return [(self.tints[part], f"{part} {self.said(v)}") for part, v in self.parts.items() if v > least]


def bars(s: Step) -> list[Bar]:
    """Memory, the step's seconds, and the bytes that it sends if there are any."""
    held, sent = s.memory.total, sum(s.sent.values())
    most = max(s.needed, s.capacity) * 1.02
    memory = Bar("memory", s.memory._asdict(), MEMORY, size, most, f"{size(held)} of {size(s.capacity)}")
    time = Bar("step", s.seconds, SECONDS, duration, s.production.high, f"{duration(s.time)}, MFU {s.mfu:.0%}")
    sends = Bar("sends", s.sent, SECONDS, size, sent, f"{size(sent)} per step")
    return [memory, time, sends] if sent else [memory, time]


def title(s: Step) -> tuple[str, str]:
    return s.model.name, f"{s.division} on {s.division.gpus:,} x {s.machine.gpus.name}"


def verdict(s: Step) -> str:
    """The words where the memory does not suffice; "" where it does."""
    return "" if s.fits else "may not fit" if s.memory.total <= s.capacity else "does not fit"


def spare(s: Step) -> tuple[float, str]:
    """The bytes of memory that are kept free, and the words for them."""
    free = s.needed - s.memory.total
    return free, f"to spare {size(free)}"


def validation_bands(s: Step) -> list[tuple[str, tuple[float, float, float], str]]:
    """The bands of the step's seconds, to the scale of its bar: kind, (low, median, high), words."""
    return [(kind, tuple(band), str(band)) for kind, band in (("benchmark", s.benchmark), ("production", s.production))]


def shares(s: Step) -> dict:
    """All that a page draws, as JSON, lengths as shares of the full width."""
    found = []
    for bar in bars(s):
        parts = [[name, value / bar.whole, bar.tints[name]] for name, value in bar.parts.items() if value]
        found.append({"name": bar.name, "parts": parts, "words": bar.words, "legend": bar.legend()})
    memory, time = found[:2]
    free, words = spare(s)
    whole = bars(s)[0].whole
    memory |= {"limit": s.capacity / whole, "spare": free / whole, "verdict": verdict(s)}
    memory["legend"].append((KEPT_FREE, words))
    longest = s.production.high
    time["bands"] = [[kind, [at / longest for at in band], said] for kind, band, said in validation_bands(s)]
    return dict(zip(("title", "subtitle"), title(s))) | {"rows": found}
