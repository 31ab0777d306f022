"""From what the ranks did to what is wrong: who waits for ever, who disagrees.

A run's state is logical.  The k-th call on a group is complete when every member has made
its k-th call; a rank that returned will make no more; a send completes when its recv is
posted.  A rank reports each call before it makes it and in order, so "rank 2 waits in call
3" means that all its earlier calls are known too.  Hence a cycle of waits, or a wait on a
rank that has returned, is certain the moment it is seen: no time-out has to pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .record import Call, Event, Failure, Line, Pairs


@dataclass
class State:
    """Where every rank stands, as far as its messages have told."""

    world_size: int
    events: list[list[Event]] = field(default_factory=list)
    returned: set[int] = field(default_factory=set)
    pairs: Pairs = field(default_factory=Pairs)
    blocked: dict[int, Event] = field(default_factory=dict)  # rank -> the event it waits in, without limit
    where: dict[int, Line] = field(default_factory=dict)  # rank -> the learner's line it is at, if asked
    inside: dict[int, list[str]] = field(default_factory=dict)  # and the functions that this line is inside, if asked

    def __post_init__(self) -> None:
        self.events = [[] for _ in range(self.world_size)]

    def called(self, event: Event) -> Call:
        self.events[event.rank].append(event)
        return self.pairs.add(event)

    def settled(self) -> set[int]:
        """The ranks that will not move by themselves: returned, or waiting for a call not made."""
        waiting = {r for r, e in self.blocked.items() if needs(e, self.pairs.of[id(e)])}
        return self.returned | waiting


# --- stuck --------------------------------------------------------------------------------

_FROM_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


def needs(event: Event, call: Call) -> set[int]:
    """The ranks whose call `event` waits for: without them it cannot complete, on any backend
    for those that need data, on gloo for those that must be received from."""
    if call.is_complete:
        return set()
    if event.is_message:
        return {event.dst if event.op == "send" else event.src}
    if event.dtype is not None and event.nbytes == 0 and not event.op.startswith("all_to_all"):
        return set()  # nothing to move; an all_to_all may receive where it sends nothing
    others = set(event.group) - {e.rank for e in call}
    if event.op.startswith(_FROM_ALL) or event.rank == event.root and event.op != "broadcast":
        return others
    if event.op == "broadcast":
        return others & _tree_relatives(event)
    if event.op in ("gather", "scatter"):
        return others & {event.root}
    # reduce, away from the root. gloo's sum of each chunk walks from the last rank down, so a
    # rank needs those above it, and the one below to take its part.
    me = event.group.index(event.rank)
    return others & set(event.group[me + 1 :] + event.group[max(0, me - 1) : me])


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


# --- mismatch -----------------------------------------------------------------------------

# Where gloo takes a tensor's memory for dense: it then reads and writes numbers between the
# view's own. (Elsewhere it copies, or raises.) tests/mistakes.py shows each.
_TAKEN_FOR_DENSE = {
    "all_reduce": ("in",),
    "reduce": ("in",),
    "broadcast": ("in",),
    "scatter": ("in", "out"),
    "reduce_scatter": ("out",),
    "all_to_all_single": ("out",),
}


def mismatch(call: Call) -> str | None:
    """What is wrong with a call as far as it has been made: a key of errors.CONSEQUENCE, or None."""
    first, *rest = call.events
    for e in call:
        if e.flaw:
            return e.flaw
        if set(e.gaps) & set(_TAKEN_FOR_DENSE.get(e.op, ())):
            return "gaps"
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
        if e.layout != first.layout and e.op in _TAKEN_FOR_DENSE:
            return "layout"
    if call.op == "all_to_all_single":
        return _splits(call)
    return None


def crossed(call: Call, earlier: list[Call]) -> Call | None:
    """An earlier call of the group whose lines two ranks reached the other way round.

    Same-sized tensors are then added up wrongly without any rank noticing.
    """
    lines = {e.rank: e.line for e in call if e.line}
    if len(set(lines.values())) < 2:
        return None
    for other in earlier:
        before = {e.rank: e.line for e in other if e.line}
        for a, b in ((a, b) for a in lines for b in lines if a in before and b in before):
            if lines[a] != lines[b] and lines[a] == before[b] and lines[b] == before[a]:
                return other
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


# --- failed -------------------------------------------------------------------------------

_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "pair closure",
    "Broken pipe",
    "Read error",
    "Write error",
)


def is_consequence(failure: Failure) -> bool:
    """Whether this error only says that another rank is gone."""
    return failure.kind in ("RuntimeError", "DistBackendError", "DistNetworkError") and any(
        words in failure.message for words in _LOST
    )
