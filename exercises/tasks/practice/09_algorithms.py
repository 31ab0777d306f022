"""pipeline(n, pieces): the schedule of a broadcast down a chain, piece after piece."""

from typing import Any

from collectives.algorithms import Schedule, WrongSchedule
from collectives.format import kind
from helpers.exercise import Case, Finding, Puzzle

NAME = "pipeline"
CHAINS = {  # what a case says -> (n, pieces)
    "4 ranks and 3 pieces": (4, 3),
    "2 ranks and 5 pieces": (2, 5),
    "5 ranks and 1 piece": (5, 1),
    "3 ranks and 8 pieces": (3, 8),
    "1 rank and 2 pieces": (1, 2),
    "8 ranks and 8 pieces": (8, 8),
}
MAX_STEPS, MAX_MESSAGES = 200, 2000  # what is longer would take for ever to prove


def least_steps(n: int, pieces: int) -> int:
    return n - 2 + pieces if n > 1 else 0


def fault(s: Any, n: int, pieces: int) -> str:
    """What keeps a result from being a schedule down the chain; empty if nothing does."""
    if not isinstance(s, Schedule):
        return f"it must return a Schedule, not {kind(s)}."
    if (s.collective, s.world_size, s.chunks, s.root) != ("broadcast", n, pieces, 0):
        return (
            f"its schedule is of {s.collective} from {s.root} for {s.world_size} ranks in {s.chunks} pieces; wanted is "
            f"broadcast from 0 for {n} in {pieces}."
        )
    if len(s.steps) > MAX_STEPS or sum(map(len, s.steps)) > MAX_MESSAGES:
        return f"{len(s.steps)} steps are far too many; {least_steps(n, pieces)} are enough."
    for number, step in enumerate(s.steps, 1):
        for m in step:
            if m.target != m.source + 1 or len(m.chunks) != 1:
                carried = "one piece" if len(m.chunks) == 1 else f"{len(m.chunks)} pieces"
                return f"in step {number} rank {m.source} sends {carried} to rank {m.target}."
    return ""


def verdict(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
    n, pieces = arguments
    headline = f"{NAME} is wrong with {case.kind}: "
    if what := fault(result, n, pieces):
        return Finding("values", words=headline + what, thought=SHAPE if result is not None else NOTHING)
    try:
        result.prove()
    except WrongSchedule as what:
        return Finding("values", words=headline + str(what), thought=thought_about(str(what)), shows=result)
    found, least = sum(map(bool, result.steps)), least_steps(n, pieces)
    if budget and found > least:
        words = f"{NAME} is right with {case.kind}, but takes {found} steps; {least} are enough."
        return Finding("budget", words=words, thought=SLOW, shows=result)
    return None


NOTHING = "the function returns nothing. Drawing or printing a schedule does not return it."
SHAPE = 'return Schedule("broadcast", n, steps, chunks=pieces), with messages copy(r, r + 1, piece).'
EARLY = (
    "a rank can only pass on what it had when the step began. Piece p leaves rank 0 in step p; in which step does it "
    "leave rank r?"
)
MISSING = "follow one piece: does every rank but the last pass it on? And is the last piece sent by everybody too?"
SLOW = "while a piece is on its way from rank 1 to rank 2, what could rank 0 be sending?"


def thought_about(what: str) -> str:
    return EARLY if "does not have it yet" in what or "does not have" in what else MISSING


TASK = Puzzle(
    NAME,
    tuple(Case(1, kind) for kind in CHAINS),
    lambda d: CHAINS[d.case.kind],
    verdict,
    lambda case, arguments, result: f"With {case.kind} it takes {len(result.steps)} steps.",
)
