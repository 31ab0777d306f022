"""Phrases that verdicts share."""

import re
from collections import Counter
from typing import Any, Iterable, Sequence

from ...format import align, name_ranks, runs
from ...log.calls import Call
from ...log.collectives import RECEIVES, SENDS
from ...log.event import Event
from ...log.text import drop_note as drop_note
from ...log.text import source as source
from ..decisions import decisions
from ..verdict import RankState, Verdict

MOST_PARTS = 16  # that are written out, in a list with one for each rank or call
CALLS_SHOWN = 3  # of those that ranks made from different lines

EVERY_RANK_MAKES_IT = (
    "Every rank must call new_group, even one that won't be a member, in the same order and with the same ranks."
)


def few(ranks: Iterable[int]) -> str:
    """'rank 3', 'ranks 0, 1 and 3', 'ranks 0-5, 7-1023', '64 ranks (0, 8, 16, ..., 504)'"""
    return name_ranks(sorted(ranks), 4)


def cut(parts: Sequence[str], more: str = "... and {:,} more") -> list[str]:
    """The parts; from a long list only some, the rarest wordings first, and the number of the others."""
    rest = len(parts) - MOST_PARTS
    if rest <= 1:
        return [*parts]
    shapes = [re.sub(r"\d+ *", "#", part) for part in parts]
    times = Counter(shapes)
    places = sorted(range(len(parts)), key=lambda k: (times[shapes[k]], k))[:MOST_PARTS]
    return [*(parts[k] for k in sorted(places)), more.format(rest)]


def verb(word: str, ranks: list[int]) -> str:
    return word + "s" * (len(ranks) == 1)


def are(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def after(made: int) -> str:
    return f"after {made} call{'s' * (made != 1)}" if made else "before any call"


def call_waited_in(each: RankState, world_size: int) -> str:
    return call_name(each.event, world_size)


def call_name(e: Event, world_size: int) -> str:
    """'all_reduce #3 of group 0-3', 'send #2 to 1'"""
    words = f"{e.op} #{e.index + 1}"
    if e.op in SENDS:
        return f"{words} to {e.dst}"
    if e.op in RECEIVES:
        signal = f" for signal {e.tag}" * (e.op == "wait")
        return f"{words}{signal} from {'anyone' if e.src is None else e.src}"
    return words + of_group(e, world_size)


def of_group(e: Event, world_size: int) -> str:
    """' of group 0-3'; nothing for the group of all ranks."""
    return "" if len(e.group) == world_size else f" of group {runs(e.group)}"


def handled(events: Iterable[Event | None]) -> list[str]:
    """A sentence for each rank that made its call while it handled an exception: the call hides it from the log."""
    made = (e for e in events if e and e.handling)
    return cut([f"Rank {e.rank} made {e.op} #{e.index + 1} while it handled {e.handling}" for e in made])


def caught(verdict: Verdict) -> list[str]:
    """A sentence for each exception that a rank caught and others did not."""
    return cut([
        f"Earlier, {after(message.calls)}, rank {rank} caught {message.error}\n  {source(message.line)}"
        for rank, message in verdict.catches
    ])  # fmt: skip


def decided(verdict: Verdict, events: Iterable[Event], together: bool = False) -> list[str]:
    """A sentence and a line for each decision on which of these a rank calls, by the program's source.

    together: whether these are parts of one call.
    """
    lines = {e.line for e in events if e.line and not e.is_message}  # a message is only for some ranks
    catches = {message.line.number for _, message in verdict.catches}
    return [
        f"{_DECIDED[decision.kind].format(call=decision.call.number)}\n  {source(decision.line)}"
        for decision in decisions(lines, together)
        if catches.isdisjoint(decision.attempt)
    ]


_DEPENDS = "Whether a rank gets to the call in line {call} depends on"
_DECIDED = {
    "clock": f"{_DEPENDS} its own clock. Let one rank decide, and broadcast its decision:",
    "files": f"{_DEPENDS} its own file system. Let one rank look, and broadcast what it finds:",
    "random": f"{_DEPENDS} random numbers, and this file sets no seed. Let one rank draw, and broadcast:",
    "reduce": f"{_DEPENDS} the result of reduce, which only its dst has. Use all_reduce:",
    "set": "The calls in line {call} come in the order of a set, which is different in each process. Sort it:",
    "handler": "A rank that catches an exception here doesn't get to the call in line {call}:",
    "barrier": (
        "A rank that leaves here doesn't get to the call in line {call}. The barrier before it carries no value, so let "
        "one rank decide, and broadcast its decision:"
    ),
    "leaves": "A rank that leaves here doesn't get to the call in line {call}:",
}


def apart(parted: Sequence[Call]) -> list[str]:
    """Where the ranks were in calls that they made from different lines, before the one that shows it."""
    if not parted:
        return []
    places = [
        (f"#{call.index + 1}", name_ranks(ranks), line)
        for call in parted[:CALLS_SHOWN]
        for line, ranks in alike((e.rank, source(e.line)) for e in call if e.line).items()
    ]
    head = f"Earlier, ranks made {numbered(parted)} from different lines, which may have mixed up their data:"
    more = ["  ..."] if len(parted) > CALLS_SHOWN else []
    return [head, align(places, indent="  "), *more]


def numbered(calls: Sequence[Call]) -> str:
    """Calls in a row by their numbers: 'call #3', 'calls #3 and #4', 'calls #3 to #7'."""
    first, last = (f"#{call.index + 1}" for call in (calls[0], calls[-1]))
    if len(calls) == 1:
        return f"call {first}"
    return f"calls {first} {'and' if len(calls) == 2 else 'to'} {last}"


def alike(said: Iterable[tuple[Any, Any]]) -> dict[Any, list]:
    """Ranks, or other things, grouped by their description."""
    groups: dict[Any, list] = {}
    for thing, words in said:
        groups.setdefault(words, []).append(thing)
    return groups


def rows(described: Iterable[tuple[int, str, str]]) -> str:
    """Aligned lines of ranks, words and source; one line for all ranks with the same description."""
    groups = alike((rank, (words, line)) for rank, words, line in described)
    lines = align([(name_ranks(ranks), *words) for words, ranks in groups.items()], indent="  ").split("\n")
    return "\n".join(cut(lines, "  ... and {:,} more rows"))
