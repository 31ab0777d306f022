"""A kernel in front of every c10d operator, which tells the entered recorder of each call.

All of torch.distributed ends in operators of the c10d namespace, and the dispatcher sends each call of one
through its BackendSelect kernel: from every thread, from C++ (DistributedDataParallel, fully_shard, the functional
collectives), and from inside DTensor's operators.  torch has no such kernel for them, so these take the place.
"""

import functools
from typing import Callable

import torch

from .operators import OPS
from .torch_private import BELOW, RECORDING, destroy, never_compiled

# Called with an operator, its name, the dispatch keys, and the operator's arguments; None: calls are passed on.
recorder: Callable | None = None
_library: torch.library.Library | None = None  # holds the kernels


def install() -> None:
    """Register the kernels, which pass calls on as long as there is no recorder.

    The server does so, for all ranks: in a rank, half a millisecond would go into copies of the dispatcher's pages.
    """
    global _library
    if _library is None and RECORDING:
        _library = torch.library.Library("c10d", "IMPL")
        for name in OPS:
            if hasattr(torch.ops.c10d, name):  # no release of torch has to have all of them
                op = getattr(torch.ops.c10d, name).default
                _library.impl(name, functools.partial(_kernel, op, name), "BackendSelect", with_keyset=True)


def uninstall() -> None:
    """Take the kernels away: what runs from here on is torch alone."""
    global _library
    if _library is not None and destroy is not None:  # else they stay, and pass calls on
        destroy(_library)
        _library = None


def passed_on(op, keys, args: tuple, kwargs: dict):
    """What the operator itself returns."""
    return op.redispatch(keys & BELOW, *args, **kwargs)


@never_compiled
def _kernel(op, name: str, keys, *args, **kwargs):
    if recorder is None:
        return op.redispatch(keys & BELOW, *args, **kwargs)
    return recorder(op, name, keys, args, kwargs)
