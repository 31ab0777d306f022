"""The learner's lines: the one behind a call, the innermost one in a rank's stack, and their text."""

import functools
import inspect
import linecache
import os
import re
import sys
import sysconfig
import threading
from types import FrameType
from typing import Iterable

from ..log.event import Line
from . import torch_private
from .own import passes_on

_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_WORK = os.path.join(os.path.dirname(os.path.dirname(__file__)), "launch", "work.py")  # calls the learner's function
_BETWEEN = {  # files of the frames between a program and the kernel
    os.path.join(os.path.dirname(__file__), file) for file in ("early_use.py", "point_to_point.py", "callsites.py")
}
_DEPRECATED = "-packages" + os.sep + "typing_extensions.py"
# A complete stack as faulthandler writes it: down to the line that started the server, or to where it gives up.
STACK = re.compile(r'Stack \(most recent call first\):\n((?:  File .*\n)*?)  (?:File "<string>".*|\.\.\.)\n')
FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')


@functools.cache
def owner(file: str) -> str:
    """The owner of a source file: "torch", "rank" (launch/work.py), "other" (whatever passes calls on) or "learner"."""
    if file.startswith(torch_private.FOLDER):
        return "torch"
    if file == _WORK:
        return "rank"
    if (
        passes_on(file)
        or file.startswith(("<frozen", "<eval_with_key>"))
        or file.endswith(_DEPRECATED)
        or torch_private.COMPILED in file
        or (file.startswith(_STDLIB) and "-packages" not in file)
    ):
        return "other"
    return "learner"


def is_learners(file: str) -> bool:
    """Whether a source file is the learner's own, rather than torch's, Python's or one that passes calls on."""
    return owner(file) == "learner"


def learners_call(elsewhere: Line | None = None) -> tuple[Line | None, str | None, FrameType | None]:
    """The learner's line that led here, the name of the torch function that it called, and the line's frame.

    The line is the learner's innermost. The function is torch's outermost above it: the one that the learner called,
    not one that it called in turn.
    elsewhere: the line that handed this work to this thread, for a thread that runs only torch's code. Without it, such
    a thread belongs to C++ (autograd's, gloo's) and works for the main thread: both are then the main thread's.
    """
    line, entry, frame = _walk(sys._getframe(1))
    if frame is None and elsewhere is not None:
        return elsewhere, entry, None
    if frame is None and (main := sys._current_frames().get(threading.main_thread().ident)):
        return _walk(main)
    return line, entry, frame


def python_caller() -> FrameType | None:
    """The frame that called into C++, where C++ called the kernel of a recorder that calls this; None in a thread of
    C++ alone. Autograd's threads for a GPU are of that kind, and so are all that make DDP's calls there."""
    frame = sys._getframe(2).f_back  # that of kernel._kernel; before it this function's, and Tracer._called's
    while frame is not None and frame.f_code.co_filename in _BETWEEN:  # the mode, or what replaces a method of torch
        frame = frame.f_back
    return frame


def _walk(frame: FrameType | None) -> tuple[Line | None, str | None, FrameType | None]:
    """The learner's line, the torch function it called, and the frame that ended the search (the learner's or work's)."""
    line = entry = wrapper = None
    while frame is not None:
        code = frame.f_code
        whose = owner(code.co_filename)
        if whose == "learner":
            line = Line(code.co_filename, frame.f_lineno, code.co_name)
        if whose == "learner" or whose == "rank":
            break
        # A function defined inside another is a decorator's wrapper or a hook: the learner can't call it by name.
        if whose == "torch" and code.co_flags & inspect.CO_NESTED:
            wrapper = frame
        elif whose == "torch":
            entry = frame
        frame = frame.f_back
    return line, _name(entry or wrapper), frame


def _name(frame: FrameType | None) -> str | None:
    """'all_reduce', 'Tensor.backward', 'DistributedDataParallel.forward', 'DTensor.matmul'"""
    if frame is None:
        return None
    code = frame.f_code
    if code.co_filename in torch_private.DISPATCHERS:
        return torch_private.dispatched(frame)  # the learner's line used an operator: `a @ b`, `a.relu()`
    name = code.co_name
    if "self" not in code.co_varnames:
        return name
    me = frame.f_locals.get("self")
    return f"{type(me).__name__}.{'forward' if name in torch_private.CALL_A_MODULE else name}"


# --- lines of a stack ---------------------------------------------------------------------


def with_text(line: Line | None) -> Line | None:
    """The line with its source text, which only the notebook's kernel has for cells."""
    if line is None or line.text:
        return line
    return line._replace(text=linecache.getline(line.file, line.number).strip())


def last_place(stderr: str) -> tuple[Line | None, list[str]] | None:
    """innermost() of the last stack in this text; None if no stack is complete yet."""
    if not (stacks := STACK.findall(stderr)):
        return None
    return innermost(Line(file, int(number), name) for file, number, name in FRAME.findall(stacks[-1]))


def innermost(frames: Iterable[Line]) -> tuple[Line | None, list[str]]:
    """The learner's line in a stack, innermost frame first, and the functions above it."""
    inside: list[str] = []
    for line in frames:
        if is_learners(line.file):
            return line, inside
        inside.append(line.function)
    return None, inside
