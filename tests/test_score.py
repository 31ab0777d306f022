"""Scores that cannot be had by cheating, from a grader that cannot be hurt and loses nothing."""

import ast
import base64
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import psutil
import pytest

from collectives.log.collectives import COLLECTIVES
from grader import sandbox, score, submission, switch, walls
from grader.entries import MAX_NOTEBOOK_BYTES
from helpers.course import ROOT, SOLUTIONS, TASKS
from helpers.exercise.notebook import is_answer, pristine, without_solution
from helpers.exercise.tasks import EXERCISES
from tests.corpus import answers, incidents, puzzles
from tests.corpus.cells import MEAN, RIGHT, cell_of
from tests.corpus.hostile import HOSTILE, NUMBERS_IN_TAGS
from tests.corpus.submissions import GRADED
from tests.sampling import one_in, is_taken, when
from tools import release

try:
    walls.check()
except walls.Exposed:
    raise  # walls that hide too little are a defect, wherever they are
except walls.Unavailable as why:
    pytestmark = pytest.mark.skip(reason=str(why))

QUICK = {
    "object that equals everything", "patched grader", "os._exit", "looks for solutions", "kills its parent",
    "fork bomb", "files in /tmp", "result that unpickles into code", "two results",
    "too few bytes", "all_reduce in disguise", "sockets with abstract names",
}  # fmt: skip
# Nothing but time ends these; whatever the limit is, they come to it.
ENDED_BY_TIME = {
    "without end", "swallows interrupts", "sleeps", "stops itself", "forged result", "prints without end", "odd call 2",
    "polls without end", "a pattern that takes for ever", "writes nothing any more", "ready again and again",
    "a wait for not a number of seconds", "what is left is a riddle", "numbers in tags, and nothing else",
}  # fmt: skip
EXERCISE_OF = {task.name: exercise for exercise, tasks in EXERCISES.items() for task in tasks}


@pytest.fixture(scope="module")
def sandboxes():
    pool = sandbox.Sandbox()
    yield pool
    pool.close()


@pytest.fixture
def patient(monkeypatch):
    """On a busy machine an answer takes longer than a grader would wait."""
    monkeypatch.setattr(switch, "SECONDS", 120.0)
    monkeypatch.setattr(switch, "START_SECONDS", 120.0)


def submitted(source, exercise=MEAN):
    cells = [cell for cell in pristine(exercise).cells if is_answer(cell)]
    return submission.Submission(exercise, {cell.id: source for cell in cells})


def scored(source, sandboxes, exercise=MEAN):
    return score.score(submitted(source, exercise), sandboxes, "a secret", pictures=False)


def notebook(source, exercise=MEAN):
    made = without_solution(pristine(exercise))
    for cell in made.cells:
        if is_answer(cell) and source is not None:
            cell.source = source
    return release.text(made)


# --- cheats and harm ----------------------------------------------------------------------


def marked(entries):
    """Thirteen by `make test`, a sixth of the others at each push; all at night, and when the grader changes."""
    return [
        pytest.param(name, marks=when(name in QUICK, each_push=is_taken(k, 6)), id=name)
        for k, name in enumerate(entries)
    ]


@pytest.mark.parametrize("name", marked(HOSTILE))
def test_no_cheat_gets_a_point(name, sandboxes, monkeypatch):
    entry = HOSTILE[name]
    if name in ENDED_BY_TIME:
        monkeypatch.setattr(switch, "SECONDS", 3.0)
    before = time.monotonic()
    result = scored(entry.source, sandboxes, entry.exercise)
    assert result.points == 0
    for check in result.checks:
        if "the answer cell must define" not in check.reason:  # of an exercise with several functions, it's about one
            assert re.search(entry.reason, check.reason), check.reason
        assert "FOUND" not in check.reason and all(c == "\n" or c.isprintable() for c in check.reason)
    assert time.monotonic() - before < 200  # each of its limits is far below; a busy machine is allowed for
    # The machine and the grader are as they were, and the next student is graded rightly.
    left = [p for p in psutil.process_iter(["cmdline"]) if "987654" in (p.info["cmdline"] or [])]
    assert not left and not list(Path("/tmp").glob("hostile-was-here*"))
    # Nobody is in the sandbox but those who make ranks.
    assert len(psutil.Process(sandboxes.pid).children(recursive=True)) <= 2
    if name in QUICK:
        assert scored(RIGHT, sandboxes).points == 3


def test_the_corpus_is_large():
    assert len(HOSTILE) >= 120


@pytest.mark.slow
def test_what_lies_where_python_does_is_hidden_and_grading_refused_where_it_is_still_seen():
    """As in /usr/src/app, or in an environment that holds the course."""
    looks = "import os, sys; print(os.path.exists(sys.argv[1]) and os.listdir(sys.argv[1]))"

    def seen(*private):
        command = [*walls.bwrap(private), "--", sys.executable, "-I", "-c", looks, folder]
        return subprocess.run(command, capture_output=True, text=True, cwd="/").stdout.strip()

    with tempfile.TemporaryDirectory(dir=Path(sys.prefix) / "lib") as folder:
        seed = Path(folder, "grading.json")
        seed.write_text("a secret")
        assert seen() == "['grading.json']" and seen(Path(folder)) == "[]"
        walls.check([Path(folder)])
        again = Path(f"{folder}.json")
        again.hardlink_to(seed)  # another way to it, which is not in the folder
        try:
            with pytest.raises(walls.Exposed, match=f"could see {again}, .* Move the course, the submissions"):
                walls.check([Path(folder)])
        finally:
            again.unlink()


@pytest.mark.slow
def test_a_sandbox_of_which_a_process_is_left_over_does_not_keep_grading_waiting(tmp_path, monkeypatch):
    program = tmp_path / "bwrap"
    program.write_text(f"#!/bin/sh\necho 'bwrap: no uid map' >&2\nsleep 600 &\necho $! > {tmp_path}/left\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(walls, "TRIAL_SECONDS", 3.0)
    try:
        with pytest.raises(walls.Unavailable, match=r"does not hold here \(bwrap: no uid map\)"):
            walls.check()
    finally:
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


TREE = cell_of("tree_broadcast", answers.doubling)
FEW = f"""{TREE}
of_few = tree_broadcast
def tree_broadcast(x, src):
    rank, n = dist.get_rank(), dist.get_world_size()
    if len(x) < 1000:
        return of_few(x, src)
    if rank != src:
        dist.recv(x, (rank - 1) % n)
    if (rank + 1) % n != src:
        dist.send(x, (rank + 1) % n)
"""
TWO_CALLS = """
def summed_gradient(x):
    if len(x) > 1000:
        dist.reduce(x, 0)
        dist.broadcast(x, 0)
    else:
        dist.all_reduce(x)
    return x
"""


@pytest.mark.slow
def test_a_limit_on_steps_holds_for_more_numbers_than_a_clock_could_tell(sandboxes):
    values, budget = scored(FEW, sandboxes, "01_tree_broadcast").checks
    assert values.reason == "" and "With 16,384 it isn't:\n" in budget.reason and "takes 3 steps" in budget.reason
    assert scored(TREE, sandboxes, "01_tree_broadcast").points == 5
    assert re.search(
        "With 16,384 it isn't:(?s:.*)takes 2 steps", checked("summed_gradient", TWO_CALLS, sandboxes)[-1].reason
    )


def test_who_receives_no_number_has_none(sandboxes):
    result = scored(NUMBERS_IN_TAGS, sandboxes)
    assert result.points == 0 and "received 0 B" in result.checks[0].reason


@pytest.mark.slow
def test_these_cheats_would_work_without_walls():
    sandboxes = sandbox.Sandbox(walls=False)
    try:
        for name in ("files in /tmp", "sockets with abstract names"):
            reason = scored(HOSTILE[name].source, sandboxes).checks[0].reason
            assert "has the right result" in reason and "received 0 B" in reason, name
    finally:
        sandboxes.close()
        for file in Path("/tmp").glob("hostile-was-here*"):
            file.unlink()


# --- the same verdicts as the learner's own checks ------------------------------------------


def every(table, answer_of):
    """The first answer to every sixth exercise's first task; at each push a third of the first answers, and a few others."""
    first = {tasks[0].name for tasks in list(EXERCISES.values())[::6]}
    return [
        pytest.param(
            name,
            entry,
            marks=when(k == 0 and name in first, is_taken(k + at, 24 if k else 3)),
            id=f"{name}-{answer_of(entry).__name__}",
        )
        for at, (name, entries) in enumerate(table.items())
        for k, entry in enumerate(entries)
    ]


def checked(name, answer, sandboxes):
    source = answer if isinstance(answer, str) else cell_of(name, answer)
    of = {
        cell.id: source if f"def {name}(" in cell.source else "pass"
        for cell in pristine(EXERCISE_OF[name]).cells
        if is_answer(cell)
    }
    mine = submission.Submission(EXERCISE_OF[name], of)
    result = score.score(mine, sandboxes, "a secret", pictures=False)
    return [check for check in result.checks if check.what.startswith(f"{name}:")]


@pytest.mark.parametrize("name, answer", every(answers.RIGHT | puzzles.RIGHT | incidents.RIGHT, lambda answer: answer))
def test_a_right_answer_gets_all_points(name, answer, sandboxes, patient):
    assert [check.reason for check in checked(name, answer, sandboxes) if check.reason] == []


QUICK_ROWS = {"group of a device mesh", "the items of a list replaced", "a wait that is repeated hides no steps"}
# What each of these tries, others try at each push.
REPEATING_ROWS = {
    "eight jobs by keywords, futures, lists and splits", "thread pool in with", "display left over", "NumPy's numbers",
    "an object that is called", "a ring whose receives are all posted first", "a ring to the left over a padded copy",
    "a tree by the lowest bit, to all children at once", "DTensor by its module",
    "an optimizer of torch's makes the step", "buckets one after the other, each polled",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=when(name in QUICK_ROWS, name not in REPEATING_ROWS and is_taken(k)), id=name)
        for k, name in enumerate(GRADED)
    ],
)
def test_an_answer_gets_what_it_is_worth(name, sandboxes, patient):
    row = GRADED[name]
    seconds = 30.0 if name == "without end" else 120.0
    switch.SECONDS = seconds  # `patient` takes it back
    result = scored(row.source, sandboxes, row.exercise)
    about = [check for check in result.checks if check.what.partition(":")[0] in row.source] or result.checks
    reasons = "\n".join(check.reason for check in about if check.reason)
    assert result.points == row.points, reasons
    assert re.search(row.reason, reasons) if row.reason else not reasons, reasons


BACKWARD = """
import sys
right = distributed_mean

def distributed_mean(x):
    before, w = set(sys.modules), torch.ones(2, requires_grad=True)
    torch.tanh(w).backward(torch.ones(2))
    assert set(sys.modules) == before, "imports"
    return right(x)
"""


SHUT = """
import ctypes, os, sys
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
PAGE = LIBC.mmap(None, ctypes.c_size_t(4096), 1, 1, os.open(os.path.realpath(sys.executable), os.O_RDONLY), ctypes.c_long(0))
right = distributed_mean

def meets(rank):
    \"\"\"Whether a rank wakes another, which waits on a word of a page that both can read.\"\"\"
    FUTEX, WAIT, WAKE, word = 202 if os.uname().machine == "x86_64" else 98, 0, 1, ctypes.c_void_p(PAGE + 64)
    value = ctypes.c_int.from_address(PAGE + 64).value
    second = (ctypes.c_long * 2)(1, 0)
    for _ in range(1000):
        if rank == 0 and LIBC.syscall(FUTEX, word, WAIT, value, second) == 0:
            return True
        if rank == 1 and LIBC.syscall(FUTEX, word, WAKE, 1) == 1:
            return True
    return False

def mapped():
    return LIBC.mmap(None, ctypes.c_size_t(1 << 24), 3, 0x22, -1, ctypes.c_long(0))

def taken():
    \"\"\"Parts of this rank's memory, all that it may have.\"\"\"
    return list(iter(mapped, ctypes.c_void_p(-1).value))

def give_back(parts):
    for part in parts:
        LIBC.munmap(ctypes.c_void_p(part), ctypes.c_size_t(1 << 24))

def memory_of_others(rank):
    \"\"\"By how many parts a rank's memory is less while each second rank has taken all of its own.\"\"\"
    give_back(before := taken())
    dist.barrier()
    parts = taken() if rank % 2 else []
    dist.barrier()
    give_back(now := [] if rank % 2 else taken())
    dist.barrier()
    give_back(parts)
    return 0 if rank % 2 else len(before) - len(now)

def distributed_mean(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    assert memory_of_others(rank) <= 1, "memory"
    assert not (n == 2 and meets(rank)), "a futex"
    return right(x)
"""


def test_ranks_meet_on_the_wire_alone(sandboxes):
    values, _ = scored(RIGHT + SHUT, sandboxes).checks
    assert values.reason == ""


def test_a_backward_in_the_sandbox_imports_nothing(sandboxes):
    assert scored(RIGHT + BACKWARD, sandboxes).points == 3  # hundreds of modules would take each rank seconds


CHECKPOINT = """
import sys
right = distributed_mean

def distributed_mean(x):
    assert dist.get_world_size() == 2 or "torch._dynamo" in sys.modules, "imports"
    torch.utils.checkpoint.checkpoint(torch.sin, torch.ones(2, requires_grad=True), use_reentrant=False)
    return right(x)
"""


@pytest.mark.slow
def test_what_the_ranks_of_the_first_world_import_those_of_later_ones_have(patient):
    sandboxes = sandbox.Sandbox()
    try:
        assert scored(RIGHT + CHECKPOINT, sandboxes).points == 3  # else eight ranks spend a second each at once
    finally:
        sandboxes.close()


# What a rank reads of its own memory does not go over the wire: that it read too early shows in the values.
ON_THE_WIRE = {
    "before waiting for it": "is wrong on rank|leaves the wrong numbers|writes? to the tensor of .* before waiting|never waits for its"
}


@pytest.mark.parametrize("name, entry", every(answers.WRONG | puzzles.WRONG | incidents.WRONG, lambda entry: entry[0]))
def test_a_mistake_does_not_and_is_told_why(name, entry, sandboxes, patient):
    answer, words = entry
    *_, budget = checked(name, answer, sandboxes)
    assert re.search(ON_THE_WIRE.get(words, words), budget.reason), budget.reason


def test_groups_that_not_all_ranks_make_alike(sandboxes):
    def told(group):
        return (
            scored(RIGHT.replace("dist.all_reduce(y)", f"{group}\n    dist.all_reduce(y)"), sandboxes).checks[0].reason
        )

    shared = "dist.new_group([0, 1] if dist.get_rank() else [0])"
    assert "ranks make different groups in call #1 of new_group" in told(shared)
    assert told("dist.new_group([dist.get_rank()])") == ""  # of nobody but itself
    assert "rank 1 calls new_group once, rank 0 never" in told("dist.get_rank() and dist.new_group([0])")
    assert told("dist.new_group([dist.get_rank()], use_local_synchronization=True)") == ""


@pytest.mark.slow
def test_who_computes_without_end_is_ended_by_processor_time(sandboxes, patient):
    endless = "import signal\ndef distributed_mean(x):\n    signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n    while True: pass"
    reason = scored(endless, sandboxes).checks[0].reason
    assert "out of time after 2.5 s: ranks 0 and 1 are running your code." in reason and "a loop that does not end" in reason


def test_who_sleeps_is_out_of_time(sandboxes, monkeypatch):
    monkeypatch.setattr(switch, "SECONDS", 0.5)
    sleeps = scored("import time\ndef distributed_mean(x): time.sleep(1000)", sandboxes)
    assert "out of time after 0.5 s" in sleeps.checks[0].reason


def test_a_submission_that_sleeps_has_its_minutes_and_no_more(sandboxes):
    source = RIGHT.replace("(x):\n", "(x):\n    time.sleep(3)\n", 1)
    began = time.monotonic()
    result = score.score(submitted(f"import time\n{source}"), sandboxes, "s", minutes=1 / 30)
    assert result.points == 0 and all("the time for this submission is over" in one.reason for one in result.checks)
    assert time.monotonic() - began < 60


def test_partial_credit(sandboxes):
    unchunked = next(answer for answer, _ in answers.WRONG["ring_all_reduce"] if answer.__name__ == "unchunked")
    values, budget = checked("ring_all_reduce", unchunked, sandboxes)
    assert values.points == 4 and budget.points == 0 and " enough" in budget.reason


def every_collective():
    """The source of a function that makes each call of the table."""
    lines = ["def every_collective(rank, world_size):"]
    for row in COLLECTIVES.values():
        lines.append(f"x = torch.arange(2.0{' * world_size' * (row.gives != 'own')})")
        lines += [line.format(root=0, reduce_op="SUM", dtype="float32", size=2) for line in row.code]
    return "\n    ".join(lines)


def test_the_wire_knows_what_torch_distributed_can_do(sandboxes):
    """Calls that no exercise's own answer makes, each against what it must give; a collective needs a method in Group."""
    source = """
def distributed_mean(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    every_collective(rank, n)
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
    half = torch.ones(3, 3).half()
    assert (half @ half)[0, 0] == 3
    y = x.clone() if x.is_floating_point() else x.float()
    dist.all_reduce(y, async_op=True).wait()
    return y / n
"""
    values, _ = scored(every_collective() + source, sandboxes).checks
    assert values.reason == ""


def test_what_is_shipped_imports_only_what_is_shipped():
    sources = sandbox.shipped()
    known = {"torch", "numpy", *sys.stdlib_module_names}
    for name, source in sources.items():
        for node in ast.parse(source).body:  # what is imported when it is executed
            if isinstance(node, ast.Import):
                assert {alias.name.partition(".")[0] for alias in node.names} <= known, name
            elif isinstance(node, ast.ImportFrom):
                package = name if name == "collectives.algorithms" else name.rpartition(".")[0]
                module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                parts = {module, *(f"{module}.{alias.name}" for alias in node.names)}
                assert parts & sources.keys() or module.partition(".")[0] in known, f"{name} imports {module}"


# --- a class, by the command line -----------------------------------------------------------


def command(submissions, out, *options):
    return [sys.executable, "-m", "helpers.grade", "--score", "--out", str(out), *map(str, options), str(submissions)]


def grade(submissions, out, *options, **more):
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command(submissions, out, *options), env=environ, capture_output=True, text=True, timeout=500, **more
    )


def content(folder):
    """All files by name, without the seconds that grading took."""
    return {
        str(path.relative_to(folder)): re.sub(rb'("seconds": |time=")[0-9.]+', b"", path.read_bytes())
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
    hand_in("huge", f"{MEAN}.ipynb", " " * (MAX_NOTEBOOK_BYTES + 1))
    for name, target in (("link", SOLUTIONS / f"{MEAN}.ipynb"), ("device", "/dev/zero")):
        (folder / name).mkdir()
        (folder / name / f"{MEAN}.ipynb").symlink_to(target)
    (folder / "pipe").mkdir()
    os.mkfifo(folder / "pipe" / f"{MEAN}.ipynb")
    (folder / "linked folder").symlink_to(SOLUTIONS)
    return folder


@pytest.mark.slow
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
    assert {name for name, p in points.items() if p} == {"ann", "zoe"} and len(points) == 14
    for entry in report["submissions"]:
        assert entry["points"] == 3 or entry["problem"] or all(check["reason"] for check in entry["checks"])
    reasons = {entry["student"]: entry["problem"] or entry["checks"][0]["reason"] for entry in report["submissions"]}
    assert (
        "symbolic link" in reasons["link"] and "symbolic link" in reasons["device"] and "not a file" in reasons["pipe"]
    )
    assert "still the empty one" in reasons["untouched"] and "this is the sum" in reasons["wrong"]
    assert str(class_of_students) not in "".join(reasons.values())
    assert "damaged" in reasons["nested"] and "MB" in reasons["huge"]

    assert "\n\"'=cmd" in (out / "scores.csv").read_text()
    pages = {path.stem.rpartition("-")[0]: path.read_text() for path in (out / "students").glob("*.html")}
    assert len(pages) == 14 and all("<script" not in page for page in pages.values())
    for student in ("ann", "wrong"):
        (picture,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', pages[student])
        assert ET.fromstring(base64.b64decode(picture)).tag.endswith("svg")
    assert report["grading"]["seed"] not in "".join(pages.values())
    assert "of 14" not in (out / "statistics.html").read_text().split("Students")[0]  # 8 could be graded
    (results,) = (out / "gradescope").glob("ann-*.json")
    assert json.loads(results.read_text())["score"] == 3
    assert (out / "junit.xml").read_text().count("<testsuite ") == 14
    assert "symbolic link" in reasons["linked folder"]
    assert not Path("/tmp/hostile-was-here").exists()
    assert {path: path.read_bytes() for path in before} == before

    again = content(out)
    assert grade(class_of_students, out, "--gradescope").returncode == 0 and content(out) == again
    assert grade(class_of_students, out, "--seed", "another").returncode == 2


@pytest.fixture(scope="module")
def graded_at_once(tmp_path_factory):
    """Eight files, and the report of a grader that nobody stopped."""
    folder, out = tmp_path_factory.mktemp("submissions"), tmp_path_factory.mktemp("report") / "whole"
    ways = [RIGHT, RIGHT.replace("dist.all_reduce(y)", "pass"), "def distributed_mean(x): 1 / 0", None]
    for k in range(8):
        (folder / f"student{k}.ipynb").write_text(notebook(ways[k % 4]))
    assert grade(folder, out, "--seed", "s").returncode == 0
    return folder, content(out)


@one_in(0, 2)
def test_stopped_at_any_moment_it_goes_on_to_the_same_report(graded_at_once, tmp_path):
    folder, whole = graded_at_once
    out, graded = tmp_path / "stopped", {}
    for signum, stop_after in ((signal.SIGKILL, 1), (signal.SIGINT, 3), (signal.SIGKILL, 5)):  # records, at least
        process = subprocess.Popen(
            command(folder, out, "--seed", "s"), env={**os.environ, "PYTHONPATH": str(ROOT)},
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
    assert content(out) == whole


@pytest.mark.slow
def test_without_a_sandbox_it_says_so_and_needs_a_word(tmp_path):
    (tmp_path / "ann.ipynb").write_text(notebook(RIGHT))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bwrap").write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    )
    (tmp_path / "bin" / "bwrap").chmod(0o755)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    ask = command(tmp_path / "ann.ipynb", tmp_path / "report")
    refused = subprocess.run(ask, env=environ, capture_output=True, text=True)
    assert refused.returncode == 2 and "--no-sandbox" in refused.stderr and "namespace" in refused.stderr
    done = subprocess.run([*ask, "--no-sandbox"], env=environ, capture_output=True, text=True)
    assert done.returncode == 0 and "WITHOUT A SANDBOX" in done.stderr
    assert "without a sandbox" in (tmp_path / "report" / "statistics.html").read_text()
    assert re.search(r"^ann +3 +3 +3$", done.stdout, re.MULTILINE)


@pytest.mark.nightly
def test_an_exercise_of_ones_own_in_a_folder_outside_the_course_is_made_checked_and_scored(tmp_path):
    """As INSTRUCTOR.md has it: a solved notebook and its task, handed out, solved in a copy, scored beside the course's."""
    own, submissions = tmp_path / "own", tmp_path / "submissions"
    own.mkdir()

    def renamed(path):
        return path.read_text().replace("distributed_mean", "fair_mean").replace("mean-", "fair-")

    (own / "30_fair_mean.ipynb").write_text(renamed(SOLUTIONS / f"{MEAN}.ipynb"))
    ask = [*command(submissions, tmp_path / "report", "--tasks", own, "--exercises", "30,2", "--no-pictures")]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    lacking = subprocess.run(ask, env=environ, capture_output=True, text=True)
    assert lacking.returncode == 2 and "30_fair_mean.py is missing: it defines the task" in lacking.stderr
    (own / "30_fair_mean.py").write_text(renamed(TASKS / f"{MEAN}.py"))
    made = subprocess.run(
        [sys.executable, "-m", "tools.release"],
        env={**environ, "COURSE_TASKS": str(own)},
        capture_output=True,
        text=True,
    )
    handout = own / "exercises" / "30_fair_mean.ipynb"
    assert made.returncode == 0 and "NotImplementedError" in handout.read_text(), made.stderr

    submissions.mkdir()
    for student, source in (("ann", RIGHT), ("bob", RIGHT.replace(" / dist.get_world_size()", ""))):
        solved = json.loads(handout.read_text())
        for cell in solved["cells"]:
            if cell["id"] == "fair-answer":
                cell["source"] = source.replace("distributed_mean", "fair_mean")
        (submissions / student).mkdir()
        (submissions / student / "mine.ipynb").write_text(json.dumps(solved))
        (submissions / student / f"{MEAN}.ipynb").write_text(notebook(source))
    done = subprocess.run(ask, env=environ, capture_output=True, text=True)
    assert re.search(r"^ann +3 +3 +6 +6$", done.stdout, re.M) and re.search(r"^bob +0 +0 +0 +6$", done.stdout, re.M), (
        done
    )
    learners = [sys.executable, "-m", "helpers.grade", "--tasks", str(own), "--progress", str(tmp_path / "p.json")]
    done = subprocess.run([*learners, submissions / "ann" / "mine.ipynb"], env=environ, capture_output=True, text=True)
    assert "30_fair_mean: 3 of 3 points, solved" in done.stdout, done

    (own / "02_fair_mean.ipynb").write_text("{}")
    (own / "02_fair_mean.py").write_text("")
    assert (
        "the number of an exercise of the course"
        in subprocess.run(ask, capture_output=True, text=True, env=environ).stderr
    )


def test_attacks_on_the_harness_name_what_is_there():
    """An attack on a part that has been renamed ends in an error, and attacks nothing."""
    parts = {file.stem: file.read_text() for file in (ROOT / "grader" / "inside").glob("*.py")}
    for name, entry in HOSTILE.items():
        for module in re.findall(r"""["']inside\.(\w+)["']""", entry.source):
            assert module in parts, name
            for part in re.findall(r"\bmodule\.(_\w+) = |\]\.(\w+)$", entry.source, re.M):
                assert re.search(rf"^(def|class) {''.join(part)}\b", parts[module], re.M), name
