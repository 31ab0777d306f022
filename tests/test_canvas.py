"""The sheet itself: the words, colours and bytes of a finished picture."""

import io

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.text import Text
from PIL import Image

from collectives.draw.canvas import FAINT, INK, PALETTE, REDUCED, SOFT, TRAY, Canvas, Picture, Words, font, ink_on
from collectives.draw.grid import Places
from collectives.draw.png import encode_png
from collectives.format import align


def pixels(picture: Picture) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(picture.png())).convert("RGB")).astype(int)


def tiles_of(tints) -> list[Canvas]:
    sheet = Canvas()
    for k, tint in enumerate(tints):
        sheet.box(k % 16 * 30, k // 16 * 30, 24, 24, tint, radius=5)
        sheet.text(k % 16 * 30 + 12, k // 16 * 30 + 12, "a₀", 12, ink_on(tint))
    return [sheet]


@pytest.mark.parametrize("bold, mono", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("align", ["left", "center", "right"])
def test_words_lie_where_matplotlib_would_write_them(align, bold, mono):
    for words in ("rank 3", "★ Σa₀, 10⇄∅", "l"):
        sheet = Canvas()
        sheet.text(200, 40, words, 15, align=align, bold=bold, mono=mono)
        picture = Picture([sheet], "", "")
        (ours,) = picture.artists
        figure = Figure(picture.get_size_inches(), picture.dpi)
        FigureCanvasAgg(figure)
        figure.add_artist(
            Text(
                *ours.position, words, color=INK, ha=align, va="baseline", transform=ours.get_transform(),
                fontproperties=font(bold, mono), fontsize=15 * 0.72, transform_rotates_text=False,
            )
        )  # fmt: skip
        figure.canvas.draw()
        theirs = np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)
        for axis in (0, 1):
            edges = [np.flatnonzero((image < 128).any(axis=(axis, 2)))[[0, -1]] for image in (pixels(picture), theirs)]
            assert np.abs(edges[0] - edges[1]).max() <= 2, (words, edges)


def test_words_without_a_letter_are_drawn_as_nothing():
    sheet = Canvas()
    sheet.text(50, 20, " ")
    sheet.text(50, 20, "")
    assert (pixels(Picture([sheet], "", "")) == 255).all()


@pytest.mark.parametrize(
    "tints",
    [
        [*PALETTE, INK, SOFT, FAINT, TRAY, REDUCED],
        [f"#{r:02x}{g:02x}{b:02x}" for r in (20, 90, 160, 230) for g in (20, 90, 160, 230) for b in (30, 130, 230)],
    ],
    ids=["ours", "48 others"],
)
def test_every_colour_is_exactly_what_was_drawn_with(tints):
    picture = Picture(tiles_of(tints), "", "")
    seen = {tuple(colour) for colour in pixels(picture).reshape(-1, 3)}
    for artist in picture.artists:
        if isinstance(artist, PathPatch):
            tint = to_hex(artist.get_facecolor())
            assert tuple(int(tint[i : i + 2], 16) for i in (1, 3, 5)) in seen, tint


def test_no_shade_takes_the_place_of_a_colour_beside_it():
    tints = "#297360", "#93bfb3"  # half the way from the first to white is next to the second
    drawn = np.array([[[int(tint[i : i + 2], 16) for i in (1, 3, 5)] + [255] for tint in tints]], dtype=np.uint8)
    image = Image.open(io.BytesIO(encode_png(drawn, frozenset(tints), frozenset())))
    assert (np.asarray(image.convert("RGB")) == drawn[..., :3]).all()


def test_edges_keep_their_shades():
    sheet = Canvas()
    for k, tint in enumerate((INK, SOFT, REDUCED)):
        sheet.text(0, 10 + 20 * k, "what each rank holds, before and after", 12, tint, align="left")
    picture = Picture([*tiles_of(PALETTE), sheet], "", "")
    small = pixels(picture)
    picture.canvas.draw()
    whole = np.asarray(picture.canvas.buffer_rgba())[..., :3].astype(int)
    off = np.abs(small - whole).max(axis=2)
    assert off.max() < 48 and off.mean() < 0.33


def test_the_same_sketches_give_the_same_bytes():
    one, other = Picture(tiles_of(PALETTE), "", ""), Picture(tiles_of(PALETTE), "", "")
    assert one.png() == one.png() == other.png()
    assert sum(isinstance(artist, Words) for artist in one.artists) == len(PALETTE)


def test_words_in_columns():
    rows = [("", "sent", "note"), ("ring", "9"), ("tree", "12", "more")]
    assert align(rows, right=(1,)) == "      sent  note\nring     9\ntree    12  more"
    assert align(rows[1:], indent="> ", gap="|", least=(6, 1)) == "> ring  |9 |\n> tree  |12|more"
    assert align(rows[1:], rule=True).splitlines() == ["ring  9", "-" * 14, "-" * 14, "tree  12  more"]


def test_a_cell_of_a_grid_is_where_its_row_and_its_column_are():
    at = Places(left=100, top=20, wide=30, high=10, across=36, down=14)
    assert (at.x(2), at.y(3), at.middle(3), at.width(3)) == (172, 62, 67, 102)
