"""The network between submitted ranks, in the scorer's own process.

A rank hands over what it passes in, and gets what it is left with once the call is
complete; collectives are computed here.  So the record of who sent what to whom is made by
the wire, not told by the ranks: there is no other way between them, and nothing they could
say to change it.  Times in it are each rank's own count of what happened to it, so a
record does not depend on how fast the machine is.

Completion follows gloo, as the course's own diagnosis has it (diagnose.needs).
"""

from __future__ import annotations

import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import Any, Callable

import torch

from .. import diagnose, errors
from ..exercise.cases import Case
from ..exercise.judge import Attempt
from ..memory import LARGE, each, summarise
from ..record import Call, Event, Failure, Line, Run
from .calls import Refused, described_call, fits
from .collectives import Impossible, left_with
from .inside.plain import Frames, Malformed, decode, described, encode, frame, numel, text

SECONDS = 10.0  # an answer may take for the cases of one world size
START_SECONDS = 20.0  # for the ranks to start and to run the answer cells
MOST_CALLS = 2000  # of one rank in one case
MOST_MESSAGES, MOST_BYTES = 50_000, 1 << 26  # from one rank
MOST_PRINTED = 4000  # characters of a rank that are kept
TICK = 1e-6  # seconds in the record between two things that happen to a rank


@dataclass
class Asked:
    """A call as the wire sees it."""

    event: Event
    given: Any  # a tensor, a list of tensors or None
    room: list[tuple[torch.dtype, tuple[int, ...]]]  # of the tensors that will hold the result


@dataclass
class Peer:
    """A rank, at the other end of its socket."""

    rank: int
    sock: socket.socket
    frames: Frames = field(default_factory=Frames)
    ready: bool = False
    gone: bool = False
    printed: str = ""
    messages: int = 0
    nbytes: int = 0
    ticks: int = 0
    calls: dict[int, Asked] = field(default_factory=dict)  # of this case, by the rank's own count
    waiting: Asked | None = None
    returned: tuple[Any, tuple] | None = None
    failure: Failure | None = None

    def tick(self) -> float:
        self.ticks += 1
        return self.ticks * TICK

    def say(self, header: dict[str, Any], body: bytes = b"") -> None:
        try:
            self.sock.sendall(frame(header, body))
        except TimeoutError:
            raise Refused(f"rank {self.rank} does not read what it is sent.") from None
        except OSError:
            pass  # it is gone; its socket says so when read


class Switch:
    """Ranks of one crew, and the calls between them.

    socks: one a rank.  sources: name of an answer cell -> its code.  ended: ends the ranks
    and tells each one's exit status.
    """

    def __init__(
        self, socks: list[socket.socket], sources: dict[str, str], function: str, ended: Callable[[], list[int]]
    ) -> None:
        self._n, self._function, self._ended = len(socks), function, ended
        self._lines = {f"<answer {name}>": source.splitlines() for name, source in sources.items()}
        self._peers = [Peer(rank, sock) for rank, sock in enumerate(socks)]
        self._state = diagnose.State(self._n)
        self._asked: dict[int, Asked] = {}  # id(event) -> the call
        for peer in self._peers:
            peer.sock.settimeout(2.0)  # never reached by a rank that reads
        self.printed: list[list[str]] = []

    def attempt(self, cells: list[tuple[str, str]], cases: list[Case], given: list[list[tuple]]) -> list[Attempt]:
        """Runs cases of one world size one after the other.

        cells: name and source of what comes before the answer, and the answer.
        Raises RunError, as helpers.run does, and Refused. What was printed is in `.printed`,
        a list over ranks for each case.
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

    def _case(self, case: Case, given: list[tuple], deadline: float) -> Attempt:
        self._state = diagnose.State(self._n)
        self._asked.clear()
        for peer, arguments in zip(self._peers, given):
            peer.calls.clear()
            peer.returned, peer.waiting, peer.ticks, peer.printed = None, None, 0, ""
            header, body = encode(list(arguments))
            peer.say({"case": header, "late": case.late == peer.rank}, body)
        self._until(deadline, lambda peer: peer.returned is not None)
        self.printed.append([peer.printed for peer in self._peers])
        results, arguments = zip(*(peer.returned for peer in self._peers))
        return Attempt(list(results), list(arguments), self._state.events)

    # --- listening ------------------------------------------------------------------------

    def _until(self, deadline: float, done: Callable[[Peer], bool]) -> None:
        """Until all ranks are done. Raises why not, once nobody moves any more or time is out."""
        while not all(map(done, self._peers)):
            if all(done(p) or p.gone or p.failure or p.waiting for p in self._peers):
                raise self._verdict()
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._late()
            for key, _ in self._select.select(left):
                self._listen(key.data)

    def _listen(self, peer: Peer) -> None:
        try:
            data = peer.sock.recv(1 << 20)
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
            if peer.messages > MOST_MESSAGES or peer.nbytes > MOST_BYTES:
                raise Refused(f"rank {peer.rank} prints or sends without end.")
            for header, body in messages:
                self._heard(peer, header, body)
        except Malformed as what:
            raise Refused(f"rank {peer.rank} sent the grader {what}, which torch.distributed never does.") from None

    def _heard(self, peer: Peer, header: dict[str, Any], body: bytes) -> None:
        if peer.waiting or peer.returned or peer.failure:
            raise Malformed("a message out of turn")
        match header:
            case {"printed": str(words)}:
                peer.printed += text(words)[: MOST_PRINTED - len(peer.printed)]
            case {"call": str(op)}:
                self._called(peer, op, header, body)
            case {"wait": int(index)} if index in peer.calls:
                peer.waiting = asked = peer.calls[index]
                asked.event.waiting = peer.tick()
                self._state.blocked[peer.rank] = asked.event
                self._answer_all()
            case {"test": int(index)} if index in peer.calls:
                if not self._answer(peer, peer.calls[index]):
                    peer.say({"done": False})
            case {"wait": int()} | {"test": int()}:
                raise Refused(f"rank {peer.rank} waits for a call that an earlier call of the function made.")
            case {"returned": value}:
                came = decode(value, body)
                if not (isinstance(came, tuple) and len(came) == 2 and isinstance(came[1], tuple)):
                    raise Malformed("a result that is none")
                peer.returned = came
                self._state.returned.add(peer.rank)
            case {"failed": str(kind), "message": str(message), "frames": list(frames)}:
                lines = [line for line in map(self._line, frames) if line]
                kind, message = text(kind, 60), text(message, 2000)
                peer.failure = Failure(kind, message, lines, True, f"{kind}: {message}")
            case {"ready": True}:
                peer.ready = True
            case _:
                raise Malformed("a message that says nothing")

    def _called(self, peer: Peer, op: str, header: dict[str, Any], body: bytes) -> None:
        if len(peer.calls) >= MOST_CALLS:
            raise Refused(f"rank {peer.rank} makes more than {MOST_CALLS} calls for one input.")
        index = header.get("index")
        if type(index) is not int or index in peer.calls:
            raise Malformed("a call without a number")
        event = described_call(peer.rank, len(self._state.events[peer.rank]), op, header, self._n)
        given = decode(header.get("in"), body)
        if not fits(op, given):
            raise Malformed(f"a {op} of something else than tensors")
        room = header.get("out")
        if not isinstance(room, list) or len(room) > self._n:
            raise Malformed("a call that says nothing of its result")
        asked = Asked(event, given, [described(r) for r in room])
        first = [(t.dtype, tuple(t.shape)) for t in each(given)] or asked.room
        if first:
            event.dtype, event.shape = first[0]
            event.nbytes = sum(dtype.itemsize * numel(shape) for dtype, shape in first)
        event.before = _kept(given)
        event.line = self._line(header.get("line"))
        event.async_op = event.is_message
        event.start = peer.tick()
        peer.calls[index] = asked
        self._asked[id(event)] = asked
        self._state.called(event)
        self._match_any_source(peer.rank if event.op == "recv" else event.dst)
        self._answer_all()

    def _line(self, where: Any) -> Line | None:
        """The place in an answer cell, if there is one."""
        match where:
            case [str(file), int(number), str(function)] if file in self._lines:
                source = self._lines[file]
                if 1 <= number <= len(source):
                    words = source[number - 1].strip()
                    return Line(file.strip("<>"), number, text(function, 60), text(words, 200))
        return None

    # --- completing -----------------------------------------------------------------------

    def _match_any_source(self, target: int | None) -> None:
        """Gives a recv from anyone the first send to its rank that nobody has received."""
        for event in self._state.events[target] if target is not None else ():
            if event.op == "recv" and event.src is None:
                for source in event.group:
                    for sent in self._state.events[source]:
                        alone = len(self._state.pairs.of[id(sent)].events) == 1
                        if (
                            sent.op == "send"
                            and alone
                            and (sent.dst, sent.tag, sent.group_name) == (target, event.tag, event.group_name)
                        ):
                            event.src = source
                            self._state.pairs.add(event)
                            break
                    if event.src is not None:
                        break

    def _answer_all(self) -> None:
        for peer in self._peers:
            if peer.waiting is not None:
                self._answer(peer, peer.waiting)

    def _answer(self, peer: Peer, asked: Asked) -> bool:
        """Hands a rank what a call leaves it with, if the call is complete."""
        event, call = asked.event, self._state.pairs.of[id(asked.event)]
        if peer.failure or not _complete(event, call):
            return False
        try:
            came = left_with(event, call, {e.rank: self._asked[id(e)].given for e in call}, asked.room)
        except Impossible as why:
            peer.failure = Failure("RuntimeError", str(why), [event.line] if event.line else [], True, str(why))
            peer.waiting = None
            return False
        single = event.op not in ("all_gather", "gather", "all_to_all")
        event.after = (_kept(came[0]) if single else _kept(came)) if came else None
        event.end, event.waited, event.waiting = peer.tick(), True, None
        self._state.blocked.pop(peer.rank, None)
        peer.waiting = None
        header, body = encode(came)
        source = event.group.index(event.src) if event.op == "recv" else -1
        peer.say({"done": True, "value": header, "source": source}, body)
        return True

    # --- the end --------------------------------------------------------------------------

    def _run(self) -> Run:
        return Run(
            self._n, [p.returned[0] if p.returned else None for p in self._peers], self._state.events,
            [p.printed for p in self._peers], name=self._function,
        )  # fmt: skip

    def _verdict(self) -> Exception:
        """Nobody moves any more: why. What is said depends on what the ranks did, not on how fast."""
        run = self._run()
        failures = {p.rank: p.failure for p in self._peers if p.failure}
        if failures:
            return errors.failed(failures, self._state, run)
        dead = [p.rank for p in self._peers if p.gone and not p.returned]
        if dead:
            statuses = self._ended()
            return errors.died(dead[0], statuses[dead[0]], "", self._state, run)
        for call in run.calls:
            if what := diagnose.mismatch(call):
                return errors.mismatched(call, what, run)
        return errors.stuck(self._state, run, diagnose.hopeless(self._state) or {r: set() for r in self._state.blocked})

    def _late(self) -> Exception:
        for call in self._run().calls:
            if what := diagnose.mismatch(call):
                return errors.mismatched(call, what, self._run())
        return errors.out_of_time(self._state, self._run(), SECONDS)


def _complete(event: Event, call: Call) -> bool:
    everybody = not event.op.startswith("all_to_all") or len(call.events) == len(event.group)  # also who sends nothing
    return everybody and not diagnose.needs(event, call) and not diagnose.mismatch(call)


def _kept(value: Any) -> Any:
    """As the record keeps it: large tensors are summarised."""
    if isinstance(value, list):
        return [_kept(v) for v in value]
    return summarise(value) if isinstance(value, torch.Tensor) and value.numel() > LARGE else value
