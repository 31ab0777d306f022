"""Words on ranks that did not start, raised, died or returned unreadable results, and on a server that ended."""

import errno
import re
import signal
import traceback

from ...format import name_ranks
from ...log.event import Failure
from ...log.messages import LOST_STATUS
from ..verdict import Died, Ended, NoServer, NoStart, Raised, SlowStart, Unreachable, Unreadable
from .phrases import after, alike, call_waited_in, cut, source

FROM_OUTSIDE = "Something outside ended it: usually the system, when memory runs out."
_NONE_RETURNED = "Did this None come from a call? torch.distributed's functions return None: the result is in the tensor that was passed in."
# Python's and torch's errors about a None used like a tensor. A None in a list, or instead of a list, has clearer ones.
_USED_NONE = re.compile(
    "unsupported operand .*NoneType|'NoneType' object (has no attribute|is not subscriptable)|but got <class 'NoneType'> instead"
)

# --- no start -----------------------------------------------------------------------------


def slow_start(verdict: SlowStart) -> str:
    ready = f"{len(verdict.ranks)} of {verdict.world_size} were ready."
    loading = "" if verdict.loaded else " The process that starts them was still loading torch, and continues."
    return (
        f"the ranks did not start within {verdict.seconds:g} s: {ready}{loading}\n"
        "None of your code has run. Close programs that keep this computer busy or use fewer ranks,\n"
        "and run the cell again."
    )


def no_start(verdict: NoStart) -> str:
    size, what = verdict.world_size, "the ranks could not be started"
    if verdict.ranks:
        what = f"only {verdict.ranks[0]} of {size} ranks could be started"
    why, advice = _REFUSALS.get(verdict.number, (verdict.why, ""))
    return f"{what}: {why}. None of your code has run.\n{advice.format(files=3 * size + 20)}".rstrip()


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


def no_server(verdict: NoServer) -> str:
    status, how, more = verdict.status, "was ended from outside", ""
    if status == -signal.SIGKILL:
        how, more = f"was {killed_by(status)}", f"\n{FROM_OUTSIDE}"
    elif verdict.last_words and status != 0:
        how = f"was {killed_by(status)}" if status and status < 0 else "crashed"
        more = f" Its last words:\n{verdict.last_words}"
    what = f"the process that starts the ranks {how}, and the ranks with it.{more}"
    return f"{what}\nRun the cell again: it starts again."


# --- an exception -------------------------------------------------------------------------


def raised(verdict: Raised) -> str:
    """The first cause leads; its consequences come last."""
    told = [(f.kind, f.message, tuple(f"    {source(line)}" for line in f.frames), f.started) for f in verdict.failures]
    parts = []
    for (kind, message, frames, started), ranks in alike(zip(verdict.ranks, told)).items():
        verb = "raised" if started else "could not start:"
        of_a_call = any("dist." in frame for frame in frames) and not any(".grad" in frame for frame in frames)
        hint = [_NONE_RETURNED] * bool(_USED_NONE.search(message) and of_a_call)
        parts.append("\n".join([f"{name_ranks(ranks)} {verb} {kind}: {message}".rstrip(": "), *frames, *hint]))
    return "\n".join([*cut(parts, "... and {:,} more ranks raised."), *_consequences(verdict)])


def _consequences(verdict: Raised | Died | Unreachable) -> list[str]:
    """The consequences of the ranks' end for others: calls that these have made and that can no longer complete."""
    waiting = [state for state in verdict.standing if state.event and state.rank not in verdict.ranks]
    calls = alike((state.rank, call_waited_in(state, verdict.world_size)) for state in waiting)
    return cut([f"As a consequence, {name_ranks(ranks)} couldn't finish {what}." for what, ranks in calls.items()])


def unreadable(verdict: Unreadable) -> str:
    told = [f"{type(error).__name__}: {error}" for error in verdict.why]
    parts = [
        f"{name_ranks(ranks)} returned something that cannot be read here: {what}".rstrip(": ")
        for what, ranks in alike(zip(verdict.ranks, told)).items()
    ]
    parts = cut(parts)
    parts.append("Return tensors, numbers, strings, or containers of these. What was recorded is in the error's .run.")
    return "\n".join(parts)


# --- a process that ended -----------------------------------------------------------------


def died(verdict: Died) -> str:
    [rank], status = verdict.ranks, verdict.status
    each = verdict.standing[rank]
    when = after(each.made) if verdict.began else "before it ran any of your code"
    lost = isinstance(status, str) and not verdict.began  # its last messages may be lost too
    lines = [f"rank {rank} {how_it_ended(verdict).rstrip(',')}." if lost else f"rank {rank} {how_it_ended(verdict)} {when}."]
    if last := each.last:
        where = "in" if last.end is None else "after"
        lines.append(f"    {where} {last.op} #{last.index + 1}   {source(last.line)}".rstrip())
    if cause := _call_words(verdict.last_words):
        lines.append(f"It left this message: {cause}")
    if status == -signal.SIGKILL and not verdict.may_lose:
        lines.append(FROM_OUTSIDE)
    if verdict.may_lose:
        lines.append(_allowance(verdict))
    if not verdict.began and not lost:
        lines.append("Run the cell again.")
    return "\n".join([*lines, *_consequences(verdict)])


def _allowance(verdict: Died) -> str:
    """Why may_lose doesn't cover this loss."""
    most, losses = verdict.may_lose, list(verdict.losses)
    if len(losses) > most:
        return f"run(may_lose={most}) goes on without {most} rank{'s' * (most > 1)}, and {name_ranks(losses)} are lost. Allow more, or lose fewer."
    return (
        f"run(may_lose={most}) goes on without it, if the others do: catch the RuntimeError of their call, and continue in a "
        "group without the lost rank."
    )


def unreachable(verdict: Unreachable) -> str:
    ranks = list(verdict.ranks)
    which = f"{name_ranks(ranks)} with it: it is down, or cut off"
    lines = [f"host {verdict.host} no longer answers, and {which}."]
    for each in (verdict.standing[rank] for rank in ranks):
        if each.last:
            lines.append(
                f"    rank {each.rank} after {each.last.op} #{each.last.index + 1}   {source(each.last.line)}".rstrip()
            )
    return "\n".join([*lines, *_consequences(verdict)])


def ended(verdict: Ended) -> str:
    name = signal.Signals(verdict.signal).name
    return (
        f"{name_ranks(list(verdict.ranks))} {'was' if len(verdict.ranks) == 1 else 'were'} ended from outside, by {name}: "
        f"{_SENDERS.get(verdict.signal, 'whoever started the job')}. No rank had failed before."
    )


_SENDERS = {
    signal.SIGTERM: "a scheduler (scancel, a time limit, a drained node), or whoever ended the launcher",
    signal.SIGINT: "somebody pressed Ctrl-C",
}


def how_it_ended(verdict: Died) -> str:
    """A sentence's predicate."""
    status = verdict.status
    if isinstance(status, str):
        return status
    if status is not None and status < 0:
        return f"was {killed_by(status)}"
    if not verdict.began:
        return "ended" if status is None else f"ended with exit code {status}"
    if status in (None, LOST_STATUS):
        return "cut its connection to the notebook (did it close file descriptors it had not opened?)"
    return f"ended itself with exit code {status} (os._exit?)"


def killed_by(status: int) -> str:
    """status: minus the number of a signal."""
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:  # of the real-time signals only the first and the last have a name
        return f"killed by signal {-status}"


def stopped_by(number: int) -> str:
    """A sentence's predicate."""
    return f"was stopped by {signal.Signals(number).name}"


def _call_words(last_words: str) -> str:
    """The line that names the cause, of what C++ printed before it aborted."""
    causes = (line.split("what():", 1)[1].strip() for line in last_words.splitlines() if "what():" in line)
    return next(causes, "")


def traceback_of(verdict: Raised | Died | Unreachable | Unreadable) -> str:
    """All that is known about the end of the first rank."""
    match verdict:
        case Raised(failures=(Failure(chain=chain), *_)):
            return chain
        case Died(last_words=last_words):
            return last_words
        case Unreadable(why=(error, *_)):
            return "".join(traceback.format_exception(error))
