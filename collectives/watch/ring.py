"""Memory that a rank writes its messages into, and that outlives it: its last calls can be read whatever ended it.

It is a file without a name, which the rank hands to the collector of its host.  Records follow each other in SEGMENTS
segments, which are used in turn.  A record is within one segment, and each segment can be read without the earlier
ones: its first record sums them up (message_encoder.py).  So if the reader falls behind, the oldest segment is lost, and
never the newest.

The header's words, of 8 bytes each, are TURN (segments that the writer has begun, but for the first), READ (segments
that the reader is done with) and SEGMENT_BYTES; from PUBLISHED on, there is one for each segment.  Its bits are, from
the lowest on, the checksum of the records in it, their bytes, whether it is CLOSED, and the turn, modulo TURNS.

A processor may show one process's stores to another in a different order (ARM does), and Python has no barrier against
that.  So nothing relies on the order: the reader takes records only if their checksum is right.  If it's wrong, they are
still arriving, or are being overwritten, and the reader looks again later.  If it's still wrong after DAMAGED_SECONDS,
the records are damaged, and are lost with the rest of their segment.
"""

import mmap
import os
import tempfile
import time
from typing import Callable
from zlib import crc32

SEGMENTS = 4
HEADER_BYTES = 64
TURN, READ, SEGMENT_BYTES, _, PUBLISHED = range(5)
NBYTES_SHIFT, TURN_SHIFT = 32, 57
CHECKSUM, MAX_NBYTES, CLOSED_BIT, TURNS = (1 << 32) - 1, (1 << 24) - 1, 1 << 56, 1 << 7
HOLD_SECONDS = 5.0  # that the program waits for the reader, all in all
DAMAGED_SECONDS = 1.0  # a processor needs less than a millionth of that to show what it has stored


def anonymous(nbytes: int) -> int:
    """The descriptor of a file in memory, of zeros, that is gone once no process has it open."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("collectives")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, nbytes)
    return descriptor


class RingWriter:
    """The rank's end.  left: bytes left in this segment; a record that does not fit begins the next, with turn()."""

    def __init__(self, segment_bytes: int) -> None:
        nbytes = HEADER_BYTES + SEGMENTS * segment_bytes
        self.descriptor = anonymous(nbytes)
        memory = memoryview(mmap.mmap(self.descriptor, nbytes))
        self._words, self._memory = memory[:HEADER_BYTES].cast("Q"), memory[HEADER_BYTES:]
        self._words[SEGMENT_BYTES] = self._segment = segment_bytes
        self._hold = HOLD_SECONDS
        self._begin(0)

    def _begin(self, turn: int) -> None:
        self._turn, self._at, self.left = turn, turn % SEGMENTS * self._segment, self._segment
        self._published = PUBLISHED + turn % SEGMENTS
        self._checksum = 0
        self._empty = (turn % TURNS << TURN_SHIFT) - (self._at << NBYTES_SHIFT)  # the word, when _at is added to it

    def put(self, record: bytes) -> None:
        """Append a record, of at most `left` bytes."""
        size, at = len(record), self._at
        end = at + size
        self._memory[at:end] = record
        self._checksum = checksum = crc32(record, self._checksum)  # an interrupt comes before it or after all of these
        self._at = end
        self.left -= size
        self._words[self._published] = self._empty + (end << NBYTES_SHIFT) | checksum

    def turn(self, is_read: Callable[[], bool] = lambda: True) -> None:
        """Continue in the next segment. Waits for the reader if it holds unread records, HOLD_SECONDS in all."""
        self._words[self._published] |= CLOSED_BIT
        turn, began = self._turn + 1, time.perf_counter()
        while self._words[READ] <= turn - SEGMENTS and self._hold > 0 and is_read():
            time.sleep(0.001)
            now = time.perf_counter()
            self._hold, began = self._hold - (now - began), now
        self._words[TURN] = turn
        self._begin(turn)


class RingReader:
    """The collector's end."""

    def __init__(self, descriptor: int) -> None:
        """Takes over the descriptor. Raises ValueError if no RingWriter made it."""
        try:
            self._map = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        memory = memoryview(self._map)
        if len(memory) < HEADER_BYTES:
            raise ValueError("this memory is not a ring")
        self._words, self._memory = memory[:HEADER_BYTES].cast("Q"), memory[HEADER_BYTES:]
        self._segment = self._words[SEGMENT_BYTES]
        if not 0 < self._segment <= MAX_NBYTES or len(memory) != HEADER_BYTES + SEGMENTS * self._segment:
            raise ValueError("this memory is not a ring")
        self._lost = False  # records before the next ones
        self._begin(0)

    def _begin(self, turn: int) -> None:
        self._turn, self._words[READ] = turn, turn
        self._nbytes = self._checksum = 0  # of the records read in this segment
        self._wrong_since: float | None = None

    def read(self, is_over: bool = False) -> list[tuple[bytes, bool]]:
        """The records that have come, in pieces of one segment, and whether some before the piece were lost.

        An empty piece means damaged records.  is_over: the writer has ended, so a wrong checksum stays wrong.
        """
        pieces = []
        while True:
            word, oldest = self._words[PUBLISHED + self._turn % SEGMENTS], self._words[TURN] + 1 - SEGMENTS
            has_begun = word >> TURN_SHIFT == self._turn % TURNS
            if has_begun and (piece := self._piece(word)) is not None:
                if piece:
                    pieces.append((piece, self._lost))
                    self._lost = False
                if not word & CLOSED_BIT:
                    return pieces
                self._begin(self._turn + 1)
            elif oldest > self._turn:  # overtaken
                self._lost = True
                self._begin(oldest)
            elif has_begun and (is_over or self._stays_wrong()):
                pieces.append((b"", True))
                self._lost = True
                self._begin(self._turn + 1)
            else:
                return pieces

    def _piece(self, word: int) -> bytes | None:
        """The unread records of this segment, up to the length in its word; None if they are not all there."""
        nbytes, checksum = word >> NBYTES_SHIFT & MAX_NBYTES, word & CHECKSUM
        begin = self._turn % SEGMENTS * self._segment
        piece = bytes(self._memory[begin + self._nbytes : begin + nbytes])
        if not self._nbytes <= nbytes <= self._segment or crc32(piece, self._checksum) != checksum:
            return None
        self._nbytes, self._checksum, self._wrong_since = nbytes, checksum, None
        return piece

    def _stays_wrong(self) -> bool:
        now = time.monotonic()
        self._wrong_since = self._wrong_since or now
        return now > self._wrong_since + DAMAGED_SECONDS

    def close(self) -> None:
        for view in (self._words, self._memory):
            view.release()
