"""Exceptions that the program catches: what a rank does instead of a call often begins with one.

From Python 3.12 onward sys.monitoring reports them. Older releases have nothing like it that is cheap, so there only
exceptions that leave a function of torch.distributed are seen, through torch's own log of them.
"""

import functools
import logging
import sys
import threading
import traceback
from dataclasses import dataclass
from types import CodeType, TracebackType
from typing import Callable

from ..log.event import Line
from ..log.messages import Caught, Message
from .callers import is_learners, learners_call
from .torch_private import ERROR_LOG

AT_ONCE = 12  # reports of catches at one line between two calls: a `with` and a `try` have two handlers each
CHARACTERS = 300  # of an exception's description
MOST_PLACES = 4096
REMEMBERED = 8  # latest catches, any of which a reraise may still undo
_CONTROL_FLOW = (StopIteration, StopAsyncIteration, GeneratorExit)
_TOOLS = (4, 3)  # numbers that sys.monitoring reserves for no kind of tool


def brief(error: BaseException) -> str:
    """'RuntimeError: CUDA out of memory.'"""
    return traceback.format_exception_only(error)[0].partition("\n")[0][:CHARACTERS]


@functools.cache
def is_programs(file: str) -> bool:
    """Whether a source file is the program's own, rather than a package's: those handle exceptions of their own."""
    return is_learners(file) and "-packages" not in file


@dataclass(slots=True, eq=False)
class _Place:
    """The catches of one kind of exception from one line.

    calls: made before the latest.  times: stretches between two calls that had any.  left: reports left in this one.
    """

    line: Line
    calls: int = -1
    times: int = 0
    left: int = 0
    undone: bool = False  # whether the latest was raised again


class Catches:
    """Reports the exceptions that the program catches.  calls: returns the number of calls that the rank has made."""

    def __init__(self, emit: Callable[[Message], None], calls: Callable[[], int]) -> None:
        self._emit, self._calls = emit, calls
        self._places: dict[tuple[CodeType, int, type], _Place] = {}
        # A `finally`, a `with` and an unsuitable `except` are handlers too, which raise the exception again. Only its id
        # is kept: its traceback would keep the program's tensors.
        self._latest: dict[int, tuple[CodeType, str, _Place]] = {}
        self._lock = threading.RLock()  # a signal handler may catch one, too
        self._tool: int | None = None
        self._handler = _FromLog(self._left_torch)

    def start(self) -> None:
        if sys.version_info >= (3, 12):
            monitoring = sys.monitoring
            self._tool = next((number for number in _TOOLS if monitoring.get_tool(number) is None), None)
            if self._tool is not None:
                monitoring.use_tool_id(self._tool, "collectives")
                monitoring.register_callback(self._tool, monitoring.events.EXCEPTION_HANDLED, self._handled)
                monitoring.register_callback(self._tool, monitoring.events.RERAISE, self._raised_again)
                monitoring.set_events(self._tool, monitoring.events.EXCEPTION_HANDLED | monitoring.events.RERAISE)
        elif ERROR_LOG is not None:
            ERROR_LOG.addHandler(self._handler)

    def take(self, places: dict, latest: dict) -> None:
        """Continue with a different rank's catches, in two dictionaries that are empty at first."""
        self._places, self._latest = places, latest

    def stop(self) -> None:
        if sys.version_info >= (3, 12):
            if self._tool is not None:
                sys.monitoring.set_events(self._tool, 0)
                for event in (sys.monitoring.events.EXCEPTION_HANDLED, sys.monitoring.events.RERAISE):
                    sys.monitoring.register_callback(self._tool, event, None)
                sys.monitoring.free_tool_id(self._tool)
                self._tool = None
        elif ERROR_LOG is not None:
            ERROR_LOG.removeHandler(self._handler)

    def _handled(self, code: CodeType, offset: int, error: BaseException) -> None:
        """A handler in this code takes an exception."""
        if not is_programs(code.co_filename) or isinstance(error, _CONTROL_FLOW):
            return
        entry: TracebackType | None = error.__traceback__
        while entry is not None and entry.tb_frame.f_code is not code:
            entry = entry.tb_next
        if entry is not None:
            with self._lock:
                self._note(error, code, entry.tb_lineno)

    def _raised_again(self, code: CodeType, offset: int, error: BaseException) -> None:
        with self._lock:
            noted_in, words, place = self._latest.get(id(error), (None, "", None))
            if place is None or noted_in is not code:
                return
            del self._latest[id(error)]
            if not place.undone:
                place.times, place.undone = place.times - 1, True
                self._emit(Caught(words, place.line, place.calls, place.times))

    def _left_torch(self, error: BaseException) -> None:
        _, _, frame = learners_call()
        if frame is not None and is_programs(frame.f_code.co_filename):
            with self._lock:
                self._note(error, frame.f_code, frame.f_lineno)

    def _note(self, error: BaseException, code: CodeType, number: int) -> None:
        self._latest.pop(id(error), None)  # of an earlier one, perhaps
        place = self._places.get(key := (code, number, type(error)))
        if place is None:
            if len(self._places) == MOST_PLACES:
                self._places.clear()
            place = self._places[key] = _Place(Line(code.co_filename, number, code.co_name))
        if (calls := self._calls()) != place.calls:
            place.calls, place.left = calls, AT_ONCE
        elif not place.undone or not place.left:
            return
        place.left, place.times, place.undone = place.left - 1, place.times + 1, False
        words = brief(error)
        if len(self._latest) == REMEMBERED:
            del self._latest[next(iter(self._latest))]
        self._latest[id(error)] = code, words, place
        self._emit(Caught(words, place.line, calls, place.times))


class _FromLog(logging.Handler):
    """Reads torch's log of the exceptions that leave its functions, while they do."""

    def __init__(self, note: Callable[[BaseException], None]) -> None:
        super().__init__()
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        if (error := sys.exc_info()[1]) is not None:
            self._note(error)
