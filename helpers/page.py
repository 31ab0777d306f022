"""How something shows itself in a notebook: as a widget to somebody who can use it, as a picture
and its words to everybody else."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def show(picture: Any, words: str) -> None:
    """Two outputs: of one that held both, GitHub and the website would show the picture only."""
    from IPython.display import display

    if picture is not None:
        display(picture)
    display({"text/plain": words}, raw=True)


def attended() -> bool:
    """Whether somebody may be there to use a widget.

    A program that executes a notebook (nbval, nbconvert, the website) says that it takes no
    questions: its requests have allow_stdin=False.
    """
    at = shell()
    request = at.get_parent() if hasattr(at, "get_parent") else {}
    return request.get("content", {}).get("allow_stdin", True)


def notebook() -> str | None:
    """The name of the notebook that somebody works in, without its ending; None where the front end does not tell."""
    at = shell()
    if at is None or not attended():
        return None
    path = os.environ.get("JPY_SESSION_NAME") or at.user_ns.get("__vsc_ipynb_file__")  # JupyterLab, VS Code
    return Path(path).stem if path else None


def shell():
    """IPython's, if this is one."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


class Interactive:
    """Has a widget, in _repr_mimebundle_, and `unattended()`: a picture or None, and words."""

    def _ipython_display_(self) -> None:
        if attended():
            raise NotImplementedError  # and so IPython takes _repr_mimebundle_
        show(*self.unattended())
