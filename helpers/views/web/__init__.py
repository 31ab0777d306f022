"""The course's figures that play in a browser, added to the library's; and the script with which a page plays them."""

from pathlib import Path

from collectives.figures import web

HERE = Path(__file__).parent
PREDICT, COST = HERE / "predict.js", HERE / "cost.js"
FIGURES = (*web.FIGURES, PREDICT, COST)
WORKER = HERE / "worker.mjs"  # Python next to a page, see write.js
RECORDED = HERE / "recorded.json"  # made by tools/recordings.py
PUZZLES = HERE / "puzzles.json"  # made by tools/puzzles.py
LACKS = "raise NotImplementedError()  # your line"  # of a puzzle: where its function lacks a line


def script() -> str:
    """The script of a page that plays by itself. No module: a browser loads those from a server only, not from a file."""
    page = (HERE / f"{part}.js" for part in ("recorded", "explore", "orders", "write", "planner", "page"))
    return '"use strict";\n{\n' + web.joined(web.HERE / "base.js", *FIGURES, *page) + "}\n"
