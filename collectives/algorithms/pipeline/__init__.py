"""Pipeline schedules as data: drawn, proved, counted, executed on real ranks, compared with the run.

from collectives.algorithms.pipeline import one_f_one_b
s = one_f_one_b(4, 8)        # 4 ranks, 8 microbatches; last line of a cell: the picture, and the orders in words
s.prove()                    # every microbatch through every stage, in order, and no deadlock
s.count()                    # bubble, activations kept, messages
s.program()                  # the rank function that carries it out with torch.distributed
"""

from ...lazy import lazy

__all__ = lazy(
    __name__,
    {
        ".count": "PipelineCount table",
        ".execute": "Executed asleep modules",
        ".foreign": "from_torch recorded",
        ".pipeline": "Action Costs Pipeline",
        ".proof": "PipelineProof WrongPipeline",
        ".schedules": "SCHEDULES dualpipe gpipe interleaved one_at_a_time one_f_one_b zero_bubble",
    },
)
