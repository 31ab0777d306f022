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
from typing import Callable

from .torch_private import IDLING, run_backward

SAMPLES = 4
PERIOD_SECONDS = 0.25
BUSY_SECONDS = 0.002


class Idle:
    """blocked: called with time.perf_counter() of the first sample; moves: called once that is over."""

    def __init__(self, blocked: Callable[[float], None], moves: Callable[[], None]) -> None:
        self._blocked, self._moves = blocked, moves
        self._started = False

    def start(self) -> None:
        """Start sampling, in a thread that isn't listed among the program's own."""
        if IDLING and not self._started:
            self._started = True
            _thread.start_new_thread(self._sample, (threading.main_thread().ident,))

    def _sample(self, main: int) -> None:
        used, still, since = 0.0, 0, 0.0
        while True:
            time.sleep(PERIOD_SECONDS)
            frame = sys._current_frames().get(main)
            before, used = used, time.process_time() - time.thread_time()
            if frame is not None and frame.f_code is run_backward.__code__ and used - before < BUSY_SECONDS:
                still += 1
                since = since if still > 1 else time.perf_counter()
                if still == SAMPLES:
                    self._blocked(since)
            else:
                if still >= SAMPLES:
                    self._moves()
                still = 0
            del frame  # it keeps the program's variables alive
