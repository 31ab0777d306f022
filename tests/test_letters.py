"""Letters are read off the values that ranks hold, and say where a collective must stand."""

import pytest
import torch

from collectives.draw.canvas import Words
from collectives.train import letter, letters

WHOLE = torch.arange(24.0).view(4, 6)


def shared(d, n=3):
    return list(WHOLE.tensor_split(n, d))


@pytest.mark.parametrize(
    "held, of",
    [
        ([WHOLE] * 3, "R"),
        ([WHOLE * (1 + 1e-6)] * 3, "R"),
        (shared(0), "S(0)"),
        (shared(1), "S(1)"),
        (shared(0)[::-1], "?"),
        ([WHOLE / 3] * 3, "P"),
        ([WHOLE - 2, torch.ones(4, 6), torch.ones(4, 6)], "P"),
        ([WHOLE, WHOLE, WHOLE + 1], "?"),
        ([WHOLE * 3] * 3, "?"),
        ([WHOLE.flatten()] * 3, "?"),
    ],
)
def test_a_letter_is_what_the_values_are(held, of):
    assert letter(held, WHOLE) == of


def test_a_collective_stands_where_one_tensor_changes_its_letter():
    held = [{"x": WHOLE, "h": part, "z": WHOLE / 3, "y": WHOLE, "dx": WHOLE + 1, "dy": WHOLE} for part in shared(1)]
    seen = letters(held, {"x": WHOLE, "h": WHOLE, "z": WHOLE, "y": WHOLE, "dx": WHOLE, "dy": WHOLE})
    assert [seen[name] for name in ("x", "h", "z", "y", "dx", "dy")] == ["R", "S(1)", "P", "R", "?", "R"]
    assert [tuple(step) for step in seen.steps] == [("x", "h", "cut, no call"), ("z", "y", "all_reduce")]
    assert "z -> y: all_reduce" in repr(seen) and "none of these" in repr(seen)
    words = [artist.words for artist in seen.draw().get_children() if isinstance(artist, Words)]
    assert {"all_reduce", "S(1)", "dx", "rank 2"} <= set(words)


def test_gradients_go_the_other_way():
    held = [{"x": WHOLE, "f": WHOLE, "dx": WHOLE, "df": WHOLE / 3}] * 3
    seen = letters(held, {"x": WHOLE, "f": WHOLE, "dx": WHOLE, "df": WHOLE})
    assert [tuple(step) for step in seen.steps] == [("df", "dx", "all_reduce")]


def test_a_rank_that_returns_too_little_is_named():
    with pytest.raises(KeyError, match="no x on rank 1"):
        letters([{"x": WHOLE}, {}], {"x": WHOLE})
