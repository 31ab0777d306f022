"""`predict()`: predict the ranks' tensors, then see them.  `ask()`: the same for a value that is known.

    from helpers import predict

    predict(share, world_size=4)

The cell shows each rank's input, and cells to fill in.  Run (or Enter) runs the ranks, marks the answers, and
explains why a wrong number is wrong; before, nothing in the page gives the answer away.  Where there are no widgets,
`predict(share, answers=[...])` does the same.  A program that executes the notebook gets the ranks' calls.
"""

import math
from numbers import Real
from typing import Any, Callable, Iterable, Mapping, Sequence

from collectives.launch.attempt import Outcome, attempt
from collectives.outcome.errors import RunError
from collectives.outcome.run import Run

from .prediction import Prediction
from .questions import VERDICTS, Choice, FillIn, Open, waiting_ranks

QUESTIONS = ("after", "returned", "chunks", "verdict", "waits")


def predict(
    fn: Callable[..., Any],
    *args: Any,
    ask: str | None = None,
    choices: Sequence[str] | Mapping[str, Any] | None = None,
    answer: Callable[[Run | RunError], Any] | None = None,
    rank: int | Iterable[int] | None = None,
    call: int = -1,
    answers: Any = None,
    because: Mapping[str, str] | None = None,
    **kwargs: Any,
) -> Prediction:
    """Ask for the outcome of `run(fn, *args, **kwargs)` before it runs.

    fn, args, kwargs: as for `run`, with its world_size, timeout and check.
    ask: the question.
        "after": the numbers each rank holds after a call (the default where there is a call);
        "returned": fn's result on each rank (the default where there is no call, or messages);
        "chunks": as "after", in letters: b₂ is chunk b of rank 2, Σb the sum of all ranks' b;
        "verdict": how the run ends; "waits": which ranks wait forever;
        any other words: a question of your own, with `choices` or `answer`.
    choices: sentence -> when it is right: the answer's value; the end of the run (Stuck, Mismatch, RankFailed, or Run,
        if it finishes); or a function of the Run (RunError) that returns whether it is.  Or a list of values.  If none
        fits, the number nearest to the answer is right: by their ratio, where all are positive.
    answer: a function of the Run (of the RunError, if it ended with one) that returns the answer: a number, several, or
        a word.  None: what rank 0 returned.
    rank: the rank, or the ranks, to fill in; None: all.
    call: which of the run's calls "after" and "chunks" are about; -1: the last.
    answers: the prediction, without a widget: a row for each rank to fill in, as "0 1 2", a list or a tensor; or one
        value for a question with one answer.
    because: choice -> why it is wrong, shown if it is chosen.  "verdict" has its own reasons.

    As the last expression of a cell, it shows itself.  Raises what `run` raises for bad arguments, and ValueError
    for an impossible question.
    """
    question = _question(fn, args, kwargs, ask, choices, answer, rank, call, because or {})
    prediction = Prediction(question, lambda: attempt(fn, args, kwargs), getattr(fn, "__name__", "fn"))
    return prediction if answers is None else prediction.answer(answers)


def ask(question: str, choices: Mapping[str, Any] | Sequence[Any] | Callable, was: Any) -> Prediction:
    """Ask for a value that the notebook has computed: no ranks run.

    choices: as for predict(); a function gets the value.  Or min, max: the key of `was` that has the least, the most.
    was: the value, which is shown with the answer.

        ask("How many all_reduces?", {"four": [4, 4], "one, then four": [1, 4]}, was=counted)
    """
    chosen = choices(was, key=was.get) if choices in (min, max) else was
    tests = _by_words(list(was) if choices in (min, max) else choices)
    known = Choice(question, tuple(tests), lambda done: _fitting(tests, chosen, lambda value: value), {}, {})
    return Prediction(known, lambda: Outcome(KnownResult(1, [was]), None, ""), "ask")


class KnownResult(Run):
    """A run without ranks: its result is a value that was known before."""

    def __repr__(self) -> str:
        (value,) = self.results
        several = isinstance(value, dict)
        return "\n".join(f"{key}: {item}" for key, item in value.items()) if several else f"It is {value}."


def _question(fn, args, kwargs, ask, choices, answer, rank, call, because) -> FillIn | Open | Choice:
    if not callable(fn):
        raise TypeError(f"predict() needs a function to run on every rank, not {fn!r}.")
    words = ask if ask not in QUESTIONS else None
    if choices is None and answer is None and ask in (None, "after", "returned", "chunks"):
        first = attempt(fn, args, kwargs)
        calls = first.run.calls
        talks = any(not c.is_message for c in calls)
        kind = ask or ("after" if talks or calls and all(r is None for r in first.run.results) else "returned")
        ranks = None if rank is None else (rank,) if isinstance(rank, int) else tuple(rank)
        return FillIn(getattr(fn, "__name__", "fn"), kind, call, ranks, first)
    if ask == "verdict":
        choices = choices or VERDICTS
        words = "How does it end?"
    if ask == "waits":
        return Open("Which ranks wait forever?  (their numbers, or none)", waiting_ranks)
    if choices is None and answer is None and "?" not in (ask or ""):
        known = ", ".join(map(repr, QUESTIONS))
        given = "End a question of your own with a question mark, or ask for one of"
        raise ValueError(f"predict: {ask!r} has no answer. {given} {known}.")
    if choices is None:
        return Open(words or "What is the answer?", answer or _first_result)
    tests = _by_words(choices)
    if unknown := [option for option in because if option not in tests]:
        raise ValueError(f"predict: because={{...}} names {unknown[0]!r}, which is not one of the choices.")
    ends = {option: test for option, test in tests.items() if isinstance(test, type)}
    find = answer or _first_result
    return Choice(words or "What happens?", tuple(tests), lambda done: _fitting(tests, done, find), because, ends)


def _first_result(end: Run | RunError) -> Any:
    """Rank 0's result; None where the run did not finish."""
    return end.results[0] if isinstance(end, Run) else None


def _by_words(choices: Mapping[str, Any] | Sequence[Any]) -> Mapping[str, Any]:
    return choices if isinstance(choices, Mapping) else {str(choice): choice for choice in choices}


def _fitting(tests: Mapping[str, Any], end: Any, answer: Callable[[Any], Any]) -> str | None:
    """The first choice that fits, or else that with the number nearest to the answer; None if there is neither."""
    value = None
    for words, test in tests.items():
        if callable(test):
            fits = isinstance(end, test) if isinstance(test, type) else test(end)
        else:
            value = answer(end)
            fits = type(value == test) is bool and value == test
        if fits:
            return words
    numbers = {words: test for words, test in tests.items() if _is_number(test)}
    if not (numbers and _is_number(value)):
        return None
    scale = math.log if min(value, *numbers.values()) > 0 else float
    return min(numbers, key=lambda words: abs(scale(numbers[words]) - scale(value)))


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
