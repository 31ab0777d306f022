"""Words on ranks that raised, died, or returned what cannot be read."""

import signal
import traceback

from ...format import name_ranks
from ...rank.protocol import LOST
from ...record.event import Failure
from ..verdict import Died, Halt, Raised, Unreadable
from .phrases import after, alike, call_waited_in, source

FROM_OUTSIDE = "Something outside ended it: usually the system, when memory runs out."
_NONE = "torch.distributed's functions return None: the result is in the tensor that was passed in."


def raised(verdict: Raised) -> str:
    """The first cause leads; what followed from it is said last."""
    parts = []
    for (kind, message, frames, started), ranks in _alike(verdict).items():
        verb = "raised" if started else "could not start:"
        used = "NoneType" in message and "not iterable" not in message  # as what a call returned
        hint = [_NONE] * (used and any("dist." in frame for frame in frames))
        parts.append("\n".join([f"{name_ranks(ranks)} {verb} {kind}: {message}".rstrip(": "), *frames, *hint]))
    return "\n".join([*parts, *_consequences(verdict)])


def _alike(verdict: Raised) -> dict[tuple, list[int]]:
    """The ranks by what they raised and where."""
    groups: dict[tuple, list[int]] = {}
    for rank, f in zip(verdict.ranks, verdict.failures):
        frames = tuple(f"    {source(line)}" for line in f.frames)
        groups.setdefault((f.kind, f.message, frames, f.started), []).append(rank)
    return groups


def _consequences(verdict: Halt) -> list[str]:
    """What the end of the verdict's ranks meant for others: calls that they made and that cannot complete any more."""
    waiting = [each for each in verdict.standing if each.event and each.rank not in verdict.ranks]
    calls = alike(waiting, lambda each: call_waited_in(each, verdict.world_size))
    return [f"{name_ranks(ranks)} could then not finish {what}: a consequence." for what, ranks in calls.items()]


def died(verdict: Died) -> str:
    [rank], status = verdict.ranks, verdict.status
    each = verdict.standing[rank]
    when = after(each.made) if verdict.began else "before it ran any of your code"
    lost = isinstance(status, str) and not verdict.began  # its last messages may be lost too
    lines = [f"rank {rank} {_how(verdict)}." if lost else f"rank {rank} {_how(verdict)} {when}."]
    if last := each.last:
        where = "in" if last.end is None else "after"
        lines.append(f"    {where} {last.op} #{last.index + 1}   {source(last.line)}".rstrip())
    if cause := _what(verdict.last_words):
        lines.append(f"It left this message: {cause}")
    if status == -signal.SIGKILL:
        lines.append(FROM_OUTSIDE)
    if not verdict.began and not lost:
        lines.append("Run the cell again.")
    return "\n".join([*lines, *_consequences(verdict)])


def _how(verdict: Died) -> str:
    status = verdict.status
    if isinstance(status, str):
        return status
    if status is not None and status < 0:
        return f"was killed by {name_of(-status)}"
    if not verdict.began:
        return "ended" if status is None else f"ended with exit code {status}"
    if status in (None, LOST):
        return "cut its connection to the notebook (did it close file descriptors it had not opened?)"
    return f"ended itself with exit code {status} (os._exit?)"


def name_of(number: int) -> str:
    """The name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:  # of the real-time signals only the first and the last have a name
        return f"signal {number}"


def _what(last_words: str) -> str:
    """The line that names the cause, of what C++ printed before it aborted."""
    for line in last_words.splitlines():
        if "what():" in line:
            return line.split("what():", 1)[1].strip()
    return ""


def unreadable(verdict: Unreadable) -> str:
    groups: dict[tuple, list[int]] = {}
    for rank, error in zip(verdict.ranks, verdict.why):
        groups.setdefault((type(error).__name__, str(error)), []).append(rank)
    parts = [
        f"{name_ranks(ranks)} returned something that cannot be read here: {kind}: {message}".rstrip(": ")
        for (kind, message), ranks in groups.items()
    ]
    parts.append("Return tensors, numbers, strings, or containers of these. What was recorded is in the error's .run.")
    return "\n".join(parts)


def traceback_of(verdict: Raised | Died | Unreadable) -> str:
    """All that is known of how the first rank ended."""
    match verdict:
        case Raised(failures=(Failure(chain=chain), *_)):
            return chain
        case Died(last_words=last_words):
            return last_words
        case Unreadable(why=(error, *_)):
            return "".join(traceback.format_exception(error))
