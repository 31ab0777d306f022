"""Programs that the recorder starts begin, and fail, as they do under python alone. The program is corpus/starts."""

import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile

import pytest
from torch.distributed.run import get_args_parser

from collectives.watch import __main__
from tests import ROOT
from tests.sampling import one_in

ABOUT = ROOT / "tests" / "corpus" / "starts" / "about.py"


@pytest.fixture
def programs(tmp_path):
    """A folder with the program as a script, behind a link, as a folder, a zip file, and in a package."""
    shutil.copy(ABOUT, tmp_path / "about.py")
    for folder in ("bin", "folder", "package/inner"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "bin" / "linked.py").symlink_to(tmp_path / "about.py")
    for main in ("folder", "package/inner"):
        shutil.copy(ABOUT, tmp_path / main / "__main__.py")
    shutil.copy(ABOUT, tmp_path / "package" / "train.py")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as app:
        app.write(ABOUT, "__main__.py")
    (tmp_path / "broken.py").write_text("def f(:\n")
    return tmp_path


def printed(folder, *command):
    """What a program prints and says to standard error, and its exit code; it is a job of one rank."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environ = os.environ | {"PYTHONPATH": str(ROOT), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environ, capture_output=True, text=True, timeout=120
    )
    return done.stdout, done.stderr, done.returncode


FORMS = [
    ["about.py", "--lr", "0.5"],
    ["bin/linked.py"],
    ["folder"],
    ["app.zip", "--name", "second"],
    ["-m", "package.train", "--lr", "2"],
    ["-m", "package.inner"],
    ["broken.py"],
]


@pytest.mark.parametrize(
    "form", [pytest.param(f, marks=one_in(k, 4), id=" ".join(f)) for k, f in enumerate(FORMS)]
)
def test_a_program_starts_and_fails_as_under_python(form, programs):
    out, err, code = printed(programs, *form)
    recorded = printed(programs, "-m", "collectives.watch", "--record", "r", *form)
    assert re.sub(r"0x\w+", "", recorded[0]) == re.sub(r"0x\w+", "", out)
    assert err in re.sub(r"^collectives\.jobs: .*\n", "", recorded[1], flags=re.MULTILINE)  # which the collector says
    assert recorded[2] == code == 1


@pytest.mark.parametrize(
    "line",
    ["train.py -- --lr 2", "-m package.train -- --lr 2", "train.py a -- b", "train.py -- -- b", "-m train -m -- b"],
)
def test_dashes_between_a_script_and_its_arguments_are_dropped_as_torchrun_drops_them(line):
    """As in nanochat's `torchrun -m scripts.base_train -- --depth 12`."""
    plain, own = get_args_parser().parse_args(line.split()), __main__.arguments(line.split())
    assert own.script == [plain.training_script, *plain.training_script_args] and own.module == plain.module


@pytest.mark.parametrize("launcher", ["--local_rank", "--local-rank"])
def test_a_local_rank_that_a_launcher_puts_behind_the_module_reaches_the_script(launcher):
    """deepspeed writes the first, python -m torch.distributed.launch the second."""
    own = __main__.arguments([f"{launcher}=3", "--last", "7", "-m", "package.train", "--lr", "2"])
    assert own.script == ["package.train", f"{launcher}=3", "--lr", "2"] and own.module and own.last == 7
    assert __main__.arguments(["train.py", f"{launcher}=3"]).script == ["train.py", f"{launcher}=3"]
