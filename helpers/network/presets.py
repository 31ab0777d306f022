"""Machines to choose from.  GB/s is 10^9 bytes/s, each way.

Nothing is fitted: bandwidths, latencies and caps are those of NCCL's own cost model (tuning.py),
and what is written on the box.  calibration.py shows how far that carries.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from .channels import ring_channels
from .fit import Fit
from .machine import Gpus, Level, Machine, Port, Protocol
from .tuning import (
    BASE_SECONDS,
    CARD_RATE,
    LL128_RATE,
    LL_NETWORK_CAP,
    LL_RATE,
    NETWORK_HOP_SECONDS,
    NVLINK_HOP_SECONDS,
    PROTOCOLS,
    gpu,
)

SWITCH = 0.5e-6  # a further switch on the way, there and back: an assumption
PCIE5 = 55e9  # bytes/s of a copy over PCIe 5 x16, of 63 on the box
_SOURCE = "NCCL 2.30.7, src/graph/tuning.cc, topo.h, search.cc; NVIDIA's data sheets"


def nvlink_node(gpu: str = "H100", ranks: int = 8) -> Machine:
    """One node whose GPUs are joined by NVSwitch.  gpu: A100, H100, H200, B200, GB200.  ValueError for another."""
    return _of_gpus(f"{ranks} x {gpu}", (_nvlink(gpu, ranks),), Gpus(gpu, ranks))


def nvl72() -> Machine:
    """GB200 NVL72: 72 GPUs in one NVLink domain."""
    return nvlink_node("GB200", 72).with_(name="GB200 NVL72")


def rails(nodes: int, gpu: str = "H100", nic: float = 50e9, ranks: int = 8, switch: int = 32) -> Machine:
    """Nodes with a network card for each GPU, card i of every node at rail switch i (InfiniBand or RoCE).

    nic: bytes/s of a card as sold: 400 Gb/s are 50e9.  switch: nodes whose cards share rail switches.
    """
    port = _card(nic)
    levels = [
        _nvlink(gpu, ranks),
        Level("rail switch", ranks * min(switch, nodes), NETWORK_HOP_SECONDS["Ring"], port, rails=ranks),
        Level("spine", ranks * _whole(nodes, switch), _further(1), port),
    ]
    return _of_gpus(f"{nodes} nodes of {ranks} x {gpu}, rails", tuple(levels), Gpus(gpu, ranks, nodes, nic))


def fat_tree(
    nodes: int, gpu: str = "H100", nic: float = 50e9, ranks: int = 8, switch: int = 4, oversubscribed: float = 1.0
) -> Machine:
    """The same nodes, all cards of a node at one leaf switch, the leaves below a spine.

    oversubscribed: 2.0 means that a leaf has half as much bandwidth up as down.  (Prices of schedules
        know it; NCCL's own model, and so nccl(), does not.)
    """
    port = _card(nic)
    leaf = ranks * min(switch, nodes)
    levels = (
        _nvlink(gpu, ranks),
        Level("leaf switch", leaf, NETWORK_HOP_SECONDS["Ring"], port, uplink=leaf * port.bandwidth / oversubscribed),
        Level("spine", ranks * _whole(nodes, switch), _further(1), port),
    )
    name = f"{nodes} nodes of {ranks} x {gpu}, fat tree {oversubscribed:g}:1"
    return _of_gpus(name, levels, Gpus(gpu, ranks, nodes, nic))


def efa(nodes: int, gpu: str = "H200", nic: float = 50e9, ranks: int = 8) -> Machine:
    """Nodes on AWS's network, which delivers packets in any order.

    LL and LL128 need them in order, so between nodes there is only Simple.  On four nodes the
    ring is taken, on two NVLSTree: stas00/ml-engineering, todo.md.
    """
    algorithms = ("Ring",) if nodes > 2 else ()
    machine = rails(nodes, gpu, nic, ranks)
    return machine.with_(
        name=f"{nodes} nodes of {ranks} x {gpu}, EFA",
        gpus=Gpus(gpu, ranks, nodes, nic, algorithms, ("Simple",)),
        protocols=machine.protocols[-1:],
        levels=tuple(_only(level, -1) for level in machine.levels),
    )


def pcie_node(ranks: int = 8, pair: int = 4) -> Machine:
    """GPUs without NVLink: `pair` of them below one PCIe 5 switch, whose one link leads to the others."""
    port = Port("PCIe", PCIE5)
    hop = NVLINK_HOP_SECONDS["Ring"]
    levels = (
        Level("PCIe switch", min(pair, ranks), hop, port, uplink=PCIE5),
        Level("host", ranks, tuple(2 * seconds for seconds in hop), port),
    )
    source = "PCIe 5 x16 copy of 55 GB/s; latencies as NVLink's"
    return Machine(f"{ranks} GPUs on PCIe 5", levels, _protocols(), source=source)


def loopback(pair: Fit, crowd: Fit, ranks: int, addition: float = 0.0) -> Machine:
    """This machine, as measured: ranks are processes that share its cores and its memory.

    pair: of one message at a time (fit.ping_pong on 2 ranks).
    crowd: of messages that all ranks send at the same time (fit.exchange on `ranks` ranks).
    addition: seconds to add a byte.
    """
    port = Port("socket", max(pair.bandwidth, crowd.bandwidth))
    level = Level("loopback", ranks, crowd.latency, port, bus=crowd.bandwidth * ranks)
    return Machine("this machine", (level,), addition=addition, source="fitted to measurements")


def gpu_nodes(ranks: int, node: int) -> Machine:
    """Nodes of `node` GPUs: NVLink inside, and one network card for each GPU.  Round figures, to compare schedules by."""
    levels = (
        Level("NVLink", node, 2e-6, Port("NVLink", 400e9)),
        Level("network", ranks, 10e-6, Port("network card", 50e9)),
    )
    return Machine(f"{ranks // node} nodes of {node} GPUs", levels, overhead=0.5e-6, source="round figures")


def _of_gpus(name: str, levels: tuple[Level, ...], gpus: Gpus) -> Machine:
    kind = gpu(gpus.name)
    ll = kind.generation.ll_cap if gpus.nodes == 1 else LL_NETWORK_CAP[min(gpus.nodes, 3) - 1]
    ll128 = ring_channels(kind, gpus.node, gpus.nodes, gpus.nic).count * kind.generation.ring_ll128
    return Machine(name, levels, _protocols(ll, ll128), source=_SOURCE, gpus=gpus)


def _protocols(ll: float = inf, ll128: float = inf) -> tuple[Protocol, ...]:
    """LL sends a flag with every 4 bytes, LL128 with every 120; Simple waits for a fence instead."""
    return tuple(map(Protocol, PROTOCOLS, BASE_SECONDS["Ring"], (LL_RATE, LL128_RATE, 1.0), (ll, ll128, inf)))


def _nvlink(name: str, ranks: int) -> Level:
    return Level("NVLink", ranks, NVLINK_HOP_SECONDS["Ring"], Port("NVLink", gpu(name).nvlink))


def _card(nic: float) -> Port:
    return Port("network card", nic * CARD_RATE)


def _further(switches: int) -> tuple[float, ...]:
    return tuple(hop + 2 * switches * SWITCH for hop in NETWORK_HOP_SECONDS["Ring"])


def _only(level: Level, protocol: int) -> Level:
    """The level with the latency of one protocol alone."""
    return replace(level, latency=level.latency[protocol])


def _whole(nodes: int, switch: int) -> int:
    """The number of nodes, rounded up to full switches."""
    return -(-nodes // min(switch, nodes)) * min(switch, nodes)
