"""Is this environment fit for the course?   python -m tools.check

Goes from the ground up: Python, packages, the machine, and at last two real ranks and one all_reduce.  For each
possible fault it prints the meaning and the remedy.
"""

from __future__ import annotations

import importlib.metadata as metadata
import os
import platform
import re
import socket
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COURSE = "collectives-course"
SHADOWED = ("torch", "numpy", "matplotlib", "ipywidgets", "collectives", "helpers", "grader")
AFRESH = "Make the environment again: make clean, then the same command again."


class Problem(Exception):
    """Something that keeps the course from running, and its remedy: two texts."""


def system() -> str:
    if sys.platform == "win32":
        raise Problem(
            "This is Windows itself. PyTorch's gloo backend is not reliable here.",
            "Install WSL2 (`wsl --install`), clone the course inside it, and work there.",
        )
    if sys.version_info < (3, 10):
        raise Problem(
            f"This is Python {sys.version.split()[0]}; the course needs 3.10 or newer.",
            "Choose another: make clean, then make lab PYTHON=/path/to/python3.12",
        )
    return f"Python {sys.version.split()[0]}"


def packages() -> str:
    """Everything pyproject.toml names is installed; other versions than the tested ones are noted."""
    try:
        required = metadata.requires(COURSE) or []
    except metadata.PackageNotFoundError:
        raise Problem(
            f"The course is not installed in this Python ({sys.prefix}).",
            "Use `make lab` or `make test`, which bring their own environment, or install it in this one:\n"
            'python -m pip install -e ".[course]" -c constraints.txt',
        ) from None
    tested, found, untested = {}, [], []
    pins = ROOT / "constraints.txt"  # of a package it may have a version for each Python
    for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", pins.read_text() if pins.exists() else "", re.MULTILINE):
        tested.setdefault(name, []).append(version)
    wanted = [r for r in required if "extra ==" not in r or "course" in r.partition("extra ==")[2]]
    for name in (re.match(r"[\w.-]+", requirement).group() for requirement in wanted):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise Problem(
                f"The package {name} is missing from this Python ({sys.prefix}).",
                f'{AFRESH}\nWithout make: python -m pip install -e ".[course]" -c constraints.txt',
            ) from None
        found.append(f"{name} {version}")
        # torch_notices reports torch's version.
        if name != "torch" and tested.get(name) and version.split("+")[0] not in tested[name]:
            untested.append(f"{name} {version} (tested: {', '.join(tested[name])})")
    if untested:
        print(f"Note: not the versions the course is tested with: {'; '.join(untested)}.")
    return ", ".join(found)


def temporary_folder() -> None:
    try:
        with tempfile.TemporaryFile() as file:
            file.write(bytes(1 << 20))
    except OSError as error:
        raise Problem(
            f"Temporary files cannot be written: {error}. Ranks find each other through one.",
            "Make room on the disk, or name another folder: export TMPDIR=/path/with/space",
        ) from None


def loopback() -> None:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            with socket.create_connection(server.getsockname(), timeout=5) as there:
                server.settimeout(5)
                with server.accept()[0] as here:
                    there.sendall(b"?")
                    if here.recv(1) != b"?":
                        raise OSError("what was sent did not arrive")
    except OSError as error:
        raise Problem(
            f"This machine cannot talk to itself over 127.0.0.1: {error}. Ranks exchange their tensors that way.",
            "Is the loopback interface up (`ip link set lo up`)? Does a firewall, VPN or sandbox block it?",
        ) from None


def torch_loads() -> None:
    try:
        import torch.distributed as dist
    except Exception as error:  # a broken binary package can raise anything here
        raise Problem(
            f"torch is installed, but does not load: {type(error).__name__}: {error}",
            f"Its files do not fit this machine or are damaged. {AFRESH}",
        ) from None
    if not (dist.is_available() and dist.is_gloo_available()):
        raise Problem(
            "This build of torch has no torch.distributed with the gloo backend.",
            f"The builds from PyPI, pytorch.org and conda-forge have it. {AFRESH}",
        )


def torch_notices() -> None:
    """Notes on an untested torch, and on the functions it lacks: the course may well work."""
    from collectives.rank import torch_private

    if note := untested(metadata.version("torch"), torch_private.TESTED):
        print(note)
    for notice in torch_private.notices():
        print(f"Note: {notice}")


def untested(version: str, tested: tuple[str, ...]) -> str | None:
    """A note about a torch other than the tested ones, "2.13" and the like, oldest first."""
    short, listed = tuple(map(int, re.findall(r"\d+", version)[:2])), f"{', '.join(tested[:-1])} and {tested[-1]}"
    if short in [tuple(map(int, each.split("."))) for each in tested]:
        return None
    age = "newer" if short > tuple(map(int, tested[-1].split("."))) else "older"
    return f"Note: torch {version} is {age} than the versions the course is tested with: {listed}."


def packages_are_ours() -> None:
    for name in ("collectives", "helpers", "grader"):
        folder = Path(find_spec(name).origin).resolve().parent.parent
        if folder != ROOT:
            raise Problem(f"Notebooks would import {name} from another copy of the course, in {folder}.", AFRESH)


def nothing_shadows() -> None:
    """PYTHONPATH hides no module of the course: a notebook's Python, unlike this one, looks there first."""
    for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        for name in SHADOWED:
            for file in (Path(folder, f"{name}.py"), Path(folder, name, "__init__.py")):
                if file.exists() and Path(folder).resolve() != ROOT:
                    raise Problem(
                        f"Notebooks would import {name} from {file}, as PYTHONPATH names its folder.",
                        "Start again without: env -u PYTHONPATH make lab. Or rename that file.",
                    )


def all_reduce() -> str:
    """Two processes, one number each, the sum on both."""

    def add():
        import torch
        import torch.distributed as dist

        x = torch.tensor([1.0 + dist.get_rank()])
        dist.all_reduce(x)
        return x.item()

    try:
        from collectives import run

        result = run(add, world_size=2)
    except Exception as error:
        raise Problem(
            f"Two ranks could not make one all_reduce: {type(error).__name__}: {error}",
            "Is there memory left (each rank needs some 50 MB)? May you start more processes (`ulimit -u`)?\n"
            "Does a sandbox forbid Unix sockets or signals? Otherwise please report this, with the lines above.",
        ) from None
    if result.results != [3.0, 3.0]:
        raise Problem(
            f"An all_reduce of 1 and 2 gave {result.results} instead of 3 on both ranks.",
            "This should be impossible; please report it, with the versions above.",
        )
    return f"Two ranks made an all_reduce in {result.seconds:.2f} s."


def _found_fit() -> tuple[Path, str]:
    """The file that marks this environment as fit, and its content: everything that the answer depends on."""
    made_from = Path(sys.prefix, "made-from")  # of install.py
    made = made_from.read_text(encoding="utf-8") if made_from.exists() else ""
    return Path(sys.prefix, "found-fit"), f"{made} {sys.version} {platform.platform()} {platform.node()}"


def main(options: list[str]) -> int:
    """With --once, an environment that `make` made, and that was found fit on this machine, is not checked again."""
    file, fit = _found_fit()
    checks = (
        nothing_shadows,
        system,
        packages,
        temporary_folder,
        loopback,
        torch_loads,
        packages_are_ours,
        torch_notices,
        all_reduce,
    )
    if "--once" in options and file.exists() and file.read_text(encoding="utf-8") == fit and fit.split(" ")[0]:
        checks = (nothing_shadows,)  # which can be otherwise each time
    for check in checks:
        try:
            said = check()
        except Problem as problem:
            what, remedy = problem.args
            print(f"\n{what}\n\nWhat to do\n{remedy}\n", file=sys.stderr)
            return 1
        if said:
            print(said, flush=True)
    with suppress(OSError):  # an environment that is not ours to write in is checked each time
        file.write_text(fit, encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
