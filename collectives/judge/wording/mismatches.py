"""Words on calls whose parts do not match."""

from math import prod

from ...format import dtype_name, name_ranks, span
from ...log import backends
from ...log.calls import Call
from ...log.collectives import of
from ...log.event import Event
from ..branches import same_place
from ..diagnose import OF_DECISIONS, OF_ONE_LINE
from ..verdict import Disagreement, UnlikeGroups, UnlikeNames, UnsharedGroup
from .phrases import EVERY_RANK_MAKES_IT, alike, apart, caught, decided, handled, numbered, rows, source, verb


def disagreement(verdict: Disagreement) -> str:
    if verdict.flaw == "order":
        parts = [(e.rank, f"{_part(e)}, #{call.index + 1}", source(e.line)) for call in verdict.calls for e in call]
    else:
        parts = [(e.rank, _part(e, verdict.flaw), source(e.misused_at or e.line)) for e in verdict.calls[-1]]
    met = verdict.parted[0] if verdict.parted else verdict.calls[0]
    more = [*apart(verdict.parted), *_left(verdict), *handled(verdict.calls[-1]), *caught(verdict)]
    threads = [e.rank for e in verdict.calls[-1] if e.in_thread]
    if threads and len(threads) < len(verdict.calls[-1].events):
        more.append(f"{name_ranks(threads).capitalize()} made this call in another thread. {_IN_ANY_ORDER}")
    more += decided(verdict, met, together=True) if verdict.flaw in OF_DECISIONS else []
    return "\n".join([_head(verdict), rows(parts), *more, _consequence(verdict)])


def unlike_groups(verdict: UnlikeGroups) -> str:
    head = f"ranks make different groups in call #{verdict.index + 1} of new_group."
    made = zip(verdict.ranks, verdict.groups)
    parts = [(rank, f"a group of {name_ranks(group.ranks)}", source(group.line)) for rank, group in made]
    return "\n".join([head, rows(parts), f"{EVERY_RANK_MAKES_IT} {_BY_NUMBER}"])


def unlike_names(verdict: UnlikeNames) -> str:
    members = name_ranks(list(verdict.groups[0].ranks))
    head = f"the members of the group of {members} look for each other under different names."
    made = zip(verdict.ranks, verdict.groups)
    parts = [(rank, f"in {group.groups} group{'s' * (group.groups != 1)}", source(group.line)) for rank, group in made]
    reason = _BY_COUNT if len({group.groups for group in verdict.groups}) > 1 else _BY_ORDER
    return "\n".join([head, rows(parts), reason])


def unshared_group(verdict: UnsharedGroup) -> str:
    often = sorted(alike((rank, len(lines)) for rank, lines in enumerate(verdict.made)).items(), reverse=True)
    (most, ranks), *fewer = often
    clauses = [f"{name_ranks(ranks)} {verb('call', ranks)} new_group {_times(most)}"]
    clauses += [f"{name_ranks(ranks)} {_times(count)}" for count, ranks in fewer]
    calls = [
        (rank, _times(made.count(line)), source(line))
        for line in dict.fromkeys(line for made in verdict.made for line in made)
        if len({made.count(line) for made in verdict.made}) > 1
        for rank, made in enumerate(verdict.made)
        if line in made
    ]
    return "\n".join([f"{', '.join(clauses)}.", rows(calls), f"{EVERY_RANK_MAKES_IT} {_NEXT_GROUP}"])


def _left(verdict: Disagreement) -> list[str]:
    """A possible explanation if only some ranks have left the line from which all had made the calls before."""
    if not verdict.repeated:
        return []
    [line] = {e.line for call in verdict.repeated for e in call}
    left = [e.rank for e in verdict.calls[-1] if e.line and e.line != line]
    there = [e.rank for e in verdict.calls[-1] if e.line == line]
    sentence = (
        f"{name_ranks(left)} may have made fewer calls there, and then some of these paired up wrongly, "
        f"or {verb('make', left)} a call here that {name_ranks(there)} {'do' if there[1:] else 'does'}n't."
    )
    return [f"Earlier, {numbered(verdict.repeated)} came from {source(line)}", sentence[0].upper() + sentence[1:]]


def _consequence(verdict: Disagreement) -> str:
    flaw, call = verdict.flaw, verdict.calls[-1]
    if flaw == "gaps":
        return f"{_made_dense(verdict)} {CONSEQUENCES[flaw]}"
    if flaw in ("layout", "reordered"):
        return f"{CONSEQUENCES[flaw]} {_made_dense(verdict)}"
    as_many = flaw == "shape" and len({prod(e.shape) for e in call}) == 1  # bytes are of a whole list
    words = _AS_MANY if as_many else CONSEQUENCES[flaw]
    if flaw in OF_ONE_LINE and not same_place(e.line for e in call if e.line):
        words = f"{words} {_PERHAPS_TWO}"
    met = (*verdict.parted, call)
    if any(any(e.stands_in for e in each) and not all(e.within for e in each) for each in met):
        words = f"{words} {_JOIN}"
    return words


def _made_dense(verdict: Disagreement) -> str:
    """Advice on tensors that are not stored as the call requires, by their use in the call, and by rank."""
    advice: list[str] = []
    for e in verdict.calls[-1]:
        if verdict.flaw == "gaps":
            sides = set(e.non_dense) & set(backends.of(e.backend).takes_for_dense.get(e.op, ()))
        elif verdict.flaw == "reordered":
            sides = {"in" if e.strides else "out"} if "order" in e.non_dense else set()
        else:  # strides describe the tensor that the rank passes in, or its buffer if it passes none
            sides = {"out" if e.root not in (None, e.rank) else "in"} if e.strides else set()
        if sides and of(e.op).in_place:
            sides = {"out"}
        if not sides:
            continue
        if e.within:
            by_autograd = e.within.endswith(("backward", "grad"))
            advice.append(_OF_AUTOGRAD if by_autograd else _OF_TORCH.format(within=e.within))
            continue
        if "in" in sides:
            advice.append(_CONTIGUOUS_LISTS if e.op in ("scatter", "reduce_scatter") else _CONTIGUOUS)
        if "out" in sides:
            advice.append(_FILLED)
    return " ".join(dict.fromkeys(advice))


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


_BY_NUMBER = "Members find each other by the number of the call, and may meet those of another group, or nobody."
_BY_COUNT = (
    "With use_local_synchronization=True, torch puts into the group's name how many groups the process is in, the world's "
    "included. These numbers differ, so the members wait for each other forever.\n"
    "Make this group at a point where all its members are in the same number of groups. Or leave "
    "use_local_synchronization out: then every rank of the world must make every group, in the same order."
)
_BY_ORDER = (
    "With use_local_synchronization=True and sort_ranks=False, the group's name depends on the order of its ranks. "
    "Every member must pass them in the same order."
)
_NEXT_GROUP = "Otherwise the next group may never come together."


def _head(verdict: Disagreement) -> str:
    flaw, (*earlier, call) = verdict.flaw, verdict.calls
    group = "" if len(call.group) == verdict.world_size else f" of group {span(call.group)}"
    if earlier:
        return f"ranks make calls #{earlier[0].index + 1} and #{call.index + 1}{group} in different orders."
    if flaw in _MISUSES:
        ranks = list(verdict.ranks)
        first = next(e for e in call if e.rank == ranks[0])
        s = "s" * (len(ranks) == 1)
        return _MISUSES[flaw].format(ranks=name_ranks(ranks), s=s, op=first.op, k=first.index + 1)
    if call.is_message:
        send = call.events[0]
        return f"the send from rank {send.rank} and the recv on rank {send.dst} disagree on the {flaw}."
    return f"ranks disagree on {_subject(flaw, call)} in call #{call.index + 1}{group}."


def _subject(flaw: str, call: Call) -> str:
    if flaw == "collective":
        return "which collective to make"
    if flaw == "call":
        return f"which {call.op} to make"
    if flaw == "root":
        flaw = "src" if call.events[0].src is not None else "dst"
    return f"the {flaw} of {call.op}"


def _part(e: Event, flaw: str = "") -> str:
    """One rank's arguments to the call."""
    words = [e.op]
    words += [e.reduce_op] if e.reduce_op else []
    words += [f"src={e.src}"] if e.src is not None and not e.is_message else []
    words += [f"dst={e.dst}"] if e.dst is not None and not e.is_message else []
    words += [f"{dtype_name(e.dtype)} {list(e.shape)}"] if e.dtype is not None else []
    if e.splits and any(e.splits):
        words += [f"splits {list(e.splits[0])} -> {list(e.splits[1])}"]
    if flaw == "layout":
        words += [f"strides {list(e.strides)}" if e.strides else "contiguous"]
    return " ".join(words)


_MISUSES = {
    "gaps": "{ranks} give{s} {op} #{k} a view with gaps between its numbers.",
    "aliased": "{ranks} give{s} {op} #{k} a list that holds the same memory several times.",
    "reordered": "{ranks} give{s} {op} #{k} an input and an output that store their elements in different orders.",
    "remainder": "{ranks} give{s} {op} #{k} a number of rows that isn't a multiple of the number of ranks.",
    "read": "{ranks} read{s} the tensor of {op} #{k} before waiting for it.",
    "returned": "{ranks} return{s} the tensor of {op} #{k} without waiting for it.",
    "written": "{ranks} write{s} to the tensor of {op} #{k} before waiting for it.",
}
_IN_ANY_ORDER = (
    "Two threads' calls on one group come in any order: give the thread its own group, or wait for its end first."
)
_PAIRS = "Calls on a group pair up in order, whatever they are. Make the same calls in the same order on every rank."
_PERHAPS_TWO = "If these lines aren't meant to make one call, a rank has made a call too many or too few."
_JOIN = "Join matches only the calls of the models and optimizers given to it: make any others after its `with` block."
_FILLED = "Write y = x.contiguous(), pass y, and once the call is complete, copy the result back with x.copy_(y)."
_CONTIGUOUS = "Pass x.contiguous()."
_CONTIGUOUS_LISTS = "Pass [x.contiguous() for x in xs] as the list xs."
_OF_AUTOGRAD = (
    "Autograd makes this call, with a gradient as it comes: for each y that the forward call returned, "
    "write y.register_hook(lambda grad: grad.contiguous())."
)
_OF_TORCH = "torch makes this call in {within}: make the tensor contiguous before that."
_AS_MANY = (
    "The number of elements is the same, so they do arrive, but in a different arrangement. "
    "If that's meant, view() them in one shape first."
)
CONSEQUENCES = {
    "collective": _PAIRS,
    "call": f"These are different calls. {_PAIRS}",
    "order": _PAIRS,
    "root": "Every rank must name the same src or dst.",
    "reduce op": "gloo would silently combine some chunks one way and some the other.",
    "dtype": "Only bytes travel: the receiver would read them as numbers of a different kind, or run past its buffer.",
    "shape": "Every rank must pass the same shape; a backend may hang, abort, or leave part of the data behind.",
    "layout": "One rank's tensor is stored in a different order (a transpose?), and only memory travels.",
    "size": "A recv needs a buffer of exactly the size that is sent. If more comes, gloo aborts; if less, the rest keeps its old numbers.",
    "split sizes": "What rank i sends to j (input_split_sizes[j] on i) must be what j expects (output_split_sizes[i] on j).",
    "gaps": "gloo would silently use the numbers stored in between.",
    "reordered": "Only memory travels, so the numbers would land in different places.",
    "aliased": "All its entries would hold what arrives last. [t] * n makes n names for one tensor: write [torch.zeros_like(t) for _ in range(n)].",
    "remainder": "gloo divides the bytes, and may cut through a number without an error; NCCL refuses. Pad, or pass both split sizes.",
    "read": "Until work.wait() returns, it may hold the old value, the new one, or half of each.",
    "returned": "Until work.wait() returns, it may hold the old value, the new one, or half of each. Wait for it before the return.",
    "written": "Until work.wait() returns, the tensor is being sent or filled: others may get either value, or half of each.",
}
