"""Colours that mean something stay apart: for every kind of colour vision, and from the greys."""

import re
from itertools import combinations
from math import atan2, cos, degrees, exp, hypot, radians, sin, sqrt

import pytest

from collectives.algorithms.pipeline.picture import PALE
from collectives.algorithms.pipeline.picture import TINTS as ACTIONS
from collectives.cost.charts import PLACES
from collectives.cost.charts import TINTS as NCCL
from collectives.draw.canvas import AMOUNT, ANYBODYS, FAINT, IDLE, PALETTE, REDUCED, SERIES, TRAY, ink_on
from collectives.draw.palette import NIGHT
from collectives.planner.plan_charts import MEMORY, SECONDS
from collectives.train.letters import TINTS as LETTERS
from collectives.train.overlap import BARE, HIDDEN_FILL
from helpers.views.web import script

# Linear RGB as dichromats see it: Machado, Oliveira, Fernandes, "A Physiologically-based Model for Simulation of
# Color Vision Deficiency", IEEE TVCG 15 (2009), severity 1.0.
VISION = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
TO_XYZ = (  # sRGB, each divided by the white of D65
    (0.4124564 / 0.95047, 0.3575761 / 0.95047, 0.1804375 / 0.95047),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339 / 1.08883, 0.1191920 / 1.08883, 0.9503041 / 1.08883),
)


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector)) for row in matrix]


def linear(tint):
    channels = (int(tint[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def lab(tint, vision):
    seen = [min(1, max(0, c)) for c in times(VISION[vision], linear(tint))]
    x, y, z = (v ** (1 / 3) if v > 216 / 24389 else (24389 / 27 * v + 16) / 116 for v in times(TO_XYZ, seen))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def ciede2000(one, other):
    """Sharma, Wu, Dalal, "The CIEDE2000 Color-Difference Formula", Color Research and Application 30 (2005)."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    c7 = ((hypot(a1, b1) + hypot(a2, b2)) / 2) ** 7
    stretch = 1 + 0.5 * (1 - sqrt(c7 / (c7 + 25**7)))
    c1, c2 = hypot(a1 * stretch, b1), hypot(a2 * stretch, b2)
    h1, h2 = (degrees(atan2(b, a * stretch)) % 360 if a or b else 0 for a, b in ((a1, b1), (a2, b2)))
    between = (h2 - h1 + 180) % 360 - 180 if c1 and c2 else 0
    light, chroma, hue = l2 - l1, c2 - c1, 2 * sqrt(c1 * c2) * sin(radians(between / 2))
    lightness, c, h = (l1 + l2) / 2, (c1 + c2) / 2, (h1 + between / 2) % 360 if c1 and c2 else h1 + h2
    t = 1 - 0.17 * cos(radians(h - 30)) + 0.24 * cos(radians(2 * h))
    t += 0.32 * cos(radians(3 * h + 6)) - 0.2 * cos(radians(4 * h - 63))
    light /= 1 + 0.015 * (lightness - 50) ** 2 / sqrt(20 + (lightness - 50) ** 2)
    chroma, hue = chroma / (1 + 0.045 * c), hue / (1 + 0.015 * c * t)
    turn = -2 * sqrt(c**7 / (c**7 + 25**7)) * sin(radians(60 * exp(-(((h - 275) / 25) ** 2))))
    return sqrt(light**2 + chroma**2 + hue**2 + turn * chroma * hue)


def apart(one, other, vision):
    return ciede2000(lab(one, vision), lab(other, vision))


@pytest.mark.parametrize(
    "one, other, distance",  # of the table that the paper tests implementations with
    [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, -1.0, 2.0), (50, 0, 0), 2.3669),
        ((50, 2.49, -0.001), (50, -2.49, 0.0009), 7.1792),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((90.9257, -0.5406, -0.9208), (88.6381, -0.8985, -0.7239), 1.5381),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_distances_are_those_of_the_paper(one, other, distance):
    assert ciede2000(one, other) == pytest.approx(distance, abs=1e-4)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("n", range(2, 9))
def test_ranks_stay_apart(n, vision):
    for tints in (PALETTE, [NIGHT.get(tint, tint) for tint in PALETTE]):
        assert min(apart(*pair, vision) for pair in combinations(tints[:n], 2)) > 16


@pytest.mark.parametrize("vision", VISION)
def test_no_rank_looks_idle_or_like_a_buffer(vision):
    greys = (FAINT, TRAY, AMOUNT, IDLE, ANYBODYS, REDUCED, "#ffffff")
    assert min(apart(tint, grey, vision) for tint in PALETTE for grey in greys) > 10


# What is no rank: each of these colours stands beside the others of its line.
NO_RANKS = {
    "letters": [*LETTERS.values()],
    "actions of a pipeline, on a rank's first stage and on others": [*ACTIONS.values(), *PALE.values()],
    "memory": [*MEMORY.values()],
    "seconds": [*SECONDS.values()],
    "NCCL's algorithms": [*NCCL.values()],
    "groups of figures": [*PLACES.values()],
    "what travels beside computing": [HIDDEN_FILL, BARE],
}


@pytest.mark.parametrize("vision", VISION)
def test_algorithms_stay_apart(vision):
    at_night = [NIGHT.get(tint, tint) for tint in SERIES]
    for tints in (SERIES, at_night):
        assert min(apart(*pair, vision) for pair in combinations(tints, 2)) > 16
    assert min(apart(*pair, vision) for tints in NO_RANKS.values() for pair in combinations(tints, 2)) > 8


@pytest.mark.parametrize("what", NO_RANKS)
def test_what_is_no_rank_has_no_ranks_colour_and_is_not_red(what):
    wrong = re.findall(r"--no: (#\w{6})", script())
    assert len(wrong) == 2, "on a light page and on a dark one"
    assert min(apart(tint, taken, "normal") for tint in NO_RANKS[what] for taken in (*PALETTE, *wrong)) > 9


def test_an_amount_is_seen_on_white_and_in_a_tray():
    assert min(apart(AMOUNT, ground, "normal") for ground in ("#ffffff", TRAY)) > 10


def test_text_can_be_read_on_every_rank():
    for tint in PALETTE:
        light = sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear(tint)))
        assert (1.05 / (light + 0.05) if ink_on(tint) == "#ffffff" else (light + 0.05) / 0.05) > 5.2
