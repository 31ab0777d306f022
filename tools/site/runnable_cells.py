"""The cells of notebooks and texts that a reader can change and run on the site, on pretended ranks."""

import json
import re

from helpers.course import NOTEBOOKS

RUNNABLE = ("00_start_here", "twelve_puzzles")  # whose cells need no more of torch than pages have
CHECK = re.compile(r"check_practice\((\w+)\)")
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CALL = "\n\n\nrun({name}, world_size=4)\n"
IMPORTS = "import torch\nimport torch.distributed as dist\n\nfrom helpers import run\n"


def described(place: str, notebook: str, source: str, before: list[dict]) -> dict:
    """A cell as runnable.js takes it.  before: the cells above, each with its source and place."""
    functions = re.findall(r"^def (\w+)\(", source, re.MULTILINE)
    name = functions[-1] if functions else source.splitlines()[-1]
    here = {"kind": "runnable", "notebook": notebook, "name": name, "source": source, "place": f"{place}/{name}"}
    return here | {"before": list(before), "check": None, "tasks": 0}


def cells_of(notebook: str) -> dict[str, dict]:
    """A notebook's cells by their id; None for a check that is a part of the cell with its function."""
    content = json.loads((NOTEBOOKS / f"{notebook}.ipynb").read_text(encoding="utf-8"))
    code = [(cell["id"], "".join(cell["source"])) for cell in content["cells"] if cell["cell_type"] == "code"]
    tasks = {found[1] for _, source in code if (found := CHECK.fullmatch(source))}
    cells, before = {}, []
    for key, source in code:
        if not CHECK.fullmatch(source):
            cell = described(f"notebooks/{notebook}", notebook, source, before)
            if cell["name"] in tasks:
                cell |= {"check": cell["name"], "tasks": len(tasks)}
            if not source.startswith("import ") and "predict(" not in source:
                cells[key] = cell
            before.append({"source": source, "place": cell["place"]})
    return cells


def examples_of(page: str, text: str) -> list[tuple[str, dict]]:
    """A text's examples that can be run: each as it is written, and as a cell."""
    found, before = [], [{"source": IMPORTS, "place": ""}]
    for block in EXAMPLE.finditer(text):
        source = block[1].rstrip()
        if "dist." in source:
            if "run(" not in source:
                source += CALL.format(name=re.findall(r"^def (\w+)\(", source, re.MULTILINE)[-1])
            cell = described(page, "", source.rstrip(), before)
            found.append((block[0], cell))
            before.append({"source": source, "place": cell["place"]})
    return found
