"""Memory of each local rank that the others write into and read from, while its owner does something else.

All ranks of a group make a Window together, and meet for that once. Its memory is a file that all of them have mapped
and that no longer has a name, so it is gone with the last of them, however they end. (launch/server.py removes one that
a rank left half made.)

A signal is a count, and it means that the puts before it have arrived. A processor may show one process's stores to
another in a different order (ARM does), and Python has no barrier against that. So nothing relies on the order, as in
watch/ring.py: a signal carries a checksum of what was put, and a wait ends when the bytes in memory agree with it. If
they still don't after ARRIVED_SECONDS, a rank has written there since.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
import zlib
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

from ..format import name_ranks
from ..log.event import MAIN, Event
from ..log.messages import Called, Completed, Waiting
from . import threads, torch_private
from .callers import learners_call

if TYPE_CHECKING:
    from .tracer import Tracer

SLOTS = 64  # signals that a rank keeps of each other one; an older one has arrived long ago
WORDS = 2  # per slot, 8 bytes each: the signal's number and its checksum; where its puts begin, and their bytes
CHECKSUM_BITS = NBYTES_BITS = 32
LINE_BYTES = 64  # a rank's memory begins at a multiple
SIGNAL_BYTES = 8
ARRIVED_SECONDS = 0.01  # a processor needs less than a thousandth of that to show what it has stored
NAP_SECONDS = 0.0002  # between two looks for a signal
SUMMARY = struct.Struct("qq32s")  # a rank's window: whether it is there, its elements, and their dtype


class Surroundings(NamedTuple):
    """The run that this rank belongs to."""

    store: str  # by which its ranks meet: a file's path, or the address of a server
    tracer: Tracer | None  # None: nothing is recorded


surroundings: Surroundings | None = None  # set by launch/work.py; None outside a run
_counts: dict[str, int] = {}  # by the name of their group


class Window:
    """`numel` elements of each rank in a group, which the others can write and read at any time.

    local: this rank's elements, a flat tensor on the CPU, at first zeros.  Use it like any other tensor.
    pushed: bytes that this rank has sent by put and signal, and fetched by get, so far.

    Every rank of the group makes it, with the same `numel` and `dtype`, and waits there for the others. From then on, a
    put returns when the bytes are stored, and its target isn't asked and doesn't learn of it, so signal, and let the
    target wait. Ranks are global ones. `run` draws puts, gets and signals as it draws messages.

    Raises RuntimeError outside a run and where ranks share no memory, TypeError and ValueError for arguments that no
    window can have or that differ between ranks.
    """

    def __init__(self, numel: int, dtype: torch.dtype = torch.float32, group: dist.ProcessGroup | None = None) -> None:
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"a window's dtype is one of torch's, like torch.float32, and this is {dtype!r}")
        if not isinstance(numel, int) or isinstance(numel, bool) or numel < 1:
            raise ValueError(f"a window has a number of elements, at least 1, and this is {numel!r}")
        if surroundings is None or not dist.is_initialized():
            raise RuntimeError(
                "a Window is memory that real ranks share: make it in the function that you give to run(), on a "
                "computer where that starts processes."
            )
        if "://" in surroundings.store:
            raise RuntimeError("these ranks are on several hosts, which share no memory: a Window needs one machine.")
        self._group = group or dist.group.WORLD
        self.group = tuple(dist.get_process_group_ranks(self._group))
        self.rank = dist.get_rank()
        if self.rank not in self.group:
            raise ValueError(f"rank {self.rank} isn't in this window's group, {name_ranks(self.group)}")
        number = _counts.get(self._group.group_name, 0)
        _counts[self._group.group_name] = number + 1
        self.name = f"window {number} of {self._group.group_name}"
        self.numel, self.dtype, self.pushed = numel, dtype, 0
        self._map(f"{surroundings.store}.window.{self._group.group_name}.{number}")
        n = len(self.group)
        self._signaled = [0] * n  # by place in the group: signals of this rank to it,
        self._seen = [0] * n  # signals from it that this rank has waited for,
        self._put: list[tuple[int, int] | None] = [None] * n  # and where it has put bytes since its last signal

    def _map(self, path: str) -> None:
        """Map the file of this window. Once all ranks of the group have opened it, it loses its name."""
        n, here = len(self.group), self.group.index(self.rank)
        summary = SUMMARY.pack(1, self.numel, str(self.dtype).encode())
        header = -(-(n * SUMMARY.size) // LINE_BYTES) * LINE_BYTES
        signals = -(-(n * SLOTS * WORDS * 8) // LINE_BYTES) * LINE_BYTES
        size = signals + -(-self.numel * self.dtype.itemsize // LINE_BYTES) * LINE_BYTES
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.pwrite(file, summary, here * SUMMARY.size)
            dist.barrier(group=self._group)
            if here == 0:
                os.unlink(path)
            for place, rank in enumerate(self.group):
                if (summary_there := os.pread(file, SUMMARY.size, place * SUMMARY.size)) != summary:
                    _, numel, dtype = SUMMARY.unpack(summary_there)
                    like = f"{numel} elements of {dtype.rstrip(bytes(1)).decode()}"
                    raise ValueError(
                        f"rank {rank} makes this window with {like}, and rank {self.rank} with {self.numel} elements "
                        f"of {self.dtype}: they must be the same on all ranks."
                    )
            os.ftruncate(file, header + n * size)
            memory = mmap.mmap(file, header + n * size)
        finally:
            os.close(file)
        starts = [header + place * size for place in range(n)]
        self._bytes = memoryview(memory)
        self._slots = [self._bytes[at : at + n * SLOTS * WORDS * 8].cast("Q") for at in starts]
        self._starts = [at + signals for at in starts]
        self._tensors = [torch.frombuffer(memory, dtype=self.dtype, count=self.numel, offset=at) for at in self._starts]
        self.local = self._tensors[here]

    def put(self, tensor: torch.Tensor, rank: int, offset: int = 0) -> None:
        """Write a tensor's elements, in row-major order, into the window of `rank`, from its element `offset` on.

        Raises TypeError for a different dtype, IndexError if they don't fit, ValueError for a rank outside the group.
        """
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"put takes a tensor, and this is a {type(tensor).__name__}")
        if tensor.dtype != self.dtype:
            fix = f"convert it with .to({self.dtype})"
            raise TypeError(f"this window holds {self.dtype}, and the tensor is {tensor.dtype}: {fix}")
        place = self._place(rank, offset, tensor.numel())
        event = self._begin("put", rank, tensor, tensor.nbytes)
        self._tensors[place][offset : offset + tensor.numel()].copy_(tensor.detach().reshape(-1))
        first = offset * self.dtype.itemsize
        begin, end = self._put[place] or (first, first)
        self._put[place] = min(begin, first), max(end, first + tensor.nbytes)
        self._end(event, rank, tensor.nbytes)

    def get(self, rank: int, offset: int = 0, numel: int | None = None) -> torch.Tensor:
        """A copy of `numel` elements of the window of `rank`, from `offset` on; by default of all that follow.

        Nothing keeps others from writing there meanwhile.  Raises IndexError and ValueError as put does.
        """
        numel = self.numel - offset if numel is None else numel
        place = self._place(rank, offset, numel)
        event = self._begin("get", rank, torch.empty(numel, dtype=self.dtype), numel * self.dtype.itemsize)
        copy = self._tensors[place][offset : offset + numel].clone()
        self._end(event, rank, copy.nbytes, copy)
        return copy

    def signal(self, rank: int) -> None:
        """Add one to the count that `rank` waits for, which then has all that this rank has put there before.

        Raises ValueError for a rank that isn't in the group.
        """
        place = self._place(rank)
        self._signaled[place] = number = self._signaled[place] + 1
        event = self._begin("signal", rank, None, SIGNAL_BYTES, number)
        self._end(event, rank, SIGNAL_BYTES)  # reported before anybody can see it
        begin, end = self._put[place] or (0, 0)
        self._put[place] = None
        slots, at = self._slots[place], self._slot(self.group.index(self.rank), number)
        slots[at + 1] = begin << NBYTES_BITS | end - begin
        slots[at] = number << CHECKSUM_BITS | self._checksum(place, number, begin, end)

    def wait(self, rank: int, value: int | None = None) -> None:
        """Wait until `rank` has signaled this one `value` times in all; by default, once more than it has waited for.

        After that, all that it put here before that signal is in `local`.  Raises ValueError for a value below 1 and a
        rank that isn't in the group, RuntimeError for a signal that only this rank could still make.
        """
        place = self._place(rank)
        number = self._seen[place] + 1 if value is None else value
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"wait takes the number of a signal, from 1, and this is {value!r}")
        if number <= self._seen[place]:
            return
        if rank == self.rank and number > self._signaled[place]:
            raise RuntimeError(f"rank {rank} waits for its own signal {number}, which it hasn't made: forever.")
        event = self._begin("wait", rank, None, SIGNAL_BYTES, number)
        if event:
            surroundings.tracer.emit(Waiting(event.index, event.start, False, threads.here.work))
        while not self._has_signaled(place, number):
            time.sleep(NAP_SECONDS)
        for earlier in range(max(self._seen[place], number - SLOTS) + 1, number + 1):
            self._let_arrive(place, earlier)
        self._seen[place] = number
        if event:
            surroundings.tracer.emit(Completed(event.index, None, surroundings.tracer.now(), True, None))

    # --- signals ----------------------------------------------------------------------------

    def _slot(self, source: int, number: int) -> int:
        """Where a signal is among a rank's words.  source: the place of the rank that makes it."""
        return (source * SLOTS + number % SLOTS) * WORDS

    def _has_signaled(self, source: int, number: int) -> bool:
        slots, at = self._slots[self.group.index(self.rank)], self._slot(source, number)
        return slots[at] >> CHECKSUM_BITS >= number

    def _let_arrive(self, source: int, number: int) -> None:
        """Wait until the bytes that a signal is about are those that were put, or have been overwritten since."""
        here = self.group.index(self.rank)
        slots, at = self._slots[here], self._slot(source, number)
        until = time.monotonic() + ARRIVED_SECONDS
        while slots[at] >> CHECKSUM_BITS == number and time.monotonic() < until:
            begin, nbytes = slots[at + 1] >> NBYTES_BITS, slots[at + 1] & (1 << NBYTES_BITS) - 1
            if slots[at] == number << CHECKSUM_BITS | self._checksum(here, number, begin, begin + nbytes):
                return

    def _checksum(self, place: int, number: int, begin: int, end: int) -> int:
        """The checksum of a signal, and of the bytes of a rank's window that it is about."""
        start = self._starts[place]
        return zlib.crc32(self._bytes[start + begin : start + end], zlib.crc32(struct.pack("3q", number, begin, end)))

    # --- arguments, and the record ------------------------------------------------------------

    def _place(self, rank: int, offset: int = 0, numel: int = 0) -> int:
        """The place of a rank in the group, if it's in it and has these elements."""
        if rank not in self.group:
            raise ValueError(f"rank {rank!r} isn't in this window's group, {name_ranks(self.group)}")
        if not 0 <= offset <= offset + numel <= self.numel:
            last = offset + numel - 1
            raise IndexError(f"elements {offset} to {last} aren't there: this window has 0 to {self.numel - 1}")
        return self.group.index(rank)

    def _begin(
        self, op: str, rank: int, tensor: torch.Tensor | None, nbytes: int, number: int | None = None
    ) -> Event | None:
        """The event of an operation on the window of `rank`; None if nothing is recorded, and for this rank's own."""
        tracer = surroundings.tracer
        if tracer is None or rank == self.rank:
            return None
        tracer.report_ended()
        ends = {"src": rank} if op in ("get", "wait") else {"dst": rank}
        with torch_private.NoModes():
            before = None if tensor is None or op == "get" else tracer.capture(tensor)
        event = Event(
            self.rank, 0, op, self.group, **ends, dtype=None if tensor is None else tensor.dtype, before=before,
            shape=() if tensor is None else tuple(tensor.shape), nbytes=nbytes, step=tracer.steps.count,
            line=learners_call(threads.here.given_at)[0], in_thread=threads.here.work not in (MAIN, None),
            group_name=self.name, tag={"put": 0, "get": -1}.get(op, number),
        )  # fmt: skip
        with tracer.lock:
            event.index, tracer.calls = tracer.calls, tracer.calls + 1
            event.start = tracer.now()
            if op == "wait":
                tracer.emit(Called(event))
        return event

    def _end(self, event: Event | None, rank: int, nbytes: int, copy: torch.Tensor | None = None) -> None:
        """Count the bytes of an operation that is over, unless they stayed on this rank, and report it."""
        self.pushed += nbytes * (rank != self.rank)
        if event is None:
            return
        tracer = surroundings.tracer
        with torch_private.NoModes():
            event.after = None if copy is None else tracer.capture(copy)
        event.end, event.waited = tracer.now(), True
        tracer.emit(Called(event))
