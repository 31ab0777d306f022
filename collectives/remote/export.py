"""Convert a notebook to a program for torchrun: `python -m collectives export 05_many_to_many.ipynb > 05.py`.

torchrun --nproc-per-node 4 05.py
torchrun --nnodes 2 --node-rank 0 --master-addr 10.77.0.1 --nproc-per-node 2 05.py    # and rank 1 on the other host

Unlike nbconvert's, the program shows the last expression of each cell as the notebook does: its words are
printed, its picture is written into a folder.  A cell that fails on purpose prints its error and the next one runs.
"""

import argparse
import ast
import signal
import sys
import textwrap
from pathlib import Path

HEAD = '''"""{name}.ipynb as a program: torchrun --nproc-per-node 4 PROGRAM.py

Made by collectives.remote.export.
"""

from collectives.remote.program import begin
from collectives.remote.program import show as _show  # chapters define functions named show

display = _show
begin(pictures="{name}-pictures"{where})
'''
TRY = """try:
{body}
except Exception as error:
    _show(error)"""


def export(notebook: Path, backend: str | None = None, device: str | None = None) -> str:
    """The program.  backend, device: as for `run`, for all ranks.

    Raises ValueError for a cell with magic commands, which are not Python, ImportError without nbformat."""
    try:
        import nbformat
    except ImportError:
        raise ImportError("notebooks are read by nbformat, which is not installed here: pip install nbformat") from None
    cells = [cell for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]
    where = "".join(f", {name}={value!r}" for name, value in (("backend", backend), ("device", device)) if value)
    parts = [HEAD.format(name=notebook.stem, where=where)]
    for number, cell in enumerate(cells, 1):
        try:
            body = with_last_shown(cell.source)
        except SyntaxError as error:
            raise ValueError(f"code cell {number} of {notebook.name} is not Python alone: {error}") from None
        if "raises-exception" in cell.metadata.get("tags", ()):
            body = TRY.format(body=textwrap.indent(body, "    "))
        parts.append(f"# --- cell {number} ---\n{body}\n")
    return "\n\n".join(parts)


def with_last_shown(source: str) -> str:
    """The cell with its last expression, if it ends with one and no semicolon, inside _show(...)."""
    body = ast.parse(source).body
    if not body or not isinstance(body[-1], ast.Expr) or source.rstrip().endswith(";"):
        return source
    last = body[-1].value
    if isinstance(last, ast.Call) and getattr(last.func, "id", "") in ("print", "display"):
        return source
    text = source.encode()  # ast counts columns in bytes
    lines = text.splitlines(keepends=True)
    start = sum(map(len, lines[: last.lineno - 1])) + last.col_offset
    end = sum(map(len, lines[: last.end_lineno - 1])) + last.end_col_offset
    return (text[:start] + b"_show(" + text[start:end] + b")" + text[end:]).decode()


def main() -> None:
    parser = argparse.ArgumentParser("python -m collectives export", description=__doc__.splitlines()[0])
    parser.add_argument("notebook", type=Path, metavar="NOTEBOOK.ipynb", help="its program is printed")
    parser.add_argument("--backend", help="of the ranks' group, as run() takes it (gloo)")
    parser.add_argument("--device", help="on which its ranks make tensors, as run() takes it (cpu)")
    options = parser.parse_args()
    try:
        program = export(options.notebook, options.backend, options.device)
    except (OSError, ValueError, ImportError) as error:
        sys.exit(str(error))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader of a pipe, such as head, may end first
    print(program)


if __name__ == "__main__":
    main()
