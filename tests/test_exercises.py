"""Right answers pass, each mistake fails with the words it deserves, and exercises/ is what solutions/ says."""

import ast
import json
import os
import re
import threading
from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import product

import nbformat
import pytest
import torch
import torch.distributed as dist

from collectives import algorithms as schedule
from helpers import RankFailed, course, run
from helpers.exercise import CheckFailed, check_budget, check_cells, check_practice, check_values, notebook
from helpers.exercise.cases import WORLD_SIZES, Case
from helpers.exercise.feedback import explain, in_words
from helpers.exercise.judgment import judge
from helpers.exercise.on_rank import File, perform
from helpers.exercise.task import Attempt, Finding, Puzzle
from helpers.exercise.tasks import EXERCISES, PRACTICE, TASKS, module
from helpers.exercise.trial import attempts_of
from helpers.progress import Progress
from tests.corpus import (  # noqa: F401 (four add to practice)
    answers,
    incidents,
    practice,
    practice_large,
    practice_middle,
    practice_small,
    puzzle_lines,
    puzzles,
)
from tests.corpus.cells import RIGHT as RIGHT_MEAN
from tests.kernels import SETUP, kernels
from tests.sampling import is_taken, is_night, spread, when
from tools import release

QUICK_SIZES = (3, 8, 1)
beat, within_memory = module("09_beat_the_schedule"), module("14_within_memory")
CALLS = [
    notebook.CHECK.match(cell.source).groups()
    for path in sorted(course.SOLUTIONS.glob("*.ipynb"))
    for cell in nbformat.read(path, as_version=4).cells
    if notebook.is_check(cell)
]
AT_EACH_PUSH = {"forty_barriers", "into_the_input"}  # each the shortest that is wrong in its way
QUICK_PRACTICE = [tasks[0].name for tasks in list(PRACTICE.values())[::3]]
RIGHT = answers.RIGHT | puzzles.RIGHT | incidents.RIGHT | practice.RIGHT
WRONG = answers.WRONG | puzzles.WRONG | incidents.WRONG | practice.WRONG


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """On a busy machine an answer takes longer than a learner would wait."""
    monkeypatch.setattr("helpers.exercise.check_cells.TIMEOUT_SECONDS", 120.0)


@pytest.fixture
def few_sizes(monkeypatch, request):
    """Right answers that run by themselves are tried at three world sizes by day, the smallest last as in a check."""
    if not is_night(request.config):
        monkeypatch.setattr(check_cells, "WORLD_SIZES", tuple(n for n in WORLD_SIZES if n in QUICK_SIZES))


def cases(table, answer_of):
    """Each task's first answer by `make test`, an eighth of the others at each push, all at night.

    Of every third chapter's short tasks, `make test` takes the first, and each push a third; a short task's own answer,
    the one folded in its chapter, is judged below. The sandbox judges others (test_score.py): both go through the same
    judge.
    """
    later = {task.name for tasks in PRACTICE.values() for task in tasks} - set(QUICK_PRACTICE)
    return [
        pytest.param(
            name,
            entry,
            marks=when(
                k == 0 and not (table is RIGHT and name in practice.RIGHT) and name not in later,
                k == 0 and (name not in later or is_taken(at)) or is_taken(k, 8) or answer_of(entry).__name__ in AT_EACH_PUSH,
            ),
            id=f"{name}-{answer_of(entry).__name__}",
        )
        for at, (name, entries) in enumerate(table.items())
        for k, entry in enumerate(entries)
    ]


def named(answer, name):
    def renamed(*args):
        return answer(*args)

    renamed.__name__ = name
    return renamed


def in_one_run(functions):
    """By function, each named as its task: by world size, what it does in all of its cases.

    There is one run of a world size for all of them: to start ranks takes longer than most answers. By day there are
    three sizes (few_sizes).
    """

    def each(k, *arguments):
        return functions[k](*arguments)

    came = [{} for _ in functions]
    for world_size in check_cells.WORLD_SIZES:
        tried = [
            (k, case)
            for k, function in enumerate(functions)
            for case in TASKS[function.__name__].cases
            if case.world_size == world_size
        ]
        if not tried:
            continue
        inputs = [[(k, *own) for own in TASKS[functions[k].__name__].arguments(case)] for k, case in tried]
        done = run(perform, each, [case.late for _, case in tried], inputs, world_size=world_size, timeout=120)
        for (k, _), attempt in zip(tried, attempts_of(done, len(tried)), strict=True):
            own = [arguments[1:] for arguments in attempt.arguments]
            came[k].setdefault(world_size, []).append(replace(attempt, arguments=own))
    return came


TOGETHER = defaultdict(list)  # by mark, the right answers that one run tries
for parameters in cases(RIGHT, lambda answer: answer):
    if parameters.marks:
        TOGETHER[parameters.marks[0].name].append(parameters.values)


@cache
def together(kind):
    of = TOGETHER[kind]
    return dict(zip(of, in_one_run([named(answer, name) for name, answer in of])))


@pytest.mark.parametrize("name, answer", cases(RIGHT, lambda answer: answer))
def test_a_right_answer_passes(name, answer, capsys, monkeypatch, few_sizes):
    """A task's first answer runs by itself, as a learner's does, and the others in one run with those of its kind."""
    function = named(answer, name)
    for kind in ("slow", "nightly"):
        if (name, answer) in TOGETHER[kind]:
            monkeypatch.setattr(
                check_cells, "_last_attempts", {check_cells._key(function): together(kind)[name, answer]}
            )
    check_budget(function)
    said = capsys.readouterr()
    last = rf"in {len(TASKS[name].cases)} cases?\." if isinstance(TASKS[name], Puzzle) else "With (8|16) ranks"
    assert said.out.startswith("Right") and re.search(last, said.out) and not said.err


@pytest.mark.parametrize("name, entry", cases(WRONG, lambda entry: entry[0]))
def test_a_mistake_fails_and_is_told_why(name, entry, monkeypatch):
    answer, words = entry
    monkeypatch.setattr("helpers.exercise.check_cells.TIMEOUT_SECONDS", 20.0)  # some mistakes end by it alone
    with pytest.raises(CheckFailed) as caught:
        check_budget(named(answer, name))
    assert re.search(words, str(caught.value)), str(caught.value)


def test_there_are_enough_mistakes_for_every_task():
    assert set(RIGHT) == set(WRONG) == set(TASKS)
    single = {task.name for task in EXERCISES["07_choose_the_collective"]}
    short = {task.name for tasks in PRACTICE.values() for task in tasks}
    nights = {task.name for task in EXERCISES["19_which_node"]}
    assert all(len(WRONG[name]) >= 6 for name in set(TASKS) - single - nights - short)
    assert all(len(WRONG[name]) >= 3 for name in nights | short)
    assert sum(len(WRONG[name]) for name in single) >= 6


@pytest.mark.slow
def test_an_unchunked_ring_has_its_values_right():
    wrong, _ = next(entry for entry in WRONG["ring_all_reduce"] if entry[0].__name__ == "unchunked")
    check_values(named(wrong, "ring_all_reduce"))


def test_an_answer_that_was_wrong_once_is_judged_anew(tmp_path, few_sizes):
    late = tmp_path / "late"

    def distributed_mean(x):
        if late.exists():
            raise RuntimeError("late")
        total = x.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()

    late.touch()
    with pytest.raises(CheckFailed):
        check_values(distributed_mean)
    late.unlink()
    with pytest.raises(CheckFailed, match="its budget wasn't checked"):
        check_budget(distributed_mean)
    check_values(distributed_mean)
    check_budget(distributed_mean)


def test_the_budget_is_judged_on_the_runs_whose_values_were_right(tmp_path, few_sizes):
    calls = tmp_path / "calls"

    def sums(divide):
        def distributed_mean(x):
            with calls.open("a") as file:
                file.write("+")
            mean = x.clone() if x.is_floating_point() else x.float()
            torch.distributed.all_reduce(mean)
            return divide(mean)

        return distributed_mean

    def ran(check, answer):
        calls.write_text("")
        check(answer)
        return len(calls.read_text())

    right, other = (sums(lambda sum, k=k: k * sum / torch.distributed.get_world_size()) for k in (1, 2))
    once = ran(check_values, right)
    assert once > 0
    assert ran(check_budget, right) == 0
    assert ran(check_budget, right) == once  # asked for by itself, it runs by itself
    check_values(right)
    with pytest.raises(CheckFailed, match="differ"):  # what it uses has changed since
        check_budget(other)
    assert ran(check_budget, right) == once


def test_only_what_cannot_travel_counts_as_another_answer():
    class Full:
        def __reduce__(self):
            raise MemoryError

    def using(value):
        return named(lambda x: (x, value), "distributed_mean")

    with pytest.raises(TypeError, match="cannot travel"):
        check_budget(using(threading.Lock()))
    with pytest.raises(MemoryError):
        check_budget(using(Full()))


def test_no_built_in_schedule_is_an_answer():
    for made in (
        schedule.ring_all_reduce, schedule.tree_all_reduce, schedule.doubling_all_reduce, schedule.naive_all_reduce,
        schedule.rabenseifner_all_reduce, schedule.double_tree_all_reduce,
    ):  # fmt: skip
        assert beat.too_slow(made(16), 4)
    assert beat.too_slow(schedule.hierarchical_all_reduce(16, 4), 4)
    assert beat.too_slow(schedule.multi_ring_all_reduce(16, 4), 4)


@pytest.mark.parametrize(
    "lie, words",
    [
        (("all_reduce", 4, 2**40, 1, torch.zeros(0, 6, dtype=torch.int64)), "too many"),
        (("all_reduce", 4, 4, 10**9, torch.zeros(0, 6, dtype=torch.int64)), "too many"),
        (("all_reduce", 4, 4, 1, torch.tensor([[-1, 0, 0, 1, 1, 0]])), "no step -1"),
        (("all_reduce", 4, 4, 1, torch.tensor([[0, 0, 0, 99, 1, 0]])), "no rank 99"),
        (("all_reduce", 4, 4, 1, torch.zeros(3)), "must return a Schedule"),
        (("broadcast", 4, 4, 1, torch.zeros(0, 6, dtype=torch.int64)), "of broadcast"),
    ],
)
def test_a_schedule_in_numbers_is_not_believed(lie, words):
    with pytest.raises(ValueError, match=words):
        beat.schedule_of(lie, 4)


@pytest.mark.parametrize(
    "lie, words",
    [
        ([["F0"], ["F99999999999999999999"]], "microbatches are 0 to 1"),
        ([["F0"], ["F0"] * 1000], "6 are possible at most"),
        ([["F0"], "F0"], "a list of lists"),
        ([["F0"], ["0F0"]], "rank 1 holds stage 1 alone"),
        ([["F0"], [None]], "None is not an action"),
        ([["F0"], []], "rank 1 has nothing to do"),
    ],
)
def test_an_order_is_not_believed(lie, words):
    with pytest.raises(ValueError, match=words):
        within_memory.pipeline_of(lie, 2, 2)


ODD = [
    None, True, 2**63, 10**400, float("nan"), -float("inf"), "text", b"x", [], (), (1, 2, 3), [[1, [2]]], {"a": 1}, object(),
    torch.tensor(3.0), torch.zeros(0), torch.ones(2, 2), torch.ones(3) * float("nan"), torch.ones(3, dtype=torch.complex64),
    torch.ones(3, dtype=torch.bool), torch.ones(1000), [torch.ones(2)] * 2, torch.ones(3).to_sparse(), [torch.ones(3).to_sparse()],
]  # fmt: skip


@spread(of=6, name=(list(TASKS), list(TASKS)), odds=([ODD[k::3] for k in range(3)], range(3)))
def test_whatever_an_answer_returns_it_gets_a_verdict_in_words(name, odds):
    task = TASKS[name]
    for case in {case.world_size: case for case in task.cases if case.world_size in (1, 3)}.values():
        given, n = task.arguments(case), case.world_size
        puzzle = isinstance(task, Puzzle)
        right = [None] if puzzle else task.reference(given)
        after = given if puzzle or task.after is None else task.after(given)
        for odd in odds:
            results = [[odd] * n, [*right[:-1], odd]]
            if isinstance(right[0], tuple):
                results += [[(*r[:k], odd, *r[k + 1 :]) for r in right] for k in range(len(right[0]))]
            attempts = [Attempt(came, after, [[] for _ in range(n)]) for came in results]
            attempts.append(Attempt(right, [tuple(odd for _ in mine) for mine in given], [[] for _ in range(n)]))
            for attempt in attempts:
                if verdict := judge(task, case, given, attempt, budget=False):
                    assert explain(task, case, given, verdict).startswith(name)


@pytest.mark.slow
def test_every_task_is_complete():
    assert release.problems() == []


MEAN = TASKS["distributed_mean"]


@pytest.mark.parametrize(
    "value", [(torch.ones(40, 40),) * 3, {"w": torch.ones(40, 40)}, ([torch.ones(40, 40).to_sparse()], "x" * 9000)]
)
def test_what_holds_large_tensors_is_told_in_a_line(value):
    told = in_words(value)
    assert "\n" not in told and len(told) < 500


@pytest.mark.parametrize(
    "files, words",
    [
        ({}, "exercises/tasks/02_distributed_mean.py is missing: solutions/02_distributed_mean.ipynb needs it."),
        ({"00_none": MEAN}, "solutions/00_none.ipynb is missing: exercises/tasks/00_none.py needs it."),
        ({"02_distributed_mean": MEAN, "00_none": MEAN}, "distributed_mean: 2 tasks have this name"),
        ({"02_distributed_mean": replace(MEAN, name="sum")}, "no answer cell of solutions/02_distributed_mean.ipynb"),
        ({"": replace(MEAN, cases=MEAN.cases[:2])}, "no case has world size 3, 4, 5, 6, 7, 8, 1"),
        ({"": replace(MEAN, cases=(*MEAN.cases, Case(9)))}, "has world size 9, and answers are tried at"),
        ({"": replace(MEAN, reference=lambda args: [None])}, "1 results are wanted of 8 ranks"),
        ({"": replace(MEAN, draw=lambda d: d.nothing)}, "with world size 2 fails: AttributeError"),
        ({"": replace(MEAN, thoughts={"send": "..."})}, "nothing that can be wrong is called send"),
    ],
    ids=lambda entry: entry if isinstance(entry, str) else "",
)
def test_what_a_task_lacks_is_named(monkeypatch, files, words):
    monkeypatch.setattr(release, "EXERCISES", {name: (task,) for name, task in files.items()})
    monkeypatch.setattr(release, "PRACTICE", {})
    assert any(words in what for what in release.problems()), release.problems()


# --- the chapters' short tasks --------------------------------------------------------------


def practice_of(chapter, name):
    """The code of a chapter's short task: the placeholder above its check, and the answer folded below it.

    In front of the placeholder stands what a loop that is typed in more than once takes from the cells above.
    """
    cells = nbformat.read(course.NOTEBOOKS / f"{chapter}.ipynb", as_version=4).cells
    (check,) = [k for k, cell in enumerate(cells) if cell.source == f"check_practice({name})"]
    (answer,) = re.findall(r"<details>.*?```python\n(.*?)```", cells[check + 1].source, re.DOTALL)
    above = "\n".join(cell.source for cell in cells[: check - 1] if cell.cell_type == "code" and "my_trips" in answer)
    nodes = [node for node in ast.parse(above).body if not isinstance(node, ast.Expr)]
    needed = "\n".join(map(ast.unparse, nodes))
    return f"{needed}\n{cells[check - 1].source}", cells[check].source, answer


SHORT = [
    pytest.param(chapter, task, marks=when(task.name in QUICK_PRACTICE, True), id=f"{chapter}-{task.name}")
    for chapter, tasks in PRACTICE.items()
    for task in tasks
]


def executed(*cells):
    names = {"torch": torch, "dist": torch.distributed, "check_practice": check_practice}
    for cell in cells:
        exec(cell, names)
    return names


@cache
def folded():
    """By name, what the answers folded in chapters do, but for each chapter's first, in one run of each size."""
    cells = {task.name: practice_of(chapter, task.name) for chapter, tasks in PRACTICE.items() for task in tasks[1:]}
    functions = [executed(placeholder, answer)[name] for name, (placeholder, _, answer) in cells.items()]
    return dict(zip([function.__name__ for function in functions], in_one_run(functions)))


@pytest.mark.parametrize("chapter, task", SHORT)
def test_practice_begins_unwritten_and_its_folded_answer_is_right(chapter, task, capsys, monkeypatch, few_sizes):
    placeholder, checked, answer = practice_of(chapter, task.name)
    names = executed(placeholder, checked)
    assert capsys.readouterr().out.startswith(f"{task.name} isn't written yet.")
    exec(answer, names)
    if task is not PRACTICE[chapter][0]:
        monkeypatch.setattr(check_cells, "_last_attempts", {check_cells._key(names[task.name]): folded()[task.name]})
    exec(checked, names)
    assert capsys.readouterr().out.startswith("Right, in")


def test_a_short_task_says_how_many_of_its_chapter_are_done(monkeypatch, tmp_path, capsys):
    chapter = "12_sharded_data_parallel"
    file = tmp_path / "progress.json"
    file.write_text(json.dumps({"practice": {chapter: ["mean_shard", "one of another day"]}}))
    monkeypatch.setattr("helpers.progress.FILE", file)
    monkeypatch.setattr(check_cells, "_passed", {})
    check_practice(named(practice.RIGHT["tokens_to_hide"][0], "tokens_to_hide"))
    assert f"That's 2 of this chapter's {len(PRACTICE[chapter])} short tasks." in capsys.readouterr().out
    check_practice(named(practice.RIGHT["first_shard"][0], "first_shard"))  # in a script, which notes nothing
    assert f"That's 3 of this chapter's {len(PRACTICE[chapter])} short tasks." in capsys.readouterr().out
    assert "1 of 5 short tasks done" in repr(Progress({}, practice={chapter: ["mean_shard"]}))


def test_a_right_answer_is_told_its_calls(capsys):
    check_practice(named(practice.RIGHT["mean_loss"][0], "mean_loss"))
    assert capsys.readouterr().out.startswith("Right, in 8 cases on 1 to 8 ranks, with one reduce.")
    check_practice(executed(practice_of("14_pipeline_parallel", "exchange")[2])["exchange"])  # one call of four
    assert "with 4 operations of batch_isend_irecv." in " ".join(capsys.readouterr().out.split())


def test_a_budget_is_not_checked_of_an_answer_that_is_wrong():
    """It would repeat the whole message."""
    wrong, words = practice.WRONG["mean_loss"][1]
    answer = named(wrong, "mean_loss")
    with pytest.raises(CheckFailed, match=words):
        check_values(answer)
    with pytest.raises(CheckFailed, match="isn't right yet, so its budget wasn't checked"):
        check_budget(answer)


@pytest.mark.slow
def test_an_answer_that_is_only_slow_is_told_so(monkeypatch):
    monkeypatch.setattr("helpers.exercise.check_cells.TIMEOUT_SECONDS", 3.0)
    earlier = []  # a rank's own: it holds the calls that this process has made

    def in_sync(x):
        threading.Event().wait(timeout=60 if earlier else 0)
        earlier.append(x)
        return practice.RIGHT["in_sync"][0](x)

    with pytest.raises(CheckFailed, match="all of them together took longer than 3 s"):
        check_practice(in_sync)


def test_an_incident_is_judged_by_the_truth_as_the_corpus_has_it():
    task = module("19_which_node")
    assert task.FILE.read_text(encoding="utf-8") == incidents.sealed_file(task), "run python -m tests.corpus.incidents"
    for number, truth in incidents.TRUTHS.items():
        (judged,) = [each for each in task.TASKS if each.name == f"incident_{number}"]
        case, *_ = judged.cases
        assert (
            judged.verdict(case, (), truth.answer, True) is None
            and judged.praise(case, (), truth.answer) == truth.debrief
        )
        innocent = {*task.hosts(number), task.NO_HOST} - set(truth.answer)
        assert all(judged.verdict(case, (), {host: "gpu"}, True).thought for host in innocent)
        for host, reason in truth.answer.items():
            others = set(task.REASONS) - {reason}
            assert all(judged.verdict(case, (), truth.answer | {host: other}, True).thought for other in others)


def test_files_of_an_incident_name_its_hosts_and_say_no_answer():
    task, folder = module("19_which_node"), course.EXERCISES / "incidents"
    for number in incidents.TRUTHS:
        files = list((folder / f"{number:02}").iterdir())
        named = {
            host
            for file in files
            for host in re.findall(r"(?:node|cn)\d\d", file.name + file.read_text(encoding="utf-8"))
        }
        assert named == set(task.hosts(number))
        assert all(file.stat().st_size <= 30_000 for file in files)


def test_what_is_drawn_to_be_divided_is_more_than_a_table_holds():
    divide = TASKS["divide"]
    drawn = [case for case in divide.cases if case.kind in module("18_divide_a_model").DRAWN]
    jobs = [divide.arguments(case, str(seed))[0] for case in drawn for seed in range(100)]
    assert len(set(jobs)) > 0.75 * len(jobs)


def test_no_degrees_divide_every_job():
    """What fits needs no arithmetic: eight tensor ranks and ZeRO 3 always do."""
    divide, file = TASKS["divide"], module("18_divide_a_model")
    named = [(case, file.JOBS[case.kind]) for case in divide.cases if case.kind in file.JOBS]

    def is_refused(case, job, tensor, pipeline, shard):
        way = job.gpus // (tensor * pipeline), tensor, pipeline, shard
        return file.verdict(case, job.figures, way, budget=False) is not None

    for degrees in product((1, 2, 4, 8), (1, 2, 4, 8), range(4)):
        assert any(is_refused(*entry, *degrees) for entry in named), degrees


@pytest.mark.slow
def test_what_divides_one_job_often_fails_for_its_nearest_neighbor():
    """So a table that answers with its nearest job has no points, however many jobs it holds."""
    divide, file = TASKS["divide"], module("18_divide_a_model")
    drawn = [case for case in divide.cases if case.kind in file.DRAWN]
    jobs = [(case, file.job_of(divide.arguments(case, str(seed))[0])) for seed in range(3) for case in drawn]

    def fails(case, job):
        near = file.fastest(job._replace(batch=job.batch + job.gpus // 8)).division
        way = near.data, near.tensor, near.pipeline, near.shard
        return file.verdict(case, job.figures, way, budget=True) is not None

    assert sum(fails(*entry) for entry in jobs) > len(jobs) // 4


# --- messages as a learner reads them -------------------------------------------------------


def failing(answer, name):
    with pytest.raises(CheckFailed) as caught:
        check_values(named(answer, name))
    return str(caught.value)


def test_what_fails_with_whole_numbers_says_so_and_fails_when_it_is_pasted():
    def averages_as_it_is(x):
        y = x.clone()
        torch.distributed.all_reduce(y, op=torch.distributed.ReduceOp.AVG)
        return y

    said = failing(averages_as_it_is, "distributed_mean")
    assert "The numbers are integers here (int64), and it was right with float32." in said
    names = {"run": run, "torch": torch, "dist": torch.distributed, "distributed_mean": averages_as_it_is}
    with pytest.raises(RankFailed, match="can't be cast"):
        eval(said.splitlines()[-1], names)


@pytest.mark.parametrize("name", ["distributed_softmax", "reduce_scatter_by_hand", "tree_broadcast", "crossover"])
def test_a_line_to_paste_makes_the_very_case(name):
    task = TASKS[name]
    for case in task.cases:
        given = task.arguments(case)
        *_, line = explain(task, case, given, Finding("waits", words="wrong")).splitlines()
        if not line.startswith(("run(", name)):
            assert case.late is not None or len(str(given)) > 500
            continue
        came = {}
        names = {"run": lambda fn, world_size: [fn() for came["rank"] in range(world_size)], "torch": torch}
        names["dist"] = type("dist", (), {"get_rank": lambda: came["rank"]})
        names[name] = lambda *arguments: arguments
        made = eval(line, names)
        assert repr(made if line.startswith("run(") else [made]) == repr(given)


def test_who_rounds_what_is_close_together_never_finds_the_largest():
    task = TASKS["distributed_argmax"]
    for case in (case for case in task.cases if "close together" in case.kind):
        rounded = torch.float32 if case.dtype == torch.float64 else torch.float64
        for seed in range(40):
            given = task.arguments(case, str(seed))
            whole, (wanted, *_) = torch.cat([x for (x,) in given]), task.reference(given)
            assert (whole.to(rounded) == whole[0]).all() and wanted >= case.size and wanted % case.size


def test_only_what_is_right_is_told_of_its_traffic():
    said = failing(answers.divide_first, "distributed_argmax")
    assert "Budget" not in said and "budget" not in said and "Traffic" not in said


def test_the_ranks_that_are_right_are_named():
    def reduced(x):
        y = answers.floats(x)
        torch.distributed.reduce(y, 0)
        return y / torch.distributed.get_world_size()

    said = failing(reduced, "distributed_mean")
    assert "is wrong on rank 1 of 2" in said and "Rank 0 is right." in said
    assert "Think: rank 0 alone gets the result of reduce. Which collective gives it to all ranks?" in said
    task, case = (
        TASKS["distributed_mean"],
        next(case for case in TASKS["distributed_mean"].cases if case.world_size == 4),
    )
    given = task.arguments(case)
    for wrong, words in {
        (1, 2, 3): "Rank 0 is right, the others are not.",
        (2,): "Ranks 0, 1 and 3 are right.",
        (0, 1, 2, 3): "Ranks 1, 2 and 3 are wrong too.",
    }.items():
        results = [value + (rank in wrong) for rank, value in enumerate(task.reference(given))]
        verdict = judge(task, case, given, Attempt(results, given, [[] for _ in range(4)]))
        assert words in explain(task, case, given, verdict).splitlines()


@pytest.mark.slow
def test_the_least_that_is_possible_is_told_of_sizes_for_which_it_is(capsys):
    check_budget(named(answers.around_the_ring, "reduce_scatter_by_hand"))
    moved = capsys.readouterr().out
    check_budget(named(answers.all_at_once, "reduce_scatter_by_hand"))
    for printed in (moved, capsys.readouterr().out):
        said = " ".join(printed.split())  # in lines that fit a cell
        assert "the busiest rank moves 56 B" in said and "less than 56 B is impossible" in said


def test_numbers_that_are_right_in_another_dtype():
    said = failing(lambda x: answers.divide_first(x).float(), "distributed_mean")
    assert "the numbers are right, but not the dtype. y.to(torch.bfloat16) gives the same" in said


def test_a_ring_that_goes_wrong_is_followed_chunk_by_chunk():
    task = TASKS["ring_all_reduce"]
    words, schedule = task.follow(answers.first_half_only, 4)
    assert words == "Chunk by chunk, with 4 ranks: at the end rank 0 has chunk a without the parts of ranks 1-3."
    assert len(schedule.steps) == 3 and schedule.draw().png()
    assert words in failing(answers.first_half_only, "ring_all_reduce")
    assert task.follow(answers.the_other_way_round, 4) is None and task.follow(answers.deadlock, 4) is None


@pytest.mark.slow
def test_a_check_before_its_answer_says_what_to_run_and_a_right_one_what_is_next():
    with kernels(1) as (k,):
        k.run(f"{SETUP}\nimport torch.distributed as dist\nfrom helpers.exercise import check_budget, check_values")
        ((kind, missing),) = k.run("check_values(distributed_mean)")
        assert kind == "error" and missing["ename"] == "NameError"
        assert "Run the cell with `def distributed_mean` first" in "".join(missing["traceback"])
        ((kind, other),) = k.run("check_values(something_else)")
        assert "Traceback" in "".join(other["traceback"])
        k.run(RIGHT_MEAN)
        ((_, said),) = k.run("check_values(distributed_mean)")
        assert "2 of 2 points. Next: the check in the cell below." in said
        (_, said), *shown = k.run("check_budget(distributed_mean)")
        assert "1 of 1 point. Next: exercise 03: reduce-scatter by hand (03_reduce_scatter.ipynb)." in said
        assert any("<img" in str(data) for _, data in shown) and "all_reduce SUM, ranks 0-3" in str(shown)


def test_every_check_cell_knows_its_points_and_what_is_next():
    checks = [(exercise, check) for exercise in notebook.exercises() for check in notebook.checks_of(exercise)]
    assert [(check.aspect, check.function) for _, check in checks] == CALLS and len(checks) >= 30
    assert all(check.points > 0 and notebook.after(exercise, check) for exercise, check in checks)
    assert notebook.after(*checks[-1]) == "That was the last exercise."


def test_what_is_no_answer_is_refused():
    with pytest.raises(ValueError, match="no exercise asks for a function named other"):
        check_values(named(print, "other"))
    with pytest.raises(TypeError, match="check the function itself"):
        check_values(3)


@pytest.mark.parametrize("path", sorted(course.SOLUTIONS.glob("*.ipynb")), ids=lambda path: path.name)
def test_exercises_are_made_from_solutions(path):
    wanted = notebook.without_solution(nbformat.read(path, as_version=4))
    exercise = course.EXERCISES / path.name
    if not os.environ.get("CI") and release.is_worked_in(exercise, wanted):
        pytest.skip("somebody works on this exercise here")
    assert exercise.read_text(encoding="utf-8") == release.text(wanted), "run `make exercises`"


@pytest.mark.parametrize("path", sorted(course.SOLUTIONS.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_solution_carries_what_graders_need(path):
    solution = nbformat.read(path, as_version=4)
    marked = [cell for cell in solution.cells if "nbgrader" in cell.metadata]
    assert any(map(notebook.is_answer, marked)) and any(map(notebook.is_check, marked))
    for cell in marked:
        assert cell.metadata.nbgrader.grade_id == cell.id and cell.metadata.nbgrader.schema_version == 3
    for cell in notebook.without_solution(solution).cells:
        assert "BEGIN" not in cell.source and (cell.cell_type != "code" or not cell.outputs)
    links = re.findall(
        r"\]\(([^)#]+)\)", "".join(cell.source for cell in solution.cells if cell.cell_type == "markdown")
    )
    assert [link for link in links if "://" not in link and not (path.parent / link).exists()] == []


def test_each_exercise_leads_to_the_next_that_can_be_done():
    order = notebook.exercises()
    for name, then in zip(order, order[1:]):
        last = notebook.pristine(name).cells[-1].source
        chapter, now = notebook.chapter_before(then), notebook.chapter_before(name)
        links = re.findall(r"\]\(([^)]*)\)", last[last.rindex("Next:") :])
        assert chapter >= now, f"{name} needs chapter {now}, {then} only {chapter}"
        assert links[0] == f"{then}.ipynb" and (chapter == now or f"/notebooks/{chapter}_" in links[1]), name
        said = notebook.after(name, notebook.checks_of(name)[-1])
        assert f"({then}.ipynb)" in said and said.endswith(f", after chapter {chapter}.") == (chapter > now)


def test_a_file_among_the_arguments_is_shown_by_its_words():
    words = f"a file of 200 B with mlp.down.weight [4, 6]: {'1 2 3 ' * 50}"
    assert in_words(File(b"", words)) == words


@pytest.mark.slow
def test_an_answer_whose_last_version_does_not_compile_is_not_called_right(script):
    done = script("""
        from IPython.core.interactiveshell import InteractiveShell

        def cell(source):
            return shell.run_cell(source, store_history=True)

        shell = InteractiveShell.instance()
        cell("import torch.distributed as dist\\nfrom helpers.exercise import check_practice")
        right = "def everyones_sum(x):\\n    dist.all_reduce(x)\\n    return x"
        cell(right)
        cell(right + ")")
        error = cell("check_practice(everyones_sum)").error_in_exec
        print(type(error).__name__, error)
        cell(right)
        cell("check_practice(everyones_sum)")
    """)
    assert "CheckFailed The last version of everyones_sum has a syntax error" in done.stdout, done.stderr
    assert "SyntaxError in line 3" in done.stdout and "\nRight, in " in done.stdout
