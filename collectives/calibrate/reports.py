"""Measured collectives, read from files: reports of nccl-tests, and traces of torch's profiler."""

import gzip
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ..cost.calibration import LAUNCH_SECONDS
from ..log.collectives import least
from ..machines.gpu import gpus
from ..machines.sweeps import Sweep

TESTS = {  # a program of nccl-tests -> our name
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "broadcast": "broadcast", "reduce": "reduce", "sendrecv": "send",
}  # fmt: skip
KERNELS = {  # "Collective name" of a kernel in a trace -> our name
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce", "allgather": "all_gather",
    "_allgather_base": "all_gather", "allgather_into_tensor_coalesced": "all_gather", "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter", "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter", "all_to_all": "all_to_all", "all_to_allv": "all_to_all",
    "broadcast": "broadcast", "reduce": "reduce",
}  # fmt: skip
DTYPE_BYTES = {"Float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Int": 4, "Long": 8, "Byte": 1, "Char": 1, "Bool": 1}
NUMBER = r"(\d+(?:\.\d+)?|N/A)"
ROW = re.compile(  # bytes, count, dtype, op, root; time, algbw, busbw and errors, out of place and perhaps in place
    rf"(?<!\S)(\d+)\s+\d+\s+(\w+)\s+(\w+)\s+(?:-?\d+\s+)?{NUMBER}\s+{NUMBER}\s+{NUMBER}\s+\S+(?:\s+{NUMBER}\s+{NUMBER}\s+{NUMBER})?"
)
RANK = re.compile(r"#\s+Rank\s+\d+.*?\bon\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s+(.+?)\s*$")
PROGRAM = re.compile(rf"\b({'|'.join(TESTS)})_perf")


@dataclass(frozen=True)
class Measured:
    """Seconds of one collective of S = nbytes.  place: file and line."""

    collective: str
    ranks: tuple[int, ...]  # as numbered node by node
    nbytes: int
    seconds: float
    place: str
    node: int = 0  # GPUs of a node, if the file has it
    gpu: str = ""  # a name in gpus.csv, if the file has it
    launch: float = 0.0  # seconds of it until the kernels ran, where one thread started all GPUs' kernels


def of_sweep(sweep: Sweep) -> list[Measured]:
    """A published sweep as measurements."""
    made = []
    for nbytes, figure in sweep.figures:
        seconds = figure * 1e-6 if sweep.unit == "µs" else least(sweep.collective, sweep.gpus) * nbytes / (figure * 1e9)
        ranks = tuple(range(sweep.gpus))
        launch = sweep.exposed * LAUNCH_SECONDS
        made.append(Measured(sweep.collective, ranks, nbytes, seconds, sweep.sweep, launch=launch))
    return made


def measured(file: Path | str) -> list[Measured]:
    """The measurements in a file: a report of nccl-tests, or a trace of torch's profiler (.json, .json.gz).

    The fastest of equal calls counts: out of place or in place, and in a trace the call that waited least for others.
    Raises ValueError for a file without a measurement.
    """
    file = Path(file)
    packed = file.suffix == ".gz"
    text = gzip.decompress(file.read_bytes()).decode() if packed else file.read_text(encoding="utf-8", errors="replace")
    rows = _trace(text, file.name) if file.name.removesuffix(".gz").endswith(".json") else _report(text, file.name)
    fastest: dict[tuple, Measured] = {}
    for row in rows:
        key = row.collective, row.ranks, row.nbytes
        if key not in fastest or row.seconds < fastest[key].seconds:
            fastest[key] = row
    if not fastest:
        raise ValueError(
            f"{file.name} has no measurement: give the output of a program of nccl-tests, or a trace that "
            "torch.profiler exported on GPUs (export_chrome_trace)."
        )
    return list(fastest.values())


def _report(text: str, name: str) -> list[Measured]:
    rows, hosts, kinds, launch = [], Counter(), set(), 0.0
    program = next((test for test in sorted(TESTS, key=len, reverse=True) if test in name), "")
    for number, line in enumerate(text.splitlines(), 1):
        if found := RANK.search(line):
            hosts[found[1]] += 1
            kinds.add(found[2])
        elif found := ROW.search(line):
            nbytes, _, op, *figures = found.groups()
            pairs = [tuple(figures[:3]), tuple(figures[3:])]
            times = [tuple(map(float, pair)) for pair in pairs if all(f not in (None, "N/A") for f in pair)]
            times = [(seconds, algbw, busbw) for seconds, algbw, busbw in times if seconds > 0]
            if int(nbytes) and times:
                collective = TESTS[program] if program else _recognised(op, times[0], sum(hosts.values()))
                place, seconds = f"{name}, line {number}", min(times)[0] * 1e-6
                rows.append(
                    (collective, int(nbytes), seconds, place, max(times, key=lambda t: t[1]), launch, hosts, kinds)
                )
        elif "Using devices" in line or "# nThread" in line:  # the next report of the same file
            hosts, kinds = Counter(), set()
            launch = LAUNCH_SECONDS * bool(re.search(r"nGpus ([2-9]|\d\d)", line)) or launch * ("nThread" not in line)
        elif found := PROGRAM.search(line):
            program = found[1]
    best: dict[int, tuple] = {}  # per report, the row of most bandwidth, which shows the number of ranks best
    for *_, figures, _, hosts, _ in rows:
        best[id(hosts)] = max(best.get(id(hosts), figures), figures, key=lambda f: f[1])
    made = []
    for collective, nbytes, seconds, place, _, launch, hosts, kinds in rows:
        ranks = _ranks(collective, best[id(hosts)], sum(hosts.values()))
        node = max(hosts.values()) if ranks == sum(hosts.values()) else 0  # not all ranks are listed
        hidden = len(hosts) > 1  # behind the longer call before
        launched = 0.0 if hidden else launch
        made.append(Measured(collective, tuple(range(ranks)), nbytes, seconds, place, node, _gpu(kinds), launched))
    return made


def _recognised(op: str, figures: tuple[float, float, float], ranks: int) -> str:
    """The collective of a row whose report does not name it, by its factor of bus bandwidth."""
    _, algbw, busbw = figures
    if op == "none":
        return "all_gather"
    factor = busbw / algbw if algbw else 2.0
    return "reduce_scatter" if ranks > 2 and abs(factor - (ranks - 1) / ranks) < 0.02 else "all_reduce"


def _ranks(collective: str, figures: tuple[float, float, float], listed: int) -> int:
    """A report's number of ranks: as listed, or as in its factor of bus bandwidth, if that is different."""
    _, algbw, busbw = figures
    if collective == "send" or algbw < 1:
        return listed
    factor = busbw / algbw
    if listed > 1 and abs(least(collective, listed) - factor) < 0.01:
        return listed
    return min(range(2, 513), key=lambda n: abs(least(collective, n) - factor))


def _gpu(kinds: set[str]) -> str:
    """The GPU of gpus.csv whose name is a word of the devices' names; a GH200 isn't an H200."""
    return next((name for name in gpus() if any(re.search(rf"\b{name}\b", kind) for kind in kinds)), "")


def _trace(text: str, name: str) -> list[Measured]:
    try:
        trace = json.loads(text)
    except ValueError as reason:
        raise ValueError(f"{name} is not JSON: {reason}") from None
    devices = trace.get("deviceProperties", []) if isinstance(trace, dict) else []
    kinds = {device.get("name", "") for device in devices}
    rows = []
    for k, event in enumerate(trace.get("traceEvents", []) if isinstance(trace, dict) else trace):
        args = event.get("args", {}) if isinstance(event, dict) else {}
        collective = KERNELS.get(args.get("Collective name", ""))
        if event.get("cat") != "kernel" or not collective or not event.get("dur"):
            continue
        each = DTYPE_BYTES.get(args.get("dtype", ""), 0)
        nbytes = each * max(args.get("In msg nelems", 0), args.get("Out msg nelems", 0))
        listed = re.findall(r"\d+", str(args.get("Process Group Ranks", "")))
        ranks = tuple(map(int, listed)) or tuple(range(args.get("Group size", 0)))
        if nbytes and len(ranks) == args.get("Group size", len(ranks)) > 1:
            place = f"{name}, event {k}"
            rows.append(Measured(collective, ranks, nbytes, event["dur"] * 1e-6, place, len(devices), _gpu(kinds)))
    return rows
