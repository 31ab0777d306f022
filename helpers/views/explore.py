"""`explore()`: every collective under your hands.

Choose the collective, the number of ranks, the root, the reduce op, the dtype and the size.  Each change runs the code
next to the controls on real ranks, and shows their tensors before and after.
"""

import base64
import gzip
import json
import linecache
from itertools import product

from collectives.draw.canvas import Picture
from collectives.figures.web.panel import Control, Panelled, picture_data
from collectives.format import span
from collectives.launch.attempt import Outcome, attempt
from collectives.log import provenance
from collectives.log.collectives import COLLECTIVES
from collectives.log.text import after_text, call_title, text
from collectives.outcome.errors import RunError
from collectives.outcome.run import Run

WORLD_SIZES = range(2, 9)
# control -> its options
OPTIONS = {
    "op": tuple(COLLECTIVES),
    "world_size": WORLD_SIZES,
    "root": range(WORLD_SIZES[-1]),
    "reduce_op": ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"),
    "dtype": ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8"),
    "size": (1, 2, 3, 4, 6, 8, 100, 10_000),
}
LABELS = {"op": "collective", "world_size": "world size", "reduce_op": "reduce op", "size": "numbers"}
FILE = "<explore>"  # the code's file name in messages


def code(op: str, root: int, reduce_op: str, dtype: str, size: int) -> str:
    """The function that makes this call, as one would write it.

    size: numbers in the tensor, or in each rank's chunk of it.
    """
    lines = []
    if COLLECTIVES[op].gives:
        count, step = (f"world_size * {size}", 100) if COLLECTIVES[op].gives == "all" else (size, 10)
        lines.append("rank, world_size = dist.get_rank(), dist.get_world_size()")
        lines.append(f"x = (torch.arange({count}) + {step} * rank).to(torch.{dtype})")
    lines += [line.format(root=root, reduce_op=reduce_op, dtype=dtype, size=size) for line in COLLECTIVES[op].code]
    return "\n    ".join(["def collective():", *lines]) + "\n"


def program(function: str, world_size: int) -> str:
    """All that is needed to run it in a notebook cell."""
    head = "import torch\nimport torch.distributed as dist\n\nfrom helpers import run\n\n\n"
    return f"{head}{function}\n\nrun(collective, world_size={world_size})"


def execute(function: str, world_size: int) -> Outcome:
    """Runs the code on real ranks."""
    linecache.cache[FILE] = (len(function), None, function.splitlines(True), FILE)
    names = {"__name__": "__main__"}  # so it is pickled like a notebook's functions
    exec(compile("import torch\nimport torch.distributed as dist\n", FILE, "exec"), names)
    exec(compile(function, FILE, "exec"), names)
    return attempt(names["collective"], (), {"world_size": world_size, "timeout": 10})


def reasons(op: str) -> dict[str, str]:
    """The controls that do not apply to a collective -> why."""
    found = {}
    if not COLLECTIVES[op].root:
        found["root"] = f"{op} has no root: all ranks are equal"
    if not COLLECTIVES[op].reduces:
        found["reduce_op"] = f"{op} combines nothing"
    if not COLLECTIVES[op].gives:
        found |= {name: f"{op} carries no tensor" for name in ("dtype", "size")}
    return found


def explore(
    op: str = "all_reduce",
    world_size: int = 4,
    root: int = 0,
    reduce_op: str = "SUM",
    dtype: str = "float32",
    size: int = 3,
) -> "Explorer":
    """Controls for one collective, and the picture and table of its real run, which follow them.

    op: a collective, by torch's name.  world_size: 2 to 8 ranks.  root: src or dst.  reduce_op: "SUM", ...
    dtype: "float32", ...  size: numbers in the tensor, or in each rank's chunk of it.  OFFERED has all that there are.

    The last expression of a cell, it shows itself.  Raises ValueError for a start that the controls do not offer.
    """
    chosen = dict(op=op, world_size=world_size, root=root, reduce_op=reduce_op, dtype=dtype, size=size)
    for name, offered in (OPTIONS | {"root": range(world_size)}).items():
        if chosen[name] not in offered:
            raise ValueError(f"explore: {name} is one of {', '.join(map(str, offered))}, not {chosen[name]!r}.")
    return Explorer(chosen)


class Explorer(Panelled):
    """One choice of a collective and its settings, its run on real ranks, and the controls that change it.

    chosen: a value of each of OFFERED.  `.code`: the program that ran.  `.run`: its Run, or the RunError; `.words`: its
    table, or the error.
    """

    def __init__(self, chosen: dict) -> None:
        self.chosen: dict = {}
        self.choose(**chosen)

    def choose(self, **chosen) -> None:
        """Sets some controls at once, and runs. The root stays below the world size."""
        self.chosen |= chosen
        self.chosen["root"] = min(self.chosen["root"], self.chosen["world_size"] - 1)
        asked = dict(self.chosen)
        world_size = asked.pop("world_size")
        function = code(**asked)
        self.code = program(function, world_size)
        self.outcome = execute(function, world_size)
        self._picture = self.outcome.run.draw()

    @property
    def run(self) -> Run | RunError:
        return self.outcome.done

    @property
    def words(self) -> str:
        error = self.outcome.error
        return f"{type(error).__name__}: {error}" if error else self.outcome.run.table()

    def said(self) -> str:
        """The ranks' results, in a sentence: 'all_reduce SUM, ranks 0-3; afterwards ranks 0-3: 60 64 68'."""
        if self.outcome.error:
            return f"{type(self.outcome.error).__name__}: see below"
        call = self.outcome.run.calls[-1]
        holders: dict[str, list[int]] = {}
        for event in call:
            holders.setdefault(after_text(event), []).append(event.rank)
        head = f"{call.events[0].how}, ranks {span(call.group)}"
        if set(holders) == {"-"}:
            return f"{head}: every rank has arrived"
        held = [f"rank{'s' * (len(ranks) > 1)} {span(ranks)}: {held}" for held, ranks in holders.items()]
        rest = "; and each other rank something else" * (len(held) > 2)
        return f"{head}; afterwards {'; '.join(held[:1] if rest else held)}{rest}"

    def draw(self) -> Picture:
        return self._picture

    def __repr__(self) -> str:
        return f"{self.code}\n\n{self.words}"

    def recording(self) -> dict:
        """Only that there is one: the website has its runs, made once, in helpers/views/web/recorded.json."""
        return {"kind": "explore"}

    def controls(self) -> list[Control]:
        return _controls(OPTIONS, self.chosen)

    def react(self, chosen: dict) -> dict:
        if chosen != self.chosen:
            self.choose(**chosen)
        return {
            "words": self.said(),
            "picture": picture_data(self._picture, self._picture.alt) if any(self.outcome.run.events) else None,
            "text": self.words,
            "prose": self.outcome.error is not None,
            "code": self.code,
            "off": reasons(self.chosen["op"]),
            "most": {"root": self.chosen["world_size"] - 1},
            "at": {"root": self.chosen["root"]},
        }


def _controls(offered: dict, chosen: dict) -> list[Control]:
    """The controls, with their options and the chosen ones."""
    made = []
    for name, options in offered.items():
        shown = [(f"{option:,}" if isinstance(option, int) else option, option) for option in options]
        made.append(Control(name, shown, chosen[name], LABELS.get(name, name), buttons=name == "op"))
    return made


# --- on the website: a real run for every collective, number of ranks, reduce op and size that it offers ---

PLAYS = {name: OPTIONS[name] for name in ("op", "world_size", "root")}  # what changes there; the dtype stays
PLAYS |= {"reduce_op": ("SUM", "AVG", "PRODUCT", "MIN", "MAX"), "size": (1, 2, 3, 4)}
KINDS = {"buffer": -1, "reduced": -2, "undefined": -3, "unknown": -4}  # "data" has its rank


def record_choice(chosen: dict) -> dict:
    """The controls as the website plays them, where `chosen` says, and the outcome of each of their settings.

    packed: JSON of rows and runs, compressed, as base64.  runs: by the settings that matter to them, see `setting`.
    rows: each row of cells that occurs, once, a cell as [letter, numbers, rank or kind].
    """
    rows, runs = {}, {}
    for op, n, reduce_op, size in product(COLLECTIVES, *(PLAYS[name] for name in ("world_size", "reduce_op", "size"))):
        for root in range(n):
            if (of := setting(op, n, root, reduce_op, size)) not in runs:
                done = execute(code(op, root, reduce_op, "float32", size), n).done
                runs[of] = _grid(done, rows)
    marks = {name: f"{{{name}}}" for name in ("root", "reduce_op", "size", "world_size")}  # for the page to fill in
    asked = marks | {"dtype": "float32"}
    there = asked.pop("world_size")
    codes = {op: program(code(op, **asked), there) for op in COLLECTIVES}
    controls = [control.described() for control in _controls(PLAYS, chosen)]
    off = {op: {name: why for name, why in reasons(op).items() if name in PLAYS} for op in COLLECTIVES}
    packed = pack({"rows": [*rows], "runs": runs})
    return {"kind": "explore", "controls": controls, "packed": packed, "codes": codes, "off": off}


def setting(op: str, n: int, root: int, reduce_op: str, size: int) -> str:
    """The name of a run: 'reduce 4 1 SUM 3', with '-' for options that its collective lacks."""
    off, chosen = reasons(op), {"op": op, "world_size": n, "root": root, "reduce_op": reduce_op, "size": size}
    return " ".join("-" if name in off else str(value) for name, value in chosen.items())


def pack(data: dict) -> str:
    """Data as JSON, compressed, in letters: helpers/views/web/explore.js unpacks it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _grid(run: Run, rows: dict[tuple, int]) -> list:
    """The title of a run's one call, and its rows before and after, as places in `rows`, which gets the new ones."""
    call = run.calls[-1]

    def places(side) -> list[int]:
        return [rows.setdefault(tuple(map(_cell, row)), len(rows)) for row in side]

    return [call_title(call), *map(places, provenance.read(call))]


def _cell(slot: provenance.Slot) -> tuple[str, str, int]:
    return slot.letter, "" if slot.value is None else text(slot.value), KINDS.get(slot.kind, slot.origin)
