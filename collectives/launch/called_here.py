"""Advice on a rank's function that was called in the notebook: `run(train())` rather than `run(train)`."""

import re
from typing import Any

_NO_GROUP = "Default process group has not been initialized"  # torch's words
_RUN_OF_A_CALL = re.compile(r"\brun\(\s*([A-Za-z_][\w.]*)\(")


def advise(result: Any) -> None:
    """After a cell: advise if it called the function that it meant to hand to run().  result: IPython's."""
    error, cell = result.error_in_exec, result.info.raw_cell or ""
    if isinstance(error, ValueError) and str(error).startswith(_NO_GROUP) and (found := _RUN_OF_A_CALL.search(cell)):
        name = found[1]
        print(
            f"{name}() ran here, in the notebook, which isn't a rank. Pass the function without calling it: run({name}), "
            f"and its arguments after it: run({name}, ...)."
        )
