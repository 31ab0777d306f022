"""Scores that cannot be had by cheating, from a grader that cannot be hurt and loses nothing."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import answers
import psutil
import puzzles
import pytest
from hostile import HOSTILE, MEAN

from helpers import release
from helpers.exercise.tasks import EXERCISES
from helpers.grade import batch, sandbox, score, submission

try:
    sandbox.check()
except sandbox.Unavailable as why:
    pytestmark = pytest.mark.skip(reason=str(why))

RIGHT = """def distributed_mean(x):
    y = x.clone() if x.is_floating_point() else x.float()
    dist.all_reduce(y)
    return y / dist.get_world_size()"""
QUICK = {
    "object that equals everything", "patched grader", "os._exit", "looks for solutions", "kills its parent",
    "fork bomb", "files in /tmp", "other processes' memory", "result that unpickles into code", "two results",
    "too few bytes", "all_reduce in disguise",
}  # fmt: skip
EXERCISE_OF = {task.name: exercise for exercise, tasks in EXERCISES.items() for task in tasks}


class Room:
    """A sandbox, and another if that one has ended."""

    def __init__(self, walls=True):
        self.walls, self.room = walls, None

    def __call__(self):
        if self.room is None or not self.room.alive:
            self.room = sandbox.Sandbox(self.walls)
        return self.room


@pytest.fixture(scope="module")
def room():
    room = Room()
    yield room
    if room.room is not None:
        room.room.close()


def submitted(source, exercise=MEAN):
    cells = [cell for cell in submission.pristine(exercise).cells if release.is_answer(cell)]
    return submission.Submission(Path("mine.ipynb"), exercise, {cell.id: source for cell in cells})


def scored(source, room, exercise=MEAN):
    return score.score(submitted(source, exercise), room, "a secret", pictures=False)


def notebook(source, exercise=MEAN):
    made = release.released(submission.pristine(exercise))
    for cell in made.cells:
        if release.is_answer(cell) and source is not None:
            cell.source = source
    return release.text(made)


# --- cheats and harm ----------------------------------------------------------------------


def marked(entries):
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow, id=name) for name in entries]


@pytest.mark.parametrize("name", marked(HOSTILE))
def test_no_cheat_gets_a_point(name, room):
    entry = HOSTILE[name]
    before = time.monotonic()
    result = scored(entry.source, room, entry.exercise)
    assert result["points"] == 0
    for check in result["checks"]:
        assert re.search(entry.reason, check["reason"]), check["reason"]
        assert "FOUND" not in check["reason"] and all(c == "\n" or c.isprintable() for c in check["reason"])
    assert time.monotonic() - before < 200  # each of its limits is far below; a busy machine is allowed for
    # The machine and the grader are as they were, and the next student is graded rightly.
    left = [p for p in psutil.process_iter(["cmdline"]) if "987654" in (p.info["cmdline"] or [])]
    assert not left and not list(Path("/tmp").glob("hostile-was-here*"))
    if room().alive:
        assert len(psutil.Process(room().pid).children(recursive=True)) <= 2  # nobody but those who make ranks
    if name in QUICK:
        assert scored(RIGHT, room)["points"] == 3


def test_the_corpus_is_large():
    assert len(HOSTILE) >= 30


@pytest.mark.parametrize("name", ["files in /tmp", "sockets with abstract names"])
def test_these_cheats_would_work_without_walls(name):
    room = Room(walls=False)
    try:
        assert scored(HOSTILE[name].source, room)["points"] == 3
    finally:
        room().close()
        for file in Path("/tmp").glob("hostile-was-here*"):
            file.unlink()


# --- the same verdicts as the learner's own checks ------------------------------------------


def from_answers(name, answer):
    """An answer of tests/answers.py or puzzles.py as the source of an answer cell."""
    return Path(sys.modules[answer.__module__].__file__).read_text() + f"\n{name} = {answer.__name__}\n"


def every(table, answer_of):
    return [
        pytest.param(name, entry, marks=() if k < 1 else pytest.mark.slow, id=f"{name}-{answer_of(entry).__name__}")
        for name, entries in table.items()
        for k, entry in enumerate(entries)
    ]


def checked(name, answer, room):
    source = from_answers(name, answer)
    of = {
        cell.id: source if f"def {name}(" in cell.source else "pass"
        for cell in submission.pristine(EXERCISE_OF[name]).cells
        if release.is_answer(cell)
    }
    mine = submission.Submission(Path("mine.ipynb"), EXERCISE_OF[name], of)
    result = score.score(mine, room, "a secret", pictures=False)
    return [check for check in result["checks"] if check["what"].startswith(f"{name}:")]


@pytest.mark.parametrize("name, answer", every(answers.RIGHT | puzzles.RIGHT, lambda answer: answer))
def test_a_right_answer_gets_all_points(name, answer, room):
    assert [check["reason"] for check in checked(name, answer, room)] == [""] * len(checked(name, answer, room))


# A rank's own uses of its memory do not go over the wire: that it read too early shows in the values.
ON_THE_WIRE = {"before waiting for it": "is wrong on rank|leaves the wrong numbers"}


@pytest.mark.parametrize("name, entry", every(answers.WRONG | puzzles.WRONG, lambda entry: entry[0]))
def test_a_mistake_does_not_and_is_told_why(name, entry, room):
    answer, words = entry
    *_, budget = checked(name, answer, room)
    assert re.search(ON_THE_WIRE.get(words, words), budget["reason"]), budget["reason"]


def test_partial_credit(room):
    unchunked = next(answer for answer, _ in answers.WRONG["ring_all_reduce"] if answer.__name__ == "unchunked")
    values, budget = checked("ring_all_reduce", unchunked, room)
    assert values["points"] == 4 and budget["points"] == 0 and "are enough" in budget["reason"]


def test_the_wire_knows_what_torch_distributed_can_do(room):
    """Calls that no exercise's own answer makes, each against what it must give."""
    source = """
def distributed_mean(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    everybody = dist.new_group(list(range(n)))
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": rank}, group=everybody)
    assert objects == [{"rank": r} for r in range(n)]
    if n > 1:
        work = dist.irecv(into := torch.zeros(1)) if rank == 0 else dist.isend(torch.ones(1), 0) if rank == 1 else None
        while work is not None and not work.is_completed():
            pass
        assert rank != 0 or into == 1
    mine, rest = dist.new_group([0]), dist.new_group(list(range(1, n))) if n > 1 else None
    if rank:
        dist.all_reduce(ones := torch.ones(2, 2), op=dist.ReduceOp.MAX, group=rest)
    bits = torch.tensor([1 << rank])
    dist.all_reduce(bits, op=dist.ReduceOp.BOR)
    assert bits.item() == 2**n - 1
    into = torch.zeros(n, 2)
    dist.all_to_all_single(into, torch.full((n, 2), float(rank)))
    assert into[:, 0].tolist() == list(range(n))
    dist.barrier()
    y = x.clone() if x.is_floating_point() else x.float()
    dist.all_reduce(y, async_op=True).wait()
    return y / n
"""
    values, _ = scored(source, room)["checks"]
    assert values["reason"] == ""


# --- a class, by the command line -----------------------------------------------------------


def command(submissions, out, *options):
    return [sys.executable, "-m", "helpers.grade", "--score", "--out", str(out), *map(str, options), str(submissions)]


def grade(submissions, out, *options, **more):
    environ = {**os.environ, "PYTHONPATH": str(release.ROOT)}
    return subprocess.run(
        command(submissions, out, *options), env=environ, capture_output=True, text=True, timeout=500, **more
    )


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture(scope="module")
def class_of_students(tmp_path_factory):
    """Two who are right, and the rest of the world."""
    folder = tmp_path_factory.mktemp("class") / "submissions"

    def hand_in(student, file, text):
        (folder / student).mkdir(parents=True, exist_ok=True)
        (folder / student / file).write_text(text)

    hand_in("ann", f"{MEAN}.ipynb", notebook(RIGHT))
    hand_in("zoe", "mine.ipynb", notebook(RIGHT))
    hand_in("untouched", f"{MEAN}.ipynb", notebook(None))
    hand_in("wrong", f"{MEAN}.ipynb", notebook(RIGHT.replace(" / dist.get_world_size()", "")))
    hand_in("evil files", f"{MEAN}.ipynb", notebook("def distributed_mean(x): return x"))
    for name in ("conftest.py", "torch.py", "sitecustomize.py", "json.py"):
        hand_in("evil files", name, "import os; open('/tmp/hostile-was-here', 'w'); os._exit(0)")
    hand_in("=cmd|' /C calc'!A0", f"{MEAN}.ipynb", notebook(HOSTILE["text for the reader"].source))
    tampered = json.loads(notebook("def distributed_mean(x): return x"))
    for cell in tampered["cells"]:
        if "check" in cell["id"]:
            cell["source"], cell["metadata"] = (
                "pass",
                {"tags": ["nbval-skip"], "nbgrader": {"points": 99, "grade": True}},
            )
    hand_in("tampered", f"{MEAN}.ipynb", json.dumps(tampered))
    hand_in("cut short", f"{MEAN}.ipynb", notebook(RIGHT)[:500])
    hand_in("nested", f"{MEAN}.ipynb", "[" * 100_000)
    hand_in("huge", f"{MEAN}.ipynb", " " * (batch.MOST_BYTES + 1))
    for name, target in (("link", release.SOLUTIONS / f"{MEAN}.ipynb"), ("device", "/dev/zero")):
        (folder / name).mkdir()
        (folder / name / f"{MEAN}.ipynb").symlink_to(target)
    (folder / "pipe").mkdir()
    os.mkfifo(folder / "pipe" / f"{MEAN}.ipynb")
    (folder / "linked folder").symlink_to(release.SOLUTIONS)
    return folder


def test_a_class(class_of_students, tmp_path):
    before = {
        path: path.read_bytes()
        for path in class_of_students.rglob("*.ipynb")
        if path.is_file() and not path.is_symlink()
    }
    out = tmp_path / "report"
    done = grade(class_of_students, out, "--gradescope")
    assert done.returncode == 0 and re.search(r"^ann +3 +3 +3$", done.stdout, re.MULTILINE), done.stdout + done.stderr
    report = json.loads((out / "report.json").read_text())
    points = {entry["student"]: entry["points"] for entry in report["submissions"]}
    assert {name for name, p in points.items() if p} == {"ann", "zoe"} and len(points) == 13
    for entry in report["submissions"]:
        assert entry["points"] == 3 or entry["problem"] or all(check["reason"] for check in entry["checks"])
    reasons = {entry["student"]: entry["problem"] or entry["checks"][0]["reason"] for entry in report["submissions"]}
    assert "symbolic link" in reasons["link"] and "symbolic link" in reasons["device"] and "no file" in reasons["pipe"]
    assert "still the empty one" in reasons["untouched"] and "this is the sum" in reasons["wrong"]
    assert str(class_of_students) not in "".join(reasons.values())
    assert "damaged" in reasons["nested"] and "MB" in reasons["huge"]

    assert "\n'=cmd" in (out / "scores.csv").read_text()
    pages = {path.stem: path.read_text() for path in (out / "students").glob("*.html")}
    assert len(pages) == 13 and all("<script" not in page for page in pages.values())
    assert "data:image/png;base64" in pages["ann"] and "data:image/png;base64" in pages["wrong"]
    assert report["grading"]["seed"] not in "".join(pages.values())
    assert "of 13" not in (out / "statistics.html").read_text().split("Students")[0]  # 8 could be graded
    assert json.loads((out / "gradescope" / "ann.json").read_text())["score"] == 3
    assert (out / "junit.xml").read_text().count("<testsuite ") == 13
    assert not Path("/tmp/hostile-was-here").exists()
    assert {path: path.read_bytes() for path in before} == before

    again = content(out)
    assert grade(class_of_students, out, "--gradescope").returncode == 0 and content(out) == again
    assert grade(class_of_students, out, "--seed", "another").returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_stopped_at_any_moment_it_goes_on_to_the_same_report(signum, tmp_path):
    folder = tmp_path / "submissions"
    folder.mkdir()
    ways = [RIGHT, RIGHT.replace("dist.all_reduce(y)", "pass"), "def distributed_mean(x): 1 / 0", None]
    for k in range(8):
        (folder / f"student{k}.ipynb").write_text(notebook(ways[k % 4]))
    assert grade(folder, tmp_path / "whole", "--seed", "s").returncode == 0

    out, graded = tmp_path / "stopped", {}
    for stop_after in (1, 2, 4):  # records, at least
        process = subprocess.Popen(
            command(folder, out, "--seed", "s"), env={**os.environ, "PYTHONPATH": str(release.ROOT)},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        with process:
            family = []
            for line in process.stdout:
                if line[0].isdigit() and int(line.split("/")[0]) >= stop_after:
                    family = psutil.Process(process.pid).children(recursive=True)
                    process.send_signal(signum)
                    break
        assert process.returncode != 0 and psutil.wait_procs(family, timeout=20)[1] == []
        for path, times in graded.items():
            assert path.stat().st_mtime_ns == times  # not graded again
        graded = {path: path.stat().st_mtime_ns for path in (out / "graded").glob("*.json")}
        assert len(graded) >= stop_after
    assert grade(folder, out, "--seed", "s").returncode == 0
    assert content(out) == content(tmp_path / "whole")


@pytest.mark.slow
def test_without_a_sandbox_it_says_so_and_needs_a_word(tmp_path):
    (tmp_path / "ann.ipynb").write_text(notebook(RIGHT))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bwrap").write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    )
    (tmp_path / "bin" / "bwrap").chmod(0o755)
    environ = {**os.environ, "PYTHONPATH": str(release.ROOT), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    ask = command(tmp_path / "ann.ipynb", tmp_path / "report")
    refused = subprocess.run(ask, env=environ, capture_output=True, text=True)
    assert refused.returncode == 2 and "--no-sandbox" in refused.stderr and "namespace" in refused.stderr
    done = subprocess.run([*ask, "--no-sandbox"], env=environ, capture_output=True, text=True)
    assert done.returncode == 0 and "WITHOUT A SANDBOX" in done.stderr
    assert "without a sandbox" in (tmp_path / "report" / "statistics.html").read_text()
    assert re.search(r"^ann +3 +3 +3$", done.stdout, re.MULTILINE)
