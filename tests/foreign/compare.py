"""One foreign program, plain and recorded: what each rank printed, the exit code, the record and its verdict."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from collectives.jobs import load
from tests import ROOT

FOLDER = Path(__file__).parent / "programs"
SECONDS = 240  # for a job
# Lines that differ from run to run, or are the launcher's: logs with their times, what tells of processes, and what C++
# says of a process that ends by an error while a thread of gloo's still runs, as some do.
_PASSING = re.compile(
    r"^\d{4}-\d\d-\d\dT|^\[?[WIEC]\d{4} |^\[rank\d+\]:?\[?[WIE]\d{4} |pid|port|^\s*time +:|^\s*host +:"
    r"|^terminate called without an active exception"
)


class Program(NamedTuple):
    """path: below FOLDER.  arguments: its own.  ranks: of the job.  fails: whether a verdict is due."""

    path: str
    arguments: tuple[str, ...] = ()
    ranks: int = 2
    fails: bool = False

    @property
    def lacks(self) -> str:
        """The package that it needs and that is not installed, as its first line says; "" if all is there."""
        needs = re.match(r"# needs: (\w+)", (FOLDER / self.path).read_text())
        return needs[1] if needs and not find_spec(needs[1]) else ""


PROGRAMS = {
    Path(program.path).stem if "/" not in program.path else program.path.removesuffix(".py"): program
    for program in [
        Program("dataclass_config.py", ("--lr", "0.5", "--steps", "4")),
        Program("own_helpers/train.py", ("left", "--as-is")),
        Program("configurator.py", ("--max_iters=4", "--learning_rate=0.01")),
        Program("annotated_main.py", ("--mode=sum", "--scale=0.5")),
        Program("abrupt.py"),
        Program("fails.py", fails=True),
        Program("join_uneven.py"),
        Program("sharded.py"),
        Program("tensor_parallel.py"),
        Program("pipeline.py"),
        Program("parallel_state.py", ("--tensor-model-parallel-size", "2", "--unknown", "3"), ranks=4),
        Program("loaders.py"),
        Program("titan.py", ranks=4),
        Program("command_lines/absl_app.py", ("--lr=0.3", "rest")),
        Program("command_lines/click_app.py", ("fit", "--lr", "0.3")),
        Program("command_lines/fire_app.py", ("--lr=0.3", "--other", "1,2")),
        Program("command_lines/typer_app.py", ("3", "--lr", "0.3")),
        Program("command_lines/tyro_app.py", ("--optimizer.lr", "0.3")),
        Program("command_lines/simple_parsing_app.py", ("--lr", "0.3")),
        Program("command_lines/jsonargparse_app.py", ("--lr", "0.3", "fit", "--steps", "3")),
        Program("command_lines/hydra_app.py", ("steps=3", "optimizer.lr=0.3", "hydra.run.dir=hydra")),
        Program("command_lines/omegaconf_cli.py", ("lr=0.3",)),
        Program("accelerated.py"),
        Program("lightning_fit.py"),
        Program("deepspeed_zero.py", ("--stage", "2")),
        Program("torchft_replicas.py"),
    ]
}


class Outcome(NamedTuple):
    code: int  # exit code of the launcher
    out: list[str]  # of each rank, what it printed
    err: list[list[str]]  # of each rank, the lines that it said to standard error


def outcome(program: Program, folder: Path, *recorder: str) -> Outcome:
    """A program's job, run in an empty folder. recorder: what stands before the script."""
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(program.ranks)]
    command += ["--redirects", "3", "--log-dir", "logs", *recorder, str(FOLDER / program.path), *program.arguments]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environ = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=SECONDS)
    logs = sorted(folder.glob("logs/*/attempt_0/*"), key=lambda path: int(path.name))
    out = [(log / "stdout.log").read_text() for log in logs]
    return Outcome(done.returncode, out, [(log / "stderr.log").read_text().splitlines() for log in logs])


def differences(program: Program, folder: Path) -> list[str]:
    """What the recorder changed or said wrongly, a sentence each; a program that is right has no verdict."""
    plain = outcome(program, folder / "plain")
    options = ["--nan", "--replicas", "1", "--record", str(folder / "record")]
    recorded = outcome(program, folder / "recorded", "-m", "collectives.watch", *options)
    found = []
    if plain.code != recorded.code:
        found.append(f"exit code {plain.code} became {recorded.code}")
    if (plain.code != 0) != program.fails:
        found.append(f"plain, it ends with {plain.code}: {plain.err}")
    if plain.out != recorded.out or len(plain.out) != program.ranks:
        found.append(f"it printed {plain.out}, recorded {recorded.out}")
    run = load(folder / "record")
    own = {line.strip() for line in run.verdict.splitlines()}
    for rank, (before, after) in enumerate(zip(plain.err, recorded.err)):
        before, after = ({line for line in lines if not _PASSING.search(line)} for lines in (before, after))
        extra = [
            line
            for line in after - before
            if not line.startswith(("collectives.", "collectives: ")) and line.strip() not in own
        ]
        if before - after or extra:
            found.append(f"rank {rank} said {sorted(before - after)}, recorded {sorted(extra)}")
    if bool(run.verdict) != program.fails:
        found.append(f"the verdict is {run.verdict!r}")
    if not run.calls:
        found.append("no call was recorded")
    if lineless := [event for events in run.events for event in events if event.line is None]:
        found.append(f"{len(lineless)} calls have no line, the first a {lineless[0].op}")
    return found
