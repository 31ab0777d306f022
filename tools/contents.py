"""The course's files as JupyterLab gets and saves them; tools/lab.py starts it with this."""

import json
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager

from collectives.frontend import STATUS
from helpers.course import ROOT, chapters
from helpers.progress import cells_run, progress

PROGRESS = "progress.md"  # of the learner, in no commit
STATES = "application/vnd.jupyter.widget-state+json"


class Contents(AsyncLargeFileManager):
    """Opens a notebook without changing it, and the learner's progress page up to date.

    JupyterLab writes the version of the kernel's Python into a notebook as soon as it is open.  Here the version
    is there before, so that nothing is to be saved, and is never stored: it would differ from one learner to the next.
    JupyterLab stores the state of this kernel's widgets alone: an earlier kernel's would be lost.
    A chapter is stored as it was executed, but only cells that the learner has run show their number.  No status line is.
    """

    async def get(self, path: str, *args: Any, **options: Any) -> dict:
        if path.strip("/") == PROGRESS:
            with suppress(OSError):  # a course that cannot be written to
                page, text = ROOT / PROGRESS, progress().page()
                if not page.exists() or page.read_text(encoding="utf-8") != text:  # as long as its time stays, Lab shows it
                    page.write_text(text, encoding="utf-8")
        model = await super().get(path, *args, **options)
        _set_language(model, IPythonKernel.language_info)
        if Path(self.root_dir, path.strip("/")) in chapters():
            _hide_numbers(model, cells_run().get(Path(path).stem, ()))
        return model

    async def save(self, model: dict, path: str = "") -> dict:
        _set_language(model, {"name": "python"})
        if model.get("type") == "notebook":
            stored = await super().get(path, type="notebook") if await self.file_exists(path) else {}
            _keep_widgets(model, _metadata(stored))
            _keep_numbers(model, stored)
            _drop_status(model)
        return await super().save(model, path)


def _metadata(model: dict) -> dict:
    """A notebook's; {} of any other file."""
    return (model.get("content") or {}).get("metadata", {}) if model.get("type") == "notebook" else {}


def _set_language(model: dict, language: dict) -> None:
    """Set a Python notebook's metadata on its language."""
    metadata = _metadata(model)
    if metadata.get("language_info", {}).get("name") == "python":
        metadata["language_info"] = dict(language)


def _keep_widgets(model: dict, stored: dict) -> None:
    """Set a notebook's widget states: for the widgets in its outputs, the stored state where it is missing now."""
    metadata = _metadata(model)
    known = {name: each for kept in (_states(stored), _states(metadata)) for name, each in kept.items()}
    shown = re.findall(r'"model_id": "(\w+)"', json.dumps(model["content"]["cells"])) if known else []
    states = {}
    while shown:
        if (name := shown.pop()) in known and name not in states:
            states[name] = known[name]
            shown += re.findall(r'"IPY_MODEL_(\w+)"', json.dumps(known[name]))
    metadata.pop("widgets", None)
    if states:
        metadata["widgets"] = {STATES: {"version_major": 2, "version_minor": 0, "state": states}}


def _hide_numbers(model: dict, run: Collection[str]) -> None:
    """Remove the execution counts of a notebook's cells, except the cells that were run."""
    for name, cell in _code(model).items():
        if name not in run:
            _number(cell, None)


def _keep_numbers(model: dict, stored: dict) -> None:
    """Restore the stored execution counts of a notebook's unchanged cells that lack theirs."""
    before = _code(stored)
    for name, cell in _code(model).items():
        old = before.get(name)
        if old and cell["execution_count"] is None and bool(cell["outputs"]) == bool(old["outputs"]):
            if "".join(cell["source"]) == "".join(old["source"]):
                _number(cell, old["execution_count"])


def _drop_status(model: dict) -> None:
    """Remove the state of runs under way: a kernel that is restarted can't."""
    for cell in _code(model).values():
        cell["outputs"] = [output for output in cell["outputs"] if not output.get("metadata", {}).keys() & STATUS.keys()]


def _code(model: dict) -> dict[str, dict]:
    """A notebook's code cells, by their ids."""
    cells = (model.get("content") or {}).get("cells", ())
    return {cell["id"]: cell for cell in cells if cell["cell_type"] == "code" and "id" in cell}


def _number(cell: dict, count: int | None) -> None:
    for part in (cell, *cell["outputs"]):
        if "execution_count" in part:
            part["execution_count"] = count


def _states(metadata: dict) -> dict:
    """The states of the widgets that were saved with a notebook, by model."""
    return metadata.get("widgets", {}).get(STATES, {}).get("state", {})
