"""Nothing that was handed in is lost: whatever its name or kind, it has a row, and it is its owner's."""

import base64
import codecs
import csv
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import zipfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from grader import alike, assignment, roster, submission, walls
from grader.__main__ import main
from grader.class_report import _csv, listing, rendered
from grader.entries import MAX_FILES, NAMES, find, naming, remarks
from grader.folder import Unfit
from grader.gradebook import CheckScore, Grading, students, summary, unknown
from grader.inside.cell import code_of
from helpers.course import EXERCISES, NOTEBOOKS, ROOT, SOLUTIONS
from helpers.exercise.notebook import is_answer, pristine, without_solution
from tests.corpus import answers
from tests.corpus.cells import MEAN, RIGHT, cell_of
from tests.sampling import one_in
from tools import release


def notebook(source=RIGHT):
    made = without_solution(pristine(MEAN))
    for cell in filter(is_answer, made.cells):
        cell.source = source
    return release.text(made)


def entries(folder, **options):
    return {entry.student: entry for entry in find([folder], naming(**options))}


def test_an_answer_that_is_long_enough_for_a_table_is_refused():
    content = notebook(RIGHT + f"\nTABLE = {dict.fromkeys(range(3000))}").encode()
    with pytest.raises(submission.UnusableSubmission, match="of distributed_mean has .* at most 16,384. Compute what"):
        submission.parse(Path("a.ipynb"), content)


# --- names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, words",
    [
        ("hand.zip", "hand.zip is not a notebook. Only notebooks"),
        ("page.html", "page.html is not a notebook"),
        ("answer.py", "answer.py is not a notebook"),
        ("notes.txt", "notes.txt is not a notebook"),
        ("empty/", "empty is an empty folder."),
        ("zipped/01.zip", "zipped/01.zip is not a notebook. Only notebooks (.ipynb) are graded: unpack archives"),
        (".hidden/notes.txt", "There is no notebook in .hidden, only notes.txt"),
        ("ann-2/.ipynb_checkpoints/02.ipynb", "In ann-2 there are notebooks only where none is looked for: .ipynb_checkpoints/02.ipynb."),
    ],
)
def test_a_name_without_a_notebook_has_a_row_that_says_why(tmp_path, name, words):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).write_text("x")
    (tmp_path / "ann.ipynb").write_text(notebook())
    (tmp_path / ".DS_Store").write_text("x")
    found = find([tmp_path])
    assert len(found) == 2 and [entry.problem for entry in found if entry.problem][0].startswith(words)


@pytest.mark.parametrize("name", ["...", ".ann", "-", "ann lee", "李雷 🦊"])
def test_a_folder_of_any_name_is_a_student(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / f"{MEAN}.IPYNB").write_text(notebook())
    assert [(entry.student, entry.problem) for entry in find([tmp_path])] == [(name, "")]


def test_of_a_clone_the_exercises_alone_count(tmp_path):
    for folder in (EXERCISES, NOTEBOOKS, SOLUTIONS):
        shutil.copytree(folder, tmp_path / "clone" / folder.name, ignore=shutil.ignore_patterns("*.png", "tasks"))
    files = [entry.file for entry in find([tmp_path])]
    assert len(files) == len(list(EXERCISES.glob("*.ipynb"))) and all(
        file.startswith("clone/exercises/") for file in files
    )


@pytest.mark.parametrize(
    "kind, names, owner",
    [
        (
            "canvas",
            ["leeann_12345_67890_02_distributed_mean.ipynb", "leeann_LATE_12345_67891_05_distributed_argmax-1.ipynb"],
            ("leeann 12345", "12345", True),
        ),
        (
            "moodle",
            ["Ann Lee_77_assignsubmission_file_/02_distributed_mean.ipynb", "Ann Lee_77_assignsubmission_file_x.ipynb"],
            ("Ann Lee 77", "77", False),
        ),
        (
            "moodle",
            ["Ann Lee_77_assignsubmission_file_/02.ipynb", "Ann Lee_77_assignsubmission_onlinetext_/onlinetext.html"],
            ("Ann Lee 77", "77", False),
        ),
        (r"hw1-(?P<student>\w+)-v\d.ipynb", ["hw1-ann-v1.ipynb", "hw1-ann-v2.ipynb"], ("ann", "", False)),
    ],
)
def test_platforms_names_tell_whose_a_file_is(tmp_path, kind, names, owner):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(notebook())
    found = find([tmp_path], naming(kind))
    assert {entry.student for entry in found} == {owner[0]} and {entry.id for entry in found} == {owner[1]}
    assert len(found) == 2 and any(entry.late for entry in found) == owner[2]


NAMED = [
    ("canvas", "LATE_anon_B3kz9_678908_02_distributed_mean.ipynb", ("anon_B3kz9", "", True, "")),
    ("canvas", "anon_x7Yq2_678906_02_distributed_mean.ipynb", ("anon_x7Yq2", "", False, "")),
    ("canvas", "project_team_12350_678907_02_distributed_mean.ipynb", ("project_team 12350", "12350", False, "")),
    (
        "blackboard",
        "hw2_aa_123_attempt_2025-11-10-23-59-00_02_distributed_mean.ipynb",
        ("aa_123", "", False, "2025-11-10 23:59:00"),
    ),
    (
        "brightspace",
        "12345-67890 - Ann Lee - Nov 10, 2025 1159 PM/02_distributed_mean.ipynb",
        ("Ann Lee 12345", "12345", False, "2025-11-10 23:59:00"),
    ),
    ("sakai", "Lee, Bo(blee)/Submission attachment(s)/02_distributed_mean.ipynb", ("Lee, Bo blee", "blee", False, "")),
    ("ilias", "Roe_Cy_croe_88/Versuch 2/02_distributed_mean.ipynb", ("Roe_Cy croe", "croe", False, "")),
]


@pytest.mark.parametrize("kind, name, owner", NAMED)
def test_each_platform_has_its_names(tmp_path, kind, name, owner):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(notebook())
    (one,) = found = find([tmp_path], naming(kind))
    assert (one.student, one.id, one.late, one.time) == owner and not remarks(found, naming(kind))
    assert f"--names {kind}" in " ".join(remarks(find([tmp_path]), naming()))


def test_an_export_from_gradescope_names_its_students_and_groups(tmp_path):
    for number in (301, 302):
        (tmp_path / f"submission_{number}").mkdir()
        (tmp_path / f"submission_{number}" / f"{MEAN}.ipynb").write_text(notebook())
    people = [
        "  - :name: Ann Lee\n    :sid: '12'\n",
        "  - :name: Bo Ray\n    :sid: '13'\n  - :name: Cy\n    :sid: '14'\n",
    ]
    text = "".join(f"submission_{301 + k}:\n  :submitters:\n{person}" for k, person in enumerate(people))
    (tmp_path / "submission_metadata.yml").write_text(
        f"---\n{text}  :created_at: 2025-11-10 23:59:00.000000000 -08:00\n"
    )
    found = {entry.student: (entry.id, entry.time) for entry in find([tmp_path])}
    assert found == {"Ann Lee 12": ("12", ""), "Bo Ray 13, Cy 14": ("13,14", "2025-11-11 07:59:00+00:00")}


def made_up(folder, rng):
    """A folder of submissions as classes hand them in: the names that must have a row."""
    kinds = [name for _, name, _ in NAMED]
    kinds += [
        "ann",
        "bob.zip",
        "carl.py",
        "emil.html",
        "._ann.ipynb",
        "index.html",
        ".hidden",
        "02_x.ipynb.json",
        "02.IPYNB",
    ]
    kinds += [
        f"{MEAN}.ipynb",
        f"{MEAN}(2).ipynb",
        "submission_metadata.yml",
        "Thumbs.db",
        "two\nlines",
        "exercises",
        "x.ipynb",
    ]
    names = set()
    for name in rng.sample(kinds, rng.randrange(1, len(kinds))):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        match rng.choice(["notebook", "text", "empty", "full", "loop", "link"]) if "/" not in name else "notebook":
            case "notebook" | "text" as kind:
                path.write_text(notebook() if kind == "notebook" else "x")
            case "empty" | "full" | "loop" as kind:
                path.mkdir()
                if kind == "full":
                    (path / rng.choice([f"{MEAN}.ipynb", "answer.zip"])).write_text(notebook())
                elif kind == "loop":
                    (path / "again").symlink_to(".")
            case "link":
                path.symlink_to(rng.choice(["nowhere", "/etc", "/etc/passwd"]))
        names.add(name.partition("/")[0])
    side = {name for name in ("index.html", "submission_metadata.yml") if not (folder / name).is_dir()}
    return names - side - {"Thumbs.db"}


@pytest.mark.parametrize("seed", range(40))
def test_nobody_is_lost_whatever_lies_there(tmp_path, seed):
    rng = random.Random(seed)
    names, kind = made_up(tmp_path, rng), rng.choice(["", *NAMES])
    entries = find([tmp_path], naming(kind))
    rows = defaultdict(list)
    for entry in entries:
        rows[Path(entry.file).parts[0]].append(entry)
    assert set(rows) == names
    for name, found in rows.items():
        path = tmp_path / name
        for entry in found:
            content, why = entry.read()
            assert bool(content) != bool(why)
            assert ("symbolic link" in why) == entry.path.is_symlink()
            assert ("empty folder" in why) == (path.is_dir() and not path.is_symlink() and not list(path.iterdir()))
            assert ("is not a notebook" in why) == (
                entry.path.is_file()
                and not entry.path.is_symlink()
                and (not entry.path.name.lower().endswith(".ipynb") or entry.path.name.startswith("._"))
            )
            assert ("named like an exercise" in why) == (
                name == f"{MEAN}.ipynb" and path.is_file() and len(names) > 1 and not path.is_symlink()
            )
    table = listing(entries)
    assert len(table.splitlines()) == len(entries) + 3


def test_one_students_own_folder_and_a_clone_are_one_students(tmp_path):
    for name in (MEAN, "05_distributed_argmax"):
        (tmp_path / "ann").mkdir(exist_ok=True)
        (tmp_path / "ann" / f"{name}.ipynb").write_text(notebook())
    assert [(entry.student, entry.problem) for entry in find([tmp_path / "ann"])] == [("ann", "")] * 2
    for name in ("exercises", "notebooks", "solutions"):
        (tmp_path / "clone" / name).mkdir(parents=True)
    (tmp_path / "clone" / "exercises" / f"{MEAN}.ipynb").write_text(notebook())
    assert [entry.student for entry in find([tmp_path / "clone"])] == ["clone"]


def test_a_name_that_does_not_fit_is_told_of(tmp_path):
    for name in ("leeann_12345_67890_mine.ipynb", "stranger.ipynb"):
        (tmp_path / name).write_text(notebook())
    (said,) = remarks(find([tmp_path], naming("canvas")), naming("canvas"))
    assert said.endswith("a student of its own: stranger.ipynb.")


def test_one_student_cannot_hand_in_without_end(tmp_path):
    (tmp_path / "ann").mkdir()
    for k in range(MAX_FILES + 5):
        (tmp_path / "ann" / f"{k:03}.ipynb").write_text(notebook())
    *graded, last = find([tmp_path])
    assert len(graded) == MAX_FILES and not any(entry.problem for entry in graded)
    assert last.problem.startswith("ann/060.ipynb and 4 more are not graded: at most 60 files of a student are.")


def test_the_list_comes_before_anything_runs_and_several_folders_are_refused(tmp_path, capsys):
    folder = tmp_path / "class"
    for name in ("ann", "bob"):
        (folder / name).mkdir(parents=True)
        (folder / name / "mine.ipynb").write_text(notebook())
    (folder / "carl.zip").write_text("x")
    (tmp_path / "class.csv").write_text("name\nann\nbob\ndora\n")
    out = ["--score", "--out", str(tmp_path / "report")]
    assert main([*out, "--list", "--roster", str(tmp_path / "class.csv"), str(folder)]) == 0
    said = capsys.readouterr().out
    assert "carl.zip is not a notebook" in said and "3 students, 1 of them with nothing to grade." in said
    assert "Nothing from: dora." in said and not (tmp_path / "report").exists()
    assert main([*out, *map(str, folder.iterdir())]) == 2
    assert f"Pass the one that holds all students: {folder}" in capsys.readouterr().err


@pytest.mark.parametrize("pattern", ["(", "no group"])
def test_a_pattern_that_is_none_is_refused(pattern):
    with pytest.raises(ValueError, match="--names"):
        naming(pattern)


def test_everything_may_be_one_students(tmp_path):
    for name in ("a.ipynb", "b.ipynb", "c.txt"):
        (tmp_path / name).write_text(notebook())
    assert {entry.student for entry in find([tmp_path], naming(student="me"))} == {"me"}


# --- what nobody hands in by accident -----------------------------------------------------


def in_a_zip(*names):
    """An archive whose names lead out of the folder where it is unpacked."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, notebook())
    return content.getvalue()


@pytest.mark.parametrize(
    "name, make, words",
    [
        ("a.ipynb", lambda path: path.symlink_to(SOLUTIONS / f"{MEAN}.ipynb"), "a.ipynb is a symbolic link"),
        ("a/2.ipynb", lambda path: path.symlink_to("/dev/zero"), "a/2.ipynb is a symbolic link"),
        ("a/all", lambda path: path.symlink_to(SOLUTIONS), "a/all is a symbolic link"),
        ("a/again", lambda path: path.symlink_to("."), "a/again is a symbolic link"),
        ("a.ipynb", os.mkfifo, "a.ipynb is not a file."),
        ("a.ipynb", lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 10**12), "a.ipynb has 1000000 MB;"),
        ("a.zip", lambda path: path.write_bytes(in_a_zip("../../x.ipynb", "/x.ipynb")), "a.zip is not a notebook."),
        ("a.ipynb", lambda path: path.write_bytes(in_a_zip("x.ipynb")), "a.ipynb is not a notebook, or its file"),
        ("a.ipynb", lambda path: path.write_text("[" * 10**6), "a.ipynb is not a notebook, or its file"),
        ("a.ipynb", lambda path: path.write_text(with_cells(10**5)), "a.ipynb has 100,0"),
    ],
)  # fmt: skip
def test_what_is_hostile_is_named_and_leads_nowhere(tmp_path, name, make, words):
    """Beside each lies a notebook of the same student, which counts."""
    folder = tmp_path / "class"
    (folder / name).parent.mkdir(parents=True)
    make(folder / name)
    (folder / "a").mkdir(exist_ok=True)
    (folder / "a" / "good.ipynb").write_text(notebook())
    before = sorted(tmp_path.rglob("*"))
    said = []
    for entry in find([folder]):
        content, why = entry.read()
        try:
            submission.parse(Path(entry.file), content) if not why else None
        except submission.UnusableSubmission as error:
            why = str(error)
        assert entry.student == "a"
        said.append(why)
    assert sorted(tmp_path.rglob("*")) == before
    assert len(said) == 2 and "" in said and "".join(said).startswith(words)


def with_cells(count):
    made = json.loads(notebook())
    return json.dumps(made | {"cells": made["cells"] + [{}] * count})


@pytest.fixture
def emptied(tmp_path):
    """A folder whose content may be too deep for pytest to remove."""
    (folder := tmp_path / "class").mkdir()
    yield folder
    subprocess.run(["rm", "-rf", folder], check=True)


@pytest.mark.parametrize("name, depth, why", [("d", 1500, ""), ("d" * 200, 30, "cannot be read: File name too long.")])
def test_a_notebook_in_a_thousand_folders_is_found_and_one_that_no_path_reaches_told_of(emptied, name, depth, why):
    (emptied / "zoe.ipynb").write_text(notebook())
    here = os.open(emptied, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        outer, here = here, os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(outer)
    with open(os.open("x.ipynb", os.O_CREAT | os.O_WRONLY, dir_fd=here), "w") as file:
        file.write(notebook())
    inode = os.stat("x.ipynb", dir_fd=here).st_ino
    os.close(here)
    deep, zoe = find([emptied])
    assert (deep.student, zoe.student) == (name, "zoe") and deep.read()[1].endswith(why) and zoe.read()[0]
    assert bool(deep.read()[0]) == ((inode, emptied.stat().st_dev) in walls._inodes([str(emptied)])) == (not why)
    assert all(len(line) < 10_000 for line in listing([deep, zoe]).splitlines())


def test_the_file_that_names_gradescopes_students_is_read_like_a_submission(tmp_path):
    (tmp_path / "class" / "s1").mkdir(parents=True)
    (tmp_path / "class" / "s1" / "x.ipynb").write_text(notebook())
    (tmp_path / "elsewhere.yml").write_text("s1:\n  :submitters:\n  - :name: Eve\n    :sid: '1'\n")
    metadata = tmp_path / "class" / "submission_metadata.yml"
    metadata.symlink_to(tmp_path / "elsewhere.yml")
    assert [entry.student for entry in find([tmp_path / "class"])] == ["s1"]
    metadata.unlink()
    os.mkfifo(metadata)  # which nobody writes to
    assert [entry.student for entry in find([tmp_path / "class"])] == ["s1"]


def test_a_name_is_the_same_whether_its_accents_stand_alone_or_not(tmp_path):
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "Zoe\u0308.ipynb").write_text(notebook())
    (tmp_path / "class.csv").write_text("name\nZo\u00eb\n")
    (entry,) = find([tmp_path / "class"])
    people = students([graded(entry.student)])
    assert roster.read([tmp_path / "class.csv"]).remarks(people) == ["1 on the roster, 1 handed in."]


@pytest.mark.parametrize("odd", ["\0", "\ud800"])
def test_a_character_that_no_program_has_is_named(odd):
    source = f"{RIGHT}\n# {odd}"
    with pytest.raises(SyntaxError, match="Line 5: .* is a character that no program has"):
        code_of(source)
    assert alike.pieces(source, "") and not alike.is_own(source, RING)


def test_parts_of_an_answer_that_are_too_long_together_are_not_read():
    """Not even compiled: for 30 MB that takes minutes."""
    with pytest.raises(submission.UnusableSubmission, match="has 20,1.. characters"):
        edited(lambda cell, cells: cells.append(cell | {"id": "5f1c2d3e", "source": "(" * 20_000}))


# --- notebooks ----------------------------------------------------------------------------


def without_ids(content):
    made = json.loads(content)
    made["nbformat_minor"] = 0
    for k, cell in enumerate(made["cells"]):
        cell["metadata"]["id"] = f"colab{k}"
        del cell["id"]
    return json.dumps(made)


def with_new_ids(content):
    made = json.loads(content)
    for k, cell in enumerate(made["cells"]):
        cell["id"] = f"new-{k}"
    return json.dumps(made)


@pytest.mark.parametrize("saved", [without_ids, with_new_ids, lambda content: "\ufeff" + content])
def test_an_answer_is_found_however_its_notebook_was_saved(saved):
    found = submission.parse(Path("mine.ipynb"), saved(notebook()).encode())
    assert found.exercise == MEAN and list(found.answers.values()) == [RIGHT] and not found.elsewhere


def test_an_untouched_notebook_without_ids_is_untouched():
    content = without_ids(release.text(without_solution(pristine(MEAN))))
    assert submission.parse(Path("mine.ipynb"), content.encode()).untouched


def test_a_copy_of_the_answer_cell_is_not_taken_for_it():
    made = json.loads(notebook())
    (cell,) = (cell for cell in made["cells"] if cell["source"] and "def distributed_mean" in "".join(cell["source"]))
    made["cells"].append(cell | {"id": "copy", "source": "def distributed_mean(x): pass"})
    found = submission.parse(Path("mine.ipynb"), json.dumps(made).encode())
    assert list(found.answers.values()) == [RIGHT]


def edited(change):
    """The answer's source as it is found in a notebook whose answer cell, and the list of cells, were changed."""
    made = json.loads(notebook())
    (cell,) = (cell for cell in made["cells"] if "def distributed_mean" in "".join(cell["source"]))
    change(cell, made["cells"])
    (source,) = submission.parse(Path("mine.ipynb"), json.dumps(made).encode()).answers.values()
    return source


def split(cell, cells):
    first, second = RIGHT[: RIGHT.index("    dist")], RIGHT[RIGHT.index("    dist") :]
    cells.insert(cells.index(cell) + 1, cell | {"id": "5f1c2d3e", "source": second})
    cell["source"] = first


def in_a_new_cell(cell, cells):
    cells.append({"cell_type": "code", "id": "5f1c2d3e", "metadata": {}, "source": RIGHT})
    cell["source"] = next(c.source for c in without_solution(pristine(MEAN)).cells if is_answer(c))


def without_anything(cell, cells):
    for each in cells:
        each.pop("id")
        each["metadata"] = {}


def below_much_output(cell, cells):
    cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["x" * 13_000_000]}]


@pytest.mark.parametrize("change", [split, in_a_new_cell, without_anything, below_much_output])
def test_an_answer_counts_where_its_student_put_it(tmp_path, change):
    assert edited(change).rstrip() in (RIGHT, RIGHT.replace("    dist.all", "\n    dist.all", 1))
    made = json.loads(notebook())
    below_much_output(made["cells"][1], [])
    (tmp_path / "ann.ipynb").write_text(json.dumps(made))
    assert [entry.read()[1] for entry in find([tmp_path])] == [""]


def test_an_old_format_and_a_merge_are_named():
    for content, words in (
        ('{"nbformat": 3, "worksheets": []}', "old format 3"),
        ('{"cells": [\n<<<<<<< HEAD\n]}', "Line 2 is the mark of a git merge"),
    ):
        with pytest.raises(submission.UnusableSubmission, match=words):
            submission.parse(Path("mine.ipynb"), content.encode())


RING = next(cell.source for cell in pristine("08_ring_all_reduce").cells if is_answer(cell))
UNMARKED = re.sub(r" *### (BEGIN|END) SOLUTION\n", "", RING + "\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda source: source.replace("\n", " \n", 1),
        lambda source: UNMARKED,
        lambda source: re.sub("    (?=dist)", "    # my own idea\n    ", UNMARKED).replace(" = ", "  =  "),
    ],
)
def test_a_copy_of_the_solution_is_known_by_its_marks_or_tokens(change):
    assert alike.is_own(change(RING), RING)


def test_an_answer_of_few_tokens_may_be_everybodys():
    solution = next(cell.source for cell in pristine(MEAN).cells if is_answer(cell))
    assert not alike.is_own(re.sub(r" *### (BEGIN|END) SOLUTION\n", "", solution + "\n"), solution)
    assert not alike.is_own(UNMARKED.replace("rank", "me"), RING) and not alike.is_own("(((", RING)


def test_pairs_with_much_the_same_code_are_listed():
    ring = "08_ring_all_reduce"
    stub = next(cell for cell in without_solution(pristine(ring)).cells if is_answer(cell))
    another = cell_of("ring_all_reduce", answers.RIGHT["ring_all_reduce"][0])
    sources = {
        "ann": UNMARKED,
        "bob": UNMARKED.replace("rank", "me").replace("chunks", "parts"),
        "cyd": another,
        "dan": stub.source,
    }
    made = [
        Grading(ring, student=name, pieces={stub.id: alike.pieces(source, stub.source)})
        for name, source in sources.items()
    ]
    pairs = alike.pairs(people := students(made))
    listed = {frozenset(pair[:2]): pair[2:] for pair in pairs}
    assert listed[frozenset(("ann", "bob"))][1] > 90 and not any("dan" in pair or "cyd" in pair for pair in listed)
    page = rendered("class.html", people=people, summary=summary(people), walls=True, pairs=pairs)
    assert "<td>ann<td>bob<td>08_ring_all_reduce<td class=n>9" in page and "<h1>Exercises in collective communication: the class" in page


def test_a_byte_order_mark_is_no_damage():
    submission.parse(Path("mine.ipynb"), codecs.BOM_UTF8 + notebook().encode())


# --- reports ------------------------------------------------------------------------------


def graded(student, points=3.0, **more):
    check = CheckScore("c", "distributed_mean: is it right?", points, 3.0, "" if points else "wrong.\nThink: why?")
    return Grading(MEAN, (check,), student=student, file=f"{student}.ipynb", **more)


def test_no_two_students_share_a_page():
    names = ["ann lee", "ann-lee", "李雷", "张伟", "ann", "-"]
    first = students([graded(name) for name in names])
    assert len({student.page for student in first}) == len(names)
    again = students([graded(name) for name in [*names, first[0].page.removeprefix("students/").removesuffix(".html")]])
    assert len({student.page for student in again}) == len(names) + 1


def test_scores_are_safe_where_semicolons_separate_and_name_the_pages():
    text = _csv(students([graded("ann;+cmd|' /C calc'!A0;b"), graded("=1+1")]))
    assert text.count('"ann;') == 1 and '"\'=1+1"' in text
    rows = list(csv.DictReader(text.splitlines()))
    assert all(re.fullmatch(r"students/[\w-]+\.html", row["page"]) for row in rows)


def test_junit_has_times_kinds_and_distinct_names():
    first, second = graded("ann", 0.0, seconds=2.0), graded("ann", 3.0, seconds=1.0)
    text = rendered("junit.xml", people=students([first, Grading(MEAN, second.checks, student="ann", file="again.ipynb", seconds=1.0)]))
    assert 'time="2.000"' in text and 'type="wrong"' in text and 'message="wrong. Think: why?"' in text
    names = re.findall(r'<testcase [^>]* name="([^"]+)"', text)
    assert len(set(names)) == len(names) == 2


CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section,HW (7)
    Points Possible,,,,,10
"Lee, Ann",12345,s1,alee,A,
"Roe, Bob",222,s2,broe,A,
"Zoe, Cyd",333,s3,czoe,A,
"""
MOODLE = "First name;Last name;ID number;Email address\nAnn;Lee;9;ann@x.org\nBob;Roe;8;bob@x.org\nCyd;Zoe;7;cyd@x.org\n"


@pytest.mark.parametrize(
    "text, people, file, row",
    [
        (CANVAS, [graded("leeann 12345", id="12345"), graded("roebob"), graded("eve")], "canvas.csv", '"Lee, Ann","12345","s1","alee","A","3"'),
        (MOODLE, [graded("Ann Lee 77", id="77"), graded("bob"), graded("eve")], "moodle.csv", '"Ann","Lee","9","ann@x.org","3"'),
    ],
)  # fmt: skip
def test_a_roster_says_who_handed_in_nothing_and_gives_what_platforms_import(tmp_path, text, people, file, row):
    (tmp_path / "class.csv").write_text(text)
    listed, people = roster.read([tmp_path / "class.csv"]), students(people)
    said, saved = "\n".join(listed.remarks(people)), listed.files(people)
    assert "3 on the roster, 2 handed in." in said and re.search(r"Nothing from: (Zoe, Cyd 333|Cyd Zoe)\.", said)
    assert "Not on the roster, or more than once: eve." in said
    lines = saved[file].splitlines()
    assert row in lines and sum(line.endswith(',""') for line in lines) >= 1
    assert [len(line) for line in csv.reader(lines)] == [len(next(csv.reader(lines)))] * len(lines)
    assert saved["roster.csv"].count("students/") == 2


def test_a_name_that_a_spreadsheet_would_compute_is_text_in_what_is_read(tmp_path):
    (tmp_path / "class.csv").write_text("First name,Email address\n=1+1,ann@x.org\n")
    saved = roster.read([tmp_path / "class.csv"]).files(students([graded("ann")]))
    assert '"\'=1+1"' in saved["roster.csv"] and '"=1+1"' in saved["moodle.csv"]


def test_a_student_whom_two_rows_name_is_on_none(tmp_path):
    (tmp_path / "class.csv").write_text("name,id\nAnn Lee,1\nann lee,2\n")
    joined, strangers = roster.read([tmp_path / "class.csv"]).joined(students([graded("Ann Lee")]))
    assert [student.name for student in strangers] == ["Ann Lee"] and not any(student for _, student in joined)


@pytest.mark.parametrize("text", ["", "name\n", "\0"])
def test_a_roster_that_names_nobody_is_refused(tmp_path, text):
    (tmp_path / "class.csv").write_text(text)
    with pytest.raises(Unfit, match="roster"):
        roster.read([tmp_path / "class.csv"])


ARGMAX = "05_distributed_argmax"
RULES = """[assignment]
due = 2026-11-10 23:59
attempt = {}
late = 10%

[exercises]
2 = 10
05
"""


def attempt(file, points, **more):
    check = CheckScore("c", "distributed_mean: is it right?", points, 3.0, "")
    return Grading(MEAN, (check,), student="ann", file=file, **more)


@pytest.mark.parametrize("rule, points, file", [("first", 3.33, "1"), ("last", 6, "3"), ("best", 9, "2")])
def test_an_assignment_says_what_counts_and_for_how_much(tmp_path, rule, points, file):
    (tmp_path / "hw.ini").write_text(RULES.format(rule))
    task = assignment.read("", tmp_path / "hw.ini")
    attempts = [
        attempt("hw-1.ipynb", 1.0, time="2026-11-10 12:00:00"),
        attempt("hw-2.ipynb", 3.0, time="2026-11-11 00:00:00"),
        attempt("hw-3.ipynb", 2.0, late=True),
    ]
    (ann,) = students([replace(one, time=one.time or "2026-11-12 00:00:00") for one in reversed(attempts)], task)
    assert ann.points(MEAN) == points and file in ann.counted(MEAN).file and ann.late
    assert ann.of == {MEAN: 10, ARGMAX: assignment.worth(ARGMAX)} and ann.lacks == [ARGMAX]
    if rule == "last":
        page = rendered("student.html", student=ann)
        assert "which takes 10% of its points" in page and "Not handed in: 05_distributed_argmax." in page


def test_an_untouched_notebook_is_not_handed_in_and_asks_nothing_of_others():
    clone = [Grading(MEAN, untouched=True, student="bob"), Grading(ARGMAX, untouched=True, student="bob")]
    ann, bob = students([graded("ann"), *clone])
    assert ann.most == 3 and ann.lacks == [] and bob.total == 0 and bob.lacks == [MEAN]
    assert "Not handed in: 02_distributed_mean (untouched)." in rendered("student.html", student=bob)
    (only,) = students([graded("ann")], assignment.read("5", None))
    assert (
        only.total == 0
        and only.of.keys() == {ARGMAX}
        and "Not part of this assignment: ann.ipynb" in rendered("student.html", student=only)
    )


def test_changes_by_hand_are_kept_and_shown(tmp_path):
    (tmp_path / "a.csv").write_text("student;exercise;points;comment\nann;2;-0,5;Why the clone?\nbob;;1;\neve;;1;\n")
    task = assignment.adjusted(assignment.Assignment(), tmp_path / "a.csv")
    ann, bob = people = students([graded("ann"), graded("bob")], task)
    assert (ann.points(MEAN), ann.total, bob.total) == (2.5, 2.5, 4)
    assert "02_distributed_mean, by hand: -0.5 points. Why the clone?" in rendered("student.html", student=ann)
    row = next(csv.DictReader(_csv(people).splitlines()))
    assert (row["by hand"], row["comments"]) == ("-0.5", "Why the clone?") and unknown(people)[0].endswith(": eve.")


@pytest.mark.parametrize(
    "text",
    [
        "[exercises]\n99",
        "[exercises]\n2 = x",
        "[assignment]\nattempt = worst",
        "[more]",
        "02",
        "[assignment]\ndue = soon",
    ],
)
def test_an_assignment_that_cannot_be_meant_is_refused(tmp_path, text):
    (tmp_path / "hw.ini").write_text(text)
    with pytest.raises(ValueError, match="hw.ini"):
        assignment.read("", tmp_path / "hw.ini")
    (tmp_path / "a.csv").write_text("student,exercise,points,comment\nann,2,many,\n")
    with pytest.raises(ValueError, match="a.csv"):
        assignment.adjusted(assignment.Assignment(), tmp_path / "a.csv")
    (tmp_path / "a.csv").write_bytes("student,exercise,points,comment\nZoë,2,1,\n".encode("cp1252"))
    with pytest.raises(ValueError, match="a.csv .* isn't in UTF-8, which Excel calls CSV UTF-8"):
        assignment.adjusted(assignment.Assignment(), tmp_path / "a.csv")


def test_a_pair_shares_what_either_hands_in(tmp_path):
    (tmp_path / "class.csv").write_text("name,id,Team\nAnn,1,red\nBob,2,red\nCyd,3,blue\nDan,4,blue\nEve,5,\nFay,6,\n")
    people = students([graded("ann"), graded("blue", 0.0), graded("Eve 5, Fay 6", id="5,6")])
    joined, strangers = roster.read([tmp_path / "class.csv"]).joined(people)
    assert [student.name for _, student in joined] == ["ann", "ann", "blue", "blue", "Eve 5, Fay 6", "Eve 5, Fay 6"]
    assert not strangers


def test_a_partner_whose_own_file_is_of_no_use_has_the_pairs_points_and_changes_of_his_own(tmp_path):
    """As Canvas exports a class: its gradebook has no groups, which are in another list. Names are as in any column."""
    (tmp_path / "class.csv").write_text(CANVAS)
    (tmp_path / "groups.csv").write_text("name,login_id,group_name\nAnn Lee,alee,Pair 1\nBob Roe,broe,Pair 1\n")
    (tmp_path / "a.csv").write_text(
        'student,exercise,points,comment\n"Roe, Bob",2,-1,Where is yours?\ns3,,4,By mail\neve,,1,\n'
    )
    task = assignment.adjusted(assignment.Assignment(), tmp_path / "a.csv")
    listed = roster.read([tmp_path / "class.csv", tmp_path / "groups.csv"])
    zipped = Grading(problem="roebob.zip is not a notebook.", student="roebob 222", id="222")
    people = listed.completed(students([graded("leeann 12345", id="12345"), zipped], task), task)
    assert {one.name: one.total for one in people} == {"leeann 12345": 3, "roebob 222": 2, "Zoe, Cyd": 4}
    assert unknown(people)[0].endswith(": eve.") and "Where is yours?" in rendered("student.html", student=people[1])
    saved = listed.files(people)
    assert listed.remarks(people) == ["3 on the roster, 2 handed in.", "Nothing from: Zoe, Cyd 333."]
    assert '"Zoe, Cyd","333","s3","czoe","A","","4"' in saved["canvas.csv"]  # by hand, of no exercise
    assert [row["points"] for row in csv.DictReader(saved["roster.csv"].splitlines())] == ["3", "2", "4"]
    one, misspelled = (
        [replace(student, assignment=replace(student.assignment, column=column)) for student in people]
        for column in ("HW (7)", "HW 7")
    )
    assert any("has no column HW 7, so Canvas would add one" in sentence for sentence in listed.remarks(misspelled))
    assert "column" not in " ".join(listed.remarks(one))
    saved = listed.files(one)
    assert [row["HW (7)"] for row in csv.DictReader(saved["canvas.csv"].splitlines())] == ["3", "3", "2", "4"]


@pytest.mark.parametrize(
    "rule, due, time, points",
    [
        ("10", "2026-11-10 23:59", "2026-11-10 23:59:30", 10),  # the minute is his
        ("10", "2026-11-10 23:59", "2026-11-13 12:00:00", 9),
        ("10 per day", "2026-11-10 23:59", "2026-11-11 00:00:30", 9),
        ("10% per day, at most 25%", "2026-11-10 23:59", "2026-11-12 12:00:00", 8),
        ("10 per day at most 25", "2026-11-10 23:59", "2026-12-24 12:00:00", 7.5),
        ("30 per day", "2026-11-10 23:59", "2026-12-24 12:00:00", 0),
        ("10", "2026-11-10 23:59 America/New_York", "2026-11-11 04:59:59+00:00", 10),
        ("10", "2026-11-10 23:59 America/New_York", "2026-11-11 05:00:00+00:00", 9),
        ("10", "2026-11-10 23:59 +01:00", "2026-11-10 22:59:59+00:00", 10),
        ("10", "2026-11-10 23:59 UTC", "2026-11-11 00:00:00", 9),  # the platform's clock is the due date's
    ],
)
def test_lateness_takes_a_part_by_days_up_to_a_limit_and_knows_zones(tmp_path, rule, due, time, points):
    (tmp_path / "hw.ini").write_text(f"[assignment]\ndue = {due}\nlate = {rule}\n[exercises]\n02 = 10\n")
    task = assignment.read("", tmp_path / "hw.ini")
    (ann,) = students([attempt("a.ipynb", 3.0, time=time)], task)
    assert ann.total == points and ("which takes" in rendered("student.html", student=ann)) == (points < 10)


def test_a_word_for_lateness_counts_as_a_day_and_a_zone_that_is_none_is_named(tmp_path):
    (tmp_path / "hw.ini").write_text("[assignment]\nlate = 20 per day\n[exercises]\n02 = 10\n")
    (ann,) = students([attempt("a.ipynb", 3.0, late=True)], assignment.read("", tmp_path / "hw.ini"))
    assert ann.total == 8 and "Handed in 1 day late, which takes 20% of its points." in rendered("student.html", student=ann)
    (tmp_path / "hw.ini").write_text("[assignment]\ndue = 2026-11-10 23:59 Atlantis/Center\n")
    with pytest.raises(ValueError, match="no time zone Atlantis/Center; write due with an offset"):
        assignment.read("", tmp_path / "hw.ini")


@one_in(0, 2)
def test_the_recipe_for_gradescope_grades_a_submission(tmp_path):
    (tmp_path / "submission").mkdir()
    for name in ("first", "second"):
        (tmp_path / "submission" / f"{name}.ipynb").write_text(notebook())
    course = tmp_path / "source" / "course" / ".venv" / "bin"
    course.mkdir(parents=True)
    (course / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (course / "python").chmod(0o755)
    environ = {**os.environ, "AUTOGRADER": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([EXERCISES / "gradescope" / "run_autograder"], env=environ, check=True, capture_output=True)
    results = json.loads((tmp_path / "results" / "results.json").read_text())
    assert results["score"] == 3 and len(results["tests"]) == 2


def copied(containerfile, folder):
    """A folder with what the recipe's COPY lines bring into the container, and nothing else."""
    for line in containerfile.splitlines():
        if line.startswith("COPY "):
            *sources, target = line.split()[1:]
            for source in sources:
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / source, folder / target)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap")
def test_what_the_recipe_for_a_container_copies_is_enough_to_grade_in_one_with_the_sandbox_inside(tmp_path):
    """Walls of namespaces are the container: nothing of this machine but Python, the system, the copy and the class."""
    recipe = (EXERCISES / "container" / "Containerfile").read_text()
    (tmp_path / "course").mkdir()
    course = copied(recipe, tmp_path / "course")
    (tmp_path / "class" / "submissions").mkdir(parents=True)
    (tmp_path / "class" / "submissions" / "ann.ipynb").write_text(notebook())
    python, *program = json.loads(re.search("^ENTRYPOINT (.*)", recipe, re.M)[1])
    assert python == "/course/.venv/bin/python"  # made by `make env`, in the place of which this environment is
    shown = {"/usr", "/etc/alternatives", "/etc/ld.so.cache", sys.prefix, sys.base_prefix}
    options = [part for path in sorted(shown) if os.path.exists(path) for part in ("--ro-bind", path, path)]
    options += [part for name in ("lib", "lib64", "bin") for part in ("--symlink", f"usr/{name}", f"/{name}")]
    options += ["--bind", str(course), "/course", "--bind", str(tmp_path / "class"), "/class", "--chdir", "/class"]
    done = subprocess.run(
        ["bwrap", "--unshare-all", "--uid", "0", "--gid", "0", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp",
         *options, sys.executable, *program, "submissions"],
        env={"PYTHONPATH": "/course", "PATH": "/usr/bin", "HOME": "/tmp"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and re.search(r"^ann +3 +3 +3$", done.stdout, re.M), done.stdout + done.stderr
    report = json.loads((tmp_path / "class" / "report" / "report.json").read_text())
    assert report["grading"]["sandbox"] is True


@one_in(1, 2)
def test_the_workflow_for_github_classroom_grades_a_clone_and_reports_its_points(tmp_path):
    workflow = yaml.safe_load((EXERCISES / "classroom" / "classroom.yml").read_text())
    steps = workflow["jobs"]["points"]["steps"]
    (grades,) = (step for step in steps if step.get("id") == "grade")
    (tmp_path / "submission" / "exercises").mkdir(parents=True)
    (tmp_path / "submission" / "exercises" / f"{MEAN}.ipynb").write_text(notebook())
    (tmp_path / "course" / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "course" / "exercises").symlink_to(EXERCISES)
    python = tmp_path / "course" / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    environ = {"PYTHONPATH": str(ROOT), "STUDENT": "ann-lee", "GITHUB_OUTPUT": str(tmp_path / "output")}
    script = grades["run"].replace("--score", "--score --no-sandbox --no-pictures")  # GitHub's machines have one
    subprocess.run(
        ["bash", "-e", "-c", script],
        env=os.environ | environ | workflow["env"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    worth = sum(assignment.worth(name) for name in (ARGMAX, "08_ring_all_reduce"))  # not handed in
    result = json.loads(base64.b64decode((tmp_path / "output").read_text().removeprefix("result=")))
    assert (result["max_score"], result["status"], len(result["tests"])) == (3 + worth, "fail", 2)
    assert [path.name[:8] for path in (tmp_path / "report" / "students").iterdir()] == ["ann-lee-"]
