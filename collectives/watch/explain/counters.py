"""Error and congestion counters of ports: of InfiniBand, RoCE, EFA and Ethernet. Only one that grows is about tonight.

Formats: infiniband-diags' perfquery ("# Port counters: Lid 2 port 1", "SymbolErrorCounter:....12") and ibqueryerrors
('Errors for "node1 mlx5_0"', "[SymbolErrorCounter == 12]"); iproute2's `rdma statistic show`; ethtool -S; the files under
/sys/class, by `grep -H`.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Iterator

from ...judge.wording.phrases import few
from .host_map import HostMap
from .text import LogLine, listed

_SECTION = re.compile(r"# Port (?:extended )?counters: Lid (\d+) port (\d+)")
_HEADING = re.compile(
    r"(?:#|\$|=+)?\s*(?:ssh (?:-\S+ )*)?(?P<host>[a-zA-Z][\w.\-]*)\b.*\b(?:perfquery|ethtool|rdma stat)"
)
_ERRORS_FOR = re.compile(r'Errors for (?:0x[0-9a-f]+ )?"(?P<host>[\w.\-]+)(?: (?P<nic>[\w.\-]+))?')
_PORT = re.compile(r"\bport (\d+):")
_ASSIGNED = re.compile(r"\[(\w+) == (\d+)")
_DOTTED = re.compile(r"(\w+):\.+(\d+)$")
_LINK = re.compile(r"link (\S+) (?=\w+ \d)")
_PAIR = re.compile(r"(\w+) (\d+)(?: |$)")
_FILE = re.compile(
    r"/sys/class/(?:net/(?P<net>[^/]+)/statistics|infiniband/(?P<nic>[^/]+)/ports/\d+/(?:hw_)?counters)/(?P<name>\w+):(?P<n>\d+)$"
)
_STATISTIC = re.compile(r"\s+(\w+): (\d+)$")
_PDSH = re.compile(r"([a-zA-Z][\w.\-]*): (?=\s+\w+: \d|NIC statistics|# Port |\w+:\.\.|link \S+ \w+ \d)")
# Counters by their names in lower case without underscores, and what it means that they grow.
LINK = "a bad cable, port or NIC"
PEER = "the other end, or the path to it, doesn't answer"
FULL = "congestion, or lost packets: the path is full or misconfigured, rather than a host at fault"
MEANINGS = {
    **dict.fromkeys(
        "symbolerrorcounter symbolerror linkerrorrecoverycounter linkerrorrecovery linkdownedcounter linkdowned portrcverrors "
        "locallinkintegrityerrors excessivebufferoverrunerrors portrcvremotephysicalerrors rxerrors txerrors rxcrcerrors "
        "rxcrcerrorsphy rxsymbolerrphy linkdowneventsphy portrcvconstrainterrors".split(), LINK,
    ),
    **dict.fromkeys(
        "localacktimeouterr retranstimeoutevents unresponsiveremoteevents impairedremoteconnevents rnrnakretryerr "
        "reqtransportretriesexceeded".split(), PEER,
    ),
    **dict.fromkeys(
        "portxmitwait portxmitdiscards packetseqerr outofsequence npecnmarkedrocepackets npcnpsent rpcnphandled rxdrops retranspkts "
        "rxdropped txdropped rxdiscardsphy txdiscardsphy rxoutofbuffer outofbuffer".split(), FULL,
    ),
}  # fmt: skip
ORDER = (LINK, PEER, FULL)
LARGEST = {  # at which the counters of perfquery without -x stop
    "SymbolErrorCounter": 65535, "LinkErrorRecoveryCounter": 255, "LinkDownedCounter": 255, "PortRcvErrors": 65535,
    "PortXmitDiscards": 65535, "LocalLinkIntegrityErrors": 15, "ExcessiveBufferOverrunErrors": 15, "PortXmitWait": 4294967295,
}  # fmt: skip
MOST_PORTS = 3  # that are written out


@dataclass
class PortCounters:
    """Counters by port, in the order in which they were read."""

    marks = (
        b"# Port counters", b"# Port extended", b"Errors for ", b"/sys/class/net/", b"/sys/class/infiniband/", b"NIC statistics",
        b" out_of_sequence ", b" np_cnp_sent ", b" rx_drops ", b" retrans_pkts ",
    )  # fmt: skip
    inner = (b":..", b" == ", b"perfquery", b"ethtool", b"rdma stat", b"     ")
    ports: dict[tuple[str, str], list[dict[str, int]]] = field(default_factory=lambda: defaultdict(list))
    _path: str = ""
    _host: str = ""
    _port: str = ""
    _in_statistics: bool = False
    _now: dict[str, int] | None = None

    def begin(self, path: str, rank: int | None) -> None:
        """A file follows."""
        self._path, self._host, self._port, self._now, self._in_statistics = path, "", "", None, False

    def read(self, line: LogLine) -> bool:
        text = line.text
        if prefix := _PDSH.match(text):
            line, text = line._replace(host=prefix[1]), text[prefix.end() :]
        if section := _SECTION.search(text):
            self._new(line.host or self._host, self._port or f"Lid {section[1]} port {section[2]}")
            return True
        if errors := _ERRORS_FOR.search(text):
            self._host, self._port, self._now = errors["host"], errors["nic"] or "", None
            return True
        if assigned := _ASSIGNED.findall(text):
            port = _PORT.search(text)
            self._new(self._host, " ".join(filter(None, (self._port, port and f"port {port[1]}"))))
            return self._add(assigned)
        if link := _LINK.search(text):
            self._new(line.host or self._host, link[1])
            return self._add(_PAIR.findall(text[link.end() :]))
        if file := _FILE.search(text):
            port = file["net"] or file["nic"]
            if self._now is None or self._port != port or file["name"] in self._now:
                self._new(line.host or self._host, port)
                self._port = port
            self._now[file["name"]] = int(file["n"])  # type: ignore[index]
            return True
        if text.startswith("NIC statistics"):
            self._new(line.host or self._host, self._port)
            self._in_statistics = True
            return True
        if self._now is not None and (counter := _DOTTED.search(text)):
            return self._add([counter.groups()])
        if self._in_statistics and (counter := _STATISTIC.match(text)):
            return self._add([counter.groups()])
        if heading := _HEADING.match(text):
            if heading["host"] not in ("perfquery", "ethtool", "rdma", "sudo"):
                self._host = heading["host"]
            nic = re.search(r"\b(mlx\d+_\d+|ethtool -S (\S+))", text)
            self._port, self._now = (nic[2] or nic[1]) if nic else "", None
            return True
        return False

    def _new(self, host: str, port: str) -> None:
        self._now = {}
        self.ports[host or self._path, port].append(self._now)

    def _add(self, pairs: list) -> bool:
        for name, n in pairs:
            self._now[name] = int(n)  # type: ignore[index]
        return True

    def settle(self, host_map: HostMap) -> None:
        """Give the ports of a file the host that it is of."""
        ports: dict[tuple[str, str], list[dict[str, int]]] = defaultdict(list)
        for (host, port), readings in self.ports.items():
            ports[(host_map.of_file(host) or "") if "/" in host else host, port] += readings
        self.ports = ports

    # --- conclusions ----------------------------------------------------------------------

    def sentences(self, host_map: HostMap) -> Iterator[str]:
        """A sentence for each of the ports whose counters grow most; without a second reading, for the largest counters."""
        rows = list(self._rows())
        grown = [row for row in rows if row[1]]
        is_one = len({host for *_, (host, _) in grown}) == 1 < len({host for host, _ in self.ports})
        shown = sorted(grown or rows, key=lambda row: (ORDER.index(row[0]), -max(row[1].values(), default=0), -max(row[2].values())))
        for meaning, growth, values, (host, port) in shown[:MOST_PORTS]:
            ranks = host_map.ranks_on(host)
            where = f"{host or 'A host that the file does not name'}{f' ({few(ranks)})' if ranks else ''}{f', {port}' if port else ''}"
            largest = sorted(growth or values, key=lambda name: -(growth or values)[name])[:4]
            if growth:
                parts = (f"{name} by {growth[name]:,} to {values[name]:,}" for name in largest)
                means = "congestion, or lost packets, on the path of this host alone" if is_one and meaning == FULL else meaning
                yield f"Counters of {where} grew between two readings: {', '.join(parts)}: {means}."
            else:
                yield f"Counters of {where}: {', '.join(f'{name} {values[name]:,}' for name in largest)}."
        if len(shown) > MOST_PORTS:
            yield f"({len(shown) - MOST_PORTS:,} more ports have such counters.)"
        old = sorted({host for _, growth, values, (host, _) in rows if not growth and max(values.values()) > 10 and host})
        if grown and old:
            yield f"The counters of {listed(old)} did not grow: they are from an earlier time."
        if rows and not grown:
            again = all(len(readings) == 1 for readings in self.ports.values())
            yield (
                "They count since they were last cleared: read them again ten minutes later, because only a counter that grows is about tonight."
                if again
                else "None of them grew between two readings, so they are from an earlier time."
            )
        if stuck := sorted({name for row in rows for name, n in row[2].items() if n == LARGEST.get(name) and name not in row[1]}):
            yield f"A counter at its largest value can't grow ({', '.join(stuck[:3])}): clear it, and read it again."

    def _rows(self) -> Iterator[tuple[str, dict[str, int], dict[str, int], tuple[str, str]]]:
        """By port and meaning: the counters that have grown, by how much; all that aren't 0; the port."""
        for at, readings in self.ports.items():
            first, last = readings[0], readings[-1]
            by_meaning: dict[str, dict[str, int]] = defaultdict(dict)
            for name, n in last.items():
                meaning = _meaning(name)
                if n and meaning:
                    by_meaning[meaning][name] = n
            for meaning, values in by_meaning.items():
                growth = {name: n - first.get(name, n) for name, n in values.items() if n > first.get(name, n)}
                yield meaning, growth, values, at


def _meaning(name: str) -> str:
    """The meaning of a counter's growth; "" for one that always grows."""
    plain = name.lower().replace("_", "")
    if re.fullmatch(r"[rt]xprio\dpause", plain):
        return FULL
    return MEANINGS.get(plain, "")
