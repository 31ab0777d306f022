"""Phrases that verdicts share."""

from typing import Hashable, Iterable

from ...format import aligned, name_ranks, span
from ...record.event import Line
from ..verdict import Standing


def source(line: Line | None) -> str:
    return "" if line is None else f"{line}:  {line.text}" if line.text else str(line)


def verb(word: str, ranks: list[int]) -> str:
    return word + "s" * (len(ranks) == 1)


def after(made: int) -> str:
    return f"after {made} call{'s' * (made != 1)}"


def call_waited_in(each: Standing, world_size: int) -> str:
    e = each.event
    words = f"{e.op} #{e.index + 1}"
    if e.op == "send":
        return f"{words} to {e.dst}"
    if e.op == "recv":
        return f"{words} from {'anyone' if e.src is None else e.src}"
    return words if len(e.group) == world_size else f"{words} of group {span(e.group)}"


def alike(said: Iterable[tuple[int, Hashable]]) -> dict[Hashable, list[int]]:
    """The ranks by what is said of them."""
    groups: dict[Hashable, list[int]] = {}
    for rank, words in said:
        groups.setdefault(words, []).append(rank)
    return groups


def rows(described: Iterable[tuple[int, str, str]]) -> str:
    """Aligned lines of ranks, words and source; one line for all ranks of which the same is said."""
    groups = alike((rank, (words, line)) for rank, words, line in described)
    return aligned([(name_ranks(ranks), *words) for words, ranks in groups.items()], indent="  ")
