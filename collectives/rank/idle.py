"""Notices that the main thread is waiting inside autograd's C++, where no Python code can report it.

DistributedDataParallel starts its all_reduces during the backward pass, and waits for their futures at its end, in C++.
If a call can never complete, the rank hangs there without having reported a wait. From outside, waiting looks like
working, except that it takes no processor time. So once a future has been taken, a thread samples the main thread. In
SAMPLES consecutive samples, PERIOD_SECONDS apart, its innermost Python function must have been autograd's entry into
C++ (no hook of the program was running), and the whole process, except for this thread, must have used less than
BUSY_SECONDS of processor time in each period. Since this thread got the processor each time, the process was neither
stopped nor starved. The judge calls the rank stuck only if, in addition, none of the calls whose futures were taken can
complete any longer.
"""

import _thread
import sys
import threading
import time

from ..log.event import MAIN
from ..log.messages import Resumed, Waiting
from . import torch_private

SAMPLES = 4
PERIOD_SECONDS = 0.25
BUSY_SECONDS = 0.002


class Idle:
    """Reports a tracer's open calls as waited for."""

    def __init__(self, tracer) -> None:
        self._tracer = tracer
        self._started = False
        self._pass = -1  # the backward pass whose end is reported

    def future_taken(self) -> None:
        """Called when the future of a call is taken. In a backward pass that is DistributedDataParallel, which waits in
        C++ for all its futures once the graph has been worked through: after what is queued here."""
        self.start()
        if (task := torch_private.backward_task()) not in (-1, self._pass):
            self._pass = task
            torch_private.after_graph(self._waits_in_pass)

    def _waits_in_pass(self) -> None:
        """Report when the main thread began to wait; that isn't evidence of a deadlock."""
        since = self._tracer.now()
        for traced in list(self._tracer.open.values()):
            if traced.asked and traced.since is None:
                traced.since = since
                self._tracer.emit(Waiting(traced.index, since, True, MAIN))

    def start(self) -> None:
        """Start sampling, in a thread that isn't listed among the program's own."""
        if torch_private.IDLING and not self._started:
            self._started = True
            _thread.start_new_thread(self._sample, (threading.main_thread().ident,))

    def _sample(self, main: int) -> None:
        used, still, since = 0.0, 0, 0.0
        while True:
            time.sleep(PERIOD_SECONDS)
            frame = sys._current_frames().get(main)
            before, used = used, time.process_time() - time.thread_time()
            in_autograd = frame is not None and frame.f_code is torch_private.run_backward.__code__
            del frame  # it keeps the program's variables alive
            if in_autograd and used - before < BUSY_SECONDS:
                still += 1
                since = since if still > 1 else self._tracer.now()
                if still == SAMPLES:
                    self._blocked(since)
            else:
                if still >= SAMPLES:
                    self._tracer.emit(Resumed())
                still = 0

    def _blocked(self, since: float) -> None:
        """Report that the main thread has been waiting in C++ since then, for a call whose future was taken."""
        asked = next((t for t in list(self._tracer.open.values()) if t.asked), None)
        if asked is not None:
            self._tracer.emit(Waiting(asked.index, since if asked.since is None else asked.since, False, MAIN))
