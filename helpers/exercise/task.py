"""An exercise as data: its task, the outcome of an answer, and the fault in that."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Callable, NamedTuple

from collectives.log.event import Event
from collectives.log.traffic import Traffic, count

from .cases import Case, Draw

ANY_VALUE = object()  # a wanted result that does not matter


@dataclass(frozen=True)
class Measure:
    """Something besides traffic that an exercise counts in a run, and its limits."""

    words: str  # what is counted, as in "rank 0 has 5 of its microbatches under way"
    count: Callable[[list[list[Event]]], list[float]]  # one number per rank, from the events of all
    most: list[float]
    least: list[float] | None = None


@dataclass(frozen=True)
class Budget:
    """The most an answer may move. Lists hold one number per rank; None: not limited."""

    words: str  # as in the statement
    sent: list[float] | None = None  # bytes
    received: list[float] | None = None  # bytes
    messages: list[int] | None = None  # sent
    steps: int | None = None
    links: set[tuple[int, int]] | None = None  # (source, target) of allowed messages
    least: float | None = None  # bytes: fewer are impossible for the busiest rank
    largest: list[float] | None = None  # bytes of the largest buffer that a rank may hold for one call
    calls: list[int] | None = None  # collectives and messages that a rank starts
    together: bool = False  # whether a rank must start all its calls before it waits for the first
    measures: tuple[Measure, ...] = ()
    read: list[float] | None = None  # bytes of the files among the arguments (on_rank.File)
    reads: list[int] | None = None  # requests for them


@dataclass(frozen=True)
class Suspect:
    """A mistake people make, known by its result."""

    result: Callable[[list[tuple]], list[Any]]  # from all ranks' arguments, one per rank
    thought: str
    where_wrong: bool = False  # it explains the wrong ranks only; the others may have got it right


class OnError(NamedTuple):
    """A thought on some errors.  errors: a pattern of '3 ranks: ValueError: there is no rank 3', or of '3 ranks: ' and a report."""

    errors: str
    thought: str


@dataclass(frozen=True)
class Task:
    """The task of a function that all ranks call."""

    name: str  # of the function
    cases: tuple[Case, ...]
    draw: Callable[[Draw], tuple]  # the arguments of one rank
    reference: Callable[[list[tuple]], list[Any]]  # each rank's expected result
    budget: Callable[[Case, list[tuple]], Budget]
    after: Callable[[list[tuple]], list[tuple]] | None = lambda args: args  # the arguments afterwards; None: whatever
    new: bool = False  # whether a result must not be an argument
    allowed: frozenset[str] | None = None  # ops; None: all
    scale: Callable[[list[tuple]], float] | None = None  # judge.TOLERANCE is a part of this
    parameters: tuple[str, ...] = ("x",)  # of the function
    outputs: tuple[str, ...] = ()  # its results, by name, if there are several
    # Bytes that a rank needs: it must get them from other ranks, or from a file, to know its result.
    needs: Callable[[Case, list[tuple]], list[float]] = field(kw_only=True)
    suspects: tuple[Suspect, ...] = ()
    # Where steps are limited: more numbers than pass between ranks by no call (delays, caches). Only a grader tries it.
    large: Case | None = None
    drawn: int | None = None  # the call of a right answer's run to draw; None: all
    imports: tuple[str, ...] = ()  # modules that torch imports within a call: here once, not in each rank
    # A fault, an aspect, a limit of the budget or an error's name -> one thing to think about. "traffic" means both
    # "sent" and "received".  OnError: a thought for some errors and reports alone.
    thoughts: dict[str, str | OnError] = field(default_factory=dict)
    # From an answer whose values are wrong and a world size: each chunk's journey, in words and to be drawn; None where
    # it is unknown.
    follow: Callable[[Callable, int], tuple[str, Any] | None] | None = None

    def arguments(self, case: Case, seed: str = "") -> list[tuple]:
        """The arguments of each rank."""
        return [self.draw(Draw(seed, self.name, case, rank)) for rank in range(case.world_size)]


@dataclass(frozen=True)
class Puzzle:
    """The task of a function that is called once, and judged by its result: a plan or a number, not a run.

    It runs on a rank that is alone: an endless one ends, and nothing of it runs in the process that judges.
    """

    name: str  # of the function
    cases: tuple[Case, ...]  # of world size 1; the last one is the one to report
    draw: Callable[[Draw], tuple]  # the arguments
    verdict: Callable[[Case, tuple, Any, bool], "Finding | None"]  # case, arguments, result, whether the budget counts
    praise: Callable[[Case, tuple, Any], str]  # a right answer's achievement
    thoughts: dict[str, str] = field(default_factory=dict)  # name of an error of the run -> one thing to think about
    thought_on: Callable[[list[tuple[tuple, Any]]], str] | None = None  # arguments and results -> the thought on all of them

    def arguments(self, case: Case, seed: str = "") -> list[tuple]:
        """The arguments of the one call, in a list of one, as Task.arguments."""
        return [self.draw(Draw(seed, self.name, case, 0))]


@dataclass
class Attempt:
    """The outcome of one case."""

    results: list[Any]  # per rank: the function's result
    arguments: list[tuple]  # per rank: its arguments afterwards
    events: list[list[Event]]  # per rank
    reads: list[list[int]] = field(default_factory=list)  # per rank: bytes that each read of a file got
    left: list[str] = field(default_factory=list)  # per rank: what else the answer left, see on_rank.outcome

    @cached_property
    def traffic(self) -> Traffic:
        """The traffic between the ranks, and from files to them."""
        return replace(count(self.events), read=[sum(sizes) for sizes in self.reads], reads=list(map(len, self.reads)))


class WrongPart(NamedTuple):
    """The first part of a value that is not the wanted one."""

    wanted: Any
    got: Any
    place: tuple[tuple[int, int], ...] = ()  # (number of the part, how many there are), from outside in
    numbers: int = 0  # that differ, where both are tensors of one shape and dtype


@dataclass(frozen=True)
class Finding:
    """The reason why an answer is not right, as data. `feedback.explain` puts it into words."""

    aspect: str  # "calls", "values", "inputs", "flags", "argument", "waits", "needs" or "budget"
    ranks: tuple[int, ...] = ()  # the ranks concerned; the rest is about the first of them
    wanted: Any = None  # its result or argument; of a budget, the limit
    got: Any = None
    argument: int | None = None  # which argument of the function it is about, if not about the result
    difference: WrongPart | None = None
    traffic: Traffic | None = None
    limit: str = ""  # the field of Budget that is exceeded: "links", "sent", ..., or a Measure's words
    event: Event | None = None  # the call that is not allowed, not waited for, or too late
    before: Event | None = None  # the call that was waited for before `event` was made
    thought: str = ""  # of the mistake that explains it, if one is known
    words: str = ""  # of a Puzzle's verdict, which only the puzzle can word
    shows: Any = None  # to be drawn, besides the run
