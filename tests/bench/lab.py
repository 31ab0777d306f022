"""From Shift+Enter to a painted picture in JupyterLab, in parts, beside a cell that only displays a PNG as large.

    python -m tests.bench.lab

Both kinds of cells are run by turns in one notebook, so their ratio hardly depends on what else the machine does; nor do
the processor times, of the page and of the kernel.  Milliseconds, medians.
"""

from __future__ import annotations

import os
import re
import statistics
import tempfile
from pathlib import Path

import nbformat
import psutil
from playwright.sync_api import sync_playwright

from tests.browser.lab import QUIET, Notebook, chromium, jupyterlab

FIRST = """\
import os

import torch
import torch.distributed as dist
from IPython.display import Image

from helpers import explore, run


def one():
    x = torch.ones(2) * dist.get_rank()
    dist.all_reduce(x)


def ten():
    x = torch.ones(2) * dist.get_rank()
    for _ in range(10):
        dist.all_reduce(x)


pictures = [Image(run(each, world_size=4).draw().png(), width=600) for each in (one, ten)]
print(os.getpid())"""
CELLS = {  # what is measured, and the code
    "one call": "run(one, world_size=4)",
    "its PNG alone": "pictures[0]",
    "ten calls": "run(ten, world_size=4)",
    "their PNG alone": "pictures[1]",
}
TIMES = 9
REST = 500  # ms, as a reader would; the next ranks are made meanwhile
PARTS = ("sent", "busy", "picture", "added", "painted")  # of what is said from the key on
WATCH = """
addEventListener('keydown', event => {
    if (event.key === 'Enter' && event.shiftKey) window.marks = {key: performance.now()}
}, true)
const mark = (name, at = performance.now()) => window.marks && (window.marks[name] ??= at)
const send = WebSocket.prototype.send
WebSocket.prototype.send = function (data) {
    const words = typeof data === 'string' ? data : new TextDecoder('latin1').decode(data.buffer ?? data)
    if (words.includes('execute_request')) mark('sent')
    if (!this.watched) {
        this.watched = true
        this.addEventListener('message', ({ data }) => {
            const at = performance.now(), words = typeof data === 'string' ? data : new TextDecoder('latin1').decode(data)
            if (words.includes('"busy"')) mark('busy', at)
            if (words.includes('image/')) mark('picture', at)
        }, true)
    }
    return send.call(this, data)
}
new MutationObserver(changes => {
    for (const node of changes.flatMap(change => [...change.addedNodes])) {
        const image = node.matches?.('.jp-OutputArea img') ? node : node.querySelector?.('.jp-OutputArea img')
        if (!image || !window.marks || window.marks.added) continue
        mark('added')
        image.decode().then(() => requestAnimationFrame(() => requestAnimationFrame(() => mark('painted'))))
    }
}).observe(document, {subtree: true, childList: true})
"""


def main() -> None:
    cells = [FIRST, *list(CELLS.values()) * TIMES]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    }
    with tempfile.TemporaryDirectory() as place:
        nbformat.write(notebook, Path(place, "cells.ipynb"))
        with jupyterlab(Path(place)) as (address, token), sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=QUIET)
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.add_init_script(WATCH)
            report(Notebook(page, f"{address}/lab/tree/cells.ipynb?token={token}"))
            browser.close()


def report(notebook: Notebook) -> None:
    seen: dict[str, list[dict[str, float]]] = {what: [] for what in CELLS}
    notebook.run_cell(0)
    printed = notebook.cell(0).locator(".jp-OutputArea-output pre", has_text=re.compile(r"^\d+\s*$"))
    printed.wait_for()
    kernel = psutil.Process(int(printed.inner_text()))
    for number in range(TIMES):
        for k, what in enumerate(CELLS):
            seen[what].append(measured(notebook, 1 + number * len(CELLS) + k, kernel))
    print(
        f"load {os.getloadavg()[0]:.1f}; median (least) of {TIMES}, ms after the key; processor time of page and kernel"
    )
    print(f"{'':<18}" + "".join(f"{name:>14}" for name in (*PARTS, "page", "kernel")))
    for what, all_of_it in seen.items():
        columns = [[each[name] for each in all_of_it] for name in (*PARTS, "page", "kernel")]
        print(f"{what:<18}" + "".join(f"{statistics.median(ms):>8.0f} ({min(ms):.0f})".rjust(14) for ms in columns))


def measured(notebook: Notebook, number: int, kernel: psutil.Process) -> dict[str, float]:
    """When each part came, in ms after the key; "page" and "kernel": their processor time in ms, until all is quiet."""
    page = notebook.page
    page.wait_for_timeout(REST)
    counted = page.context.new_cdp_session(page)
    counted.send("Performance.enable")

    def tasks() -> float:
        metrics = counted.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    notebook.cell(number).locator(".cm-content").click()
    page.wait_for_timeout(REST)
    used, before = tasks(), kernel.cpu_times()
    notebook.keyboard.press("Shift+Enter")
    page.wait_for_function("window.marks?.painted")
    notebook.idle()
    after = kernel.cpu_times()
    marks = page.evaluate("window.marks")
    times = {name: marks[name] - marks["key"] for name in PARTS}
    spent = {"page": 1e3 * (tasks() - used), "kernel": 1e3 * (sum(after[:2]) - sum(before[:2]))}
    counted.detach()
    return times | spent


if __name__ == "__main__":
    main()
