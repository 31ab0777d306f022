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


def script() -> str:
    """The script of a page that plays by itself. No module: a browser loads those from a server only, not from a file."""
    page = (
        FOLDER / f"{part}.js"
        for part in ("recorded", "explore", "orders", "write", "runnable", "planner", "explain", "page")
    )
    return '"use strict";\n{\n' + web.join_modules(web.FOLDER / "base.js", *FIGURES, *page) + "}\n"
