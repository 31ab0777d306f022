"""A drawn sheet as the bytes of a PNG, in 256 colors: a third of the bytes, and a notebook holds many pictures.

A drawing is flat color, and edges on which one color fades into another.  So the palette
needs no search through the pixels: it follows from the colors that were drawn with.
"""

import io
from functools import lru_cache

import numpy as np
from PIL import Image, ImageColor

MAX_COLOURS = 256
NEAR = 8  # levels of a channel: Pillow looks colors up by their upper six bits, and must find the drawn one
WHITE, BLACK = (255, 255, 255), (0, 0, 0)


def encode_png(pixels: memoryview, fills: frozenset[str], inks: frozenset[str]) -> bytes:
    """The PNG of pixels (height, width, 4), without date or version, the same bytes each time.

    fills, inks: '#rrggbb' of the shapes and of the text that were drawn on white.
    """
    image = (
        Image.fromarray(np.asarray(pixels))
        .convert("RGB")
        .quantize(palette=_palette(fills, inks), dither=Image.Dither.NONE)
    )
    file = io.BytesIO()
    image.save(file, "png", compress_level=9)
    return file.getvalue()


@lru_cache(maxsize=256)
def _palette(fills: frozenset[str], inks: frozenset[str]) -> Image.Image:
    """Every color unchanged, and the shades between colors that touch, as long as there is room."""
    drawn_fills, drawn_inks = (sorted(map(ImageColor.getrgb, tints)) for tints in (fills, inks))
    shades = [_mix(ink, WHITE, k / 8) for k in range(1, 8) for ink in drawn_inks]
    for k in (2, 1, 3):
        shades += [_mix(fill, WHITE, k / 4) for fill in drawn_fills]
        shades += [_mix(fill, ink, k / 4) for fill in drawn_fills for ink in drawn_inks if ink != WHITE]
    kept = list(dict.fromkeys([WHITE, BLACK, *drawn_fills, *drawn_inks]))[:MAX_COLOURS]
    for shade in dict.fromkeys(shades):
        if len(kept) < MAX_COLOURS and np.abs(np.array(kept) - shade).max(axis=1).min() >= NEAR:
            kept.append(shade)
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for colour in kept for channel in colour])
    return palette


def _mix(one, other, share: float) -> tuple[int, int, int]:
    return tuple(round(a + (b - a) * share) for a, b in zip(one, other))
