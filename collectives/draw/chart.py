"""Charts: curves and dots on axes, in the fonts and colors of the other pictures."""

import io
from math import log10
from typing import Callable, Sequence

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from ..format import duration
from .canvas import FAINT, INK, SOFT, WIDTH, Sheet, font
from .svg import darkened


class Chart(Sheet):
    """Stacked axes, in the fonts and colors of the other pictures.  alt: a description of the picture in one line."""

    def __init__(self, alt: str, panels: int = 1, height: float = 400) -> None:
        super().__init__(alt, (WIDTH, round(height)), layout="constrained")
        self.panels: list[Axes] = list(self.subplots(panels, 1, squeeze=False)[:, 0])
        for ax in self.panels:
            ax.spines[["top", "right"]].set_visible(False)
            ax.spines[["left", "bottom"]].set_color(FAINT)
            ax.grid(True, color="#e8ebee", lw=0.8)
            ax.set_axisbelow(True)

    def png(self) -> bytes:
        self._place()
        return super().png()

    def svg(self) -> str:
        self._place()
        file, nothing = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with rc_context(
            {"svg.fonttype": "none", "svg.hashsalt": "collectives"}
        ):  # text as text, the same names each time
            self.savefig(file, format="svg", metadata=nothing)
        return darkened(file.getvalue())

    def _place(self) -> None:
        """Places the axes, once, since a layout engine would move them with every drawing."""
        if self.get_layout_engine() is not None:
            for label in (each for ax in self.panels for each in (*ax.get_xticklabels(), *ax.get_yticklabels())):
                label.set_fontproperties(small_font())
                label.set_color(SOFT)
            self.draw_without_rendering()
            self.set_layout_engine(None)

    def tints(self) -> tuple[list, list]:
        lines = self.findobj(Line2D)
        inks = [each.get_color() for each in (*lines, *self.findobj(Text))]
        inks += [tint for line in lines for tint in (line.get_markerfacecolor(), line.get_markeredgecolor())]
        return [patch.get_facecolor() for patch in self.findobj(Patch)], inks


# --- axes ---------------------------------------------------------------------------------


def small_font() -> FontProperties:
    return font(size=9)


def ticks(axis, at: Sequence[float], say: Callable[[float], str]) -> None:
    """Label an axis at these places, each with the words that `say` returns for it."""
    axis.set_ticks(list(at), [say(v) for v in at])
    axis.set_ticks([], minor=True)


def seconds_axis(ax: Axes) -> None:
    """Label the y axis, which is logarithmic, with durations."""
    low, high = ax.get_ylim()
    ax.set_ylim(low, high)
    marks = [m * 10.0**k for k in range(-7, 3) for m in ((1, 3) if log10(high / low) < 3 else (1,))]
    ticks(ax.yaxis, [seconds for seconds in marks if low <= seconds <= high], duration)
    ax.set_ylabel("seconds", fontproperties=small_font(), color=SOFT)


def titled(ax: Axes, words: str, x: str) -> None:
    """Write a title above, and the x axis's label below."""
    ax.set_title(words, loc="left", fontproperties=font(bold=True, size=10.5), color=INK)
    ax.set_xlabel(x, fontproperties=small_font(), color=SOFT)


def note(ax: Axes, words: str, at: tuple[float, float], by: tuple[float, float], side: str) -> None:
    """Write words next to a data point.  by: the distance, in points.  side: the end of the words that is there."""
    ax.annotate(words, at, by, textcoords="offset points", ha=side, va="center", fontproperties=small_font(), color=INK)


def key(ax: Axes, k: int, words: str, **how) -> None:
    """Line k of a legend to the right of the axes.  how: the look of its marker."""
    y = 0.96 - 0.07 * k
    ax.plot([1.02], [y], ls="", ms=5, transform=ax.transAxes, clip_on=False, **how)
    ax.text(1.035, y, words, fontproperties=small_font(), color=INK, va="center", transform=ax.transAxes)


def label_ends(ax: Axes, ends: list[tuple[str, float, float, str]], gap: float = 0.075) -> None:
    """Name curves at their right ends, moving names apart where they would overlap."""
    ax.figure.draw_without_rendering()
    places, low = [], -1.0
    for name, x, y, colour in sorted(ends, key=lambda end: end[2]):
        across, up = ax.transAxes.inverted().transform(ax.transData.transform((x, y)))
        low = max(up, low + gap)
        places.append((name, across, up, low, colour))
    excess = max(0.0, low - 1.02)
    for name, across, up, at, colour in places:
        ax.plot([across, 1.03], [up, at - excess], color=colour, lw=1.2, transform=ax.transAxes, clip_on=False)
        ax.text(1.038, at - excess, name, fontproperties=small_font(), color=INK, va="center", transform=ax.transAxes)
