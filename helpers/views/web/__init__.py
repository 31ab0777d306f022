"""Figures that play in a browser, with or without a kernel.

The files beside this one are joined: there is nothing to build, and nothing to load from elsewhere.
"""

import re
from functools import lru_cache
from pathlib import Path

RECORDED = Path(__file__).with_name("recorded.json")  # made by helpers/tools/recordings.py
FIGURES = ("steps", "predict", "cost", "panel")  # the kinds of recordings, each drawn by the file of its name
UNREAD = re.compile(r"^ +|^ *//.*\n|^ */\*\*.*\*/\n", re.MULTILINE)  # indentation and lines of comment


@lru_cache
def module(kind: str) -> str:
    """The ES module that anywidget loads in JupyterLab for a figure: a front end loads it again for each."""
    return _joined("base", kind, "lab") + f"export default widget({kind})\n"


def script() -> str:
    """The script of a page that plays by itself. No module: a browser loads those from a server only, not from a file."""
    return '"use strict";\n{\n' + _joined("base", *FIGURES, "recorded", "explore", "page") + "}\n"


def _joined(*parts: str) -> str:
    texts = (Path(__file__).with_name(f"{part}.js").read_text(encoding="utf-8") for part in parts)
    return UNREAD.sub("", "\n".join(texts))
