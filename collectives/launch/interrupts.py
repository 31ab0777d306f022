"""Interrupts, held back until the message being read has been processed."""

import os
import signal
import threading
from typing import Any


class Interrupts:
    """Hold SIGINT back while messages are read and written, and count it.

    An exception at any moment could lose half a message from the server, and with it the next run.
    Session.outcome raises KeyboardInterrupt afterwards; a handler other than Python's is called at the end.
    """

    def __enter__(self) -> "Interrupts":
        self.count = 0
        self.wakes, self._wake = os.pipe()  # self-pipe: readable once an interrupt came, which ends a wait
        self._usual = None
        # No other thread is interrupted; and a program may ignore SIGINT, as nohup has it do.
        if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
            self._usual = signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, *_: Any) -> None:
        self.count += 1
        os.write(self._wake, b"!")

    def taken_in(self) -> None:
        os.read(self.wakes, 64)

    @property
    def usual(self) -> bool:
        """Whether an interrupt is to become a KeyboardInterrupt."""
        return self._usual is signal.default_int_handler

    def __exit__(self, *_: Any) -> None:
        if self._usual is not None:
            signal.signal(signal.SIGINT, self._usual)
        os.close(self.wakes)
        os.close(self._wake)
        if self.count and not self.usual:
            signal.raise_signal(signal.SIGINT)
