"""`explore()` as the website plays it: one real run for every collective, number of ranks and reduce op that it offers."""

from __future__ import annotations

from ...record import provenance
from ...record.collectives import COLLECTIVES
from ...record.text import call_title, text
from ...results.run import Run
from .experiment import CALLS, WORLD_SIZES, code, execute, program
from .widget import controls

REDUCE_OPS = ("SUM", "AVG", "MAX")
KINDS = {"buffer": -1, "reduced": -2, "undefined": -3, "unknown": -4}  # "data" has its rank
NUMBERS = 2  # a tensor, or each rank's chunk of it


def recorded(chosen: dict) -> dict:
    """The controls, where `chosen` says, and the outcome of each of their settings."""
    asked = dict(root=0, dtype="float32", size=NUMBERS)
    runs, codes = {}, {}
    for op in CALLS:
        reduces = COLLECTIVES[op].reduces
        codes[op] = program(code(op, reduce_op="SUM", **asked), chosen["world_size"])
        for n in WORLD_SIZES:
            for reduce_op in REDUCE_OPS if reduces else ("SUM",):
                done = execute(code(op, reduce_op=reduce_op, **asked), n).done
                runs[f"{op} {n} {reduce_op}" if reduces else f"{op} {n}"] = _grid(done)
    offered = [c for c in controls(chosen | {"root": 0}) if c.name in ("op", "world_size", "reduce_op")]
    offered = [
        c._replace(options=[(o, o) for o in REDUCE_OPS], value="SUM") if c.name == "reduce_op" else c for c in offered
    ]
    described = [c.described() for c in offered]
    reducing = [op for op in CALLS if COLLECTIVES[op].reduces]
    return {"kind": "explore", "controls": described, "runs": runs, "codes": codes, "reduces": reducing}


def _grid(run: Run) -> dict:
    """Both sides of a run's one call: [letter, numbers, rank or kind] for every cell."""
    call = run.calls[-1]
    before, after = provenance.read(call)
    root = next((e.root for e in call if e.root is not None), None)
    title = call_title(call).partition(", float32")[0]
    return {
        "title": title,
        "root": root,
        "before": [_row(row) for row in before],
        "after": [_row(row) for row in after],
    }


def _row(row: list[provenance.Slot]) -> list[list]:
    return [
        [slot.letter, "" if slot.value is None else text(slot.value), KINDS.get(slot.kind, slot.origin)] for slot in row
    ]
