"""Feedback for a learner who wants it: the course's notebook with the learner's answers in it, executed in a Jupyter kernel.

Code that runs in the check's own process can fake the outcome, so this isn't a score.
"""

import logging
import os
import re
import tempfile
from contextlib import closing
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any, Callable

from jupyter_core.utils import run_sync
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_notebook

from helpers.course import ROOT
from helpers.exercise.notebook import is_check

from .gradebook import CheckScore, Grading
from .submission import Submission, graft, slips


@dataclass(frozen=True)
class Feedback(Grading):
    """A grading for the learner: the points of one exercise, and the reason that keeps it from being solved."""

    reason: str = ""  # why the first cell that failed did; "" if none
    hints: int = 0  # the number for the first check that failed

    @property
    def solved(self) -> bool:
        return not self.reason


def untried(submission: Submission, reason: str) -> Feedback:
    """The feedback without a point, of answers that are not run."""
    checks = tuple(_check_score(cell, reason) for cell in graft(submission).cells if is_check(cell))
    return Feedback(submission.exercise, checks, reason=reason)


def execute(submission: Submission, progress: Callable[[int, int], None], kernel: "Kernel | None" = None) -> Feedback:
    """The feedback of answers that are run.

    progress: called with the cells done, and their total.  kernel: one that is up already; it is closed.
    Raises OSError where the machine has no room for a kernel.
    """
    if slip := slips(submission):
        return untried(submission, slip)
    notebook = graft(submission)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    with closing(kernel or Kernel()) as kernel:
        outcomes = kernel.run(cells, lambda done: progress(done, len(cells)))
    checks = tuple(_check_score(cell, outcome) for cell, outcome in zip(cells, outcomes) if is_check(cell))
    reason = next(filter(None, outcomes), "")  # the others may only follow from it
    failed = next((check.name for check in checks if check.reason), None)
    below = dropwhile(lambda cell: cell.id != failed, notebook.cells)
    hints = next((count for cell in below if (count := cell.source.count("<details>"))), 0)
    return Feedback(submission.exercise, checks, reason=reason, hints=hints)


def _check_score(cell: NotebookNode, reason: str) -> CheckScore:
    points = cell.metadata.nbgrader.points
    return CheckScore(cell.id, cell.source, 0 if reason else points, points, reason)


CELL_SECONDS = 60
START_SECONDS = 120  # for a kernel, on a busy machine
COLORS = re.compile(r"\x1b\[[0-9;]*m")
IN_NO_GROUP = "A cell runs in the notebook, which isn't a rank and is in no group. Move this line into the function: that runs on each rank."
STARTUP = "import helpers\nimport torch, helpers.exercise.check_cells\n"  # ranks start while torch is imported
_SILENT = logging.Logger("nbclient", logging.CRITICAL)  # errors are in the outcomes


class _Client(NotebookClient):
    def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> NotebookNode | None:
        """Keep errors alone: a loop that prints without end must not fill the memory."""
        return super().process_message(msg, cell, cell_index) if msg["msg_type"] in ("error", "status") else None


class Kernel:
    """A kernel with the checks' imports loaded, for one notebook: a second would find the first one's names.

    Neither the learner's folder nor the learner's IPython profile is seen in it. Close it.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="grade-")
        startup = Path(self._folder.name) / "profile_default" / "startup"
        startup.mkdir(parents=True)
        (startup / "checks.py").write_text(STARTUP)
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # the environment's own Python, whatever kernels are installed
        self._client = _Client(
            new_notebook(), kernel_name="python3", allow_errors=True, startup_timeout=START_SECONDS,
            timeout=CELL_SECONDS, iopub_timeout=CELL_SECONDS, raise_on_iopub_timeout=True,
            extra_arguments=["--HistoryManager.enabled=False"], log=_SILENT,
        )  # fmt: skip
        self._manager = self._client.create_kernel_manager()
        with open(os.devnull, "w") as nowhere:
            self._client.start_new_kernel(
                cwd=self._folder.name, stdout=nowhere, stderr=nowhere,
                env={**os.environ, "IPYTHONDIR": self._folder.name, "PYTHONPATH": path},
            )  # fmt: skip

    def run(self, cells: list[NotebookNode], progress: Callable[[int], None]) -> list[str]:
        """Per cell why it failed; "" if not.  progress: called with the cells done.  Raises OSError for no kernel."""
        self._client.nb.cells = cells
        try:
            self._client.start_new_kernel_client()
        except RuntimeError as error:
            raise OSError(f"no kernel: {error}") from None
        outcomes: list[str] = []
        for k, cell in enumerate(cells, 1):
            end = ""  # of the whole run
            try:
                self._client.execute_cell(cell, k - 1)
            except DeadKernelError:
                end = f"code cell {k} ended the kernel that it ran in."
            except CellTimeoutError:
                end = f"code cell {k} took longer than {CELL_SECONDS} seconds. Is there a loop that does not end?"
            outcomes.append(end or _error(cell))
            progress(k)
            if end:
                return outcomes + [f"code cell {j} did not run." for j in range(k + 1, len(cells) + 1)]
        return outcomes

    is_up = True  # until it is closed

    def close(self) -> None:
        if not self.is_up:
            return
        self.is_up = False
        if self._client.kc:
            self._client.kc.stop_channels()
        run_sync(self._manager.shutdown_kernel)(now=True)
        run_sync(self._manager.cleanup_resources)()
        self._folder.cleanup()


def _error(cell: NotebookNode) -> str:
    """The traceback that a cell ended with; "" if it ended well."""
    last = cell.get("outputs", [])[-1:]
    said = "".join(COLORS.sub("", "\n".join(out.traceback)).strip() or out.ename for out in last)
    return f"{said}\n{IN_NO_GROUP}" if "Default process group has not been initialized" in said else said
