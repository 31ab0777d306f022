"""A picture on paper: one A4 page as PDF, whose words can be found and copied."""

from io import BytesIO

from matplotlib.text import Text
from matplotlib.transforms import Affine2D, Bbox

from .canvas import Picture, Words, font

A4 = 297 / 210
DOTS = 72  # of an inch, in a PDF
POINTS = DOTS / 100  # of a pixel


def pdf(picture: Picture) -> bytes:
    """The page; `picture` itself can't be shown any more.  No date and no version inside."""
    wide, high = (pixels / 100 for pixels in picture.pixels)  # inches
    paper_high = max(high, wide * A4)
    beside, below = (paper_high / A4 - wide) / 2, paper_high - high
    for words in picture.findobj(Words):
        x, y = words.position
        prop = font(words.bold, words.mono, words.pixels * POINTS)
        text = Text(x, y, words.words, color=words.tint, fontproperties=prop, ha=words.align, va="baseline")
        text.set(transform=words.get_transform(), zorder=words.zorder, parse_math=False)
        picture.add_artist(text)
        words.remove()
    middle = Affine2D().translate(beside * DOTS, below * DOTS)
    for artist in picture.artists:
        artist.set_transform(artist.get_transform() + middle)
    file, paper = BytesIO(), Bbox([[0, 0], [paper_high / A4, paper_high]])
    metadata = dict.fromkeys(("CreationDate", "Producer", "Creator"))
    picture.savefig(file, format="pdf", bbox_inches=paper, metadata=metadata)
    return file.getvalue()
