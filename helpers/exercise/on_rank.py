"""The part of a check that runs on a rank. Ranks import it alone, so it imports no more than they have."""

from __future__ import annotations

import time
from typing import Any, Callable, Sequence

import torch.distributed as dist

LATE_SECONDS = 0.05


def perform(answer: Callable, late: Sequence[int | None], given: list[list[tuple]]) -> list[tuple[Any, tuple]]:
    """Calls the answer once a case; per case, what it returned, and its arguments afterwards.

    late: per case, the rank that starts after the others.  given: per case and rank, the arguments.
    """
    rank, came = dist.get_rank(), []
    for k, arguments in enumerate(given):
        if k:
            dist.barrier()  # between two cases: nobody runs ahead
        if late[k] == rank:
            time.sleep(LATE_SECONDS)  # what is tried here: peers that have to wait
        came.append((answer(*arguments[rank]), arguments[rank]))
    return came
