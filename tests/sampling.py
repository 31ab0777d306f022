"""Which of many alike each run takes: always the same ones, so that a run can be repeated."""

import pytest

PLACE = 5  # of those that each push takes; another number takes others


def when(always: bool, each_push: bool = False):
    """The marks of a test: none for `make test`, slow for `make test-all`, nightly for `make test-nightly`."""
    return () if always else pytest.mark.slow if each_push else pytest.mark.nightly


def one_in(k: int, of: int = 3):
    """The marks of the k-th of many alike of which each push tests some, and the night all."""
    return when(False, is_taken(k, of))


def is_taken(k: int, of: int = 3) -> bool:
    """Whether the k-th of many alike is tested at each push: one of `of`."""
    return (k + PLACE) % of == 0


def slow(*values) -> list:
    """Values of a parameter that `make test` leaves out."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def is_night(config) -> bool:
    """Whether this is `make test-nightly`, which leaves nothing out."""
    return "not nightly" not in config.option.markexpr


def spread(of: int = 3, **axes):
    """Every pair of two axes, of which each push takes a third: each value of either axis with several of the other.

    of: `make test` takes one of so many pairs, 3 or a multiple of it.  axes: name=(values, ids), two of them.
    """
    (first, (ones, one_ids)), (second, (others, other_ids)) = axes.items()
    return pytest.mark.parametrize(
        f"{first}, {second}",
        [
            pytest.param(
                one, other, marks=when((i + k) % of == 0, (i + k) % 3 == 0), id=f"{one_ids[i]}-{other_ids[k]}"
            )
            for i, one in enumerate(ones)
            for k, other in enumerate(others)
        ],
    )
