"""Who holds whom up, in words: a first line, the call with its sizes, the table of ranks, and what is not known."""

from math import prod
from typing import Callable, Hashable, Iterable, Sequence

from ..format import aligned, duration, name_ranks, size, span
from . import ops, signatures
from .dump import Launch, Place, ProcessGroup, Signature
from .waits import Hang, Job, LaneKey, Wait

MOST_ROWS = 40  # of the table
NAME_LENGTH = 12  # characters of a group's name, which may be a hash
PYSPY = "see its log, and, if it is still there, its stack (`py-spy dump --pid ...`)"


def explained(job: Job, hang: Hang, failures: Sequence[str] = ()) -> str:
    """The first line, the sentences after it and the table of ranks.

    failures: sentences on what the network's library itself reported, which is the cause where no rank is.
    """
    if failures and not hang.ranks:
        lines = [f"No rank lacks a call: {failures[0]}", *failures[1:]]
    else:
        lines = [headline(job, hang), *_SENTENCES[hang.kind](job, hang), *failures]
    return "\n".join([*lines, "", table(job)])


# --- the first line -----------------------------------------------------------------------


def headline(job: Job, hang: Hang) -> str:
    return f"{_who(job, hang)}: {_WHY[hang.kind](job, hang)}."


def _who(job: Job, hang: Hang) -> str:
    if not hang.ranks:
        return "No rank lacks a call"
    subject = few(hang.ranks).capitalize()
    verb = "may hold" if hang.kind == "silent" else "holds" if len(hang.ranks) == 1 else "hold"
    others = job.world_size - len(hang.ranks)
    held = "the other rank" if others == 1 else f"the other {others:,}"
    if len(hang.held) < others or not others:
        held = f"{len(hang.held):,} of {held}" if hang.held else ""
    if hang.kind == "cycle" or hang.kind == "mismatch" and _is_tie(hang):
        held = " and ".join(["each other", *([held] if held else [])])
    return f"{subject} {verb} up {held or 'nobody else'}"


def _is_tie(hang: Hang) -> bool:
    return len(hang.parts[0][0]) == len(hang.parts[1][0])


def _absent(job: Job, hang: Hang) -> str:
    _, first = hang.waits[0]
    missing = [rank for rank in hang.ranks if rank in first.lacks]
    verb = "has" if len(hang.ranks) == 1 else "have"
    who = "" if len(missing) == len(hang.ranks) else f"{few(missing)} "
    if who:
        verb = "has" if len(missing) == 1 else "have"
    pronoun = who or ("it " if len(hang.ranks) == 1 else "they ")
    return f"{pronoun}{verb} not made {_counterpart(job, first)}"


def _mismatch(job: Job, hang: Hang) -> str:
    (most, usual), *rest = hang.parts
    call = f"call #{usual.number}{of_group(job, hang.waits[0][1].lane)}"
    one, several = ("calls", "call") if hang.flaw == "collective" else ("passes", "pass")
    odd = [
        f"{few(ranks)} {one if len(ranks) == 1 else several} {_differing(launch, hang.flaw)}" for ranks, launch in rest
    ]
    return f"in {call}, {', '.join(odd)}, and {few(most)} {one if len(most) == 1 else several} {_differing(usual, hang.flaw)}"


def _differing(launch: Launch, flaw: str) -> str:
    what = launch.what
    if flaw == "collective":
        return _op(what)
    if what.parts:
        return sizes(what)
    if flaw == "dtype":
        return " and ".join(what.dtypes)
    elements = signatures.elements(what)
    return sizes(what) if elements is None else f"{elements:,} element{'s' * (elements != 1)}"


def _not_started(job: Job, hang: Hang) -> str:
    _, wait = hang.waits[0]
    its = "its device has" if len(hang.ranks) == 1 else "their devices have"
    return f"all have made {call(job, wait)}, and {its} not come to it"


def _silent(job: Job, hang: Hang) -> str:
    of = "it" if len(hang.ranks) == 1 else "them"
    from_log = any(dump.from_log for dump in job.dumps.values())
    nothing = f"no dump of {of}, and no watchdog message in a log" if from_log else f"no dump of {of}"
    _, wait = hang.waits[0]
    return f"there is {nothing}, and {few(r for r, _ in hang.waits)} wait{'s' * (len(hang.waits) == 1)} in {call(job, wait)}"


def _joined(job: Job, hang: Hang) -> str:
    _, wait = hang.waits[0]
    needed = job.needed(wait.lane)
    who = f"all {len(needed):,} ranks" if len(needed) > 2 else few(needed)
    there = "" if not hang.ended else f" on {few(rank for rank, _ in hang.waits)}"
    return f"{who} have made {call(job, wait)}, and it has not ended{there}"


def _cycle(job: Job, hang: Hang) -> str:
    following = [*hang.ranks[1:], hang.ranks[0]]
    shown = [f"rank {r} waits in {call(job, wait)} for rank {to}" for (r, wait), to in zip(hang.waits, following)][:4]
    more = f", and so on through {len(hang.ranks)} ranks" if len(hang.ranks) > 4 else ""
    return "; ".join(shown) + more


def _nothing(job: Job, hang: Hang) -> str:
    if not any(dump.launches for dump in job.dumps.values()):
        return "these files hold no calls at all"
    return "each call in these files was made by all the ranks that it needs, and none is known to be waiting"


_WHY: dict[str, Callable[[Job, Hang], str]] = {
    "absent": _absent,
    "mismatch": _mismatch,
    "not started": _not_started,
    "silent": _silent,
    "joined": _joined,
    "cycle": _cycle,
    "nothing": _nothing,
}

# --- the sentences after it ---------------------------------------------------------------


def _about_call(job: Job, hang: Hang) -> str:
    """Who waits in the call, with which sizes and on which line."""
    _, first = hang.waits[0]
    inside = [r for r, wait in hang.waits if (wait.lane, wait.number) == (first.lane, first.number)]
    verb = "waits" if len(inside) == 1 else "wait"
    words = [f"{few(inside).capitalize()} {verb} in it{_since(job, first.launch)}"]
    if passed := sizes(_part(first)):
        words.append(f"with {passed}")
    return f"{', '.join(words)}{_at(first.launch.place)}."


def _lasts(job: Job, ranks: Iterable[int]) -> list[str]:
    """What each rank did last; of many, the first few."""
    ranks = list(ranks)
    lines = []
    for rank in ranks[:4]:
        if launch := job.latest(rank):
            ago = "" if job.dumps[rank].from_log else f", {_ago(job, launch)}"  # a log tells when, of those that failed
            lines.append(f"Rank {rank}'s last call is {_named(job, launch)}{_at(launch.place)}{ago}.")
        else:
            lines.append(f"Rank {rank} has made no call at all.")
    return lines + [f"({len(ranks) - 4:,} more: see the table.)"] * (len(ranks) > 4)


def _of_absent(job: Job, hang: Hang) -> list[str]:
    lines = [_about_call(job, hang), *_lasts(job, hang.ranks)]
    _, first = hang.waits[0]
    lines += _slipped(job, hang, first.lane)
    if unsure := sorted(set(hang.ranks) & first.unsure):
        whose = "its" if len(unsure) == 1 else "their"
        lines.append(
            f"Of {few(unsure)} this is not certain: {whose} dump holds no call on that group and does not reach back to the start."
        )
    if hang.slip:
        return lines
    elsewhere = "Its program is" if len(hang.ranks) == 1 else "Their programs are"
    lines.append(f"{elsewhere} elsewhere, in no recorded call: {PYSPY}.")
    return lines


def _of_mismatch(job: Job, hang: Hang) -> list[str]:
    lines = [
        f"{few(ranks).capitalize()}: {_op(launch.what)} {sizes(launch.what)}{_at(launch.place)}.".replace(" .", ".")
        for ranks, launch in hang.parts
    ]
    lines += _slipped(job, hang, hang.waits[0][1].lane)
    lines.append("Every member of a group must make the same calls in the same order, with sizes that fit together.")
    return lines


def _slipped(job: Job, hang: Hang, lane: LaneKey | None) -> list[str]:
    if not hang.slip:
        return []
    n, rank, first = abs(hang.slip.by), hang.ranks[0], hang.slip.first
    which = f"{_named(job, first)}{_at(first.place)}" + (f", and {n - 1} more" if n > 1 else "")
    left_out = hang.slip.by > 0
    did = f"left out {which}" if left_out else f"made {which}, which the others did not make there"
    return [f"Rank {rank} {did}: from there on, its calls are {'later' if left_out else 'earlier'} ones of the others."]


def _of_not_started(job: Job, hang: Hang) -> list[str]:
    return [
        _about_call(job, hang),
        *_ended(hang),
        f"On {few(hang.ranks)} the call is queued behind something else on the device, on the others it runs: look for a kernel "
        "that does not end there, or an Xid in that host's dmesg.",
    ]


def _of_joined(job: Job, hang: Hang) -> list[str]:
    return [
        _about_call(job, hang),
        *_ended(hang),
        "What they pass fits together, as far as dumps tell (not the root, not the reduce op). So look below the program: a "
        "kernel that does not end, a card, a link, the network between the hosts of these ranks.",
    ]


def _ended(hang: Hang) -> list[str]:
    return [f"It has ended on {few(hang.ended)}."] if hang.ended else []


def _of_silent(job: Job, hang: Hang) -> list[str]:
    its = "Its process" if len(hang.ranks) == 1 else "Their processes"
    return [
        _about_call(job, hang),
        f"{its} died, or could not write: look for the log, the exit code and the host first.",
    ]


def _of_cycle(job: Job, hang: Hang) -> list[str]:
    lines = [
        f"Rank {r} waits{_since(job, wait.launch)}, with {sizes(_part(wait))}{_at(wait.launch.place)}."
        for r, wait in hang.waits[:4]
    ]
    if all(wait.launch.what.op == "send" for _, wait in hang.waits):
        lines.append("All of them send first. Let some receive first, or use batch_isend_irecv.")
    elif len({wait.lane for _, wait in hang.waits}) > 1:
        lines.append("They use these groups, or make these messages, in different orders: use one order on every rank.")
    return lines


def _of_nothing(job: Job, hang: Hang) -> list[str]:
    return []


_SENTENCES: dict[str, Callable[[Job, Hang], list[str]]] = {
    "absent": _of_absent,
    "mismatch": _of_mismatch,
    "not started": _of_not_started,
    "silent": _of_silent,
    "joined": _of_joined,
    "cycle": _of_cycle,
    "nothing": _of_nothing,
}

# --- the table ----------------------------------------------------------------------------


def table(job: Job) -> str:
    """What each rank was doing; a line for those that did the same."""
    alike: dict[Hashable, list[int]] = {}
    for rank in range(job.world_size):
        alike.setdefault(_row(job, rank), []).append(rank)
    rows = [(f"rank{'s' * (len(ranks) > 1)} {span(ranks)}", *row) for row, ranks in alike.items()]
    lines = aligned([("", "calls", "doing", "passing", "line"), *rows[:MOST_ROWS]], right=(1,), indent="  ")
    return lines + (f"\n  ... and {len(rows) - MOST_ROWS:,} more lines" if len(rows) > MOST_ROWS else "")


def _row(job: Job, rank: int) -> tuple[str, str, str, str]:
    if rank not in job.dumps:
        return "?", "no dump", "", ""
    dump = job.dumps[rank]
    made = "" if dump.from_log else f"{dump.dropped + len(dump.launches):,}"
    if job.waits[rank]:
        wait = job.waits[rank][0]
        lacks = f", which lacks {few(sorted(wait.lacks))}" if wait.lacks else ""
        doing = f"waits in {_brief(wait)}{lacks}"
        return made, doing, sizes(_part(wait)), str(wait.launch.place or "")
    if launch := job.latest(rank):
        return made, f"after {_named(job, launch, short=True)}", sizes(launch.what), str(launch.place or "")
    return made, "no call", "", ""


def _brief(wait: Wait) -> str:
    if type(wait.lane) is tuple:
        return _message(wait)
    number = f" #{wait.number}" if wait.lane else ""
    return f"{_op(wait.launch.what)}{number}{_group_name(wait.lane or wait.launch.group)}"


# --- phrases ------------------------------------------------------------------------------


def call(job: Job, wait: Wait) -> str:
    """'all_reduce #3 of group tp (0-3)', 'send #2 from 0 to 1'"""
    if wait.lane is None:
        return f"a {_op(wait.launch.what)}"
    if type(wait.lane) is tuple:
        return f"{_message(wait)}{of_group(job, wait.lane)}"
    return f"{_op(wait.launch.what)} #{wait.number}{of_group(job, wait.lane)}"


def _counterpart(job: Job, wait: Wait) -> str:
    """The call that others lack: of a send its recv."""
    if type(wait.lane) is not tuple:
        return call(job, wait)
    _, source, target = wait.lane
    other = "recv" if _part(wait).op == "send" else "send"
    number = f" #{wait.number}" if wait.number > 0 else ""
    return f"{other}{number} {'from' if other == 'recv' else 'to'} {source if other == 'recv' else target}"


def _message(wait: Wait) -> str:
    _, source, target = wait.lane
    part = _part(wait)
    number = f" #{wait.number}" if wait.number > 0 else ""
    return f"{part.op}{number} {f'to {target}' if part.op == 'send' else f'from {source}'}"


def _part(wait: Wait) -> Signature:
    """What is passed; of several messages at once, the one in this lane."""
    what = wait.launch.what
    if type(wait.lane) is tuple:
        return next((part for part in what.messages if part.ends == wait.lane[1:]), what)
    return what


def _named(job: Job, launch: Launch, short: bool = False) -> str:
    what = launch.what
    if what.is_message and what.ends:
        return f"{what.op} {f'to {what.ends[1]}' if what.op == 'send' else f'from {what.ends[0]}'}"
    number = f" #{launch.number}" if launch.number >= 0 else ""
    return f"{_op(what)}{number}{_group_name(launch.group) if short else of_group(job, launch.group)}"


def _op(what: Signature) -> str:
    if not what.parts:
        return what.op
    counts: dict[str, int] = {}
    for part in what.parts:
        counts[part.op] = counts.get(part.op, 0) + 1
    return (
        "coalesced " + " and ".join(op if n == 1 else f"{n} {op}" for op, n in counts.items())
        if counts
        else ops.COALESCED
    )


def of_group(job: Job, lane: LaneKey | None) -> str:
    """' of group tp (0-3)'; nothing for the group of all ranks."""
    group = lane[0] if type(lane) is tuple else lane
    if group is None:
        return ""
    members = job.members.get(group, group.ranks or ())
    if len(members) == job.world_size or type(lane) is tuple:
        return _group_name(group)
    return f"{_group_name(group) or f' of group {group.name[:NAME_LENGTH]}'} ({span(members)})"


def _group_name(group: ProcessGroup) -> str:
    if group.desc in ("default_pg", "WORLD") or group.name == "0" and group.desc in ("", "undefined"):
        return ""
    told = group.desc not in ("", "undefined", *ops.BACKENDS)  # TorchComms has its backend there
    return f" of group {group.desc if told else group.name[:NAME_LENGTH]}"


def sizes(what: Signature) -> str:
    """'float32 [1024], 4 KiB'"""
    if what.parts:
        return ", ".join(dict.fromkeys(filter(None, map(sizes, what.parts[:3])))) + ", ..." * (len(what.parts) > 3)
    shapes = what.sizes or what.results
    if not shapes:
        return ""
    if not what.dtypes:
        elements = sum(map(prod, shapes))
        return f"{elements:,} element{'s' * (elements != 1)}"
    dtype = what.dtypes[0]
    shown = str(list(shapes[0])) if len(shapes) == 1 else f"{len(shapes)} tensors of {list(shapes[0])}"
    nbytes = sum(map(prod, shapes)) * ops.bytes_of(dtype)
    return f"{dtype} {shown}".strip() + (f", {size(nbytes)}" if nbytes or not sum(map(prod, shapes)) else "")


def few(ranks: Iterable[int]) -> str:
    """'rank 3', 'ranks 0, 1 and 3', 'ranks 0-5, 7-1023'"""
    ranks = sorted(ranks)
    return name_ranks(ranks) if len(ranks) <= 4 else f"ranks {span(ranks)}"


def _at(place: Place | None) -> str:
    return f", at {place}" if place else ""


def _newest(job: Job) -> int:
    times = (t for d in job.dumps.values() for e in d.launches[-64:] for t in (e.made, e.ended or 0))
    return max(max(times, default=0), *(dump.written for dump in job.dumps.values()), 0)


def _ago(job: Job, launch: Launch) -> str:
    seconds = (_newest(job) - launch.made) / 1e9
    return f"{duration(seconds)} before the last call on any rank" if seconds > 1e-3 else "the last call on any rank"


def _since(job: Job, launch: Launch) -> str:
    seconds = (_newest(job) - launch.made) / 1e9
    return f", for at least {duration(seconds)}" if seconds > 1e-3 else ""


# --- what is not known --------------------------------------------------------------------


def limits(job: Job) -> list[str]:
    """Sentences on what these dumps don't say."""
    lines = []
    if job.missing:
        lines.append(f"There is no dump of {few(job.missing)}.")
    if dropped := [rank for rank, dump in job.dumps.items() if dump.dropped]:
        lines.append(f"The dumps of {few(dropped)} hold the last calls alone; earlier ones were overwritten.")
    untold: dict[str, list[int]] = {}
    for rank, dump in job.dumps.items():
        for what in dump.unknown:
            untold.setdefault(what, []).append(rank)
    for what, ranks in untold.items():
        whose = "The dumps" if len(ranks) == len(job.dumps) else f"The dump{'s' * (len(ranks) > 1)} of {few(ranks)}"
        lines.append(f"{whose} do{'es' * (len(ranks) == 1 < len(job.dumps))}n't say {what}.")
    if job.inferred:
        names = sorted({_group_name(group).removeprefix(" of group ") or group.name for group in job.inferred})
        lines.append(
            f"The members of group {', '.join(names)} are not recorded: the ranks that made its calls are taken to be all."
            if len(names) == 1
            else f"The members of groups {', '.join(names)} are not recorded: the ranks that made a group's calls are taken to be all."
        )
    return ["", *lines] if lines else []
