"""A rank's records, as message_encoder.py writes them into its ring, read: messages, and the lines of the job's record."""

from __future__ import annotations

import json
from typing import Iterator

from ..log import messages
from ..log.event import MAIN
from . import lines
from .message_encoder import CALL, CALLED, COMPLETED, END, FULL, ISSUED, LEFT, LENGTH, LINE, WAIT, WAITED

_TRUTH = b"false", b"true"


class MessageDecoder(lines.Reader):
    """Decodes one rank's records."""

    def __init__(self, rank: int, shift: float) -> None:
        super().__init__(rank)
        self.shift = shift
        self.is_deaf = False  # some records were damaged, so the following ones make no sense, up to the next segment
        self._whole = b'[%d,"call",%%d,%%d,%%.7f]\n[%d,"waiting",%%d,%%.7f,false,"main"]\n[%d,"done",%%d,%%.7f,%%s]'
        self._whole %= rank, rank, rank
        self._anew = b'[%d,"anew",' % rank
        self._told: dict[int, list[bytes]] = {}  # the lines of each signature that may be used again

    def hear(self, piece: bytes, lost: bool) -> Iterator[tuple[bytes, messages.Message | None]]:
        """The lines of some records, each with its message if it is one; a complete call's three lines come as one.

        lost: whether records between the last piece and this one are missing.  An empty piece: some are damaged.
        """
        if self.is_deaf:
            if not piece.startswith(self._anew, LENGTH.size):
                return
            self.is_deaf, lost = False, True
        try:
            if not piece:
                raise ValueError("damaged")
            yield from self._hear(piece, lost)
        except Exception:
            self.is_deaf = True

    def _hear(self, piece: bytes, lost: bool) -> Iterator[tuple[bytes, messages.Message | None]]:
        rank, at, beyond = self._rank, 0, len(piece)
        while at < beyond:
            kind = piece[at]
            if kind == CALL:
                if at + FULL.size <= beyond:
                    told = FULL.unpack_from(piece, at)
                    _, number, index, start, wait, waiting, since, limited, done, ended, end, waited = told
                    if wait == WAIT and done == END and waiting == ended == index and not limited:
                        at += FULL.size
                        text = self._whole % (index, number, start, index, since, index, end, _TRUTH[waited])
                        yield text, self.whole(index, number, start, since, end, waited)
                        continue
                _, number, index, start = CALLED.unpack_from(piece, at)
                at += CALLED.size
                yield b'[%d,"call",%d,%d,%.7f]' % (rank, index, number, start), self.called(index, number, start)
            elif kind == WAIT:
                _, index, since, limited = WAITED.unpack_from(piece, at)
                at += WAITED.size
                line = b'[%d,"waiting",%d,%.7f,%s,"main"]' % (rank, index, since, _TRUTH[limited])
                yield line, self.waiting(index, since, limited, MAIN)
            elif kind == END:
                _, index, end, waited = COMPLETED.unpack_from(piece, at)
                at += COMPLETED.size
                line = b'[%d,"done",%d,%.7f,%s]' % (rank, index, end, _TRUTH[waited])
                yield line, self.done(index, end, waited)
            elif kind == ISSUED:
                _, index, issued = LEFT.unpack_from(piece, at)
                at += LEFT.size
                yield b'[%d,"issued",%d,%.7f]' % (rank, index, issued), self.issued(index, issued)
            elif kind == LINE:
                _, length = LENGTH.unpack_from(piece, at)
                at += LENGTH.size + length
                yield from self._line(piece[at - length : at], lost)
            else:
                raise ValueError(f"no record begins with {kind}")

    def _line(self, line: bytes, lost: bool) -> Iterator[tuple[bytes, messages.Message | None]]:
        _, kind, *rest = json.loads(line)
        if kind == "anew":
            self.signatures.clear()
            self._told.clear()
            if not lost:
                return
            kind = "skipped"
            line = lines.encode_line([self._rank, kind, *rest])
        elif kind == "signature":
            self._told[rest[0]] = [line]
        elif kind in ("after", "leaves"):
            told = self._told[rest[0]]
            told[1:] = [line, *(other for other in told[1:] if json.loads(other)[1] != kind)]
        messages = self.read(kind, *rest)
        yield line, messages[0] if messages else None

    def clock(self) -> bytes:
        """The "clock" line: its clock offset."""
        return lines.encode_line([self._rank, "clock", self.shift])

    def standing(self) -> Iterator[bytes]:
        """The lines without which later ones cannot be read."""
        yield self.clock()
        if self.step:
            yield lines.encode_line([self._rank, "step", self.step])
        for told in self._told.values():
            yield from told
