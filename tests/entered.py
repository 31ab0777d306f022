"""Which functions one drawn all_reduce enters: in the kernel, in the server that forks its ranks, and in the ranks.

python -m tests.entered            file by file
"""

import ast
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from . import ROOT

LIBRARY = ROOT / "collectives"
PROGRAM = """
import torch
import torch.distributed as dist
from collectives import run

def share():
    x = torch.full((4,), float(dist.get_rank()))
    dist.all_reduce(x)
    return x

done = run(share, world_size=4)
done.draw().png()
repr(done)
"""
# Every Python process that starts with this file's folder on its path writes down each function that it enters.
PROFILER = """
import os, sys, threading

seen = set()

def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code not in seen:
        seen.add(code)
        if code.co_filename.startswith(os.environ["LIBRARY"]) and code.co_name != "<module>":
            file = os.open(os.environ["ENTERED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, f"{code.co_filename}\\t{code.co_firstlineno}\\n".encode())
            os.close(file)

sys.setprofile(note)
threading.setprofile(note)
"""


def entered() -> dict[str, int]:
    """By file of the library: the lines of the functions that a drawn all_reduce enters, bodies and signatures."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(PROFILER)
        Path(folder, "program.py").write_text(PROGRAM)
        calls = Path(folder, "entered")
        paths = os.pathsep.join([folder, str(ROOT)])
        environ = {**os.environ, "PYTHONPATH": paths, "ENTERED": str(calls), "LIBRARY": str(LIBRARY)}
        subprocess.run([sys.executable, Path(folder, "program.py")], env=environ, check=True, timeout=120)
        first_lines = defaultdict(set)
        for line in set(calls.read_text().splitlines()):
            file, number = line.split("\t")
            first_lines[file].add(int(number))
    return {
        str(Path(file).relative_to(LIBRARY)): lines_of(Path(file), numbers) for file, numbers in first_lines.items()
    }


def lines_of(file: Path, first_lines: set[int]) -> int:
    """How many lines the functions have that begin on these lines; a function within another counts once."""
    lines = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first in first_lines or node.lineno in first_lines:
                lines.update(range(first, node.end_lineno + 1))
    return len(lines)


if __name__ == "__main__":
    found = entered()
    for name, count in sorted(found.items(), key=lambda item: -item[1]):
        print(f"{count:5}  {name}")
    print(f"{sum(found.values()):5}  in {len(found)} files")
