"""Events that hosts and schedulers report: the kernel's log, Kubernetes' events and states, Slurm's messages.

Formats: NVIDIA's catalog of Xids and its driver's "NVRM: Xid (PCI:...): number, ..."; mm/oom_kill.c; mlx5_core's events.c
("Port module event"); kubectl get events, get pods and describe; slurmstepd's and srun's messages.
"""

import re
from dataclasses import dataclass, field
from typing import Callable, Iterable

from .host_map import HostMap
from .text import LogLine, clock

# Xids by NVIDIA's catalog. The program is the usual cause of PROGRAMS, the GPU or its links of the others.
XIDS = {
    13: "a kernel's exception", 31: "a kernel's access to memory that isn't there", 32: "a corrupt push buffer",
    43: "the GPU stopped a program's work", 45: "cleanup after another error", 48: "an uncorrectable memory error",
    62: "the GPU's power unit halted", 63: "a row of memory was remapped", 64: "a row of memory could not be remapped",
    69: "a kernel's exception", 74: "an NVLink error", 79: "the GPU has fallen off the bus", 92: "many corrected memory errors",
    94: "a contained memory error", 95: "an uncontained memory error", 109: "a context switch that took too long",
    119: "the GPU's system processor doesn't answer", 120: "an error of the GPU's system processor",
    121: "a link error between CPU and GPU", 140: "an unrecovered memory error", 143: "the GPU could not be initialized",
    154: "the driver asks for a recovery",
} | dict.fromkeys(range(144, 151), "an NVLink error")  # fmt: skip
PROGRAMS = (13, 31, 32, 43, 45, 68, 69, 109)
NOTES = (63, 92)


@dataclass
class HostEvent:
    """A host's event.  kind: "fault"; "kill", for lack of memory or by a scheduler; "program", of a program; "note"; "gone", of a host that can't be reached."""

    host: str
    at: float | None
    what: str
    kind: str = "fault"
    pid: int | None = None
    times: int = 1
    file: str = ""  # that reports it
    age: str = ""  # when it was listed, as Kubernetes prints it: 4h12m

    def words(self) -> str:
        where = self.host or "A host that the line does not name"
        times = f", {self.times:,} times" if self.times > 1 else ""
        ago = f", {self.age} before it was listed" if self.age else ""
        return (
            f"{where} {'' if self.kind == 'gone' else 'reported '}{self.what.rstrip('.')}{clock(self.at)}{ago}{times}"
        )

    @property
    def age_seconds(self) -> float:
        return sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+)([dhms])", self.age))


Make = Callable[[re.Match], tuple[str, str, str, int | None]]  # -> what, kind, host, process


def _xid(found: re.Match) -> tuple[str, str, str, int | None]:
    number, rest = int(found["number"]), found["rest"]
    kind = "program" if number in PROGRAMS else "note" if number in NOTES else "fault"
    action = re.search(r"\(((?:GPU Reset|Node Reboot|Drain[\w ]*|Reset)[\w ]*)\)\s*$", rest) if number == 154 else None
    meaning = XIDS.get(number, "see NVIDIA's catalog of Xids")
    pid = re.search(r"pid='?(\d+)", rest)
    return f"Xid {number} ({f'{meaning}: {action[1]}' if action else meaning})", kind, "", int(pid[1]) if pid else None


def _as(what: str, kind: str = "fault") -> Make:
    def make(found: re.Match) -> tuple[str, str, str, int | None]:
        about = found.groupdict()
        pid = about.get("pid")
        return what.format(**about), kind, about.get("host") or "", int(pid) if pid else None

    return make


_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_LISTED = re.compile(
    r"(?P<age>(?:\d+[dhms])+)\s+(?:\(x\d+ over \S+\)\s+)?(?:Warning|Normal)\s.*?\b(?:node|pod)/(?P<host>[\w.\-]+)"
)
_NODE = r"(?P<host>[\w.\-]+)"
_KINDS: tuple[tuple[re.Pattern, Make], ...] = tuple(
    (re.compile(pattern), make)
    for pattern, make in (
        (r"NVRM: Xid \((?P<bus>[^)]*)\): (?P<number>\d+)(?P<rest>.*)", _xid),
        (r"SXid \([^)]*\): (?P<number>\d+), (?P<severity>Fatal)", _as("SXid {number} of an NVSwitch, fatal")),
        (r"Memory cgroup out of memory: Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)", _as("that the kernel killed process {pid} ({name}) for the container's memory limit", "kill")),
        (r"Out of memory: Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)", _as("that the kernel killed process {pid} ({name}) for lack of memory", "kill")),
        (r"Port module event(?:\[error\])?: module (?P<port>\d+), (?P<how>Cable (?:unplugged|error)[^,]*)", _as("{how} at port {port} of a NIC")),
        (r"(?P<link>[\w.:/\-]+?):? (?:Port: \d+ )?(?:NIC )?Link (?:is )?(?:down|Down|DOWN)\b", _as("that the link of {link} went down")),
        (r"link status definitely down for interface (?P<link>\S+)", _as("that the link of {link} went down")),
        (r"(?P<link>\S+): (?:lost carrier|carrier lost)", _as("that the link of {link} lost its carrier")),
        (r"(?:EDAC \S+: \d+ UE|Machine check events logged|\[Hardware Error\]: .*Uncorrected)", _as("a hardware error of memory or CPU")),
        (r"(?P<name>[\w.\-]+)\[(?P<pid>\d+)\]: segfault at", _as("a segmentation fault of {name}, process {pid}", "program")),
        (r"INFO: task (?P<name>\S+):(?P<pid>\d+) blocked for more than (?P<n>\d+) seconds", _as("that process {pid} ({name}) was blocked for more than {n} s, in a file system or driver")),
        (r"nfs: server (?P<server>\S+) not responding", _as("that the file server {server} doesn't answer")),
        (r"(?:BUG: soft lockup|rcu_sched self-detected stall)", _as("that a CPU was stuck in the kernel")),
        (rf"ssh: connect to host {_NODE} port \d+: (?P<why>No route to host|Connection timed out|Connection refused)", _as("can't be reached by ssh ({why})", "gone")),
        (rf"Node {_NODE} status is now: NodeNotReady", _as("(Kubernetes) that the node isn't ready")),
        (rf"\bNodeNotReady\b.*?node/{_NODE}", _as("(Kubernetes) that the node isn't ready")),
        (rf"\b(?:OOMKilling|SystemOOM)\b.*?node/{_NODE}", _as("(Kubernetes) that a process was killed for lack of memory", "kill")),
        (rf"\bEvicted\b.*?pod/{_NODE}\s+(?P<why>.*)", _as("(Kubernetes) that the pod was evicted: {why}", "kill")),
        (rf"\b(?:Preempted|Preempting|TaintManagerEviction)\b.*?pod/{_NODE}", _as("(Kubernetes) that the pod was preempted", "kill")),
        (rf"^{_NODE}\s+\d+/\d+\s+(?P<why>OOMKilled|Evicted|Error|NodeLost|ContainerStatusUnknown)\s", _as("(Kubernetes) the state {why} of the pod", "kill")),
        (r"Reason:\s+(?P<why>OOMKilled|Evicted|NodeLost)", _as("(Kubernetes) the state {why} of a container", "kill")),
        (rf"\*\*\* (?:STEP|JOB) \S+ ON {_NODE} CANCELLED AT \S+ DUE TO (?P<why>TIME LIMIT|PREEMPTION|NODE FAILURE[^*]*?)\s*\*", _as("(Slurm) that the job was canceled: {why}", "kill")),
        (rf"\*\*\* (?:STEP|JOB) \S+ ON {_NODE} CANCELLED AT", _as("(Slurm) that the job was canceled", "note")),
        (rf"Node failure on {_NODE}", _as("(Slurm) that the node failed")),
        (rf"srun: error: {_NODE}: tasks? (?P<tasks>[\d,\-]+): (?P<how>Out Of Memory|Killed|Segmentation fault|Bus error)", _as("(Slurm) the end of task {tasks}: {how}", "kill")),
        (r"[Dd]etected (?P<n>\d+) oom[-_]kill events? in (?P<step>\S+?)[.,]?(?:\s|$)", _as("(Slurm) {n} kill for lack of memory in {step}", "kill")),
    )
)  # fmt: skip


@dataclass
class HostEvents:
    """Events of hosts and schedulers, from any number of files."""

    marks = (
        b"Xid", b"out of memory", b"Out of memory", b"Port module", b"ink is", b"Link ", b"link status", b"arrier", b"EDAC", b"ardware Error", b"achine check",
        b"segfault", b"blocked for more", b"not responding", b"soft lockup", b"rcu_sched", b"NotReady", b"OOM", b"Evict", b"reempt",
        b"CANCELLED", b"Node failure", b"srun: error", b"oom", b"NodeLost", b"ContainerStatusUnknown", b"connect to host",
    )  # fmt: skip
    inner = ()
    events: list[HostEvent] = field(default_factory=list)
    _known: dict[tuple, HostEvent] = field(default_factory=dict)
    _file: str = ""

    def begin(self, path: str, rank: int | None) -> None:
        """A file follows."""
        self._file = path

    def read(self, line: LogLine) -> bool:
        for pattern, make in _KINDS:
            if found := pattern.search(line.text):
                what, kind, host, pid = make(found)
                listed = _LISTED.match(line.text)
                host = host or line.host or (listed["host"] if listed else _prefix(line.text, found.start()))
                if known := self._known.get((host or self._file, what)):
                    known.times += 1
                else:
                    event = HostEvent(
                        host, line.at, what, kind, pid, file=self._file, age=listed["age"] if listed else ""
                    )
                    self._known[host or self._file, what] = event
                    self.events.append(event)
                return True
        return False

    def settle(self, host_map: HostMap) -> None:
        """Give the events without a host the one that their file is of."""
        for event in self.events:
            event.host = event.host or host_map.of_file(event.file)

    def ordered(self, kinds: Iterable[str]) -> list[HostEvent]:
        """The events of these kinds, in order of time."""
        events = [event for event in self.events if event.kind in kinds]
        return sorted(events, key=lambda event: (event.at is None, event.at or 0.0, -event.age_seconds))


def _prefix(text: str, end: int) -> str:
    """The host that pdsh or clush puts before a line: node37 for "node37: NVRM: ..."."""
    found = re.match(r"([a-zA-Z][\w.\-]*\d[\w.\-]*): ", text[:end])
    return found[1] if found else ""
