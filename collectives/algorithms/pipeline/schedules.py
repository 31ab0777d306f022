"""Pipeline schedules, each a few lines: from one microbatch at a time to both ends at once."""

from collections import defaultdict
from typing import Callable

from .model import Action, Pipeline


def one_at_a_time(ranks: int, microbatches: int) -> Pipeline:
    """Each microbatch forward and backward before the next one starts."""
    _need(ranks, microbatches)
    rows = [[f"{kind}{k}" for k in range(microbatches) for kind in "FB"] for _ in range(ranks)]
    return Pipeline(rows, "one at a time")


def gpipe(ranks: int, microbatches: int) -> Pipeline:
    """All forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965)."""
    _need(ranks, microbatches)
    return Pipeline([[f"{kind}{k}" for kind in "FB" for k in range(microbatches)] for _ in range(ranks)], "GPipe")


def one_f_one_b(ranks: int, microbatches: int, most: int | None = None) -> Pipeline:
    """Some forwards to fill the pipeline, then a forward and a backward in turn (PipeDream-Flush, arXiv 2006.09503).

    most: microbatches whose activations a rank may keep, if fewer than it would.
    """
    _need(ranks, microbatches)
    if most is not None and most < 1:
        raise ValueError(f"a rank keeps at least 1 microbatch while it works on it, not {most}.")
    rows = [one_f_one_b_row(min(ranks - rank, most or ranks), microbatches) for rank in range(ranks)]
    return Pipeline(rows, "1F1B" if most is None else f"1F1B, at most {most}")


def one_f_one_b_row(most: int, microbatches: int) -> list[str]:
    """A rank's order, if it keeps at most so many microbatches."""
    warm = min(most - 1, microbatches)
    row = [f"F{k}" for k in range(warm)]
    for k in range(microbatches - warm):
        row += [f"F{warm + k}", f"B{k}"]
    return row + [f"B{k}" for k in range(microbatches - warm, microbatches)]


def interleaved(ranks: int, microbatches: int, chunks: int = 2) -> Pipeline:
    """1F1B where rank r has stages r, r + ranks, ...: `chunks` of them (Narayanan et al. 2021, arXiv 2104.04473).

    Raises ValueError where the microbatches are no multiple of the ranks: they go round in groups of as many.
    """
    _need(ranks, microbatches)
    if chunks < 1:
        raise ValueError(f"a rank holds one stage or more, not {chunks}.")
    if microbatches % ranks:
        raise ValueError(
            f"interleaved 1F1B sends microbatches round in groups of {ranks}, one a rank; {microbatches} are no multiple."
        )
    total, rows = microbatches * chunks, []
    for rank in range(ranks):

        def turn(kind: str, k: int) -> Action:
            group, place = divmod(k, ranks * chunks)
            chunk, within = divmod(place, ranks)
            chunk = chunk if kind == "F" else chunks - 1 - chunk
            return Action(chunk * ranks + rank, kind, group * ranks + within)

        warm = min(2 * (ranks - 1 - rank) + (chunks - 1) * ranks, total)
        row = [turn("F", k) for k in range(warm)]
        for k in range(total - warm):
            row += [turn("F", warm + k), turn("B", k)]
        rows.append(row + [turn("B", k) for k in range(total - warm, total)])
    return Pipeline(rows, f"interleaved, {chunks} stages a rank")


def zero_bubble(ranks: int, microbatches: int) -> Pipeline:
    """1F1B whose backward is cut in two, the weights' half where a rank would wait (ZB-H1: Qi et al. 2023, arXiv 2401.10241).

    Keeps no more than the first rank of 1F1B does, on any rank.
    """
    _need(ranks, microbatches)

    def next_kind(rank: int, done: dict[str, int], ready: dict[str, bool]) -> str:
        ahead = done["F"] - done["I"]
        if ready["I"] and (ahead >= ranks - rank or done["F"] == microbatches):
            return "I"
        if ready["F"] and ahead < ranks - rank and done["F"] - done["W"] < ranks:
            return "F"
        if ready["I"]:
            return "I"
        return "W"

    return Pipeline(_greedy(ranks, microbatches, next_kind), "zero bubble (ZB-H1)")


def _greedy(ranks: int, microbatches: int, next_kind: Callable) -> list[list[Action]]:
    """Orders from a rule that is asked, time unit after time unit, what a rank does next; F, I and W take one each."""
    done = [dict.fromkeys("FIW", 0) for _ in range(ranks)]
    rows: list[list[Action]] = [[] for _ in range(ranks)]
    while any(mine["W"] < microbatches for mine in done):
        before = [dict(mine) for mine in done]
        for rank, mine in enumerate(before):
            f, i, w = (mine[kind] for kind in "FIW")
            ready = {
                "F": f < microbatches and (rank == 0 or before[rank - 1]["F"] > f),
                "I": i < f and (rank == ranks - 1 or before[rank + 1]["I"] > i),
                "W": w < i,
            }
            kind = next_kind(rank, mine, ready)
            if ready[kind]:
                rows[rank].append(Action(rank, kind, mine[kind]))
                done[rank][kind] += 1
    return rows


def dualpipe(ranks: int, microbatches: int) -> Pipeline:
    """Microbatches from both ends: half enter at the first rank, half at the last (DeepSeek-V3, arXiv 2412.19437).

    Every rank holds two stages, its own and that of the rank opposite, so that both ways lead through all.  Needs an
    even number of ranks, and an even number of microbatches, at least two a rank; raises ValueError for others.
    """
    if ranks % 2 or microbatches % 2 or microbatches < 2 * ranks:
        raise ValueError(
            f"DualPipe needs an even number of ranks, and an even number of microbatches, two a rank or more: "
            f"not {ranks} and {microbatches}."
        )
    return Pipeline([_dual_row(rank, ranks, microbatches // 2) for rank in range(ranks)], "DualPipe")


def _dual_row(rank: int, ranks: int, each: int) -> list[Action]:
    """A rank's order. each: microbatches that enter at one end.  Way 0 is the one whose start is nearer to this rank."""
    near, half = min(rank, ranks - 1 - rank), ranks // 2
    stage = near, ranks - 1 - near  # of a microbatch on way 0 and 1
    times: dict[tuple[str, int], int] = defaultdict(int)  # (kind, way) -> microbatches done
    row: list[Action] = []
    owed: list[Action] = []  # the weights' halves

    def do(kind: str, way: int, split: bool = False) -> None:
        microbatch = times[kind, way] + each * (way ^ (rank >= half))
        times[kind, way] += 1
        row.append(Action(stage[way], "I" if split else kind, microbatch))
        if split:
            owed.append(Action(stage[way], "W", microbatch))

    for _ in range(2 * (half - 1 - near)):
        do("F", 0)
    for _ in range(near + 1):
        do("F", 0)
        do("F", 1)
    for _ in range(half - 1 - near):
        do("B", 1, split=True)
        row.append(owed.pop(0))
        do("F", 1)
    for _ in range(each - ranks + near + 1):
        do("F", 0)
        do("B", 1)
        do("F", 1)
        do("B", 0)
    for _ in range(half - 1 - near):
        do("B", 1)
        do("F", 1)
        do("B", 0)
    split = False
    for k in range(near + 1):
        split = split or k == (near + 1) // 2 and near % 2 == 1
        do("B", 1, split)
        split = split or k == (near + 1) // 2 and near % 2 == 0
        do("B", 0, split)
    for _ in range(half - 1 - near):
        row.append(owed.pop(0))
        do("B", 0, split=True)
    return row + owed


def _need(ranks: int, microbatches: int) -> None:
    if ranks < 1 or microbatches < 1:
        raise ValueError(f"a pipeline needs at least one rank and one microbatch, not {ranks} and {microbatches}.")


# What the player and the tables offer: name -> the schedule of so many ranks and microbatches, where there is one.
SCHEDULES: dict[str, Callable[[int, int], Pipeline]] = {
    "one at a time": one_at_a_time,
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "interleaved": interleaved,
    "zero bubble": zero_bubble,
    "DualPipe": dualpipe,
}
