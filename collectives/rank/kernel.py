"""A kernel in front of every c10d operator, which hands each call to the recorder.

All of torch.distributed ends in operators of the c10d namespace, and the dispatcher sends each call of one
through its BackendSelect kernel: from every thread, from C++ (DistributedDataParallel, fully_shard, the functional
collectives), and from inside DTensor's operators. torch registers none for them, so that place is free.
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
    """Register the kernels, which pass calls on while there is no recorder.

    The server does so for all ranks: a rank would spend half a millisecond copying the dispatcher's pages.
    """
    global _library
    if _library is None and RECORDING:
        _library = torch.library.Library("c10d", "IMPL")
        for name in OPS:
            if hasattr(torch.ops.c10d, name):  # not every release of torch has all of them
                op = getattr(torch.ops.c10d, name).default
                _library.impl(name, functools.partial(_kernel, op, name), "BackendSelect", with_keyset=True)


def uninstall() -> None:
    """Remove the kernels: from here on, torch alone runs."""
    global _library
    if _library is not None and destroy is not None:  # otherwise they stay, and pass calls on
        destroy(_library)
        _library = None


def passed_on(op, keys, args: tuple, kwargs: dict):
    """The operator's own result."""
    return op.redispatch(keys & BELOW, *args, **kwargs)


@never_compiled
def _kernel(op, name: str, keys, *args, **kwargs):
    if recorder is None:
        return op.redispatch(keys & BELOW, *args, **kwargs)
    return recorder(op, name, keys, args, kwargs)
