"""Which test notices what is broken:   python -m tests.bench.power [number ...]

Breaks one behaviour at a time in a copy of the course and runs the files whose tests should notice, first those that
`make test` runs, then those of `make test-all`. To be run when tests are left out or made fewer; all of it takes half
an hour. Each text that is broken has to be in its file once, which tests/test_repository.py checks: where the line has
changed, break the new one.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests import ROOT

RUNS = {"make test": "not slow and not nightly", "make test-all": "not nightly"}


class Break(NamedTuple):
    what: str
    where: str  # a module, or a file by its path
    old: str
    new: str
    tests: str  # files, and options of pytest to choose among their tests


BREAKS = [
    Break(
        "an all_reduce moves a byte more", "collectives.log.traffic",
        'share * e.nbytes * (collective.root != "src")', 'share * e.nbytes * (collective.root != "src") + 1',
        "tests/test_traffic.py",
    ),
    Break(
        "two roots are no mismatch", "collectives.judge.diagnose",
        '    if other.root != one.root:\n        return "root"\n', "",
        "tests/test_run.py tests/test_mistakes.py",
    ),
    Break(
        "a cell has the colour of the next rank", "collectives.draw.cells",
        "fill = None if hollow else FILLS.get(slot.kind) or colour(slot.origin)",
        "fill = None if hollow else FILLS.get(slot.kind) or colour(slot.origin + 1)",
        "tests/test_pictures.py -k test_cells_of_a_collective",
    ),
    Break(
        "ranks are not ended", "collectives.launch.forkserver",
        "            self.server.post(wire.Kill(self.number))\n", "            pass\n",
        "tests/test_run.py tests/test_kernel.py tests/test_faults.py",
    ),
    Break(
        "a file descriptor is left open", "collectives.launch.workers",
        "            sock.close()\n        os.close(self.wakeup)\n", "            sock.close()\n",
        "tests/test_run.py tests/test_launch.py -k 'leave or leaks'",
    ),
    Break(
        "transfers are 1 % dearer", "collectives.cost.cost",
        "slope = np.maximum(wire, busiest / protocol.cap)", "slope = np.maximum(wire, busiest / protocol.cap) * 1.01",
        "tests/test_network.py",
    ),
    Break(
        "twice the budget is allowed", "helpers.exercise.judgment",
        "counts[r] > limits[r] + 1e-6", "counts[r] > 2 * limits[r] + 1e-6",
        "tests/test_exercises.py -k test_a_mistake_fails",
    ),
    Break(
        "an answer may spoil its arguments", "helpers.exercise.judgment",
        "        or _inputs(task, inputs, attempt, traffic)\n", "",
        "tests/test_exercises.py -k test_a_mistake_fails",
    ),
    Break(
        "numbers may be said without sending any", "helpers.exercise.judgment",
        "if count > (most := most_empty(case.world_size)):", "if count > 1000 * (most := most_empty(case.world_size)):",
        "tests/test_exercises.py -k forty_barriers",
    ),
    Break(
        "a verdict has a sentence less", "collectives.judge.wording.waits",
        '"The ranks wait for each other. Put their calls in the same order on every rank."',
        '"The ranks wait for each other."',
        "tests/test_run.py -k keep_one_order",
    ),
    Break(
        "a price has another word", "collectives.cost.result",
        "  start {duration(self.start)}", "  begin {duration(self.start)}",
        "tests/test_network.py",
    ),
    Break(
        "the beginning of a long job's record is thrown away", "collectives.watch.writer",
        "        if self._number >= 2:", "        if self._number >= 1:",
        "tests/test_cluster.py -k 'killed or beginning'",
    ),
    Break(
        "an interrupt is ignored", "collectives.launch.conversation",
        "        self.count += 1\n", "        pass\n",
        "tests/test_kernel.py -k interrupt",
    ),
    Break(
        "ranks stay in the folder that they were made in", "collectives.launch.work",
        "    os.chdir(context.cwd)\n", "",
        "tests/test_run.py -k surroundings",
    ),
    Break(
        "a part may be added twice in a schedule", "collectives.algorithms.proof",
        "            if old & parts:\n", "            if False:\n",
        "tests/test_schedule.py",
    ),
    Break(
        "ranks of the sandbox may open sockets", "grader/inside/syscalls.csv",
        "uname,63,160\n",
        "uname,63,160\nsocket,41,198\nbind,49,200\nlisten,50,201\naccept4,288,242\nconnect,42,203\nsendto,44,206\n"
        "recvfrom,45,207\nsetsockopt,54,208\ngetsockname,51,204\n",
        "tests/test_score.py -k 'cheat and sockets'",
    ),
    Break(
        "the sandbox shows the course, solutions too", "grader.walls",
        "\n\n\ndef _hiding_options(private: Iterable[Path]) -> list[str]:\n",
        "\n    yield str(ROOT)\n\n\ndef _hiding_options(private: Iterable[Path]) -> list[str]:\n"
        "    return list(map(os.path.realpath, private))\n",
        "tests/test_score.py -k 'cheat and solutions'",
    ),
    Break(
        "a recorded prediction says its answer", "helpers.views.predict.recording",
        "base64.b64encode(json.dumps(key, ensure_ascii=False).encode()).decode()", "json.dumps(key)",
        "tests/test_predict.py -k recording",
    ),
    Break(
        "a learner's own warning is hidden", "collectives.launch.torch_warnings",
        "    if is_learners(file):\n        return True\n", "    if is_learners(file):\n        return False\n",
        "tests/test_recorder.py -k warnings",
    ),
    Break(
        "the gradebook lacks a column", "grader.class_report",
        '["student", *names, "points", "of", "late", "page", "problems", *',
        '["student", *names, "points", "late", "page", "problems", *',
        "tests/test_class.py -k names_of_any_kind",
    ),
    Break(
        "a link leads nowhere", "CONTRIBUTING.md",
        "# Contributing\n", "[gone](notebooks/gone.ipynb)\n# Contributing\n",
        "tests/test_chapters.py -k links",
    ),
    Break(
        "a wrong verdict on a program that is right", "collectives.judge.diagnose",
        '"size" if other.nbytes != one.nbytes else None', '"size" if other.nbytes == one.nbytes else None',
        "tests/test_correct.py tests/test_run.py",
    ),
    Break(
        "what a rank printed last is lost", "collectives.launch.workers",
        "            output.read()  # once", "            pass  # once",
        "tests/test_run.py tests/test_faults.py",
    ),
]  # fmt: skip


def file_of(b: Break) -> Path:
    """The file that it breaks, below the root."""
    return Path(b.where if "/" in b.where or b.where.endswith(".md") else b.where.replace(".", "/") + ".py")


def stale() -> list[str]:
    """The breaks whose text isn't in its file exactly once, so that they would break nothing or something else."""
    return [f"{b.what}: {file_of(b)} has {b.old!r} {n} times" for b in BREAKS if (n := _count(b)) != 1]


def _count(b: Break) -> int:
    file = ROOT / file_of(b)
    return file.read_text().count(b.old) if file.exists() else 0


def noticed(copy: Path, tests: str, of: str) -> str:
    """The first test that fails; '' if none does."""
    command = f"{sys.executable} -m pytest -q -x -rfE --tb=no -p no:cacheprovider -m '{of}' {tests}"
    done = subprocess.run(
        command, shell=True, cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, capture_output=True, text=True
    )
    if done.returncode == 1:
        return re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE)[1]
    if done.returncode not in (0, 5):  # 5: none was chosen
        sys.exit(done.stdout + done.stderr)
    return ""


def main(numbers: list[str]) -> int:
    if found := stale():
        sys.exit("\n".join([*found, "Break what has taken its place."]))
    lost = 0
    for number, b in enumerate(BREAKS, 1):
        if numbers and str(number) not in numbers:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="power-") as folder:
            Path(folder).chmod(0o755)  # a test that gives up root's rights reads it too
            copy = Path(folder) / "course"
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "_site", "__pycache__", "screenshots"))
            file = copy / file_of(b)
            text = file.read_text()
            file.write_text(text.replace(b.old, b.new))
            for run, of in RUNS.items():
                if test := noticed(copy, b.tests, of):
                    break
            if test:
                file.write_text(text)
                alone = test.partition("::")[0] if ".ipynb" in test else f'"{test}"'
                if noticed(copy, alone, ""):
                    test += ", which fails without it too"
                    lost += 1
        lost += not test
        said = f"{run}: {test}" if test else "NOBODY NOTICES"
        print(f"{number:2} {b.what:48} {said}  ({time.monotonic() - began:.0f} s)", flush=True)
    return lost > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
