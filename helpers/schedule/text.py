"""A schedule in words: the text twin of its picture."""

from __future__ import annotations

from ..format import span
from .model import BaseSchedule, Message, chunk_name

SHOWN_STEPS, SHOWN_MESSAGES = 8, 8


def title(s: BaseSchedule) -> str:
    """'all_reduce by ring, 4 ranks: 6 steps, 24 messages'"""
    n, messages = len(s.steps), sum(map(len, s.steps))
    root = f" {'from' if s.collective in ('broadcast', 'scatter') else 'to'} {s.root}" if s.rooted else ""
    return (
        f"{s.collective}{root} by {s.name}, {s.world_size} rank{'s' * (s.world_size > 1)}: "
        f"{n} step{'s' * (n != 1)}, {messages} message{'s' * (messages != 1)}"
    )


def table(s: BaseSchedule, brief: bool = False) -> str:
    """A line a step.  '0 -> 1 +a' adds chunk a of rank 0 to rank 1's; without the plus it is copied."""
    lines = [title(s)]
    shown = s.steps[:SHOWN_STEPS] if brief else s.steps
    for k, step in enumerate(shown, 1):
        messages = [said(s, m) for m in (step[:SHOWN_MESSAGES] if brief else step)]
        if len(messages) < len(step):
            messages.append(f"... and {len(step) - len(messages)} more")
        lines.append(f"  step {k:>2}   " + ",  ".join(messages))
    if len(shown) < len(s.steps):
        lines.append(f"  ... and {len(s.steps) - len(shown)} more steps: .table() lists them all")
    return "\n".join(lines)


def said(s: BaseSchedule, m: Message) -> str:
    return f"{m} {'+' * m.adds}{said_chunks(s, m.chunks)}"


def said_chunks(s: BaseSchedule, chunks: tuple[int, ...]) -> str:
    """'a', 'a c', or 'a-d' for more than two in a row."""
    if len(chunks) > 2 and list(chunks) == list(range(chunks[0], chunks[-1] + 1)):
        return f"{chunk_name(s, chunks[0])}-{chunk_name(s, chunks[-1])}"
    names = [chunk_name(s, c) for c in chunks]
    return " ".join(names if len(names) <= 8 else [*names[:6], "...", names[-1]])


def said_ranks(ranks: list[int]) -> str:
    """'rank 2', 'ranks 0-3', 'ranks 0, 2'"""
    return f"rank{'s' * (len(ranks) > 1)} {span(tuple(ranks))}"
