"""How often the sentence about a job that goes wrong is right:

python -m tests.bench.right [--repeats 20] [--at-once 3] [ENDING ...]

Each repeat is a job of four ranks of corpus/jobs/faulty.py, forked from this process, which has torch loaded, and treated
as torchrun treats them: once a rank has failed, the others get SIGTERM.  Run it on a busy machine: --at-once says how
many jobs run beside each other.  Ctrl-C starts no more.  Prints at its end for each ending how many verdicts were right, wrong,
and not there, how many jobs came to another end (on a machine that is too busy, ranks don't meet in time), and the load.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import torch._dynamo  # noqa: F401  loaded once, for all ranks: DistributedDataParallel imports it

from collectives.watch import __main__, collector, report  # noqa: F401  loaded once, for all collectors
from tests import ROOT

SCRIPT = ROOT / "tests" / "corpus" / "jobs" / "faulty.py"
RANKS = 4
POLL_SECONDS = 0.1  # torchrun's own
JOB_SECONDS = 60.0
NOTHING = r"\A\Z"
# What stood still before may lead the sentence, where ranks are slow.
STOOD = r"(RankFailed: when ranks? .* ended, no rank had started or finished a call for .*\.\n(?:.*\n){1,2})?(RankFailed: )?"
# Ranks that didn't meet, or the port of the job taken by another: it is another end, and that is what is told.
OTHER_END = r"raised Dist(Store|Network)Error: |raised RuntimeError: Gloo connectFullMesh failed"
# Each ending: what the whole of the verdicts must match. "Standstill" may come before: it accuses nobody.
ENDINGS = {
    "deadlock": r"Stuck: ranks 0, 1 and 3 are waiting in all_reduce #4; rank 2 is waiting in recv #4 from 1\.",
    "shapes": r"Mismatch: ranks disagree on the shape of all_reduce in call #4\.",
    "raises": STOOD + r"rank 1 raised ValueError: no such layer",
    "early": r"Stuck: .*rank 0 returned after 3 calls\. This can never finish",
    "killed 2": STOOD + r"rank 2 was killed by SIGKILL after 3 calls",
    "exits os._exit": STOOD + r"rank 1 raised SystemExit: it called os\._exit\(3\)",
    "exits sys.exit": STOOD + r"rank 1 raised SystemExit: it called sys\.exit\(3\)",
    "exits segfault": STOOD + r"rank 1 was killed by SIGSEGV after 3 calls",
    "exits abort": STOOD + r"rank 1 was killed by SIGABRT after 3 calls",
    "exits cleanly": r"Stuck: .*rank 1 returned after 3 calls\. This can never finish",
    "stops_early": r"Stuck: ranks? .*wait.* in all_reduce #9; rank 2 returned after 8 calls",
    "no_sync_on_one": r"Stuck: ranks? .*wait.* in all_reduce #10; rank 1 returned after 9 calls",
    "dtype_differs": r"Mismatch: ranks disagree on the dtype of all_reduce in call #4\.",
    "message_too_long": r"Mismatch: the send from rank 0 and the recv on rank 1 disagree on the size",
    "other_groups": r"Mismatch: ranks make different groups in call #1 of new_group\.",
    "gathers_other_shapes": r"Mismatch: ranks disagree on the shape of all_gather in call #4\.",
    "ended": r"Ended: ranks 0, 1, 2 and 3 were ended from outside, by SIGTERM",
    "over": NOTHING,
    "caught": NOTHING,
}
# An ending that nothing is certain of, and all that is said of it is where the ranks stand.
STANDS = {"never_comes": r"Standstill: (.*\n)+init_process_group of ranks? .* lacks ranks? (.* and )?3\."}


# --- the job ------------------------------------------------------------------------------


def launch(ending: str, folder: Path) -> list[str] | None:
    """Start the ranks of a job, wait for them, and end them as torchrun does.

    Returns in a rank what its command line is, and in the launcher None.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.chdir(folder)
    output = os.open("out", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    ranks = set()
    for rank in range(RANKS):
        if pid := os.fork():
            ranks.add(pid)
            continue
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE=str(RANKS),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo",
        )  # fmt: skip
        return [
            "watch",
            "--record",
            "r",
            "--patience",
            "3" if ending in STANDS else "15",
            str(SCRIPT),
            *("forever" if ending == "ended" else ending).split(),
        ]
    wait_for(ranks, ending == "ended")
    return None


def wait_for(ranks: set[int], to_end: bool) -> None:
    """Wait until the ranks are gone. to_end: whether to end them all, once they have come to rest."""
    failed, until = False, time.monotonic() + JOB_SECONDS
    while ranks:
        time.sleep(POLL_SECONDS)
        too_long = time.monotonic() > until
        if too_long or failed or to_end and all(os.path.exists(f"at-{rank}") for rank in range(RANKS)):
            for pid in ranks:
                os.kill(pid, signal.SIGKILL if too_long else signal.SIGTERM)
        for pid in list(ranks):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ranks.remove(pid)
                failed |= status != 0


def verdicts(folder: Path) -> str | None:
    """All that was said of a job that has ended, once its collector has ended too; None if it was not recorded."""
    with suppress(OSError, ValueError):
        collector = json.loads((folder / "r" / "about.json").read_text())["collector"]
        with suppress(ProcessLookupError):
            select.select([os.pidfd_open(collector)], [], [], JOB_SECONDS)
        verdict = folder / "r" / "verdict.txt"
        return verdict.read_text() if verdict.exists() else ""
    return None


def judged(said: str | None, ending: str) -> str:
    """Which column it belongs to."""
    if said is None:
        return "not recorded"
    parts = [part.strip() for part in re.split(f"^{report.RULE}$", said, flags=re.M) if part.strip()]
    certain = parts[:1] if ending in STANDS else [part for part in parts if not part.startswith("Standstill")]
    if certain and re.search(OTHER_END, certain[0]):
        return "other end"
    if not certain:
        return "right" if ENDINGS.get(ending) == NOTHING else "silent"
    return "right" if len(certain) == 1 and re.match((ENDINGS | STANDS)[ending], certain[0]) else "wrong"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=3, help="jobs beside each other (%(default)s)")
    parser.add_argument(
        "endings", nargs="*", default=[*ENDINGS, *STANDS], metavar="ENDING", help=", ".join([*ENDINGS, *STANDS])
    )
    given = parser.parse_args()
    jobs = [ending for _ in range(given.repeats) for ending in given.endings]
    running: dict[int, tuple[str, Path]] = {}
    counted: dict[str, Counter] = {ending: Counter() for ending in given.endings}
    loads = []
    signal.signal(signal.SIGINT, lambda *_: jobs.clear())
    while jobs or running:
        if jobs and len(running) < given.at_once:
            ending, folder = jobs.pop(0), Path(tempfile.mkdtemp(prefix="right-"))
            if pid := os.fork():
                running[pid] = ending, folder
                continue
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if (command := launch(ending, folder)) is None:
                os._exit(0)
            sys.argv = command
            return __main__.main()  # and from there to the end of this process, as any other
        pid, _ = os.wait()
        ending, folder = running.pop(pid)
        column = judged(said := verdicts(folder), ending)
        counted[ending][column] += 1
        loads.append(os.getloadavg()[0])
        if column != "right":
            print(f"{ending}: {column}: {said or (folder / 'out').read_text()[-600:]}\n", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    columns = ("right", "wrong", "silent", "not recorded", "other end")
    print(f"{'':22}" + "".join(f"{name:>14}" for name in columns))
    for ending, counts in counted.items():
        print(f"{ending:22}" + "".join(f"{counts[name]:14}" for name in columns))
    print(f"load {min(loads):.1f} to {max(loads):.1f}")


if __name__ == "__main__":
    main()
