"""What a schedule costs: on this machine, on a node of GPUs, on a hundred thousand ranks.

from helpers.network import cost, nvlink_node, outline
from helpers.schedule import ring_all_reduce
cost(ring_all_reduce(8), 2**30, nvlink_node("H100"))
cost(outline(ring_all_reduce, 16384), 2**30, rails(2048))      # without making the schedule
nccl("all_reduce", rails(2048))(2**30)                          # what NCCL would run there, and its seconds
bill(a_run, rails(2048), scale=4096)                            # so for every call that was recorded
from helpers.network.planner import plan                        # a whole step, for every way to divide a model
"""

from ..lazy import lazy

__all__ = lazy(
    __name__,
    {
        "bill": "Bill bill",
        "calibration": "GROUPS Row Table calibration",
        "compute": "compute_seconds matmul_flops training_flops",
        "cost": "Cost Price algbw busbw cost price",
        "crossover": "Crossover ring_and_tree",
        "fit": "SIZES Fit exchange fit ping_pong",
        "machine": "Gpus Level Machine Port Protocol flat",
        "presets": "efa fat_tree gpu_nodes loopback nvl72 nvlink_node pcie_node rails",
        ".schedule.outline": "Outline Phase outline",
        "pipeline": "in_switch_seconds",
        "tuner": "Nccl nccl",
    },
)
