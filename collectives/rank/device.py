"""The part of a Tracer for calls that a device carries out later, in a stream: their marks, graphs, batches and ends.

NCCL's calls return once they are in a stream, and `Work.wait()` makes another stream wait, not this process. So a rank
is through with such a call when it is issued, and its end can only be seen by asking, without waiting for it.
"""

from __future__ import annotations

import threading
import time
import warnings
from typing import Any, Callable, NamedTuple

import torch
from torch.distributed import ProcessGroup, Work

from ..log.event import Event, Value
from ..log.messages import Completed, Issued, Resumed, Waiting
from . import threads, torch_private
from .tensors import outline
from .traced import Part, TracedWork

ASK_SECONDS = 0.0002  # between two looks at a device that is waited for
CAPTURE_SECONDS = 10.0  # after a call that went into a graph, in which more may follow
NOT_READ = (
    "tensors on a device are recorded by shape and dtype alone: to read their values would make each call wait for its "
    "stream, and the program a different one"
)


class Streams(NamedTuple):
    """How a kind of device is asked. Neither function waits.

    mark: makes an object whose query() is whether all that is in the device's current stream now has been carried out.
    capturing: whether calls go into a graph now, to be carried out when that is replayed.
    """

    mark: Callable[[torch.device], Any]
    capturing: Callable[[], bool]


def _event(device: torch.device) -> torch.Event:
    event = torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    return event


def _cuda_event(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


KINDS = {"cuda": Streams(_cuda_event, torch.cuda.is_current_stream_capturing)}  # other accelerators: _GENERIC
_GENERIC = Streams(_event, lambda: False)


def streams_of(device: torch.device) -> Streams | None:
    """The streams of a device; None for the CPU, whose calls are waited for."""
    return KINDS.get(device.type) or (None if device.type == "cpu" else _GENERIC)


class Device:
    """Of a tracer, which loads it with the first such call."""

    streams = staticmethod(streams_of)

    def __init__(self, tracer) -> None:
        self._tracer = tracer
        self._warns = tracer.capture is not outline and tracer.rank == 0  # once
        # Calls that a stream has, by index in the order of their calls: asks whether each is through.
        self._left: dict[int, Callable[[], bool]] = {}
        # Set if the last call or wait went into a graph, and asks whether one is still captured: until then, no call's
        # end may be asked for.
        self._capturing: Streams | None = None
        self._captured_at = 0.0
        self._batches: dict[tuple[int, str], list[Part]] = {}  # (thread, group name) -> calls of its batch

    # --- issuing ------------------------------------------------------------------------

    def wait_in(self, event: Event, issue: Callable):
        """The operator's own result. A group's first call may wait in it, until all ranks have made it."""
        self._tracer.emit(Waiting(event.index, self._tracer.now(), False, threads.here.work))
        try:
            return issue()
        except BaseException:
            self._tracer.emit(Resumed())
            raise

    def read(self, value: Value, captured: bool, scratch: bool) -> Value:
        """A call's tensors as they are reported: their values only where the call is waited for anyway."""
        if captured or not self._tracer.waits:
            if self._warns and not captured and value is not None:
                self._warns = False
                warnings.warn_explicit(NOT_READ, UserWarning, "collectives", 0)
            return outline(value)
        return self._tracer.capture(value, scratch=scratch)

    def took(
        self, event: Event, outputs: Value, device: torch.device | None, streams: Streams | None, waited: bool
    ) -> None:
        """Report a call that returned no Work: it's part of a batch, or a synchronous one, which the stream has.

        waited: whether it has waited for the device.
        """
        batch = self._batches.get((threading.get_ident(), event.group_name))
        if batch is not None:  # NCCL starts its calls, and they are waited for, as one
            batch.append(Part(event.index, outputs))
        elif waited:
            self._tracer.emit(Completed(event.index, None, self._tracer.now(), True, None))
        else:  # of a batch that C++ makes, not all calls are in the stream yet
            whole = not event.async_op and not event.is_message
            self._leave([Part(event.index, outputs)], event.captured, device, streams if whole else None)

    def start_batch(self, group: ProcessGroup, device_type: torch.device) -> None:
        torch_private.start_coalescing(group, device_type)
        self._batches[threading.get_ident(), group.group_name] = []

    def end_batch(self, group: ProcessGroup, device_type: torch.device) -> Work | None:
        """The Work of all calls since start_batch."""
        try:
            work = torch_private.end_coalescing(group, device_type)
        finally:
            parts = self._batches.pop((threading.get_ident(), group.group_name), [])
        if not parts:
            return work
        streams = streams_of(device_type)
        if work is None:
            self._leave(parts, bool(self._capturing), device_type, streams)
            return None
        tracer = self._tracer
        traced = TracedWork(tracer, work, parts, device_type, streams, by_torch=True)
        traced.captured = bool(self._capturing)
        traced.gives_up = bool(streams) and not tracer.waits or tracer.groups.has_short_timeout(group)
        tracer.open[traced.index] = traced
        return traced

    # --- left to a stream -----------------------------------------------------------------

    def waited(self, traced: TracedWork) -> None:
        """Report what the return of a wait means: the call's end, or that a stream waits for it."""
        capturing = self.captures(traced.streams)
        if not capturing and not traced.captured and traced.inner.is_completed():
            self._tracer.done(traced)
        elif not traced.told:  # a mark that is set in a graph could not be asked
            self.left(traced, traced.inner.is_completed if capturing else None)

    def left(self, traced: TracedWork, is_through: Callable[[], bool] | None = None) -> None:
        """Report once that the rank is through with a call, which its stream has."""
        tracer = self._tracer
        with tracer.lock:
            if traced.told:
                return
            tracer.close(traced, True)
        for part in traced.parts:
            tracer.watch.remove(part.index)
        self._leave(traced.parts, traced.captured, traced.device, traced.streams, is_through)
        traced.parts = [Part(part.index, None) for part in traced.parts]

    def _leave(
        self,
        parts: list[Part],
        captured: bool,
        device: torch.device | None,
        streams: Streams | None,
        is_through: Callable[[], bool] | None = None,
    ) -> None:
        """Report that calls are in a stream, and remember how to ask for their end.

        is_through: asks for it. By default, all that is in the device's stream now must have been carried out.
        """
        if streams and not captured and is_through is None:
            is_through = streams.mark(device).query
            if self._tracer.waits:
                return self._wait_for(parts, is_through)
        for part in parts:
            self._tracer.emit(Issued(part.index, outline(part.outputs), self._tracer.now()))
            if is_through and not captured:
                self._left[part.index] = is_through

    def _wait_for(self, parts: list[Part], is_through: Callable[[], bool]) -> None:
        tracer = self._tracer
        for part in parts:
            tracer.emit(Waiting(part.index, tracer.now(), False, threads.here.work))
        while not is_through():
            time.sleep(ASK_SECONDS)
        for part in parts:
            with torch_private.NoModes():
                tracer.emit(Completed(part.index, tracer.capture(part.outputs), tracer.now(), True, None))

    # --- asking for ends ------------------------------------------------------------------

    def ask_oldest(self) -> None:
        """Report the end of calls that are through by now, up to the oldest that is not. Never waits."""
        if not self._left:
            return
        with self._tracer.lock:
            while self._left and not self._capturing:
                index, is_through = next(iter(self._left.items()))
                if not _has_ended(is_through):
                    break
                self._end(index)

    def ask(self) -> None:
        """Report the end of every call that is through. Needs the tracer's lock."""
        for index, is_through in list(self._left.items()):
            if _has_ended(is_through):
                self._end(index)

    def end(self, parts: list[Part]) -> None:
        """Report the end of those calls that a stream still had."""
        for part in parts:
            self._end(part.index)

    def _end(self, index: int) -> None:
        tracer = self._tracer
        if self._left.pop(index, None):
            tracer.emit(Completed(index, None, tracer.now(), True, None))
            if tracer.finite:
                tracer.finite.on_complete(index)

    # --- graphs ---------------------------------------------------------------------------

    def captures(self, streams: Streams) -> bool:
        """Whether this thread's calls go into a graph now: then nothing may be asked, and no mark be set."""
        self._capturing = streams if streams.capturing() else None
        if self._capturing:
            self._captured_at = self._tracer.now()
        return self._capturing is not None

    def in_capture(self) -> bool:
        """Whether more calls may follow into a graph, so nothing may be asked."""
        return bool(self._capturing) and self._tracer.now() - self._captured_at < CAPTURE_SECONDS

    def end_capture(self) -> None:
        """Allow questions again, unless a graph is being captured at this moment."""
        if self._capturing and not self._capturing.capturing():
            self._capturing = None


def _has_ended(is_through: Callable[[], bool]) -> bool:
    """Whether a call is through. If the device failed, the program's next call raises."""
    try:
        return is_through()
    except RuntimeError:
        return False
