"""Figures that play in a browser, with or without a kernel.

The files beside this one are joined as they are: there is nothing to build, and nothing to load from elsewhere.
"""

from functools import lru_cache
from pathlib import Path

RECORDED = Path(__file__).with_name("recorded.json")  # made by helpers/tools/recordings.py
FIGURES = ("base", "steps", "predict", "cost", "panel")  # in this order


@lru_cache(maxsize=1)
def module() -> str:
    """The ES module that anywidget loads in JupyterLab."""
    return _joined(*FIGURES, "lab")


def script() -> str:
    """The script of a page that plays by itself. No module: a browser loads those from a server only, not from a file."""
    return '"use strict";\n{\n' + _joined(*FIGURES, "recorded", "explore", "page") + "}\n"


def _joined(*parts: str) -> str:
    return "\n".join(Path(__file__).with_name(f"{part}.js").read_text(encoding="utf-8") for part in parts)
