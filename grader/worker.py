"""Scores submissions one after the other, as a process of its own:   python -m grader.worker sandbox|open [private ...]

It prints "up" once it has its sandbox. A line of its input is an item, {"file": ..., "content": the notebook in base64,
"settings": score's}; a line of its output the grading. It ends with its input. private: what its sandbox hides.
"""

import ctypes
import json
import os
import signal
import sys
import time
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

from . import submission
from .gradebook import Grading
from .sandbox import Sandbox
from .score import score
from .submission import UnusableSubmission
from .walls import Unavailable


def main(kind: str, *private: str) -> None:
    if sys.platform == "linux":  # end with the grader even when it is killed, which leaves it no time to end its workers
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grader decides when to stop
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        sandbox = Sandbox(kind == "sandbox", map(Path, private))
        print("up", file=answers, flush=True)
        for item in map(json.loads, sys.stdin):
            began = time.monotonic()
            try:
                submitted = submission.parse(Path(item["file"]), b64decode(item["content"]))
                grading = score(submitted, sandbox, **item["settings"])
            except UnusableSubmission as problem:
                grading = Grading(problem=str(problem))
            grading = replace(grading, seconds=round(time.monotonic() - began, 3))
            print(json.dumps(grading.data()), file=answers, flush=True)
    except Unavailable as why:
        sys.exit(f"No sandbox: {why}")


if __name__ == "__main__":
    main(*sys.argv[1:])
