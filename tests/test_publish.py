"""`make release`, `make renew` and `make licenses`: what they refuse, and what comes out."""

import os
import re
import signal
import subprocess
import sys
import tarfile
import zipfile

import pytest
from flit_core import buildapi
from packaging.requirements import Requirement

from collectives import __version__
from tests import ROOT
from tools import licenses, publish, renew


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A small repository in the course's place, with nothing released."""
    (tmp_path / "collectives").mkdir()
    (tmp_path / "collectives" / "version.py").write_text('__version__ = "1.2.0"\n')
    (tmp_path / ".changes").mkdir()
    (tmp_path / ".changes" / "README.md").write_text("How.\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n## 1.1.0, 2026-01-01\n- Old.\n")
    monkeypatch.setattr(publish, "ROOT", tmp_path)
    monkeypatch.setattr(publish, "DIST", tmp_path / "dist")
    monkeypatch.setattr(publish, "SITE", tmp_path / "_site")
    monkeypatch.setattr(publish, "FRAGMENTS", tmp_path / ".changes")
    for words in (["init", "-q"], ["add", "."]):
        publish.git(*words)
    commit()
    return tmp_path


def commit():
    publish.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "a change", "--allow-empty")


def test_a_release_starts_from_a_commit_that_has_no_other_release_of_this_version(course):
    assert publish.committed() == "v1.2.0"
    publish.git("tag", "v1.2.0")
    assert publish.committed() == "v1.2.0"  # this very commit: the workflow that the tag starts
    commit()
    with pytest.raises(publish.Missing, match="v1.2.0 is released already. Raise __version__"):
        publish.committed()
    (course / "CHANGELOG.md").write_text("changed")
    with pytest.raises(publish.Missing, match="Commit these first, .*\nM? ?M CHANGELOG.md"):
        publish.committed()


def test_a_release_has_notes(course):
    file = course / "CHANGELOG.md"
    with pytest.raises(publish.Missing, match="nothing about 1.2.0 in CHANGELOG.md"):
        publish.notes()
    file.write_text("# Changelog\n## 1.2.0, not released\n- New.\n- Newer.\n\n## 1.1.0, 2026-01-01\n- Old.\n")
    with pytest.raises(publish.Missing, match="today's date for this version now. Commit it"):
        publish.notes()
    assert re.search(r"^## 1.2.0, 20\d\d-\d\d-\d\d$", file.read_text(), re.MULTILINE)
    assert publish.notes() == "2 lines" and (course / "dist" / "NOTES.md").read_text() == "- New.\n- Newer.\n"
    (course / ".changes" / "+late.added.md").write_text("Newest.\n")
    with pytest.raises(publish.Missing, match="about 1.2.0 already. Move .late.added.md from .changes there"):
        publish.notes()


@pytest.mark.parametrize("program", publish.PROGRAMS)
def test_a_release_is_not_made_without_a_program_that_its_parts_need(program, tmp_path, monkeypatch):
    for name in publish.PROGRAMS.keys() - {program}:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(publish.Missing, match=f"There is no {program} here, to .* Install "):
        publish.equipped()


def test_a_site_whose_pages_have_no_python_is_not_released(course):
    make = "site:\n\t@mkdir -p {}; echo '<title>Course</title>' > _site/index.html; echo npm cannot fetch it\n"
    (course / "Makefile").write_text(make.format("_site"))
    with pytest.raises(publish.Missing, match="pages have no Python:\nnpm cannot fetch it"):
        publish.served()
    (course / "Makefile").write_text(make.format("dist _site/_static/python"))
    assert publish.served().startswith("1 pages, ") and (course / "dist" / "site.zip").exists()


def test_a_command_that_fails_is_named_with_its_last_words():
    with pytest.raises(publish.Missing, match="(?s)-c .* ended with 3:\nno disk"):
        publish.call(sys.executable, "-c", "print('no disk'); raise SystemExit(3)")


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a clone can be cloned")
def test_the_source_distribution_is_this_commit_and_the_wheel_the_library(tmp_path, monkeypatch):
    """What is committed now, in a clone: a file of a checkout may be anybody's."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    monkeypatch.setattr(publish, "ROOT", clone)
    monkeypatch.setattr(publish, "DIST", tmp_path)
    monkeypatch.chdir(clone)
    assert buildapi.build_wheel(str(tmp_path)) == publish.wheel().name
    assert buildapi.build_sdist(str(tmp_path)) == publish.source().name
    assert publish.complete().endswith(" files")
    with zipfile.ZipFile(publish.wheel()) as file:
        assert (
            f"\nVersion: {__version__}\n" in file.read(f"collectives_course-{__version__}.dist-info/METADATA").decode()
        )
    with tarfile.open(publish.source()) as file:
        lacking = [member for member in file.getmembers() if not member.name.endswith("INSTALL.md")]
        with tarfile.open(tmp_path / "less.tar.gz", "w:gz") as less:
            for member in lacking:
                less.addfile(member, file.extractfile(member) if member.isfile() else None)
    (tmp_path / "less.tar.gz").rename(publish.source())
    with pytest.raises(publish.Missing, match="lacks INSTALL.md: "):
        publish.complete()


def test_what_a_renewal_changed():
    before = "# head\nrich==14.1\ntorch==2.13.0\nold==1; python_version < '3.11'\nflit_core==4.2\n"
    after = "# head\nrich==15.0\ntorch==2.13.0; sys_platform == 'linux'\nnew==2\nflit-core==4.2\n"
    assert [line.split() for line in renew.changes(before, after)] == [
        ["new", "not", "there", "->", "2"],
        ["old", "1", "->", "gone"],
        ["rich", "14.1", "->", "15.0"],
    ]


RENEWS = """
import sys
from pathlib import Path
from tools import renew

renew.ROOT, renew.FILE, renew.resolved = Path(), Path("constraints.txt"), lambda: "torch==3\\n"
sys.exit(renew.main())
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, "fails", "passes"])
def test_versions_are_renewed_only_when_the_tests_have_passed(end, tmp_path):
    (tmp_path / "constraints.txt").write_text("# head\ntorch==2\n")
    # Its tests say that they run, and end as they are told.
    (tmp_path / "Makefile").write_text(
        "test-all:\n\t@echo tests run; sh -c 'read word || echo nobody ended them; test $$word = passes' && true\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    here = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    with subprocess.Popen([sys.executable, "-c", RENEWS], **pipes, **here) as renewal:
        assert any(line == "tests run\n" for line in renewal.stdout)
        assert (tmp_path / "constraints.txt").read_text() == "# head\ntorch==3\n"
        if isinstance(end, signal.Signals):
            renewal.send_signal(end)
        else:
            renewal.stdin.write(f"{end}\n")
            renewal.stdin.flush()
        renewal.wait(timeout=60)
        words, _ = renewal.communicate()  # closes what the tests read from
    new = end == "passes"
    assert "nobody" not in words
    assert ("All tests pass" in words) == new and ("constraints.txt is as it was" in words) == (not new)
    assert (tmp_path / "constraints.txt").read_text() == f"# head\ntorch=={3 if new else 2}\n"
    assert (renewal.returncode == 0) == new


@pytest.mark.parametrize(
    "words, allowed",
    [
        ("MIT", True),
        ("Apache-2.0 AND (MIT OR GPL-3.0-only)", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("Apache-2.0 AND MIT", True),
        ("Apache-2.0 AND GPL-2.0-only", False),
        ("BSD License; GNU General Public License (GPL)", True),
        ("UNKNOWN", False),
    ],
)
def test_licenses_that_let_the_course_depend_on_a_package(words, allowed):
    assert licenses.is_allowed(words) == allowed


def test_the_page_of_licenses_has_every_package_that_is_pinned_for_this_system():
    page = (ROOT / "LICENSES.md").read_text()
    listed = {licenses.canonical(name) for name in re.findall(r"^\| ([\w.-]+) \| ", page, re.MULTILINE)}
    assert listed <= licenses.pinned() | {"package"}
    here = {"python_version": "3.11", "python_full_version": "3.11.7", "sys_platform": "linux", "os_name": "posix"}  # of the page
    pins = map(Requirement, re.findall(r"^[^#\n].*", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    needed = {licenses.canonical(pin.name) for pin in pins if not pin.marker or pin.marker.evaluate(here)}
    assert needed - listed == set(), "make licenses"
