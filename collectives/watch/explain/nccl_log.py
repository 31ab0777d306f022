"""NCCL's own log (NCCL_DEBUG=INFO): the route the data takes, and the faults along it.

The patterns match NCCL's source (src/init.cc, src/transport, src/misc/socket.cc), 2.18 to 2.30.
"""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Iterator

from ...format import align
from ...judge.wording.phrases import alike
from .text import LogLine, clock, listed

_HEAD = re.compile(
    r"(?:^|\s|\])(?P<host>[\w.\-]+):(?P<pid>\d+):(?P<thread>\d+) (?:\[(?P<gpu>\d+)\] )?(?:\S+:\d+ )?NCCL (?P<level>INFO|WARN) (?P<said>.*)"
)
_VERSION = re.compile(r"NCCL version ([\w.+\-]+)")
_COMM = re.compile(r"\brank (\d+) nranks (\d+) .*Init COMPLETE")
_CHANNELS = re.compile(r"(\d+) coll channels")
_WAY = re.compile(r"Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\].* via (\S+)")
_USING = re.compile(r"(NET/\w+) ?: Using (.*)")
_HCA = re.compile(r"GPU ?Direct RDMA (Enabled|Disabled) for (.*)")
# Meanings of InfiniBand's warnings: IBV_WC_ codes of <infiniband/verbs.h>.
_STATUS = {
    12: "no answer after all retries: a link, a card or the peer's process",
    5: "a consequence of an earlier error: look further up",
    4: "access control (ACS) on the PCIe switches against GPUDirect RDMA, usually",
    13: "the peer was not ready to receive, after all retries",
}
# "NET/IB : Got completion from peer 10.3.0.48<4791> with status=12", "NET/IB: Got async event", "from peer" of sockets
_PEER = re.compile(
    r"(?:[Cc]ompletion from peer|remote peer|from peer|to peer|connection closed by remote peer|[Cc]onnect to) ([\w.\-:]+(?:<\d+>)?)"
)
_PORT = re.compile(r"(?i)port (?:error|down|inactive)|async (?:fatal )?event|device (?:fatal|removed)|IBV_EVENT")
_PORT_OK = re.compile(r"(?i)port active")
_DEVICE = re.compile(r"([\w.]+:\d+) Got ")
_BOOTSTRAP = re.compile(r"Bootstrap ?: Using (?P<interface>[\w.\-@]+):(?P<address>[\w.\-:%]+?)<\d+>")
_IFNAME = re.compile(r"NCCL_SOCKET_IFNAME set (?:by environment )?to (\S+)")
_OOB = re.compile(r"OOB \S+?:([\w.:\-]+)<\d+>")
_NIC = re.compile(r" hca (\S+)")
FEW_CHANNELS = 2


@dataclass
class Accused:
    """A peer that others have lost.  by: the hosts that report it.  statuses: their warnings without its name."""

    by: set[str] = field(default_factory=set)
    times: int = 0
    first: float | None = None
    statuses: Counter[str] = field(default_factory=Counter)
    nics: set[str] = field(default_factory=set)  # of those that report it


@dataclass
class PortError:
    """An error that a host reports of a port of its own.  over: when that port was active again."""

    host: str
    said: str
    at: float | None
    device: str = ""
    over: float | None = None
    is_over: bool = False

    def words(self) -> str:
        over = f", and its port was active again{clock(self.over)}" if self.is_over else ""
        return f"{self.host} itself reports{clock(self.at)}: {self.said}{over}"


@dataclass
class NcclLog:
    """NCCL's log lines from one or more files."""

    marks = (b"NCCL",)
    inner = ()

    processes: set[tuple[str, int]] = field(default_factory=set)  # (host, process)
    versions: Counter[str] = field(default_factory=Counter)
    networks: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # by host, that it uses
    devices: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # by host, its cards
    ways: Counter[str] = field(default_factory=Counter)  # P2P/CUMEM, NET/IB/0/GDRDMA: connections
    plain_hosts: set[str] = field(default_factory=set)  # that have connections over InfiniBand without GPUDirect
    channels: Counter[int] = field(default_factory=Counter)
    ranks: int = 0  # of the largest communicator
    ready: dict[int, set[tuple[str, int, int]]] = field(default_factory=lambda: defaultdict(set))  # by nranks
    refused: Counter[str] = field(default_factory=Counter)  # why GPUDirect is off
    warnings: Counter[str] = field(default_factory=Counter)
    warned: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # the hosts of each warning
    no_device: set[str] = field(default_factory=set)  # hosts on which NET/IB found nothing
    host_of: dict[int, str] = field(default_factory=dict)  # by rank
    numbers: set[tuple[int, int]] = field(default_factory=set)  # (process, rank)
    address_of: dict[str, str] = field(default_factory=dict)  # by address, the host whose interface has it
    accused: dict[str, Accused] = field(default_factory=dict)  # by a peer's address
    ports: list[PortError] = field(default_factory=list)
    bootstraps: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))  # by host, (interface, address)
    interfaces: set[str] = field(default_factory=set)  # values of NCCL_SOCKET_IFNAME

    unrelated: list[PortError] = field(default_factory=list)  # of ports, that are hardly the cause

    def begin(self, path: str, rank: int | None) -> None:
        """A file follows."""

    def read(self, line: LogLine) -> bool:
        """Add a line. Returns whether it is NCCL's."""
        if "NCCL " not in line.text:
            return False
        if head := _HEAD.search(line.text):
            self.processes.add((head["host"], int(head["pid"])))
            self._take(head["host"], int(head["pid"]), head["level"], head["said"].strip(), line.at)
            if line.rank is not None:
                self.host_of[line.rank] = head["host"]
                self.numbers.add((int(head["pid"]), line.rank))
        version = _VERSION.search(line.text)
        if version and (head or "compiled with" not in line.text):  # RAS begins its answer with the latter
            self.versions[version[1]] += 1
        return bool(head or version and "compiled with" not in line.text)

    def _take(self, host: str, pid: int, level: str, said: str, at: float | None) -> None:
        device = next(iter(_DEVICE.findall(said)), "")
        if _PORT_OK.search(said):
            for error in self.ports:
                if (error.host, error.device) == (host, device):
                    error.over, error.is_over = at, True
            return
        if level == "WARN":
            plain = re.sub(r"0x[0-9a-f]+|<\d+>", "...", said)
            if peer := _PEER.search(said):
                plain = plain.replace(peer[1], "...")
                accused = self.accused.setdefault(peer[1].split("<")[0], Accused())
                accused.by.add(host)
                accused.times += 1
                if nic := _NIC.search(plain):
                    accused.nics.add(nic[1])
                    plain = plain.replace(nic[0], "")
                accused.first = min(filter(None, (accused.first, at)), default=None)
                accused.statuses[plain] += 1
                return
            if _PORT.search(said):
                self.ports.append(PortError(host, said, at, device))
                return
            self.warnings[plain] += 1
            self.warned[plain].add(host)
        elif bootstrap := _BOOTSTRAP.search(said):
            self.bootstraps[host].add((bootstrap["interface"], bootstrap["address"]))
        elif setting := _IFNAME.search(said):
            self.interfaces.add(setting[1].rstrip("."))
        elif way := _WAY.search(said):
            name = re.sub(r"(NET/\w+)/\d+", r"\1", way[1])
            name = re.sub(r"(P2P|SHM)/.*", lambda m: m[0].split("/read")[0], name)
            self.ways[name] += 1
            if name.startswith("NET/") and "GDRDMA" not in name and not name.startswith("NET/Socket"):
                self.plain_hosts.add(host)
        elif said.startswith("Using network "):
            self.networks[host].add(said.removeprefix("Using network ").strip())
        elif using := _USING.search(said):
            if own := _OOB.search(said):
                self.address_of[own[1]] = host if self.address_of.get(own[1], host) == host else ""  # several have it
            self.devices[host] |= {
                f"{using[1]} {name}" for name in re.findall(r"\[\d+\]([\w.]+(?::\d+/\w+)?)", using[2])
            }
        elif "NET/IB : No device found" in said:
            self.no_device.add(host)
        elif hca := _HCA.search(said):
            if hca[1] == "Disabled":
                self.refused[re.sub(r"\d+\[\w+\]", "...", hca[2])] += 1
        elif comm := _COMM.search(said):
            self.ready[int(comm[2])].add((host, pid, int(comm[1])))
            self.ranks = max(self.ranks, int(comm[2]))
        if channels := _CHANNELS.search(said):
            self.channels[int(channels[1])] += 1

    # --- in words -------------------------------------------------------------------------

    @property
    def hosts(self) -> list[str]:
        return sorted({host for host, _ in self.processes})

    @property
    def known_versions(self) -> list[str]:
        """The versions, without those that are the first part of a fuller one: 2.27.5 beside 2.27.5+cuda12.9."""
        return sorted(v for v in self.versions if not any(full.startswith(f"{v}+") for full in self.versions))

    def words(self) -> list[str]:
        """A summary of the log, and then its faults, a sentence each."""
        hosts, processes = len(self.hosts), len(self.processes)
        head = f"NCCL {' and '.join(self.known_versions) or 'of a version that is not in the log'}: {processes} process{'es' * (processes != 1)} on {hosts} host{'s' * (hosts != 1)}"
        if self.ranks:
            head += f", the largest communicator of {self.ranks:,} ranks"
        lines = [f"{head}."]
        rows = [("network", _union(self.networks)), ("cards", _union(self.devices))]
        rows += [("connections", ", ".join(f"{n:,} by {way}" for way, n in self.ways.most_common(6)))]
        rows += [("channels", ", ".join(str(n) for n, _ in self.channels.most_common(4)))]
        lines.append(align([row for row in rows if row[1]], indent="  "))
        return [line for line in lines if line] + [*self.faults()]

    def faults(self) -> Iterator[str]:
        """The faults it shows, or may show."""
        yield from self._lost_peers()
        if len(self.known_versions) > 1:
            yield f"The versions differ: {', '.join(self.known_versions)}. They must be the same on all nodes."
        if len({tuple(sorted(names)) for names in self.networks.values()}) > 1:
            yield f"Hosts use different networks: {_by_value(self.networks)}."
        if len({len(names) for names in self.devices.values()}) > 1:
            yield f"Hosts have different numbers of cards: {_by_value({h: {str(len(n))} for h, n in self.devices.items()})}."
        socket = sorted(host for host, names in self.networks.items() if "Socket" in names)
        if socket and len(self.hosts) > 1:
            why = "" if not self.no_device else ", since NET/IB found no device there"
            yield f"{listed(socket)} use{'s' * (len(socket) == 1)} TCP (NET/Socket){why}: slow, and nothing else will say so. Does the container see /dev/infiniband? Is NCCL_IB_DISABLE set?"
        net = {way: n for way, n in self.ways.items() if way.startswith("NET/") and not way.startswith("NET/Socket")}
        plain = sum(n for way, n in net.items() if "GDRDMA" not in way)
        if plain:
            share = "none" if plain == sum(net.values()) else f"{sum(net.values()) - plain:,} of {sum(net.values()):,}"
            yield f"Of the connections between nodes, {share} use{'s' * (share == 'none')} GPUDirect RDMA (/GDRDMA): the others go through the CPU's memory, on {listed(sorted(self.plain_hosts))}."
        for why, n in self.refused.most_common(3):
            yield f"GPUDirect RDMA is off for {why} ({n} time{'s' * (n != 1)})."
        if shm := sum(n for way, n in self.ways.items() if way.startswith("SHM")):
            yield f"{shm:,} connections inside a node go through the CPU's memory (SHM), not from GPU to GPU (P2P)."
        if self.channels and min(self.channels) <= FEW_CHANNELS and self.ranks > 2:
            yield f"A communicator has {min(self.channels)} channel{'s' * (min(self.channels) != 1)} only: a slow link between some of its GPUs, or NCCL_MAX_NCHANNELS."
        for ranks, ready in sorted(self.ready.items(), reverse=True)[:1]:
            said = {rank for _, _, rank in ready}
            if len(said) < ranks:
                missing = sorted(set(range(ranks)) - said)
                yield f"Of the communicator of {ranks:,} ranks, {len(missing):,} never said Init COMPLETE: {listed(missing, 8)}."
        for warning, n in self.warnings.most_common(6):
            times = "Once" if n == 1 else f"{n:,} times"
            yield f"{times}, from {listed(sorted(self.warned[warning]), 3)}: NCCL WARN {warning}{_meaning(warning)}"

    def _lost_peers(self) -> list[str]:
        """A sentence for each peer that others have lost, the one with most accusers first, joined with its own errors."""
        lines = []
        ordered = sorted(self.accused.items(), key=lambda item: (-len(item[1].by), item[1].first or 0.0))
        for address, accused in ordered[:4]:
            host = self.address_of.get(address) or next((h for h in self.hosts if h == address), "")
            name = f"{host} ({address})" if host and host != address else address
            by = sorted(accused.by)
            firsts = {words: k for words, k in accused.statuses.items() if not re.search(r"status=\D*5\b", words)} or accused.statuses
            what = max(firsts, key=lambda words: firsts[words])
            flushed = sum(k for words, k in accused.statuses.items() if re.search(r"status=\D*5\b", words))
            fold = (
                f"; {flushed:,} of the lines are flush errors (status 5), its consequences"
                if 0 < flushed < accused.times
                else ""
            )
            cards = sorted(accused.nics)
            cards_too = f" They lost it on {len(cards)} NICs ({listed(cards)}), so it isn't one cable: look for the peer's process first." * (len(cards) > 1)
            who = f"{len(by):,} host{'s' * (len(by) != 1)} ({listed(by, 3)})"
            lines.append(
                f"{who} lost contact with {name}{clock(accused.first)}, in {accused.times:,} line{'s' * (accused.times != 1)}: {what}{_meaning(what)}{fold}.{cards_too}"
            )
        firsts = {error.host: error for error in reversed(self.ports) if error not in self.unrelated}
        return [*(f"{error.words()}.{' Take that host out first.' * (not error.is_over)}" for error in firsts.values()), *lines]

    def bootstrap(self) -> list[str]:
        """Sentences on hosts whose interface for the bootstrap has an address that others can't reach."""
        if len(self.bootstraps) < 2:
            return []
        hosts_at = alike((host, pair) for host, pairs in sorted(self.bootstraps.items()) for pair in pairs)
        lines = []
        for (interface, address), hosts in hosts_at.items():
            interfaces = Counter(pair[0] for host, pairs in self.bootstraps.items() if host not in hosts for pair in pairs)
            if address not in self.accused:
                continue
            victims = [host for host in self.accused[address].by if any(pair[0] == interface for pair in self.bootstraps.get(host, ()))]
            if len(hosts) < 2 and (victims or not interfaces):  # it isn't the interface, then
                continue
            (usual, n), *_ = [item for item in interfaces.most_common() if item[0] != interface] or [("", 0)]
            note = ", the same address on each" * (len(hosts) > 1)
            contrast = f"; {'the other host uses' if n == 1 else f'the other {n:,} hosts use'} {usual}" if usual else ""
            now = f" (now {listed(sorted(self.interfaces))})" * bool(self.interfaces)
            set_to = f"NCCL_SOCKET_IFNAME={usual}{now}" if usual else f"NCCL_SOCKET_IFNAME{now} to the interface between the hosts"
            by = sorted(self.accused[address].by)
            lines += [
                f"{' and '.join([', '.join(hosts[:-1]), hosts[-1]] if len(hosts) > 1 else hosts)} announce{'s' * (len(hosts) == 1)} "
                f"{'themselves' if len(hosts) > 1 else 'itself'} as {address} ({interface}{note}){contrast}. So others can't reach "
                f"{'them' if len(hosts) > 1 else 'it'}: set {set_to}, or remove {interface} there.",
                f"{listed(by)} report{'s' * (len(by) == 1)} the failure, and {'are its victims' if len(by) > 1 else 'is its victim'}.",
            ]
        return lines


def _union(by_host: dict[str, set[str]]) -> str:
    return ", ".join(sorted(set().union(*by_host.values()))) if by_host else ""


def _by_value(by_host: dict[str, set[str]]) -> str:
    groups = alike((host, " and ".join(sorted(names))) for host, names in sorted(by_host.items()))
    return "; ".join(f"{names} on {listed(hosts, 3)}" for names, hosts in groups.items())


def _meaning(warning: str) -> str:
    """The meaning of a code in a warning, in brackets."""
    codes = map(int, re.findall(r"(?:status=\D*|error )(\d+)", warning))
    return next((f" ({_STATUS[code]})" for code in codes if code in _STATUS), "")
