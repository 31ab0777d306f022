"""An exception as data: the learner's own frames, the message without noise, the full chain."""

import re
import traceback

from ..log.event import Failure, Line
from .callers import is_learners

# What differs from run to run in some of torch's messages: times, addresses.
NOISE = re.compile(r"^\[rank\d+\]:\[\w\d+ [\d:.]+ [\w.]+:\d+\] | at 0x[0-9a-f]+")


def failure(error: BaseException, started: bool) -> Failure:
    frames = [
        Line(f.filename, f.lineno or 0, f.name, f.line or "")
        for f in traceback.extract_tb(error.__traceback__)
        if is_learners(f.filename)
    ]
    if isinstance(error, SystemExit):
        kind, message = "SystemExit", f"it called sys.exit({'' if error.code is None else repr(error.code)})"
    else:
        kind, message = type(error).__name__, NOISE.sub("", str(error)).strip()
    chain = "".join(traceback.format_exception(error))
    return Failure(kind, message, frames, started, chain)
