"""Which warnings of a rank the learner sees.

torch warns its callers, and as often itself: that one of its parts uses another that is deprecated,
or what one of them assumed. A learner can do nothing about these, and each rank prints them. So:

1. A warning stays if it is put down to a line of the learner's: one that they raise, one of
   compiled code which that line called, one whose stacklevel blames that line.
2. A deprecation stays if the learner's line called the deprecated function itself, be it through
   decorators, to which stacklevel then points. Any other deprecation is torch's own affair.
3. Any other warning stays, for it speaks of what was passed in (mse_loss with shapes that
   broadcast), unless torch.distributed, torch.jit or a private module of torch raises it.

Compiling a model, torch logs that it skips its profiler's marks. That stays unsaid: most are its own.
"""

import inspect
import logging
import os
import sys
import warnings
from types import FrameType

from .callers import is_learners, owner
from .torch_private import CONTEXT_LOG, CONTEXT_SKIPPED, FOLDER

_DEPRECATIONS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
_INSIDE = tuple(FOLDER + name for name in ("distributed" + os.sep, "jit" + os.sep, "_"))
_TORCH_WARNS_BY = (os.path.basename(warnings.__file__), "typing_extensions.py")


def install() -> None:
    """Print warnings as text alone, by the rule above."""
    warnings.formatwarning = lambda message, category, *_: f"{category.__name__}: {message}\n"
    warnings.simplefilter("default")
    show = warnings.showwarning

    def show_if(message, category, filename, lineno, file=None, line=None) -> None:
        if stays(category, filename, sys._getframe(1)):
            show(message, category, filename, lineno, file, line)

    warnings.showwarning = show_if
    logging.getLogger(CONTEXT_LOG).addFilter(lambda record: not str(record.msg).startswith(CONTEXT_SKIPPED))


def stays(category: type[Warning], file: str, frame: FrameType | None) -> bool:
    """Whether a warning is shown.

    file: the source file that it is put down to.  frame: of the function that shows it.
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
