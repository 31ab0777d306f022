"""From what the ranks did to a verdict: who failed first, who disagrees, who waits for ever.

A run's state is logical.  The k-th call on a group is complete when every member has made
its k-th call; a rank that returned will make no more; a send completes when its recv is
posted.  A rank reports each call before it makes it and in order, so "rank 2 waits in call
3" means that all its earlier calls are known too.  Hence a cycle of waits, or a wait on a
rank that has returned, is certain the moment it is seen: no time-out has to pass.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from .record import LOST, Call, Event, Failure, Line, Pairs, Run, dtype_name, span


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
    """A wait that can never end, or a run that is out of time. `.ranks` are those that wait."""

    def __init__(self, message: str, run: Run, ranks: tuple[int, ...]) -> None:
        super().__init__(message, run)
        self.ranks = ranks


@dataclass
class State:
    """Where every rank stands, as far as its messages have told."""

    world_size: int
    events: list[list[Event]] = field(default_factory=list)
    returned: set[int] = field(default_factory=set)
    pairs: Pairs = field(default_factory=Pairs)
    blocked: dict[int, Event] = field(default_factory=dict)  # rank -> the event it waits in, without limit

    def __post_init__(self) -> None:
        self.events = [[] for _ in range(self.world_size)]

    def called(self, event: Event) -> Call:
        self.events[event.rank].append(event)
        return self.pairs.add(event)


# --- stuck --------------------------------------------------------------------------------

_FROM_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


def needs(event: Event, call: Call) -> set[int]:
    """The ranks whose call `event` waits for: without them it cannot complete, on any backend
    for those that need data, on gloo for those that must be received from."""
    made = set(call.ranks)
    if event.is_message:
        return set() if len(call.events) == 2 else {event.dst if event.op == "send" else event.src}
    if event.dtype is not None and event.nbytes == 0:
        return set()  # nothing to move
    others = set(event.group) - made
    if event.op.startswith(_FROM_ALL) or event.rank == event.root and event.op != "broadcast":
        return others
    if event.op == "broadcast":
        return others & _tree_relatives(event)
    if event.op in ("gather", "scatter"):
        return others & {event.root}
    return set()  # reduce, away from the root: depends on the backend


def _tree_relatives(event: Event) -> set[int]:
    """Ancestors and children in the binomial tree by which gloo broadcasts."""
    size = len(event.group)
    if event.src not in event.group:
        return set()
    root = event.group.index(event.src)
    me = (event.group.index(event.rank) - root) % size
    relatives = {me + (1 << k) for k in range(me.bit_length(), size.bit_length()) if me + (1 << k) < size}
    while me:
        me -= 1 << me.bit_length() - 1
        relatives.add(me)
    return {event.group[(n + root) % size] for n in relatives}


def hopeless(state: State) -> dict[int, set[int]]:
    """Ranks that wait for what can never come, each with the ranks it waits for."""
    waits = {r: needs(e, state.pairs.of[id(e)]) for r, e in state.blocked.items()}
    can_move = set(range(state.world_size)) - state.returned - set(waits)
    for r, e in state.blocked.items():
        if e.op == "recv" and e.src is None:  # anyone may send: not judged
            can_move.add(r)
    while True:
        freed = {r for r, on in waits.items() if r not in can_move and on <= can_move}
        if not freed:
            return {r: on for r, on in waits.items() if r not in can_move}
        can_move |= freed


def stuck(state: State, run: Run, waits: dict[int, set[int]]) -> Stuck:
    ranks = tuple(sorted(waits))
    gone = sorted({r for on in waits.values() for r in on} & state.returned)
    verdict = "; ".join(
        [f"{_ranks(rs)} wait{'s' * (len(rs) == 1)} in {what}" for what, rs in _by(ranks, state, _waits_in).items()]
        + [f"{_ranks(rs)} returned {what}" for what, rs in _by(gone, state, _after).items()]
    )
    return Stuck(f"{verdict}. This can never finish.\n{_standing(state)}\n{_advice(state, waits, gone)}", run, ranks)


def out_of_time(state: State, run: Run, seconds: float) -> Stuck:
    busy = [r for r in range(state.world_size) if r not in state.returned]
    advice = (
        "Give it longer with run(..., timeout=seconds), or look for a loop that does not end."
        if any(r not in state.blocked for r in busy)
        else "Look for the call that the waiting ranks' partners did not make."
    )
    return Stuck(f"out of time after {seconds:g} s.\n{_standing(state)}\n{advice}", run, tuple(busy))


def _advice(state: State, waits: dict[int, set[int]], gone: list[int]) -> str:
    stuck_in = {state.blocked[r].op for r in waits}
    if stuck_in == {"send"}:
        return (
            "A send completes only when its recv is posted. Let some ranks receive first, or use "
            "isend, or batch_isend_irecv for a whole exchange."
        )
    if stuck_in <= {"send", "recv"}:
        return "Every send needs a recv on the rank it goes to, with the same tag, and the other way round."
    if gone:
        return (
            "Every rank of a group must make the same calls in the same order. Look for a call inside "
            "`if rank == ...`, an early return, or a loop that runs a different number of times."
        )
    return "The ranks wait for each other. Put their calls in the same order on every rank."


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


def _standing(state: State) -> str:
    rows = []
    for rank in range(state.world_size):
        line = None
        if rank in state.returned:
            what = f"returned {_after(rank, state)}"
        elif rank in state.blocked:
            what, line = f"waits in {_waits_in(rank, state)}", state.blocked[rank].line
        else:
            what = f"runs your code, {_after(rank, state)}"
            line = state.events[rank][-1].line if state.events[rank] else None
        rows.append((rank, what, source(line)))
    width = max(len(what) for _, what, _ in rows)
    return "\n".join(f"  rank {rank}  {what:<{width}}  {line}".rstrip() for rank, what, line in rows)


# --- mismatch -----------------------------------------------------------------------------


def mismatch(call: Call) -> str | None:
    """What the events of a call disagree about ("shape", "dtype", ...), or None."""
    first, *rest = call.events
    for e in rest:
        if call.is_message:
            if e.dtype != first.dtype:
                return "dtype"
            if e.nbytes != first.nbytes:
                return "size"
            continue
        if e.op != first.op:
            return "collective"
        if e.root != first.root:
            return "root"
        if e.reduce_op != first.reduce_op:
            return "reduce op"
        if e.dtype != first.dtype:
            return "dtype"
        if e.shape != first.shape and e.op not in ("all_to_all", "all_to_all_single"):
            return "shape"
    if call.op == "all_to_all_single":
        return _splits(call)
    return None


def _splits(call: Call) -> str | None:
    """Whether what each rank sends is what its peer expects, where both have called."""
    size = len(call.group)
    place = {rank: k for k, rank in enumerate(call.group)}
    sizes = {}
    for e in call:
        rows = e.shape[0] if e.shape else 0
        sent, expected = e.splits or ((), ())
        sizes[place[e.rank]] = (sent or (rows // size,) * size, expected or None)
    for i, (sent, _) in sizes.items():
        for j, (_, expected) in sizes.items():
            if expected is not None and len(expected) == size == len(sent) and sent[j] != expected[i]:
                return "split sizes"
    return None


def mismatched(call: Call, what: str, run: Run) -> Mismatch:
    if call.is_message:
        source_rank, target = call.events[0].rank, call.events[0].dst
        head = f"the send from rank {source_rank} and the recv on rank {target} disagree in {what}."
    else:
        head = f"ranks disagree in call #{call.index + 1} of group {span(call.group)}: another {what}."
    described = [(e.rank, _describe(e), source(e.line)) for e in call]
    width = max(len(d) for _, d, _ in described)
    rows = [f"  rank {rank}  {d:<{width}}  {line}".rstrip() for rank, d, line in described]
    return Mismatch("\n".join([head, *rows, _CONSEQUENCE[what]]), run, call)


_CONSEQUENCE = {
    "collective": "Calls on a group pair up in order, whatever they are. Make the same calls in the same order on every rank.",
    "root": "Every rank must name the same src or dst.",
    "reduce op": "gloo would have combined some chunks one way and some the other, in silence.",
    "dtype": "Only bytes travel: the receiver would read them as numbers of another kind, or run past its buffer.",
    "shape": "Every rank must pass the same shape; a backend may hang, abort, or leave part of the data behind.",
    "size": "A recv must have room for exactly what is sent; gloo aborts on more and leaves the rest untouched on less.",
    "split sizes": "What rank i sends to j (input_split_sizes[j] on i) must be what j expects (output_split_sizes[i] on j).",
}


def _describe(e: Event) -> str:
    words = [e.op]
    words += [e.reduce_op] if e.reduce_op else []
    words += [f"src={e.src}"] if e.src is not None and not e.is_message else []
    words += [f"dst={e.dst}"] if e.dst is not None and not e.is_message else []
    words += [f"{dtype_name(e.dtype)} {list(e.shape)}"] if e.dtype is not None else []
    if e.splits and any(e.splits):
        words += [f"splits {list(e.splits[0])} -> {list(e.splits[1])}"]
    return " ".join(words)


# --- failed -------------------------------------------------------------------------------

_LOST = ("Connection closed by peer", "Connection reset by peer", "pair closure", "Broken pipe", "Read error", "Write error")


def is_consequence(failure: Failure) -> bool:
    """Whether this error only says that another rank is gone."""
    return failure.kind in ("RuntimeError", "DistBackendError", "DistNetworkError") and any(
        words in failure.message for words in _LOST
    )


def failed(failures: dict[int, Failure], run: Run) -> RankFailed:
    """failures: by rank. The first cause leads; lost connections are left out."""
    causes = {r: f for r, f in failures.items() if not is_consequence(f)} or failures
    parts = []
    for (kind, message, frames, started), ranks in _group(causes).items():
        verb = "raised" if started else "could not start:"
        parts.append("\n".join([f"{_ranks(ranks)} {verb} {kind}: {message}".rstrip(": "), *frames]))
    first = min(causes)
    return RankFailed("\n".join(parts), run, first, causes[first].chain)


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


def _calls(count: int) -> str:
    return f"{count} call{'s' * (count != 1)}"


def _by(ranks, state: State, describe) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(describe(rank, state), []).append(rank)
    return groups
