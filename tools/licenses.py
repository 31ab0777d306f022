"""Lists the licenses of all packages that come with the course, and names any that isn't known to be compatible:

    make licenses      writes LICENSES.md

pip-licenses reads them from what is installed.  All are allowed that let an MIT-licensed course depend on a package.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "LICENSES.md"
# Permissive ones; the MPL asks for the source of its own files alone, and the course changes none of them.
ALLOWED = (
    "MIT", "MIT-0", "MIT-CMU", "MIT License", "BSD License", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "Zlib", "CC0-1.0",
    "BSL-1.0", "Apache-2.0", "Apache 2.0", "Apache-2.0 WITH LLVM-exception", "Apache Software License",
    "Apache License, Version 2.0", "ISC", "ISC License (ISCL)", "PSF-2.0", "Python Software Foundation License", "HPND",
    "MPL-2.0", "Mozilla Public License 2.0 (MPL 2.0)", "The Unlicense (Unlicense)", "Unlicense",
)  # fmt: skip


def pinned() -> set[str]:
    """The packages of constraints.txt."""
    return {
        canonical(name) for name in re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    }


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(python: str) -> list[dict[str, str]]:
    """The pinned packages that are installed for this Python, by name: {"Name", "Version", "License"}."""
    command = [sys.executable, "-m", "piplicenses", "--python", python, "--format", "json", "--from", "mixed", "--with-system"]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return sorted((row for row in rows if canonical(row["Name"]) in pinned()), key=lambda row: row["Name"].lower())


def is_allowed(license: str) -> bool:
    """Whether a package's license, an SPDX expression or the words of classifiers, is compatible."""
    if license in ALLOWED:
        return True
    for word, quantity in ((" AND ", all), (" OR ", any), ("; ", any)):
        if word in license:
            return quantity(is_allowed(part.strip("() ")) for part in license.split(word))
    return False


def main(python: str) -> int:
    """python: the program of the environment whose packages are listed."""
    rows = installed(python)
    if not rows:
        sys.exit(f"{python} has none of the packages of constraints.txt. Make the environment first: make check")
    strange = [f"{row['Name']} {row['Version']}: {row['License']}" for row in rows if not is_allowed(row["License"])]
    if strange:
        print("\n".join(strange), file=sys.stderr)
        print(
            "\nIs each of these compatible? If so, add it to ALLOWED in tools/licenses.py; if not, do without it.",
            file=sys.stderr,
        )
        return 1
    table = "\n".join(f"| {row['Name']} | {row['License']} |" for row in rows)
    PAGE.write_text(
        "# Licenses of what the course installs\n"
        "The course itself: code MIT (`LICENSE`), text CC BY 4.0 (`LICENSE-prose`). `make licenses` writes this page from the\n"
        "installed packages, and fails at a license that isn't known to be compatible. None of these packages is shipped with\n"
        f"the course: pip fetches them.\n\n| package | license |\n|---|---|\n{table}\n",
        encoding="utf-8",
    )
    print(f"{len(rows)} packages, all compatible. {PAGE.name} lists them.")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
