"""Training on many ranks: the model of chapters 11 to 16 and 19, and views of what ranks hold and send while they train.

from helpers.parallel import batch, decoder, one_process, watch
"""

from ..launch.pool import preload
from ..lazy import lazy

# What DistributedDataParallel, an optimizer, fully_shard, DTensor, pipelining and distributed.checkpoint import when
# they are first used; most of it is torch._dynamo.
MODULES = (
    "torch._dynamo",
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
    "torch.distributed.algorithms.join",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
    "torch.utils.checkpoint",
    "helpers.parallel.observer",
    "helpers.parallel.training",
)
# Loaded when they are asked for: a rank that gets a model needs no pictures.
__all__ = lazy(
    __name__,
    {
        "causal": "causal_work",
        "files": "counted watch_files",
        "film": "Film",
        "letters": "Letters letter letters",
        "memory": "Activations nbytes",
        "model": "batch book decode decoder encode initialise loss_of write",
        "overlap": "Overlap overlap",
        "shards": "Owns",
        "summary": "Calls compare",
        "training": "adam difference one_process sgd",
        "watched": "Watched watch",
    },
)

preload(MODULES)
