"""Verdicts in words: expected above got, traffic next to its budget, one thing to think about."""

import builtins
import re
import reprlib
from typing import Any, Callable, Collection, Sequence

import torch

from collectives.format import align, dtype_name, kind, name_ranks, number, size
from collectives.judge.wording import source
from collectives.log.text import text
from collectives.log.traffic import Traffic
from collectives.outcome.errors import Mismatch, RankFailed, RunError
from collectives.outcome.run import Run

from .cases import KINDS, Case, literal, ranks
from .task import Budget, Finding, OnError, Puzzle, Task, WrongPart

SHOWN_NUMBERS = 10  # of a tensor
SHOWN_INPUTS = 8  # of as many ranks
MOST_TO_PASTE = 600  # characters of a line
Cases = Collection[Case]


def explain(
    task: Task | Puzzle, case: Case, inputs: list[tuple], verdict: Finding, passed: Cases = (), more: str = ""
) -> str:
    """A verdict in words.  inputs: each rank's arguments.  passed: cases it was right in.  more: further facts."""
    said = verdict.words or _WORDS[verdict.aspect](task, case, inputs, verdict)
    thought = verdict.thought or _thought_of(task, verdict) or _THOUGHTS.get(verdict.aspect, "")
    if verdict.aspect in ("needs", "budget"):
        return _join(said, _think(thought))
    return _join(said, more, _whole_numbers(case, passed), _think(thought), _to_paste(task, case, inputs))


def _join(*parts: str) -> str:
    return "\n".join(filter(None, parts))


def _think(thought: str) -> str:
    return f"Think: {thought}" if thought else ""


def _whole_numbers(case: Case, passed: Cases) -> str:
    """A sentence about a case of whole numbers, where the answer was right with others."""
    if case.dtype.is_floating_point or case.kind not in KINDS:  # such a kind has its own name
        return ""
    others = sorted({dtype_name(other.dtype) for other in passed if other.dtype.is_floating_point})
    before = f", and it was right with {' and '.join(others)}" if others else ""
    return f"The numbers are integers here ({dtype_name(case.dtype)}){before}."


def _to_paste(task: Task | Puzzle, case: Case, inputs: list[tuple]) -> str:
    """The case as a line of Python; "" where it would not be short, or not be the same case."""
    if case.late is not None or case.size > MOST_TO_PASTE or inputs == [()]:  # only the check makes a rank late
        return ""
    try:
        calls = [", ".join(literal(value) for value in arguments) for arguments in inputs]
    except ValueError:
        return ""
    if isinstance(task, Puzzle):
        line = f"{task.name}({calls[0]})"
    elif len(set(calls)) == 1:
        called = f"lambda: {task.name}({calls[0]})" if calls[0] else task.name
        line = f"run({called}, world_size={case.world_size})"
    else:
        several = len(inputs[0]) > 1
        each = "*" * several + f"[{', '.join(f'({call})' if several else call for call in calls)}]"
        line = f"run(lambda: {task.name}({each}[dist.get_rank()]), world_size={case.world_size})"
    return f"This case, to try by hand:\n{line}" if len(line) <= MOST_TO_PASTE else ""


_THOUGHTS = {
    "inputs": "whoever called the function may still need its tensor. Which line writes into it? Work on a copy.",
    "needs": "which call sends this rank the other ranks' numbers?",
    "flags": "whoever called the function still needs its tensors. x.detach().requires_grad_() is a tensor of your own.",
    "argument": "whoever called the function may write into its tensors afterward. Return a copy: clone() makes one.",
    "waits": "until work.wait() returns, nobody knows whether the data has moved. Keep the work, and wait.",
}


def _thought_of(task: Task | Puzzle, verdict: Finding) -> str:
    what = verdict.limit or verdict.aspect
    if what in ("sent", "received"):
        return task.thoughts.get(what) or task.thoughts.get("traffic", "")
    return task.thoughts.get(what) or (_allowed(sorted(task.allowed or ())) if verdict.aspect == "calls" else "")


def _allowed(ops: list[str]) -> str:
    if not ops:
        return "it doesn't need any call of torch.distributed."
    *first, last = ops
    return f"only {', '.join(first)}{' and ' * bool(first)}{last} {'are' if first else 'is'} allowed."


def broken_words(
    task: Task | Puzzle, n_ranks: int, error: RunError, case: Case | None = None, inputs: Any = (), passed: Cases = ()
) -> str:
    """The message about a run of `n_ranks` that raised.  case, inputs, passed: of the one case known to fail."""
    if unwritten(error):
        return to_write(task, "The hints below open one at a time.")
    early = any(e.misuse in ("read", "returned", "written") for events in error.run.events for e in events)
    forgotten = "" if isinstance(error, RankFailed) else _unwaited(error.run)  # a rank that raised had no time to wait
    dropped = "dropped the handle" in str(error)  # the report names it, with its remedy
    thought = _EARLY_USE if early else forgotten or ("" if dropped else _thought_on(task, error))
    if isinstance(task, Puzzle):
        situation = case.kind if case else "one of its cases"
    else:
        situation = ranks(n_ranks) + (f" ({case})" if case else "")
    said = f"{task.name} with {situation}: {type(error).__name__}\n{error}"
    if case is None:
        return _join(said, _think(thought))
    return _join(said, _whole_numbers(case, passed), _think(thought), _to_paste(task, case, inputs))


_NONE_RETURNED = "did this None come from a call? torch.distributed's functions return None: the result is in the tensor that was passed in."
_SLIP = re.compile("(NameError|UnboundLocalError|ImportError|ModuleNotFoundError|KeyError|ZeroDivisionError)")


def _thought_on(task: Task | Puzzle, error: RunError) -> str:
    """A task's thought on how a run ended, if it is about that: not on a slip of Python, nor on dtypes if it names none."""
    thought, failed = task.thoughts.get(type(error).__name__, ""), isinstance(error, RankFailed)
    last = error.traceback.rstrip().rpartition("\n")[2].strip() if failed else ""
    if isinstance(thought, OnError):
        thought = thought.thought if re.search(thought.errors, f"{ranks(error.run.world_size)}: {last or error}") else ""
    if failed:
        if _SLIP.match(last):
            return ""
        if "can't be cast to the desired output type" in last and "divided" not in thought:
            return "an integer tensor can't hold a fraction, so it can't be divided in place. Which dtype should the result have?"
        if "NoneType" in last and "elements of type" not in last and "None" not in thought:
            return "" if _NONE_RETURNED[4:] in str(error) else _NONE_RETURNED
    dtypes = re.search(r"\bdtypes?\b", str(error).partition("\n")[0])
    return "" if isinstance(error, Mismatch) and dtypes and "dtype" not in thought else thought


def too_slow(task: Task | Puzzle, cases: list[Case], seconds: float) -> str:
    """The message about cases of one world size that end one by one, but not one after the other within a time."""
    many = "" if isinstance(task, Puzzle) else f" with {ranks(cases[0].world_size)}"
    return (
        f"{task.name}{many} is right in each of {len(cases)} cases by itself, but all of them together took longer than {seconds:g} s.\n"
        "Think: does each call take longer than the one before? If not, close whatever else keeps this computer busy, and "
        "check again."
    )


def not_again(task: Task | Puzzle, world_size: int) -> str:
    """The message about an answer that is right in each case by itself, but not in one after the other."""
    many = "once" if isinstance(task, Puzzle) else f"once with {ranks(world_size)}"
    return (
        f"{task.name} works when it is called {many}, but not when it is called again and again.\n"
        "Think: what does a call leave behind for the next one? A message that nobody received, a global variable?"
    )


_EARLY_USE = "a call owns its tensors until its wait() returns. Wait first, or let the call have a copy."


def to_write(task: Task | Puzzle, below: str) -> str:
    """The message about an answer that is not written yet.  below: a sentence with help."""
    return (
        f"{task.name} isn't written yet.\n"  # short enough that JupyterLab doesn't break it, even inside words
        f"Replace `raise NotImplementedError()` above with your code, run that cell, then run this one.\n{below}"
    )


def unwritten(error: RunError) -> bool:
    """Whether it was the exercise's own placeholder that ended the run."""
    last = error.traceback.rstrip().rpartition("\n")[2] if isinstance(error, RankFailed) else ""
    return last.startswith("NotImplementedError")


def _unwaited(run: Run) -> str:
    """An isend or irecv without a wait: gloo may never carry it out."""
    for events in run.events:
        begun = [e for e in events if e.is_message and e.async_op and e.end is None]
        if begun and all(e.waiting is None for e in events):  # a rank that waits may not have come so far
            op = f"i{begun[0].op}"
            return f"rank {begun[0].rank} never waits for its {op}. Keep what {op} returns, and call its wait()."
    return ""


def _call(task: Task, case: Case, inputs: list[tuple], verdict: Finding) -> str:
    """A call that is not allowed, or that has no wait, and its line."""
    e = verdict.event
    if verdict.aspect == "calls":
        fault = f"calls {e.within or e.op}, which this exercise doesn't allow"
    else:
        fault = f"never waits for its {'i' * e.is_message}{e.op} on rank {e.rank}"
    return f"{task.name} {fault}.\n  rank {e.rank}   {source(e.line)}"


def _values(task: Task, case: Case, inputs: list[tuple], verdict: Finding) -> str:
    """All ranks' inputs; wanted above got on the first rank that is wrong, marked where they differ; the other ranks."""
    place = f"on rank {verdict.ranks[0]} of {ranks(case.world_size)}"
    if verdict.aspect == "inputs":
        fault = f"changes its input {place}."
    elif verdict.argument is not None:
        fault = f"leaves the wrong numbers in {_argument(task, verdict)} {place}."
    else:
        fault = f"is wrong {place}: {_differs(verdict.difference, task.outputs)}"
    lines = [f"{task.name} {fault}"] + [f"  input: {case}"] * bool(task.parameters)
    for r, arguments in enumerate(inputs[: SHOWN_INPUTS * bool(task.parameters)]):
        lines.append(f"    rank {r}   {_arguments(task.parameters, arguments)}".rstrip())
    return _join(*lines, *_pairs(verdict), _other_ranks(verdict.ranks, case.world_size))


def _left(task: Task, case: Case, inputs: list[tuple], verdict: Finding) -> str:
    place = f"on rank {verdict.ranks[0]} of {ranks(case.world_size)}"
    if verdict.aspect == "flags":
        return f"{task.name} changes its input {place}: a tensor requires a gradient afterward, or has one."
    return f"{task.name} is wrong {place}: it returns a tensor that was passed in, and must return a new one."


def _argument(task: Task, verdict: Finding) -> str:
    """'its tensor', or of several by name: 'weights', 'weights[2]'"""
    if len(task.parameters) == 1:
        return "its tensor"
    return task.parameters[verdict.argument] + "".join(f"[{k}]" for k, _ in verdict.difference.place)


def _differs(difference: WrongPart, names: tuple[str, ...]) -> str:
    """In one sentence.  names: of the results."""
    wanted, got, place, numbers = difference
    within = "".join(
        f"{names[k]}: " if names and not depth else f"result {k + 1} of {count}: "
        for depth, (k, count) in enumerate(place)
    )
    if numbers:
        many = wanted.numel()
        return f"{within}{numbers} of {many} number{'s' * (many != 1)} differ{'s' * (many == 1)}."
    if isinstance(wanted, (tuple, list)):
        several = isinstance(got, (tuple, list)) and len(got) != len(wanted)
        return f"{within}it must return {_items(wanted)}, not {len(got) if several else kind(got)}."
    if isinstance(wanted, torch.Tensor) or type(got) is not type(wanted):
        any_tensor = isinstance(wanted, torch.Tensor) and not isinstance(got, torch.Tensor)
        return f"{within}it must return {'a tensor' if any_tensor else kind(wanted)}, not {kind(got)}."
    if isinstance(wanted, float):
        return f"{within}it returned {got:g}, not {wanted:g}."
    return f"{within}it returned {got}, not {wanted}."


def _items(values: tuple | list) -> str:
    """'a list of 1 item', '2 results'"""
    if isinstance(values, tuple):
        return f"{len(values)} result{'s' * (len(values) != 1)}"
    return f"a list of {len(values)} item{'s' * (len(values) != 1)}"


def _other_ranks(wrong: tuple[int, ...], world_size: int) -> str:
    """A sentence about the ranks that the rest is not about: which are right and which are not."""
    right = [rank for rank in range(world_size) if rank not in wrong]
    if not right:
        return f"{_are(wrong[1:])} wrong too." if world_size > 1 else ""
    return f"{_are(right)} right{', the others are not' * (len(wrong) > 1)}."


def _are(ranks: Sequence[int]) -> str:
    return f"{name_ranks(ranks).capitalize()} {'is' if len(ranks) == 1 else 'are'}"


def _arguments(parameters: tuple[str, ...], arguments: tuple) -> str:
    if len(arguments) == 1:
        return in_words(arguments[0])
    return ", ".join(f"{name} = {in_words(value)}" for name, value in zip(parameters, arguments))


def in_words(value: Any) -> str:
    """A value in a line."""
    tensors = value if isinstance(value, list) else [value]
    all_tensors = bool(tensors) and all(isinstance(tensor, torch.Tensor) for tensor in tensors)
    return text(_dense(value)) if all_tensors else _Line().repr(value)


class _Line(reprlib.Repr):
    """The repr of a value that may hold tensors, one line long."""

    def __init__(self) -> None:
        super().__init__()
        self.maxtuple = self.maxlist = self.maxdict = SHOWN_NUMBERS
        self.maxlong, self.maxstring, self.maxother = 200, 200, 500  # characters, of a file all

    def repr1(self, value: Any, level: int) -> str:
        # A submission's result arrives as a stand-in that only bears the name of its type.
        named_like = getattr(builtins, type(value).__name__, None)
        return super().repr1(value, level) if named_like in (None, type(value)) else self.repr_instance(value, level)

    def repr_Tensor(self, tensor: torch.Tensor, level: int) -> str:
        dense = _dense(tensor)
        return f"tensor({text(dense)})" if dense is tensor else dense

    repr_Parameter = repr_Tensor


def _dense(value: Any) -> Any:
    """The value; a sparse tensor, whose numbers have no order to be shown in, is replaced by its kind."""
    if isinstance(value, (list, tuple)):
        return [_dense(part) for part in value]
    return kind(value) if isinstance(value, torch.Tensor) and value.layout != torch.strided else value


def _pairs(verdict: Finding) -> list[str]:
    wanted, got, *_ = verdict.difference
    label = f"rank {verdict.ranks[0]}"
    tensors = isinstance(wanted, torch.Tensor) and isinstance(got, torch.Tensor)
    if tensors and wanted.shape == got.shape and wanted.numel() and got.layout == torch.strided:
        return _numbers(wanted, got, label)
    return [f"  {label}   expected   {in_words(wanted)}", f"  {' ' * len(label)}   got        {in_words(got)}"]


def _numbers(wanted: torch.Tensor, got: torch.Tensor, label: str) -> list[str]:
    flat_wanted, flat_got = wanted.flatten().tolist(), got.flatten().tolist()
    words = [(number(w), number(g)) for w, g in zip(flat_wanted, flat_got)]
    if all(w == g for w, g in words):  # the difference is smaller than the shown digits
        words = [(str(w), str(g)) for w, g in zip(flat_wanted, flat_got)]
    first = next((k for k, (w, g) in enumerate(words) if w != g), 0)
    first = max(0, min(first, len(words) - SHOWN_NUMBERS))
    shown = words[first : first + SHOWN_NUMBERS]
    rows = [[label, " expected ", *(w for w, _ in shown)], ["", " got", *(g for _, g in shown)]]
    rows.append(["", "", *("^" * len(g) if w != g else "" for w, g in shown)])
    if len(words) > SHOWN_NUMBERS:
        rows[0].append(f" (numbers {first} to {min(first + SHOWN_NUMBERS, len(words)) - 1} of {len(words)})")
    return [line for line in align(rows, right=range(2, len(rows[0])), indent="  ").splitlines() if line]


def _needs(task: Task, case: Case, inputs: list[tuple], verdict: Finding) -> str:
    """The message about a rank that received less than its result needs."""
    rank, of = verdict.ranks[0], ranks(case.world_size)
    return (
        f"{task.name} has the right result on rank {rank} of {of}, which received {_size(verdict.got)}.\n"
        f"The task is to get it by calls of torch.distributed, in which this rank receives at least {_size(verdict.wanted)}: what "
        "it knows in any other way doesn't count."
    )


def _budget(task: Task, case: Case, inputs: list[tuple], verdict: Finding) -> str:
    budget = task.budget(case, inputs)
    headline = f"{task.name} is right with {ranks(case.world_size)}, but {_exceeds(verdict)}"
    lines = [f"  {source(e.line)}" for e in (verdict.before, verdict.event) if e]
    return "\n".join([headline, *dict.fromkeys(lines), _table(case, verdict.traffic, budget)])


def _size(nbytes: float) -> str:
    return size(round(nbytes, 1))


_LIMITS = {  # on what each rank does, in the order of the table's columns: the phrase about a rank, its number's format
    "read": ("reads {} of the file", _size),
    "reads": ("makes {} read{s} of the file", str),
    "sent": ("sends {}", _size),
    "received": ("receives {}", _size),
    "messages": ("sends {} message{s}", str),
    "largest": ("has a buffer of {} in one call", _size),
    "calls": ("makes {} call{s}", str),
    "empty": ("makes {} calls that carry no number, and their tags, order and count can say as much as numbers", str),
}


def _exceeds(verdict: Finding) -> str:
    """In one sentence."""
    limit, wanted, got = verdict.limit, verdict.wanted, verdict.got
    if limit == "links":
        return f"rank {got[0]} sends to rank {got[1]}, which isn't allowed."
    if limit == "steps":
        return f"takes {got} steps; {wanted} {_is(wanted, str)} enough."
    rank = f"rank {verdict.ranks[0]}"
    if limit == "together":
        first, then = (f"{e.op} #{e.index + 1}" for e in (verdict.before, verdict.event))
        return f"{rank} waits for {first} before it starts {then}."
    if limit in _LIMITS:
        does, written = _LIMITS[limit]
        return (
            f"{rank} {does.format(written(got), s='s' * (got != 1))}; {written(wanted)} {_is(wanted, written)} enough."
        )
    has = f"{rank} {'has' if got > wanted else 'never has more than'} {number(got)} {limit}"
    return f"{has}; {'the limit is' if got > wanted else 'at one point it should have'} {number(wanted)}."


def _is(wanted: float, written: Callable) -> str:
    return "is" if written is _size or wanted == 1 else "are"


def traffic_words(traffic: Traffic) -> str:
    """'the busiest rank moves 24 B in 4 messages and 4 steps'; of collectives only the least is known"""

    def plural(n: int, what: str) -> str:
        return f"{n} {what}{'s' * (n != 1)}"

    moved = size(round(traffic.busiest))
    if any(traffic.messages):
        moves = f"{plural(max(traffic.messages), 'message')} and {plural(traffic.steps, 'step')}"
        words = f"the busiest rank moves {moved} in {moves}"
    else:
        words = f"the busiest rank has to move {moved}" + f" ({', '.join(sorted(traffic.ops))})" * bool(traffic.ops)
    if any(traffic.reads):
        words += f", and a rank reads at most {size(round(max(traffic.read)))} in {plural(max(traffic.reads), 'read')}"
    return words


def _table(case: Case, moved: Traffic, budget: Budget) -> str:
    """Each rank's traffic next to its budget."""
    limited = [limit for limit in _LIMITS if getattr(budget, limit, None) is not None]
    rows = [["rank"] + [word for limit in limited for word in (limit, "budget")]]
    for r in range(case.world_size):
        rows.append([str(r)])
        for limit in limited:
            did, may, (_, written) = getattr(moved, limit)[r], getattr(budget, limit)[r], _LIMITS[limit]
            rows[-1] += [written(did) + " !" * (did > may + 1e-6), written(may)]
    lines = [align(rows, indent="  ", gap="   ")]
    if budget.steps is not None:
        lines.append(f"  steps  {moved.steps}{' !' * (moved.steps > budget.steps)}, budget {budget.steps}")
    return "\n".join([f"  input: {case}", *lines, f"The budget: {budget.words}."])


_WORDS = {
    "calls": _call, "values": _values, "inputs": _values, "flags": _left, "argument": _left, "waits": _call,
    "needs": _needs, "budget": _budget,
}  # fmt: skip
