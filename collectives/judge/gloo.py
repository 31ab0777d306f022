"""What gloo does: whom a call needs, and what goes wrong in silence."""

from ..record.calls import Call
from ..record.collectives import of
from ..record.event import Event, Failure

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
    if event.backend == "nccl":  # its kernel ends once all have made the call
        return others
    if collective.gloo == "tree":
        return others & _tree_relatives(event)
    if collective.gloo == "all" or event.rank == event.root:
        return others
    return others & ({event.root} if collective.gloo == "star" else _chain_relatives(event))


def _chain_relatives(event: Event) -> set[int]:
    """gloo's sum of each chunk walks from the last rank down: a rank needs those above it, and the one below to take it."""
    me = event.group.index(event.rank)
    return set(event.group[me + 1 :] + event.group[max(0, me - 1) : me])


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


# --- mismatch -----------------------------------------------------------------------------

# Where gloo takes a tensor's memory for dense: it then reads and writes numbers between the
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
_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "pair closure",
    "Broken pipe",
    "Read error",
    "remote process exiting prematurely",  # NCCL's
    "Write error",
)


def may_follow(failure: Failure) -> bool:
    """Whether an error may only say that a call could not finish, or that somebody has ended the job for it."""
    return failure.kind in (*_BACKENDS_ERRORS, "DistStoreError", "KeyboardInterrupt")


def is_consequence(failure: Failure) -> bool:
    """Whether this error only says that another rank is gone."""
    return failure.kind in _BACKENDS_ERRORS and any(words in failure.message for words in _LOST)
