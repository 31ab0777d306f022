"""Runs again, alone, what failed beside others:   python -m tests.again EXIT_CODE_OF_PYTEST

Four workers share two cores, and what must come within seconds then comes late, once in some thousands of tests.  Such
a test is told from a broken one by running it with nothing beside it.  What passes now is named all the same: its
limit, or its way to wait, is to be mended.  A notebook runs whole, as its cells need each other.
"""

import json
import subprocess
import sys

from . import ROOT

MOST = 5  # more than so many are no accident
FAILED = ROOT / ".pytest_cache" / "v" / "again"  # by tests/conftest.py


def main() -> int:
    code = int(sys.argv[1])
    if code != 1:  # interrupted, misused, or wrong inside: not everything has run
        return code
    failed = json.loads(FAILED.read_text())
    if not 0 < len(failed) <= MOST:
        return code
    print(f"\nFailed beside others, and now run alone: {', '.join(failed)}", flush=True)
    alone = list(dict.fromkeys(name.split("::")[0] if ".ipynb" in name else name for name in failed))
    command = [sys.executable, "-m", "pytest", "-m", "", *alone]
    if code := subprocess.run(command, cwd=ROOT).returncode:
        return code
    print("Each of them passed alone. What makes them fail beside others should be mended.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
