"""Pipeline schedules, each a few lines: from one microbatch at a time to both ends at once."""

from collections import Counter, deque
from typing import Callable

from .pipeline import Action, Pipeline


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
    """A rank's order, if it keeps at most `most` microbatches."""
    warm = min(most - 1, microbatches)
    row = [f"F{k}" for k in range(warm)]
    for k in range(microbatches - warm):
        row += [f"F{warm + k}", f"B{k}"]
    return row + [f"B{k}" for k in range(microbatches - warm, microbatches)]


def interleaved(ranks: int, microbatches: int, chunks: int = 2) -> Pipeline:
    """1F1B where rank r has stages r, r + ranks, ...: `chunks` of them (Narayanan et al. 2021, arXiv 2104.04473).

    Raises ValueError unless the microbatches are a multiple of the ranks: they go around in groups of that size.
    """
    _need(ranks, microbatches)
    if chunks < 1:
        raise ValueError(f"a rank holds one stage or more, not {chunks}.")
    if microbatches % ranks:
        raise ValueError(
            f"interleaved 1F1B sends microbatches around in groups of {ranks}, one per rank; {microbatches} is not a multiple."
        )

    def turn(rank: int, kind: str, k: int) -> Action:
        group, place = divmod(k, ranks * chunks)
        chunk, within = divmod(place, ranks)
        return Action((chunk if kind == "F" else chunks - 1 - chunk) * ranks + rank, kind, group * ranks + within)

    rows = []
    for rank in range(ranks):
        most = 2 * (ranks - 1 - rank) + (chunks - 1) * ranks + 1
        rows.append([turn(rank, a[0], int(a[1:])) for a in one_f_one_b_row(most, microbatches * chunks)])
    return Pipeline(rows, f"interleaved, {chunks} stages per rank")


def zero_bubble(ranks: int, microbatches: int) -> Pipeline:
    """1F1B whose backward is cut in two, the weights' half where a rank would wait (ZB-H1: Qi et al. 2023, arXiv 2401.10241).

    Keeps no more than the first rank of 1F1B does, on any rank.
    """
    _need(ranks, microbatches)
    done = [dict.fromkeys("FIW", 0) for _ in range(ranks)]
    rows: list[list[Action]] = [[] for _ in range(ranks)]
    while any(mine["W"] < microbatches for mine in done):  # time unit after time unit; F, I and W take one each
        before = [dict(mine) for mine in done]
        for rank, mine in enumerate(before):
            f, i, w = mine.values()
            arrived = rank == 0 or before[rank - 1]["F"] > f
            if f < microbatches and arrived and f - i < ranks - rank and f - w < ranks:
                kind = "F"
            elif i < f and (rank == ranks - 1 or before[rank + 1]["I"] > i):
                kind = "I"
            elif w < i:
                kind = "W"
            else:
                continue
            rows[rank].append(Action(rank, kind, mine[kind]))
            done[rank][kind] += 1
    return Pipeline(rows, "zero bubble (ZB-H1)")


def dualpipe(ranks: int, microbatches: int) -> Pipeline:
    """Microbatches from both ends: half enter at the first rank, half at the last (DeepSeek-V3, arXiv 2412.19437).

    Every rank holds two stages, its own and the opposite rank's, so that both ways lead through all.  Needs an even
    number of ranks, and an even number of microbatches, at least two per rank; raises ValueError for others.
    """
    if ranks % 2 or microbatches % 2 or microbatches < 2 * ranks:
        raise ValueError(
            f"DualPipe needs an even number of ranks, and an even number of microbatches, at least two per rank: "
            f"not {ranks} and {microbatches}."
        )
    return Pipeline([_dual_row(rank, ranks, microbatches // 2) for rank in range(ranks)], "DualPipe")


def _dual_row(rank: int, ranks: int, each: int) -> list[Action]:
    """A rank's order. each: microbatches that enter at one end.  Way 0 is the one whose start is nearer to this rank."""
    near, half = min(rank, ranks - 1 - rank), ranks // 2
    inner = half - 1 - near  # ranks from this one to the middle
    order = ["F0"] * (2 * inner) + ["F0", "F1"] * (near + 1) + ["I1", "W", "F1"] * inner
    order += ["F0", "B1", "F1", "B0"] * (each - ranks + near + 1) + ["B1", "F1", "B0"] * inner
    both = ["1", "0"] * (near + 1)
    order += ["B" + way for way in both[: near + 1]] + ["I" + way for way in both[near + 1 :]] + ["W", "I0"] * inner
    stage = near, ranks - 1 - near  # of a microbatch on way 0 and 1
    times: Counter[str] = Counter()  # "F0": forwards done on way 0; "B0": backwards, whole or halves
    row: list[Action] = []
    owed: deque[Action] = deque()  # the weights' halves
    for step in order:
        if step == "W":
            row.append(owed.popleft())
            continue
        kind, way = step[0], int(step[1])
        what = step.replace("I", "B")
        microbatch = times[what] + each * (way ^ (rank >= half))
        times[what] += 1
        row.append(Action(stage[way], kind, microbatch))
        if kind == "I":
            owed.append(Action(stage[way], "W", microbatch))
    return [*row, *owed]


def _need(ranks: int, microbatches: int) -> None:
    if ranks < 1 or microbatches < 1:
        raise ValueError(f"a pipeline needs at least one rank and one microbatch, not {ranks} and {microbatches}.")


# The choices of player and tables: name -> the schedule for a number of ranks and of microbatches, where there is one.
SCHEDULES: dict[str, Callable[[int, int], Pipeline]] = {
    "one at a time": one_at_a_time,
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "interleaved": interleaved,
    "zero bubble": zero_bubble,
    "DualPipe": dualpipe,
}
