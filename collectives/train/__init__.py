"""Training on many ranks: each one's memory and messages while a model is trained, by every kind of parallelism.

from collectives.train import compare, overlap, watch
"""

from ..launch.pool import preload
from ..lazy import lazy

# The modules that DistributedDataParallel, an optimizer, fully_shard, DTensor, pipelining and distributed.checkpoint
# import when they are first used; most of it is torch._dynamo.
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
    "collectives.train.observer",
)
# Loaded when they are asked for: a rank that gets a model needs no pictures.
__all__ = lazy(
    __name__,
    {
        ".causal": "causal_work",
        ".files": "watch_files",
        ".film": "Film",
        ".letters": "Letters letter letters",
        ".tensor_memory": "Activations nbytes",
        ".overlap": "OverlapChart overlap",
        ".shards": "Owns",
        ".summary": "Calls compare",
        ".watched": "Watched watch",
    },
)

preload(MODULES)
