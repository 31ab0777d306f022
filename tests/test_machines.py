"""Data files of figures: complete, with units and sources; a GPU or a machine is added in one of them."""

import subprocess
import sys

import pytest

from collectives.cost import compute_seconds, nccl
from collectives.machines import gpus, machine, machines, networks, nvlink_node, rails, records, sweeps
from collectives.machines.data_sheets import FOLDER
from collectives.machines.gpu import FIGURES, FILE
from collectives.planner import ALLOCATED, RUNS, Division, cluster, shape, step
from collectives.planner.software import PROGRAMS


def test_the_files_are_complete():
    """Each row has a unit that fits and a source: the readers refuse it otherwise."""
    for kind in gpus().values():
        assert set(kind.figures) == set(FIGURES), kind.name
    for name, sheet in machines().items():
        node = sheet.value("node", "this test")
        for made in (machine(name), machine(name, 4 * node)):
            assert made.gpus.node == node and nccl("all_reduce", made)(2**20).seconds > 0
        assert machine(name).name == name and machine(name, 2).gpus.node == 2
    assert len(sweeps()) == 99 and sum(len(sweep.figures) for sweep in sweeps()) == 1068
    for network in networks().values():
        assert not network.name.startswith("NVLink") or network.band(8)[0] < 1 < network.band(8)[1]
        assert network.value("gpus", "this test") and network.band(2**34)[0] < 1 < network.band(2**34)[1]
    assert len(RUNS) == 136 and len(ALLOCATED) == 14
    assert {run.program for run in RUNS} == set(PROGRAMS)


@pytest.fixture
def noether(tmp_path, monkeypatch):
    """Adds rows of a GPU and its generation to a copy of gpus.csv, where everything looks from then on."""

    def add(without: str = "nothing") -> None:
        rows = FILE.read_text(encoding="utf-8").splitlines()
        b200 = [row for row in rows if row.startswith("B200,") and f",{without}," not in row]
        rows += [row.replace("B200", "N1", 1) for row in b200]
        blackwell = [row for row in rows if row.startswith("Blackwell,") and f",{without}," not in row]
        rows += [row.replace("Blackwell", "Noether", 1) for row in blackwell]
        rows = [row.replace("Blackwell", "Noether") if row.startswith("N1,") else row for row in rows]
        file = tmp_path / "gpus.csv"
        file.write_text("\n".join(rows) + "\n", encoding="utf-8")
        all_gpus = gpus(file)
        monkeypatch.setattr(sys.modules["collectives.machines.gpu"], "gpus", lambda: all_gpus)

    return add


def priced() -> list[float]:
    """What needs figures of a GPU."""
    planned = step(shape("Llama 3 8B"), Division(8), 64, cluster("N1", 8))
    collectives = [nccl("all_reduce", made)(2**20).seconds for made in (nvlink_node("N1"), rails(4, "N1"))]
    return [planned.time, planned.mfu, compute_seconds(1e15, "N1"), *collectives]


def test_a_cluster_has_nodes_as_they_are_sold():
    racks = cluster("GB200", 144)
    assert (racks.gpus.nodes, racks.gpus.node) == (2, 72) and cluster("GB200", 64).gpus.node == 64
    assert cluster("H100", 512).gpus.node == 8 and cluster("GB200", 512, node=64).gpus.nodes == 8
    with pytest.raises(ValueError, match="72 must divide 512.*node=64"):
        cluster("GB200", 512)


def test_a_gpu_is_added_in_one_file(noether):
    with pytest.raises(ValueError, match="no figures for 'N1', only for A100, .*; more go into machines/gpus.csv"):
        priced()
    noether()
    assert all(priced())
    assert nccl("all_reduce", rails(2, "N1")).ways == nccl("all_reduce", rails(2, "B200")).ways  # Blackwell's or later


@pytest.mark.parametrize(
    ("figure", "needs"),
    [
        ("generation", "NCCL's cost model"),
        ("compute_capability", "NCCL's cost model"),
        ("links", "NCCL's cost model"),
        ("host", "NCCL's cost model"),
        ("peak", "the planner"),
        ("memory", "the planner"),
        ("memory_bandwidth", "the planner"),
        ("products", "the planner"),
    ],
)
def test_a_gpu_that_lacks_a_figure_names_it_who_needs_it_and_the_file(noether, figure, needs):
    noether(without=figure)
    message = (
        f"the GPU N1 has no figure '{figure}', and {needs} needs it: add its row, with unit and source, to .*/gpus.csv"
    )
    with pytest.raises(ValueError, match=message):
        priced()


HEAD = "name,figure,value,unit,source\n"


@pytest.mark.parametrize(
    ("rows", "line", "reason"),
    [
        ("name,figure,value,unit\n", 1, "the columns are name, figure, value, unit, source, not name, figure, value"),
        ("", 1, "the columns are"),
        (HEAD + "X,links,18,count,NVIDIA, a sheet\n", 2, "6 cells for 5 columns; quote"),
        (HEAD + "X,links,18,count,here\nX,links,12,count,there\n", 3, "X, links is in line 2 already"),
        (HEAD + "X,links,18,count,\n", 2, "the source is missing"),
        (HEAD + "X,links,,count,here\n", 2, "the value is missing"),
        (HEAD + "X,colour,18,count,here\n", 2, "no figure is called 'colour', only link, "),
        (HEAD + "X,memory,80,GB/s,here\n", 2, "memory needs the unit 'GiB', not 'GB/s'"),
        (HEAD + "X,memory,80,acres,here\n", 2, "memory needs the unit 'GiB', not 'acres'"),
        (HEAD + "X,memory,much,GiB,here\n", 2, "'much' is not a number"),
        (HEAD + "X,memory,80 94,GiB,here\n", 2, "memory needs 1 numbers, not 2"),
        (HEAD + "X,tree,1 2,GB/s,here\n", 2, "tree needs 3 numbers, not 2"),
        (HEAD + "X,links,18,count,here\nX,generation,Vera,,here\n", 3, "the generation 'Vera' has no rows"),
    ],
)
def test_a_mistake_in_a_file_of_figures_names_file_and_line(tmp_path, rows, line, reason):
    file = tmp_path / "gpus.csv"
    file.write_text(rows, encoding="utf-8")
    with pytest.raises(ValueError, match=f"/gpus.csv, line {line}: {reason}"):
        gpus(file)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a,many,yes,Ring,here", "count is an integer, not 'many'"),
        ("a,1,perhaps,Ring,here", "flag is yes or no, not 'perhaps'"),
        ("a,1,yes,Star,here", "word is one of '', 'Ring', not 'Star'"),
        ("a,1,,,here", "the flag is missing"),
        ("a,1,yes,,", "the source is missing"),
        ("a,,yes,,here\na,2,yes,,there", "a is in line 2 already"),
    ],
)
def test_a_mistake_in_a_file_of_records_names_file_and_line(tmp_path, row, reason):
    file = tmp_path / "runs.csv"
    columns = {"run": str, "count": int | None, "flag": bool, "word": ("", "Ring"), "source": str}
    file.write_text(f"{','.join(columns)}\n{row}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=rf"/runs.csv, line {2 + row.count(chr(10))}: {reason}"):
        list(records(file, columns, ("run",)))


def test_a_sweep_without_figures_and_figures_without_a_sweep_are_refused(tmp_path):
    rows = (FOLDER / "measurements.csv").read_text(encoding="utf-8").splitlines()
    last = rows[-1].split(",")[0]
    fewer = [row for row in rows if not row.startswith(last)]
    for name, kept, reason in (
        ("fewer.csv", fewer, f"sweeps.csv, line {len(sweeps()) + 1}: fewer.csv has no row of the sweep '{last}'"),
        ("more.csv", rows + ["nobody,8,1"], f"more.csv, line {len(rows) + 1}: sweeps.csv has no sweep 'nobody'"),
    ):
        (tmp_path / name).write_text("\n".join(kept) + "\n", encoding="utf-8")
        with pytest.raises(ValueError, match=reason):
            sweeps(measurements=tmp_path / name)


def test_a_sweep_on_a_machine_that_nobody_described_is_refused(tmp_path):
    file = tmp_path / "sweeps.csv"
    file.write_text(
        (FOLDER / "sweeps.csv").read_text(encoding="utf-8").replace("DGX H100", "abacus", 1), encoding="utf-8"
    )
    with pytest.raises(ValueError, match="/sweeps.csv, line 2: no machine is called 'abacus'"):
        sweeps(file)


def test_a_machine_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="no machine is called 'abacus', only DGX A100, .*; more go into machines.csv"):
        machine("abacus")
    with pytest.raises(ValueError, match="nodes of DGX H100 have 8 GPUs: 8 must divide 12"):
        machine("DGX H100", 12)


READ = """
import sys
read = []
sys.addaudithook(lambda event, args: event == "open" and str(args[0]).endswith(".csv") and read.append(args[0]))
import helpers, collectives.machines, collectives.cost
from helpers import run, predict, step
from collectives.cost import bill, calibration, cost, nccl
from collectives.machines import rails
print(len(read))
rails(4)
print(len(read) > 0)
"""


@pytest.mark.slow
def test_files_are_read_when_a_figure_is_asked_for():
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["0", "True"], done.stderr
