"""The tables that torch makes of flight records, as dumps: on the debug server's pages, in its files, and in torchfrtrace's output.

Formats: torch 2.13's torch/distributed/debug/_debug_handlers.py (tabulate's "html" and "plain"), and
torch/distributed/flight_recorder/components ("Not all ranks joining collective"). They have no times, and no messages here.
"""

import ast
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Iterator, NamedTuple

from ...judge.wording.phrases import few
from ...log.backends import NCCL
from . import ops
from .dump import Dump, Frame, Launch, Launches, ProcessGroup, Signature, own_frames
from .text import LogLine

_ROW = re.compile(
    r"\s*\d+\s+\d+\s+(?:True|False)\s+(?P<number>\d+)\s+\d+\s+(?P<record>\d+)\s+(?P<group>\S+)\s+(?P<call>\w+:\w+)\s+(?P<sizes>\[\[.*?\]\]|\[\])\s+"
    r"(?:\[\[.*?\]\]|\[\])\s+\{(?P<expected>[\d, ]+)\}\s+(?P<state>\w+)\s*(?P<rest>.*)"
)
_FRAMES = re.compile(r"\[\{'name'.*?\}\]")
_RANKS = re.compile(r"\{([\d, ]+)\}")
_COLUMNS = {
    "internal record id": "record", "group info": "group", "collective": "call", "missing ranks": "missing", "input sizes": "sizes",
    "expected ranks": "expected", "collective state": "state",
}  # fmt: skip
_FIELD = re.compile(rf"\s*({'|'.join(_COLUMNS)}): (.*)")
_UNKNOWN = ["when the calls were made", "the sends and receives"]


class FlightRow(NamedTuple):
    """A call of a table.  record: its number on the rank that the row was made from.  ranks, absent: with and without the call."""

    record: int
    what: Signature
    over: bool
    place: Frame | None
    ranks: set[int]
    absent: set[int]


@dataclass
class FlightTables:
    """The collectives of tables."""

    marks = (b"collective_seq_id", b"Not all ranks joining collective", b"PARTIAL DATA: ")
    inner = (
        b":all", b":reduce", b":broadcast", b":gather", b":scatter", b":barrier", b":_", b": {", b"group info: ", b"internal record id: ",
        b"input sizes: ", b"collective: ", b"collective state: ", b"  Rank ",
    )  # fmt: skip
    calls: dict[tuple[ProcessGroup, int], FlightRow] = field(default_factory=dict)  # by group and number
    silent: dict[int, str] = field(default_factory=dict)  # ranks that didn't answer the debug server, and why
    _block: dict[str, str] | None = None
    _is_partial: bool = False

    def begin(self, path: str, rank: int | None) -> None:
        """A file follows."""
        self._block, self._is_partial = None, False

    def read(self, line: LogLine) -> bool:
        text = line.text
        if text.startswith("PARTIAL DATA: "):
            self._is_partial = True
            return True
        if self._is_partial and (silent := re.match(r"\s*Rank (\d+): (.*)", text)):
            if "not found" not in silent[2]:  # a page that this backend lacks
                self.silent[int(silent[1])] = silent[2][:80]
            return True
        self._is_partial = False
        if "Not all ranks joining collective, sequence number:" in text:
            self._block = {"number": text.rpartition(":")[2].strip()}
            return True
        if self._block is not None and (item := _FIELD.match(text)):
            self._block[item[1]] = item[2]
            if item[1] == "collective state":
                about, self._block = self._block, None
                self._add({_COLUMNS.get(name, name): value for name, value in about.items()})
            return True
        if row := _ROW.match(text):
            frames = _FRAMES.search(row["rest"])
            absent = _RANKS.search(_FRAMES.sub("", row["rest"]))
            self._add(row.groupdict() | {"missing": absent[1] if absent else ""}, _place(frames[0]) if frames else None)
            return True
        return "collective_seq_id" in text

    def _add(self, about: dict[str, str], place: Frame | None = None) -> None:
        """Add a call.  about: as torch names its columns, with only numbers, or none, for ranks."""
        ranks, absent = (set(map(int, re.findall(r"\d+", about.get(name, "")))) for name in ("expected", "missing"))
        name, _, desc = about["group"].partition(":")
        key = ProcessGroup(name, desc or ("default_pg" if name == "0" else ""), tuple(sorted(ranks)))
        sizes = re.findall(r"\[([\d, ]*)\]", about["sizes"].strip()[1:-1])
        shapes = tuple(tuple(map(int, re.findall(r"\d+", shape))) for shape in sizes)
        what = Signature(ops.op_of(about["call"].partition(":")[2]), (), shapes)
        is_over = about["state"].strip() == "completed"
        self.calls[key, int(about["number"])] = FlightRow(
            int(about["record"]), what, is_over, place, ranks - absent, absent
        )

    def sentences(self) -> Iterator[str]:
        """A sentence on the ranks that didn't answer the debug server."""
        if ranks := sorted(self.silent):
            yield f"{few(ranks).capitalize()} didn't answer the debug server: {self.silent[ranks[0]].rstrip('.')}."

    def dumps(self) -> list[Dump]:
        """A dump of each rank, with the calls in the tables."""
        ordered = sorted(self.calls.items(), key=lambda call: call[1].record)
        launches: dict[int, list[Launch]] = defaultdict(list)
        groups: dict[int, dict[str, ProcessGroup]] = defaultdict(dict)
        reached: set[tuple[int, ProcessGroup]] = set()
        for (group, number), row in ordered:
            for rank in row.ranks | row.absent:
                groups[rank][group.name] = group
                has_begun = (rank, group) in reached
                reached.add((rank, group))
                if rank in row.ranks:
                    launch = Launch(0, group, number, row.what, row.record + 1, row.over, True, place=row.place)
                elif not has_begun and number > 1:  # the first of its calls that anybody lists is one that it lacks
                    launch = Launch(0, group, number - 1, Signature(ops.UNTOLD), row.record, True, True)
                else:
                    continue
                launches[rank].append(launch._replace(index=len(launches[rank])))
        return [
            Dump(rank, "table", "", NCCL.name, "", groups[rank], Launches(launches[rank]), 0, True, [*_UNKNOWN])
            for rank in groups
        ]


def _place(text: str) -> Frame | None:
    """The program's own line in a row's list of frames."""
    try:
        frames = [Frame(about["filename"], int(about["line"]), about["name"]) for about in ast.literal_eval(text)]
    except (ValueError, SyntaxError, KeyError, TypeError):
        return None
    return next(iter(own_frames(frames)), None)
