"""The cost of a schedule: on this machine, on a node of GPUs, on a hundred thousand ranks.

from collectives.algorithms import outline, ring_all_reduce
from collectives.cost import bill, cost, nccl
from collectives.machines import nvlink_node, rails
cost(ring_all_reduce(8), 2**30, nvlink_node("H100"))
cost(outline(ring_all_reduce, 16384), 2**30, rails(2048))      # without making the schedule
nccl("all_reduce", rails(2048))(2**30)                          # NCCL's choice there, and its seconds
bill(a_run, rails(2048), scale=4096)                            # the same for every recorded call
from collectives.cost.planner import plan                    # a whole step, for every way to divide a model
"""

from ..lazy import lazy

__all__ = lazy(
    __name__,
    {
        ".bill": "Bill bill",
        ".calibration": "GROUPS Calibration CalibrationPoint calibration",
        ".cost": "Price compute_seconds cost price training_flops",
        ".crossover": "Crossover ring_and_tree",
        ".fit": "SIZES Fit exchange fit loopback ping_pong",
        ".result": "Cost algbw busbw",
        ".tuner": "Nccl nccl",
    },
)
