"""Likely causes that ranks' records show: notes beside a verdict, which accuse nobody."""

from collections import defaultdict
from typing import Iterator, Sequence

import torch

from ..format import name_ranks
from .mistakes import call_text
from .records import CallMade, FirstSteps
from .relation import close

MOST = 4


def of_ranks(ranks: Sequence[FirstSteps], reference: FirstSteps | None = None) -> list[str]:
    """The sentences, without a period at the end.  reference: one process's record, if it could run."""
    sentences = [clue for record in ranks for clue in record.clues]
    for clues in (_in_place, _copies, _pieces, _without_history, _layers, _drifting):
        sentences += clues(ranks)
    sentences += of_copies(ranks, reference) if reference else []
    return list(dict.fromkeys(sentences))[:MOST]


def _in_place(ranks: Sequence[FirstSteps]) -> list[str]:
    """A tensor with two names, which the program reads as what it was and as what a call made of it."""
    return [
        f"{' and '.join(f'`{name}`' for name in call.aliases)} are one tensor, and {call_text(call)} writes the sum into it, in "
        f"place: to keep this rank's own, clone it before the call, {call.aliases[-1]} = {call.aliases[0]}.clone()"
        for record in ranks[:1]
        for call in record.calls
        if call.aliases
    ]


def _copies(ranks: Sequence[FirstSteps]) -> list[str]:
    """A sum of what an earlier sum has made the same on several ranks."""
    sentences = []
    for group, calls in _together(ranks):
        equal: dict[tuple[float, ...], list[int]] = defaultdict(list)
        for rank, call in zip(group, calls):
            if call.summed is not None:
                equal[tuple(call.summed.reshape(-1).tolist())].append(rank)
        sizes = {len(copies) for copies in equal.values()}
        if len(sizes) != 1 or sum(map(len, equal.values())) < len(group) or sizes == {1} or not any(map(any, equal)):
            continue
        earlier = [_made_alike(tuple(copies), calls[group.index(copies[0])], ranks) for copies in equal.values()]
        if earlier[0] is not None and None not in earlier:
            copiers = "; ".join(map(name_ranks, equal.values()))
            sentences.append(
                f"{call_text(calls[0])} sums copies: {copiers} hold what {call_text(earlier[0])} made the same on them, so "
                f"it is summed {sizes.pop()} times. Reduce it over one rank of each, or divide the sum"
            )
    return sentences


def of_copies(ranks: Sequence[FirstSteps], reference: FirstSteps) -> list[str]:
    """A number that counts copies: each rank adds what one process has by itself, and the sum, or its root, is read."""
    alone = {call.line: call for call in reversed(reference.calls) if call.reading}
    for group, calls in _together(ranks):
        counterpart, n = alone.get(calls[0].line), len(group)
        if counterpart is None or n == 1 or any(call.reading is None or call.summed is None for call in calls):
            continue
        if not calls[0].is_norm and float(counterpart.summed).is_integer():
            continue  # a count, to which each rank may rightly add the same
        times = n**0.5 if calls[0].is_norm else n
        if all(close(float(call.summed), float(counterpart.summed), 1e-4) for call in calls):
            if close(calls[0].reading, counterpart.reading * times):
                how = "the root of the sum" if calls[0].is_norm else "the sum"
                unless = "" if calls[0].is_norm else ", unless it is divided after it has been read"
                return [
                    f"{call_text(calls[0])} counts copies that all ranks hold: each adds {float(counterpart.summed):.4g}, as one process does by itself, "
                    f"so {how}, {calls[0].reading:.4g}, is {times:.3g} times too large{unless}. Count on one rank what all hold, and "
                    "add only parts over ranks"
                ]
    return []


def _layers(ranks: Sequence[FirstSteps]) -> list[str]:
    """Layers that several ranks load, while no rank loads others of the same saved model."""
    for loads in zip(*(record.loads for record in ranks)):
        saved, chosen = set(loads[0][0]), [set(names) for _, names in loads]
        if len(loads) < 2 or any(set(names) != saved for names, _ in loads) or any("" in names for names in chosen):
            continue
        lacking = [name for name in loads[0][0] if not any(name in names for names in chosen)]
        twice = [name for name in loads[0][0] if sum(name in names for names in chosen) > 1]
        if pair := next(((a, b) for a in lacking for b in twice if _same_layer(a, b)), None):
            holders = name_ranks([rank for rank, names in enumerate(chosen) if pair[1] in names])
            return [
                f"no rank loads `{pair[0]}` of a saved model, and {holders} load `{pair[1]}`: does each stage count its layers "
                "from 0? A stage's layers of the saved model have names that begin with the number of its first layer"
            ]
    return []


def _same_layer(a: str, b: str) -> bool:
    """Whether two names differ in one number."""
    words = list(zip(a.split("."), b.split(".")))
    different = [pair for pair in words if pair[0] != pair[1]]
    return a.count(".") == b.count(".") and len(different) == 1 and all(word.isdigit() for word in different[0])


def _pieces(ranks: Sequence[FirstSteps]) -> list[str]:
    """A sum of different pieces, which each rank has cut from its own tensor."""
    for group, calls in _together(ranks):
        pieces = [call.piece for call in calls if call.piece]
        if len(set(pieces)) == len(group) > 1 and len({count for _, count in pieces}) == 1:
            owners = ", ".join(f"piece {k} of rank {rank}" for rank, (k, _) in list(zip(group, pieces))[:3])
            return [
                f"{call_text(calls[0])} adds different rows: each rank passes its own piece of what it has cut ({owners}). If each "
                "has a part of a sum, add the whole first and cut it then, as reduce_scatter does"
            ]
    return []


def _together(ranks: Sequence[FirstSteps]) -> Iterator[tuple[tuple[int, ...], tuple[CallMade, ...]]]:
    """The calls that belong together, with the ranks of their group."""
    order: dict[tuple[int, tuple[int, ...]], list[CallMade]] = defaultdict(list)  # by rank and group
    for rank, record in enumerate(ranks):
        for call in record.calls:
            order[rank, call.ranks].append(call)
    for group in dict.fromkeys(group for _, group in order):
        for calls in zip(*(order[rank, group] for rank in group)):
            yield group, calls


def _made_alike(copies: tuple[int, ...], later: CallMade, ranks: Sequence[FirstSteps]) -> CallMade | None:
    """The call by which these ranks have got the sum that they pass to a later one."""
    k, latest = -1, None
    for call in ranks[copies[0]].calls:
        if call is later:
            break
        if call.ranks == copies:
            k, latest = k + 1, call
    parts = [[call.summed for call in ranks[rank].calls if call.ranks == copies][k : k + 1] for rank in copies]
    if latest is None or any(not part or part[0] is None or part[0].shape != later.summed.shape for part in parts):
        return None
    total = sum(part[0].double() for part in parts)
    return latest if torch.allclose(total, later.summed.double(), rtol=1e-5) else None


def _without_history(ranks: Sequence[FirstSteps]) -> list[str]:
    """all_gather of what was detached."""
    return [
        f"{call_text(call)} is passed {call.cut_off} without its history, and what all_gather fills has no history: a loss over "
        "it has no gradient for what other ranks passed. Use one of torch's functional collectives, or put this rank's own "
        "back into its place and multiply the loss by the number of ranks"
        for record in ranks[:1]
        for call in record.calls
        if call.cut_off and call.op.startswith("all_gather") and not call.unwinding
    ][:1]


def _drifting(ranks: Sequence[FirstSteps]) -> list[str]:
    """A tensor that ranks start alike, update differently, and never reduce a gradient of."""
    sentences = []
    for name, first in ranks[0].parameters.items():
        copies = [record.parameters[name] for record in ranks if name in record.parameters]
        if len(copies) < len(ranks) or len(ranks) < 2 or any(p.first is None or not p.steps for p in copies):
            continue
        values = [p.steps[0].after for p in copies]
        if any(p.shape != first.shape or not torch.equal(p.first, first.first) for p in copies):
            continue
        if any(value is None for value in values):
            continue
        reduced = any(
            call.unwinding or f"gradient of {name}" in call.about or call.numel > first.first.numel() and call.backward
            for record in ranks
            for call in record.calls
        )
        if not reduced and any(not torch.equal(value, values[0]) for value in values):
            sentences.append(
                f"`{name}` starts the same on {name_ranks(range(len(ranks)))} and differs after the first step, and no call is "
                "passed its gradient. If it's one tensor, which these ranks hold alike, its gradient is a partial sum: "
                "all_reduce it over them; if each rank has its own, that's right"
            )
    return sentences[:1]
