"""The errors a run can end with, and how they read: what happened, where, what to try."""

from __future__ import annotations

import signal

from .diagnose import State, is_consequence, needs
from .record import LOST, Call, Event, Failure, Line, Run
from .twin import dtype_name, span


class RunError(RuntimeError):
    """A run that did not end well. `.run` holds what was recorded until then."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run

    def _render_traceback_(self) -> list[str]:
        # Jupyter shows this in place of a traceback through our own launcher.
        return f"{type(self).__name__}: {self}".splitlines()


class RankFailed(RunError):
    """A rank raised an exception or died. `.rank` is the first that did, `.traceback` its full text."""

    def __init__(self, message: str, run: Run, rank: int, traceback: str = "") -> None:
        super().__init__(message, run)
        self.rank, self.traceback = rank, traceback


class Mismatch(RunError):
    """Calls that belong together disagree: in op, shape, dtype, reduce op, root, sizes. `.call` is theirs."""

    def __init__(self, message: str, run: Run, call: Call) -> None:
        super().__init__(message, run)
        self.call = call


class Stuck(RunError):
    """A wait that can never end, or a run that is out of time.

    `.ranks` are those that have not returned, `.waits` tells for whom each of them waits,
    `.standing` what every rank is doing, in a few words.
    """

    def __init__(self, message: str, state: State, run: Run, ranks: tuple[int, ...]) -> None:
        super().__init__(message, run)
        self.ranks = ranks
        self.standing = [_stands(rank, state)[0] for rank in range(state.world_size)]
        self._shown = False
        self.waits = {r: needs(e, state.pairs.of[id(e)]) for r, e in state.blocked.items()}

    def draw(self):
        """The picture of who waits for whom: a matplotlib Figure."""
        from .waits import wait_for  # as in Run: the picture knows the error, not the other way round

        return wait_for(self.standing, self.waits)

    def _render_traceback_(self) -> list[str]:
        from IPython.display import display

        if self.waits and not self._shown:  # Jupyter asks more than once
            self._shown = True
            display(self.draw())
        return super()._render_traceback_()


class Interrupted(KeyboardInterrupt):
    """A run that somebody interrupted. `.run` holds what was recorded until then."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run

    def _render_traceback_(self) -> list[str]:
        return f"KeyboardInterrupt: {self}".splitlines()


def interrupted(state: State, run: Run, started: bool) -> Interrupted:
    where = f"The ranks were here:\n{_standing(state)}" if started else "The ranks had not started yet."
    return Interrupted(f"interrupted. {where}", run)


# --- stuck --------------------------------------------------------------------------------


def stuck(state: State, run: Run, waits: dict[int, set[int]]) -> Stuck:
    ranks = tuple(sorted(waits))
    absent = {r for rank, on in waits.items() for r in _absent(state.blocked[rank], state) | on}
    gone = sorted(absent & state.returned)
    verdict = "; ".join(
        [f"{_ranks(rs)} {_verb('wait', rs)} in {what}" for what, rs in _by(ranks, state, _waits_in).items()]
        + [f"{_ranks(rs)} returned {what}" for what, rs in _by(gone, state, _after).items()]
    )
    return Stuck(
        f"{verdict}. This can never finish.\n{_standing(state)}\n{_advice(state, waits, gone)}", state, run, ranks
    )


def _absent(event: Event, state: State) -> set[int]:
    """Members of a collective's group that have not made the call, whether this wait needs them or not."""
    return set() if event.is_message else set(event.group) - set(state.pairs.of[id(event)].ranks)


def out_of_time(state: State, run: Run, seconds: float) -> Stuck:
    busy = [r for r in range(state.world_size) if r not in state.returned]

    def doing(rank: int, state: State) -> str:
        return f"in {_waits_in(rank, state)}" if rank in state.blocked else _at(rank, state)

    who = "; ".join(
        f"{_ranks(rs)} {_verb('wait' if what.startswith('in ') else 'run', rs)} {what}"
        for what, rs in _by(busy, state, doing).items()
    )
    if any(_at(r, state) == NEW_GROUP for r in busy):
        advice = "Every rank must call new_group, also one that will not be a member: in the same order, with the same ranks."
    elif any(r not in state.blocked for r in busy):
        advice = "Give it longer with run(..., timeout=seconds), or look for a loop that does not end."
    else:
        advice = "Look for the call that the waiting ranks' partners did not make."
    return Stuck(f"out of time after {seconds:g} s: {who}.\n{_standing(state)}\n{advice}", state, run, tuple(busy))


NEW_GROUP = "in new_group"


def _at(rank: int, state: State) -> str:
    """Where a rank that waits in no call is."""
    return NEW_GROUP if "new_group" in state.inside.get(rank, ()) else "your code"


def _advice(state: State, waits: dict[int, set[int]], gone: list[int]) -> str:
    stuck_in = {state.blocked[r].op for r in waits}
    if stuck_in == {"send"} and not gone:
        return (
            "A send completes only when its recv is posted. Let some ranks receive first, or use "
            "isend, or batch_isend_irecv for a whole exchange."
        )
    tags = _tags(state, waits)
    if tags:
        return tags
    if stuck_in <= {"send", "recv"}:
        over = f"{_ranks(gone).capitalize()} will make no more calls. " if gone else ""
        return f"{over}Every send needs a recv on the rank it goes to, with the same tag, and the other way round."
    if gone:
        return (
            "Every rank of a group must make the same calls in the same order. Look for a call inside "
            "`if rank == ...`, an early return, or a loop that runs a different number of times."
        )
    if len({state.blocked[r].group_name for r in waits}) > 1:
        return "The ranks wait for each other in different groups. Use the groups in the same order on every rank."
    return "The ranks wait for each other. Put their calls in the same order on every rank."


def _tags(state: State, waits: dict[int, set[int]]) -> str:
    """Two ranks that would have met, had they used the same tag."""
    for rank in waits:
        e = state.blocked[rank]
        peer = state.blocked.get(e.dst) if e.op == "send" else None
        if peer and peer.op == "recv" and peer.src == rank and peer.tag != e.tag and peer.group == e.group:
            return (
                f"Rank {rank} sends with tag {e.tag}, rank {e.dst} receives with tag {peer.tag}: they must be the same."
            )
    return ""


def _waits_in(rank: int, state: State) -> str:
    e = state.blocked[rank]
    words = f"{e.op} #{e.index + 1}"
    if e.op == "send":
        return f"{words} to {e.dst}"
    if e.op == "recv":
        return f"{words} from {'anyone' if e.src is None else e.src}"
    return words if len(e.group) == state.world_size else f"{words} of group {span(e.group)}"


def _after(rank: int, state: State) -> str:
    return f"after {_calls(len(state.events[rank]))}"


def _stands(rank: int, state: State) -> tuple[str, Line | None]:
    """What a rank is doing, and on which line."""
    if rank in state.returned:
        return f"returned {_after(rank, state)}", None
    if rank in state.blocked:
        return f"waiting in {_waits_in(rank, state)}", state.blocked[rank].line
    return (
        f"{'waiting' if _at(rank, state) == NEW_GROUP else 'running'} {_at(rank, state)}, {_after(rank, state)}",
        state.where.get(rank),
    )


def _standing(state: State) -> str:
    described = ((rank, *_stands(rank, state)) for rank in range(state.world_size))
    return "\n".join(_rows([(rank, what, source(line)) for rank, what, line in described]))


# --- mismatch -----------------------------------------------------------------------------


def mismatched(call: Call, what: str, run: Run) -> Mismatch:
    k = call.index + 1
    guilty = [e.rank for e in call if e.flaw == what or what == "gaps" and e.gaps]
    if guilty:
        first = next(e for e in call if e.rank == guilty[0])
        head = _FLAW[what].format(ranks=_ranks(guilty), s="s" * (len(guilty) == 1), op=first.op, k=first.index + 1)
    elif call.is_message:
        head = f"the send from rank {call.events[0].rank} and the recv on rank {call.events[0].dst} disagree on the {what}."
    else:
        head = f"ranks disagree on {_subject(what, call)} in call #{k}{_of_group(call, run)}."
    described = [(e.rank, _describe(e, what), source(e.touched or e.line)) for e in call]
    return Mismatch("\n".join([head, *_rows(described), CONSEQUENCE[what]]), run, call)


def out_of_order(earlier: Call, call: Call, run: Run) -> Mismatch:
    numbers = f"#{earlier.index + 1} and #{call.index + 1}{_of_group(call, run)}"
    head = f"ranks make calls {numbers} in different orders."
    described = [(e.rank, f"{_describe(e)}, #{c.index + 1}", source(e.line)) for c in (earlier, call) for e in c]
    return Mismatch("\n".join([head, *_rows(described), CONSEQUENCE["collective"]]), run, call)


def _subject(what: str, call: Call) -> str:
    if what == "collective":
        return "which collective to make"
    if what == "root":
        what = "src" if call.events[0].src is not None else "dst"
    return f"the {what} of {call.op}"


def _of_group(call: Call, run: Run) -> str:
    return "" if len(call.group) == run.world_size else f" of group {span(call.group)}"


def _rows(described: list[tuple[int, str, str]]) -> list[str]:
    """One line for all ranks of which the same is said."""
    alike: dict[tuple[str, str], list[int]] = {}
    for rank, words, line in described:
        alike.setdefault((words, line), []).append(rank)
    names = [_ranks(ranks) for ranks in alike.values()]
    left, middle = max(map(len, names)), max(len(words) for words, _ in alike)
    return [f"  {name:<{left}}  {words:<{middle}}  {line}".rstrip() for name, (words, line) in zip(names, alike)]


_FLAW = {
    "gaps": "{ranks} give{s} {op} #{k} a view with gaps between its numbers.",
    "aliased": "{ranks} give{s} {op} #{k} a list that holds the same memory several times.",
    "read": "{ranks} read{s} the tensor of {op} #{k} before waiting for it.",
    "written": "{ranks} write{s} to the tensor of {op} #{k} before waiting for it.",
}
CONSEQUENCE = {
    "collective": "Calls on a group pair up in order, whatever they are. Make the same calls in the same order on every rank.",
    "root": "Every rank must name the same src or dst.",
    "reduce op": "gloo would have combined some chunks one way and some the other, in silence.",
    "dtype": "Only bytes travel: the receiver would read them as numbers of another kind, or run past its buffer.",
    "shape": "Every rank must pass the same shape; a backend may hang, abort, or leave part of the data behind.",
    "layout": "One rank's tensor lies in memory in another order (a transpose?). Only memory travels: pass x.contiguous().",
    "size": "A recv must have room for exactly what is sent; gloo aborts on more and leaves the rest untouched on less.",
    "split sizes": "What rank i sends to j (input_split_sizes[j] on i) must be what j expects (output_split_sizes[i] on j).",
    "gaps": "gloo would have used the numbers in between instead, in silence. Pass x.contiguous(), and copy the result back.",
    "aliased": "All its entries would hold what arrives last. [t] * n makes n names for one tensor: write [torch.zeros_like(t) for _ in range(n)].",
    "read": "Until work.wait() returns, it may hold the old value, the new one, or half of each.",
    "written": "Until work.wait() returns, it is being sent or filled: others may get either value, or half of each.",
}


def _describe(e: Event, what: str = "") -> str:
    words = [e.op]
    words += [e.reduce_op] if e.reduce_op else []
    words += [f"src={e.src}"] if e.src is not None and not e.is_message else []
    words += [f"dst={e.dst}"] if e.dst is not None and not e.is_message else []
    words += [f"{dtype_name(e.dtype)} {list(e.shape)}"] if e.dtype is not None else []
    if e.splits and any(e.splits):
        words += [f"splits {list(e.splits[0])} -> {list(e.splits[1])}"]
    if what == "layout":
        words += [f"strides {list(e.layout)}" if e.layout else "contiguous"]
    return " ".join(words)


# --- failed -------------------------------------------------------------------------------


_NONE = "torch.distributed's functions return None: the result is in the tensor that was passed in."


def failed(failures: dict[int, Failure], state: State, run: Run) -> RankFailed:
    """failures: by rank. The first cause leads; what followed from it is said last."""
    causes = {r: f for r, f in failures.items() if not is_consequence(f)} or failures
    parts = []
    for (kind, message, frames, started), ranks in _group(causes).items():
        verb = "raised" if started else "could not start:"
        used = "NoneType" in message and "not iterable" not in message  # as what a call returned
        hint = [_NONE] * (used and any("dist." in frame for frame in frames))
        parts.append("\n".join([f"{_ranks(ranks)} {verb} {kind}: {message}".rstrip(": "), *frames, *hint]))
    first = min(causes)
    return RankFailed("\n".join([*parts, *_left_waiting(set(causes), state)]), run, first, causes[first].chain)


def _left_waiting(gone: set[int], state: State) -> list[str]:
    """The consequences for the other ranks: calls that they made and that cannot complete any more."""
    return [
        f"{_ranks(ranks)} could then not finish {what}: a consequence."
        for what, ranks in _by(sorted(set(state.blocked) - gone), state, _waits_in).items()
    ]


def _group(failures: dict[int, Failure]) -> dict[tuple, list[int]]:
    alike: dict[tuple, list[int]] = {}
    for rank, f in sorted(failures.items()):
        frames = tuple(f"    {source(line)}" for line in f.frames)
        alike.setdefault((f.kind, f.message, frames, f.started), []).append(rank)
    return alike


def died(rank: int, status: int | None, last_words: str, state: State, run: Run) -> RankFailed:
    """A rank process that ended without a word.

    status: an exit code, or minus a signal number, or None for one that lives on unreachable.
    """
    if status in (None, LOST):
        how = "cut its connection to the notebook (did it close file descriptors it had not opened?)"
    elif status >= 0:
        how = f"ended itself with exit code {status} (os._exit?)"
    else:
        how = f"was killed by {signal.Signals(-status).name}"
    lines = [f"rank {rank} {how} after {_calls(len(state.events[rank]))}."]
    if state.events[rank]:
        last = state.events[rank][-1]
        where = "in" if last.end is None else "after"
        lines.append(f"    {where} {last.op} #{last.index + 1}   {source(last.line)}".rstrip())
    said = _what(last_words)
    if said:
        lines.append(f"It left this message: {said}")
    if status == -signal.SIGKILL:
        lines.append("Something outside ended it: usually the system, when memory runs out.")
    lines += _left_waiting({rank}, state)
    return RankFailed("\n".join(lines), run, rank, last_words)


def _what(last_words: str) -> str:
    """The telling line of what C++ printed before it aborted."""
    for line in last_words.splitlines():
        if "what():" in line:
            return line.split("what():", 1)[1].strip()
    return ""


# --- words --------------------------------------------------------------------------------


def source(line: Line | None) -> str:
    return "" if line is None else f"{line}:  {line.text}" if line.text else str(line)


def _ranks(ranks) -> str:
    ranks = list(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 4 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _verb(verb: str, ranks: list[int]) -> str:
    return verb + "s" * (len(ranks) == 1)


def _calls(count: int) -> str:
    return f"{count} call{'s' * (count != 1)}"


def _by(ranks, state: State, describe) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(describe(rank, state), []).append(rank)
    return groups
