"""The work of a call, counted: what a test of size asserts, for times differ from machine to machine."""

import sys
import tracemalloc


def lines(fn, *args) -> int:
    """The number of lines of the library and the course that a call executes in this thread."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if not frame.f_globals.get("__name__", "").startswith(("collectives.", "helpers.")):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        fn(*args)
    finally:
        sys.settrace(before)
    return count


def peak(fn, *args) -> int:
    """The most bytes that Python held at a time for a call, its result included."""
    tracemalloc.start()
    try:
        fn(*args)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
