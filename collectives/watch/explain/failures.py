"""How ranks ended: Python's tracebacks, torchrun's summary and error files, the errors of gloo, of the store, of DETAIL.

Formats: traceback.py of Python 3.11; torch 2.13's torch/distributed/elastic/multiprocessing/errors/__init__.py (the
summary, error.json) and api.py ("failed (exitcode: -9)"); c10d's TCPStore.cpp, socket.cpp, ProcessGroupWrapper.cpp
(fingerprints) and ProcessGroupGloo.cpp (monitoredBarrier); gloo's transport/tcp/pair.cc.
"""

import re
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Iterator, Sequence

from ...format import duration
from ...judge.wording.phrases import alike, few
from ...log.backends import LOST_WORDS
from . import ops
from .dump import Frame, own_frames
from .host_map import HostMap
from .runs import RunSpan
from .text import LogLine, clock, seconds_of

_FRAME = re.compile(r'\s*File "(.+)", line (\d+), in (.+)')
_RAISED = re.compile(r"(?:\w+\.)*(?P<kind>[A-Z]\w*|[\w.]*(?:Error|Exception))(?:: (?P<message>.*)|:?$)")
_NCCL_RESULT = re.compile(r"nccl[A-Z]")  # the names of its error codes
_LOGGED = re.compile(r"\b(?:WARN|WARNING|ERROR|CRITICAL)\b.{0,120}?\b[Rr]ank[ =:_]?(\d+)\b")
_BETWEEN = re.compile(r"(During handling of the above|The above) exception")
_FINGERPRINT = re.compile(
    r"Rank (?P<rank>\d+) is running collective: CollectiveFingerPrint\((?:SequenceNumber=(?P<seq>\d+), )?OpType=(?P<op>\w+)"
    r"(?:, TensorShape=\[(?P<shape>[^\]]*)\])?(?:, TensorDtypes=(?P<dtype>\w+))?"
)
_JOINED = re.compile(r"Timed out after (\d+) seconds waiting for clients\. (\d+)/(\d+) clients joined")
_UNREACHED = re.compile(
    r"(?:trying to|failed to) connect to(?: any network address of)? [\[(]+([^\])\s,]+)[\])]*[:,] ?(\d+)"
)
_BARRIER = re.compile(r"[Rr]anks? ([\d, ]+) failed to pass monitoredBarrier")
_ITEM = re.compile(r"\s*(time|host|rank|exitcode|error_file|traceback)\s*: (.*)")
_OF_LOG_DIR = re.compile(r"[/_]attempt_\d+[/_](\d+)[/_](?:std(?:err|out)\.log|error\.json)$")
_EXITED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_OF_STORE = ("should dump", "sendBytes failed", "recvValue failed", "shut down too early")
_LOST_WORDS = (
    *_OF_STORE, *LOST_WORDS, "remote process exited", "communicator was aborted", "Socket Timeout", "for recv operation to complete", "for send operation to complete", "ncclRemoteError", "remote process exited or there was a network error", "exceeded error retry count",
    "failed to receive", "Connection was likely closed", "Application timeout caused pair closure",
)  # fmt: skip
CUT_SECONDS = 5.0  # from a logger's traceback to its exception, at most
LONGEST_MESSAGE = 300  # characters of an exception's
# Errors that are a host's fault, CUDA's by their numbers in cudaError_t.
_HOST_ERRORS = {
    "802": "On a host with NVSwitches, CUDA can't start before the fabric manager has set these up: `systemctl status nvidia-fabricmanager`; its version must be the driver's; "
    "`nvidia-smi -q | grep -A3 Fabric` must show Completed and Success.",
    "EADDRINUSE": "That port is taken, by a second job or by a process that an earlier one left: `ss -ltnp` on that host names it.",
    "803": "The driver's library and its kernel module have different versions, as after an update without a reboot, or in a container that brings its own libcuda.",
}  # fmt: skip
_CUDA_ERROR = re.compile(r"(?:[Ee]rror|cudaError)\D{0,3}(80[23])\b|(system not yet initialized)|(system has unsupported display driver)")
_CPP_PLACE = re.compile(r"\[\S+\.(?:cc|cpp|h):\d+\] ")
_SUMMARY = ("ChildFailedError", "SignalException")  # raised by torchrun itself
DOCKER = re.compile(r"172\.1[7-9]\.|172\.[23]\d\.")  # addresses that Docker gives to a bridge of one host


@dataclass
class End:
    """How a rank, or a writer whose rank is unknown, ended.

    kind: "raised"; "caught", and logged; "killed", by a signal; "exited".  what: in words.  follows: whether it only follows from another end.
    """

    kind: str
    what: str
    rank: int | None = None
    at: float | None = None
    host: str = ""
    place: Frame | None = None
    follows: bool = False
    who: str = ""
    signal: int = 0
    pid: int | None = None
    caller: Frame | None = None  # of the place
    in_backward: bool = False
    file: str = ""  # whose lines show it
    is_of_file: bool = False  # from an error file, that torchrun has a process write

    def words(self, ranks: Sequence[int] = (), node: str = "") -> str:
        """A sentence.  ranks: all that ended alike.  node: that the host, a pod, is on."""
        who = few(ranks) if len(ranks) > 1 else self.writer
        on = f" on {self.host}{f' (node {node})' * bool(node)}" if self.host else ""
        place = f", {self.where}" if self.place else ""
        verb = {"raised": "raised ", "killed": "was killed by ", "exited": "ended with ", "caught": "caught "}[self.kind]
        return f"{who[0].upper()}{who[1:]}{on} {verb}{self.what}{clock(self.at)}{place}."

    @property
    def writer(self) -> str:
        """'rank 3'; without it, the writer within a file, or the local rank that torchrun's --log-dir has a file for."""
        if self.rank is not None:
            return f"rank {self.rank}"
        if self.who not in ("", "stdout", "stderr"):
            return re.sub(r"^(?=\d+$)", "task ", re.sub(r"^[a-z_]+(\d+)$", r"local rank \1 (\g<0>)", self.who))
        name, local = self.file.rpartition("/")[2], _OF_LOG_DIR.search(self.file)
        return f"local rank {local[1]} (in {self.file})" if local else f"a process{f' (in {name})' * bool(name)}"

    @property
    def host_error(self) -> str:
        """The sentence on an error of CUDA that is its host's; "" for any other."""
        if "EADDRINUSE" in self.what:
            return _HOST_ERRORS["EADDRINUSE"]
        code = _CUDA_ERROR.search(self.what) if self.kind == "raised" else None
        return _HOST_ERRORS[code[1] or ("802" if code[2] else "803")] if code else ""

    @property
    def where(self) -> str:
        """'at broadcast_object, checkpoints.py:12, called by save_if_best, checkpoints.py:41'"""
        caller = f", called by {self.caller}" if self.caller else ""
        return f"at {self.place}{caller}{' (in backward)' * self.in_backward}"


@dataclass
class _Open:
    """A traceback that is being read."""

    frames: list[Frame] = field(default_factory=list)
    at: float | None = None
    chained: bool = False


@dataclass
class Failures:
    """The ends of ranks, from any number of files."""

    marks = (
        b"Traceback", b"Fatal Python", b"Error", b"Exception", b"Interrupt", b"exitcode", b"clients joined", b"client socket", b"exception",
        b"Failures:", b"Root Cause", b"monitoredBarrier", b"sendBytes", b"Broken pipe",
        b"Exception raised from", b"should dump", b"closing signal", b"onnection", b"operation to complete", b"Rendezvous complete",
    )  # fmt: skip
    inner = (b"File ", b"time  ", b"host  ", b"rank  ", b"traceback :", b"frame #")
    ends: list[End] = field(default_factory=list)
    follow: Counter = field(default_factory=Counter)  # kind of consequence -> lines
    caught: list[End] = field(default_factory=list)  # exceptions that a rank's logger wrote, so that it may have gone on
    first_lost: float | None = None  # the time of the first of these lines
    parts: dict[int, tuple[str, str]] = field(default_factory=dict)  # by rank, (number, call) of DETAIL's fingerprints
    joined: tuple[int, int, int] | None = None  # (that joined the store, that should, seconds)
    unreached: Counter = field(default_factory=Counter)  # addresses of a store that ranks didn't reach
    barrier: set[int] = field(default_factory=set)  # ranks that did not pass a monitored barrier
    world: int = 0  # as a file reports it
    summaries: list[tuple[float, int | None]] = field(default_factory=list)  # time and rank of each end in torchrun's
    named: int | None = None  # the rank that torchrun names as the root cause
    _open: dict[str, _Open] = field(default_factory=dict)
    _item: dict[str, str] | None = None
    _logged: dict[str, tuple] = field(default_factory=dict)  # by writer, the rank that the last line of a logger names, and its time
    _loggers: dict[str, list[int]] = field(default_factory=dict)  # by writer, the ranks whose tracebacks are being read
    _is_root: bool = False
    _tries: Counter = field(default_factory=Counter)  # addresses that this file's ranks haven't reached yet
    unended: list[str] = field(default_factory=list)  # sentences on tracebacks that a file ends in
    _tail: str = ""  # the writer whose traceback the last line is in
    _last_error: str = ""  # the writer whose next line is NCCL's own account of its error
    _file: str = ""
    _is_kernel_log: bool = False
    _rank: int | None = None

    def begin(self, path: str, rank: int | None) -> None:
        """A file follows.  rank: that its name shows."""
        self._open, self._item, self._file, self._rank, self._tries = {}, None, path, rank, Counter()
        self._logged, self._loggers, self._tail, self._last_error = {}, {}, "", ""
        self._is_kernel_log = HostMap.is_kernel_log(path)

    def read(self, line: LogLine) -> bool:
        text = line.text
        if "is running collective: CollectiveFingerPrint" in text:
            for part in _FINGERPRINT.finditer(text):
                shape = (
                    "" if part["shape"] is None else f" [{part['shape']}] {ops.dtype_of(part['dtype'] or '')}".rstrip()
                )
                self.parts[int(part["rank"])] = part["seq"] or "", f"{ops.op_of(part['op'])}{shape}"
        if found := _JOINED.search(text):
            self.joined, self.world = (int(found[2]), int(found[3]), int(found[1])), int(found[3])
        if found := _UNREACHED.search(text):
            self.unreached[f"{found[1]}:{found[2]}"] += 1
            self._tries[f"{found[1]}:{found[2]}"] += 1
        if "Rendezvous complete" in text:  # these were tries before it
            self.unreached -= self._tries
            self._tries.clear()
        if found := _BARRIER.search(text):
            self.barrier |= {int(rank) for rank in re.findall(r"\d+", found[1])}
        if text.startswith("Fatal Python error: "):
            rank = self._rank if line.rank is None else line.rank
            self.ends.append(End("raised", shortened(text), rank, line.at, line.host, who=line.stream))
            return True
        return self._summary(line) or self._traceback(line) or self._consequence(text, line.at)

    def end(self) -> bool:
        """Note the exceptions whose own line isn't in the file that ends. Returns whether there are any."""
        is_cut = any([self._is_cut(key) for key in [*self._loggers]])
        part = self._open.get(self._tail)
        if part and part.frames:
            *_, place = own_frames(part.frames) or part.frames
            self.unended.append(f"{self._file.rpartition('/')[2]} ends in a traceback, before its exception: the last line is at {place}.")
        if self._item and "exitcode" not in self._item:
            self.unended.append(f"{self._file.rpartition('/')[2]} ends in torchrun's summary, before the exit code{' of rank ' * ('rank' in self._item)}{self._item.get('rank', '').split(' ')[0]}.")
        return is_cut or bool(self.unended)

    def _is_cut(self, key: str) -> bool:
        """Whether tracebacks of a writer's loggers are still open: they are noted, and closed."""
        ranks, part = self._loggers.pop(key, []), self._open.pop(key, None) or _Open()
        *_, place = own_frames(part.frames) or [None]
        host = key.split(" ")[1]
        self.caught += [End("caught", "an exception, whose own line isn't in the log,", rank, part.at, host, place) for rank in ranks]
        return bool(ranks)

    # --- tracebacks -----------------------------------------------------------------------

    def _traceback(self, line: LogLine) -> bool:
        rank = self._rank if line.rank is None else line.rank
        key = f"{rank} {line.host} {line.stream}"
        text = line.text
        if (logged := _LOGGED.match(text)) and rank is None:
            self._logged[key] = int(logged[1]), line.at
        if "Traceback (most recent call last)" in text:
            logger, at = self._logged.pop(key, (None, None))
            if logger is not None:
                self._loggers.setdefault(key, []).append(logger)
            self._open[key] = _Open(at=line.at or at, chained=bool(self._open.get(key) and self._open[key].chained))
            return True
        if _BETWEEN.match(text):
            self._open[key] = _Open(chained=True)
            return True
        if self._last_error == key:  # NCCL's words, two lines after the exception
            self._last_error = ""
            if self.ends and self.ends[-1].rank == rank and not self.ends[-1].follows:
                self.ends[-1].what += f" {text}"
            return True
        if text == "Last error:":
            self._last_error = key
            return True
        open_ = self._open.get(key)
        self._tail = key if open_ and text[:1].isspace() else ""
        if frame := _FRAME.match(text):
            if open_:
                open_.frames.append(Frame(frame[1], int(frame[2]), frame[3]))
            return bool(open_)
        if text[:1].isspace() or not (raised := _RAISED.fullmatch(text)):
            return False
        if open_ and line.at and open_.at and line.at - open_.at > CUT_SECONDS and self._is_cut(key):
            open_ = None
        loggers = self._loggers.get(key)
        if not open_ and not loggers and (not raised["kind"].endswith(("Error", "Exception", "Interrupt")) or self._is_kernel_log):
            return False
        if _NCCL_RESULT.match(raised["kind"]):  # NCCL's words, after the exception that torch made of them
            self.follow[raised["kind"]] += raised["kind"] == "ncclRemoteError"
            return True
        self._open.pop(key, None)
        if raised["kind"] in _SUMMARY or raised["kind"] == "SystemExit":
            return True
        message = (raised["message"] or "").strip()
        follows = is_consequence(raised["kind"], message)
        what = shortened(f"{raised['kind']}: {message}") if message else raised["kind"]
        frames = open_.frames if open_ else []
        at = open_.at if open_ and open_.at is not None else line.at
        *outer, place = own_frames(frames) or [None]
        if loggers:
            self.caught.append(End("caught", what, loggers.pop(0), at, line.host, place, follows))
            return True
        end = End("raised", what, rank, at, line.host, place, follows, line.stream)
        end.file = self._file
        end.caller = outer[-1] if outer and outer[-1].function != "<module>" else None
        end.in_backward = any(place.function in ("backward", "_engine_run_backward") for place in frames)
        if open_ and open_.chained and self.ends and self.ends[-1].rank == rank and not self.ends[-1].follows:
            return True  # it was raised while the first was handled
        self.ends.append(end)
        return True

    def _consequence(self, text: str, at: float | None) -> bool:
        """Count a line that another rank's end explains."""
        if any(words in text for words in _LOST_WORDS):
            self.follow[_kind_of(text)] += 1
            self.first_lost = min(filter(None, (self.first_lost, at)), default=None)
            return True
        if "closing signal SIG" in text:
            self.follow["torchrun's closing signals"] += 1
            return True
        if text.startswith(("Exception raised from", "frame #")):
            self.follow["C++ stack frames"] += 1
            return True
        return False

    # --- torchrun -------------------------------------------------------------------------

    def _summary(self, line: LogLine) -> bool:
        """A line of torchrun's summary, whose items have a line for each field."""
        if found := _EXITED.search(line.text):
            if int(found[1]) < 0 and not any(end.kind == "killed" for end in self.ends):
                self._ended({"exitcode": f"{found[1]} (pid: {found[3]})", "local": found[2], "host": line.host}, line)
            return True
        if line.text.strip() in ("Failures:", "Root Cause (first observed failure):"):
            self._item, self._is_root = {}, line.text.strip() != "Failures:"
            return True
        if self._item is None or not (found := _ITEM.match(line.text)):
            return False
        if found[1] in self._item:
            self._item = {}
        self._item[found[1]] = found[2].strip()
        if found[1] == "exitcode":
            self._ended(self._item, line)
        return True

    def _ended(self, item: dict[str, str], line: LogLine) -> None:
        rank = int(item["rank"].split()[0]) if "rank" in item else None
        if self._is_root and rank is not None:
            self.named = rank
        pid = re.search(r"pid: (\d+)", item["exitcode"])
        status = int(item["exitcode"].split()[0])
        at = seconds_of(item["time"]) if "time" in item else line.at
        if at is not None:
            self.summaries.append((at, rank))
        known = next((end for end in self.ends if end.rank == rank and rank is not None), None)
        if status >= 0:
            if known:
                known.host = known.host or item.get("host", "")
            else:
                known = End("exited", f"exit code {status}", rank, at, item.get("host", ""))
                self.ends.append(known)
            known.pid = int(pid[1]) if pid else None
            return
        self.ends = [end for end in self.ends if end.kind != "killed" or end.rank is not None]
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
        who = f"local rank {item['local']}" if "local" in item else ""
        follows = -status in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT)  # c10d aborts at a timeout
        end = End("killed", name, rank, at, item.get("host", ""), follows=follows, who=who, signal=-status)
        end.pid, end.file = int(pid[1]) if pid else None, self._file
        self.ends.append(end)

    def read_error_file(self, data: Any, path: str) -> bool:
        """Add the error file of a rank that torchrun started. Returns whether it is one."""
        message = data.get("message") if isinstance(data, dict) else None
        if isinstance(message, dict) and "message" in message:
            extra = message.get("extraInfo") or {}
            self.begin(path, None)
            stamp = str(extra.get("timestamp", ""))
            at = float(stamp) if stamp.isdigit() else None
            before = len(self.ends)
            for text in str(extra.get("py_callstack") or message["message"]).splitlines():
                self._traceback(LogLine(text, at))
            for end in self.ends[before:]:
                end.is_of_file = True
            return True
        return False

    def settle(self, window: RunSpan) -> None:
        """Drop the error files of other runs, and of ranks whose log has the same error: their clocks may differ."""
        logs = {end.what for end in self.ends if end.rank is not None and not end.is_of_file}
        self.ends = [end for end in self.ends if not end.is_of_file or end.what not in logs and (end.at is None or window.holds(end.at))]

    # --- conclusions ----------------------------------------------------------------------

    def roots(self) -> list[End]:
        """The ends that follow from no other, one per rank, the first in time first."""
        ends = [end for end in self.ends if not end.follows]
        ranks = {end.rank for end in ends if end.kind == "raised"}
        own = [end for end in ends if end.kind != "exited" or end.rank not in ranks]
        if any(end.kind != "exited" for end in own):  # an exit code alone may be any rank's consequence
            own = [end for end in own if end.kind != "exited"]
        latest: dict[tuple, End] = {}
        for end in own:  # the last of a rank is the one that ended it
            latest[end.writer, end.host if end.rank is None else "", end.kind] = end
        return sorted(latest.values(), key=lambda end: (end.at is None, end.at or 0.0))

    def consequences(self) -> list[str]:
        """A sentence on what follows from other ends."""
        lines = sum(self.follow.values())
        ends = [end for end in self.ends if end.follows and end.rank not in self.parts]
        ends = [end for end in ends if end.kind == "raised"] or ends  # without the ranks that a launcher ended then
        ranks = sorted({end.rank for end in ends if end.rank is not None})
        kinds = ", ".join(f"{kind} ({n:,})" for kind, n in self.follow.most_common(3))
        parts = [f"{lines:,} {'line' if lines == 1 else 'lines'}: {kinds}"] if lines else []
        if ends:
            whose = few(ranks) if ranks else f"{len(ends):,} process{'es' * (len(ends) > 1)}"
            parts.append(f'the error{"s" * (len(ends) > 1)} of {whose}, "{shortened(_CPP_PLACE.sub("", ends[0].what), 100)}"')
        return [f"Consequences: {'; '.join(parts)}."] if parts else []

    def spared(self, n: int) -> list[int]:
        """The few ranks of the first n that raised nothing, where most have lost another rank, or waited too long for it."""
        raised = {end.rank for end in self.ends if end.kind == "raised"}
        rest = {*range(n)} - raised
        return sorted(rest) if None not in raised and 2 * len(rest) <= len(raised) else []

    @property
    def lost_store(self) -> bool:
        """Whether ranks have lost the store."""
        return any(words in kind for kind in self.follow for words in _OF_STORE)

    def sentences(self, local: int = 0) -> list[str]:
        """The sentences on ranks that never met: at a store, in a barrier, or in one call.  local: ranks on a host."""
        lines = [*self._mismatch(), *self.unended]
        if waited := sorted({end.who or end.file.rpartition("/")[2] for end in self.ends if end.what.startswith("RendezvousTimeoutError")}):
            lines.append(f"Launchers waited in vain for the other hosts to join ({', '.join(waited[:8])}): look for a host whose launcher isn't among these.")
        if self.barrier:
            ranks = sorted(self.barrier)
            lines.append(f"{few(ranks).capitalize()} did not come to a monitored barrier, which the others reached.")
        if self.joined:
            came, needed, seconds = self.joined
            lines.append(
                f"{came:,} of {needed:,} ranks joined the store within {duration(seconds)}: the other {needed - came:,} never reached it{self._absent(needed - came, local)}."
            )
        if self.unreached:
            address, n = self.unreached.most_common(1)[0]
            lines.append(f"Ranks tried to connect to {', '.join(sorted(self.unreached))}, and nothing answered there.")
            if docker := [at for at in self.unreached if DOCKER.match(at)]:
                lines.append(
                    f"{docker[0].split(':')[0]} is an address inside a container (Docker's bridge), which other hosts can't reach: "
                    "give MASTER_ADDR an address of the host, or run the container with --network=host."
                )
        return lines

    def _absent(self, missing: int, local: int) -> str:
        """': as many as a host has, so they are ranks 88-95, it seems'"""
        ranks = {end.rank for end in self.roots() if end.rank is not None}
        if not local or missing != local or len({rank // local for rank in ranks}) != 1:
            return ""
        first = min(ranks) // local * local
        return f": as many as a host has, so they are ranks {first}-{first + local - 1}, it seems"

    def _mismatch(self) -> Iterator[str]:
        if not self.parts:
            return
        called = alike((rank, call) for rank, (_, call) in sorted(self.parts.items()))
        number = next((seq for seq, _ in self.parts.values() if seq), "")
        parts = sorted(called.items(), key=lambda part: len(part[1]))
        calls = ", and ".join(f"{few(ranks)} call{'s' * (len(ranks) == 1)} {call}" for call, ranks in parts)
        yield f"Ranks call different collectives{f' as #{number}' if number else ''}: {calls}."
        for end in self.ends:
            if end.rank in self.parts and end.place:
                yield f"Rank {end.rank} does so {end.where}."


def shortened(text: str, most: int = LONGEST_MESSAGE) -> str:
    """The text, or its beginning up to the end of a word."""
    return text if len(text) <= most else f"{text[:most].rpartition(' ')[0] or text[:most]} ..."


def is_consequence(kind: str, message: str) -> bool:
    """Whether an error only means that another rank is gone, or that one never came."""
    if "EADDRINUSE" in message or "address already in use" in message:
        return False
    if kind in ("RendezvousTimeoutError", "RendezvousConnectionError", "DistStoreError", "DistNetworkError", "KeyboardInterrupt", "BrokenPipeError", "ConnectionResetError"):
        return True
    waited = ("Watchdog caught", "Detected mismatch between collectives", "monitoredBarrier", "Timed out waiting", "connect() timed out")
    return kind in ("RuntimeError", "DistBackendError") and any(words in message for words in (*_LOST_WORDS, *waited))


def _kind_of(text: str) -> str:
    return next((f'"{words}"' for words in _LOST_WORDS if words in text), "others")
