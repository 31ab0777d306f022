"""The course's files as JupyterLab gets and saves them; helpers/tools/lab.py starts it with this."""

import json
import re
from contextlib import suppress
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager

from ..course import ROOT
from ..progress import progress

PROGRESS = "progress.md"  # of the learner, in no commit
STATES = "application/vnd.jupyter.widget-state+json"


class Contents(AsyncLargeFileManager):
    """Opening a notebook does not change it, and the page that says how far the learner is says it now.

    JupyterLab writes the version of the kernel's Python into a notebook as soon as it is open.  Here the version
    is there before, so that nothing is to be saved, and is never stored: it would differ from one learner to the next.
    JupyterLab stores the state of the widgets that this kernel made: those of an earlier kernel would be lost.
    """

    async def get(self, path: str, *args: Any, **options: Any) -> dict:
        if path.strip("/") == PROGRESS:
            with suppress(OSError):  # a course that cannot be written to
                (ROOT / PROGRESS).write_text(progress().page(), encoding="utf-8")
        model = await super().get(path, *args, **options)
        _set_language(model, IPythonKernel.language_info)
        return model

    async def save(self, model: dict, path: str = "") -> dict:
        _set_language(model, {"name": "python"})
        if model.get("type") == "notebook":
            stored = await super().get(path, type="notebook") if await self.file_exists(path) else {}
            _keep_widgets(model, _metadata(stored))
        return await super().save(model, path)


def _metadata(model: dict) -> dict:
    """A notebook's; {} of any other file."""
    return (model.get("content") or {}).get("metadata", {}) if model.get("type") == "notebook" else {}


def _set_language(model: dict, language: dict) -> None:
    """Changes what a Python notebook says of its language."""
    metadata = _metadata(model)
    if metadata.get("language_info", {}).get("name") == "python":
        metadata["language_info"] = dict(language)


def _keep_widgets(model: dict, stored: dict) -> None:
    """Changes what a notebook says of its widgets: the state of those in its outputs, from before where it has none now."""
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


def _states(metadata: dict) -> dict:
    """Of the widgets that were saved with a notebook, by model."""
    return metadata.get("widgets", {}).get(STATES, {}).get("state", {})
