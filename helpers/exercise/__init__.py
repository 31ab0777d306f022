"""Exercises: what is wanted (tasks, cases), whether an answer is right (judge), how a notebook asks (check)."""

from collectives.lazy import lazy

# Not before they are asked for: ranks import this package for on_rank.py, and need no pictures.
__all__ = lazy(
    __name__,
    {
        ".check": "CheckFailed check_budget check_practice check_values",
        # what a file of exercises/tasks is written with
        ".cases": "LARGE Case",
        ".on_rank": "File content",
        ".task": "ANY Budget Finding Measure Puzzle Suspect Task",
        ".valued": "valued",
    },
)
