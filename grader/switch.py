"""The network between submitted ranks, in the scorer's own process.

A rank sends its inputs, and gets its result once the call is complete; collectives are computed here.  So the record
of the messages is made by the wire, not reported by the ranks: they have no other connection, and nothing they send
can change it.  Times in it are each rank's own count of its events, not seconds of the machine.  Completion follows
gloo, as the course's own judge has it (diagnose.needs).
"""

import selectors
import socket
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any, Callable, Iterator, NamedTuple

import torch

from collectives.judge import diagnose
from collectives.judge.monitor import Monitor
from collectives.judge.verdict import Verdict
from collectives.log.collectives import COLLECTIVES, of
from collectives.log.event import MAIN, Event, Failure, Line, as_list
from collectives.log.messages import Began, Called, Completed, Failed, Grouped, Misused, Returned, Waiting
from collectives.outcome.errors import error
from collectives.outcome.run import Run
from collectives.rank.tensors import capture
from helpers.exercise.cases import Case
from helpers.exercise.on_rank import File, content
from helpers.exercise.task import Attempt

from .described_calls import Impossible, Room, Ungradable, described_call, fits, number, result_on_ranks
from .inside import protocol, seccomp
from .inside.protocol import FrameReader, Malformed, decode, encode, frame, layout, one_line, text
from .sandbox import Usage

# That an answer may take for the cases of one world size, on a busy machine. One that computes without end has its limit
# of processor time (inside/seccomp.py), and one whose ranks wait for each other is judged at once.
SECONDS = 30.0
START_SECONDS = 60.0  # for the ranks to start and to run the answer cells
OVER = "the time for this submission is over. An exercise takes a right answer seconds."
MAX_CALLS = 2000  # of one rank in one case
MAX_MESSAGES = 50_000  # from one rank
# Threads per rank at a time. Python's run out of memory first; raw ones take none, and would use up the system's.
MOST_THREADS = 300
LOOK_SECONDS = 0.2  # between two looks at the ranks' use of the machine
# A worker group's part of this process's memory: unfinished messages take at most the first, the record the second, and
# computing, counting and judging less than both.
MAX_BYTES = 1 << 26  # from all ranks together, of which each has an equal part
MAX_KEPT_BYTES = 1 << 26
# That a call takes, and besides their contents a tensor and anything else: so MAX_CALLS calls of numbers have room.
CALL_BYTES, TENSOR_BYTES, OBJECT_BYTES = 2048, 1024, 2048
READ_BYTES = 1 << 16
MAX_PRINTED_CHARACTERS = 4000  # characters of a rank that are kept
TICK = 1e-6  # seconds in the record between two things that happen to a rank


@dataclass
class Request:
    """A call as the wire sees it."""

    event: Event
    given: Any  # a tensor, a list of tensors or None
    room: Room  # of the tensors that will hold the result


class PendingWait(NamedTuple):
    """A thread of a rank that waits for a call."""

    asked: Request
    ticket: int  # by which the thread knows its answer
    limit: float  # seconds that it is willing to wait; inf: any time


@dataclass
class Peer:
    """A rank, at the other end of its socket."""

    rank: int
    sock: socket.socket
    frames: FrameReader = field(default_factory=FrameReader)
    ready: bool = False
    gone: bool = False
    printed: str = ""
    messages: int = 0
    nbytes: int = 0
    ticks: int = 0
    calls: dict[int, Request] = field(default_factory=dict)  # of this case, by the rank's own count
    files: dict[int, File] = field(default_factory=dict)  # among its arguments, by their place
    reads: list[int] = field(default_factory=list)  # bytes that each read of them got
    waits: list[PendingWait] = field(default_factory=list)
    busy: int = 0  # threads that do something else
    returned: tuple[Any, tuple] | None = None
    left: str = ""  # on its arguments, see on_rank.outcome
    failure: Failure | None = None

    @property
    def is_still(self) -> bool:
        """Whether it sends nothing more before it is answered."""
        return self.gone or self.failure is not None or bool(self.waits) and not self.busy

    def tick(self) -> float:
        self.ticks += 1
        return self.ticks * TICK

    def say(self, header: dict[str, Any], body: bytes = b"") -> None:
        try:
            self.sock.sendall(frame(header, body))
        except TimeoutError:
            raise Ungradable(f"rank {self.rank} does not read what it is sent.") from None
        except OSError:
            pass  # it is gone, which shows when its socket is read


class Switch:
    """Ranks of one worker group, and the calls between them.

    socks: one per rank.  sources: name of an answer cell -> its code.  ended: ends the ranks; the exit status of each.
    usage: as of Sandbox.  until: the time at which all that their submission may take is over.
    """

    def __init__(
        self, socks: list[socket.socket], sources: dict[str, str], function: str, ended: Callable[[], list[int]],
        usage: Callable[[], dict[str, Usage]] = dict, until: float = inf,
    ) -> None:  # fmt: skip
        self._n, self._function, self._ended = len(socks), function, ended
        self._usage, self._looked, self._over = usage, 0.0, until
        self._computed: dict[str, float] = {}  # seconds of processor time of each process before this world
        self._lines = {f"<answer {name}>": source.splitlines() for name, source in sources.items()}
        self._peers = [Peer(rank, sock) for rank, sock in enumerate(socks)]
        self._begin()
        self._deadline, self._kept = inf, 0  # the second in bytes
        for peer in self._peers:
            peer.sock.settimeout(2.0)  # never reached by a rank that reads
        self.printed: list[list[str]] = []
        self.used_up = False  # whether a rank is no longer as good as a new one
        self.loads = False  # whether a rank has imported the modules of Sandbox.load

    def attempt(self, cells: list[tuple[str, str]], cases: list[Case], given: list[list[tuple]]) -> list[Attempt]:
        """Runs cases of one world size one after the other; what was printed is in `.printed`, by case and rank.

        cells: names and sources, of the answer and before.  Raises RunError, as collectives.run does, and Ungradable.
        """
        job = {"cells": cells, "function": self._function, "world_size": self._n}
        for peer in self._peers:
            peer.say({"rank": peer.rank, **job})
        with selectors.DefaultSelector() as self._select:
            for peer in self._peers:
                self._select.register(peer.sock, selectors.EVENT_READ, peer)
            self._until(time.monotonic() + START_SECONDS, lambda peer: peer.ready)
            deadline = time.monotonic() + SECONDS
            return [self._case(*one, deadline) for one in zip(cases, given)]

    def _begin(self) -> None:
        self._monitor = Monitor(self._n)
        self._asked: dict[int, Request] = {}  # id(event) -> the call
        # By group, target and tag: recvs from anyone that have no send; by source too: sends, received or not.
        self._from_anyone: dict[tuple, deque[Event]] = defaultdict(deque)
        self._sent: dict[tuple, deque[Event]] = defaultdict(deque)

    def _case(self, case: Case, given: list[tuple], deadline: float) -> Attempt:
        self._begin()
        for peer, arguments in zip(self._peers, given):
            peer.calls.clear()
            peer.waits.clear()
            peer.returned, peer.busy, peer.ticks, peer.printed = None, 0, 0, ""
            peer.files, peer.reads = {k: a for k, a in enumerate(arguments) if isinstance(a, File)}, []
            sizes = [[k, len(content(file))] for k, file in peer.files.items()]
            header, body = encode([None if k in peer.files else a for k, a in enumerate(arguments)])
            peer.say({"case": header, "late": case.late == peer.rank, "files": sizes}, body)
        self._until(deadline, lambda peer: peer.returned is not None)
        if apart := self._monitor.unlike() or self._monitor.unshared_group():
            raise self._error(apart)
        if any(len(peer.returned[1]) != len(arguments) for peer, arguments in zip(self._peers, given)):
            raise Ungradable("a rank sent back other arguments than it was given, which torch.distributed never does.")
        self.printed.append([peer.printed for peer in self._peers])
        results, arguments = zip(*(peer.returned for peer in self._peers))
        reads, left = [peer.reads for peer in self._peers], [peer.left for peer in self._peers]
        return Attempt(list(results), list(arguments), self._monitor.events, reads, left)

    def _until(self, deadline: float, done: Callable[[Peer], bool]) -> None:
        """Serve until all ranks are done. Raises the verdict once no rank moves any more or time is out."""
        self._deadline = deadline
        while not all(map(done, self._peers)):
            if all(done(peer) or peer.is_still for peer in self._peers) and not self._give_up():
                raise self._error(self._judge().final_verdict())  # their calls decide, not their speed
            for key, _ in self._select.select(LOOK_SECONDS):
                self._listen(key.data)
            self._look()

    def _look(self) -> None:
        """Raises the verdict once time is out or a rank has computed for too long, Ungradable for too many threads."""
        now = time.monotonic()
        if now > self._over:
            raise Ungradable(OVER)
        if now >= self._deadline:
            raise self._error(self._out_of_time(SECONDS))
        if now < self._looked + LOOK_SECONDS:
            return
        self._looked, usage, limit = now, self._usage(), seccomp.computing_seconds(self._n)
        if sum(used.threads for used in usage.values()) > (most := MOST_THREADS * self._n):
            raise Ungradable(f"the ranks have more than {most} threads at a time.")
        self._computed = self._computed or {process: used.computed for process, used in usage.items()}
        if any(used.computed >= self._computed.get(process, 0.0) + limit for process, used in usage.items()):
            raise self._error(self._out_of_time(limit))

    def _give_up(self) -> bool:
        """End the first wait of all with a limit, as time would: no rank acts before. False if there is none."""
        limited = [(wait.limit, peer.rank, wait) for peer in self._peers for wait in peer.waits if wait.limit < inf]
        if not limited:
            return False
        _, rank, wait = min(limited, key=lambda each: each[:2])
        peer = self._peers[rank]
        peer.waits.remove(wait)
        self._tell(peer, wait.ticket, done=False)
        return True

    def _tell(self, peer: Peer, ticket: int, done: bool, value: Any = (), source: int = -1) -> None:
        """Answer a thread, which then continues."""
        header, body = encode(list(value))
        peer.busy += 1
        peer.say({"to": ticket, "done": done, "value": header, "source": source}, body)

    def _out_of_time(self, seconds: float) -> Verdict:
        monitor = self._judge()
        return monitor.mismatch() or monitor.out_of_time(seconds)

    def _listen(self, peer: Peer) -> None:
        try:
            data = peer.sock.recv(READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self._select.unregister(peer.sock)
            peer.gone = True
            return
        peer.nbytes += len(data)
        try:
            messages = peer.frames.feed(data)
            peer.messages += len(messages)
            if peer.messages > MAX_MESSAGES or peer.nbytes > MAX_BYTES // self._n:
                raise Ungradable(f"rank {peer.rank} prints or sends without end.")
            for header, body in messages:
                self._look()  # one read may bring hundreds
                self._heard(peer, header, body)
        except Malformed as what:
            raise Ungradable(f"rank {peer.rank} sent the grader {what}, which torch.distributed never does.") from None

    def _heard(self, peer: Peer, header: dict[str, Any], body: bytes) -> None:
        if peer.returned or peer.failure or peer.waits and not peer.busy:
            raise Malformed("a message out of turn")
        match header:
            case {"printed": str(words)}:
                peer.printed += text(words)[: MAX_PRINTED_CHARACTERS - len(peer.printed)]
            case {"call": str(op)}:
                self._called(peer, op, header, body)
            case {"wait": int(index)} | {"test": int(index)} if index in peer.calls:
                if header.get("written") is True:  # to a tensor of a call in flight
                    self._monitor.feed(peer.rank, Misused(peer.calls[index].event.index, "written", None))
                    raise self._error(self._monitor.mismatch())
                (self._waits if "wait" in header else self._tests)(peer, peer.calls[index], header)
            case {"read": int(place)} if place in peer.files:
                self._read(peer, peer.files[place], header)
            case {"wait": int()} | {"test": int()}:
                raise Ungradable(f"rank {peer.rank} waits for a call that an earlier call of the function made.")
            case {"returned": value}:
                came = decode(value, body)
                if not (isinstance(came, tuple) and len(came) == 2 and isinstance(came[1], tuple)):
                    raise Malformed("a result that is none")
                self._keep(came)
                peer.returned = came
                peer.left = str(header.get("leaves"))
                self.used_up |= header.get("used") is True
                self.loads |= header.get("loads") is True
                groups = list(_groups(header, self._n))
                for k, (line, ranks) in enumerate(groups):
                    self._monitor.feed(peer.rank, Grouped(k, ranks, self._line(line)))
                self._monitor.feed(peer.rank, Returned(b"", (None, None), None, [], len(groups)))
            case {"failed": str(kind), "message": str(message), "frames": list(frames)}:
                lines = [line for line in map(self._line, frames) if line]
                # Its lines are set off, lest one is taken for a line of the course's.
                kind, message = one_line(kind, 60), text(message, 2000).replace("\n", "\n  ")
                peer.failure = Failure(kind, message, lines, True, f"{kind}: {message}")
            case {"ready": True}:
                peer.ready = True
            case _:
                raise Malformed("a message that says nothing")

    def _waits(self, peer: Peer, asked: Request, header: dict[str, Any]) -> None:
        ticket, limit = number(header, "ticket"), header.get("limit", 0.0)
        peer.busy = number(header, "busy")
        if not isinstance(limit, (int, float)):
            raise Malformed("a wait that says nothing of its thread")
        if asked.event.end is not None:  # it was complete before, and its record stays
            self._tell(peer, ticket, done=True)
            return
        asked.event.waiting = asked.event.waiting or peer.tick()
        peer.waits.append(PendingWait(asked, ticket, limit if limit > 0 else inf))
        thread = MAIN if header.get("main") is True else ticket
        self._monitor.feed(peer.rank, Waiting(asked.event.index, asked.event.waiting, limit > 0, thread))
        self._answer_all()

    def _tests(self, peer: Peer, asked: Request, header: dict[str, Any]) -> None:
        ticket, busy = number(header, "ticket"), peer.busy
        if asked.event.end is not None or not self._answer(peer, asked, ticket):
            self._tell(peer, ticket, done=asked.event.end is not None)
        peer.busy = busy  # it was not waiting

    def _called(self, peer: Peer, op: str, header: dict[str, Any], body: bytes) -> None:
        if len(peer.calls) >= MAX_CALLS:
            raise Ungradable(f"rank {peer.rank} makes more than {MAX_CALLS} calls for one input.")
        index = number(header, "index", missing=-1)
        if index in peer.calls:
            raise Malformed("a call made twice")
        event = described_call(peer.rank, self._monitor.made(peer.rank), op, header, self._n)
        given = decode(header.get("in"), body)
        if not fits(op, given):
            raise Malformed(f"a {op} of something else than tensors")
        room = header.get("out")
        if not isinstance(room, list) or len(room) > self._n:
            raise Malformed("a call that says nothing of its result")
        asked = Request(event, given, [layout(r) for r in room])
        if _nbytes(asked.room) > (most := protocol.MAX_BODY_BYTES):
            raise Ungradable(f"{op} would leave rank {peer.rank} with more than {most >> 20} MiB.")
        self._keep(given, CALL_BYTES)
        if tensors := [(t.dtype, tuple(t.shape)) for t in as_list(given)] or asked.room:
            event.dtype, event.shape = tensors[0]
            event.nbytes = _nbytes(tensors)
        event.before = capture(given)
        event.line = self._line(header.get("line"))
        event.async_op = event.is_message
        event.start = peer.tick()
        peer.calls[index] = asked
        self._asked[id(event)] = asked
        self._monitor.feed(peer.rank, Called(event))
        if event.is_message:
            self._match_any_source(event)
        self._answer_all()

    def _read(self, peer: Peer, file: File, header: dict[str, Any]) -> None:
        """Send a rank bytes of a file, and record their number."""
        at, most = number(header, "at"), number(header, "most")
        if len(peer.reads) >= MAX_CALLS:
            raise Ungradable(f"rank {peer.rank} reads a file more than {MAX_CALLS} times for one input.")
        data = content(file)[at : at + most]
        peer.reads.append(len(data))
        peer.say({"to": number(header, "ticket"), "done": True}, data)

    def _line(self, where: Any) -> Line | None:
        """The place in an answer cell, if there is one."""
        match where:
            case [str(file), int(number), str(function)] if 1 <= number <= len(source := self._lines.get(file, ())):
                return Line(file.strip("<>"), number, one_line(function, 60), one_line(source[number - 1], 200))
        return None

    def _match_any_source(self, event: Event) -> None:
        """Match recvs from anyone with sends that have not been received, in the order of the group's ranks."""
        lane = event.group_name, event.group, event.dst if event.op == "send" else event.rank, event.tag
        recvs = self._from_anyone[lane]
        if event.op == "send":
            self._sent[lane, event.rank].append(event)
        elif event.src is None:
            recvs.append(event)
        for source in event.group if recvs else ():
            sends = self._sent[lane, source]
            while sends and recvs:
                if not self._monitor.call_of(sends.popleft()).is_complete:
                    self._monitor.found_sender(recvs.popleft(), source)

    def _keep(self, value: Any, cost: int = 0) -> None:
        """Count what stays in memory until the answer is judged. Raises Ungradable if that is too much."""
        self._kept += _size(value) + cost
        if self._kept > MAX_KEPT_BYTES:
            raise Ungradable(
                f"the calls and results of {self._n} ranks take more than {MAX_KEPT_BYTES >> 20} MiB of the grader's "
                "memory, and the inputs are a few numbers each. Fewer calls with more in each take less."
            )

    def _answer_all(self) -> None:
        for peer in self._peers:
            for wait in list(peer.waits):
                if self._answer(peer, wait.asked, wait.ticket):
                    peer.waits.remove(wait)

    def _answer(self, peer: Peer, asked: Request, ticket: int) -> bool:
        """Send a thread its rank's result of a call, if the call is complete."""
        event, call = asked.event, self._monitor.call_of(asked.event)
        everybody = not of(event.op).personal or len(call.events) == len(event.group)  # even ranks that send nothing
        if peer.failure or not everybody or diagnose.needs(event, call) or diagnose.mismatch(call):
            return False
        if event.end is not None:  # another thread has its result
            self._tell(peer, ticket, done=True)
            return True
        try:
            came = result_on_ranks(event, call, {e.rank: self._asked[id(e)].given for e in call}, asked.room)
        except Impossible as why:
            peer.failure = Failure("RuntimeError", str(why), [event.line] if event.line else [], True, str(why))
            return False
        single = event.op not in COLLECTIVES or of(event.op).gets != "all"  # the others fill a list
        after = (capture(came[0]) if single else capture(came)) if came else None
        self._keep(after)
        self._monitor.feed(peer.rank, Completed(event.index, after, peer.tick(), True, None))
        event.waiting = None
        self._tell(peer, ticket, True, came, event.group.index(event.src) if event.op == "recv" else -1)
        return True

    def _error(self, verdict: Verdict) -> Exception:
        results = [p.returned[0] if p.returned else None for p in self._peers]
        printed = [p.printed for p in self._peers]
        return error(verdict, Run(self._n, results, self._monitor.events, printed, name=self._function))

    def _judge(self) -> Monitor:
        """The monitor, fed with what ranks don't report."""
        for peer in self._peers:
            self._monitor.feed(peer.rank, Began())
            if peer.failure:
                self._monitor.feed(peer.rank, Failed(peer.failure))
            if peer.gone:
                self._monitor.lost(peer.rank)
        if self._monitor.dead:
            for rank, status in enumerate(self._ended()):
                self._monitor.exited(rank, status)
        return self._monitor


def _groups(header: dict[str, Any], world_size: int) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """The lines on which a rank called new_group, each with the group's ranks. Raises Malformed or Ungradable."""
    groups = header.get("groups", [])
    if not isinstance(groups, list):
        raise Malformed("groups that are none")
    if len(groups) > MAX_CALLS:
        raise Ungradable(f"a rank makes more than {MAX_CALLS} groups for one input.")
    for group in groups:
        match group:
            case [line, list(ranks)] if len(ranks) <= world_size and all(rank in range(world_size) for rank in ranks):
                yield line, tuple(sorted(map(int, ranks)))
            case _:
                raise Malformed("a group that is none")


def _nbytes(room: Room) -> int:
    return sum(dtype.itemsize * prod(shape) for dtype, shape in room)


def _size(value: Any) -> int:
    """The bytes that a value takes, at most."""
    if isinstance(value, torch.Tensor):
        return TENSOR_BYTES + value.nbytes
    if isinstance(value, (list, tuple)):
        return OBJECT_BYTES + sum(map(_size, value))
    return 0 if value is None else OBJECT_BYTES + (4 * len(value) if isinstance(value, str) else 0)
