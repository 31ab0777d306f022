"""Modules and parts of torch that are loaded before a rank begins, so that it begins at once."""

import gc
import importlib
import os
import traceback

import torch

from ..rank import torch_private, tracer

MAX_STDERR_BYTES = 1 << 20


def preload() -> None:
    """Initialize the parts of torch that every rank uses, so that a fork inherits them."""
    torch.set_num_threads(1)
    torch_private.fake_backend()
    if torch_private.RECORDING:
        with tracer.Tracer(0, lambda *_: None, 0.0):
            torch.zeros(1).add_(1).clone()
    freeze_gc()


def import_modules(modules: list[str]) -> None:
    """Import modules for later ranks to inherit."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:  # a rank that needs it raises the error itself
            traceback.print_exc()
    freeze_gc()
    if os.fstat(2).st_size > MAX_STDERR_BYTES:  # modules warn, and nobody reads this file while all is well
        os.ftruncate(2, 0)
        os.lseek(2, 0, os.SEEK_SET)


def freeze_gc() -> None:
    """Keep the garbage collector from dirtying the pages that ranks share."""
    gc.collect()
    gc.freeze()
