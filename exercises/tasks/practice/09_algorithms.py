"""The short tasks of chapter 09: schedules, and what they cost.

busiest_sends(n, nbytes): through rank 0, and at least.  left_ring(n): a ring all_reduce to the left.
tree_reduce(n): the binomial tree turned around.  best_pieces(n, nbytes, alpha, beta): of a chain.
rail_bytes(n, k, nbytes): what each of n ranks sends to other nodes, of k in all.
pipeline(n, pieces): a broadcast down a chain, piece after piece.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any

from collectives.algorithms import Schedule, WrongSchedule
from collectives.format import kind
from helpers.exercise import Case, Finding, Puzzle, valued

MAX_STEPS, MAX_MESSAGES = 200, 2000  # what is longer would take forever to prove

# --- busiest_sends ------------------------------------------------------------------------

BUSIEST_SENDS = valued(
    "busiest_sends",
    {"4 ranks": (4, 100), "2 ranks": (2, 8), "8 ranks and a gigabyte": (8, 2**30), "1,000 ranks": (1000, 2**20)},
    lambda n, nbytes: ((n - 1) * nbytes, 2 * (n - 1) / n * nbytes),
    suspects={
        lambda n, nbytes: (
            2 * (n - 1) * nbytes,
            2 * (n - 1) / n * nbytes,
        ): "rank 0 sends the sum to each of the others. What it receives is not asked for.",
        lambda n, nbytes: (n * nbytes, 2 * (n - 1) / n * nbytes): "rank 0 doesn't send to itself.",
        lambda n, nbytes: (
            (n - 1) * nbytes,
            (n - 1) / n * nbytes,
        ): "every number travels twice: into the sum, and back from it.",
        lambda n, nbytes: (
            (n - 1) * nbytes,
            2 * (n - 1) * nbytes,
        ): "that is what all ranks send together. How many share it?",
    },
    thought="first: how many messages does rank 0 send, and how large are they? Then the formula in bold above.",
)


# --- schedules ----------------------------------------------------------------------------


def log2_steps(n: int) -> int:
    return (n - 1).bit_length()


def scheduled(
    name: str, collective: str, least: Callable, chunks: Callable, rule: Callable, hint: Callable, slow: str
) -> Puzzle:
    """The Puzzle of a schedule for n ranks that keeps a rule, is proved, and takes no more than `least(n)` steps.

    chunks: their number, by n.  rule: from the schedule, what it breaks of the rule, or "".  hint: from the schedule, about
    one that is not right.  slow: about too many steps.
    """

    def verdict(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
        (n,) = arguments
        headline = f"{name} is wrong with {case.kind}: "
        shape = f'return Schedule("{collective}", n, steps, chunks={chunks(n)}) for {case.kind}: a list of steps, each a list of messages.'
        if not isinstance(result, Schedule):
            words = f"{headline}it must return a Schedule, not {kind(result)}."
            return Finding("values", words=words, thought=NOTHING if result is None else shape)
        if (result.collective, result.world_size, result.chunks, result.root or 0) != (collective, n, chunks(n), 0):
            words = f"{headline}its schedule is of {result.collective} for {result.world_size} ranks in {result.chunks} chunks."
            return Finding("values", words=words, thought=shape)
        if len(result.steps) > MAX_STEPS or sum(map(len, result.steps)) > MAX_MESSAGES:
            words = f"{headline}{len(result.steps)} steps are far too many; {least(n)} are enough."
            return Finding("values", words=words, thought=slow)
        if broken := rule(result):
            words = f"{headline}it doesn't go the way that is asked for."
            return Finding("values", words=words, thought=broken, shows=result)
        try:
            result.prove()
        except WrongSchedule as what:
            return Finding("values", words=headline + str(what), thought=hint(result) or FOLLOW, shows=result)
        found = sum(map(bool, result.steps))
        if budget and found > least(n):
            words = f"{name} is right with {case.kind}, but takes {found} steps; {least(n)} are enough."
            return Finding("budget", words=words, thought=slow, shows=result)
        return None

    kinds = {f"{n} rank{'s' * (n > 1)}": n for n in (4, 2, 5, 3, 1, 8)}
    return Puzzle(
        name,
        tuple(Case(1, kind) for kind in kinds),
        lambda d: (kinds[d.case.kind],),
        verdict,
        lambda case, arguments, result: f"With {case.kind} it takes {len(result.steps)} steps.",
    )


NOTHING = "the function returns nothing. Drawing or printing a schedule does not return it."
FOLLOW = "follow one chunk from step to step. Which rank has it, and what is in it by then?"


def messages(schedule: Schedule) -> list:
    return [message for step in schedule.steps for message in step]


def to_the_left(schedule: Schedule) -> str:
    if any(m.target != (m.source - 1) % schedule.world_size for m in messages(schedule)):
        return "the left neighbor of rank r is (r - 1) % n, and every message goes there."
    return ""


def about_left(schedule: Schedule) -> str:
    n = schedule.world_size
    if sum(m.adds for m in messages(schedule)) > n * (n - 1):
        return "the second half puts complete chunks in place: copy, not add."
    first, second = ({(m.source, m.chunks) for m in step} for step in (*schedule.steps[:2], (), ())[:2])
    if n > 2 and {((source - 1) % n, chunks) for source, chunks in first} != second:
        return (
            "follow a chunk. In step 1 rank 0 sends one to rank n - 1, so in step 2 rank n - 1 has to send it on. Which chunk "
            "does your rank n - 1 send there?"
        )
    return ""


def sums_to_rank_0(schedule: Schedule) -> str:
    if any(not m.adds for m in messages(schedule)):
        return "in a reduce, what arrives is added: add(source, target, 0), not copy."
    if any(m.source == 0 for m in messages(schedule)):
        return "rank 0 sends here, and it's the one that should end up with the sum. Swap source and target."
    return ""


def about_tree(schedule: Schedule) -> str:
    gone: set[int] = set()  # ranks that have sent their sum
    for step in schedule.steps:
        if any(m.target in gone for m in step):
            return "something is added on a rank that has sent its sum already. The broadcast's last step comes first in the reduce."
        gone |= {m.source for m in step}
    return ""


LEFT_RING = scheduled(
    "left_ring",
    "all_reduce",
    lambda n: 2 * (n - 1),
    lambda n: n,
    to_the_left,
    about_left,
    "n - 1 steps complete a chunk on each rank, and n - 1 more take it to all. In each, all ranks send.",
)
TREE_REDUCE = scheduled(
    "tree_reduce",
    "reduce",
    log2_steps,
    lambda n: 1,
    sums_to_rank_0,
    about_tree,
    "messages between different ranks can share a step. In the broadcast, how many are there in the last one?",
)


# --- best_pieces --------------------------------------------------------------------------


def chain_seconds(p: int, n: int, nbytes: float, alpha: float, beta: float) -> float:
    return (n - 2 + p) * (alpha + nbytes / p * beta)


def balance(hops: int, nbytes: float, alpha: float, beta: float) -> float:
    """The number of pieces, not rounded, for a chain with so many hops after the first."""
    return sqrt(hops * nbytes * beta / alpha)


def best_pieces(n, nbytes, alpha, beta, hops=None):
    p = int(balance(n - 2 if hops is None else hops, nbytes, alpha, beta))
    return min(
        range(max(1, p - 1), p + 3),
        key=lambda p: chain_seconds(p, (n if hops is None else hops + 2), nbytes, alpha, beta),
    )


BEST_PIECES = valued(
    "best_pieces",
    {
        "64 ranks, 256 MiB, 5 µs, 25 GB/s": (64, 2**28, 5e-6, 4e-11),
        "8 ranks, 1 MiB, 1 µs, 10 GB/s": (8, 2**20, 1e-6, 1e-10),
        "4 ranks, 100 bytes, 10 µs, 1 GB/s": (4, 100, 1e-5, 1e-9),
        "3 ranks, 1 GiB, 20 µs, 50 GB/s": (3, 2**30, 2e-5, 2e-11),
        "1,024 ranks, 1 GiB, 2 µs, 50 GB/s": (1024, 2**30, 2e-6, 2e-11),
    },
    best_pieces,
    suspects={
        lambda n, nbytes, alpha, beta: best_pieces(
            n, nbytes, alpha, beta, hops=n - 1
        ): "the formula has N - 2, not N - 1: the last piece leaves rank 0 in step p, and rank 1 has it then.",
        lambda n, nbytes, alpha, beta: int(
            balance(n - 2, nbytes, alpha, beta)
        ): "where T is smallest, p is between two integers, and this is the lower one. Which of the two gives the smaller T?",
        lambda n, nbytes, alpha, beta: balance(
            n - 2, nbytes, alpha, beta
        ): "a buffer is cut into a whole number of pieces, at least one.",
        lambda n, nbytes, alpha, beta: chain_seconds(
            best_pieces(n, nbytes, alpha, beta), n, nbytes, alpha, beta
        ): "that is the time. Which number of pieces gives it?",
    },
    thought="multiply T out: one term grows with p, one falls with it. Where are the two equal?",
    praise="With 1,024 ranks and 1 GiB: {} pieces.",
)


# --- rail_bytes ---------------------------------------------------------------------------


def rail_bytes(n, k, nbytes):
    return 2 * (k - 1) * nbytes / n


RAIL_BYTES = valued(
    "rail_bytes",
    {
        "4 ranks in 2 nodes": (4, 2, 1000),
        "16 ranks in 2 nodes": (16, 2, 2**20),
        "64 ranks in 8 nodes": (64, 8, 2**30),
        "8 ranks in 1 node": (8, 1, 2**20),
        "512 ranks in 64 nodes": (512, 64, 2**30),
    },
    rail_bytes,
    suspects={
        lambda n, k, nbytes: (
            2 * (k - 1) / k * nbytes
        ): "that is what a leader sends. Along rails, a rank is in charge of one part of the buffer: how large is it?",
        lambda n, k, nbytes: 2 * (n - 1) / n * nbytes: "that is what one link of the flat ring carries.",
        lambda n, k, nbytes: (
            2 * (n - 1) / n * nbytes * k / n
        ): "the ring along a rail has one rank of each node. How many are that?",
        lambda n, k, nbytes: (
            (k - 1) * nbytes / n
        ): "a ring goes around twice: once to add up, once to pass the sums on.",
        lambda n, k, nbytes: (
            2 * (k - 1) / k * nbytes / k
        ): "a node has n / k ranks, and cuts the buffer into so many parts.",
    },
    thought="how large is the part that a rank is in charge of, and how many ranks are in its ring?",
    praise="With 512 ranks in 64 nodes and 1 GiB: {} bytes per rank.",
)


# --- pipeline -----------------------------------------------------------------------------

NAME = "pipeline"
CHAINS = {  # what a case says -> (n, pieces)
    "4 ranks and 3 pieces": (4, 3),
    "2 ranks and 5 pieces": (2, 5),
    "5 ranks and 1 piece": (5, 1),
    "3 ranks and 8 pieces": (3, 8),
    "1 rank and 2 pieces": (1, 2),
    "8 ranks and 8 pieces": (8, 8),
}


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


SHAPE = 'return Schedule("broadcast", n, steps, chunks=pieces), with messages copy(r, r + 1, piece).'
EARLY = (
    "a rank can only pass on what it had when the step began. Piece p leaves rank 0 in step p; in which step does it "
    "leave rank r?"
)
MISSING = "follow one piece: does every rank but the last pass it on? And is the last piece sent by everybody too?"
SLOW = "while a piece is on its way from rank 1 to rank 2, what could rank 0 be sending?"


def thought_about(what: str) -> str:
    return EARLY if "does not have it yet" in what or "does not have" in what else MISSING


PIPELINE = Puzzle(
    NAME,
    tuple(Case(1, kind) for kind in CHAINS),
    lambda d: CHAINS[d.case.kind],
    verdict,
    lambda case, arguments, result: f"With {case.kind} it takes {len(result.steps)} steps.",
)

TASKS = (BUSIEST_SENDS, LEFT_RING, TREE_REDUCE, BEST_PIECES, RAIL_BYTES, PIPELINE)
