"""What nccl-tests and its kin measured, published sweep by sweep: the figures that calibration() holds the model to.

Microseconds or GB/s of bus bandwidth, as the source has them; where it has two columns, out of
place and in place, the faster.  Included is what says its machine, its collective and its sizes,
and forces nothing but the algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator

from .machine import Machine
from .presets import efa, nvl72, nvlink_node, rails

KIB, MIB, GIB = 2**10, 2**20, 2**30

ML_ENGINEERING = "github.com/stas00/ml-engineering, commit 744d01e, network/README.md"
DGXC = "github.com/NVIDIA/dgxc-benchmarking, commit 841f546, nccl/README.md"
SUPERBENCH = "github.com/microsoft/superbenchmark, commit 700d650, tests/data/nccl_*.log"
GCM = "github.com/facebookresearch/gcm, gcm/tests/health_checks_tests/test_check_nccl.py"
COREWEAVE = "github.com/coreweave/nccl-tests, commit cb86553, README.md"
ORACLE = "github.com/oracle-quickstart/oci-gpu-quickstarts, nvidia/{0}/README-{0}.md"
SKYPILOT = "github.com/skypilot-org/skypilot, examples/gcp_gpu_direct_tcpx/README.md"
NCCL_TESTS = "github.com/NVIDIA/nccl-tests/issues/{}"
NCCL = "github.com/NVIDIA/nccl/issues/{}"

FITTED = "fitted"  # a constant was taken from this very row
FORM = "form"  # no constant is from here, but the shape of the model (pipeline.py) was found by looking at it
HELD_OUT = "held out"  # kept back until the model stood; Nccl._last_crossing alone was added after they had been seen
SUSPECT = "suspect"  # something is wrong with the row, the note says what; it counts nowhere


@dataclass(frozen=True)
class Sweep:
    """Measurements of one collective on one machine; each size is twice the one before."""

    what: str
    machine: Machine
    collective: str
    first: int  # bytes of the first
    source: str
    microseconds: str = ""
    busbw: str = ""  # GB/s; one of the two
    algorithm: str | None = None  # that was forced
    version: str = "2.30"  # of NCCL, as nccl() has it: "2.26" where the source says so
    exposed: bool = False  # whether each call's launch is in the time: see calibration.LAUNCH_SECONDS
    role: str = ""
    note: str = ""

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """(bytes, seconds)."""
        n = self.machine.gpus.node * self.machine.gpus.nodes
        factor = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0, "reduce": 1.0}.get(self.collective, (n - 1) / n)
        for k, figure in enumerate(map(float, (self.microseconds or self.busbw).split())):
            nbytes = self.first * 2**k
            yield nbytes, figure * 1e-6 if self.microseconds else factor * nbytes / (figure * 1e9)


def _of_counts(gpu: str, ring: dict[int, float], nvls: dict[int, float]) -> Iterator[Sweep]:
    """All_reduce of 8 GiB among some of a node's GPUs."""
    for algorithm, figures in (("Ring", ring), ("NVLS", nvls)):
        for count, busbw in figures.items():
            what = f"{min(figures)} to {max(figures)} x {gpu}, {algorithm}"
            machine = nvlink_node(gpu, count)
            yield Sweep(what, machine, "all_reduce", 8 * GIB, ML_ENGINEERING, busbw=str(busbw), algorithm=algorithm)


SWEEPS = (
    # --- one node ---------------------------------------------------------------------------
    Sweep("8 x H100", nvlink_node("H100"), "all_reduce", 256, DGXC, role=FORM, microseconds="""
        15.77 16.01 16.17 16.43 16.46 16.83 17.24 18.68 18.85 19.19 19.50 19.70 26.93 42.09 53.82 82.03 123.0 198.9
        324.7 586.0 1112.5 2149.3 4016.4 7938.0 15749 31307 62636"""),
    Sweep("8 x H100", nvlink_node("H100"), "all_reduce", 128 * MIB, NCCL_TESTS.format(290), exposed=True, role=HELD_OUT,
          microseconds="613.3 1134.8 2175.8 4038.8 8002.1 15773"),
    Sweep("8 x A100", nvlink_node("A100"), "all_reduce", 32 * KIB, ML_ENGINEERING, exposed=True, role=FITTED,
          microseconds="43.83"),
    Sweep("8 x A100", nvlink_node("A100"), "all_reduce", 64 * KIB, ML_ENGINEERING, exposed=True, microseconds="""
        46.80 51.76 61.38 80.40 101.9 101.4 101.5 133.5 276.6 424.0 684.6 1327.6 2420.6 4218.4 8203.9 16240 32136
        64074 127997"""),
    Sweep("8 x A100", nvlink_node("A100"), "all_reduce", 32 * MIB, GCM, role=HELD_OUT,
          microseconds="344.8 556.2 1149.8 2106.0 4138.5 8109.1"),
    Sweep("8 x A100", nvlink_node("A100"), "all_reduce", 256, SUPERBENCH, exposed=True, microseconds="""
        34.56 34.94 35.77 35.42 35.92 35.91 35.87 35.73 37.25 41.11 47.53 60.32 74.78 93.48 110.2 160.0 225.0 372.8
        581.9 1162.2 2111.8 4184.0 8159.5 16203 32052 63896"""),
    Sweep("8 x A100", nvlink_node("A100"), "all_gather", 256, SUPERBENCH, exposed=True, microseconds="""
        34.44 34.76 34.53 34.67 34.62 34.76 34.80 34.54 36.01 39.43 46.27 58.48 72.95 75.84 99.56 120.7 164.6 257.5
        367.6 657.3 1136.0 2227.9 4258.8 8389.4 16474 32669"""),
    Sweep("8 x A100", nvlink_node("A100"), "reduce_scatter", 256, SUPERBENCH, exposed=True, microseconds="""
        34.32 34.71 34.75 35.29 35.17 35.18 35.27 35.00 36.78 39.78 46.65 58.88 72.37 79.62 108.9 147.3 152.4 240.5
        352.1 615.2 1108.7 2169.0 4203.0 8323.5 16400 32464"""),
    Sweep("8 x A100", nvlink_node("A100"), "broadcast", 256, SUPERBENCH, exposed=True, microseconds="""
        34.23 34.26 34.80 34.90 34.59 34.79 34.94 34.71 36.04 39.92 45.89 58.37 76.02 78.12 80.39 96.09 142.1 221.3
        374.4 670.0 1264 2434 4698 9248 18381 36599"""),
    Sweep("8 x A100", nvlink_node("A100"), "reduce", 256, SUPERBENCH, exposed=True, microseconds="""
        35.37 35.49 35.38 35.13 35.82 36.71 35.37 35.16 37.74 41.59 50.49 66.57 76.74 78.51 80.30 94.06 137.7 218.1
        369.8 659.9 1251.4 2413.4 4736.0 9323.5 18570 37539"""),
    Sweep("8 x A100", nvlink_node("A100"), "all_to_all", 256, SUPERBENCH, exposed=True, role=SUSPECT,
          note="one thread starts the 128 sends and receives of 8 GPUs, which takes 87 µs",
          microseconds="""
        86.21 87.33 88.17 86.44 86.68 87.05 86.76 86.26 87.67 86.76 87.02 86.58 87.42 89.61 96.44 120.6 158.8 234.5"""),
    Sweep("8 x A100", nvlink_node("A100"), "all_to_all", 64 * MIB, SUPERBENCH, exposed=True, microseconds="""
        387.0 620.9 1168.0 2197.4 4274.2 8405.3 16678 33234"""),
    Sweep("8 x H200", nvlink_node("H200"), "all_reduce", 32 * KIB, ML_ENGINEERING, exposed=True, role=FITTED, busbw="1.44"),
    Sweep("8 x H200", nvlink_node("H200"), "all_reduce", 64 * KIB, ML_ENGINEERING, exposed=True, busbw="""
        2.93 5.73 11.74 23.94 39.93 64.53 107.16 155.53 219.89 275.84 346.51 401.93 436.15 450.29 463.58 469.17 473.10
        477.45 482.26"""),
    Sweep("8 x H200", nvlink_node("H200"), "all_reduce", 16 * GIB, ML_ENGINEERING, algorithm="Ring", busbw="367.61"),
    Sweep("8 x H200", nvlink_node("H200"), "all_gather", 16 * GIB, ML_ENGINEERING, busbw="361.4"),
    Sweep("8 x H200", nvlink_node("H200"), "reduce_scatter", 16 * GIB, ML_ENGINEERING, busbw="362.9"),
    Sweep("8 x B200", nvlink_node("B200"), "all_reduce", 32 * KIB, ML_ENGINEERING, exposed=True, role=FITTED, busbw="1.20"),
    Sweep("8 x B200", nvlink_node("B200"), "all_reduce", 64 * KIB, ML_ENGINEERING, exposed=True, busbw="""
        2.17 4.86 9.54 18.71 36.06 63.09 76.48 126.49 254.96 325.97 400.60 568.38 646.11 688.99 723.34 734.97 740.64
        839.07 845.67"""),
    *_of_counts("H200", {4: 363.3, 5: 364.4, 6: 365.1, 7: 365.7, 8: 365.6}, {5: 414.2, 6: 435.6, 7: 460.0, 8: 473.1}),
    *_of_counts("B200", {4: 673.2, 5: 677.8, 6: 677.8, 7: 680.5, 8: 682.2}, {6: 778.2, 7: 811.2, 8: 838.0}),
    Sweep("2 x H100 PCIe, NVLink bridge", nvlink_node("H100", 2), "all_reduce", 16 * GIB, NCCL.format(1161), busbw="116",
          role=SUSPECT, note="a complaint: such a bridge is expected to reach 200 to 230; the model has a switch and half as many links again"),
    # --- one NVLink domain of several hosts ---------------------------------------------------
    Sweep("GB200 NVL72", nvl72(), "all_reduce", 512 * MIB, COREWEAVE, role=HELD_OUT,
          microseconds="1806.7 2924.7 5474.6 10094 20006"),
    Sweep("4 x GB200", nvlink_node("GB200", 4), "all_reduce", 4 * GIB, ORACLE.format("GB200"),
          microseconds="9801.3 19424"),
    Sweep("8 x GB200", nvlink_node("GB200", 8), "all_reduce", 4 * GIB, ORACLE.format("GB200"),
          microseconds="9868.1 18884"),
    Sweep("4 x GB300", nvlink_node("GB200", 4), "all_reduce", 8 * GIB, ORACLE.format("GB300"), role=HELD_OUT,
          microseconds="18916 37605"),
    Sweep("8 x GB300", nvlink_node("GB200", 8), "all_reduce", 8 * GIB, ORACLE.format("GB300"), role=HELD_OUT,
          microseconds="17928 35702"),
    Sweep("64 x GB300", nvlink_node("GB200", 64), "all_reduce", 8 * GIB, ORACLE.format("GB300"), role=HELD_OUT,
          microseconds="18790 36345"),
    Sweep("4 x GB200", nvlink_node("GB200", 4), "all_to_all", 4 * GIB, ORACLE.format("GB200"),
          microseconds="4782.9 9654.2"),
    Sweep("8 x GB200", nvlink_node("GB200", 8), "all_to_all", 8 * GIB, ORACLE.format("GB200"),
          microseconds="11418 22698"),
    Sweep("64 x GB200", nvlink_node("GB200", 64), "all_to_all", 4 * GIB, ORACLE.format("GB200"),
          microseconds="6765.9 13560"),
    Sweep("64 x GB300", nvlink_node("GB200", 64), "all_to_all", 8 * GIB, ORACLE.format("GB300"), role=HELD_OUT,
          microseconds="12953 25357"),
    # --- several nodes ----------------------------------------------------------------------
    Sweep("2 nodes of 8 x H100, InfiniBand", rails(2), "all_reduce", 256, NCCL_TESTS.format(309), version="2.26", role=FORM, microseconds="""
        25.90 26.31 26.65 28.19 29.72 31.67 32.24 33.47 33.08 38.12 46.79 70.33 71.47 76.24 94.22 131.4 183.8 267.7
        466.1 748.3 1276.0 2355.1 4470.2 8717.2 17262 34365 68652"""),
    Sweep("4 nodes of 8 x H100, InfiniBand", rails(4), "all_reduce", 256, NCCL_TESTS.format(309), version="2.26", role=FORM, microseconds="""
        35.82 36.72 37.10 39.59 41.42 45.55 46.39 46.79 47.60 55.06 66.86 72.78 82.17 132.2 151.1 202.4 258.3 370.3
        574.4 990.7 1768.0 3109.0 5802.8 11501 22874 45573 90986"""),
    Sweep("2 other nodes of 8 x H100", rails(2), "all_reduce", MIB, NCCL_TESTS.format(309), version="2.26", role=HELD_OUT, microseconds="""
        82.98 93.52 110.9 150.5 201.6 269.7 469.6 750.7 1290.4 2371.3 4497.4 8766.9 17290 34508"""),
    Sweep("4 other nodes of 8 x H100", rails(4), "all_reduce", MIB, NCCL_TESTS.format(309), version="2.26", role=HELD_OUT, microseconds="""
        93.26 156.4 174.2 239.0 286.3 413.7 615.5 1043.6 2204.7 3600.8 6460.4 12840 25537 51285"""),
    Sweep("8 other nodes of 8 x H100", rails(8), "all_reduce", MIB, NCCL_TESTS.format(309), version="2.26", role=HELD_OUT, microseconds="""
        115.7 143.3 203.8 321.4 373.5 508.2 709.2 1149.5 1955.1 3509.4 7370.5 13252 26340 52733"""),
    Sweep("32 nodes of 8 x A100, four cards each", rails(32, "A100", 12.5e9), "all_reduce", 8, NCCL.format(652),
          role=HELD_OUT, microseconds="62.03 62.85 62.69 63.54 62.39"),
    Sweep("2 nodes of 8 x H200, RoCE", rails(2, "H200"), "all_gather", KIB, SKYPILOT, role=FORM, microseconds="""
        28.07 28.24 28.64 32.47 33.28 34.80 40.62 36.17 37.99 43.98 54.81 68.40 76.13 85.77 114.9 172.4 270.5 483.8
        870.7 1568.7 3079.7 6107.6 12133 24214"""),
    Sweep("2 nodes of 8 x H200, RoCE, again", rails(2, "H200"), "all_gather", KIB, SKYPILOT, role=HELD_OUT, microseconds="""
        27.82 28.03 28.35 31.23 31.61 32.76 34.58 34.65 37.89 40.59 53.14 66.52 71.70 86.18 117.6 176.9 271.8 486.3
        870.5 1568.3 3084.1 6097.1 12135 24244"""),
    Sweep("4 nodes of 8 x B200, EFA", efa(4, "B200"), "all_reduce", 32 * KIB, ML_ENGINEERING, exposed=True, busbw="0.01 0.04",
          role=SUSPECT, note="6 and 3 ms for the two smallest sizes of the sweep, 0.6 ms for the third"),
    Sweep("4 nodes of 8 x B200, EFA", efa(4, "B200"), "all_reduce", 128 * KIB, ML_ENGINEERING, exposed=True, busbw="""
        0.45 1.33 2.84 5.37 10.38 18.90 35.12 64.43 91.19 156.74 197.94 229.09 326.90 361.99 372.42 377.34 380.39
        381.80"""),
    Sweep("4 nodes of 8 x H200, EFA", efa(4), "all_reduce", 16 * GIB, ML_ENGINEERING.replace("network/README", "todo"),
          busbw="369.06"),
    Sweep("2 nodes of 8 x H200, EFA", efa(2), "all_reduce", 16 * GIB, ML_ENGINEERING.replace("network/README", "todo"),
          busbw="486.80"),
    Sweep("4 nodes of 8 x H100, RoCE", rails(4), "all_reduce", 16 * GIB, NCCL.format(1221), busbw="320", role=SUSPECT,
          note="a complaint about low bandwidth"),
    Sweep("2 racks of 64 x GB200", rails(2, "GB200", ranks=64), "all_reduce", 4 * GIB, ORACLE.format("GB200"),
          microseconds="11311 21313"),
    Sweep("3 racks of 64 x GB200", rails(3, "GB200", ranks=64), "all_reduce", 4 * GIB, ORACLE.format("GB200"),
          microseconds="12125 22820"),
    Sweep("2 racks of 72 x GB200", rails(2, "GB200", ranks=72), "all_reduce", 512 * MIB, COREWEAVE, role=HELD_OUT,
          microseconds="2093.7 3565.5 6258.4 11435 21493 41557"),
    Sweep("20 racks of 72 x GB200", rails(20, "GB200", ranks=72), "all_reduce", 512 * MIB, COREWEAVE, role=HELD_OUT,
          microseconds="7108.4 9805.7 14980 24782 44930 84625"),
    Sweep("2 racks of 64 x GB200", rails(2, "GB200", ranks=64), "all_to_all", 4 * GIB, ORACLE.format("GB200"),
          microseconds="48071 95018"),
    Sweep("3 racks of 64 x GB200", rails(3, "GB200", ranks=64), "all_to_all", 4 * GIB, ORACLE.format("GB200"),
          role=HELD_OUT, microseconds="70159 136749"),
    Sweep("2 racks of 64 x GB300", rails(2, "GB200", 100e9, 64), "all_to_all", 8 * GIB, ORACLE.format("GB300"),
          microseconds="179150 357610", role=SUSPECT, note="a quarter of what two 400 Gb/s cards a GPU carry; half of GB200's"),
)  # fmt: skip
