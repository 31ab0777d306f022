"""Figures that play in a browser, with or without a kernel.

The files next to this one are joined: there is nothing to build, and nothing to load from elsewhere.
"""

import re
from functools import lru_cache
from pathlib import Path

FOLDER = Path(__file__).parent
FIGURES = (FOLDER / "steps.js", FOLDER / "panel.js")  # the file that draws a kind of recording has its name
UNREAD = re.compile(r"^ *//.*\n|^ */\*\*.*\*/\n|^ +| // .*$", re.MULTILINE)  # comments and indentation


@lru_cache
def module(figure: Path) -> str:
    """The ES module that anywidget loads in JupyterLab for a figure: a front end loads it again for each."""
    return join_modules(FOLDER / "base.js", figure, FOLDER / "lab.js") + f"export default widget({figure.stem})\n"


def join_modules(*files: Path) -> str:
    """The files' text, one after the other, without comments and indentation."""
    return UNREAD.sub("", "\n".join(file.read_text(encoding="utf-8") for file in files))
