"""Machines to choose from: by name, from machines.csv, or made of GPUs and links.  GB/s is 10^9 bytes/s, each way.

Figures are of NCCL's own cost model (tuning.py, gpus.csv) and what is written on the box; what the software of a network
adds (networks.csv) is fitted to published sweeps.
"""

from dataclasses import replace
from functools import cache
from itertools import compress
from math import inf
from pathlib import Path

from . import tuning
from .data_sheets import COUNT, FOLDER, SECONDS, SPEED, WORDS, DataSheet, Value, data_sheets
from .gpu import NCCL, gpu
from .networks import FIGURES, Network
from .networks import network as network_of
from .topology import Gpus, Level, Machine, Port, Protocol

_SOURCE = "NCCL 2.30.7, src/graph/tuning.cc, topo.h, search.cc; NVIDIA's data sheets"
HOST_GPUS, RACK = 4, 72  # of a host, of a rack of GB200 or GB300: NVIDIA's data sheet
_NVLINK_HOP, _NETWORK_HOP = tuning.NVLINK_HOP_SECONDS["Ring"], tuning.NETWORK_HOP_SECONDS["Ring"]
LINK_FIGURES = {
    "bandwidth": SPEED,
    "latency": SECONDS,
    "overhead": SECONDS,  # that each message costs a rank
}
MACHINE_FIGURES = {
    "gpu": WORDS,  # a name in gpus.csv
    "node": COUNT,  # GPUs that NVLink joins
    "network": WORDS,  # between nodes: a name in networks.csv
    "card": SPEED,  # of each GPU's network card, as sold
}


@cache
def links() -> dict[str, DataSheet]:
    """The links of links.csv by name.  Raises ValueError for a mistake in it."""
    return data_sheets("link", FOLDER / "links.csv", LINK_FIGURES)


@cache
def machines() -> dict[str, DataSheet]:
    """The machines of machines.csv by name.  Raises ValueError for a mistake in it."""
    return data_sheets("machine", FOLDER / "machines.csv", MACHINE_FIGURES)


def machine(name: str, gpus: int | None = None) -> Machine:
    """A machine of machines.csv with that many GPUs: one node of them, or full nodes; None for one full node.

    name: or a .csv file that `collectives calibrate` has saved, which has the network's figures too.
    Raises ValueError for a name that is not there, or nodes that would not be full.
    """
    if name.endswith(".csv"):
        return _from_file(Path(name), gpus)
    if name not in machines():
        raise ValueError(f"no machine is called {name!r}, only {', '.join(machines())}; more go into machines.csv.")
    sheet, needed_by = machines()[name], "machine()"
    node, kind = sheet.value("node", needed_by), sheet.value("gpu", needed_by)
    if gpus is None or gpus == node:
        return nvlink_node(kind, node).with_(name=name)
    if gpus < node:
        return nvlink_node(kind, gpus)
    if gpus % node:
        raise ValueError(f"nodes of {name} have {node} GPUs: {node} must divide {gpus}.")
    return rails(gpus // node, kind, sheet.value("card", needed_by), node, network=sheet.value("network", needed_by))


def _from_file(file: Path, gpus: int | None) -> Machine:
    """A machine of a file of its own, made as `rails` makes one."""
    (sheet,) = data_sheets("machine", file, MACHINE_FIGURES | FIGURES).values()
    kind, node, card = (sheet.value(figure, "machine()") for figure in ("gpu", "node", "card"))
    if gpus is None or gpus <= node:
        return nvlink_node(kind, gpus or node)
    if gpus % node:
        raise ValueError(f"nodes of {file.name} have {node} GPUs: {node} must divide {gpus}.")
    between = Network("network", file.stem, file, {name: q for name, q in sheet.figures.items() if name in FIGURES})
    return rails(gpus // node, kind, card, node, network=between)


def nvlink_node(gpu: str = "H100", ranks: int = 8) -> Machine:
    """One node whose GPUs are joined by NVSwitch.  gpu: a name in gpus.csv.  Raises ValueError for another."""
    return _of_gpus(Gpus(gpu, ranks, inside=_network_inside(gpu, ranks)))


def nvl72() -> Machine:
    """GB200 NVL72: 72 GPUs in one NVLink domain."""
    return machine("GB200 NVL72")


def rails(
    nodes: int, gpu: str = "H100", nic: float = 50e9, ranks: int = 8, switch: int = 32, network: str | Network = ""
) -> Machine:
    """Nodes with a network card for each GPU, card i of every node at rail switch i.

    nic: bytes/s of a card as sold: 400 Gb/s are 50e9.  switch: nodes whose cards share rail switches.  network: a name
    in networks.csv, or a Network; without one verbs (InfiniBand, RoCE), and racks where the nodes are those.
    """
    port = Port("network card", nic * tuning.CARD_RATE)
    shared = Level("rail switch", ranks * min(switch, nodes), _NETWORK_HOP, port, rails=ranks)
    name = network.name if isinstance(network, Network) else network or "rails"
    return _clustered(nodes, gpu, nic, ranks, network, name, shared)


def cluster(gpu: str, gpus: int, nic: float = 50e9, node: int | None = None) -> Machine:
    """Nodes of `node` GPUs joined by NVSwitch, with a card for each GPU; a single node where there are no more GPUs.

    nic: bytes/s of a card.  node: None for as many as are sold together: 8, or 72 in a rack of GB200s or GB300s.
    Raises ValueError where the nodes would not be full, or there are no figures for a GPU.
    """
    node = node or _sold_together(gpu)
    if gpus <= node:
        return nvlink_node(gpu, gpus)
    if gpus % node:
        racks = "; jobs often take 64 GPUs of a rack: node=64" * (node == RACK)
        raise ValueError(f"nodes have {node} GPUs: {node} must divide {gpus}{racks}.")
    return rails(gpus // node, gpu, nic, node)


def _sold_together(kind: str) -> int:
    return int(gpu(kind).value("node", "cluster()"))


def fat_tree(
    nodes: int,
    gpu: str = "H100",
    nic: float = 50e9,
    ranks: int = 8,
    switch: int = 4,
    oversubscribed: float = 1.0,
    network: str = "",
) -> Machine:
    """The same nodes, all cards of a node at one leaf switch, the leaves below a spine.

    oversubscribed: 2.0 is half as much bandwidth up from a leaf as down.  NCCL's own model, and so nccl(), ignores it.
    """
    leaf, port = ranks * min(switch, nodes), Port("network card", nic * tuning.CARD_RATE)
    shared = Level("leaf switch", leaf, _NETWORK_HOP, port, uplink=leaf * port.bandwidth / oversubscribed)
    return _clustered(nodes, gpu, nic, ranks, network, f"fat tree {oversubscribed:g}:1", shared)


def efa(nodes: int, gpu: str = "H200", nic: float = 50e9, ranks: int = 8) -> Machine:
    """Nodes on AWS's network; where it restricts protocols between them, networks.csv has the reason."""
    return rails(nodes, gpu, nic, ranks, network={"A100": "EFA, p4", "H100": "EFA, p5"}.get(gpu, "EFA"))


def pcie_node(ranks: int = 8, pair: int = 4) -> Machine:
    """GPUs without NVLink: `pair` of them below one PCIe 5 switch, whose one link leads to the others."""
    port = Port("PCIe", _link("PCIe 5 x16", "bandwidth"))
    switch = Level("PCIe switch", min(pair, ranks), _NVLINK_HOP, port, uplink=port.bandwidth)
    host = Level("host", ranks, tuple(2 * seconds for seconds in _NVLINK_HOP), port)
    source = "PCIe 5 x16 copy of 55 GB/s; latencies as NVLink's"
    return Machine(f"{ranks} GPUs on PCIe 5", (switch, host), _protocols(), source=source)


def gpu_nodes(ranks: int, node: int) -> Machine:
    """Nodes of `node` GPUs: NVLink inside, a network card for each GPU.  Round figures, to compare schedules by."""
    levels = []
    for name, size, port in (("NVLink", node, "NVLink"), ("network", ranks, "network card")):
        latency, bandwidth = (_link(f"round {name}", figure) for figure in ("latency", "bandwidth"))
        levels.append(Level(name, size, latency, Port(port, bandwidth)))
    name, overhead = f"{ranks // node} nodes of {node} GPUs", _link("round network", "overhead")
    return Machine(name, tuple(levels), overhead=overhead, source="round figures")


def _network_inside(kind: str, ranks: int) -> Network:
    """The network between the GPUs of a node; in a rack they are in several hosts, of HOST_GPUS each."""
    return network_of("NVLink rack" if gpu(kind).value("host", NCCL) == "Arm" and ranks > HOST_GPUS else "NVLink")


def _clustered(
    nodes: int, kind: str, nic: float, ranks: int, network: str | Network, name: str, shared: Level
) -> Machine:
    """Nodes on a network; where it restricts protocols, the machine has only those."""
    inside = _network_inside(kind, ranks)
    between = network or ("racks" if inside.name == "NVLink rack" else "verbs")
    between = between if isinstance(between, Network) else network_of(between)
    algorithms, protocols = between.words("algorithms" if nodes > 2 else "two"), between.words("protocols")
    made = _of_gpus(Gpus(kind, ranks, nodes, nic, algorithms, protocols, inside, between), name, shared)
    kept = [not protocols or protocol.name in protocols for protocol in made.protocols]
    return made.with_(
        protocols=tuple(compress(made.protocols, kept)),
        levels=tuple(replace(level, latency=tuple(compress(level.latency, kept))) for level in made.levels),
    )


def _link(name: str, figure: str) -> Value:
    return links()[name].value(figure, "a preset")


def _of_gpus(gpus: Gpus, network: str = "", shared: Level | None = None) -> Machine:
    """A node of GPUs; or several below the switches of a network, which are below a spine."""
    kind, name = gpu(gpus.name), f"{gpus.node} x {gpus.name}"
    levels = [Level("NVLink", gpus.node, _NVLINK_HOP, Port("NVLink", kind.nvlink))]
    if shared:
        name = f"{gpus.nodes} nodes of {name}, {network}"
        further = tuple(hop + 2 * _link("switch", "latency") for hop in _NETWORK_HOP)
        full_switches = -(-gpus.count // shared.size)
        levels += [shared, Level("spine", full_switches * shared.size, further, shared.port)]
    ring = tuning.ring_channels(kind, gpus.node, gpus.nodes, gpus.nic)
    protocols = _protocols(tuning.bus_caps(kind, ring, gpus.nodes))
    return Machine(name, tuple(levels), protocols, source=_SOURCE, gpus=gpus)


def _protocols(caps: tuple[float, ...] = (inf, inf, inf)) -> tuple[Protocol, ...]:
    """LL sends a flag with every 4 bytes, LL128 with every 120; Simple waits for a fence instead."""
    return tuple(map(Protocol, tuning.PROTOCOLS, tuning.BASE_SECONDS["Ring"], tuning.RATES, caps))
