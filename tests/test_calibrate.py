"""Measurements of one's own: read, held against prices, fitted; and the rule for faults."""

import gzip
import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from collectives.calibrate.calibrate import Row, error, fitted, own_network, price_on, priced, slow
from collectives.calibrate.reports import Measured, measured
from collectives.cost import nccl
from collectives.machines import machine, network, rails, sweeps
from tools import calibration_page


def test_the_rule_for_faults_finds_the_suspect_and_spares_the_healthy():
    """FAULT is 1.2: the healthy sweep that comes nearest takes 1.13 times the end of the band, the least of the bad 1.23."""
    for sweep in sweeps():
        if sweep.unit != "µs" or sweep.exposed and sweep.collective != "all_to_all":
            continue
        rows = [
            Measured(sweep.collective, tuple(range(sweep.gpus)), b, t * 1e-6, sweep.sweep) for b, t in sweep.figures
        ]
        found = slow(priced(rows, sweep.machine, sweep.version))
        assert bool(found) == (sweep.role == "suspect"), sweep.sweep


@pytest.mark.parametrize("name", ["EFA", "TCPX", "racks"])
def test_the_figures_of_a_network_are_those_that_fit(name):
    """fitted(), from where networks.csv stands, gains next to nothing."""
    there = [s for s in sweeps() if s.role == "fitted" and s.machine.gpus.nodes > 1 and s.unit == "µs"]
    there = [s for s in there if s.machine.gpus.between.name == name]
    rows = [
        row
        for s in there
        for row in priced(
            [Measured(s.collective, tuple(range(s.gpus)), b, t * 1e-6, s.sweep) for b, t in s.figures], s.machine
        )
    ]
    better = own_network(rows[0].price.network, fitted(rows), rows, "a test")
    as_fitted = [Row(row.measured, price_on(row, better), row.version) for row in rows]
    assert error(rows) < error(as_fitted) + 0.03


def report(lines: str, gpus: int = 16, host: int = 8, gpu: str = "NVIDIA H100 80GB HBM3") -> str:
    """As nccl-tests prints it."""
    ranks = (
        f"#  Rank {r:>2} Group  0 Pid  {900 + r} on   node{r // host} device {r % host:>2} [0x{r:02x}] {gpu}"
        for r in range(gpus)
    )
    return "\n".join(["# Collective test starting: all_reduce_perf", "# Using devices", *ranks, "#", lines])


def row_of(nbytes: int, seconds: float, ranks: int = 16) -> str:
    algbw = nbytes / seconds / 1e9
    busbw = algbw * 2 * (ranks - 1) / ranks
    figures = f"{seconds * 1e6:.2f} {algbw:.2f} {busbw:.2f}"
    return f"{nbytes:>12} {nbytes // 4:>12} float sum -1 {figures} 0 {figures} 0"


def calibrate(*arguments) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "collectives", "calibrate", *map(str, arguments)], capture_output=True, text=True
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_cluster_of_ones_own_is_fitted_and_prices_other_sizes(tmp_path):
    """A network whose crossings take 10 µs more than verbs', one odd row, and a fault at its end."""
    figures = network("verbs").figures
    hidden = replace(network("verbs"), figures=figures | {"hop": figures["hop"]._replace(value=(15e-6, 13e-6, 10e-6))})
    true = nccl("all_reduce", rails(2, network=hidden))
    sizes = [2**k for k in range(3, 34)]
    times = {nbytes: true(nbytes).seconds for nbytes in sizes}
    times[2**14] *= 2
    file, mine = tmp_path / "report.txt", tmp_path / "mine.csv"
    file.write_text(report("\n".join(row_of(*pair) for pair in times.items())))
    said = calibrate(file, "--network", "verbs", "--save", mine)
    assert "31 measurements on 2 nodes of 8 x H100" in said and "31 of all_reduce" in said
    assert re.search(r"odd: .*\n +all_reduce of 16 KiB on 16 ranks: .* \(report.txt, line 31\)", said), said
    learned = nccl("all_reduce", machine(str(mine), 32))
    for nbytes in (8, 2**20, 2**30):
        expected = nccl("all_reduce", rails(4, network=hidden))(nbytes).seconds
        assert learned(nbytes).seconds == pytest.approx(expected, rel=0.1)
        assert nccl("all_reduce", rails(4))(8).seconds < 0.75 * nccl("all_reduce", rails(4, network=hidden))(8).seconds
    assert "nine of ten measurements of mine" in repr(learned(8)) and "no sweep of mine has more than 16" in repr(
        learned(8)
    )
    broken = {nbytes: seconds * (4 if nbytes > 2**25 else 1) for nbytes, seconds in times.items()}
    file.write_text(report("\n".join(row_of(*pair) for pair in broken.items())))
    said = calibrate(file, "--network", "verbs", "--save", mine)
    without_the_fault = nccl("all_reduce", machine(str(mine), 16))(2**30).seconds
    assert without_the_fault == pytest.approx(times[2**30], rel=0.15)
    slow_part = said.split("look for a fault")[1].split("fitted")[0]
    assert "64 MiB" in slow_part and "8 GiB" in slow_part and "32 MiB" not in slow_part


def test_a_profilers_trace_is_read(tmp_path):
    """A kernel's fastest call counts; a group along the rails has one GPU of each node."""
    events = []
    for dur, ranks, collective, given, got in (
        (900.0, [0, 8], "_allgather_base", 2**20, 2**21), (400.0, [0, 8], "_allgather_base", 2**20, 2**21),
        (3000.0, list(range(16)), "allreduce", 2**24, 2**24),
    ):  # fmt: skip
        args = {"Collective name": collective, "In msg nelems": given, "Out msg nelems": got, "dtype": "BFloat16",
                "Group size": len(ranks), "Process Group Ranks": str(ranks)}  # fmt: skip
        events.append({"cat": "kernel", "name": "ncclDevKernel", "dur": dur, "ts": 1, "args": args})
    trace = {
        "deviceProperties": [{"name": "NVIDIA H100 80GB HBM3"}] * 8,
        "traceEvents": events + [{"cat": "kernel", "dur": 1}],
    }
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(trace))
    rows = {row.collective: row for row in measured(file)}
    assert (rows["all_gather"].nbytes, rows["all_gather"].seconds, rows["all_gather"].ranks) == (
        2**22,
        pytest.approx(400e-6),
        (0, 8),
    )
    assert rows["all_reduce"].nbytes == 2**25 and len(rows["all_reduce"].ranks) == 16
    assert {row.gpu for row in rows.values()} == {"H100"} and {row.node for row in rows.values()} == {8}
    with gzip.open(tmp_path / "trace.json.gz", "wt") as packed:
        packed.write(json.dumps(trace))
    assert [r.seconds for r in measured(tmp_path / "trace.json.gz")] == [r.seconds for r in measured(file)]


@pytest.mark.slow
def test_a_report_says_what_it_lacks(tmp_path):
    file = tmp_path / "report.txt"
    file.write_text(row_of(2**20, 1e-4))
    assert "the files do not say which machine this is: give --gpu and --node" in calibrate(file)
    assert "one node" in calibrate(file, "--gpu", "H100", "--node", "16")
    file.write_text("nothing\n")
    assert "report.txt has no measurement: give the output of a program of nccl-tests" in calibrate(file)
    assert "No such file" in calibrate(tmp_path / "gone.txt")


def test_the_page_of_the_calibration_is_up_to_date():
    """`python -m tools.calibration_page` writes it."""
    assert calibration_page.PAGE.read_text(encoding="utf-8") == calibration_page.page()
