"""Whether a parallel job computes what one process computes: the first tensor that differs, and how ranks hold it.

from collectives.same import same
same(train, model, batches, world_size=4)
"""

from ..lazy import lazy

# Loaded when they are asked for: a rank needs no pictures, and a watched job no launcher.
__all__ = lazy(
    __name__,
    {
        ".compare": "compare",
        ".findings": "Comparison",
        ".marks": "data note",
        ".side_by_side": "Same same",
        ".first_steps": "FirstSteps recorded",
    },
)
