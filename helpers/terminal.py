"""Runs scripts as a terminal would, for a notebook: `python script.py 4`, or torchrun on several nodes at once.

    from helpers.terminal import python, torchrun

    torchrun(script, nodes=2, per_node=2)

The lines that come out are sorted, since ranks print in no fixed order.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch.distributed as dist


def python(script: str, *arguments: object) -> None:
    """Run source text as `python script.py ARGUMENTS`; print what it printed."""
    _side_by_side(script, [[sys.executable, "script.py", *map(str, arguments)]])


def torchrun(script: str, nodes: int, per_node: int) -> None:
    """Run source text under `torchrun`, started once for each node, all of them on this machine."""
    board = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )  # kept here: no node has to come first
    node = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes), "--nproc-per-node", str(per_node)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{board.port}", "--rdzv-conf", "is_host=false"),
        *("--local-addr", "127.0.0.1", "script.py"),
    ]
    _side_by_side(script, [node] * nodes)


def _side_by_side(script: str, commands: list[list[str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "script.py").write_text(script, encoding="utf-8")
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        running = [subprocess.Popen(command, cwd=folder, **pipes) for command in commands]
        said = [process.communicate() for process in running]
    print(*sorted("".join(out for out, _ in said).splitlines()), sep="\n")
    for process, (_, errors) in zip(running, said):
        if process.returncode:
            print(errors)
