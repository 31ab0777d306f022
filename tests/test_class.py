"""A class is graded whatever befalls machine, files and grader: nothing lost, nothing mixed up, nothing hangs in silence."""

import csv
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
import zipfile
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from grader import class_report, gradebook, instructor, score, worker_pool
from grader.entries import find
from grader.folder import ReportFolder, Unfit, fingerprint
from grader.gradebook import CheckScore, Grading
from helpers import course, progress
from helpers.course import ROOT
from helpers.exercise import notebook
from tests.sampling import one_in
from tools import release

MEAN = "02_distributed_mean"
RIGHT = """def distributed_mean(x):
    y = x.clone() if x.is_floating_point() else x.float()
    dist.all_reduce(y)
    return y / dist.get_world_size()"""
WRONG = RIGHT.replace(" / dist.get_world_size()", "")
GRADER = "import sys; sys.executable = sys.argv.pop(1); from grader.__main__ import main; sys.exit(main())"


def answered(source):
    """A submission; None: untouched, which is graded without running anything."""
    made = notebook.without_solution(notebook.pristine(MEAN))
    for cell in filter(notebook.is_answer, made.cells):
        cell.source = cell.source if source is None else source
    return release.text(made)


def hand_in(folder, **sources):
    folder.mkdir(exist_ok=True)
    for student, source in sources.items():
        (folder / f"{student}.ipynb").write_text(answered(source))
    return folder


def command(folder, out, python=sys.executable, *options):
    """Without a sandbox: what these tests are about lies outside it."""
    given = ["--score", "--no-sandbox", "--no-pictures", "--seed", "s", "--out", out, *options, folder]
    return [sys.executable, "-c", GRADER, str(python), *map(str, given)]


def grade(*arguments, **more):
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command(*arguments), env=environ, capture_output=True, text=True, timeout=300, **more)


def points(out):
    return {one["student"]: one["points"] for one in json.loads((out / "report.json").read_text())["submissions"]}


def kept(out):
    return {path: path.stat().st_mtime_ns for path in (out / "graded").glob("*.json")}


def interpreter(path, script):
    path.write_text(f'#!/bin/sh\n{script}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


# --- the command --------------------------------------------------------------------------


@one_in(0, 2)
def test_a_file_handed_in_later_is_graded_by_the_same_command_and_nothing_twice(tmp_path):
    folder, out = hand_in(tmp_path / "class", ann=RIGHT), tmp_path / "report"
    grade(folder, out)
    first = kept(out)
    hand_in(folder, bob=RIGHT, ann=WRONG)
    grade(folder, out)
    assert points(out) == {"ann": 0, "bob": 3} and first.items() <= kept(out).items() and len(kept(out)) == 3


@pytest.mark.slow
def test_a_regrading_counts_the_same_exercises_and_gives_back_every_page(tmp_path):
    """Whoever handed in nothing, and has points by hand, has a page too."""
    folder, out, listed = hand_in(tmp_path / "class", ann=None), tmp_path / "report", tmp_path / "class.csv"
    listed.write_text("name\nann\nzoe\n")
    grade(folder, out, sys.executable, "--exercises", "02,05", "--roster", listed)
    (out / "adjustments.csv").write_text("student,exercise,points,comment\nzoe,,4,By mail.\n")
    again = grade(folder, out)
    assert f"As before: --exercises 02,05 --roster {listed}." in again.stdout
    with zipfile.ZipFile(out / "return.zip") as pages:
        (hers,) = set(pages.namelist()) - {"ann.html"}
        assert hers.startswith("zoe-") and "zoe: <b>4 of 7 points" in pages.read(hers).decode()
    last = grade(folder, out, sys.executable, "--exercises", "all")
    assert f"As before: --roster {listed}." in last.stdout and "zoe: <b>4 of 0" in (out / "students" / hers).read_text()


@pytest.mark.parametrize("out", [".", "report", "deep/report"])
def test_a_report_in_the_folder_of_submissions_is_refused(tmp_path, out):
    """It would be a student there."""
    folder = hand_in(tmp_path / "class", ann=RIGHT)
    done = grade(folder, folder / out)
    assert done.returncode == 2 and "Name one outside it with --out" in done.stderr
    assert [path.name for path in folder.iterdir()] == ["ann.ipynb"]


@one_in(1, 2)
def test_fail_under_is_the_exit_status_and_says_how_many(tmp_path):
    folder, out = hand_in(tmp_path / "class", ann=RIGHT, bob=WRONG), tmp_path / "report"
    assert grade(folder, out).returncode == 0
    below = grade(folder, out, sys.executable, "--fail-under", 60)
    assert below.returncode == 1 and "1 of 2 have less than 60% of the points." in below.stderr
    (folder / "bob.ipynb").unlink()
    assert grade(folder, out, sys.executable, "--fail-under", 100).returncode == 0


# --- workers ------------------------------------------------------------------------------


@one_in(0, 3)
def test_with_less_room_for_workers_than_asked_for_the_others_do_the_work(tmp_path):
    folder = hand_in(tmp_path / "class", ann=RIGHT, bob=WRONG, cyd=RIGHT)
    only_one = interpreter(tmp_path / "python", f"mkdir {tmp_path}/taken || exit 11")
    done = grade(folder, tmp_path / "report", only_one, "--jobs", 3)
    assert done.returncode == 0 and points(tmp_path / "report") == {"ann": 3, "bob": 0, "cyd": 3}, done.stderr


@pytest.mark.nightly  # and by .ci/run when the grader changes
def test_where_no_worker_can_be_started_any_more_it_says_so_and_goes_on_later(tmp_path):
    folder, out = hand_in(tmp_path / "class", ann=RIGHT, bob=WRONG, cyd=RIGHT), tmp_path / "report"
    python = interpreter(tmp_path / "python", "")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command(folder, out, python, "--jobs", 1),
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert any(line.startswith("1/3") for line in process.stdout)
        python.unlink()
        for worker in psutil.Process(process.pid).children():
            worker.kill()
        said = process.stderr.read()
    assert process.returncode == 2 and "cannot be started: [Errno 2] No such file" in said
    assert "the same command goes on" in said and "Traceback" not in said
    before = kept(out)
    assert len(before) >= 1

    assert grade(folder, out).returncode == 0 and points(out) == {"ann": 3, "bob": 0, "cyd": 3}
    assert before.items() <= kept(out).items()  # not graded again


@pytest.mark.parametrize("script, words", [("exit 11", "exit status 11"), (None, "No such file or directory")])
def test_a_worker_that_does_not_come_up_says_nothing_about_a_submission(tmp_path, script, words):
    folder, out = hand_in(tmp_path / "class", ann=RIGHT), tmp_path / "report"
    done = grade(folder, out, interpreter(tmp_path / "python", script) if script else tmp_path / "nowhere")
    assert done.returncode == 2 and words in done.stderr and "the same command goes on" in done.stderr
    assert "Traceback" not in done.stderr and not kept(out)


def graded(entries, out, jobs=2, each=lambda done, student: None, minutes=5.0):
    """In this process. each: called with how many are done, and the last one's student."""
    with closing(ReportFolder(out, "s", walls=False, pictures=False, minutes=minutes)) as folder:
        with closing(worker_pool.WorkerPool(jobs, walls=False)) as ours:
            gradings = instructor.grade(entries, folder, ours, lambda done, of, student: each(done, student))
        class_report.write_all(folder, gradebook.students(gradings), gradings, gradescope=True)
    return {grading.student: grading for grading in gradings}


def workers_of_mine():
    return [p for p in psutil.Process().children() if "grader.worker" in p.cmdline()]


@pytest.mark.nightly
def test_a_killed_worker_is_replaced(tmp_path):
    def kill(done, student):
        if done == 1:
            for worker in workers_of_mine():
                worker.kill()

    entries = find([hand_in(tmp_path / "class", ann=RIGHT, bob=WRONG, cyd=RIGHT)])
    gradings = graded(entries, tmp_path / "report", each=kill)
    assert {name: grading.points for name, grading in gradings.items()} == {"ann": 3, "bob": 0, "cyd": 3}
    assert not workers_of_mine()


@one_in(2, 3)
def test_a_worker_that_is_always_killed_is_told_of_and_the_submission_graded_next_time(tmp_path):
    folder, out = hand_in(tmp_path / "class", ann=RIGHT), tmp_path / "report"
    dies = interpreter(tmp_path / "python", f"{sys.executable} -c 'print(\"up\")'; exit 1")
    done = grade(folder, out, dies)
    assert done.returncode == 0 and "1 file not graded" in done.stdout
    (page,) = (out / "students").glob("ann-*.html")
    assert "the grader itself failed over it, 2 times" in page.read_text()
    assert grade(folder, out).returncode == 0 and points(out) == {"ann": 3}


@pytest.mark.nightly
def test_a_worker_that_has_stopped_does_not_stop_the_class(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_pool, "JOB_SECONDS", 30.0)
    monkeypatch.setattr(worker_pool, "START_SECONDS", 90.0)  # it may be stopped before it is up

    def stop(done, student):
        if done == 1:
            for worker in workers_of_mine():
                worker.send_signal(signal.SIGSTOP)

    entries = find([hand_in(tmp_path / "class", ann=RIGHT, bob=WRONG, cyd=RIGHT)])
    gradings = graded(entries, tmp_path / "report", each=stop, minutes=0.5)  # as long as it waits for the stopped one
    assert {name: grading.points for name, grading in gradings.items()} == {"ann": 3, "bob": 0, "cyd": 3}


# --- files --------------------------------------------------------------------------------


@pytest.mark.nightly  # and by .ci/run when the grader changes
def test_a_file_saved_while_it_is_graded_has_the_score_of_what_was_read(tmp_path):
    folder, out = hand_in(tmp_path / "class", ann=RIGHT, bob=RIGHT), tmp_path / "report"
    other = {"ann": "bob", "bob": "ann"}

    def save_the_other(done, student):
        if done == 1:  # both were read, and one is not remembered yet
            hand_in(folder, **{other[student]: WRONG})
            saved.append(other[student])

    saved = []
    gradings = graded(find([folder]), out, each=save_the_other)
    assert {name: grading.points for name, grading in gradings.items()} == {"ann": 3, "bob": 3}
    again = graded(find([folder]), out)
    assert again[saved[0]].points == 0 and again[other[saved[0]]].points == 3


@one_in(0, 3)
def test_files_that_vanish_or_cannot_be_read_are_in_the_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    folder = hand_in(Path("class"), ann=RIGHT, gone=RIGHT, link=RIGHT, pipe=RIGHT)
    (folder / "locked").mkdir(0)
    me = os.geteuid()
    os.seteuid(me or 65534)  # nothing is locked to root
    try:
        entries = find([folder])
    finally:
        os.seteuid(me)
        (folder / "locked").chmod(0o755)
    for name in ("gone", "link", "pipe"):
        (folder / f"{name}.ipynb").unlink()
    (folder / "link.ipynb").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.ipynb")
    gradings = graded(entries, tmp_path / "report")
    problems = {name: grading.problem for name, grading in gradings.items()}
    assert problems == {
        "ann": "",
        "gone": "gone.ipynb cannot be read: No such file or directory.",
        "link": "link.ipynb is a symbolic link, and is not followed. Hand in the notebook itself.",
        "locked": "locked cannot be read: Permission denied.",
        "pipe": "pipe.ipynb is not a file.",
    }


def test_names_of_any_kind_break_no_file_of_the_report(tmp_path):
    odd = ["two\nlines", "two\tlines", "..\\..\\up", "<b>bold&amp;", "\x1b[2Jred", os.fsdecode(b"\xff\xfe"), "=1+1", "-", "a" * 200]
    folder = tmp_path / "class"
    for name in odd:
        (folder / name).mkdir(parents=True)
        (folder / name / f"{name[:20]}.ipynb").symlink_to("nowhere")
    out = tmp_path / "report"
    gradings = graded(find([folder]), out)
    assert set(gradings) == set(odd)
    assert {one["student"] for one in json.loads((out / "report.json").read_text())["submissions"]} == set(odd)
    head, *rows = csv.reader((out / "scores.csv").read_text("utf-8").splitlines())
    assert head == ["student", "points", "of", "late", "page", "problems"] and all(
        len(row) == len(head) for row in rows
    )
    assert len(ET.parse(out / "junit.xml").findall("testsuite")) == len(odd)
    written = [*(out / "students").glob("*.html"), out / "statistics.html"]
    assert len(written) == len(odd) + 1 and not any("<b>bold" in page.read_text("utf-8") for page in written)
    assert len(list((out / "gradescope").glob("*.json"))) == len(odd)
    with zipfile.ZipFile(out / "return.zip") as pages:
        assert len({*pages.namelist()}) == len(odd) and not any("\\" in name for name in pages.namelist())
    table = (
        class_report.table(gradebook.students(list(gradings.values()))) + "\n" + (out / "scores.csv").read_text("utf-8")
    )
    assert "\x1b" not in table and len(table.splitlines()) == 2 * (len(odd) + 1)


# --- what is kept -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_grade_is_kept_only_while_nothing_that_made_it_has_changed(tmp_path, monkeypatch):
    sources = *(course.ROOT / name for name in ("collectives", "helpers", "grader")), course.TASKS, course.SOLUTIONS
    copies = [tmp_path / source.name for source in sources]
    for source, copy in zip(sources, copies):
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    first = fingerprint(*copies)
    assert first == fingerprint(*sources)
    kinds = {(copy, file.parent, file.suffix): file for copy in copies for file in copy.rglob("*.*") if file.is_file()}
    made_by = [file for file in kinds.values() if file.suffix in (".py", ".csv", ".ipynb")]
    assert len(made_by) > 20
    for file in made_by:
        before = file.read_bytes()
        file.write_bytes(before + b"\n")
        assert fingerprint(*copies) != first, file
        file.write_bytes(before)
    assert fingerprint(*copies) == first
    monkeypatch.setattr("grader.folder.version", lambda package: "2.99")
    assert fingerprint(*copies) != first
    monkeypatch.undo()
    monkeypatch.setattr("sys.version", "3.99")
    assert fingerprint(*copies) != first


def test_two_graders_cannot_use_one_folder(tmp_path):
    folder, out = hand_in(tmp_path / "class", ann=RIGHT), tmp_path / "report"
    with closing(ReportFolder(out, "s", walls=False, pictures=False)):
        done = grade(folder, out)
    assert done.returncode == 2 and "Another grader is at work" in done.stderr


@one_in(1, 3)
def test_a_full_disk_loses_nothing(tmp_path):
    """A limit on the size of files stands for it: grades fit below it, the class's pages do not."""
    folder, out = hand_in(tmp_path / "class", ann=None, bob=None), tmp_path / "report"

    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))

    done = grade(folder, out, preexec_fn=full)
    assert done.returncode == 2 and re.search(
        r"cannot be written: File too large\. What is graded is kept", done.stderr
    )
    assert "Traceback" not in done.stderr and not list(out.rglob(".*.part"))
    for file in out.rglob("*.json"):
        json.loads(file.read_text())
    before = kept(out)
    assert len(before) == 2
    assert grade(folder, out).returncode == 0 and points(out) == {"ann": 0, "bob": 0} and kept(out) == before


@one_in(2, 3)
def test_half_written_and_foreign_files_in_the_folder_are_no_grades(tmp_path):
    contents, out = ["", '{"points": 3', "null", "[]", "{}", '{"points": 3}'], tmp_path / "report"
    entries = find([hand_in(tmp_path / "class", **{f"student{k}": None for k in range(len(contents))})])
    graded(entries, out, jobs=1)

    def timeless():
        return {file: {**json.loads(file.read_text()), "seconds": None} for file in kept(out)}

    before = timeless()
    for file, content in zip(before, contents):
        file.write_text(content)
        (out / "graded" / f".{file.name}.part").write_text(content)
    graded(entries, out, jobs=1)
    assert timeless() == before and not list(out.rglob(".*.part"))
    for content in ("", "null", "{}", '{"seed": 1}'):
        (out / "grading.json").write_text(content)
        with pytest.raises(Unfit, match="damaged"):
            ReportFolder(out, "s", walls=False, pictures=False)


# --- what goes wrong is said --------------------------------------------------------------


class Undrawable:
    def draw(self):
        raise ValueError("no <artist>")


def test_a_picture_that_cannot_be_drawn_is_told_of(capsys):
    images, undrawn = score.draw_runs({"f": Undrawable()})
    assert (images, undrawn) == ({}, {"f": "ValueError: no <artist>"})
    said = capsys.readouterr().err
    assert "The picture of f could not be drawn" in said and "in draw" in said
    grading = Grading(MEAN, (CheckScore("", "f: is it right?", 1, 1),), undrawn=undrawn, student="ann")
    page = class_report.rendered("student.html", student=gradebook.students([grading])[0])
    assert "picture of f could not be drawn" in page and "no &lt;artist&gt;" in page


@pytest.mark.parametrize("content", ["<<<<<<< HEAD\n{}", "", "[]", '{"cells": [{}]}', "[" * 100_000, None])
def test_progress_says_which_chapter_cannot_be_read(tmp_path, monkeypatch, content):
    (tmp_path / "notebooks").mkdir()
    path = tmp_path / "notebooks" / "03_one_to_many.ipynb"
    path.symlink_to("nowhere") if content is None else path.write_text(content)
    monkeypatch.setattr(course, "NOTEBOOKS", tmp_path / "notebooks")
    assert re.search(
        "03_one_to_many +cannot be read: .*git diff notebooks/03_one_to_many.ipynb", repr(progress.Progress({}))
    )


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        '{"02_distributed_mean": {"points": "a", "best": [], "of": 3, "tries": 0}, '
        '"cells": {"03_one_to_many": [{}]}, "predictions": [1]}',
    ],
)
def test_a_progress_file_edited_by_hand_does_not_stop_the_learner(tmp_path, content):
    file = tmp_path / "progress.json"
    file.write_text(content)
    repr(progress.Progress(progress.recall(file), progress.cells_run(file), progress.predictions(file)))
    progress.predicted("f", "How?", 1, 1, file)
    progress.ran("03_one_to_many", "a cell", file)
    assert progress.remember(MEAN, 2, 3, file)["best"] == 2 and len(progress.predictions(file)) == 1


@pytest.mark.slow
def test_points_that_cannot_be_remembered_are_still_told(tmp_path):
    (tmp_path / "mine.ipynb").write_text(answered("def distributed_mean(x): pass)"))  # a slip: nothing has to run
    done = subprocess.run(
        [sys.executable, "-m", "helpers.grade", "mine.ipynb", "--progress", str(tmp_path / "nowhere" / "p.json")],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0 and "0 of 3 points" in done.stdout and "not remembered" in done.stderr
    assert "Traceback" not in done.stderr
