"""Verdicts in words: what happened, where, what to try."""

from __future__ import annotations

import errno
import os
import signal
import traceback
from typing import TYPE_CHECKING

from ..format import dtype_name, name_ranks, span
from ..rank.protocol import LOST
from ..record.calls import Call
from ..record.event import Event, Failure, Line
from .errors import Interrupted, Mismatch, RankFailed, ServerLost, StartFailed, Stuck
from .gloo import is_consequence, needs
from .state import State

if TYPE_CHECKING:
    from .run import Run


def interrupted(state: State, run: Run, started: bool) -> Interrupted:
    where = f"The ranks were here:\n{standing(state)}" if started else "The ranks had not started yet."
    return Interrupted(f"interrupted. {where}", run)


def under_way(state: State, name: str, started: bool) -> str:
    """What the ranks are doing, in one line."""
    busy = [rank for rank in range(state.world_size) if rank not in state.returned]
    head = f"{state.world_size} ranks" if len(busy) == state.world_size else f"{len(busy)} of {state.world_size} ranks"
    if not started:
        return f"{head} starting ..."
    doing = _by(busy, state, _does)
    words = (what if len(doing) == 1 else f"{name_ranks(ranks)} {what}" for what, ranks in doing.items())
    return f"{head} running {name}: {'; '.join(words)} ..."


def _does(rank: int, state: State) -> str:
    """What a rank is doing, by its messages: its line is known where it called something."""
    if rank in state.blocked:
        call, words = state.blocked[rank], f"in {_waits_in(rank, state)}"
    elif not state.events[rank]:
        return "no call yet"
    else:
        call = state.events[rank][-1]
        words = f"after {call.op} #{call.index + 1}"
    return f"{words} (line {call.line.number})" if call.line else words


# --- stuck --------------------------------------------------------------------------------


def stuck(state: State, run: Run, waits: dict[int, set[int]]) -> Stuck:
    ranks = tuple(sorted(waits))
    absent = {r for rank, on in waits.items() for r in _absent(state.blocked[rank], state) | on}
    gone = sorted(absent & state.returned)
    verdict = "; ".join(
        [f"{name_ranks(rs)} {_verb('wait', rs)} in {what}" for what, rs in _by(ranks, state, _waits_in).items()]
        + [f"{name_ranks(rs)} returned {what}" for what, rs in _by(gone, state, _after).items()]
    )
    return _stuck(
        f"{verdict}. This can never finish.\n{standing(state)}\n{_advice(state, waits, gone)}", ranks, run, state
    )


def _stuck(message: str, ranks: tuple[int, ...], run: Run, state: State, timed_out: bool = False) -> Stuck:
    standing = [_stands(rank, state)[0] for rank in range(state.world_size)]
    # Which of those that are missing a backend lets a rank wait for first is its own matter.
    waits = {r: _absent(e, state) or needs(e, state.matcher.of[id(e)]) for r, e in state.blocked.items()}
    return Stuck(message, run, ranks, standing, waits, timed_out)


def _absent(event: Event, state: State) -> set[int]:
    """Members of a collective's group that have not made the call, whether this wait needs them or not."""
    return set() if event.is_message else set(event.group) - set(state.matcher.of[id(event)].ranks)


def out_of_time(state: State, run: Run, seconds: float, fits: bool) -> Stuck:
    """The end of a run whose time was up. fits: whether no call is known to be wrong."""
    busy = [r for r in range(state.world_size) if r not in state.returned]

    def doing(rank: int, state: State) -> str:
        return f"in {_waits_in(rank, state)}" if rank in state.blocked else _at(rank, state)

    who = "; ".join(
        f"{name_ranks(rs)} {_verb('wait' if what.startswith('in ') else 'run', rs)} {what}"
        for what, rs in _by(busy, state, doing).items()
    )
    if any(_at(r, state) == NEW_GROUP for r in busy):
        advice = "Every rank must call new_group, also one that will not be a member: in the same order, with the same ranks."
    elif any(r not in state.blocked for r in busy):
        advice = "Give it longer with run(..., timeout=seconds), or look for a loop that does not end."
    elif fits and (made := [r for r in busy if state.matcher.of[id(state.blocked[r])].is_complete]):
        advice = (
            f"All ranks have made the call that {name_ranks(made)} {_verb('wait', made)} in, and their calls fit together. "
            "Look at what is between the ranks: a cable, a firewall, a slow network."
        )
    else:
        advice = "Look for the call that the waiting ranks' partners did not make."
    said = f"out of time after {seconds:g} s: {who}.\n{standing(state)}\n{advice}"
    return _stuck(said, tuple(busy), run, state, timed_out=True)


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
        over = f"{name_ranks(gone).capitalize()} will make no more calls. " if gone else ""
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


def standing(state: State) -> str:
    described = ((rank, *_stands(rank, state)) for rank in range(state.world_size))
    return "\n".join(_rows([(rank, what, source(line)) for rank, what, line in described]))


# --- mismatch -----------------------------------------------------------------------------


def mismatched(call: Call, what: str, run: Run) -> Mismatch:
    k = call.index + 1
    guilty = [e.rank for e in call if e.misuse == what or what == "gaps" and e.non_dense]
    if guilty:
        first = next(e for e in call if e.rank == guilty[0])
        head = _FLAW[what].format(ranks=name_ranks(guilty), s="s" * (len(guilty) == 1), op=first.op, k=first.index + 1)
    elif call.is_message:
        head = f"the send from rank {call.events[0].rank} and the recv on rank {call.events[0].dst} disagree on the {what}."
    else:
        head = f"ranks disagree on {_subject(what, call)} in call #{k}{_of_group(call, run)}."
    described = [(e.rank, _describe(e, what), source(e.misused_at or e.line)) for e in call]
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
    names = [name_ranks(ranks) for ranks in alike.values()]
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
        words += [f"strides {list(e.strides)}" if e.strides else "contiguous"]
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
        parts.append("\n".join([f"{name_ranks(ranks)} {verb} {kind}: {message}".rstrip(": "), *frames, *hint]))
    first = min(causes)
    return RankFailed("\n".join([*parts, *_left_waiting(set(causes), state)]), run, first, causes[first].chain)


def _left_waiting(gone: set[int], state: State) -> list[str]:
    """The consequences for the other ranks: calls that they made and that cannot complete any more."""
    return [
        f"{name_ranks(ranks)} could then not finish {what}: a consequence."
        for what, ranks in _by(sorted(set(state.blocked) - gone), state, _waits_in).items()
    ]


def _group(failures: dict[int, Failure]) -> dict[tuple, list[int]]:
    alike: dict[tuple, list[int]] = {}
    for rank, f in sorted(failures.items()):
        frames = tuple(f"    {source(line)}" for line in f.frames)
        alike.setdefault((f.kind, f.message, frames, f.started), []).append(rank)
    return alike


def died(
    rank: int, status: int | str | None, last_words: str, state: State, run: Run, started: bool = True
) -> RankFailed:
    """A rank process that ended without a word.

    status: an exit code, or minus a signal number, or None for one that lives on unreachable; or how it ended, in words.
    started: whether it had begun to run the function.
    """
    if isinstance(status, str):
        how = status
    elif status is not None and status < 0:
        how = f"was killed by {_signal(-status)}"
    elif not started:
        how = "ended" if status is None else f"ended with exit code {status}"
    elif status in (None, LOST):
        how = "cut its connection to the notebook (did it close file descriptors it had not opened?)"
    else:
        how = f"ended itself with exit code {status} (os._exit?)"
    when = f"after {_calls(len(state.events[rank]))}" if started else "before it ran any of your code"
    lost = isinstance(status, str) and not started  # its last messages may be lost too
    lines = [f"rank {rank} {how}." if lost else f"rank {rank} {how} {when}."]
    if state.events[rank]:
        last = state.events[rank][-1]
        where = "in" if last.end is None else "after"
        lines.append(f"    {where} {last.op} #{last.index + 1}   {source(last.line)}".rstrip())
    said = _what(last_words)
    if said:
        lines.append(f"It left this message: {said}")
    if status == -signal.SIGKILL:
        lines.append(_FROM_OUTSIDE)
    if not started and not lost:
        lines.append("Run the cell again.")
    lines += _left_waiting({rank}, state)
    return RankFailed("\n".join(lines), run, rank, last_words)


_FROM_OUTSIDE = "Something outside ended it: usually the system, when memory runs out."


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # of the real-time signals only the first and the last have a name
        return f"signal {number}"


def unreadable(why: dict[int, Exception], run: Run) -> RankFailed:
    """Results that cannot be unpickled where run() was called. why: the error, by rank."""
    alike: dict[tuple, list[int]] = {}
    for rank, error in sorted(why.items()):
        alike.setdefault((type(error).__name__, str(error)), []).append(rank)
    parts = [
        f"{name_ranks(ranks)} returned something that cannot be read here: {kind}: {message}".rstrip(": ")
        for (kind, message), ranks in alike.items()
    ]
    parts.append("Return tensors, numbers, strings, or containers of these. What was recorded is in the error's .run.")
    first = min(why)
    return RankFailed("\n".join(parts), run, first, "".join(traceback.format_exception(why[first])))


def _what(last_words: str) -> str:
    """The line that names the cause, of what C++ printed before it aborted."""
    for line in last_words.splitlines():
        if "what():" in line:
            return line.split("what():", 1)[1].strip()
    return ""


# --- not started --------------------------------------------------------------------------


def slow_start(ready: int, seconds: float, loaded: bool, run: Run) -> StartFailed:
    """Ranks that were not ready in time. loaded: whether the server had loaded torch."""
    lines = [f"the ranks did not start within {seconds:g} s: {ready} of {run.world_size} were ready."]
    if not loaded:
        lines[0] += " The process that starts them was still loading torch; it goes on with that."
    lines.append("None of your code has run. Close programs that keep this computer busy or use fewer ranks,")
    lines.append("and run the cell again.")
    return StartFailed("\n".join(lines), run)


def refused(rank: int, number: int, run: Run) -> StartFailed:
    """The system's refusal of a process for this rank. number: an errno."""
    return _not_started(f"only {rank} of {run.world_size} ranks could be started", number, os.strerror(number), run)


def cannot_start(error: OSError, run: Run) -> StartFailed:
    """The system's refusal of something that is needed before the first rank."""
    return _not_started("the ranks could not be started", error.errno, error.strerror or str(error), run)


def _not_started(what: str, number: int | None, words: str, run: Run) -> StartFailed:
    why, advice = _REFUSALS.get(number, (words, ""))
    advice = advice.format(files=3 * run.world_size + 20)
    return StartFailed(f"{what}: {why}. None of your code has run.\n{advice}".rstrip(), run)


_TOO_MANY_FILES = (
    "too many files are open",
    "A run needs about {files} of them in this process. Close some, use fewer ranks, restart the kernel, or raise the "
    "limit\n(ulimit -n) before you start Jupyter.",
)
_REFUSALS = {
    errno.EMFILE: _TOO_MANY_FILES,
    errno.ENFILE: _TOO_MANY_FILES,
    errno.ETOOMANYREFS: _TOO_MANY_FILES,
    errno.EAGAIN: (
        "the system allows no more processes (ulimit -u, or a container's limit)",
        "Close programs and other notebooks, use fewer ranks, or raise the limit.",
    ),
    errno.ENOMEM: ("there is no memory left", "Close programs and other notebooks, or use fewer ranks."),
    errno.ENOSPC: ("the disk for temporary files is full", "Make room there, or set TMPDIR to another folder."),
}


def server_lost(status: int | None, said: str, run: Run) -> ServerLost:
    """The end of the server. status: its exit code, or minus a signal number. said: the end of its standard error."""
    lines = ["the process that starts the ranks"]
    if status == -signal.SIGKILL:
        lines[0] += f" was killed by {_signal(-status)}, and the ranks with it."
        lines.append(_FROM_OUTSIDE)
    elif said and status != 0:
        how = f"was killed by {_signal(-status)}" if status and status < 0 else "crashed"
        lines[0] += f" {how}, and the ranks with it. Its last words:"
        lines.append(said)
    else:
        lines[0] += " was ended from outside, and the ranks with it."
    lines.append("Run the cell again: it is started anew.")
    return ServerLost("\n".join(lines), run)


# --- words --------------------------------------------------------------------------------


def source(line: Line | None) -> str:
    return "" if line is None else f"{line}:  {line.text}" if line.text else str(line)


def _verb(verb: str, ranks: list[int]) -> str:
    return verb + "s" * (len(ranks) == 1)


def _calls(count: int) -> str:
    return f"{count} call{'s' * (count != 1)}"


def _by(ranks, state: State, describe) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(describe(rank, state), []).append(rank)
    return groups
