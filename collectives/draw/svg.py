"""A picture's shapes and text as SVG: for a screen, light or dark, sharp at any size, and drawn sooner than pixels.

In dark mode, grays are inverted; colors stay, and the words on them keep their ink.  Lines that would be too dark are
lighter there.
"""

import re
from html import escape
from typing import Any, Iterable, Iterator

from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import Patch
from matplotlib.path import Path

from .palette import NIGHT

MIN_CHROMA = 24 / 255  # between a color's channels; grays have less
PAPER, INK = 0.08, 0.94  # what white and black become
FONTS = "font-family:DejaVu Sans,Verdana,sans-serif;white-space:pre"
MONO = "font-family:DejaVu Sans Mono,Menlo,Consolas,monospace"
ANCHORS = {"left": "start", "center": "middle", "right": "end"}
LETTERS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE4: "C"}


class Inks:
    """The colors of one drawing: constant ones as attributes, those that dark mode changes as classes."""

    def __init__(self) -> None:
        self._changing: dict[tuple[str, str], str] = {}  # (fill or stroke, its color) -> the class

    def __call__(self, *classes: str, stays: bool = False, **paints: str) -> str:
        """The attributes of a shape; stays: its grays are not inverted."""
        said = []
        for name, colour in paints.items():
            if stays or colour == "none" or at_night(name, colour) == colour:
                said.append(f'{name}="{colour}"')
            else:
                classes += (self._changing.setdefault((name, colour), f"g{len(self._changing)}"),)
        return " ".join([*said, *[f'class="{" ".join(classes)}"'] * bool(classes)])

    def style(self) -> str:
        light = "".join(f".{mark}{{{name}:{tint}}}" for (name, tint), mark in self._changing.items())
        dark = "".join(f".{mark}{{{name}:{at_night(name, tint)}}}" for (name, tint), mark in self._changing.items())
        return f"<style>text{{{FONTS}}}.mono{{{MONO}}}{light}@media(prefers-color-scheme:dark){{{dark}}}</style>"


def svg(placed: Iterable[tuple[Any, tuple[float, float]]], pixels: tuple[int, int]) -> str:
    """The SVG of canvases, each with its top left corner, on a sheet of this width and height in pixels."""
    inks, (wide, high) = Inks(), pixels
    drawn = [f'<rect width="{wide}" height="{high}" {inks(fill="#ffffff")}/>']
    for sketch, (x, y) in placed:
        drawn += [f'<g transform="translate({x},{y})">', *_shapes(sketch, inks), "</g>"]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}">'
    return "".join([head, inks.style(), *drawn, "</svg>"])


def darkened(drawn: str) -> str:
    """matplotlib's own SVG of a figure, with rules that change its colors in dark mode."""
    used = sorted(set(re.findall(r"(fill|stroke): (#[0-9a-f]{6})", drawn)))
    changing = [(name, tint, at_night(name, tint)) for name, tint in used if at_night(name, tint) != tint]
    rules = "".join(f'[style*="{name}: {tint}"]{{{name}:{dark}!important}}' for name, tint, dark in changing)
    return drawn.replace("</style>", f"@media(prefers-color-scheme:dark){{{rules}}}</style>", 1)


def is_coloured(colour: str) -> bool:
    channels = to_rgb(colour)
    return max(channels) - min(channels) > MIN_CHROMA


def at_night(name: str, colour: str) -> str:
    """The color of a fill or a stroke in dark mode."""
    if is_coloured(colour):
        return NIGHT.get(colour, colour) if name == "stroke" else colour
    return dark_color(colour)


def dark_color(grey: str) -> str:
    """The inverted gray: light for dark."""
    return to_hex([INK + (PAPER - INK) * sum(to_rgb(grey)) / 3] * 3)


def _shapes(sketch: Any, inks: Inks) -> Iterator[str]:
    filled: list[tuple[float, float, float, float, str]] = []  # left, top, right, bottom, and the color
    for artist in sketch.artists:
        if not isinstance(artist, Patch):
            yield _text(artist, filled, inks)
            continue
        path = artist.get_path()
        fill, edge = (to_hex(tint) if tint[3] else "none" for tint in (artist.get_facecolor(), artist.get_edgecolor()))
        if fill != "none":
            xs, ys = zip(*path.vertices.tolist())
            filled.append((min(xs), min(ys), max(xs), max(ys), fill))
        line = artist.get_linewidth() * 100 / 72  # points to pixels
        if edge == "none" or not line:
            yield f'<path d="{_d(path)}" {inks(fill=fill)}/>'
            continue
        ends = f'stroke-linecap="{artist.get_capstyle()}" stroke-linejoin="round"'
        if artist.get_linestyle() not in ("-", "solid"):
            ends = f'stroke-dasharray="{3 * line:.3g} {2.2 * line:.3g}"'
        yield f'<path d="{_d(path)}" {inks(fill=fill, stroke=edge)} stroke-width="{line:.3g}" {ends}/>'


def _d(path: Path) -> str:
    said, last = [], None
    for (x, y), code in zip(path.vertices.tolist(), path.codes.tolist()):
        if code == Path.CLOSEPOLY:
            said.append("Z")
            last = None
            continue
        said.append(f"{' ' if code == last else LETTERS[code]}{x:.6g} {y:.6g}")
        last = code
    return "".join(said)


def _text(words: Any, filled: list[tuple[float, float, float, float, str]], inks: Inks) -> str:
    (x, y), said, align = words.position, words.words, words.align
    middle, height = x + words.wide * {"left": 0.5, "center": 0, "right": -0.5}[align], y - words.pixels * 0.36
    under = (
        tint
        for left, top, right, bottom, tint in reversed(filled)
        if left <= middle <= right and top <= height <= bottom
    )
    ink = inks(*["mono"] * words.mono, stays=is_coloured(next(under, "#ffffff")), fill=to_hex(words.tint))
    bold = ' font-weight="700"' if words.bold else ""
    return (
        f'<text x="{x:.5g}" y="{y:.5g}" font-size="{words.pixels:.3g}"{bold} text-anchor="{ANCHORS[align]}" '
        f'textLength="{words.wide:.4g}" lengthAdjust="spacingAndGlyphs" {ink}>{escape(said)}</text>'
    )
