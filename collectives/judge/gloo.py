"""gloo's behavior: the ranks that a call needs, and the mistakes that raise no error."""

from ..log import backends
from ..log.calls import Call
from ..log.collectives import all_ranks, of
from ..log.event import Event, Failure

# --- stuck --------------------------------------------------------------------------------


def needs(event: Event, call: Call) -> set[int]:
    """The ranks whose call `event` waits for: without them it cannot complete, on any backend
    for those that need data, on gloo for those that must be received from."""
    if call.is_complete:
        return set()
    if event.is_message:
        return {event.dst if event.op == "send" else event.src}
    collective = of(event.op)
    if event.dtype is not None and event.nbytes == 0 and not collective.personal:
        return set()  # nothing to move; an all_to_all may receive where it sends nothing
    others = set(event.group) - {e.rank for e in call} - call.unseen
    ends_with = backends.of(event.backend).ends_with
    if ends_with == "all" or collective.gloo is all_ranks:
        return others
    if ends_with == "senders":
        return others if event.dst == event.rank else others & {event.src}
    group, root = event.group, event.group.index(event.root) if event.root in event.group else None
    return others.intersection(group[k] for k in collective.gloo(group.index(event.rank), root, len(group)))


def dropped_send(event: Event, call: Call) -> Event | None:
    """The send that a recv waits for, if gloo may have lost it."""
    return next(filter(may_be_lost, call), None) if event.op == "recv" else None


def may_be_lost(event: Event) -> bool:
    """Whether this is a send whose Work was dropped and never waited for: without a posted recv, it is not sent."""
    return (
        event.op == "send" and event.abandoned and event.waiting is None and backends.of(event.backend).drops_messages
    )


# --- mismatch -----------------------------------------------------------------------------

# Where gloo assumes that a tensor's memory is dense: it then reads and writes numbers between the
# view's own. (Elsewhere it copies, or raises.) tests/corpus/mistakes.py shows each.
TAKEN_FOR_DENSE = {
    "all_reduce": ("in",),
    "reduce": ("in",),
    "broadcast": ("in",),
    "scatter": ("in", "out"),
    "reduce_scatter": ("out",),
    "all_to_all_single": ("out",),
}


# --- failed -------------------------------------------------------------------------------

_BACKENDS_ERRORS = ("RuntimeError", "DistBackendError", "DistNetworkError")
LOST_WORDS = (  # words of errors that another rank's end explains
    "Connection closed by peer",
    "Connection reset by peer",
    "pair closure",
    "Broken pipe",
    "Read error",
    "remote process exiting prematurely",  # NCCL's
    "Write error",
)


def may_follow(failure: Failure) -> bool:
    """Whether an error may only mean that a call could not finish, or that somebody has ended the job because of it."""
    return failure.kind in (*_BACKENDS_ERRORS, "DistStoreError", "KeyboardInterrupt")


def is_consequence(failure: Failure) -> bool:
    """Whether this error only means that another rank is gone."""
    return failure.kind in _BACKENDS_ERRORS and any(words in failure.message for words in LOST_WORDS)
