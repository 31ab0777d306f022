"""Pictures as SVG: the same words and shapes as in pixels, greys turned over in the dark, colours and words on them kept."""

import re
from xml.etree import ElementTree

import pytest
import torch
import torch.distributed as dist
from matplotlib.colors import to_rgb

from collectives.draw.canvas import PALETTE, REDUCED, Canvas, Picture, Words, ink_on
from collectives.draw.palette import NIGHT, SERIES
from collectives.draw.svg import at_night, dark_color, is_coloured
from helpers import costs, run

LUMINANCE = (0.2126, 0.7152, 0.0722)
SVG = "{http://www.w3.org/2000/svg}"


def read(picture):
    """The drawing, and what each class paints in the light and in the dark."""
    root = ElementTree.fromstring(picture.svg())
    light, dark = root.find(f"{SVG}style").text.split("@media(prefers-color-scheme:dark)")
    return root, *(dict(re.findall(r"\.(g\d+)\{(?:fill|stroke):(#\w{6})\}", rules)) for rules in (light, dark))


def share():
    x = torch.arange(2.0) + 10 * dist.get_rank()
    dist.all_reduce(x)
    dist.broadcast(x, src=1)


def test_words_and_shapes_are_those_of_the_pixels():
    picture = run(share, world_size=3).draw()
    root, *_ = read(picture)
    assert (root.get("width"), root.get("height")) == tuple(map(str, picture.pixels))
    words = [artist.words for artist in picture.artists if isinstance(artist, Words)]
    assert [text.text for text in root.iter(f"{SVG}text")] == words and "33" in words
    assert len([*root.iter(f"{SVG}path")]) == len(picture.artists) - len(words)


@pytest.mark.parametrize("fill, turns", [(PALETTE[0], False), (PALETTE[4], False), (REDUCED, True), (None, True)])
def test_in_the_dark_words_can_be_read_on_what_they_are_written_on(fill, turns):
    sketch = Canvas()
    if fill:
        sketch.boxed(0, 0, 80, 30, "<7>", 12, fill)
    else:
        sketch.text(40, 15, "<7>", 12, "#000000")
    root, light, dark = read(Picture([sketch], "", "Picture: seven"))
    (words,) = root.iter(f"{SVG}text")
    ink = light[words.get("class")] if words.get("class") else words.get("fill")
    assert words.text == "<7>" and ink == (ink_on(fill) if fill else "#000000")
    assert bool(words.get("class")) == turns
    if turns:
        assert dark[words.get("class")] == dark_color(ink)
    if fill:
        (box,) = root.iter(f"{SVG}path")
        assert box.get("fill") == (None if turns else fill)


def test_greys_are_turned_over_and_colours_are_none():
    assert not any(map(is_coloured, ("#ffffff", REDUCED, "#6b7177"))) and all(map(is_coloured, PALETTE))
    assert dark_color("#ffffff") < dark_color("#6b7177") < dark_color("#000000")


def test_a_chart_is_dark_in_the_dark_too_and_the_same_each_time():
    drawn = costs().draw().svg()
    assert drawn == costs().draw().svg() and "1,024 ranks" in drawn
    dark = drawn.partition("@media(prefers-color-scheme:dark)")[2].partition("</style>")[0]
    assert f'[style*="fill: #ffffff"]{{fill:{dark_color("#ffffff")}!important}}' in dark and "#8cb43c" not in dark
    for tint, night in NIGHT.items():
        assert contrast(night, dark_color("#ffffff")) > 3 > contrast("#1414a0", dark_color("#ffffff"))
        assert f'[style*="stroke: {tint}"]{{stroke:{night}!important}}' in dark or tint not in drawn
    assert "#1414a0" in drawn


def test_a_line_is_seen_in_the_dark():
    faint = [tint for tint in (*PALETTE, *SERIES) if contrast(at_night("stroke", tint), dark_color("#ffffff")) <= 3]
    assert faint == ["#6e131b", "#146464"]  # lighter ones would be too near others for some colour vision


def contrast(one, other):
    """Of two colors, as WCAG has it."""
    darker, lighter = sorted(
        sum(share * linear(c) for share, c in zip(LUMINANCE, to_rgb(tint))) for tint in (one, other)
    )
    return (lighter + 0.05) / (darker + 0.05)


def linear(channel):
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
