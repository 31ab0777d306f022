"""A job under torchrun next to one process: each rank records its first steps, and rank 0 starts the same script alone.

torchrun --nproc-per-node 4 -m collectives.watch --same train.py
"""

import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Callable

from .compare import beside_one_process
from .comparison_text import text
from .findings import Comparison
from .first_steps import FirstSteps, recorded
from .replay import Join

ALONE = "COLLECTIVES_SAME_FOLDER"  # set for the one process: where the ranks' records are
JOINED = "COLLECTIVES_SAME_JOINED"  # its Join, as JSON
SHAKEN = "COLLECTIVES_SAME_SHAKEN"  # "1" or "-1" where its gradients are rounded otherwise
LAST_WORDS = 5.0  # seconds, in which a rank that has stopped may still be heard by others
PATIENCE = 120.0  # seconds, from a rank's first steps until the last rank has made its own


def compared(start: Callable[[], None], folder: str | None) -> int:
    """Run the script of this rank for its first steps; on rank 0, also compare.  Returns the exit status.

    start: runs the script.  folder: where ranks leave their records, which ranks on several hosts must share.
    The status is 0 unless rank 0 finds a difference, or can't compare.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if ALONE in os.environ:
        return _alone(start, Path(os.environ[ALONE]))
    if folder is None and int(os.environ.get("GROUP_WORLD_SIZE", 1)) > 1:
        sys.exit("on several hosts, --same needs --record FOLDER, on a file system that they share.")
    where = Path(folder or _own_folder())
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = [where / str(k) for k in range(size)]
    failure, environ = None, dict(os.environ)  # before the script changes it
    function, saved = recorded(start, stop=True), threading.Event()
    threading.Thread(target=_save_if_alone, args=(function, files, rank, saved), daemon=True).start()
    try:
        found: FirstSteps | str = function()
    except BaseException as error:
        found, failure = f"{type(error).__name__}: {error}".split("\n")[0], error
    if saved.is_set():
        return 0
    _save(files[rank], found)
    if failure is not None and not isinstance(failure, SystemExit):
        raise failure
    last = time.monotonic() + PATIENCE
    while not all(file.exists() for file in files) and time.monotonic() < last:
        time.sleep(0.05)  # ranks that still run may need this one's connections
    if rank:
        return 0
    comparison = _compared(where, files, environ)
    print(text(comparison), file=sys.stderr, flush=True)
    if folder is None:
        shutil.rmtree(where, ignore_errors=True)
    return 0 if comparison.verdict == "same" else 1


def _save_if_alone(function: recorded, files: list[Path], rank: int, saved: threading.Event) -> None:
    """Save the record of a rank that waits for one that has stopped, as the next stage of a pipeline does."""
    while not files[rank].exists():
        time.sleep(0.1)
        stopped = any(file.exists() and time.time() > file.stat().st_mtime + LAST_WORDS for file in files)
        if stopped and (record := function.so_far()):
            saved.set()
            _save(files[rank], record)


def _compared(where: Path, files: list[Path], environ: dict[str, str]) -> Comparison:
    if missing := [file.name for file in files if not file.exists()]:
        reason = f"ranks {', '.join(missing)} haven't made their first steps {PATIENCE:.0f} s after rank 0"
        return Comparison("cannot compare", reason, len(files))
    records = [_loaded(file) for file in files]
    for rank, record in enumerate(records):
        if isinstance(record, str):
            return Comparison("cannot compare", f"rank {rank} ended before its first steps: {record}", len(files))
    environ = {k: v for k, v in environ.items() if not k.startswith(("TORCHELASTIC", "GROUP_", "ROLE_"))}
    environ |= dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
    environ[ALONE] = str(where.absolute())

    def alone(join: Join, shaken: int) -> FirstSteps | str:
        (where / "one").unlink(missing_ok=True)
        environ.update({"MASTER_PORT": str(_free_port()), JOINED: json.dumps(join), SHAKEN: str(shaken)})
        ended = subprocess.run([sys.executable, *sys.orig_argv[1:]], env=environ, capture_output=True, text=True)
        record = _loaded(where / "one") if (where / "one").exists() else "it wrote no record"
        if not isinstance(record, str):
            return record
        failures[f"the script fails in one process: {record}. It has to run with a world size of 1"] = ended.stderr
        return list(failures)[-1]

    failures: dict[str, str] = {}  # a reason -> what the script wrote
    comparison = beside_one_process(records, alone)
    print(failures.get(comparison.reason, "")[-2000:], end="", file=sys.stderr)
    return comparison


def _alone(start: Callable[[], None], where: Path) -> int:
    """Run the script as one process that gets the data of all ranks."""
    ranks = sorted((file for file in where.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))
    feeds = [_loaded(file).feed for file in ranks]
    try:
        join, shaken = Join(*json.loads(os.environ[JOINED])), int(os.environ[SHAKEN])
        _save(where / "one", recorded(start, feeds, stop=True, join=join, shaken=shaken)())
    except BaseException as error:
        _save(where / "one", f"{type(error).__name__}: {error}".split("\n")[0])
        raise
    return 0


def _own_folder() -> str:
    """A folder of this job's ranks on this host: all have the same parent."""
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return os.path.join(tempfile.gettempdir(), f"collectives-same-{os.getuid()}-{os.getppid()}-{restarts}")


def _save(file: Path, value: FirstSteps | str) -> None:
    partly = file.with_suffix(".part")
    partly.write_bytes(pickle.dumps(value))
    partly.rename(file)


def _loaded(file: Path) -> FirstSteps | str:
    return pickle.loads(file.read_bytes())


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]
