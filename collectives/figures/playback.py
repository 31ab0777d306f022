"""A schedule as it plays: a sentence for each step, and the web module's data.

It imports nothing that draws, and no torch: a page of the website makes it in the browser.
"""

from ..algorithms.schedule import Schedule, chunk_name, members, message_words

MAX_CELLS = 600  # in a grid that moves; more are shown as messages in time


def sentences(schedule: Schedule) -> list[str]:
    """Sentences on each step's messages, the waiting ranks, and the total sent so far, in S; the last is on the end."""
    total, found = 0, []
    for k, messages in enumerate([*schedule.steps, []]):
        words = "the end" if k == len(schedule.steps) else f"step {k + 1}:  nothing is sent"
        if messages:
            busy = {rank for m in messages for rank in (m.source, m.target)}
            words = f"step {k + 1}:  " + ", ".join(message_words(schedule, m) for m in messages)
            words += waiting_words([rank for rank in range(schedule.world_size) if rank not in busy])
            total += sum(len(m.chunks) for m in messages)
        share = f"{total}/{schedule.cuts}" if total % schedule.cuts else total // schedule.cuts
        found.append(f"{words}; {share} S so far")
    return found


def waiting_words(idle: list[int]) -> str:
    """'; ranks 0, 2 wait'"""
    return f"; rank{'s' * (len(idle) > 1)} {', '.join(map(str, idle))} wait{'s' * (len(idle) == 1)}" if idle else ""


def playback(s: Schedule) -> dict:
    """A schedule as the web module plays it: the first holdings, and [source, target, chunks, adds] of every step.

    One that is too large for a grid is played as messages in time.
    """
    count = len(s.steps)
    says = [f"before:  {count} step{'s' * (count != 1)} to come", *sentences(s)[:-1]]
    says[-1] += "; the end" * (count > 0)
    common = {"says": says, "root": s.root if s.rooted else None}
    if s.world_size * s.chunks > MAX_CELLS:
        steps = [[[m.source, m.target, "", m.source, True] for m in step] for step in s.steps]
        ranks = list(range(s.world_size))
        return common | {"view": "lanes", "ranks": ranks, "owners": ranks, "steps": steps, "notes": {}}
    start = [[members(held.get(c, 0)) for c in range(s.chunks)] for held in s.initial()]
    steps = [[[m.source, m.target, list(m.chunks), m.adds] for m in step] for step in s.steps]
    names = [chunk_name(s, c) for c in range(s.chunks)]
    return common | {"view": "grid", "names": names, "start": start, "steps": steps}
