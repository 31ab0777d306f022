"""Words on a finished run that NCCL's rules would treat differently."""

from typing import Sequence

from ...format import name_ranks, wrap
from ...log import backends
from ...log.calls import Call
from ...log.collectives import ON_WINDOWS
from ...log.event import Event
from ..on_nccl import BATCH, Forecast, forecast
from ..verdict import Standstill
from .phrases import call_name, few, rows, source
from .waits import blame

_ENDS = "By NCCL's rules, too, every call of this run ends."
_MESSAGES = (
    "On NCCL, messages between two ranks run one after the other, in the order of the calls, in both directions, and a send ends "
    f"with its recv. Only those of one {BATCH} run side by side. (A small message may be buffered, which nothing promises.)"
)
_FIRST = "A group's first call on NCCL, and two ranks' first message, connects them: it returns once all have come to theirs."
_APART = f"On NCCL, a message of a {BATCH} is matched only by another batch: make both of its ends in one, or none."
_ONE_ORDER = "NCCL asks every rank to issue the calls of different groups in one order: a device may have no room for two at a time."
_ORDER = "On NCCL, a group's calls run one after the other, and a barrier holds up the rank itself."

_WINDOWS = (
    "Calls on a Window aren't part of this: NCCL's are ncclPutSignal and ncclWaitSignal, which have rules of their own."
)


def note(backend: str, calls: Sequence[Call], events: Sequence[Sequence[Event]]) -> str:
    """A note on how a run would go on NCCL; for its errors, see Run.on."""
    if backends.of(backend) is not backends.NCCL:
        raise ValueError(f'only the rules of "{backends.NCCL.name}" are known here, not those of {backend!r}.')
    if not all(call.is_complete for call in calls):
        raise ValueError("this run lacks calls, so how it would go elsewhere isn't known.")
    found = forecast(events)
    sentences = [*_hang(found), *(wrap(_crossed(call)) for call in found.crossed)] or [_ENDS]
    left_out = any(event.op in ON_WINDOWS for of_rank in events for event in of_rank)
    return "\n".join([*sentences, *([wrap(_WINDOWS)] if left_out else [])])


def _hang(found: Forecast) -> list[str]:
    if found.standstill is None:
        may = "Fine here; on NCCL it may hang."
        return [may, *_account(found.unordered), wrap(_ONE_ORDER)] if found.unordered else []
    firsts = [waits[0] for waits in found.standstill.waits if waits]
    first = [wait.event for wait in firsts]
    lacking = {(e.ends, e.within == BATCH) for wait in firsts for e in wait.call if e.is_message and wait.lacks}
    rules = []
    if any((ends, not batched) in lacking for ends, batched in lacking):
        rules.append(_APART)
    if found.connecting:
        rules.append(_FIRST)
    if not rules:
        rules.append(_MESSAGES if any(e.is_message for e in first) else _ORDER)
    return ["Fine here; on NCCL it would hang.", *_account(found.standstill), *map(wrap, rules)]


def _account(standstill: Standstill) -> list[str]:
    """The ranks that would wait, with their lines."""
    first = [waits[0].event for waits in standstill.waits if waits]
    calls = ((e.rank, f"would wait in {call_name(e, standstill.world_size)}", source(e.line)) for e in first)
    return [*map(wrap, blame(standstill)), rows(calls)]


def _crossed(call: Call) -> str:
    send, recv = call.events
    return (
        f"NCCL ignores tags: {call_name(recv, 0)} on {few([recv.rank])} (tag {recv.tag}) would get the message of "
        f"{call_name(send, 0)} on {name_ranks([send.rank])} (tag {send.tag})."
    )
