"""The course's figures that play in a browser, added to the library's; and the script with which a page plays them."""

from pathlib import Path

from collectives.figures import web

FOLDER = Path(__file__).parent
PREDICT, COST = FOLDER / "predict.js", FOLDER / "cost.js"
FIGURES = (*web.FIGURES, PREDICT, COST)
WORKER = FOLDER / "worker.mjs"  # Python next to a page, see write.js
RECORDED_FILE = FOLDER / "recorded.json"  # made by tools/recordings.py
PUZZLES = FOLDER / "puzzles.json"  # made by tools/puzzles.py
LACKS = "raise NotImplementedError()  # your line"  # of a puzzle: where its function lacks a line


def script(cells: bool = False) -> str:
    """The script of a page that plays by itself. No module: a browser loads those from a server only, not from a file.

    cells: whether a notebook's cells run there, or logs are explained.
    """
    parts = ("recorded", "explore", "orders", "write", "planner", *cells * ("runnable", "explain"), "page")
    page = (FOLDER / f"{part}.js" for part in parts)
    return '"use strict";\n{\n' + web.join_modules(web.FOLDER / "base.js", *FIGURES, *page) + "}\n"
