"""A page marks a prediction from its recording as a kernel marks it from a run: the same marks, the same reasons."""

import pytest

from collectives.figures import web
from helpers import predict
from helpers.views.predict.recording import reply
from helpers.views.web import FOLDER, PREDICT
from tests.corpus.predicted import (
    add_up,
    collect,
    deserted,
    exchange,
    hot,
    largest,
    leftovers,
    scattered_sums,
    share_from_last,
    squares,
    two_sums,
)  # fmt: skip

FILLED = [
    (share_from_last, {}, [["20 20 20", "", ""], ["10", "10", "10"], ["20", "20", "30"]]),
    (share_from_last, {}, [["20", "2e1", "20.0"], ["?", "none", "never"], ["", "60/3", "inf"]]),
    (add_up, {}, [["1", "222"], ["?", "undefined"], ["100", "?"]]),
    (add_up, {}, [["110", "222.0"], ["111", "10"], ["-", ""]]),
    (largest, {}, [["9"], ["4"], ["x"]]),
    (largest, {}, [["−9"], ["2,5"], ["9"]]),
    (largest, {}, [["hello"], [""], [""]]),
    (collect, {}, [["5", "25", "15"], ["15", "", ""], ["", "", ""]]),
    (scattered_sums, {}, [["300"], ["300"], ["306"]]),
    (scattered_sums, {"ask": "chunks"}, [["sum a"], ["Σb"], ["c2"]]),
    (exchange, {"ask": "chunks"}, [["a0", "a_1", "a₂"], ["b0", "b_1", "c₂"], ["", "c1", "c 2"]]),
    (exchange, {}, [["0", "100", "200"], ["1", "101", "200"], ["2", "102", "202"]]),
    (hot, {}, [["5"], ["5"], ["5"]]),
    (two_sums, {"ask": "returned"}, [["3", "30"], ["303", "33"], ["", ""]]),
    (leftovers, {"ask": "returned"}, [["3"], ["2"], ["1"]]),
    (squares, {"ask": "returned"}, [["0"], ["2"], ["4"]]),
    (deserted, {"ask": "waits"}, [["rank 0"]]),
    (deserted, {"ask": "waits"}, [["0 and 1"]]),
    (deserted, {"ask": "waits"}, [["none"]]),
    (deserted, {"ask": "waits"}, [["hello"]]),
    (deserted, {"ask": "verdict"}, [["it finishes"]]),
    (deserted, {"ask": "verdict"}, [["some ranks wait forever (Stuck)"]]),
]


@pytest.fixture(scope="module")
def page(chrome):
    page = chrome.new_page()
    page.add_script_tag(content=web.join_modules(web.FOLDER / "base.js", PREDICT, FOLDER / "recorded.js"))
    yield page
    page.close()


@pytest.mark.parametrize("fn, options, filled", FILLED)
def test_a_page_marks_as_a_kernel_does(page, fn, options, filled):
    prediction = predict(fn, world_size=3, **options)
    prediction.unattended()
    there = page.evaluate(
        "([data, filled]) => markerOf(data)({ filled, show: false })", [prediction.recording(), filled]
    )
    prediction.filled = filled
    here = reply(prediction.mark(), prediction.question, False)
    assert there["summary"] == here["summary"] and there["right"] == here["right"]
    assert sorted(there["reasons"]) == sorted(here["reasons"])
    for mine, theirs in zip(here["marks"], there["marks"], strict=True):
        assert [mark is True for mark in mine] == [mark is True for mark in theirs[: len(mine)]]
