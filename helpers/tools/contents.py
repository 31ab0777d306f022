"""The course's files as JupyterLab gets and saves them; helpers/tools/lab.py starts it with this."""

from contextlib import suppress
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager

from ..course import ROOT
from ..progress import progress

PROGRESS = "progress.md"  # of the learner, in no commit


class Contents(AsyncLargeFileManager):
    """Opening a notebook does not change it, and the page that says how far the learner is says it now.

    JupyterLab writes the version of the kernel's Python into a notebook as soon as it is open.  Here the version
    is there before, so that nothing is to be saved, and is never stored: it would differ from one learner to the next.
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
        return await super().save(model, path)


def _set_language(model: dict, language: dict) -> None:
    """Changes what a Python notebook says of its language."""
    metadata = (model.get("content") or {}).get("metadata", {}) if model.get("type") == "notebook" else {}
    if metadata.get("language_info", {}).get("name") == "python":
        metadata["language_info"] = dict(language)
