"""The warnings of a rank that the learner sees.

torch warns its callers, and as often itself: that one of its parts uses a deprecated one, or has
made an assumption. A learner can do nothing about these, and each rank prints them. So:

1. A warning stays if it is attributed to a line of the learner's: one that they raise, one of
   compiled code which that line called, one whose stacklevel blames that line.
2. A deprecation stays if the learner's line called the deprecated function itself, possibly through
   decorators, to which stacklevel then points. Any other deprecation concerns torch alone.
3. Any other warning stays, because it concerns the arguments (mse_loss with shapes that
   broadcast), unless torch.distributed, torch.jit or a private module of torch raises it.
4. A key of a parallelize plan that matches no module is named once. torch warns for each module in which a part of the
   key matches nothing: a page of words for a correct wildcard.

When it compiles a model, torch logs that it skips its profiler's marks. This is hidden: most marks are its own.
"""

import inspect
import logging
import os
import sys
import warnings
from fnmatch import fnmatchcase
from types import FrameType

from ..rank.callers import is_learners, owner
from ..rank.torch_private import CONTEXT_LOG, CONTEXT_SKIPPED, FOLDER, PARALLELIZE, PART_UNMATCHED

_DEPRECATIONS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
_INSIDE = tuple(FOLDER + name for name in ("distributed" + os.sep, "jit" + os.sep, "_"))
_TORCH_WARNS_BY = (os.path.basename(warnings.__file__), "typing_extensions.py")


def install() -> None:
    """Print warnings as text alone, by the rule above."""
    warnings.formatwarning = lambda message, category, *_: f"{category.__name__}: {message}\n"
    warnings.simplefilter("default")
    show, named = warnings.showwarning, set()

    def show_if(message, category, filename, lineno, file=None, line=None) -> None:
        if str(message).startswith(PART_UNMATCHED):
            if (key := unmatched_key(sys._getframe(1))) and key not in named:
                named.add(key)
                words = f"the plan's key {key!r} fits no module of the model, so {PARALLELIZE} skips it."
                show(words, category, filename, lineno, file, line)
        elif stays(category, filename, sys._getframe(1)):
            show(message, category, filename, lineno, file, line)

    warnings.showwarning = show_if
    logging.getLogger(CONTEXT_LOG).addFilter(lambda record: not str(record.msg).startswith(CONTEXT_SKIPPED))


def stays(category: type[Warning], file: str, frame: FrameType | None) -> bool:
    """Whether a warning is shown.

    file: the source file that it is attributed to.  frame: the function that shows it.
    """
    if is_learners(file):
        return True
    while frame is not None and os.path.basename(frame.f_code.co_filename) in _TORCH_WARNS_BY:
        frame = frame.f_back
    if frame is None:
        return True
    if issubclass(category, _DEPRECATIONS):
        return _called_directly(frame)
    return not frame.f_code.co_filename.startswith(_INSIDE)


def unmatched_key(frame: FrameType | None) -> str | None:
    """The key of the plan that parallelize_module works on, if it matches no module.

    frame: the function that shows the warning.  torch descends from child to child by recursion: the outermost call
    has the whole key.
    """
    plan = {}
    while frame is not None:
        if frame.f_code.co_name == PARALLELIZE:
            plan = frame.f_locals
        frame = frame.f_back
    key, module = plan.get("module_path"), plan.get("module")
    if key is None or module is None:
        return None
    parts = key.split(".")
    paths = (name.split(".") for name, _ in module.named_modules(remove_duplicate=False))
    fits = any(len(path) == len(parts) and all(map(fnmatchcase, path, parts)) for path in paths)
    return None if fits else key


def _called_directly(frame: FrameType | None) -> bool:
    """Whether the learner's line called the function of this frame, or one that it decorates."""
    entered = 0  # functions of torch, without decorators' wrappers
    while frame is not None and entered < 2:
        whose = owner(frame.f_code.co_filename)
        if whose in ("learner", "rank"):
            return whose == "learner"
        entered += whose == "torch" and not frame.f_code.co_flags & inspect.CO_NESTED
        frame = frame.f_back
    return False
