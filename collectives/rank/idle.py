"""Notices that the main thread waits inside autograd's C++, where no Python code can tell of it.

DistributedDataParallel starts its all_reduces during the backward pass, and waits for their futures at its end, in C++.
If a call can never complete, the rank hangs there, and nobody has told that it waits.  From outside a wait looks like
work, but for one thing: it takes no processor time.  So once a future has been asked for, a thread samples the main
thread.  In SAMPLES samples on end, PERIOD_SECONDS apart, its innermost Python function must have been autograd's entry
into C++ (no hook of the program's was running), and the whole process, this thread apart, must have used less than
BUSY_SECONDS of processor time in each period.  That this thread got the processor each time shows that the process was
neither stopped nor starved.  The kernel calls the rank stuck only if, besides, none of the calls whose futures were
asked for can complete any more.
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
        """Sample from now on, in a thread that the program does not see among its own."""
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
            del frame  # it holds the program's variables
