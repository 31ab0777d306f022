"""Run foreign programs plain and recorded, and compare: python -m tests.foreign [NAME ...]"""

import sys
import tempfile
from pathlib import Path

from .compare import PROGRAMS, differences

names = sys.argv[1:] or list(PROGRAMS)
if unknown := sorted(set(names) - PROGRAMS.keys()):
    sys.exit(f"There is no {', '.join(unknown)}. There are: {', '.join(PROGRAMS)}")
failed = skipped = 0
for name in names:
    program = PROGRAMS[name]
    if program.lacks:
        said, skipped = [f"skipped: {program.lacks} is not installed"], skipped + 1
    else:
        with tempfile.TemporaryDirectory() as folder:
            said = differences(program, Path(folder))
        failed += bool(said)
    print(f"{name:34} {'; '.join(said) or 'the same'}", flush=True)
print(f"{len(names) - failed - skipped} passed, {failed} failed, {skipped} skipped")
sys.exit(failed > 0)
