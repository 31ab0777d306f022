"""Events that hosts and schedulers report: the kernel's log, Kubernetes' events and states, Slurm's messages.

Formats: NVIDIA's catalog of Xids and its driver's "NVRM: Xid (PCI:...): number, ..."; mm/oom_kill.c; mlx5_core's events.c
("Port module event"); kubectl get events, get pods and describe; slurmstepd's and srun's messages.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Callable, Iterable

from ...format import size
from . import kubernetes
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
    """A host's event.

    kind: "fault"; "kill", for lack of memory or by a scheduler; "program", of a program; "note"; "gone", of a host that can't be
    reached; "storage", of a file server; "blocked", of processes that wait for a file system or a driver;
    "service", of a daemon that failed.
    """

    host: str
    at: float | None
    what: str
    kind: str = "fault"
    pid: int | None = None
    times: int = 1
    file: str = ""  # that reports it
    age: str = ""  # when it was listed, as Kubernetes prints it: 4h12m; without a time of the listing, `at` is unknown
    about: str = ""  # the file server, or the link
    rank: int | None = None  # whose process it is about
    latest: float | None = None  # time of its latest line
    over: float | None = None  # when that was back
    local: tuple[int, int] | None = None  # the killed process's place among those with numbers in a row, and how many these are
    memory: str = ""  # a sentence on the memory that no process has

    def words(self) -> str:
        where = self.host or "A host that the line does not name"
        times = f", {self.times:,} times" if self.times > 1 else ""
        ago = f", {self.age} before it was listed" if self.age else ""
        over = f", {'the last ' * (self.times > 1)}until{clock(self.over).removeprefix(' at')}" if self.over else ""
        reported = "" if self.kind == "gone" else "reported "
        at = clock(self.at) if self.blur < 2 else clock(self.at)[:-3].replace(" at", " at about")
        return f"{where} {reported}{self.what.rstrip('.')}{at}{ago}{times}{over}"

    @property
    def age_seconds(self) -> float:
        return kubernetes.seconds_of(self.age)

    @property
    def blur(self) -> float:
        """Seconds before `at` within which it was, as an age is cut to its last unit."""
        return kubernetes.blur_of(self.age) if self.at is not None else 0.0


Make = Callable[[re.Match], tuple[str, str, str, int | None]]  # -> what, kind, host, process


def _xid(match: re.Match) -> tuple[str, str, str, int | None]:
    number, rest = int(match["number"]), match["rest"]
    kind = "program" if number in PROGRAMS else "note" if number in NOTES else "fault"
    action = re.search(r"\(((?:GPU Reset|Node Reboot|Drain[\w ]*|Reset)[\w ]*)\)\s*$", rest) if number == 154 else None
    meaning = XIDS.get(number, "see NVIDIA's catalog of Xids")
    pid = re.search(r"pid='?(\d+)", rest)
    return f"Xid {number} ({f'{meaning}: {action[1]}' if action else meaning})", kind, "", int(pid[1]) if pid else None


def _as(what: str, kind: str = "fault") -> Make:
    def make(match: re.Match) -> tuple[str, str, str, int | None]:
        about = match.groupdict()
        pid = about.get("pid")
        return what.format(**about), kind, about.get("host") or "", int(pid) if pid else None

    return make


def _free(match: re.Match) -> tuple[str, str, str, int | None]:
    """The shared memory in the answer of `free`, if it is much."""
    share = float(match["shared"]) / max(float(match["total"]), 1.0)
    reported = f"that {share:.0%} of its memory is shared, as files in /dev/shm are (`free`)"
    return reported, "fault" if MUCH_SHARED < share <= 1.0 else "", "", None


_ABOUT = re.compile(r"\s*(Name|Node|Finished):\s+(\S.*?)(?: [+\-]\d{4})?$")  # kubectl describe
_NODE = r"(?P<host>[\w.\-]+)"
_DAEMONS = r"nvidia-fabricmanager|nvidia-imex|nvidia-persistenced|slurmd|kubelet|containerd|docker|openibd|rdma[\w\-]*"
_PROMPT = re.compile(r"\[\w+@([\w.\-]+) [^\]]*\][#$] |[#$].*\bssh (?:-\S+ )*(?:\w+@)?([a-zA-Z][\w.\-]*\d)\b")
_DEVICE = re.compile(r"(?:nvidia|mlx|nvme|eth|en[ops]\d|ib|sd[a-z]|veth|bond|cni|pcieport|EDAC|mce|CPU|GPU|md)[\w\-]*\d")
_SHARED = re.compile(r"\bshmem:(\d+)\b(?!kB)")
_TASK = re.compile(
    r"\[\s*(\d+)\]\s+\d+\s+\d+\s+\d+\s+\d+\s+\d+\s+\d+\s+(\d+)\s.*\s(\S+)$"
)  # with rss_shmem, as Linux has since 6.8
PAGE = 4096  # bytes
MUCH_SHARED = 0.3  # of a host's memory
LEAST_SHARED = 32 << 30  # bytes of shared memory that no process has, below which they hardly matter
CUT = "a line that is cut, and may be a fault's ('{left}')"
_KINDS: tuple[tuple[re.Pattern, Make], ...] = tuple(
    (re.compile(pattern), make)
    for pattern, make in (
        (r"NVRM: Xid \((?P<bus>[^)]*)\): (?P<number>\d+)(?P<rest>,.*)", _xid),
        (r"NVRM: GPU .*GPU has fallen off the bus", _as(f"that {XIDS[79]}")),
        (r"NVRM: .*RmInitAdapter failed", _as("that a GPU could not be initialized")),
        (r"SXid \([^)]*\): (?P<number>\d+), (?P<severity>Fatal)", _as("SXid {number} of an NVSwitch, fatal")),
        (r"SXid \([^)]*\): (?P<number>\d+), Non-fatal", _as("SXid {number} of an NVSwitch, not fatal", "note")),
        (r"PCIe Bus Error: severity=Uncorrect\w* \(Fatal\)", _as("a fatal error of PCIe")),
        (r"mlx5_core \S+ .*(?:device's health compromised|Fatal error \d+ detected)", _as("that a NIC has failed")),
        (r"Kernel panic - not syncing", _as("that its kernel has stopped (panic)")),
        (r"pcieport (?P<port>[\da-f:.]+): DPC: containment event", _as("that the PCIe port {port} cut its device off after an error (DPC)")),
        (r"fabric manager .*?version (?P<own>[\d.]*\d) don'?t match with driver version (?P<driver>[\d.]*\d)", _as("that its fabric manager's version, {own}, isn't the driver's, {driver}", "service")),
        (rf"(?P<unit>{_DAEMONS})\.service: Failed with result", _as("that {unit} failed", "service")),
        (rf"Failed to start (?P<unit>{_DAEMONS})\b", _as("that {unit} failed", "service")),
        (r"^\s*State\s+: (?P<state>In Progress|Not Started)\s*$", _as("the state of the NVLink fabric: {state}, where Completed is needed", "service")),
        (r"Memory cgroup out of memory: Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)", _as("that the kernel killed process {pid} ({name}) for the container's memory limit", "kill")),
        (r"Out of memory: Kill(?:ed)? process (?P<pid>\d+) \((?P<name>[^)]*)\)", _as("that the kernel killed process {pid} ({name}) for lack of memory", "kill")),
        (r"Port module event(?:\[error\])?: module (?P<port>\d+), (?P<how>Cable (?:unplugged|error)[^,]*)", _as("{how} at port {port} of a NIC")),
        (r"(?P<link>[\w.:/\-]+?):? (?:Port: \d+ )?(?:NIC )?Link (?:is )?(?:down|Down|DOWN)\b", _as("that the link of {link} went down")),
        (r"link status definitely down for interface (?P<link>\S+)", _as("that the link of {link} went down")),
        (r"(?P<link>\S+): (?:lost carrier|carrier lost)", _as("that the link of {link} lost its carrier")),
        (r"(?:EDAC \S+: \d+ UE|Machine check events logged|\[Hardware Error\]: .*Uncorrected)", _as("a hardware error of memory or CPU")),
        (r"(?P<name>[\w.\-]+)\[(?P<pid>\d+)\]: segfault at", _as("a segmentation fault of {name}, process {pid}", "program")),
        (r"^Mem:\s+(?P<total>[\d.]+)\w*\s+(?:[\d.]+\w*\s+){2}(?P<shared>[\d.]+)", _free),
        (r"INFO: task (?P<name>\S+):\d+ blocked for more than \d+ seconds", _as("that {name} was blocked for minutes, in a file system or a driver", "blocked")),
        (r"nfs: server (?P<server>\S+) not responding", _as("that the file server {server} doesn't answer", "storage")),
        (r"Lustre: (?P<server>[\w.]+)-\S+: Connection to \S+ \(at \S+\) was lost", _as("that the file server of {server} (Lustre) doesn't answer", "storage")),
        (r"LustreError: \S+ (?P<server>[\w.]+)-\S+: operation \S+ to node \S+ failed", _as("that the file server of {server} (Lustre) doesn't answer", "storage")),
        (r"ceph: .*?(?P<server>mds\d+) hung", _as("that the file server {server} (Ceph) doesn't answer", "storage")),
        (r"(?:BUG: soft lockup|rcu_sched self-detected stall)", _as("that a CPU was stuck in the kernel")),
        (rf"ssh: connect to host {_NODE} port \d+: (?P<why>No route to host|Connection timed out|Connection refused)", _as("can't be reached by ssh ({why})", "gone")),
        (rf"Node {_NODE} status is now: NodeNotReady", _as("(Kubernetes) that the node isn't ready")),
        (rf"\bNodeNotReady\b.*?node/{_NODE}", _as("(Kubernetes) that the node isn't ready")),
        (rf"\b(?:OOMKilling|SystemOOM)\b.*?node/{_NODE}", _as("(Kubernetes) that a process was killed for lack of memory", "kill")),
        (rf"\bEvicted\b.*?pod/{_NODE}\s+(?P<why>.*)", _as("(Kubernetes) that the pod was evicted: {why}", "kill")),
        (rf"\b(?:Preempted|Preempting)\b.*?pod/{_NODE}", _as("(Kubernetes) that the pod was preempted", "kill")),
        (rf"\bTaintManagerEviction\b.*?pod/{_NODE}", _as("(Kubernetes) that the pod was evicted, since its node isn't ready or was tainted", "kill")),
        (rf"^{_NODE}\s+\d+/\d+\s+(?P<why>OOMKilled|Evicted|Error|NodeLost|ContainerStatusUnknown)\s", _as("(Kubernetes) the state {why} of the pod", "kill")),
        (r"Reason:\s+(?P<why>OOMKilled|Evicted|NodeLost)", _as("(Kubernetes) the state {why} of a container", "kill")),
        (rf"\*\*\* (?:STEP|JOB) \S+ ON {_NODE} CANCELLED AT \S+ DUE TO (?P<why>TIME LIMIT|PREEMPTION|NODE FAILURE[^*]*?)\s*\*", _as("(Slurm) that the job was canceled: {why}", "kill")),
        (rf"\*\*\* (?:STEP|JOB) \S+ ON {_NODE} CANCELLED AT", _as("(Slurm) that the job was canceled", "note")),
        (rf"Node failure on {_NODE}", _as("(Slurm) that the node failed")),
        (rf"srun: error: {_NODE}: tasks? (?P<tasks>[\d,\-]+): (?P<how>Out Of Memory|Killed|Segmentation fault|Bus error)", _as("(Slurm) the end of task {tasks}: {how}", "kill")),
        (r"[Dd]etected (?P<n>\d+) oom[-_]kill events? in (?P<step>\S+?)[.,]?(?:\s|$)", _as("(Slurm) {n} kill for lack of memory in {step}", "kill")),
        # and what is left of such lines when they are cut
        (r"(?P<left>NVRM:(?: Xi?| Xid\b.*)?)$", _as(CUT)),
        (r"(?P<left>SXid\b.*|(?:Memory cgroup out|Out) of memory(?:: ?K.*|:? ?)$|Port module event(?!.*Cable [a-z]+).*)", _as(CUT)),
    )
)  # fmt: skip


# A file server or a link that is back, by the name under which it was lost.
_BACK = re.compile(
    r"nfs: server (\S+) OK|Lustre: ([\w.]+)-\S+: Connection restored|ceph: .*?(mds\d+) (?:recovery completed|came back)"
    r"|([\w.:/\-]+?):? (?:Port: \d+ )?(?:NIC )?Link (?:is )?(?:up|Up|UP|ACTIVE|Active)\b"
)
_POD = re.compile(
    r"([\w.\-]+)\s+\d+/\d+\s+[A-Z]\w+\s+\d+(?: \([^)]*\))?\s+\w+\s+\d+\.\d+\.\d+\.\d+\s+([\w.\-]+)"
)  # get pods -o wide
LEAST_PID = 1000  # below, processes of many containers have the same number
APART_SECONDS = 3600.0  # between two lines, beyond which they are two events


@dataclass
class HostEvents:
    """Events of hosts and schedulers, from any number of files."""

    marks = (
        b"Xid", b"out of memory", b"Out of memory", b"Port module", b"ink is", b"Link ", b"link status", b"arrier", b"EDAC", b"ardware Error", b"achine check",
        b"segfault", b"blocked for more", b"not responding", b"soft lockup", b"rcu_sched", b"NotReady", b"OOM", b"Evict", b"reempt",
        b"CANCELLED", b"Node failure", b"srun: error", b"oom", b"NodeLost", b"ContainerStatusUnknown", b"connect to host", b"nfs: server",
        b"Lustre", b"ceph: ", b"Running ", b"Terminating ", b"DPC: ", b"fabric manager", b"Failed with result", b"Failed to start", b"State  ", b"shmem:",
        b"NVRM:", b"PCIe Bus Error", b"compromised", b"Fatal error", b"Kernel panic", b"Name:  ", b"Node:  ", b"Finished:  ",
        b"ssh ", b"]# ", b"]$ ", b"Mem: ", b" Error ",
    )  # fmt: skip
    inner: tuple[bytes, ...] = ()
    events: list[HostEvent] = field(default_factory=list)
    pods: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # by node
    _known: dict[tuple, HostEvent] = field(default_factory=dict)
    listed_at: float | None = None  # the time of a listing in the file
    _file: str = ""
    _host: str = ""  # that a shell's prompt, or ssh, names
    _object: str = ""  # pod/train-3, that is described
    _ended: HostEvent | None = None  # the end of one of its containers
    _tasks: list[tuple[int, int, str]] = field(default_factory=list)  # (number, pages of shared memory, name), for a kill
    _shared: int = 0  # pages

    def begin(self, path: str, rank: int | None) -> None:
        """A file follows."""
        self._file, self._host, self._object, self._tasks, self._shared = path, "", "", [], 0
        self.listed_at = self._ended = None
        self.inner = (b"] ",) if HostMap.is_kernel_log(path) else ()  # the kernel's table of processes

    def read(self, line: LogLine) -> bool:
        if task := _TASK.search(line.text):
            self._tasks.append((int(task[1]), int(task[2]), task[3]))
            return False
        if shared := _SHARED.search(line.text):
            self._shared, self._tasks = int(shared[1]), []
        if not any(word in line.text for word in _WORDS):
            return False
        if field_ := _ABOUT.match(line.text):
            self._take_about(*field_.groups())
            return False
        if self._object:
            line = line._replace(text=kubernetes.as_listed(line.text, self._object))
        if pod := _POD.match(line.text):
            self.pods[pod[2]].add(pod[1])
        if prompt := _PROMPT.match(line.text):
            self._host = next(filter(None, prompt.groups()))
        if back := _BACK.search(line.text):
            host, about = line.host or _prefix(line.text, back.start()) or self._file, next(filter(None, back.groups()))
            matching = [event for (place, _), event in self._known.items() if place == host and event.about == about]
            for event in matching:
                event.over = event.latest = line.at
            return bool(matching)
        for pattern, make in _KINDS:
            if not (match := pattern.search(line.text)):
                continue
            what, kind, host, pid = make(match)
            if not kind:
                return True
            name, age = kubernetes.listed(line.text)
            host = host or line.host or name or _prefix(line.text, match.start()) or self._host or self._object.partition("/")[2]
            if what.endswith(XIDS[79]) and any(f"({XIDS[79]})" in known_as for place, known_as in self._known if place == (host or self._file)):
                return True
            known = self._known.get((host or self._file, what))
            if known and (line.at or 0.0) - (known.latest or 0.0) < APART_SECONDS:
                known.times, known.latest, known.over = known.times + (kind != "service"), line.at, None
                return True
            listed_at = line.at or self.listed_at
            at = listed_at - kubernetes.seconds_of(age) if listed_at and age else line.at
            self._ended = event = HostEvent(host, at, what, kind, pid, file=self._file, age=age)
            event.latest, event.about = at, next(filter(None, map(match.groupdict().get, ("server", "link"))), "")
            if kind == "kill" and pid is not None:
                self._weigh(event, pid)
            self._known[host or self._file, what] = event
            self.events.append(event)
            return True
        return False

    def _take_about(self, key: str, value: str) -> None:
        """Take note of a line of an object that is described."""
        if key == "Name":
            self._object, self._ended = f"node/{value}", None
        elif key == "Node":  # so it is a pod
            self._object = self._object.replace("node/", "pod/")
            self.pods[value.partition("/")[0]].add(self._object.partition("/")[2])
        elif self._ended:
            self._ended.at, self._ended = kubernetes.time_of(value), None

    def _weigh(self, event: HostEvent, pid: int) -> None:
        """Add the facts in the kernel's table of processes: the place of the killed one, and the memory that is nobody's."""
        names = {number: name for number, _, name in self._tasks}
        first = last = pid
        while pid in names and names.get(first - 1) == names[pid]:
            first -= 1
        while pid in names and names.get(last + 1) == names[pid]:
            last += 1
        event.local = (pid - first, last - first + 1) if last > first else None
        mapped = sum(pages for _, pages, _ in self._tasks) * PAGE
        if self._tasks and self._shared * PAGE - mapped > LEAST_SHARED:
            event.memory = (
                f"{size(self._shared * PAGE)} of its memory was shared, and the listed processes had {size(mapped)} of that: the rest is files in "
                "/dev/shm, most likely left by an earlier job (`df -h /dev/shm; ls -la /dev/shm`)."
            )
        self._shared, self._tasks = 0, []

    def settle(self, host_map: HostMap, processes: dict[int, set[int]]) -> None:
        """Give the events without a host the one that their file is of, and those about a process its rank.  processes: ranks by number."""
        for event in self.events:
            event.host = event.host or host_map.of_file(event.file)
            ranks = processes.get(event.pid or 0, set())
            if len(ranks) == 1 and event.pid and event.pid >= LEAST_PID and event.kind in ("fault", "kill"):
                (rank,) = ranks
                where = host_map.of_rank.get(rank, "")
                if host_map.is_address(where) or where in ("", event.host):
                    event.rank, host_map.of_rank[rank] = rank, event.host or where
                    host_map.names[where] = event.host
        for node, pods in self.pods.items():
            host_map.pods[node] |= pods

    def ordered(self, kinds: Iterable[str]) -> list[HostEvent]:
        """The events of these kinds, in order of time."""
        events = [event for event in self.events if event.kind in kinds]
        return sorted(events, key=lambda event: (event.at is None, event.at or 0.0, -event.age_seconds))


# A line with none of these words is of no host.
_WORDS = tuple(mark.decode() for mark in HostEvents.marks)


def _prefix(text: str, end: int) -> str:
    """The host that pdsh or clush puts before a line: node37 for "node37: NVRM: ..."."""
    match = re.match(r"([a-zA-Z][\w.\-]*\d[\w.\-]*): ", text[:end])
    return match[1] if match and not _DEVICE.fullmatch(match[1]) else ""
