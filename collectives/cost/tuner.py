"""NCCL's choice for a collective on a machine, and its time.

NCCL estimates every combination of an algorithm and a protocol as latency + bytes / bandwidth, and takes the minimum
(src/graph/tuning.cc, ncclTopoTuneModel and ncclTopoGetAlgoTime).  The choice takes the seconds of that estimate and of
five things that it leaves out: where the switch adds, a pipeline of chunks (machines/tuning.py); in a ring inside a
node, one handshake for each of a chunk's two slices; in a ring over nodes, one crossing a round; in a chain, every hop;
and the network software's addition to every crossing (machines/networks.csv), which alone is fitted.  With it a price
has a band, in which nine of ten unpublished systems are expected (spread.py).

Left out are kernels for symmetric memory and copies by the copy engines, which NCCL 2.27 and later run where buffers are
registered as windows (they take less), and SHARP in the network's switches.
"""

from collections import Counter
from math import inf, log2
from typing import Iterable, NamedTuple

from ..log.collectives import COLLECTIVES as TABLE
from ..machines import tuning
from ..machines.gpu import NCCL, gpu
from ..machines.networks import PRICES
from ..machines.topology import Machine
from ..machines.tuning import BASE_SECONDS, NETWORK_HOP_SECONDS, NVLINK_HOP_SECONDS, PROTOCOLS, SIMPLE, VERSIONS
from .result import Cost, check_bytes

NATIVE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")  # NCCL has algorithms for them
IN_PAIRS = (*(op for op, row in TABLE.items() if row.gives and op not in NATIVE), "send")  # made of sends and receives
COLLECTIVES = (*NATIVE, *IN_PAIRS)
ROOTED, SHARDED = ("broadcast", "reduce"), ("all_gather", "reduce_scatter")
OLD = VERSIONS[0]
SLICE_BYTES = 32 * 2**10  # larger chunks have two slices: stepSize x sliceSteps / 32, src/device/prims_simple.h


class Way(NamedTuple):
    """One algorithm by one protocol: NCCL's two figures for it, and what they are made of."""

    algorithm: str
    protocol: str
    start: float  # seconds before the first hop
    latency: float  # seconds of all its hops
    bandwidth: float  # S a second
    limit: str  # what that bandwidth is of
    steps: int
    chunks: tuning.Chunking | None = None


NO_WAY = Way("none", "none", 0.0, 0.0, inf, "nothing", 0)  # of one rank


class Nccl:
    """NCCL's choice for one collective among some ranks of a machine (by default all); called with bytes, the Cost.

    collective: one of COLLECTIVES; "send" is one message between two ranks.
    version: "2.30", or "2.26" for versions before 2.28 (it turns to NVLSTree for smaller buffers).
    Raises ValueError for another collective or version, a machine that is not of GPUs, or ranks that it does not have.
    """

    def __init__(
        self, collective: str, machine: Machine, ranks: Iterable[int] | None = None, *, version: str = VERSIONS[-1]
    ) -> None:
        if collective not in COLLECTIVES:
            raise ValueError(f"NCCL has no {collective!r}, only {', '.join(COLLECTIVES)}.")
        if version not in VERSIONS:
            raise ValueError(f"no figures for NCCL {version!r}, only for {', '.join(VERSIONS)}.")
        if machine.gpus is None:
            known = "Take nvlink_node(), nvl72(), rails(), fat_tree() or efa()."
            raise ValueError(f"{machine.name} does not say which GPUs it has, so NCCL's figures are unknown. {known}")
        self.collective, self.machine, self.version = collective, machine, version
        at = range(machine.gpus.count) if ranks is None else sorted({int(rank) for rank in ranks})
        if not at or at[0] < 0 or at[-1] >= machine.most_ranks:
            raise ValueError(f"{machine.name} has the ranks 0 to {machine.most_ranks - 1}; at least one takes part.")
        members = Counter(rank // machine.gpus.node for rank in at).values()
        self.world_size, self.nodes = len(at), len(members)
        self.node = min(members)  # GPUs of the node that has fewest: its cards are the bottleneck
        self.a_node = self.world_size / self.nodes
        self.network = machine.gpus.inside if self.nodes == 1 else machine.gpus.between
        self.ways = self._ways() if self.world_size > 1 else []

    def estimates(self, nbytes: float) -> dict[tuple[str, str], float]:
        """(algorithm, protocol) -> NCCL's own estimate in seconds, for S = nbytes."""
        check_bytes(nbytes)
        return {w[:2]: w.start + self._latency(w, nbytes) + nbytes / self._bandwidth(w, nbytes) for w in self.ways}

    def choice(self, nbytes: float) -> tuple[str, str]:
        """The algorithm and the protocol that NCCL takes for S = nbytes; ("none", "none") for one rank alone."""
        estimates = self.estimates(nbytes)
        return min(estimates, key=estimates.get, default=NO_WAY[:2])

    def __call__(self, nbytes: float, algorithm: str | None = None, protocol: str | None = None) -> Cost:
        """NCCL's Cost for a buffer of S = nbytes, the whole one (as in busbw), with the band around it.

        algorithm, protocol: as NCCL_ALGO and NCCL_PROTO force them; None leaves the choice to NCCL.
        Raises ValueError for a negative size, or one that cannot run here.
        """
        way = self._way(nbytes, algorithm, protocol)
        start, latency, transfer, steps = self._parts(way, nbytes)
        band, whose = None, ""
        if self.network and self.ways:
            hops, slower = self._software(way, transfer)
            latency, transfer = latency + hops, transfer + slower
            whose = self.network.whose
            band = tuple(share * (start + latency + transfer) for share in self.network.band(nbytes))
        what, seconds = f"{self.collective} by {way.algorithm}, {self.world_size} ranks", start + latency + transfer
        return Cost(what, self.machine.name, self.collective, self.world_size, nbytes, way.protocol, steps, seconds,
                    start, latency, transfer, 0.0, {way.limit: transfer}, way.algorithm, band, whose, self.beyond)  # fmt: skip

    def parts(self, nbytes: float) -> tuple[str, int, int, int, float, float]:
        """The inputs of a fit of Network.added: its first four arguments, NCCL's latency and transfer."""
        way = self._way(nbytes)
        start, latency, transfer, _ = self._parts(way, nbytes)
        return way.algorithm, PROTOCOLS.index(way.protocol), *self._crossings(way), start + latency, transfer

    @property
    def beyond(self) -> str:
        """The reason why the price is an extrapolation; "" where it isn't."""
        if self.network is None or self.world_size <= (most := self.network.value("gpus", PRICES)):
            return ""
        return f"no sweep of {self.network.name} has more than {most:,} GPUs"

    def _way(self, nbytes: float, algorithm: str | None = None, protocol: str | None = None) -> Way:
        estimates = self.estimates(nbytes)
        ways = [w for w in self.ways if algorithm in (None, w.algorithm) and protocol in (None, w.protocol)]
        if self.ways and not ways:
            asked = f"{algorithm or 'any algorithm'}/{protocol or 'any protocol'}"
            can = ", ".join(sorted({f"{w.algorithm}/{w.protocol}" for w in self.ways}))
            raise ValueError(f"{self.collective} on {self.machine.name} does not run by {asked}, only by {can}.")
        return min(ways, key=lambda way: estimates[way[:2]], default=NO_WAY)

    def _parts(self, way: Way, nbytes: float) -> tuple[float, float, float, int]:
        """Seconds of the start, of the hops and of the bytes by NCCL's figures, and the steps."""
        if way.chunks:  # NCCL counts NVLS's start among its hops
            latency, transfer = way.chunks.seconds(nbytes)
            steps = way.chunks.rounds(nbytes) + way.chunks.stages - 1
            return BASE_SECONDS["Ring"][SIMPLE], latency, transfer, steps
        return way.start, self._waits(way, nbytes), nbytes / self._bandwidth(way, nbytes), way.steps

    def _software(self, way: Way, transfer: float) -> tuple[float, float]:
        """Seconds that the network's software adds to the latency and to the bytes' time."""
        if self.nodes == 1:
            return self.network.value("start", PRICES), 0.0
        if self.collective == "send":  # NCCL's figures are enough for one message
            return 0.0, 0.0
        return self.network.added(way.algorithm, PROTOCOLS.index(way.protocol), *self._crossings(way), transfer)

    def _crossings(self, way: Way) -> tuple[int, int]:
        """The crossings between nodes on a chunk's longest way, and those at which the pipeline waits."""
        if way.algorithm == "Ring":
            hops = self.rounds * (self.nodes if self.a_node > 1 else self.nodes - 1)
            return hops, min(hops, 2 * self.rounds)
        levels = self.levels if way.algorithm == "PAT" else 2 * self.levels  # up and down
        return levels, levels

    def _waits(self, way: Way, nbytes: float) -> float:
        """Seconds of all hops of a ring or a tree as they pass, not as NCCL estimates them."""
        if way.algorithm != "Ring":
            return self._latency(way, nbytes)
        p = PROTOCOLS.index(way.protocol)
        if self.collective in ROOTED:  # NCCL's own estimate where its channels differ
            kind = "Tree" if p == SIMPLE else "Ring"
            inside, between = NVLINK_HOP_SECONDS[kind][p], NETWORK_HOP_SECONDS[kind][p]
            return (way.steps - self.nodes + 1) * inside + (self.nodes - 1) * between
        # A round skips one hop of the ring, and for most chunks it is one inside a node: they leave every node once a
        # round, where NCCL counts one crossing fewer and one hop inside more.
        inside, between = self._ring_hops(p)
        crossing = self.rounds * max(between - inside, 0.0) if self.nodes > 1 and self.a_node > 1 else 0.0
        if p == SIMPLE and (self.nodes == 1 or self.collective != "all_reduce"):
            slices = 2 if nbytes > self.world_size * 2 * self.ring.count * SLICE_BYTES else 1
            return way.latency * slices + crossing
        return self._latency(way, nbytes) + crossing

    def _ring_hops(self, p: int) -> tuple[float, float]:
        """Seconds of a ring's hop inside a node, and of one between nodes."""
        inside = NVLINK_HOP_SECONDS["Ring"][p]
        if self.nodes > 1:
            inside = max(inside, tuning.POST_SECONDS * (3 if p == SIMPLE else 1))
        return inside, NETWORK_HOP_SECONDS["Ring" if self.a_node > 1 else "Tree"][p]

    def _latency(self, way: Way, nbytes: float) -> float:
        slow = self.collective == "all_reduce" and self.nodes > 1 and way[:2] == ("Ring", "Simple")
        if slow and nbytes >= 64 * 2 * self.ring.count * self.world_size:
            return tuning.PLATEAU * (way.start + way.latency) - way.start
        return way.latency

    def _bandwidth(self, way: Way, nbytes: float) -> float:
        in_switch = way.algorithm == "NVLSTree" and self.gpu.blackwell and self.gpu.value("host", NCCL) == "x86"
        if (way.algorithm == "Tree" or in_switch) and 64 <= nbytes < 64 * 2**23:
            return way.bandwidth * tuning.TREE_CORRECTION[way.protocol][int(log2(nbytes / 64))]
        return way.bandwidth

    def _ways(self) -> list[Way]:
        gpus = self.machine.gpus
        self.gpu = gpu(gpus.name)
        self.column = min(self.nodes, 3) - 1  # of NCCL's tables: one node, two, more
        self.levels = int(log2(self.nodes))  # of a tree of nodes
        self.rounds = 2 if self.collective == "all_reduce" else 1  # of a ring
        self.wire = "NVLink" if self.nodes == 1 else "network card"
        nic = gpus.nic if self.nodes > 1 else inf
        self.ring = tuning.ring_channels(self.gpu, self.node, self.nodes, nic)
        self.caps = tuning.bus_caps(self.gpu, self.ring, self.nodes)
        self.tree = self.ring.count * tuning.tree_speed(self.ring, self.gpu, self.node, self.nodes)  # bytes/s
        self.heads = tuning.nvls_channels(self.gpu, self.node, self.nodes, nic)
        if not self.ring.count:
            raise ValueError(f"cards of {gpus.nic / 1e9:g} GB/s are too slow for any channel of NCCL.")
        if self.collective in IN_PAIRS:
            return [self._pairs()]
        ways = [self._ring(p) for p in range(len(PROTOCOLS))]
        if self.collective == "all_reduce":
            ways += [self._tree(p) for p in range(len(PROTOCOLS))]
        if self.collective in SHARDED and self.a_node == 1:
            ways.append(self._pat())
        inside = self.nodes == 1 and self.collective in SHARDED and self.node <= 32
        if self.heads.count and (self.collective == "all_reduce" or inside):
            ways.append(self._nvls())
        return [w for w in ways if w.bandwidth > 0 and (self.nodes == 1 or gpus.runs(w.algorithm, w.protocol))]

    def _ring(self, p: int) -> Way:
        bus = min(self.ring.count * self.ring.between * tuning.RATES[p], self.caps[p])
        limit = self.wire if bus < self.caps[p] else f"protocol {PROTOCOLS[p]}"
        if self.collective in ROOTED:
            latency = (NVLINK_HOP_SECONDS if self.nodes == 1 else NETWORK_HOP_SECONDS)["Ring"][p]
            return Way("Ring", PROTOCOLS[p], BASE_SECONDS["Ring"][p], latency, bus, limit, self.world_size)
        inside, between = self._ring_hops(p)
        steps, crossing = self.rounds * (self.world_size - 1), self.rounds * (self.nodes - 1)
        latency, bandwidth = (steps - crossing) * inside + crossing * between, bus * self.world_size / steps
        return Way("Ring", PROTOCOLS[p], BASE_SECONDS["Ring"][p], latency, bandwidth, limit, steps)

    def _tree(self, p: int) -> Way:
        kind, count = self.gpu.generation, self.ring.count
        bus = min(self.tree * tuning.TREE_RATE, count * kind.tree[self.column])
        if PROTOCOLS[p] == "LL":
            bus = min(bus * tuning.TREE_LL_RATE, self.caps[p])
        elif PROTOCOLS[p] == "LL128":
            bus = min(bus * tuning.TREE_LL128_RATE[self.nodes > 1], count * kind.tree_ll128[self.column])
        hops = (self.a_node - 1) * NVLINK_HOP_SECONDS["Tree"][p] + self.levels * NETWORK_HOP_SECONDS["Tree"][p]
        steps = 2 * (self.node - 1 + self.levels)
        return Way("Tree", PROTOCOLS[p], BASE_SECONDS["Tree"][p], 2 * hops, bus / 2, self.wire, steps)

    def _pat(self) -> Way:
        """Parallel trees, one GPU in each node."""
        latency = self.levels * NETWORK_HOP_SECONDS["Tree"][SIMPLE] / 3.5 + self.world_size * tuning.PAT_STEP_SECONDS
        start, bandwidth = BASE_SECONDS["PAT"][SIMPLE], self.tree * tuning.PAT_RATE
        return Way("PAT", "Simple", start, latency, bandwidth, "network card", self.levels)

    def _nvls(self) -> Way:
        """In the switch: NVLS in one node, which scatters, reduces and gathers; NVLSTree between nodes."""
        node, heads, every = self.node, self.heads, self.collective == "all_reduce"
        each = heads.inside * self.gpu.generation.nvls * (heads.count - 1) / heads.count
        each *= 2 if every else (node - 1) / node  # bytes/s of a head
        lanes = self.gpu.generation.nvls_channels[self.column] * heads.count
        if self.nodes > 1:
            return self._nvls_tree(each, lanes)
        bandwidth = heads.count * each * (node / (2 * (node - 1)) if every else 1.0)
        handshake = NVLINK_HOP_SECONDS["Tree"][SIMPLE]
        chunks = tuning.Chunking(lanes, tuning.LARGEST_CHUNK_BYTES, 3, handshake, tuning.IN_A_NODE, bandwidth)
        if self.version == OLD:
            bandwidth = heads.count * heads.inside * (tuning.OLD_NVLS_RATE if every else 1.0)
        latency = NVLINK_HOP_SECONDS["NVLS"][SIMPLE]
        return Way("NVLS", "Simple", 0.0, latency, bandwidth, "NVLink", 3, chunks if every else None)

    def _nvls_tree(self, each: float, lanes: int) -> Way:
        """Up and down each level of the tree, at the network's pace; scatter and gather, on NVLink, are one turn."""
        heads, n = self.heads, self.world_size
        crossing = heads.between * (2 if self.nodes == 2 else 1)
        limit = "network card" if crossing < each else "NVLink"
        bandwidth = heads.count * min(each, crossing, self.gpu.generation.nvls_tree[self.column]) * n / (2 * (n - 1))
        small, stages = self.nodes >= 4 or self.gpu.blackwell, 1 + 2 * self.levels
        largest = tuning.SMALLER_CHUNK_BYTES if small else tuning.LARGEST_CHUNK_BYTES
        handshake, hop = (NETWORK_HOP_SECONDS[algorithm][SIMPLE] for algorithm in ("NVLS", "NVLSTree"))
        cards = heads.count * heads.between  # of two nodes a head's card carries its part of S once each way
        at_cards = self.nodes == 2 and cards < bandwidth
        if at_cards:
            bandwidth, limit, handshake = cards, "network card", tuning.CARD_HANDSHAKE_SECONDS
        kind = tuning.AtCards if at_cards else tuning.Chunking
        chunks = kind(lanes, largest, stages, handshake, tuning.BETWEEN_NODES, bandwidth)
        if self.version == OLD:
            hop = tuning.OLD_NVLS_TREE_HOP_SECONDS
            bandwidth = heads.count * min(heads.inside, crossing / 2) * tuning.OLD_NVLS_RATE
        latency = NVLINK_HOP_SECONDS["NVLSTree"][SIMPLE] + 2 * self.levels * hop
        return Way("NVLSTree", "Simple", 0.0, latency, bandwidth, limit, stages, chunks)

    def _pairs(self) -> Way:
        """Sends and receives, all at once, by protocol Simple; each that leaves the node is posted on its own."""
        n, card = self.world_size, self.machine.gpus.nic * tuning.CARD_RATE
        away = n - self.a_node  # of a rank's messages
        each = 1.0 if self.collective == "send" else 1 / n  # of S
        near, far = (n - 1 - away) * each / self.gpu.nvlink, away * each / card if away else 0.0
        hop = (NETWORK_HOP_SECONDS if away else NVLINK_HOP_SECONDS)["Ring"][SIMPLE]
        limit, latency = "network card" if far > near else "NVLink", hop + away * tuning.POST_SECONDS
        return Way("pairs", "Simple", BASE_SECONDS["Ring"][SIMPLE], latency, 1 / max(near, far), limit, n - 1)


nccl = Nccl  # as one asks for it: nccl("all_reduce", rails(8))(2**30)
