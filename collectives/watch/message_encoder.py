"""A rank's messages, written into its ring: most calls in a few numbers, since most are like an earlier one.

The fields that calls share are a signature, written once as a line (lines.py) and then by its number.  Such a call is
a few records: it is made, it is waited for or issued to a device's stream, and it is complete.  Everything else is
written as a line.

    CALL, signature, index, start    WAIT, index, since, limited    END, index, end, waited
    ISSUED, index, at                LINE, length, line

Each segment of the ring begins with the line `anew`, and signatures are written again in it.
"""

import dataclasses
import struct
import threading
from collections import defaultdict, deque
from functools import cache
from operator import attrgetter
from typing import Any, Hashable

from ..log import messages
from ..log.event import MAIN, Event, Value
from ..rank.callers import with_text
from . import lines
from .ring import RingWriter

CALL, WAIT, END, LINE, ISSUED = range(1, 6)
CALLED, WAITED, COMPLETED, LENGTH, LEFT = map(struct.Struct, ("<BIQd", "<BQd?", "<BQd?", "<BI", "<BQd"))
FULL = struct.Struct(CALLED.format + (WAITED.format + COMPLETED.format).replace("<", ""))  # as most calls are written
MAX_LANES = 1000  # listed at the beginning of a segment
_ROOM = 64  # bytes, more than any record but a line takes
_OWN_FIELDS = {"index", "start", "step", "before", "after"}  # fields of an event in which calls of one signature differ
_shared_fields = attrgetter(*(f.name for f in dataclasses.fields(Event) if f.name not in _OWN_FIELDS))
_UNTOLD = object()


class _Signature:
    """The fields that calls share.

    after, leaves: their results when they are complete, and when they are issued, once written.
    lane: the number of calls made in their lane.
    """

    __slots__ = "number", "before", "after", "leaves", "lane"

    def __init__(self, number: int, before: Value, lane: list[int]) -> None:
        self.number, self.before, self.lane = number, before, lane
        self.after = self.leaves = _UNTOLD


class MessageEncoder:
    """Writes a rank's messages into a ring.  values: whether events hold tensors, and so are written one by one."""

    def __init__(self, ring: RingWriter, rank: int, values: bool) -> None:
        self._ring, self._rank, self._values = ring, rank, values
        self.off = False  # nothing is written any more
        self._queue: deque[messages.Message] = deque()
        self._lock = threading.Lock()
        self._signatures: dict[tuple, _Signature] = {}  # written in this segment
        self._number = self._number_before = 0  # of the last signature, and of the last before this segment
        self._alike: dict[Event, _Signature] = {}  # by an earlier event, written in this segment
        self._under_way: dict[int, _Signature] = {}  # by index
        self._lanes: dict[tuple, list[int]] = defaultdict(lambda: [0])  # see Event.lane -> calls made of it
        self._made = 0  # calls
        self._step = 0  # training steps that it has ended, as last written
        self._works: dict[Hashable, int | None] = {}  # that have begun, and not ended
        self._with_text = cache(with_text)
        self._ring.put(self._line(self._anew()))

    def tell(self, message: messages.Message) -> None:
        """Write a message. It may come from any thread, and from a signal handler in the middle of another."""
        self._queue.append(message)
        while self._queue and not self.off and self._lock.acquire(blocking=False):  # else its holder writes this too
            try:
                while self._queue:
                    self._tell(self._queue.popleft())
            finally:
                self._lock.release()

    def _tell(self, message: messages.Message) -> None:
        if self._ring.left < _ROOM:
            self._turn()
        kind = type(message)
        if kind is messages.Again:
            self._again(message)
        elif kind is messages.Called:
            self._call(message.event)
        elif kind is messages.Completed:
            self._done(message)
        elif kind is messages.Issued:
            self._issued(message)
        elif kind is messages.Waiting and message.thread == MAIN:
            self._ring.put(WAITED.pack(WAIT, message.index, message.since, message.limited))
        else:
            if kind is messages.WorkBegan:
                self._works[message.work] = message.index
            elif kind is messages.WorkEnded:
                self._works.pop(message.work, None)
            self._write(lines.of_message(message, self._with_text))

    def _call(self, e: Event) -> None:
        if e.step != self._step:
            self._write(["step", e.step], _ROOM)
            self._step = e.step
        key = None if self._values else _shared_fields(e)
        signature = self._signatures.get(key)
        if signature is None or signature.before != e.before:
            lane = [0] if e.is_from_anyone else self._lanes[e.lane]
            if key is None:
                signature = _Signature(0, None, lane)
                self._write(lines.of_call(e, self._with_text))
            else:
                self._number += 1
                signature = _Signature(self._number, e.before, lane)
                self._write(lines.of_signature(self._number, e, self._with_text), _ROOM)
                self._signatures[key] = signature
        if key is not None:
            self._number_call(signature, e.index, e.start)
        signature.lane[0] += 1  # only now: a segment that begins meanwhile lists the calls before it
        self._made = e.index + 1

    def _again(self, m: messages.Again) -> None:
        signature = self._alike.get(m.like)
        if signature is None or m.step != self._step:
            self._call(m.event)
            self._alike[m.like] = self._under_way[m.index]
        else:
            self._number_call(signature, m.index, m.start)
            signature.lane[0] += 1
            self._made = m.index + 1

    def _number_call(self, signature: _Signature, index: int, start: float) -> None:
        """Write a call by its signature's number."""
        self._under_way[index] = signature
        self._ring.put(CALLED.pack(CALL, signature.number, index, start))

    def _done(self, m: messages.Completed) -> None:
        signature = self._under_way.pop(m.index, None)
        if signature is None or m.end is None or m.src is not None:
            self._write(lines.of_message(m, self._with_text))
            return
        if self._has(signature, "after", m.after):
            self._ring.put(COMPLETED.pack(END, m.index, m.end, m.waited))
        else:
            self._write(lines.of_message(m, self._with_text))

    def _issued(self, m: messages.Issued) -> None:
        signature = self._under_way.get(m.index)
        if signature is not None and self._has(signature, "leaves", m.after):
            self._ring.put(LEFT.pack(ISSUED, m.index, m.at))
        else:
            self._write(lines.of_message(m, self._with_text))

    def _has(self, signature: _Signature, name: str, value: Value) -> bool:
        """Whether a signature's after or leaves is written as value: before, or now, if this segment has its number."""
        told = getattr(signature, name)
        if told is value or told == value:
            return True
        if signature.number <= self._number_before or not self._fits([name, signature.number, value]):
            return False
        setattr(signature, name, value)
        return True

    # --- lines and segments ---------------------------------------------------------------

    def _write(self, line: list, room: int = 0) -> None:
        """Write a line, with `room` bytes left after it in its segment."""
        record = self._line(line)
        if self._ring.left < len(record) + room:
            self._turn()
        if self._ring.left < len(record) + room:  # a line that no segment holds: values of many tensors
            record = self._line(lines.without_values(line))
        self._ring.put(record)

    def _fits(self, line: list) -> bool:
        """Write a line if this segment has room for it, and for a record after it."""
        record = self._line(line)
        if fits := self._ring.left >= len(record) + _ROOM:
            self._ring.put(record)
        return fits

    def _line(self, line: list) -> bytes:
        text = lines.encode_line([self._rank, *line])
        return LENGTH.pack(LINE, len(text)) + text

    def _turn(self) -> None:
        """Begin the next segment."""
        self._signatures.clear()
        self._alike.clear()
        self._number_before = self._number
        self._ring.turn(lambda: not self.off)
        self._ring.put(self._line(self._anew()))

    def _anew(self) -> list[Any]:
        """The summary of all records until now, for a reader that lacks some."""
        lanes = list(self._lanes.items())[-MAX_LANES:]
        return lines.anew(self._made, [(lane, made) for lane, (made,) in lanes], list(self._works.items()), self._step)
