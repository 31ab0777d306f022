"""Words on ranks that did not start, and on the end of the process that starts them."""

import errno
import os
import signal

from ..verdict import NoProcess, NoServer, NoStart, SlowStart
from .failures import FROM_OUTSIDE, name_of


def slow_start(verdict: SlowStart) -> str:
    ready = f"{len(verdict.ranks)} of {verdict.world_size} were ready."
    lines = [f"the ranks did not start within {verdict.seconds:g} s: {ready}"]
    if not verdict.loaded:
        lines[0] += " The process that starts them was still loading torch; it goes on with that."
    lines.append("None of your code has run. Close programs that keep this computer busy or use fewer ranks,")
    lines.append("and run the cell again.")
    return "\n".join(lines)


def no_process(verdict: NoProcess) -> str:
    number, [rank] = verdict.number, verdict.ranks
    what = f"only {rank} of {verdict.world_size} ranks could be started"
    return _refused(what, number, os.strerror(number), verdict.world_size)


def no_start(verdict: NoStart) -> str:
    return _refused("the ranks could not be started", verdict.number, verdict.why, verdict.world_size)


def _refused(what: str, number: int | None, words: str, world_size: int) -> str:
    why, advice = _REFUSALS.get(number, (words, ""))
    return f"{what}: {why}. None of your code has run.\n{advice.format(files=3 * world_size + 20)}".rstrip()


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
    status, lines = verdict.status, ["the process that starts the ranks"]
    if status == -signal.SIGKILL:
        lines[0] += f" was killed by {name_of(-status)}, and the ranks with it."
        lines.append(FROM_OUTSIDE)
    elif verdict.last_words and status != 0:
        how = f"was killed by {name_of(-status)}" if status and status < 0 else "crashed"
        lines[0] += f" {how}, and the ranks with it. Its last words:"
        lines.append(verdict.last_words)
    else:
        lines[0] += " was ended from outside, and the ranks with it."
    lines.append("Run the cell again: it is started anew.")
    return "\n".join(lines)
