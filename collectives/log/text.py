"""The text twin: a picture's content, as a table of plain text.

For screen readers, for diffs, for nbval, and for whoever reads faster than they look.  The
same events always give the same text: no times, no addresses.
"""

from collections import defaultdict
from typing import Iterable, Mapping, Sequence

from ..format import align, dtype_name, name_ranks, numbers, size, span
from .calls import Call
from .collectives import SENDS, of
from .event import Event, Line, Value
from .messages import Caught
from .transfers import delivered

ENDED = ("lost", "failed")  # a call's states that nobody waits in
NO_LETTERS = ("", "")
SHOWN_NUMBERS = 12  # a longer tensor shows its ends only
ONE_OUTPUT = (
    "For gloo, the output of all_gather_single is the inputs end to end, and an input has a dimension, though torch documents "
    "a stacked output, too: pass x.view(-1) and out.view(-1)."
)


def block_table(block: list[Call], most: int | None = None, letters: bool = False) -> str:
    """One block as text.  most: messages shown of an exchange; None: all.  letters: as Run.draw has it."""
    if not block[0].is_message:
        return call_table(block[0], letters)
    rows = [_message_row(call) for call in block[:most]]
    same = {what for *_, what, _ in rows}
    head = f"{len(block)} message{'s' * (len(block) > 1)}" + (f", {same.pop()} each" if len(same) == 1 else "")
    cells = [(ends, value, *[what] * bool(same), note) for ends, value, what, note in rows]
    lines = [head, align(cells, indent="  ", gap="   ")]
    if most is not None and len(block) > most:
        lines.append(f"  ... and {len(block) - most} more")
    return "\n".join(lines)


def block_tables(shown: Iterable[list[Call]], letters: bool) -> str:
    return "\n\n".join(block_table(block, letters=letters) for block in shown)


def _message_row(call: Call) -> tuple[str, str, str, str]:
    first, last = call.events[0], call.events[-1]
    source, target = first.ends
    notes = _one_sided(call) if first.op not in ("send", "recv") else [f"tag {first.tag}"] if first.tag else []
    if not call.is_complete:
        notes.append(_LACKS.get(first.op, "nothing was sent"))
    elif last.end is None:
        notes.append("not received" if last.issued is None else "captured" if last.captured else "issued")
    elif not last.waited:
        notes.append("not waited for")
    if last.viewed_at:
        notes.append(f"a view taken before the wait, {last.viewed_at}: read only after it?")
    value = first.after if first.op == "get" else first.before if first.op in SENDS else None
    if len(call.events) == 2 and last.end is not None and text(brought := delivered(first, last)) != text(value):
        notes.append(f"arrived as {text(brought)}")
    what = f"{dtype_name(first.dtype)} {list(first.shape)}, " * (first.dtype is not None) + size(first.nbytes)
    return f"{'?' if source is None else source} -> {target}", text(value), what, ", ".join(notes)


_LACKS = {"send": "no recv was posted", "wait": "no such signal was made"}


def _one_sided(call: Call) -> list[str]:
    """The kind of a message by a Window: 'put', 'get', 'signal 3', 'signal 3, no wait for it'."""
    first = call.events[0]
    if first.op in ("put", "get"):
        return [first.op]
    return [f"signal {first.tag}"] + ["no wait for it"] * (first.op == "signal" and len(call.events) == 1)


def call_table(call: Call, letters: bool = False) -> str:
    """One collective as text: its name, then before -> after, one row per rank."""
    head = call_title(call)
    if all(e.before is None and e.after is None for e in call):
        return head
    rows = [(rank_mark(e), before_text(e), "->", after_text(e)) for e in call]
    before, after = column_names(call_letters(call) if letters else NO_LETTERS)
    return f"{head}\n" + align([("rank", before, "", after), *rows], indent="  ", least=(5,))


def column_names(letters: tuple[str, str]) -> list[str]:
    """['before: P', 'after: R']"""
    return [word + f": {letter}" * bool(letter) for word, letter in zip(("before", "after"), letters)]


def call_letters(call: Call) -> tuple[str, str]:
    """The letters of what the ranks pass in and get: ('P(max)', 'R') for an all_reduce MAX; '' where no letter holds."""
    if len({e.how for e in call}) > 1:
        return NO_LETTERS
    (before, after), reduce_op = of(call.op).letters, call.events[0].reduce_op
    if before == "P" and reduce_op != "SUM":
        before = f"P({reduce_op.lower()})"
    return before, after * (call.is_complete and all(e.end is not None for e in call))


def call_title(call: Call) -> str:
    """'broadcast from 0, ranks 0-3, float32 [3], 12 B a rank'"""
    first = call.events[0]
    words = f"{first.how}, ranks {span(call.group)}"
    giver = next((e for e in call if e.rank == e.src), first)
    if giver.dtype is not None and giver.nbytes:
        words += f", {_dtypes(call)} {list(giver.shape)}, {size(giver.nbytes)}"
        words += " per rank" if len({e.nbytes for e in call}) == 1 else f" on rank {giver.rank}"
    if first.within:
        words += f"  (inside {first.within})"
    return words


def _dtypes(call: Call) -> str:
    """'float32', or who has which: 'float32 (0) and int32 (1-3)'"""
    ranks: dict[str, list[int]] = {}
    for e in call:
        if e.dtype is not None:
            ranks.setdefault(dtype_name(e.dtype), []).append(e.rank)
    return next(iter(ranks)) if len(ranks) == 1 else " and ".join(f"{name} ({span(rs)})" for name, rs in ranks.items())


def rank_mark(e: Event) -> str:
    """'2', '0*' for a root"""
    return f"{e.rank}*" if e.rank == e.root else str(e.rank)


def before_text(e: Event) -> str:
    return "-" if e.before is None or e.is_scratch else text(e.before)


def after_text(e: Event) -> str:
    if e.end is None and e.issued is None:
        return f"({words})" if (words := status(e)) in ENDED else "(never completed)"
    if e.captured:
        return "(captured)"
    if e.end is None:
        return "(issued)"
    if e.is_undefined:
        return "undefined"
    note = "" if e.waited else "  (not waited for)"
    if e.viewed_at:
        note += f"  (a view taken before the wait, {e.viewed_at}: read only after it?)"
    return ("-" if e.after is None else text(e.after)) + note


def status(e: Event) -> str:
    """The state of a rank whose call has not finished; '' if it has."""
    if e.end is not None and (e.waited or not e.async_op) or e.issued is not None:
        return ""
    if e.cut_short:
        return "lost"
    if e.async_op and e.waiting is None:
        return "not waited for"
    return "failed" if e.abandoned and e.waiting is not None else "still waiting"  # a wait that raised, and was caught


def peer_status(e: Event) -> str:
    """'recv from 2: still waiting'"""
    peer = f"to {e.dst}" if e.op in SENDS else "from anyone" if e.src is None else f"from {e.src}"
    return f"{e.op} {peer}: {status(e)}"


def text(value: Value) -> str:
    """A captured value in one line: a list's tensors are separated by '|', a matrix's rows bracketed."""
    import torch  # takes a second, which words on calls without values can do without

    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return " | ".join(text(v) for v in value)
    if not isinstance(value, torch.Tensor):
        return str(value)  # a Summary
    if value.numel() == 0:
        return "(empty)"
    if value.numel() > SHOWN_NUMBERS:
        flat = value.flatten()
        return f"{numbers(flat[:3].tolist())} ... {numbers(flat[-3:].tolist())}"
    if value.dim() <= 1:
        return numbers(value.flatten().tolist())
    return " ".join(f"[{text(row)}]" for row in value)


def source(line: Line | None) -> str:
    return "" if line is None else f"{line}:  {line.text}" if line.text else str(line)


def is_discarded(e: Event) -> bool:
    """Whether a rank gets a result that nobody can read, rather than only takes part."""
    import torch

    only_gives = e.op == "broadcast" and e.rank == e.src or e.op == "reduce" and e.rank != e.dst
    tensors = isinstance(e.before, torch.Tensor) and isinstance(e.after, torch.Tensor)
    is_same = tensors and e.before.shape == e.after.shape and torch.equal(e.before, e.after)
    return e.discarded is not None and len(e.group) > 1 and not only_gives and not is_same


def all_discarded(events: Iterable[Event]) -> list[str]:
    """A sentence for each place at which ranks get a result that nobody can read, and the fix."""
    places: dict[tuple, dict[int, Event]] = {}
    for e in filter(is_discarded, events):
        places.setdefault((e.line, e.discarded), {}).setdefault(e.rank, e)
    told = []
    for (line, expression), ranks in places.items():
        e = next(iter(ranks.values()))
        where = f" ({source(line)})" * bool(line)
        call = f"{name_ranks(sorted(ranks)).capitalize()} got the result of {e.within or e.op} #{e.index + 1}{where} in"
        if expression.startswith("["):
            told.append(
                f"{call} a list that nothing keeps, so it is lost: give the list a name, and read it afterward."
            )
        else:
            fix = "give it a name, y, before the call; then use y, or copy it back with copy_(y)."
            told.append(f"{call} {expression}, a copy that nothing keeps, so it is lost: {fix}")
    return told


def loss_notes(losses: Mapping[int, str], events: list[list[Event]]) -> list[str]:
    """A sentence for each rank that was lost, with its last call.  losses: by rank, how: 'was killed by SIGKILL'."""
    sentences = []
    for rank, how in sorted(losses.items()):
        moment = "before its first call"
        if last := next(reversed(events[rank]), None):
            line = f" ({source(last.line)})" * bool(last.line)
            moment = f"{'in' if last.end is None else 'after'} {last.op} #{last.index + 1}{line}"
        sentences.append(f"Rank {rank} {how} {moment}.")
    return sentences


def drop_note(send: Event, more: int = 0) -> str:
    """A sentence on the mistake behind a message that gloo may lose, and the fix.  more: the rank's others."""
    others = f", and of {more} more," * bool(more)
    where = f" ({source(send.line)})" * bool(send.line)
    return (
        f"Rank {send.rank} dropped the handle of isend #{send.index + 1}{where}{others} before it was complete, and gloo may "
        "lose such a message: keep the Work that isend returns, and wait() for it."
    )


def all_dropped(sends: Iterable[Event]) -> list[str]:
    """A sentence for each rank that sent messages that gloo may lose."""
    by_rank: dict[int, list[Event]] = {}
    for send in sends:
        by_rank.setdefault(send.rank, []).append(send)
    return [drop_note(first, len(more)) for first, *more in by_rank.values()]


def is_failed(e: Event) -> bool:
    """Whether a rank made a call, never completed it, and didn't wait for it on purpose either."""
    return e.end is None and e.issued is None and not (e.async_op or e.cut_short or e.captured)


def failed_calls(calls: Iterable[Call], caught: Sequence[Mapping[object, Caught]]) -> list[str]:
    """A sentence for each place of such a call, with the error that ranks caught there.  caught: by rank."""
    sentences: dict[tuple, str] = {}
    for call in calls:
        if call.is_message or not (failed := [e for e in call if is_failed(e)]):
            continue
        e, callers = failed[0], set(call.ranks) | call.unseen
        lacking = [rank for rank in call.group if rank not in callers]
        errors = _errors(e, lacking or sorted(callers), caught)
        words = f"{e.within or e.op} #{e.index + 1}" + f" ({source(e.line)})" * bool(e.line)
        if not lacking and errors:
            sentence = f"{name_ranks(sorted(callers))} made {words}, which failed: {errors}."
            if e.op == "all_gather_single" and "invalid tensor size" in errors:
                sentence += f" {ONE_OUTPUT}"
        elif lacking and errors:
            sentence = f"{name_ranks(sorted(callers))} alone made {words}, so it could never complete: {errors}, before their part of it."
        else:
            continue
        sentences.setdefault((e.line, e.op, tuple(lacking)), sentence[0].upper() + sentence[1:])
    return list(sentences.values())


def _errors(e: Event, ranks: Sequence[int], caught: Sequence[Mapping[object, Caught]]) -> str:
    """'ranks 1 and 2 caught ValueError: ...': what these ranks caught in the line of a call."""
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        for message in caught[rank].values() if rank < len(caught) else ():
            if e.line and (message.line.file, message.line.number) == (e.line.file, e.line.number):
                ranks_of[message.error.rstrip(".")].append(rank)
    return "; ".join(f"{name_ranks(group)} caught {error}" for error, group in ranks_of.items())
