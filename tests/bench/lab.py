"""From a key to a painted picture in JupyterLab, in parts, beside what does nothing but show one.

    python -m tests.bench.lab

A run is beside a cell that displays its PNG, and explore() beside the same controls with an answer that is ready.  They
take turns in one notebook, so their ratio hardly depends on what else the machine does; nor do the processor times, of
the page and of the kernel.  Milliseconds.
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

from collectives.figures.web.panel import Panelled
from helpers import explore, run


class Ready(Panelled):
    def __init__(self, explorer):
        self.draw, self.controls = explorer.draw, explorer.controls
        self.answer = explorer.react(explorer.chosen)

    def react(self, chosen):
        return self.answer


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
MOVED = {f"{what}, {n} ranks": code.format(n) for n in (4, 8) for what, code in
         {"explore": "explore(world_size={})", "ready": "Ready(explore(world_size={}))"}.items()}  # fmt: skip
TIMES = 9
REST = 500  # ms, as a reader would; the next ranks are made meanwhile
PARTS = ("sent", "busy", "picture", "added", "painted")  # of what is said from the key on
NEXT = """cell => new Promise(painted => {
    addEventListener('keydown', () => { window.pressed = performance.now() }, {capture: true, once: true})
    const seen = new MutationObserver(() => {
        const image = cell.querySelector('.collectives img')
        if (!image) return
        seen.disconnect()
        image.decode().then(() => requestAnimationFrame(() => painted(performance.now() - window.pressed)))
    })
    seen.observe(cell.querySelector('.collectives .seen'), {childList: true})
})"""  # ms from the next key until the figure's next picture is painted
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
    cells = [FIRST, *list(CELLS.values()) * TIMES, *MOVED.values()]
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
            opened = Notebook(page, f"{address}/lab/tree/cells.ipynb?token={token}")
            report(opened)
            report_moves(opened)
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


def report_moves(notebook: Notebook) -> None:
    page, first = notebook.page, 1 + TIMES * len(CELLS)
    cells = [notebook.cell(first + k) for k in range(len(MOVED))]
    for k, cell in enumerate(cells):
        notebook.run_cell(first + k)
        cell.locator(".collectives img").wait_for()
    seen: list[list[float]] = [[] for _ in cells]
    for number in range(TIMES):
        for cell, times in zip(cells, seen):
            page.wait_for_timeout(REST)
            cell.scroll_into_view_if_needed()
            cell.get_by_role("slider", name="numbers").focus()
            painted = cell.evaluate_handle(f"cell => ({{painted: ({NEXT})(cell)}})")
            notebook.keyboard.press("ArrowLeft" if number % 2 else "ArrowRight")
            times.append(painted.evaluate("it => it.painted"))
    print(f"\nload {os.getloadavg()[0]:.1f}; a control is moved, ms to the painted picture: median (least) of {TIMES}")
    for what, times in zip(MOVED, seen):
        print(f"{what:<18}{statistics.median(times):>8.0f} ({min(times):.0f})")


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
