"""Runs scripts as a terminal would, for a notebook: `python script.py 4`, or torchrun on several nodes at once.

    from helpers.terminal import python, torchrun

    torchrun(script, nodes=2, per_node=2)

The lines that come out are sorted, since ranks print in no fixed order. No process outlives the call, however it ends.
"""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import torch.distributed as dist

TIMEOUT_SECONDS = 300.0
MOST_SHOWN = 200  # characters of a line that was printed before the time was up

# Runs a command, and ends all its processes when it ends or the caller does, which closes standard input.
# torchrun's ranks are in sessions of their own, so they are looked up as descendants. On Linux they stay descendants
# when torchrun itself is killed.
KEEPER = """
import ctypes, os, subprocess, sys, threading
from contextlib import suppress
import psutil

PR_SET_CHILD_SUBREAPER = 36

def kill():
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()

def wait_for_the_caller():
    os.read(0, 1)
    kill()

if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
threading.Thread(target=wait_for_the_caller, daemon=True).start()
status = command.wait()
with suppress(ChildProcessError):  # there are no more
    while True:
        kill()
        os.waitpid(-1, 0)
sys.exit(status)
"""
# Found by every Python that starts: a script's output is known even if it is killed.
SITECUSTOMIZE = "import sys\nsys.stdout.reconfigure(line_buffering=True)\n"


def python(script: str, *arguments: object, timeout: float = TIMEOUT_SECONDS) -> None:
    """Run source text as `python script.py ARGUMENTS`; print its output.

    Raises TimeoutError if it takes longer.
    """
    _side_by_side(script, [[sys.executable, "script.py", *map(str, arguments)]], timeout)


def torchrun(script: str, nodes: int, per_node: int, timeout: float = TIMEOUT_SECONDS) -> None:
    """Run source text under `torchrun`, started once for each node, all of them on this machine.

    Raises TimeoutError if a node takes longer.
    """
    board = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )  # kept here: no node has to come first
    node = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes), "--nproc-per-node", str(per_node)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{board.port}", "--rdzv-conf", "is_host=false"),
        *("--local-addr", "127.0.0.1", "script.py"),
    ]
    try:
        _side_by_side(script, [node] * nodes, timeout)
    finally:
        del board  # the traceback of an error would keep it


def _side_by_side(script: str, commands: list[list[str]], timeout: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "script.py").write_text(script, encoding="utf-8")
        Path(folder, "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
        files = [[Path(folder, f"{number}.{kind}") for kind in ("out", "err")] for number in range(len(commands))]
        statuses = _statuses(commands, folder, files, timeout)
        printed = [[file.read_text(encoding="utf-8", errors="replace") for file in both] for both in files]
    if None in statuses:
        raise TimeoutError(_out_of_time(timeout, statuses, printed))
    print(*sorted("".join(out for out, _ in printed).splitlines()), sep="\n")
    for status, (_, errors) in zip(statuses, printed):
        if status:
            print(errors)


def _statuses(commands: list[list[str]], folder: str, files: list[list[Path]], timeout: float) -> list[int | None]:
    """The exit status of each command; None for one that was killed because the time was up."""
    deadline = time.monotonic() + timeout
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])}
    with ExitStack() as running:
        keepers = []
        for command, both in zip(commands, files):
            out, err = (running.enter_context(file.open("wb")) for file in both)  # a pipe holds 64 KiB
            keeper = subprocess.Popen(
                [sys.executable, "-c", KEEPER, *command],
                stdin=subprocess.PIPE, stdout=out, stderr=err, cwd=folder, env=environ, start_new_session=True,
            )  # fmt: skip
            keepers.append(keeper)
            running.callback(keeper.wait)
            running.callback(keeper.stdin.close)  # first
        for keeper in keepers:
            with suppress(subprocess.TimeoutExpired):
                keeper.wait(max(0.0, deadline - time.monotonic()))
        return [keeper.returncode for keeper in keepers]


def _out_of_time(timeout: float, statuses: list[int | None], printed: list[list[str]]) -> str:
    lines = [f"The script did not end within {timeout:g} s. Pass a larger timeout if it needs more. Printed last:"]
    for number, (status, texts) in enumerate(zip(statuses, printed)):
        last = [line[-MOST_SHOWN:] for text in texts for line in text.splitlines()[-1:]]
        state = "still running" if status is None else f"ended with status {status}"
        lines.append(f"  node {number}, {state}: {' | '.join(last) or 'nothing'}")
    return "\n".join(lines)
