"""The sheet that pictures are drawn on: shapes in pixels, and the finished `Picture`.

A `Canvas` is drawn in its own pixels, from its top left corner; a `Picture` lays
sketches out and knows how a notebook shows it.  Knows nothing about runs.
"""

import base64
from contextlib import suppress
from functools import lru_cache
from math import ceil
from typing import NamedTuple, Sequence

try:
    import matplotlib  # noqa: F401
except ModuleNotFoundError:
    raise ModuleNotFoundError("pictures need matplotlib: pip install 'collectives-course[pictures]'") from None
from matplotlib import get_data_path
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.textpath import TextPath, text_to_path
from matplotlib.transforms import Affine2D

from ..frontend import has_viewer, image_html
from .palette import (  # noqa: F401 (drawing modules import them from here)
    AMOUNT,
    ANYBODYS,
    FAINT,
    GRID,
    IDLE,
    INK,
    PALETTE,
    REDUCED,
    SERIES,
    SOFT,
    TRAY,
)
from .svg import svg

with suppress(ModuleNotFoundError):  # a page has neither numpy nor Pillow, and draws SVG
    from .png import encode_png

WIDTH = 860  # pixels: what a notebook page shows without scaling
SHARPNESS = 2  # image pixels per pixel shown, for high-resolution screens
_INCH = 100  # pixels


def colour(rank: int) -> str:
    """The color of data that came from this rank, '#rrggbb'; the ninth rank has the first one's."""
    return PALETTE[rank % len(PALETTE)]


def pale(tint: str, share: float = 0.5) -> str:
    """A color mixed with white.  share: the color's, 0 to 1."""
    return to_hex([1 - (1 - channel) * share for channel in to_rgb(tint)])


@lru_cache(maxsize=64)
def ink_on(fill: str) -> str:
    """Black or white, whichever is easier to read on this fill."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(fill)]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]  # WCAG relative luminance
    return "#ffffff" if 1.05 / (light + 0.05) > (light + 0.05) / 0.05 else "#000000"


@lru_cache(maxsize=None)
def font(bold: bool = False, mono: bool = False, size: float | None = None) -> FontProperties:
    # By file, not by name: the same picture with any fonts and settings of the reader's.
    name = "DejaVuSans" + "Mono" * mono + "-Bold" * bold
    return FontProperties(fname=f"{get_data_path()}/fonts/ttf/{name}.ttf", size=size)


@lru_cache(maxsize=4096)
def text_width(text: str, size: float, bold: bool = False, mono: bool = False) -> float:
    return text_to_path.get_text_width_height_descent(text, font(bold, mono, size), ismath=False)[0]


@lru_cache(maxsize=4096)
def outline(text: str, bold: bool = False, mono: bool = False) -> Path:
    """The text as one shape for size 1, y upwards from the baseline."""
    if not text.strip():  # for which TextPath raises an error
        return Path.make_compound_path()  # of nothing
    path = TextPath((0, 0), text, size=100, prop=font(bold, mono))
    return Path(path.vertices / 100, path.codes)


class Words(Artist):
    """Text on a `Canvas`, x and baseline in its pixels, drawn as a shape.

    matplotlib's own lays out and renders text again for every picture, at 1.5 ms per text; outlines are kept.
    pixels: the letters' size.  They begin on a whole pixel of the image: the same words are the same pixels everywhere, which compress better.
    """

    def __init__(self, x, baseline, words, size, tint, align, bold, mono) -> None:
        super().__init__()
        self.position, self.words, self.pixels, self.tint = (x, baseline), words, size, tint
        self.align, self.bold, self.mono = align, bold, mono

    @property
    def wide(self) -> float:
        return text_width(self.words, self.pixels, self.bold, self.mono)

    def draw(self, renderer) -> None:
        x, baseline = self.position
        left = x - self.wide * {"left": 0, "center": 0.5, "right": 1}[self.align]
        left, baseline = (round(at * SHARPNESS) / SHARPNESS for at in (left, baseline))
        place = Affine2D().scale(self.pixels, -self.pixels).translate(left, baseline)
        pen = renderer.new_gc()
        pen.set_linewidth(0)
        pen.set_snap(False)
        shape = outline(self.words, self.bold, self.mono)
        renderer.draw_path(pen, shape, place + self.get_transform(), to_rgba(self.tint))
        pen.restore()


class Area(NamedTuple):
    """A piece of a sheet, in pixels."""

    x: float
    y: float
    width: float
    height: float


class Canvas:
    """Shapes and text in pixels, y downwards.  Later shapes cover earlier ones.

    narrow: for a narrower page, the sheet's parts in rows that are stacked; [] if the sheet is not split.
    """

    def __init__(self) -> None:
        self.width = self.height = 0.0
        self.artists: list = []
        self.narrow: list[list[Area]] = []

    def reach(self, x: float, y: float) -> None:
        """Make the sheet large enough to contain this point."""
        self.width, self.height = max(self.width, x), max(self.height, y)

    def box(self, x, y, w, h, fill=None, edge=None, dashed=False, radius=3.0, lw=1.0) -> None:
        self._add(_rounded_box(x, y, w, h, min(radius, w / 2, h / 2)), fill, edge, dashed, lw)
        self.reach(x + w, y + h)

    def boxed(self, x, y, w, h, words, size, fill, edge=None, dashed=False, radius=3.0, lw=1.0, bold=False) -> None:
        """A box with words in its middle, black or white, whichever is easier to read."""
        self.box(x, y, w, h, fill, edge, dashed, radius, lw)
        self.text(x + w / 2, y + h / 2, words, size, ink_on(fill), bold=bold)

    def tiles(self, boxes, fill) -> None:
        """Boxes (x, y, w, h) as one shape, so that no seam shows where they touch."""
        points = [p for x, y, w, h in boxes for p in ((x, y), (x + w, y), (x + w, y + h), (x, y + h), (x, y))]
        self._add(Path(points, [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY] * len(boxes)), fill, None, False, 0)
        self.reach(max(x + w for x, _, w, _ in boxes), max(y + h for _, y, _, h in boxes))

    def line(self, points, tint=INK, lw=1.5, dashed=False, butt=False) -> None:
        """Straight through the points."""
        self._add(Path(points, [Path.MOVETO] + [Path.LINETO] * (len(points) - 1)), None, tint, dashed, lw, butt)
        self.reach(max(x for x, _ in points), max(y for _, y in points))

    def curve(self, points, tint=INK, lw=1.5) -> None:
        """Straight through all points except the last, then in a curve that leaves and arrives level."""
        *straight, (x0, y0), (x1, y1) = points
        bend = (x1 - x0) * 0.5
        codes = [Path.MOVETO, *[Path.LINETO] * len(straight), *[Path.CURVE4] * 3]
        self._add(Path([*points[:-1], (x0 + bend, y0), (x1 - bend, y1), (x1, y1)], codes), None, tint, False, lw)
        self.reach(max(x for x, _ in points), max(y for _, y in points))

    def bow(self, x, y0, y1, depth, tint=INK, lw=1.8, head=9.0) -> None:
        """An arrow that leaves (x, y0) to the right and comes back to (x, y1)."""
        out = x + depth * 4 / 3  # the curve goes three quarters of the way to its control points
        points = [(x, y0), (out, y0), (out, y1), (x + head * 0.8, y1)]
        self._add(Path(points, [Path.MOVETO] + [Path.CURVE4] * 3), None, tint, False, lw)
        self.polygon([(x, y1), (x + head, y1 - head * 0.42), (x + head * 0.8, y1), (x + head, y1 + head * 0.42)], tint)
        self.reach(x + depth, max(y0, y1))

    def arrow(self, start, end, tint=INK, lw=1.8, dashed=False, head=9.0) -> None:
        """A straight line whose head ends at `end`."""
        (x0, y0), (x1, y1) = start, end
        length = max(((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5, 1e-6)
        ux, uy = (x1 - x0) / length, (y1 - y0) / length
        base = (x1 - ux * head * 0.8, y1 - uy * head * 0.8)
        self.line([start, base], tint, lw, dashed)
        back = (x1 - ux * head, y1 - uy * head)
        wing_x, wing_y = -uy * head * 0.42, ux * head * 0.42
        self.polygon([end, (back[0] + wing_x, back[1] + wing_y), base, (back[0] - wing_x, back[1] - wing_y)], tint)

    def polygon(self, points, fill) -> None:
        self._add(Path([*points, points[0]], closed=True), fill, None, False, 0)

    def circle(self, x, y, radius, fill=None, edge=None, lw=1.0) -> None:
        self.box(x - radius, y - radius, 2 * radius, 2 * radius, fill, edge, radius=radius, lw=lw)

    def text(self, x, y, words, size=13.0, tint=INK, align="center", bold=False, mono=False) -> None:
        """y is the middle of a capital letter, so that rows of text line up whatever is in them."""
        self.artists.append(Words(x, y + size * 0.36, words, size, tint, align, bold, mono))
        width = text_width(words, size, bold, mono)
        self.reach(x + width * {"left": 1, "center": 0.5, "right": 0}[align], y + size * 0.6)

    def _add(self, path, fill, edge, dashed, lw, butt=False) -> None:
        artist = PathPatch(path, facecolor=fill or "none", edgecolor=edge or "none", linewidth=lw * 72 / _INCH)
        artist.set_capstyle("butt" if dashed or butt else "round")
        artist.set_joinstyle("round")
        if dashed:
            artist.set_linestyle((0, (3.0, 2.2)))
        self.artists.append(artist)


def heading(sketch: Canvas, title: str, subtitle: str = "", beside: str = "") -> float:
    """Write both at the top left of the sheet, `beside` next to the title in small letters; return the y below them."""
    sketch.text(0, 10, title, 15.5, align="left", bold=True, mono=True)
    if beside:
        sketch.text(text_width(title, 15.5, bold=True, mono=True) + 16, 11, beside, 11.5, SOFT, align="left")
    if subtitle:
        sketch.text(0, 30, subtitle, 11.5, SOFT, align="left")
    return 46.0 if subtitle else 28.0


class Sheet(Figure):
    """A figure that a notebook shows by itself, once, with or without pyplot.  alt: a description in one line.

    pixels: width and height as shown.  narrow: as a Canvas has it.  The same ink gives the same PNG bytes.
    A subclass has `tints()`, the colors of its shapes, and of its text and lines; and `svg()`, which is for a screen.
    """

    narrow: list[list[Area]] = []

    def __init__(self, alt: str, pixels: tuple[int, int], layout: str) -> None:
        self.alt, self.pixels = alt, pixels
        size = [length / _INCH for length in pixels]
        super().__init__(figsize=size, dpi=_INCH * SHARPNESS, facecolor="white", edgecolor="white", layout=layout)
        FigureCanvasAgg(self)

    def png(self) -> bytes:
        """The image, SHARPNESS pixels for each of `pixels`; no date and no version inside."""
        self.canvas.draw()
        tints = (frozenset(to_hex(tint) for tint in used if to_rgba(tint)[3]) for used in self.tints())
        return encode_png(self.canvas.buffer_rgba(), *tints)

    def __repr__(self) -> str:
        return self.alt

    def image(self, kind: str = "svg+xml") -> dict:
        """As an element of a page: src, alt, and width in pixels.  kind: "svg+xml", or "png", which GitHub shows too."""
        source = base64.b64encode(self.png() if kind == "png" else self.svg().encode()).decode()
        return {"src": f"data:image/{kind};base64,{source}", "alt": self.alt, "width": self.pixels[0]}

    def _repr_mimebundle_(self, include=None, exclude=None):
        if has_viewer():
            return {"text/html": image_html(self.image()), "text/plain": self.alt}, {}
        image = base64.b64encode(self.png()).decode()
        return {"image/png": image, "text/plain": self.alt}, {"image/png": self.measures()}

    def measures(self) -> dict:
        """The PNG's metadata: width and height as shown, and the parts for a narrow page as "x,y,w,h x,y,w,h;..."."""
        narrow = ";".join(" ".join(",".join(map(str, part)) for part in row) for row in self.narrow)
        return dict(zip(("width", "height"), self.pixels)) | ({"narrow": narrow} if narrow else {})


class Picture(Sheet):
    """Sketches, laid out, with a text twin: the same content as a table of text."""

    def __init__(self, sketches: Sequence[Canvas], text: str, alt: str) -> None:
        places, width, height = _flow(sketches)
        super().__init__(alt, (round(width), round(height)), layout="none")
        self.text = text
        self._placed = list(zip(sketches, places))
        self.narrow = _narrow(self._placed)
        for sketch, (x, y) in self._placed:
            place = Affine2D().translate(x, y - self.pixels[1]).scale(1 / _INCH, -1 / _INCH) + self.dpi_scale_trans
            for order, artist in enumerate(sketch.artists):
                artist.set_transform(place)
                artist.set_zorder(order)
                self.add_artist(artist)

    def svg(self) -> str:
        return svg(self._placed, self.pixels)

    def tints(self) -> tuple[list, list]:
        fills = [tint for a in self.artists if isinstance(a, Patch) for tint in (a.get_facecolor(), a.get_edgecolor())]
        return fills, [words.tint for words in self.artists if isinstance(words, Words)]


def _flow(sketches: Sequence[Canvas], margin=14, across=56, down=34):
    """Place sketches like words: side by side while they fit, then below."""
    places, x, y, line, width = [], 0.0, 0.0, 0.0, 0.0
    for sketch in sketches:
        if x and x + sketch.width > WIDTH:
            x, y, line = 0.0, y + line + down, 0.0
        places.append((round(x) + margin, round(y) + margin))  # whole pixels, as in Words
        width, line = max(width, x + sketch.width), max(line, sketch.height)
        x += sketch.width + across
    return places, width + 2 * margin, y + line + 2 * margin


def _narrow(placed: Sequence[tuple[Canvas, tuple[int, int]]]) -> list[list[Area]]:
    """The parts of all sketches, each sketch below the one before it, in whole pixels; [] where there is one."""
    rows = []
    for sketch, (left, top) in placed:
        for row in sketch.narrow or [[Area(0, 0, sketch.width, sketch.height)]]:
            rows.append([Area(round(left + x), round(top + y), ceil(wide), ceil(high)) for x, y, wide, high in row])
    return rows if len(rows) > 1 else []


def _rounded_box(x, y, w, h, r) -> Path:
    k = r * 0.4477  # the control points of a quarter circle
    corners = [
        (x + r, y), (x + w - r, y), (x + w - k, y), (x + w, y + k), (x + w, y + r),
        (x + w, y + h - r), (x + w, y + h - k), (x + w - k, y + h), (x + w - r, y + h),
        (x + r, y + h), (x + k, y + h), (x, y + h - k), (x, y + h - r),
        (x, y + r), (x, y + k), (x + k, y), (x + r, y), (x + r, y),
    ]  # fmt: skip
    side_and_corner = [Path.LINETO] + [Path.CURVE4] * 3
    return Path(corners, [Path.MOVETO, *side_and_corner * 4, Path.CLOSEPOLY])
