"""Executes notebooks in place and tidies them:   python -m tools.notebooks [notebook ...]

Without names: every notebook in notebooks/ and solutions/.  A committed notebook holds the outputs of one run from top
to bottom and nothing that differs from one machine, run or Python to the next, so that its diff shows what a change
did.  `problems` lists the violations.
"""

import base64
import os
import re
import sys
import tempfile
import time
from html import unescape
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from helpers.course import NOTEBOOKS, ROOT, SOLUTIONS

CELL_SECONDS = 120  # nbval's limit too, in pyproject.toml
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
NOISE = ("execution", "ExecuteTime", "trusted", "scrolled")  # left in a cell by front ends
WIDGET = "application/vnd.jupyter.widget-view+json"
MAX_BYTES = 1_500_000
# The picture in an answer, see collectives/frontend.py.
ANSWER = re.compile(r'<img src="data:image/png;base64,(?P<png>[^"]*)" alt="(?P<alt>[^"]*)"')
# Forbidden in outputs: it would differ elsewhere, or reveal the machine.
TELLTALES = {
    "a path of this machine": r"(?<![\w.])/(home|Users|root|tmp|private|var/folders)/\w|site-packages|ipykernel_\d"
    r"|/\w+/helpers/",
    "an address in memory": r"\b0x[0-9a-f]{6,}",
    "a warning": r"\b[A-Z]\w*Warning\b",
}


def every() -> list[Path]:
    return [path for folder in (NOTEBOOKS, SOLUTIONS) for path in sorted(folder.glob("*.ipynb"))]


def execute(path: Path) -> None:
    """Runs a notebook from top to bottom in a fresh kernel and saves it with its outputs.

    The file stays as it was when a cell fails that is not tagged raises-exception.
    """
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=CELL_SECONDS, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}},
        record_timing=False, store_widget_state=False, coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],  # no word about encryption on stderr
    ).execute()  # fmt: skip
    tidy(notebook)
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


def tidy(notebook: NotebookNode) -> None:
    """Remove everything that differs from run to run though nothing changed."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        for key in NOISE:
            cell.metadata.pop(key, None)
        fold(cell)
        for output in cell.get("outputs", ()):
            if len(output.get("data", ())) > 1:  # a live widget: its picture or text stays
                output.data.pop(WIDGET, None)
            if "traceback" in output:
                output.traceback = [line.replace(f"{ROOT}{os.sep}", "") for line in output.traceback]


def fold(cell: NotebookNode) -> None:
    """Store in both of JupyterLab's ways whether outputs are folded: it would add the other when it opens the file."""
    cell.metadata.pop("collapsed", None)
    if is_hidden(cell):
        cell.metadata["collapsed"] = True


def is_hidden(cell: NotebookNode) -> bool:
    """Whether the outputs are folded."""
    return cell.metadata.get("jupyter", {}).get("outputs_hidden", False)


def first_line(cell: NotebookNode) -> str:
    """JupyterLab's line for a folded output: the first line of the first output that is not empty."""
    said = _text(cell.outputs[0]) if cell.outputs else ""
    return next((line.strip() for line in said.splitlines() if line.strip()), "")


class StoredOutput(NamedTuple):
    """The picture of an output: its PNG, its words, and its width and parts as in a Sheet's `measures`."""

    png: bytes
    alt: str
    width: int | None
    narrow: str


def stored_picture(output: dict) -> StoredOutput | None:
    """The picture that a stored output shows, folded or not."""
    data, measures = output.get("data", {}), output.get("metadata", {}).get("image/png", {})
    if "image/png" in data:
        png, alt = "".join(data["image/png"]), "".join(data.get("text/plain", "Picture")).partition("\n")[0]
    elif folded := ANSWER.search("".join(data.get("text/html", ""))):
        png, alt = folded["png"], unescape(folded["alt"])
    else:
        return None
    return StoredOutput(base64.b64decode(png), alt, measures.get("width"), measures.get("narrow", ""))


def problems(path: Path) -> list[str]:
    """The reasons not to commit this notebook, a sentence each; empty when all is well."""
    notebook = nbformat.read(path, as_version=4)
    found, nbytes = [], path.stat().st_size
    if notebook.metadata != METADATA:
        found.append("notebook metadata is not the plain one (widget state, another kernel, a Python version)")
    if nbytes > MAX_BYTES:
        found.append(f"{nbytes / 1e6:.1f} MB is too large to read and to compare")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    # nbval compares nothing in a cell without an execution count.
    if [cell.execution_count for cell in code] != [*range(1, len(code) + 1)]:
        found.append("it was not executed in order, from top to bottom, each cell once")
    for number, cell in enumerate(code):
        where = f"code cell {number}"  # as nbval counts
        if set(NOISE) & set(cell.metadata):
            found.append(f"{where} has a front end's metadata")
        if "collapsed" in cell.metadata and not is_hidden(cell):
            found.append(f"{where} is collapsed, but not by jupyter.outputs_hidden")
        found += [f"{where} shows {what}" for what in _blemishes(cell)]
    return found


def _blemishes(cell: NotebookNode) -> list[str]:
    found = []
    for output in cell.outputs:
        if output.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", ()):
            found.append(f"an unexpected {output.ename}")
        if output.get("name") == "stderr":
            found.append("stderr")
        if WIDGET in output.get("data", ()) and len(output.data) > 1:
            found.append("a widget that only a running kernel can draw")
        text = _text(output)
        found += [f"{what} ({match[0]})" for what, pattern in TELLTALES.items() if (match := re.search(pattern, text))]
    return found


def _text(output: NotebookNode) -> str:
    if output.output_type == "stream":
        return output.text
    if output.output_type == "error":
        return "\n".join([output.ename, output.evalue, *output.traceback])
    words = "\n".join(str(value) for kind, value in output.data.items() if kind.startswith("text/"))
    return re.sub(r"(?<=;base64,)[^\"]*", "", words)


def main(names: list[str]) -> int:
    failed = False
    os.environ["COLLECTIVES_PROGRESS"] = f"{tempfile.gettempdir()}/nobody/progress.json"  # not the author's
    for path in [Path(name).resolve() for name in names] or every():
        before, began = path.read_bytes(), time.perf_counter()
        try:
            execute(path)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            print(f"{path.name}: not saved.\n{error}", file=sys.stderr)
            failed = True
            continue
        state = "as before" if path.read_bytes() == before else "changed"
        print(f"{path.name}: {state}, {time.perf_counter() - began:.1f} s", flush=True)
        for problem in problems(path):
            print(f"{path.name}: {problem}", file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
