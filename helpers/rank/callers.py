"""The learner's line behind a call."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import sysconfig
import threading
from types import FrameType

import torch

from ..record.event import Line

_TORCH = os.path.dirname(torch.__file__) + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # helpers/
_WORK = os.path.join(_HERE, "rank", "work.py")
_DEPRECATED = "-packages" + os.sep + "typing_extensions.py"
_INDUCTOR = os.sep + "torchinductor_"
# From an operator to what carries it out. Nobody calls these, they are called.
_DISPATCHERS = tuple(
    _TORCH + file.replace("/", os.sep)
    for file in ("_ops.py", "_compile.py", "utils/_python_dispatch.py", "distributed/tensor/_dispatch.py")
)


@functools.cache
def owner(file: str) -> str:
    """Whose source file it is: "torch", "rank" (rank/work.py), "other" (passes calls on unseen) or "learner"."""
    if file.startswith(_TORCH):
        return "torch"
    if file == _WORK:
        return "rank"
    if file.startswith((_HERE, "<frozen", "<eval_with_key>")) or file.endswith(_DEPRECATED) or _INDUCTOR in file:
        return "other"
    if file.startswith(_STDLIB) and "-packages" not in file:
        return "other"
    return "learner"


def is_learners(file: str) -> bool:
    """Whether a source file is the learner's own: not torch's, Python's or this package's."""
    return owner(file) == "learner"


def learners_call(elsewhere: Line | None = None) -> tuple[Line | None, str | None, FrameType | None]:
    """The learner's line that led here, the name of the torch function which it called, and the line's frame.

    The line is the innermost of the learner's. The function is the outermost of torch's above it:
    what the learner called, not what that called in turn.
    elsewhere: the line that handed this work to this thread, for a thread that runs torch's alone.
    Without it such a thread is one of C++ (autograd's, gloo's), which works for the main thread:
    then both are the main thread's, at this moment.
    """
    line, entry, frame = _walk(sys._getframe(1))
    if frame is not None:
        return line, entry, frame
    if elsewhere is not None:
        return elsewhere, entry, None
    main = sys._current_frames().get(threading.main_thread().ident)
    return _walk(main) if main is not None else (None, entry, None)


def _walk(frame: FrameType | None) -> tuple[Line | None, str | None, FrameType | None]:
    """The learner's line, the torch function it called, and the frame, learner's or rank's own, that ended the search."""
    entry = wrapper = None
    while frame is not None:
        code = frame.f_code
        whose = owner(code.co_filename)
        if whose == "learner":
            return Line(code.co_filename, frame.f_lineno, code.co_name), _name(entry or wrapper), frame
        if whose == "rank":
            return None, _name(entry or wrapper), frame
        if whose == "torch":
            # A function defined inside another is a decorator's wrapper or a hook: it has no name that one can call.
            if code.co_flags & inspect.CO_NESTED:
                wrapper = frame
            else:
                entry = frame
        frame = frame.f_back
    return None, _name(entry or wrapper), None


def _name(frame: FrameType | None) -> str | None:
    """'all_reduce', 'Tensor.backward', 'DistributedDataParallel.forward', 'DTensor.matmul'"""
    if frame is None:
        return None
    code = frame.f_code
    if code.co_filename in _DISPATCHERS:
        # The learner's line used an operator on a DTensor: `a @ b`, `a.relu()`.
        op = frame.f_locals.get("op_call")
        return None if op is None else f"DTensor.{op.overloadpacket.__name__.strip('_')}"
    name = code.co_name
    if "self" not in code.co_varnames:
        return name
    me = frame.f_locals.get("self")
    return f"{type(me).__name__}.{'forward' if name in ('_wrapped_call_impl', '_call_impl') else name}"
