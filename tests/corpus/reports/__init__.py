"""Public bug reports, rewritten as small programs: a file for each report.

A file has the report in its docstring, whose first line is its row's title; SOURCE, the kind of program it is from; CAUSE, a
regular expression for the sentence that names the cause; and job(rank, n). SAME = True where `watch --same` applies.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

REPORTS: dict[str, ModuleType] = {
    module.name: importlib.import_module(f"{__name__}.{module.name}")
    for module in pkgutil.iter_modules(__path__)
    if not module.name.startswith("_")
}
