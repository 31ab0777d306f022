"""`make lab` and what comes before it: the installer and the check, met with environments that are really broken."""

import fcntl
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from subprocess import PIPE
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests import ROOT
from tools import install

CHECK = [sys.executable, "-I", str(ROOT / "tools" / "check.py")]


def call(command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def new_venv(path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
    return path / "bin" / "python"


@pytest.mark.slow
def test_check_passes_here_and_ends_with_two_ranks():
    result = call(CHECK)
    assert result.returncode == 0, result.stderr
    assert "torch 2." in result.stdout and re.search(r"Two ranks made an all_reduce in \d", result.stdout)


@pytest.mark.slow
def test_make_lab_checks_an_environment_once_and_again_when_it_is_another():
    found = Path(sys.prefix, "found-fit")
    if not Path(sys.prefix, "made-from").exists():
        pytest.skip("this environment was not made by make")
    assert call(CHECK).returncode == 0
    known, again = found.read_text(), call([*CHECK, "--once"])
    assert (again.returncode, again.stdout) == (0, "")
    found.write_text("of another machine")
    assert "Two ranks made an all_reduce" in call([*CHECK, "--once"]).stdout and found.read_text() == known


def test_in_a_terminal_the_installer_shows_the_last_line_of_what_it_starts_and_all_errors():
    code = "import sys; print('early ' * 40, 'late', sep=chr(10), flush=True); sys.stderr.write('ERROR: no disk'); sys.exit(3)"
    script = f"from tools.install import quietly; import sys; sys.exit(quietly([sys.executable, '-c', {code!r}]))"
    ours, theirs = pty.openpty()
    shown = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=theirs, stderr=theirs)
    assert shown.wait(timeout=120) == 3
    seen = os.read(ours, 10_000).decode()
    assert "late" in seen and "ERROR: no disk" in seen and "\n" not in seen
    for end in (ours, theirs):
        os.close(end)


@pytest.mark.parametrize("script", ["check", "lab"])
def test_control_c_while_something_loads_prints_no_traceback(script):
    """Once its first module is there that takes long to load."""
    watched = f"import runpy, sys; sys.argv = ['{script}.py', '--no-browser']; runpy.run_path('tools/{script}.py', run_name='__main__')"
    slow = {"check": "torch", "lab": "jupyterlab_server"}[script]
    command = [sys.executable, "-X", "importtime", "-c", watched]
    interrupt = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    with subprocess.Popen(command, cwd=ROOT, stdout=PIPE, stderr=PIPE, text=True, preexec_fn=interrupt) as loads:
        seen = next(line for line in loads.stderr if f" {slow}." in line)
        loads.send_signal(signal.SIGINT)
        seen += loads.stderr.read()
    assert loads.returncode in (130, -signal.SIGINT) and "Traceback" not in seen


def test_check_names_a_course_that_is_not_installed(tmp_path):
    result = call([new_venv(tmp_path), "-I", ROOT / "tools" / "check.py"])
    assert result.returncode == 1
    assert "not installed in this Python" in result.stderr and 'pip install -e ".[course]' in result.stderr


def test_check_names_a_missing_package(tmp_path):
    python = new_venv(tmp_path)
    (site,) = tmp_path.glob("lib/python*/site-packages")
    for name, text in {"collectives_course": "Requires-Dist: nbval\nRequires-Dist: torch", "nbval": ""}.items():
        (site / f"{name}-0.1.dist-info").mkdir()
        (site / f"{name}-0.1.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 0.1\n{text}\n")
    result = call([python, "-I", ROOT / "tools" / "check.py"])
    assert result.returncode == 1
    assert "torch is missing" in result.stderr


def test_check_names_a_torch_that_does_not_load(tmp_path):
    """As when a file of it is damaged, or a library of the system is missing."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libgomp.so.1: cannot open shared object file')")
    found_first = f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r})"
    result = call([sys.executable, "-I", "-c", f"{found_first}; runpy.run_path({CHECK[-1]!r}, run_name='__main__')"])
    assert result.returncode == 1
    assert "does not load: OSError: libgomp.so.1" in result.stderr and "make clean" in result.stderr


def test_check_names_a_file_that_a_notebook_would_import_in_place_of_a_package(tmp_path):
    (tmp_path / "torch.py").write_text("")
    for options in ([], ["--once"]):
        result = call([*CHECK, *options], env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"})
        assert result.returncode == 1 and "What to do" in result.stderr
        assert f"Notebooks would import torch from {tmp_path / 'torch.py'}" in result.stderr


def test_check_names_a_machine_that_cannot_talk_to_itself():
    alone = ["unshare", "--net", "--map-root-user"]
    if not shutil.which("unshare") or call([*alone, "true"]).returncode:
        pytest.skip("needs Linux and the right to make a network namespace")
    result = call([*alone, *CHECK])
    assert result.returncode == 1
    assert "cannot talk to itself over 127.0.0.1" in result.stderr and "ip link set lo up" in result.stderr


@pytest.mark.slow
def test_installer_says_what_to_do_when_pip_fails_and_does_not_call_it_done(tmp_path):
    venv = tmp_path / "env"
    command = [sys.executable, "-I", str(ROOT / "tools" / "install.py"), str(venv), ""]
    for _ in range(2):
        # No index, no wheels of one's own: what a machine without network comes to, at once.
        result = call(command, env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)})
        assert result.returncode == 1
        assert "pip could not install" in result.stderr and "give the same command again" in result.stderr
    assert not (venv / "made-from").exists()


def test_of_two_installers_one_waits_and_then_has_nothing_left_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    first = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    command = [sys.executable, "-I", "tools/install.py", tmp_path, ""]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as second:
        assert "waiting for it" in second.stdout.readline() and second.poll() is None
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python").touch()
        (tmp_path / "made-from").write_text(install.sources())
        os.close(first)
        assert (second.wait(timeout=60), second.stdout.read()) == (0, "")


def asked(address, server):
    """What a server answers, which may say its address a moment before it listens there."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return urlopen(address, timeout=30)
        except URLError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def test_lab_opens_the_first_chapter_though_its_port_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [
            sys.executable,
            "-I",
            str(ROOT / "tools" / "lab.py"),
            "--no-browser",
            f"--ServerApp.port={port}",
        ]
        homes = {name: str(tmp_path) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")}
        lab = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **homes}
        )
        impatient = threading.Timer(120, lab.kill)  # its output ends then, and with it the search
        impatient.start()
        try:
            address = (
                r"(http://127.0.0.1:(\d+))/lab/workspaces/collectives/tree/notebooks/00_start_here.ipynb\?(token=\w+)"
            )
            seen = next((found for line in lab.stdout if (found := re.search(address, line))), None)
            assert seen and int(seen[2]) != port
            assert asked(seen[0], lab).status == 200
            # The whole course is there, so links from a chapter to other folders work.
            assert asked(f"{seen[1]}/api/contents/README.md?{seen[3]}", lab).status == 200
        finally:
            impatient.cancel()
            lab.terminate()
            lab.communicate(timeout=60)
