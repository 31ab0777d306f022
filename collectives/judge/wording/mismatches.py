"""Words on calls whose parts do not fit together."""

from ...format import dtype_name, name_ranks, span
from ...record.calls import Call
from ...record.event import Event
from ..verdict import Disagreement, UnlikeGroups, UnsharedGroup
from .phrases import EVERY_RANK_MAKES_IT, alike, apart, handled, rows, source, verb


def disagreement(verdict: Disagreement) -> str:
    if verdict.flaw == "order":
        parts = [(e.rank, f"{_part(e)}, #{call.index + 1}", source(e.line)) for call in verdict.calls for e in call]
    else:
        parts = [(e.rank, _part(e, verdict.flaw), source(e.misused_at or e.line)) for e in verdict.calls[-1]]
    more = [*apart(verdict.parted), *handled(verdict.calls[-1])]
    return "\n".join([_head(verdict), rows(parts), *more, _consequence(verdict)])


def unlike_groups(verdict: UnlikeGroups) -> str:
    head = f"ranks make different groups in call #{verdict.index + 1} of new_group."
    made = zip(verdict.ranks, verdict.groups)
    parts = [(rank, f"a group of {name_ranks(group.ranks)}", source(group.line)) for rank, group in made]
    return "\n".join([head, rows(parts), f"{EVERY_RANK_MAKES_IT} {_BY_NUMBER}"])


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


def _consequence(verdict: Disagreement) -> str:
    if verdict.flaw == "shape" and len({e.nbytes for e in verdict.calls[-1]}) == 1:
        return _AS_MANY
    return CONSEQUENCES[verdict.flaw]


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


_BY_NUMBER = "Members find each other by the number of the call, and may meet those of another group, or nobody."
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
    if flaw == "root":
        flaw = "src" if call.events[0].src is not None else "dst"
    return f"the {flaw} of {call.op}"


def _part(e: Event, flaw: str = "") -> str:
    """What one rank passed to the call."""
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
    "remainder": "{ranks} give{s} {op} #{k} a number of rows that the number of ranks does not divide.",
    "read": "{ranks} read{s} the tensor of {op} #{k} before waiting for it.",
    "written": "{ranks} write{s} to the tensor of {op} #{k} before waiting for it.",
}
_PAIRS = "Calls on a group pair up in order, whatever they are. Make the same calls in the same order on every rank."
_AS_MANY = (
    "The number of elements is the same, so they do arrive, but in a different arrangement. "
    "If that's meant, view() them in one shape first."
)
CONSEQUENCES = {
    "collective": _PAIRS,
    "order": _PAIRS,
    "root": "Every rank must name the same src or dst.",
    "reduce op": "gloo would silently combine some chunks one way and some the other.",
    "dtype": "Only bytes travel: the receiver would read them as numbers of a different kind, or run past its buffer.",
    "shape": "Every rank must pass the same shape; a backend may hang, abort, or leave part of the data behind.",
    "layout": "One rank's tensor is stored in a different order (a transpose?). Only memory travels: pass x.contiguous().",
    "size": "A recv needs a buffer of exactly the size that is sent. If more comes, gloo aborts; if less, the rest keeps its old numbers.",
    "split sizes": "What rank i sends to j (input_split_sizes[j] on i) must be what j expects (output_split_sizes[i] on j).",
    "gaps": "Pass x.contiguous(), and copy the result back. gloo would silently use the numbers stored in between.",
    "aliased": "All its entries would hold what arrives last. [t] * n makes n names for one tensor: write [torch.zeros_like(t) for _ in range(n)].",
    "remainder": "gloo divides the bytes, and may cut through a number without an error; NCCL refuses. Pad, or pass both split sizes.",
    "read": "Until work.wait() returns, it may hold the old value, the new one, or half of each.",
    "written": "Until work.wait() returns, the tensor is being sent or filled: others may get either value, or half of each.",
}
