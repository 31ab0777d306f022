"""Takes the newest versions that fit together on every Python of the course:   make renew

A resolver (uv) rewrites constraints.txt; a new environment gets these versions, `make test-all` runs in it, and
the changes are listed.  If a test fails, or it is interrupted, the old file comes back.  The versions that are held
back, and why: [tool.uv] in pyproject.toml.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "constraints.txt"
OLDEST = "3.10"
EXTRAS = ("course", "test", "browser")  # all that this repository installs from pyproject.toml
OF_A_GPU = ("nvidia-", "cuda-", "triton")  # packages of a torch that isn't the one for the CPU
OF_WINDOWS = ("; sys_platform == 'win32'", "; os_name == 'nt'")  # where the course runs in WSL2, which is Linux


def resolved() -> str:
    """The lines of constraints.txt: the newest versions for all Pythons from OLDEST on."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", *(f"--extra={name}" for name in EXTRAS)]
    command += ["--universal", "--python-version", OLDEST, "--no-header", "--no-annotate", "--quiet", "--upgrade"]
    resolver = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if resolver.returncode:
        sys.exit(
            f"{resolver.stderr}\nNo versions were found that fit together, for the reason above. constraints.txt is as it was."
        )
    lines = [line.replace(" ;", ";") for line in resolver.stdout.splitlines()]
    return "".join(line + "\n" for line in lines if not line.startswith(OF_A_GPU) and not line.endswith(OF_WINDOWS))


def pins(text: str) -> dict[str, set[str]]:
    """By package, its versions: one, or one for each range of Pythons."""
    versions: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^;\s]+)", text, re.MULTILINE):
        versions.setdefault(name.replace("_", "-"), set()).add(version)
    return versions


def changes(before: str, after: str) -> list[str]:
    """A line for each package whose version has changed: 'rich  14.1 -> 15.0'."""
    old, new = pins(before), pins(after)
    return [
        f"{name:<28} {', '.join(sorted(old.get(name, ['not there'])))} -> {', '.join(sorted(new.get(name, ['gone'])))}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def main() -> int:
    before = FILE.read_text(encoding="utf-8")
    head = "".join(line for line in before.splitlines(keepends=True) if line.startswith("#"))
    after = head + resolved()
    listed = changes(before, after)
    print("\n".join(listed) or "Everything is at its newest.", flush=True)
    if not listed:
        return 0
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: signals.append(number))
    FILE.write_text(after, encoding="utf-8")
    command = ["make", "test-all", "VENV=.venv-renew"]  # half an hour; the rest comes at night, in CI
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as tests:
        while tests.poll() is None:
            if signals:
                os.killpg(tests.pid, signal.SIGTERM)  # make alone would leave what its shells have started
            time.sleep(0.2)
    if signals or tests.returncode:
        FILE.write_text(before, encoding="utf-8")
        reason = "Interrupted" if signals else "A test failed with these"
        print(f"\n{reason}; constraints.txt is as it was. What breaks a test can be held back: [tool.uv] in pyproject.toml.")
        return 1
    print(f"\nAll tests pass with these {len(listed)} changes. Commit constraints.txt.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
