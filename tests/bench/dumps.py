"""Dumps of a large job whose rings are full, as NCCL's recorder leaves them; how long explaining them takes, and its memory.

python -m tests.bench.dumps [folder]    1,024 ranks with 2,000 calls each
"""

import os
import pickle
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests import ROOT
from tests.corpus import dumps
from tests.corpus.dumps import STOP, Played

RING = 2000  # torch's TORCH_FR_BUFFER_SIZE, by default
CULPRIT = 5
OUTER = [dumps.frame(f"run_{depth}", "/job/trainer.py", 100 + depth) for depth in range(8)]  # the stacks' other frames


class Usage(NamedTuple):
    """The use of resources by one process."""

    verdict: str
    seconds: float  # of processor
    nbytes: int  # of memory, at most


def write(folder: Path, shape: tuple[int, int, int], calls: int = RING) -> None:
    """Dumps of a job of three parallelisms, in which CULPRIT makes all but the last calls of its last step."""
    programs = dumps.training(*shape, steps=3, layers=2)
    programs[CULPRIT] = programs[CULPRIT][:-6] + [STOP]
    job = Played(dumps.mesh(*shape), programs)
    for rank in range(job.size):
        dump = job.dump(rank)
        dump["entries"] = _longer(dump["entries"], calls)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, 2))


def _longer(entries: list[dict], calls: int) -> list[dict]:
    """The last calls of a job that had made the first step many times before."""
    step = entries[: 1 + next(at for at, e in enumerate(entries) if e["process_group"] == dumps.WORLD)]
    repeats = 1 + calls // len(step)
    made = Counter((e["process_group"], e["is_p2p"]) for e in step)
    again = [_later(e, n, len(step), made) for n in range(repeats) for e in step]
    return (again + [_later(e, repeats, len(step), made) for e in entries])[-calls:]


def _later(e: dict, steps: int, length: int, made: Counter) -> dict:
    """A call as so many steps later."""
    number = "p2p_seq_id" if e["is_p2p"] else "collective_seq_id"
    times = {key: e[key] and e[key] + steps * 1_000_000_000 for key in e if key.endswith("_ns")}
    return e | times | {
        "record_id": e["record_id"] + steps * length, "op_id": e["op_id"] + steps * length,
        number: e[number] + steps * made[e["process_group"], e["is_p2p"]], "frames": [*e["frames"], *OUTER],
    }  # fmt: skip


def explained(folder: Path, most: int | None = None) -> Usage:
    """The verdict on dumps, by a process of its own.  most: bytes of address space that it may have."""

    def limit() -> None:
        if most:
            resource.setrlimit(resource.RLIMIT_AS, (most, most))

    command = [sys.executable, "-m", "collectives", "explain", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, preexec_fn=limit, text=True) as process:
        verdict = process.stdout.read()
        _, process.returncode, used = os.wait4(process.pid, 0)
    return Usage(verdict, used.ru_utime + used.ru_stime, used.ru_maxrss << 10)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as temporary:
        write(Path(temporary), (4, 4, 64))
        usage = explained(Path(temporary))
        print(f"{usage.verdict.splitlines()[0]}\n{usage.seconds:.1f} s of processor, {usage.nbytes / 2**20:,.0f} MiB")
