"""The cost of a division of a model over a cluster: memory, bytes and seconds, compared with published training runs.

from collectives.planner import Division, check, cluster, plan, shape, step
step(shape("Llama 3 405B"), Division(64, 8, 16, chunks=8), 2048, cluster("H100", 8192))  # one division
plan(shape("Llama 3 8B"), cluster("H100", 64), 512)                                      # all that fit, fastest first
check()                                                                                  # next to published figures
"""

from ..lazy import lazy

__all__ = lazy(
    __name__,
    {
        ".validation": "ALLOCATED GOAL RUNS WHY Allocated Published ValidatedRun Validation check",
        ".compute": "IN_STEP Compute",
        ".division": "Division",
        ".memory": "FLOAT32 LEFT_OUT MARGIN MIXED Bytes Memory memory",
        ".communication": "Messages",
        ".software": "PROGRAMS Overlap Program",
        ".search": "Plans plan",
        ".shape": "SHAPES Shape shape",
        ".step": "BANDS BEST_MFU Band Step step",
        "..machines.presets": "cluster",
    },
)
