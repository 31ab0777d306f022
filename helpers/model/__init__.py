"""The small decoder of chapters 11 to 17, 20 and 21, the book it learns from, and its training in one process.

from helpers.model import batch, decoder, one_process
"""

import collectives.train  # noqa: F401 - loads in advance what ranks that train will load
from collectives.launch.pool import preload
from collectives.lazy import lazy

# Loaded when they are asked for: importing this package loads no torch.
__all__ = lazy(
    __name__,
    {
        ".by_schedule": "train_by",
        ".decoder": "batch book decode decoder encode initialise loss_of write",
        ".slow_link": "SlowLink",
        ".training": "adam difference flatten nbytes one_process sgd",
        ".ways": "Ways wrong_gradients",
    },
)

preload(["helpers.model.training"])
