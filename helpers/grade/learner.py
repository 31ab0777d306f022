"""Runs the course's notebook with a learner's answers in it, in a kernel of its own, and reads what came out.

This is feedback for a learner who wants it.  Whoever runs in the check's own process can
fake the outcome, so it is no score.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Callable

from jupyter_client.manager import KernelManager
from nbformat import NotebookNode

from ..course import ROOT
from ..exercise.notebook import is_check
from .submission import Submission, graft, slips

CELL_SECONDS = 60
START_SECONDS = 120  # for a kernel, on a busy machine
LOOK_SECONDS = 1.0  # between two looks whether a silent kernel is alive
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
STARTUP = "import helpers\nimport torch, helpers.exercise.check\n"  # ranks start while torch is imported


@dataclass(frozen=True)
class Check:
    """One check cell."""

    what: str  # its code
    points: float  # to be had
    passed: bool


@dataclass(frozen=True)
class Feedback:
    exercise: str
    checks: list[Check]
    reason: str = ""  # why the first cell that failed did; "" if none
    hints: int = 0  # how many belong to the first check that failed

    @property
    def points(self) -> float:
        return sum(check.points for check in self.checks if check.passed)

    @property
    def of(self) -> float:
        return sum(check.points for check in self.checks)

    @property
    def solved(self) -> bool:
        return not self.reason


class Kernel:
    """A Jupyter kernel that has loaded what checks need, for one notebook: a second would find the first one's names.

    It takes seconds to come up, and does so by itself. Neither the learner's folder nor the
    learner's IPython profile is seen in it. Use it as a context manager, or close it.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="grade-")
        startup = Path(self._folder.name) / "profile_default" / "startup"
        startup.mkdir(parents=True)
        (startup / "checks.py").write_text(STARTUP)
        environ = {
            **os.environ,
            "IPYTHONDIR": self._folder.name,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        }
        os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # the environment's own Python, whatever kernels are installed
        self._manager = KernelManager(kernel_name="python3")
        with open(os.devnull, "w") as nowhere:
            self._manager.start_kernel(
                cwd=self._folder.name, env=environ, stdout=nowhere, stderr=nowhere,
                extra_arguments=["--HistoryManager.enabled=False"],
            )  # fmt: skip
        self._client = self._manager.client()
        self._client.start_channels()

    def run(self, cells: list[NotebookNode], progress: Callable[[int], None]) -> list[str]:
        """Per cell why it failed; "" if it did not.  progress: called with the cells done.

        Raises OSError if the kernel does not come up.
        """
        try:
            self._client.wait_for_ready(timeout=START_SECONDS)
        except RuntimeError as error:
            raise OSError(f"no kernel: {error}") from None
        outcomes: list[str] = []
        for k, cell in enumerate(cells, 1):
            outcomes.append(self._outcome(cell.source, k))
            progress(k)
            if not self._manager.is_alive():
                return outcomes + [f"code cell {j} did not run." for j in range(k + 1, len(cells) + 1)]
        return outcomes

    def _outcome(self, source: str, k: int) -> str:
        request = self._client.execute(source, allow_stdin=False)
        deadline, trouble = time.monotonic() + CELL_SECONDS, ""
        while time.monotonic() < deadline:
            try:
                message = self._client.get_iopub_msg(timeout=LOOK_SECONDS)
            except Empty:
                if not self._manager.is_alive():
                    return f"code cell {k} ended the kernel that it ran in."
                continue
            kind, content = message["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") != request:
                continue
            if kind == "error":
                trouble = COLOURS.sub("", "\n".join(content["traceback"])).strip() or content["ename"]
            elif kind == "status" and content["execution_state"] == "idle":
                return trouble
        self._manager.shutdown_kernel(now=True)
        return f"code cell {k} took longer than {CELL_SECONDS} seconds. Is there a loop that does not end?"

    is_up = True  # until it is closed

    def close(self) -> None:
        if not self.is_up:
            return
        self.is_up = False
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
        self._folder.cleanup()

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def untried(submission: Submission, reason: str = "") -> Feedback:
    """The feedback without a point, of answers that are not run."""
    return Feedback(
        submission.exercise, [Check(c.source, c.metadata.nbgrader.points, False) for c in _checks(submission)], reason
    )


def give(
    submission: Submission, progress: Callable[[int, int], None] = lambda done, of: None, kernel: Kernel | None = None
) -> Feedback:
    """Grades one submission.

    progress: called with the cells done, and how many there are.  kernel: one that is up already; it is closed.
    Raises OSError where the machine has no room for a kernel.
    """
    if slip := slips(submission):
        return untried(submission, slip)
    notebook = graft(submission)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    with kernel or Kernel() as kernel:
        outcomes = kernel.run(cells, lambda done: progress(done, len(cells)))
    checks = [
        Check(cell.source, cell.metadata.nbgrader.points, not outcome)
        for cell, outcome in zip(cells, outcomes)
        if is_check(cell)
    ]
    failed = [k for k, outcome in enumerate(outcomes) if outcome]
    first = next((k for k in failed if is_check(cells[k])), None)
    reason = outcomes[failed[0]] if failed else ""  # the others may only follow from it
    return Feedback(submission.exercise, checks, reason, _hints(notebook, cells[first]) if first is not None else 0)


def _checks(submission: Submission) -> list[NotebookNode]:
    return [cell for cell in graft(submission).cells if is_check(cell)]


def _hints(notebook: NotebookNode, check: NotebookNode) -> int:
    """The hints in the first cell after this one that has any."""
    after = notebook.cells[[cell.id for cell in notebook.cells].index(check.id) :]
    return next((n for cell in after if (n := cell.source.count("<details>"))), 0)
