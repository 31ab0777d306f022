"""Letters are read off the values that ranks hold, and say where a collective must stand."""

import re

import pytest
import torch
import torch.distributed as dist

from collectives import Stuck, run
from collectives.draw.canvas import Words
from collectives.log.collectives import COLLECTIVES
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


def held(shape, slots):
    """A rank's tensor: slots are rows."""
    return slots[None] if shape == "own" else torch.stack(slots) if shape == "all" else slots


@pytest.mark.parametrize("row", [row for row in COLLECTIVES.values() if row.gives], ids=lambda row: row.op)
def test_a_collective_takes_one_tensor_from_the_letter_before_to_the_letter_after(row):
    n, (before, after) = 3, row.letters
    given = row.given(n, lambda rank, slot: torch.randn(2))
    got = [row.result(given, me, 0, lambda parts: sum(map(torch.as_tensor, parts))) for me in range(n)]
    given = [held(row.gives, slots) for slots in given]
    got = [slots if slots is None else held(row.gets, slots) for slots in got]
    if row.personal:  # the tensor is the table whose row r is what rank r passes in
        given, got = [t[None] for t in given], [t[:, None] for t in got]
    whole = {"P": sum, "S": torch.cat, "": lambda tensors: tensors[0]}[before[:1]](given)
    assert not before or letter(given, whole)[: len(before)] == before
    if after:
        assert letter(got, whole)[: len(after)] == after
    else:
        assert torch.allclose(got[0], whole) and got[1:] == [None] * (n - 1)


def change():
    rank = dist.get_rank()
    dist.all_reduce(torch.tensor([rank + 1.0]), op=dist.ReduceOp.MAX)
    dist.broadcast(torch.zeros(1), src=0)
    if rank:
        dist.all_reduce(torch.ones(1))


def test_a_runs_pictures_have_letters_if_asked_and_only_of_what_the_call_left():
    with pytest.raises(Stuck) as caught:
        run(change, world_size=2, pretend=True)
    done = caught.value.run
    picture = done.draw(letters=True)
    words = [artist.words for artist in picture.get_children() if isinstance(artist, Words)]
    assert [word for word in words if word[0] in "RSP" and word[1:2] in ("", "(")] == ["P(max)", "R", "R", "P"]
    heads = [re.split(r"\s{2,}", line)[2:] for line in picture.text.splitlines() if line.startswith("  rank")]
    assert heads == [["before: P(max)", "after: R"], ["before", "after: R"], ["before: P", "after"]]
    assert picture.text == done.table(letters=True) and picture.alt.endswith("before: P and after")
    assert "P(max)" not in done.table() + done.draw().text + done.draw().alt
