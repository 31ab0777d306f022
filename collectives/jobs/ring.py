"""Memory that a rank writes what it does into, and that outlives it: whatever ended the rank, its last calls can be read.

It is a file without a name, which the rank hands to the collector of its host.  Records follow each other in SEGMENTS
segments, which are used in turn.  A record lies within one segment, and each segment can be read without those before
it: its first record says what they came to (teller.py).  So if the reader falls behind, the oldest segment is lost, and
never the newest.

The header's words, of 8 bytes each: WRITTEN, READ and FIRST are positions, in bytes since the beginning; a position
modulo the size is where it lies.  Each has one writer, and is written after what it speaks of.
"""

import mmap
import os
import tempfile
import time
from typing import Callable

SEGMENTS = 4
HEADER_BYTES = 64
WRITTEN, READ, FIRST, SEGMENT_BYTES = range(4)  # FIRST: of the oldest record that is not about to be overwritten
END = 0  # in place of a record: the rest of this segment is empty
HOLD_SECONDS = 5.0  # that the program waits for the reader, all in all


def anonymous(nbytes: int) -> int:
    """The descriptor of a file in memory, of zeros, that is gone when nobody has it open."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("collectives")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, nbytes)
    return descriptor


class RingWriter:
    """The rank's end.  left: bytes left in this segment; what does not fit begins the next, with turn()."""

    def __init__(self, segment_bytes: int) -> None:
        nbytes = HEADER_BYTES + SEGMENTS * segment_bytes
        self.descriptor = anonymous(nbytes)
        memory = memoryview(mmap.mmap(self.descriptor, nbytes))
        self._words, self._memory = memory[:HEADER_BYTES].cast("Q"), memory[HEADER_BYTES:]
        self._words[SEGMENT_BYTES] = self._segment = segment_bytes
        self._position, self._at = 0, 0  # of the next record, and where it lies
        self.left = segment_bytes
        self._hold = HOLD_SECONDS

    def put(self, record: bytes) -> None:
        """Append a record, of at most `left` bytes."""
        size, at = len(record), self._at
        self._memory[at : at + size] = record
        self._at = at + size
        self.left -= size
        self._position += size
        self._words[WRITTEN] = self._position

    def turn(self, is_read: Callable[[], bool] = lambda: True) -> None:
        """Go on in the next segment. Waits for the reader if what it lacks is there, HOLD_SECONDS in all."""
        if self.left:
            self._memory[self._at] = END
        self._position += self.left
        first = self._position + self._segment - SEGMENTS * self._segment
        if first > 0:
            began = time.perf_counter()
            while self._words[READ] < first and self._hold > 0 and is_read():
                time.sleep(0.001)
                now = time.perf_counter()
                self._hold, began = self._hold - (now - began), now
            self._words[FIRST] = first
        self._words[WRITTEN] = self._position
        self._at, self.left = self._position % (SEGMENTS * self._segment), self._segment


class RingReader:
    """The collector's end."""

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor. Raises ValueError for what no RingWriter made."""
        try:
            self._map = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        memory = memoryview(self._map)
        self._words, self._memory = memory[:HEADER_BYTES].cast("Q"), memory[HEADER_BYTES:]
        self._segment = self._words[SEGMENT_BYTES]
        if self._segment == 0 or len(memory) != HEADER_BYTES + SEGMENTS * self._segment:
            raise ValueError("this memory is not a ring")
        self._position = 0

    def read(self) -> list[tuple[bytes, bool]]:
        """The records that have come, in pieces of one segment, and whether some before the piece were lost."""
        pieces, written, lost = [], self._words[WRITTEN], False
        while self._position < written:
            end = min(written, (self._position // self._segment + 1) * self._segment)
            at = self._position % len(self._memory)
            piece = bytes(self._memory[at : at + end - self._position])
            if (first := self._words[FIRST]) > self._position:  # overtaken: this may have been overwritten meanwhile
                self._position, lost = first, True
                continue
            pieces.append((piece, lost))
            self._position, lost = end, False
            self._words[READ] = end
        return pieces

    def close(self) -> None:
        for view in (self._words, self._memory):
            view.release()
