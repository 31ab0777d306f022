"""`predict()` on real ranks: what it shows before, how it marks, what it says about a wrong answer."""

import base64
import json
import multiprocessing
import os
import subprocess
import sys
from html import unescape

import ipywidgets
import nbformat
import pytest
import torch
import torch.distributed as dist
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

from helpers import Mismatch, RankFailed, Run, Stuck, ask, course, predict, progress
from helpers.views.predict.prediction import Prediction
from tests.corpus.predicted import (
    add_up,
    aliased,
    collect,
    deserted,
    disagree,
    exchange,
    fail,
    hot,
    impatient,
    largest,
    leftovers,
    overflowing,
    ring,
    scattered_sums,
    share_from_last,
    squares,
    two_sums,
)
from tests.kernels import LocalAsyncKernelManager

VIEW = "application/vnd.jupyter.widget-view+json"


PROGRAM = """\
import torch
import torch.distributed as dist
from helpers import explore, predict

def f():
    x = torch.tensor([dist.get_rank()])
    dist.all_reduce(x)
    return dist.get_rank() + 7

def g():
    if dist.get_rank() == 0:
        dist.barrier()
"""


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLECTIVES_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr(progress, "FILE", tmp_path / "progress.json")
    return progress.FILE


# --- before -------------------------------------------------------------------------------


def test_shows_before_and_an_empty_after_in_words():
    assert repr(predict(share_from_last, world_size=3)) == (
        "Predict. What does each rank hold after this call?  broadcast from 2, ranks 0-2, float32 [3], 12 B per rank\n"
        "  rank   before         after\n"
        "  0      0 0 0      ->  _ _ _\n"
        "  1      10 10 10   ->  _ _ _\n"
        "  2*     20 20 20   ->  _ _ _\n"
        "Without the widget: predict(..., answers=[...])"
    )


def everything_in_the_page(prediction):
    """All that a browser is sent of it, pictures aside."""
    data = list(prediction.outputs())
    assert VIEW in data[0]
    return json.dumps([data, ipywidgets.Widget.get_manager_state(drop_defaults=False)], default=str)


def test_the_answer_is_not_in_the_page_before_run(capsys):
    def secret():
        x = torch.tensor([770001 + dist.get_rank()])
        dist.all_reduce(x)
        print("all hold", x.item())
        return x

    prediction = predict(secret, world_size=2)
    before = everything_in_the_page(prediction)
    assert "770001" in before and "1540003" not in before + capsys.readouterr().out
    assert "1540003" not in json.dumps(prediction.submit([["1"], [""]])), (
        "the first stage says what is wrong, not what is right"
    )
    assert "1540003" in json.dumps(prediction.submit([["1"], [""]], show=True))
    assert "1540003" not in json.dumps(ipywidgets.Widget.get_manager_state(drop_defaults=False), default=str), (
        "it is in no model"
    )


def test_a_cell_nobody_answers_fails_nothing_and_notes_nothing(file):
    prediction = predict(deserted, ask="verdict")
    widget, still = prediction.outputs()
    assert VIEW in widget and "<img " not in still["text/html"]
    assert "<details" not in still["text/html"], "without a picture the words are there to be read"
    assert prediction.run is None and not file.exists()


# --- marks --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn, options, answers, right, said",
    [
        (share_from_last, {}, ["20 20 20", "10 10 10", "20 20 20"], "6 of 9", "what it held before: broadcast writes rank 2's"),
        (share_from_last, {}, ["30 20 20", "20 20 20", "20 20 20"], "8 of 9", "this is a sum, and broadcast adds nothing up"),
        (share_from_last, {}, ["? ? ?", "20 20 20", "20 20 20"], "6 of 9", "every rank holds what rank 2 had"),
        (add_up, {}, ["111 222", "10 20", "? undefined"], "4 of 6", "leaves every buffer but the root's undefined"),
        (add_up, {}, ["1 222", "? ?", "? ?"], "5 of 6", "rank 0: you gave the rank's own number"),
        (add_up, {}, ["110 222", "? ?", "? ?"], "5 of 6", "the sum of the others"),
        (largest, {}, [9, 4, 4], "2 of 3", "this is the sum, and the reduce op is MAX"),
        (collect, {}, ["5 25 15", "", None], "3 of 5", "in a different position: gather gives rank 0 the tensors of all ranks"),
        (collect, {}, ["5 15 25", "15", ""], "4 of 5", "rank 1: gather gives nothing more here: only rank 0 receives"),
        (scattered_sums, {}, [300, 300, 306], "2 of 3", "the sum of rank 0's chunk: rank 1 gets 1 + 101 + 201"),
        (exchange, {"rank": 1}, ["1 101 200"], "2 of 3", "that is what rank 0 gets"),
        (exchange, {"ask": "chunks", "rank": 1}, ["b0 b_1 c₂"], "2 of 3", "the r-th chunk of every rank"),
        (scattered_sums, {"ask": "chunks"}, ["sum a", "Σb", "c2"], "2 of 3", "the SUM of all ranks' r-th chunks"),
        (impatient, {"call": 0, "rank": 0}, ["21 5"], None, "no rank waited for this call"),
        (hot, {}, [5, 5, 5], "0 of 3", "rank 1 held this, but it does not come here"),
        (aliased, {"rank": 0, "check": False}, ["0 1 2"], "1 of 3", "something is wrong with what it is given"),
        (two_sums, {"ask": "returned", "rank": 0}, ["3 30"], "1 of 2", "it is 100 + 101 + 102"),
        (overflowing, {}, [600, 88, 88], "2 of 3", "rank 0: all_reduce leaves the SUM over all ranks on every rank."),
        (leftovers, {"ask": "returned", "rank": 1}, [2], None, "promises nothing to any rank but 0: this is what"),
        (ring, {}, [20, 0, 20], "2 of 3", "that is what rank 0 returns"),
        (squares, {"rank": (0, 2)}, {0: 0, 2: 4}, "All 2 right", ""),
        (deserted, {"ask": "after"}, ["never never"], "All 2 right", "Stuck: rank 0 is waiting in broadcast #1"),
        (deserted, {"ask": "after"}, ["0 0"], "0 of 2", "never completed here"),
    ],
)  # fmt: skip
def test_marks_each_cell_and_says_why(fn, options, answers, right, said):
    text = repr(predict(fn, answers=answers, world_size=3, **options))
    assert said in text
    assert right is None or f"\n{right}" in text


@pytest.mark.parametrize(
    "words, value, same",
    [
        ("1110", 1111.0, False), ("1111.0", 1111.0, True), ("0.333", 1 / 3, True), ("1/3", 1 / 3, True),
        ("0.3", 1 / 3, False), ("inf", float("inf"), True), ("NaN", float("nan"), True), ("nan", 1.0, False),
        ("1e6", 1000000, True), ("true", True, True), ("T", True, False), ("7 ", 7, True), ("seven", 7, False),
    ],
)  # fmt: skip
def test_reads_numbers_as_people_write_them(words, value, same):
    prediction = predict(
        lambda: value, ask="What is it?", answer=lambda run: run.results[0], world_size=1, answers=words
    )
    assert (prediction.right == 1) is same


def test_what_is_no_number_is_not_wrong():
    prediction = predict(largest, world_size=3, answers=[["−1"], ["1,5"], ["4"]])
    assert [mark.right for (mark,) in prediction.result.marks] == [False, None, True]
    assert "1 of 3 right. '1,5' isn't a number. Fractions have a point: 2.5." in repr(prediction)
    asked = predict(lambda: 7, ask="What is it?", answer=lambda run: run.results[0], world_size=1, answers="seven")
    assert asked.result.marks[0][0].right is None and "'seven' isn't a number." in repr(asked)
    nobody = predict(lambda: 7, ask="Which ranks?", answer=lambda run: [], world_size=1, answers="none")
    assert nobody.right == 1


def test_the_form_marks_in_two_stages():
    prediction = predict(share_from_last, world_size=2)
    first = prediction.submit([["10", "10", "10"], ["10 10 0", "", ""]])  # a whole row in its first cell
    assert (prediction.right, prediction.of) == (5, 6)
    assert first["marks"] == [[True] * 3, [True, True, False]] and first["summary"] == "5 of 6 right."
    assert "rank 0 held this, but it does not come here" in first["reasons"][0]
    assert not {"wants", "after"} & set(first), "the answer comes on the second stage only"
    shown = prediction.submit([["10", "10", "10"], ["10", "10", "0"]], show=True)
    assert shown["wants"] == [["10"] * 3] * 2 and shown["after"]["text"].startswith("[0] I hold")
    assert shown["after"]["picture"]["src"].startswith("data:image/svg+xml;base64,")
    right = prediction.submit([["10"] * 3] * 2)
    assert right["right"] and right["summary"] == "All 6 right." and right["wants"] == [["10"] * 3] * 2


def test_shown_without_an_answer_nothing_is_noted(file):
    prediction = predict(share_from_last, world_size=2)
    prediction.submit([[""] * 3] * 2, show=True)
    assert prediction.run.results[0].tolist() == [10, 10, 10]
    assert prediction.right == 0 and "Nothing was predicted" in repr(prediction)
    assert not file.exists()


def test_of_a_call_that_is_named_only_that_one_is_shown():
    def in_turn():
        for k in (1, 10, 100):
            dist.all_reduce(torch.full((1,), k * (1 + dist.get_rank())))

    prediction = predict(in_turn, call=1, world_size=2)
    assert "hold after call 2 of 3?  all_reduce" in repr(prediction)
    picture, words = prediction.unattended()
    assert "20      ->  30" in words and "300" not in words and "call 2 of 3" in words.splitlines()[0]
    assert picture.alt.count("all_reduce") == 1 and "30" in key_of(prediction)[1]["after"]["text"]
    assert "300" not in prediction.submit([["30"]] * 2)["after"]["text"]


def key_of(prediction):
    prediction.unattended()
    recording = prediction.recording()
    return recording, json.loads(base64.b64decode(recording["key"]))


def test_a_recording_has_its_answer_in_the_encoded_key_alone():
    def secret():
        x = torch.tensor([770001 + dist.get_rank()])
        dist.all_reduce(x)

    recording, key = key_of(predict(secret, world_size=2))
    assert "770001" in json.dumps(recording) and "1540003" not in json.dumps(recording)
    assert [[want["value"] for want in row] for row in key["wants"]] == [[1540003]] * 2
    own = key["why"][key["reasons"]["0 0"]["770001"][0]]
    assert own.startswith("you gave the rank's own number; all_reduce takes the SUM")
    assert "1540003" in key["after"]["text"] and len(json.dumps(recording)) < 5000


def test_one_story_explains_a_whole_answer_here_and_on_a_page():
    def halves():
        x = torch.arange(1, 5) + 4 * dist.get_rank()
        mine = torch.zeros(2, dtype=torch.int64)
        dist.reduce_scatter_single(mine, x)

    said = repr(predict(halves, world_size=2, answers=["10 12", "6 8"]))  # each has the other's; 8 is rank 1's own, too
    assert "the sum of rank 1's chunk" in said and "the sum of rank 0's chunk" in said and "own number" not in said
    _, key = key_of(predict(halves, world_size=2))
    kinds = [{key["kinds"][at] for at in key["reasons"][cell][number]} for cell, number in (("1 0", "6"), ("1 1", "8"))]
    assert "another chunk" in kinds[0] & kinds[1] and "own" in kinds[1] - kinds[0]


def test_a_wrong_choice_has_a_reason():
    recording, key = key_of(predict(deserted, ask="verdict", world_size=2))
    stuck, *_ = [option for option in recording["options"] if "Stuck" in option]
    assert key["wants"][0][0]["text"] == stuck and key["reasons"].pop(stuck) == ""
    assert all("rank 0 is waiting in broadcast" in reason for reason in key["reasons"].values()) and len(key["reasons"]) == 3
    asked = dict(choices=["yes", "no"], answer=lambda run: "yes", world_size=2)
    told = predict(squares, because={"no": "Two squared is four."}, answers="no", **asked)
    assert "Two squared is four." in repr(told)
    with pytest.raises(ValueError, match="not one of the choices"):
        predict(squares, because={"maybe": "?"}, **asked)


# --- other questions ----------------------------------------------------------------------

ENDS = {"an error": RankFailed, "a hang": Stuck, "they disagree": Mismatch, "a result": Run}


@pytest.mark.parametrize("fn, end", list(zip((fail, deserted, disagree, squares), ENDS)))
def test_a_program_that_ends_badly_is_an_answer(fn, end):
    prediction = predict(fn, ask="What happens?", choices=ENDS, world_size=2)
    prediction.submit([[end]])
    assert prediction.right == 1 and isinstance(prediction.run, ENDS[end])
    assert f"✓ {list(ENDS).index(end) + 1}  {end}" in repr(prediction)
    wrong = predict(fn, ask="verdict", answers=3 if end != "they disagree" else 1, world_size=2)
    assert wrong.right == 0 and "Not so." in repr(wrong)


@pytest.mark.parametrize("words, right", [("one, then four", 1), ("four", 0), ("none of them", 0)])
def test_a_value_that_is_known_is_asked_for_without_ranks(words, right):
    choices = {"four": [4, 4], "one, then four": [1, 4], "none of them": lambda counts: 0 in counts}
    prediction = ask("How many in a step?", choices, was=[1, 4])
    assert "[1, 4]" not in repr(prediction)
    assert prediction.answer(words).right == right
    assert repr(prediction).endswith("It is [1, 4].") and "✓ 2  one, then four" in repr(prediction)


@pytest.mark.parametrize(
    "choices, was, right",
    [
        ({"ten": 10, "a thousand": 1000}, 90, "ten"), ({"ten": 10, "a thousand": 1000}, 110, "a thousand"),
        ({"none": 0, "ten": 10}, 4, "none"), ([1, 3, 9], 8.7, "9"), ([1, 3, 9], 3, "3"),
        ({"ten": 10, "any more": lambda n: n > 10}, 11, "any more"),
        (min, {"ring": 3, "tree": 2}, "tree"), (max, {"ring": 3, "tree": 2}, "ring"),
    ],
)  # fmt: skip
def test_the_nearest_number_is_right_or_the_key_of_the_least(choices, was, right):
    prediction = ask("How many?", choices, was=was).answer(right)
    assert prediction.right == 1 and len(prediction.question.options) == len(was if choices in (min, max) else choices)
    assert repr(prediction).endswith("ring: 3\ntree: 2" if isinstance(was, dict) else f"It is {was}.")


@pytest.mark.parametrize("choices, was", [({"one": 1}, [1, 1]), ({"yes": True}, 2), (["a"], "b")])
def test_a_value_that_fits_no_choice_is_refused(choices, was):
    with pytest.raises(ValueError, match="not one of the choices"):
        ask("How many?", choices, was=was).answer(1)


def test_a_question_without_an_answer_is_about_what_rank_0_returns():
    assert predict(squares, ask="How many?", world_size=2, answers="0").right == 1
    assert predict(squares, ask="How many?", choices=[3, 0], world_size=2, answers="0").right == 1
    found = predict(deserted, choices={"5": 5, "it hangs": Stuck}, world_size=2, answers="it")
    assert found.right == 1


def test_choices_with_a_function_that_answers():
    def right(run):
        return "yes" if run.results == [0, 1] else "no"

    assert predict(squares, choices=["yes", "no"], answer=right, world_size=2, answers="yes").right == 1
    assert predict(squares, choices=["yes", "no"], answer=right, world_size=2, answers="n").right == 0
    with pytest.raises(ValueError, match="not one of the choices"):
        predict(squares, choices=["yes", "no"], answer=right, world_size=2, answers="maybe")


@pytest.mark.parametrize(
    "ask, answer, answers, right",
    [
        ("waits", None, "0", 1), ("waits", None, "rank 0", 1), ("waits", None, [0, 1], 0), ("waits", None, "none", 0),
        ("How many calls did rank 0 make?", lambda error: len(error.run.events[0]), 1, 1),
        ("On which line?", lambda error: error.run.events[0][0].line.function, "deserted", 1),
    ],
)  # fmt: skip
def test_questions_whose_answer_is_no_tensor(ask, answer, answers, right):
    assert predict(deserted, ask=ask, answer=answer, answers=answers, world_size=2).right == right


def test_who_waits_when_nobody_does():
    assert predict(squares, ask="waits", world_size=2, answers="none").right == 1


# --- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, options, kind, said",
    [
        (("share",), {}, TypeError, "needs a function"),
        ((squares,), {"world_size": 0}, ValueError, "world_size"),
        ((squares,), {"ask": "retruned"}, ValueError, "has no answer"),
        ((squares,), {"ask": "after"}, IndexError, "no call"),
        ((share_from_last,), {"rank": 7}, ValueError, "no part in this call"),
        ((share_from_last,), {"answers": ["1 1 1"]}, ValueError, "1 rows, and 4 ranks"),
        ((lambda: dist.all_reduce(torch.zeros(100)),), {}, ValueError, "too many to fill in"),
    ],
)  # fmt: skip
def test_says_what_is_wrong_with_a_question(arguments, options, kind, said):
    with pytest.raises(kind, match=said):
        predict(*arguments, **options)


# --- without a browser --------------------------------------------------------------------


def test_works_without_anywidget(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "collectives.figures.web.widget", raising=False)
    prediction = predict(share_from_last, world_size=2)
    (still,) = prediction.outputs()
    assert still["text/plain"] == repr(prediction) and "<img " in still["text/html"]
    assert "<details" in still["text/html"]
    assert prediction.answer(["10 10 10", "10 10 10"]).right == 6


@pytest.mark.slow
def test_a_program_that_executes_the_notebook_is_not_asked(file):
    asked = [
        "predict(f, world_size=2)",
        'predict(f, ask="returned", world_size=2)',
        'predict(g, ask="verdict", world_size=2)',
        "explore()",
    ]
    cells = [nbformat.v4.new_code_cell(source) for source in [PROGRAM, *asked]]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=60, kernel_manager_class=LocalAsyncKernelManager).execute()
    for cell in notebook.cells[1:4]:
        (output,) = cell.outputs  # the question, and its answer folded
        asked, fold, answer = output.data["text/html"].partition("<details><summary>The answer</summary>")
        assert set(output.data) == {"text/plain", "text/html"} and fold
        question, _, inputs = unescape(asked).partition(
            "<pre"
        )  # the ranks' tensors before the call, to be seen unopened
        assert question == output.data["text/plain"].splitlines(keepends=True)[0]
        assert not inputs or inputs.endswith("</pre>") and "rank" in inputs
        assert "<img src=" in answer and "<pre" in answer and answer.endswith("</pre></details>")
    picture, words = notebook.cells[4].outputs
    assert "image/png" in picture.data and set(words.data) == {"text/plain", "text/html"}
    after, returned, verdict = [cell.outputs[0].data["text/plain"] for cell in notebook.cells[1:4]]
    assert after.startswith("What does each rank hold after this call?") and "0      0       ->  1" in after
    assert returned.startswith("What does f return on each rank?") and returned.endswith("0   7\n     1   8")
    assert verdict.startswith("How does it end?\n  some ranks wait forever (Stuck)\n\nStuck: rank 0")
    assert not file.exists()


def test_importing_helpers_stays_light():
    code = (
        "import sys, helpers\n"
        "assert not {'anywidget', 'ipywidgets', 'matplotlib'} & set(sys.modules)\n"
        "import helpers.views.predict.prediction\n"
        "from helpers import predict, explore\n"
        "assert callable(predict) and callable(explore) and 'ipywidgets' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- progress -----------------------------------------------------------------------------


def test_predictions_are_noted_beside_the_exercises(file):
    progress.remember("02_distributed_mean", 2, 3)
    predict(squares, world_size=2, answers=[0, 5])
    predict(squares, world_size=2, answers=[0, 1])
    (record,) = progress.predictions().values()
    assert record == {"first": 1, "best": 2, "of": 2, "tries": 2}
    assert progress.recall() == {"02_distributed_mean": {"points": 2, "best": 2, "of": 3, "tries": 0}}
    assert repr(progress.progress()).endswith("1 predictions made, 0 right on the first try")
    progress.forget()
    assert progress.recall() == progress.predictions() == {}


@pytest.mark.slow
def test_a_chapter_is_followed_where_somebody_works_in_it(file, tmp_path):
    """As JupyterLab runs it: cells with ids, and somebody who could answer."""
    chapter = nbformat.read(course.NOTEBOOKS / "01_ranks.ipynb", 4)
    ids = [cell.id for cell in chapter.cells if cell.cell_type == "code"]
    manager, client = start_new_kernel(env={**os.environ, "JPY_SESSION_NAME": str(tmp_path / "01_ranks.ipynb")})
    try:
        for cell, source in zip(ids, ["from helpers import predict", "f = lambda: 7", "1 + 1"]):
            said = client.session.msg("execute_request", {"code": source, "silent": False, "allow_stdin": True})
            said["metadata"] = {"cellId": cell}
            client.shell_channel.send(said)
            while (reply := client.get_shell_msg(timeout=60))["parent_header"].get("msg_id") != said["msg_id"]:
                pass  # an answer to what was asked when the kernel started
            assert reply["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert progress.cells_run() == {"01_ranks": sorted(ids[:3])}
    lines = [line.split(maxsplit=1) for line in repr(progress.progress()).splitlines()]
    assert ["01_ranks", f"3 of {len(ids)} cells run"] in lines
    progress.forget()
    lines = [line.split(maxsplit=1) for line in repr(progress.progress()).splitlines()]
    assert ["01_ranks", "not begun"] in lines


def test_a_file_that_cannot_be_read_is_kept(file):
    file.write_text('{"02_distributed_mean": {"po')
    predict(squares, world_size=2, answers=[0, 1])
    assert len(progress.predictions()) == 1
    assert file.with_name("progress.json.unreadable").read_text() == '{"02_distributed_mean": {"po'


def note(file, name):
    for k in range(20):
        progress.predicted(name, str(k), 1, 1, file)


@pytest.mark.slow
def test_two_notebooks_at_once_lose_nothing(file):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=note, args=(file, name)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert len(progress.predictions(file)) == 40


def test_a_folder_that_cannot_be_written_is_no_hindrance(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "FILE", tmp_path / "gone" / "progress.json")
    assert isinstance(predict(squares, world_size=2, answers=[0, 1]), Prediction)
