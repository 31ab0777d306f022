"""Machines to choose from.  GB/s is 10^9 bytes/s, each way.

Three figures are fitted, each to one published result; the rest is what is written on the box
or in NCCL's own cost model (NCCL 2.30.7, src/graph/tuning.cc).  calibration.py shows how far
that carries.
"""

from __future__ import annotations

from .fit import Fit
from .machine import Level, Machine, Port, Protocol

EFFICIENCY = 370 / 450  # of NVLink's bandwidth, what a ring reaches: 8 x H100, large
NETWORK_EFFICIENCY = 320 / 400  # of the network cards', likewise: 4 nodes of 8 x H100, RoCE, large
LAUNCH = 28.3e-6  # seconds until a collective's kernel runs, not in NCCL's model: 8 x A100, 32 KiB

# LL sends a flag with every 4 bytes, LL128 with every 120; Simple waits for a fence instead.
PROTOCOLS = (
    Protocol("LL", LAUNCH + 6.6e-6, 0.5),
    Protocol("LL128", LAUNCH + 14e-6, 0.92),
    Protocol("Simple", LAUNCH + 8.4e-6, 1.0),
)
NVLINK_HOP = (0.6e-6, 1.9e-6, 3.4e-6)  # seconds, by protocol
NETWORK_HOP = (2.7e-6, 4.0e-6, 14.0e-6)
SWITCH = 0.5e-6  # a further switch on the way, there and back: an assumption

NVLINK = {  # GPU -> bytes/s of its NVLink, each way
    "A100": 300e9,
    "H100": 450e9,
    "H200": 450e9,
    "B200": 900e9,
}
PCIE5 = 55e9  # bytes/s of a copy over PCIe 5 x16, of 63 on the box
_SOURCE = "NVIDIA's data sheets; latencies of NCCL 2.30.7, src/graph/tuning.cc"


def nvlink_node(gpu: str = "H100", ranks: int = 8) -> Machine:
    """One node whose GPUs are joined by NVSwitch.  gpu: A100, H100, H200, B200.  ValueError for another."""
    return Machine(f"{ranks} x {gpu}", (_nvlink(gpu, ranks),), PROTOCOLS, source=_SOURCE)


def nvl72() -> Machine:
    """GB200 NVL72: 72 B200 in one NVLink domain."""
    return Machine("GB200 NVL72", (_nvlink("B200", 72),), PROTOCOLS, source=_SOURCE)


def rails(nodes: int, gpu: str = "H100", nic: float = 50e9, ranks: int = 8, switch: int = 32) -> Machine:
    """Nodes with a network card for each GPU, card i of every node at rail switch i (InfiniBand or RoCE).

    nic: bytes/s of a card as sold: 400 Gb/s are 50e9.  switch: nodes whose cards share rail switches.
    """
    port = Port("network card", nic * NETWORK_EFFICIENCY)
    levels = [_nvlink(gpu, ranks), Level("rail switch", ranks * min(switch, nodes), NETWORK_HOP, port, rails=ranks)]
    levels.append(Level("spine", ranks * _whole(nodes, switch), _further(1), port))
    return Machine(f"{nodes} nodes of {ranks} x {gpu}, rails", tuple(levels), PROTOCOLS, source=_SOURCE)


def fat_tree(
    nodes: int, gpu: str = "H100", nic: float = 50e9, ranks: int = 8, switch: int = 4, oversubscribed: float = 1.0
) -> Machine:
    """The same nodes, all cards of a node at one leaf switch, the leaves below a spine.

    oversubscribed: 2.0 means that a leaf has half as much bandwidth up as down.
    """
    port = Port("network card", nic * NETWORK_EFFICIENCY)
    leaf = ranks * min(switch, nodes)
    levels = (
        _nvlink(gpu, ranks),
        Level("leaf switch", leaf, NETWORK_HOP, port, uplink=leaf * port.bandwidth / oversubscribed),
        Level("spine", ranks * _whole(nodes, switch), _further(1), port),
    )
    name = f"{nodes} nodes of {ranks} x {gpu}, fat tree {oversubscribed:g}:1"
    return Machine(name, levels, PROTOCOLS, source=_SOURCE)


def pcie_node(ranks: int = 8, pair: int = 4) -> Machine:
    """GPUs without NVLink: `pair` of them below one PCIe 5 switch, whose one link leads to the others."""
    port = Port("PCIe", PCIE5)
    levels = (
        Level("PCIe switch", min(pair, ranks), NVLINK_HOP, port, uplink=PCIE5),
        Level("host", ranks, tuple(2 * hop for hop in NVLINK_HOP), port),
    )
    return Machine(
        f"{ranks} GPUs on PCIe 5", levels, PROTOCOLS, source="PCIe 5 x16 copy of 55 GB/s; latencies as NVLink's"
    )


def loopback(pair: Fit, crowd: Fit, ranks: int, addition: float = 0.0) -> Machine:
    """This machine, as measured: ranks are processes that share its cores and its memory.

    pair: of one message at a time (fit.ping_pong on 2 ranks).
    crowd: of messages that all ranks send at the same time (fit.exchange on `ranks` ranks).
    addition: seconds to add a byte.
    """
    port = Port("socket", max(pair.bandwidth, crowd.bandwidth))
    level = Level("loopback", ranks, crowd.latency, port, bus=crowd.bandwidth * ranks)
    return Machine("this machine", (level,), addition=addition, source="fitted to measurements")


def _nvlink(gpu: str, ranks: int) -> Level:
    if gpu not in NVLINK:
        raise ValueError(f"no figures for {gpu!r}, only for {', '.join(NVLINK)}.")
    return Level("NVLink", ranks, NVLINK_HOP, Port("NVLink", NVLINK[gpu] * EFFICIENCY))


def _further(switches: int) -> tuple[float, ...]:
    return tuple(hop + 2 * switches * SWITCH for hop in NETWORK_HOP)


def _whole(nodes: int, switch: int) -> int:
    """The number of nodes, rounded up to full switches."""
    return -(-nodes // min(switch, nodes)) * min(switch, nodes)
