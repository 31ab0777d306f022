"""Exercises: their definition (tasks, cases), an answer's judgment (judge), a notebook's checks (check)."""

from collectives.lazy import lazy

# Not before they are asked for: ranks import this package for on_rank.py, and need no pictures.
__all__ = lazy(
    __name__,
    {
        ".check_cells": "check_budget check_practice check_values mine_or",
        ".trial": "CheckFailed",
        # for files of exercises/tasks
        ".cases": "LARGE Case",
        ".on_rank": "File content",
        ".task": "ANY_VALUE Budget Finding Measure OnError Puzzle Suspect Task",
        ".valued": "valued",
    },
)
