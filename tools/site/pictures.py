"""A picture of the course as files for the website: light as it was drawn, dark, and none of them heavy.

Pictures are drawn on white, in grays and in colors that mean something.  The dark one
inverts grays; colored areas keep their color, and the words on them their ink.  Lines too dark for it are
lighter there.
"""

import hashlib
import io
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.ndimage import distance_transform_cdt, label, maximum_filter, minimum_filter

from collectives.draw.palette import NIGHT, PALETTE

HEAVIEST = 60_000  # bytes of a file
WHITE_TURNED, BLACK_TURNED = np.array([19, 20, 22]), np.array([240, 240, 240])  # the first: a dark page's background
MIN_CHROMA = 24  # levels between a color's channels; grays have fewer
LINE, CELL = 3, 5  # pixels: a spot of one color this large was drawn in it; and this large, it is more than a line
EDGE = 3  # pixels from a color to where it has faded into its neighbor
THICK = 15  # pixels: of a line or a dot, less
COUNTER = 256  # pixels: an area enclosed by a letter has fewer, a cell more
NEAR = 40  # levels that a blend may be off: the stored picture has few colors


def files(png: bytes, folder: Path) -> list[Path]:
    """The files of a picture in a folder, written unless they are there: {name}-{light or dark}-{part}.webp"""
    name = hashlib.sha256(png).hexdigest()[:16]
    if not any(folder.glob(f"{name}-*")):
        folder.mkdir(parents=True, exist_ok=True)
        drawn = Image.open(io.BytesIO(png)).convert("RGB")
        for theme, image in (("light", drawn), ("dark", dark(drawn))):
            for part, file in enumerate(webp(image)):
                (folder / f"{name}-{theme}-{part}.webp").write_bytes(file)
    return sorted(folder.glob(f"{name}-*"))


def webp(image: Image.Image) -> list[bytes]:
    """The files of a picture, without loss; one that is too heavy is cut into several, to be stacked."""
    file = io.BytesIO()
    image.save(file, "webp", lossless=True, quality=100)
    if file.tell() <= HEAVIEST:
        return [file.getvalue()]
    at = gap(np.asarray(image))
    return [*webp(image.crop((0, 0, image.width, at))), *webp(image.crop((0, at, image.width, image.height)))]


def gap(pixels: np.ndarray) -> int:
    """The row, near the middle, where a cut meets least; two rows of a picture are one on the page."""
    middle = len(pixels) // 4 * 2
    rows = sorted(range(2, len(pixels), 2), key=lambda row: abs(row - middle))[: middle // 2]
    drawn = [(np.diff(pixels[row - 1 : row + 1].astype(int), axis=1) != 0).sum() for row in rows]
    return rows[np.argmin(drawn)]


def dark(image: Image.Image) -> Image.Image:
    """The picture for a dark page: a pixel is a blend of a color, which stays, and a gray, which is inverted."""
    pixels = np.asarray(image.convert("RGB")).astype(int)
    kinds, kind = np.unique(pixels @ [65536, 256, 1], return_inverse=True)
    kind = kind.reshape(pixels.shape[:2]).astype(np.int32)
    kinds = np.stack([kinds >> 16, kinds >> 8 & 255, kinds & 255], axis=-1)

    drawn = spots(kind, LINE) & (np.ptp(kinds, axis=1) > MIN_CHROMA)[kind]
    tints = kinds[np.unique(kind[drawn])]
    if not len(tints):
        return Image.fromarray(dark_gray(kinds).round().astype(np.uint8)[kind])
    shares, off = blends(kinds, tints)
    likely = np.where(shares > 0, off, np.inf).argmin(axis=1)
    near = maximum_filter(drawn, 2 * EDGE + 1) | np.any(shares > 0, axis=1)[kind]
    away, place = distance_transform_cdt(~drawn, "chessboard", return_indices=True)
    letters = lettered(kind, drawn)
    there = np.nonzero(near | letters)  # all other pixels are gray
    here, nearest = kind[there], kind[tuple(axis[there] for axis in place)]
    tint = np.searchsorted(np.unique(kind[drawn]), nearest)  # the color next to it, if it can be of that
    tint = np.where((away[there] <= EDGE) & (off[here, tint] < NEAR), tint, likely[here])
    share = np.where(off[here, tint] < NEAR, shares[here, tint], 1.0)  # a blend of two colors stays
    share = np.where(drawn[there] | letters[there], 1.0, share)[:, None]
    grey = ((kinds[here] - share * tints[tint]) / np.maximum(1 - share, 0.01)).clip(0, 255)
    changed = kinds[here] + (1 - share) * (dark_gray(grey) - grey)
    cells = maximum_filter(drawn & spots(kind, THICK), 2 * EDGE + 1)[there]
    for day, night in NIGHT.items():
        if day in PALETTE:  # a rank's: pixels don't distinguish its line from its narrow cell, which keeps its color
            continue
        line = (tints == rgb(day)).all(axis=1)[tint] & ~cells
        changed += np.where(line[:, None], share * (rgb(night) - rgb(day)), 0)
    found = dark_gray(kinds).round().astype(np.uint8)[kind]
    found[there] = changed.round().clip(0, 255).astype(np.uint8)
    return Image.fromarray(found)


def rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])


def dark_gray(grey: np.ndarray) -> np.ndarray:
    return BLACK_TURNED + (WHITE_TURNED - BLACK_TURNED) * grey.mean(axis=-1, keepdims=True) / 255


def blends(kinds: np.ndarray, tints: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The share of each tint in each kind of pixel, if the rest is gray; and the distance of that rest from gray."""
    hues, of = (colours - colours.mean(axis=1, keepdims=True) for colours in (kinds, tints))
    share = np.clip(hues @ of.T / (of**2).sum(axis=1), 0, 1)
    return share, np.linalg.norm(hues[:, None] - share[..., None] * of, axis=-1)


def spots(kind: np.ndarray, size: int) -> np.ndarray:
    """The pixels in squares of `size` by `size` that are all of one kind."""
    return maximum_filter(maximum_filter(kind, size) == minimum_filter(kind, size), size)


def lettered(kind: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """The pixels written on a cell: they have the same cell above, below, to the left and to the right."""
    cells, fills = np.zeros_like(kind), drawn & spots(kind, CELL)
    for tint in np.unique(kind[fills]):
        found, _ = label(fills & (kind == tint))
        large = np.bincount(found.ravel()) >= COUNTER
        cells = np.where((found > 0) & large[found], found + cells.max(), cells)
    around = [above(cells), above(cells[::-1])[::-1], above(cells.T).T, above(cells.T[::-1])[::-1].T]
    return (around[0] > 0) & np.logical_and.reduce([cell == around[0] for cell in around[1:]])


def above(cells: np.ndarray) -> np.ndarray:
    """The next cell upwards from each pixel, 0 where there is none."""
    rows = np.arange(len(cells))[:, None]
    return np.take_along_axis(cells, np.maximum.accumulate(np.where(cells > 0, rows, 0), axis=0), axis=0)
