"""A report on a job's dumps: ranks that hold others up, the call with its sizes, the table of ranks, the unknowns."""

import re
import textwrap
from functools import cached_property
from itertools import chain, zip_longest
from math import prod
from typing import Callable, Iterable, Iterator, Mapping, Sequence

from ...format import COLUMNS, align, duration, runs, size, span
from ...judge.verdict import Cause, Wait
from ...judge.wording import causes as wording
from ...judge.wording.phrases import alike, few
from ...log import backends
from ...log.event import Event
from . import ops
from .dump import Frame, Launch, ProcessGroup, Signature
from .judged import Judged, elements
from .dumped_job import DumpedJob
from .watchdog import ONLY_LOG

FIRST_TIME = 1_000_000_000  # nanoseconds; less than that is an order alone
MOST_ROWS = 40  # of the table
MOST_LINES = 4  # of a list of ranks in it
BELOW = (
    "look below the program: a kernel that does not end, a GPU, a link, the network between the hosts of these ranks"
)
COLLECT = {
    "dumps": "each rank writes its own, often to a disk of its host",
    "logs": "torchrun's --local-ranks-filter or a log of rank 0 alone hides them; grep -h \"ProcessGroupNCCL\" in each host's log",
}
NAME_LENGTH = 12  # characters of a group's name, which may be a hash
PARTED = (
    "A collective can't end on one rank while another is waiting in an earlier one of that group: so the sequences parted "
    "earlier, and no rank can be accused by its count. Look for the first call that ranks made differently: a branch, a "
    "loop of different length, a handled error. The flight recorder's dumps of these ranks show it."
)
PYSPY = "see its log, and, if it is still there, its stack (`py-spy dump --pid ...`)"
PYSPY_EACH = "see their logs, and, if they are still there, their stacks (`py-spy dump --pid ...`)"


def explained(
    judged: Judged, failures: Sequence[str] = (), all_run: bool = False, ended: frozenset[int] = frozenset(),
    hosts: Mapping[int, str] = {}, is_explained: bool = False,
) -> str:  # fmt: skip
    """The first line, the sentences after it and the table of ranks.

    failures: sentences on faults that the network's library itself reported, the cause if no rank is.
    all_run: whether all ranks are known to run, and to have made equally many calls.  ended: ranks whose end is known.
    hosts: by rank, where they are known.  is_explained: whether other evidence has named the first cause.
    """
    names = Names(judged, ended, hosts)
    kinds = wording.grouped(judged.causes)
    if judged.job.is_partial and any(judged.waits):
        kinds = [kind for kind in kinds if kind[0].kind not in ("silent", "joined")]
        known = list(chain(*(_about(names, kind, first=True) for kind in kinds)))
        lines = [*_coverage(names), *known, *_behind(names)] if known else _of_few(names, all_run, is_explained)
        lines += failures
    elif failures and not any(cause.ranks for cause in judged.causes):
        lines = [f"No rank lacks a call: {failures[0]}", *failures[1:]]
    elif not kinds:
        lines = [f"No rank lacks a call: {_no_lack(judged.job)}.", *failures]
    else:
        lines = list(chain(*(_about(names, kind, first=kind is kinds[0]) for kind in kinds)))
        lines += [*_unheard(names), *failures]
    return "\n".join([*lines, "", table(names)])


def _about(names: "Names", kind: Sequence[Cause], first: bool) -> list[str]:
    """The sentences on the causes of one kind."""
    listed = kind[: wording.MOST]
    sentences = chain(*(_SENTENCES[cause.kind](names, cause, len(listed) > 1) for cause in listed))
    return [wording.headline(kind, names, first=first), *sentences, *_ADVICE[kind[0].kind](names, listed)]


def _unheard(names: "Names") -> list[str]:
    """A sentence on ranks without a dump that are waited for in a call which no cause is about: they may be a cause too."""
    calls = {id(wait.call) for cause in names.judged.causes for wait in cause.waits}
    if any(cause.kind == "silent" for cause in names.judged.causes):
        return []
    waits = [row[0] for row in names.judged.waits if row and row[0].silent and not row[0].lacks and id(row[0].call) not in calls]
    if not waits:
        return []
    first = min(waits, key=lambda wait: (wait.event.is_message, wait.event.start))
    ranks = [wait.event.rank for wait in waits if wait.call is first.call]
    verb = "is" if len(ranks) == 1 else "are"
    return [f"Besides, nothing is known of {few(first.silent)}, and {few(ranks)} {verb} waiting in {names.call(first.event)} for {'it' if len(first.silent) == 1 else 'them'}."]


def _no_lack(job: DumpedJob) -> str:
    if not any(dump.launches for dump in job.dumps.values()):
        return "these files hold no calls at all"
    made = "each call in these files was made by all the ranks that it needs"
    unknown = f"; but of {few(job.missing)} nothing is known" if job.missing else ""
    return f"{made}, and none is known to be waiting{unknown}"


def waits(names: "Names") -> list[str]:
    """A sentence for each call that ranks wait in first, of the first few."""
    first = (mine[0] for mine in names.judged.waits if mine)
    in_calls = alike((wait, (names.call(wait.event), names.done(wait.event))) for wait in first)
    lines = []
    for (call, done), those in [*in_calls.items()][: wording.MOST]:
        ranks, e = [wait.event.rank for wait in those], those[0].event
        if (limit := names.judged.launch(e).limit) is not None:
            did = f"timed out in {call} after {duration(limit)}"
        else:
            did = f"{'is' if len(ranks) == 1 else 'are'} waiting in {call}{names.since(e)}"
        passed = f", with {names.sizes(e)}" if names.sizes(e) else ""
        lines.append(f"{few(ranks).capitalize()} {did}{passed}{names.at(e)}{done}.")
        if root := names.far_root(e):
            verb = {"destination": ("gets", "get"), "source": ("passes", "pass")}[root][len(ranks) > 1]
            lines.append(
                f"{few(ranks).capitalize()} {verb} no elements there, so some other rank is the {root}: look for its log first."
            )
    if len(in_calls) > wording.MOST:
        lines.append(f"({len(in_calls) - wording.MOST:,} more calls are waited in: see the table.)")
    return lines


def _of_few(names: "Names", all_run: bool, is_explained: bool) -> list[str]:
    """The sentences on the waits of a few ranks, when most of the job's ranks are not heard of."""
    job, kind = names.job, "logs" if names.is_from_log else "dumps"
    lines = [*_behind(names), *waits(names)]
    if all_run:
        return [*lines, f"So {BELOW}."]
    if job.is_stated:
        unknown = ": which rank isn't in the call can't be known" * (not behind(job) and not is_explained)
        lines.insert(0, f"{_coverage(names)[0].removesuffix('.')}{unknown}.")
    else:
        only = f"Only {few(job.dumps)} {'is' if len(job.dumps) == 1 else 'are'} heard of in these {kind}"
        lines.append(f"{only}, and the job has more ranks: which of them isn't in the call can't be known.")
    if is_explained:
        return lines
    what = "the lines of all ranks" if names.is_from_log else "the dumps of all ranks"
    return [*lines, f"Collect {what}: {COLLECT[kind]}."]


def _coverage(names: "Names") -> list[str]:
    """A sentence on the ranks that are heard of, where that isn't all of a known number."""
    kind = "logs" if names.is_from_log else "dumps"
    return [f"There are {kind} of {len(names.job.dumps):,} of {names.job.world_size:,} ranks."] * names.job.is_stated


def _behind(names: "Names") -> list[str]:
    """A sentence on the group that waits in a call which the other groups of its kind have completed."""
    if not (straggler := _straggler(names.job)):
        return []
    group, number, ahead = straggler
    ranks = names.job.members[group]
    return [
        f"Group {group.desc} ({runs(ranks)}) is behind the others of its kind: it is in #{number}, which {few(ahead)} have completed in theirs. "
        f"If all of them make the same calls, the hang began among {few(ranks)}, and the others wait for these."
    ]


def behind(job: DumpedJob) -> tuple[int, ...]:
    """The ranks of that group."""
    straggler = _straggler(job)
    return job.members[straggler[0]] if straggler else ()


def _straggler(job: DumpedJob) -> tuple[ProcessGroup, int, list[int]] | None:
    """(group, number of the call it waits in, ranks that have completed theirs), if there is one such group."""
    candidates = []
    at: dict[ProcessGroup, int] = {}
    for group in [group for group in job.members if group.desc and group.ranks]:
        numbers = [job.open[rank].get(group) for rank in job.members[group] if rank in job.dumps]
        if len(job.members[group]) < job.world_size and any(numbers):
            at[group] = min(filter(None, numbers))
    for group, number in at.items():
        siblings = [sibling for sibling in job.members if sibling.desc == group.desc and sibling != group and sibling.ranks]
        calls = [(rank, sibling) for sibling in siblings for rank in job.members[sibling] if sibling in job.lanes.get(rank, ())]
        ahead = [rank for rank, sibling in calls if _is_over(job, rank, sibling, number)]
        if len({sibling for _, sibling in calls}) > 1 and len(ahead) == len(calls):
            candidates.append((group, number, ahead))
    return candidates[0] if len(candidates) == 1 else None


def _is_over(job: DumpedJob, rank: int, group: ProcessGroup, number: int) -> bool:
    """Whether a rank's call of this number has ended, as far as its dump shows."""
    first, reached = job.open[rank].get(group), job.reached(rank, group)
    return (reached or 0) >= number and (first is None or first > number)


class Names(wording.Names):
    """Calls as dumps name them: by their number on a named group; arguments with their sizes."""

    def __init__(self, judged: Judged, ended: frozenset[int] = frozenset(), hosts: Mapping[int, str] = {}) -> None:
        super().__init__(judged.job.world_size)
        self.judged, self.job, self.ended, self.hosts = judged, judged.job, ended, hosts

    def call(self, e: Event) -> str:
        """'all_reduce #3 of group tp (0-3)', 'send #2 to 1'"""
        launch = self.judged.launch(e)
        if e.is_from_anyone:
            return f"a {_op(launch.what)}"
        if e.is_message:
            return f"{self.message(e)}{self.group(e)}"
        return f"{_op(launch.what)} #{launch.number}{self.group(e)}"

    def message(self, e: Event) -> str:
        """'send #2 to 1'"""
        return f"{e.op}{self.nth(e)} {f'to {e.dst}' if e.op == 'send' else f'from {e.src}'}"

    def counterpart(self, e: Event) -> str:
        if not e.is_message:
            return self.call(e)
        return f"recv{self.nth(e)} from {e.rank}" if e.op == "send" else f"send{self.nth(e)} to {e.rank}"

    def nth(self, e: Event) -> str:
        """The message's number between its two ranks; nothing where the first are lost."""
        number = self.judged.number(e)
        return f" #{number}" if number > 0 else ""

    def number(self, e: Event) -> int:
        return self.judged.number(e)

    def group(self, e: Event) -> str:
        """' of group tp (0-3)'; nothing for the group of all ranks."""
        group = self.job.same[self.judged.launch(e).group]
        return _group_name(group) if e.is_message else of_group(self.job, group)

    def passed(self, e: Event, flaw: str) -> str:
        what = self.judged.launch(e).what
        if flaw == "collective":
            return _op(what)
        if what.parts:
            return sizes(what)
        if flaw == "dtype":
            return " and ".join(what.dtypes)
        number = elements(what)
        return sizes(what) if number is None else f"{number:,} element{'s' * (number != 1)}"

    def is_known(self, e: Event) -> bool:
        """Whether the sizes that all ranks pass to a call are known, from dumps."""
        ranks = e.ends if e.is_message else e.group
        return all(rank in self.job.dumps and not self.job.dumps[rank].from_log for rank in ranks)

    def at(self, e: Event) -> str:
        return _at(self.judged.launch(e).place)

    def silence(self, ranks: Sequence[int]) -> str:
        of = "it" if len(ranks) == 1 else "them"
        return f"there is no dump of {of}" + (", and no watchdog message in a log" if self.is_from_log else "")

    def reports_timeouts(self, cause: Cause) -> bool:
        """Whether all ranks in a call have reported that it timed out."""
        return all(self.judged.launch(wait.event).limit is not None for wait in cause.waits)

    def far_root(self, e: Event) -> str:
        """The root of a gather or scatter whose arguments show that another rank is the root; "" if they don't."""
        what = self.judged.launch(e).what
        if what.op == "gather" and _is_empty(what.results) and not _is_empty(what.sizes):
            return "destination"
        return "source" if what.op == "scatter" and _is_empty(what.sizes) and not _is_empty(what.results) else ""

    # --- in addition to the judge's -------------------------------------------------------

    @cached_property
    def is_from_log(self) -> bool:
        """Whether some ranks are known from log lines alone."""
        return any(dump.from_log for dump in self.job.dumps.values())

    def done(self, e: Event) -> str:
        """'; #7752 had completed': the call before it on that group, where a log reports it."""
        lane = self.job.lanes[e.rank].get(self.judged.lane(e))
        before = lane and lane.at(self.number(e) - 1)
        return f"; #{before.number} had completed" if before and before.over is True and before.number and not e.is_message else ""

    def sizes(self, e: Event) -> str:
        """The sizes passed; if several messages were started at once, this one's."""
        what = self.judged.launch(e).what
        return sizes(next((part for part in what.messages if part.ends == e.ends), what) if e.is_message else what)

    @cached_property
    def _newest(self) -> int:
        """The time of the last thing in the dumps."""
        dumps = self.job.dumps.values()
        times = (t for dump in dumps for e in dump.launches[-64:] for t in (e.made, e.ended or 0))
        return max(max(times, default=0), *(dump.written for dump in dumps), 0)

    def since(self, e: Event) -> str:
        seconds = (self._newest - self.judged.launch(e).made) / 1e9
        return f", for at least {duration(seconds)}" if seconds > 1e-3 else ""

    def ago(self, launch: Launch) -> str:
        seconds = (self._newest - launch.made) / 1e9
        before = f"{duration(seconds)} before " if seconds > 1e-3 else ""
        return f"{before}the last call on any rank"


# --- the sentences after the first line ---------------------------------------------------


def _about_call(names: Names, cause: Cause, named: bool) -> str:
    """The ranks waiting in the call, with their sizes and line.  named: whether to name the call."""
    inside, first = [wait.event.rank for wait in cause.waits], cause.waits[0].event
    where = names.call(first) if named else "it"
    words = [f"{few(inside).capitalize()} {'is' if len(inside) == 1 else 'are'} waiting in {where}{names.since(first)}"]
    if passed := names.sizes(first):
        words.append(f"with {passed}")
    return f"{', '.join(words)}{names.at(first)}."


def _lasts(names: Names, ranks: Iterable[int]) -> list[str]:
    """Each rank's last call; for the first few of many."""
    ranks, job = list(ranks), names.job
    lines = []
    for rank in ranks[:4]:
        if launch := job.latest(rank):
            ago = (
                "" if job.dumps[rank].from_log or launch.made < FIRST_TIME else f", {names.ago(launch)}"
            )  # a log has times for failed calls alone
            lines.append(f"Rank {rank}'s last call is {_launch_name(job, launch)}{_at(launch.place)}{ago}.")
        else:
            lines.append(f"Rank {rank} has made no call at all.")
    return lines + [f"({len(ranks) - 4:,} more: see the table.)"] * (len(ranks) > 4)


def _of_absent(names: Names, cause: Cause, named: bool) -> list[str]:
    lines = [_about_call(names, cause, named), *_lasts(names, cause.ranks), *wording.slipped(cause, names)]
    if unsure := sorted(set(cause.ranks) & cause.waits[0].unsure):
        whose = "its" if len(unsure) == 1 else "their"
        lines.append(
            f"Of {few(unsure)} this is not certain: {whose} dump holds no call on that group and does not reach back to the start."
        )
    return lines


def _to_absent(names: Names, causes: Sequence[Cause]) -> list[str]:
    elsewhere = [rank for cause in causes if not cause.slip for rank in cause.ranks]
    they, see = ("It is", PYSPY) if len(elsewhere) == 1 else ("They are", PYSPY_EACH)
    return [f"{they} running something else, outside any recorded call: {see}."] if elsewhere else []


def _of_mismatch(names: Names, cause: Cause, named: bool) -> list[str]:
    lines = []
    for part in cause.parts:
        launch = names.judged.launch(part[0])
        who = few(e.rank for e in part).capitalize()
        passed = f" {sizes(launch.what)}" if sizes(launch.what) else ""
        lines.append(f"{who}: {_op(launch.what)}{passed}{_at(launch.place)}.")
    return lines + wording.slipped(cause, names) + _parted_in(names, cause)


def _parted_in(names: Names, cause: Cause) -> list[str]:
    """The function in which the ranks of two parts are at different lines, if a call of the most has been made in earlier rounds."""
    if len(cause.parts) != 2 or cause.slip:
        return []
    stacks = []
    for part in cause.parts:
        dump, place = names.job.dumps[part[0].rank], names.judged.launch(part[0]).place
        if place is None:
            return []
        stacks.append((*reversed(dump.callers.get(place, ())), place))
        if sum(form.place == names.judged.launch(cause.parts[0][0]).place for form in dump.launches.forms) < 2:
            return []
    most, odd = next(((a, b) for a, b in zip(*stacks) if a != b), (None, None))
    if not most or not odd or (most.file, most.function) != (odd.file, odd.function):
        return []
    who, file = few(e.rank for e in cause.parts[1]), odd.file.rpartition("/")[2]
    it = "it" if len(cause.parts[1]) == 1 else "they"
    left = (
        f"{it} left that loop with one round fewer (compare the batches of each rank), or "
        if odd.number > most.number
        else ""
    )
    so = f"So {left}{it} took a different branch."
    if counted := _rounds(names, cause):
        so = f"{who[0].upper()}{who[1:]} made {counted}: look for a `continue`, a `break`, or an empty batch between these lines."
    return [
        f"They part in {odd.function}: {who} {'is' if it == 'it' else 'are'} at {file}:{odd.number}, and the others are at {file}:{most.number}, in "
        f"another round of calls that all have made before. {so}"
    ]


def _rounds(names: Names, cause: Cause) -> str:
    """'3 rounds of 98 calls, and the others 4': between two calls of the line to which the odd rank has gone on; "" if they don't show."""
    usual, odd = (names.job.dumps[part[0].rank].launches for part in cause.parts)
    last = names.judged.launch(cause.parts[1][0])
    group, lengths = names.judged.lane(cause.parts[0][0]), []
    for launches in (odd, usual):
        numbers = [x.number for x in launches if names.job.same[x.group] == group and x.place == last.place and x.what == last.what]
        before = [number for number in numbers if number < last.number]
        after = [number for number in numbers if number >= last.number]
        if not before or not after:
            return ""
        lengths.append(after[0] - before[-1] - 1)
    size = lengths[1] - lengths[0]
    if size < 2 or lengths[0] // size < 1 or lengths[0] % size > size // 4:
        return ""
    n = lengths[0] // size
    return f"{n} round{'s' * (n != 1)} of {size:,} calls, and the others {lengths[1] // size}"


def _of_joined(names: Names, cause: Cause, named: bool) -> list[str]:
    ended = [f"It has ended on {few(cause.ended)}."] if cause.ended else []
    return [_about_call(names, cause, named), *ended]


def _to_joined(names: Names, causes: Sequence[Cause]) -> list[str]:
    known = [names.is_known(cause.waits[0].event) for cause in causes]
    if all(known):
        fits = "What they pass fits together, as far as dumps tell (not the root, not the reduce op)."
    elif any(known):
        fits = "What they pass fits together where dumps tell, and isn't known of all ranks."
    else:
        fits = "Whether what they pass fits together isn't known: there are no dumps of all these ranks."
    if not names.job.is_stated:
        more = "Nor is it known whether the job has more ranks, one of which may not be in the call: collect the logs of all hosts."
        return [f"{fits} {more} If it has none and all fits, {BELOW}."]
    return [f"{fits} {'So' if all(known) else 'If it does,'} {BELOW}."]


def _to_not_started(names: Names, causes: Sequence[Cause]) -> list[str]:
    ranks = [rank for cause in causes for rank in cause.ranks]
    return [
        f"On {few(ranks)} the call is queued behind something else on the device, on the others it runs: look for a kernel "
        "that does not end there, or an Xid in that host's dmesg."
    ]


def _of_silent(names: Names, cause: Cause, named: bool) -> list[str]:
    lines = [_about_call(names, cause, named)]
    if len(cause.ranks) == 1 and len(cause.waits) > 1 and names.reports_timeouts(cause):
        (rank,) = cause.ranks
        lines.append(
            f"Each rank in that call has reported its timeout. Rank {rank} alone has not: it never came to the call, "
            "or its log is missing here."
        )
    return lines


def _to_silent(names: Names, causes: Sequence[Cause]) -> list[str]:
    ranks = sorted(set(chain(*(cause.ranks for cause in causes))) - names.ended)
    if not ranks:
        return []
    whose = "Its file" if len(ranks) == 1 else "Their files"
    row = len(ranks) > 1 and ranks[-1] - ranks[0] == len(ranks) - 1 and not any(map(names.hosts.get, ranks))
    lines = (
        [f"They are {len(ranks):,} in a row: one host, probably."] if row and len(ranks) < names.world_size / 2 else []
    )
    ended = "It may have ended" if len(ranks) == 1 else "They may have ended"
    return [
        *lines,
        f"{ended}, or be unable to write, or {whose.lower()} weren't collected: look for the log, the exit code and the host first.".replace(
            "file weren't", "file wasn't"
        ),
    ]


def _of_parted(names: Names, cause: Cause, named: bool) -> list[str]:
    return [
        f"{few([wait.event.rank]).capitalize()}: {names.call(wait.event)}{', with ' * bool(names.sizes(wait.event))}{names.sizes(wait.event)}{names.at(wait.event)}."
        for wait in cause.waits[:4]
    ]


def _of_cycle(names: Names, cause: Cause, named: bool) -> list[str]:
    waited = [wait.event for wait in cause.waits]
    lines = [f"Rank {e.rank} is waiting{names.since(e)}, with {names.sizes(e)}{names.at(e)}." for e in waited[:4]]
    if all(e.op == "send" for e in waited):
        lines.append("All of them send first. Let some receive first, or use batch_isend_irecv.")
    elif len({names.judged.lane(e) for e in waited}) > 1:
        lines.append("They use these groups, or make these messages, in different orders: use one order on every rank.")
    return lines


# The sentences on each cause, and after them on all causes of a kind.
_SENTENCES: dict[str, Callable[[Names, Cause, bool], list[str]]] = {
    "absent": _of_absent,
    "mismatch": _of_mismatch,
    "not started": _of_joined,
    "silent": _of_silent,
    "joined": _of_joined,
    "parted": _of_parted,
    "cycle": _of_cycle,
}
_ADVICE: dict[str, Callable[[Names, Sequence[Cause]], list[str]]] = {
    "absent": _to_absent,
    "mismatch": lambda *_: ["Every member of a group must make the same calls in the same order, with sizes that fit together."],
    "not started": _to_not_started,
    "silent": _to_silent,
    "joined": _to_joined,
    "parted": lambda *_: [PARTED],
    "cycle": lambda *_: [],
}

# --- the table ----------------------------------------------------------------------------


def table(names: Names) -> str:
    """The table of what each rank was doing; ranks that did the same share a line, and the odd ones come first."""
    by_row = alike((rank, _row(names, rank, waits)) for rank, waits in enumerate(names.judged.waits[: names.job.shown]))
    blamed = set(chain(*(cause.ranks for cause in names.judged.causes)))
    odd_first = sorted(by_row.items(), key=lambda row: (blamed.isdisjoint(row[1]), len(row[1]), row[1]))
    rows = [("", "calls", "doing", "passing", "line"), *(_cells(row, ranks) for row, ranks in odd_first[:MOST_ROWS])]
    widths = [max(map(len, column)) for column in zip(*rows)]
    while sum(widths) > COLUMNS - len("  ") * len(widths):
        widths[widths.index(max(widths))] -= 1
    broken = (line for row in rows for line in _broken(row, widths))
    lines = align(broken, right=(1,), indent="  ")
    return lines + (f"\n  ... and {len(by_row) - MOST_ROWS:,} more rows" if len(by_row) > MOST_ROWS else "")


def _cells(row: tuple, ranks: Sequence[int]) -> tuple[str, ...]:
    calls, doing, passing, place = row
    doing = doing(None if len(ranks) > 1 else ranks[0]) if isinstance(doing, _Doing) else doing
    return f"rank{'s' * (len(ranks) > 1)} {span(ranks)}", calls, doing, passing, place


def _broken(row: Sequence[str], widths: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """A row's lines, each cell broken between words; a rank and its number stay together."""
    joined = (re.sub(r"(lacks )?(ranks?) (?=\d+\b)", lambda found: found[0].replace(" ", "\xa0"), cell) for cell in row)
    cells = [textwrap.wrap(cell, width) for cell, width in zip(joined, widths)]
    if len(cells[0]) > MOST_LINES:
        cells[0] = [*cells[0][: MOST_LINES - 1], "..."]
    for line in zip_longest(*cells, fillvalue=""):
        yield tuple(cell.replace("\xa0", " ") for cell in line)


def _row(names: Names, rank: int, waits: Sequence[Wait]) -> tuple:
    job = names.job
    if rank not in job.dumps:
        return "?", "nothing is known" if names.is_from_log else "no dump", "", ""
    dump = job.dumps[rank]
    made = "" if dump.from_log else f"{dump.dropped + len(dump.launches):,}"
    if waits:
        wait, *_ = waits
        place = names.judged.launch(wait.event).place
        return made, _Doing(names, wait), names.sizes(wait.event), str(place or "")
    if launch := job.latest(rank):
        return made, f"after {_launch_name(job, launch, short=True)}", sizes(launch.what), str(launch.place or "")
    return made, "no call", "", ""


class _Doing:
    """A rank's wait in words; of ranks that each wait for a message of one just as far away, the same words."""

    def __init__(self, names: Names, wait: Wait) -> None:
        self._names, self._wait, e = names, wait, wait.event
        is_listed = not e.is_message and names.judged.lane(e) not in names.job.unlisted
        lacks = f", which lacks {few(wait.lacks)}" if wait.lacks and is_listed else ""
        peer = (e.src if e.op == "recv" else e.dst) if e.is_message and not e.is_from_anyone else None
        self._offset = None if peer is None else peer - e.rank
        self._words = _brief(names, e) + lacks if peer is None else f"{e.op}{names.nth(e)}"
        self._key = self._words, self._offset, e.is_message and bool(wait.lacks)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Doing) and self._key == other._key

    def __call__(self, rank: int | None) -> str:
        """rank: if it is one."""
        if self._offset is None:
            return f"waiting in {self._words}"
        e = self._wait.event
        lacks = ", which has not made its part" if self._wait.lacks else ""
        toward = "to" if e.op == "send" else "from"
        if rank is not None:
            return f"waiting in {self._words} {toward} {rank + self._offset}{lacks}"
        return (
            f"each waiting in {self._words} {toward} rank {'+' if self._offset > 0 else '-'} {abs(self._offset)}{lacks}"
        )


def _brief(names: Names, e: Event) -> str:
    launch = names.judged.launch(e)
    number = "" if e.is_message else f" #{launch.number}"
    return f"{_op(launch.what)}{number}{_group_name(names.job.same[launch.group])}"


# --- phrases ------------------------------------------------------------------------------


def _launch_name(job: DumpedJob, launch: Launch, short: bool = False) -> str:
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


def of_group(job: DumpedJob, group: ProcessGroup) -> str:
    """' of group tp (0-3)'; nothing for the group of all ranks."""
    members = job.members.get(group, group.ranks or ())
    if len(members) == job.world_size or group in job.unlisted:
        return _group_name(group)
    return f"{_group_name(group) or f' of group {group.name[:NAME_LENGTH]}'} ({runs(members)})"


def _group_name(group: ProcessGroup) -> str:
    if group.desc in ("default_pg", "WORLD") or group.name == "0" and group.desc in ("", "undefined"):
        return ""
    listed = group.desc not in ("", "undefined", *backends.NAMES)  # TorchComms has its backend there
    return f" of group {group.desc if listed else group.name[:NAME_LENGTH]}"


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


def _is_empty(shapes: Sequence[tuple[int, ...]]) -> bool:
    return bool(shapes) and not sum(map(prod, shapes))


def _at(place: Frame | None) -> str:
    return f", at {place}" if place else ""


# --- the unknowns -------------------------------------------------------------------------


def limits(job: DumpedJob) -> list[str]:
    """Sentences on the limits of these dumps."""
    lines = []
    if job.missing:
        nothing = "Nothing is known of" if all(dump.from_log for dump in job.dumps.values()) else "There is no dump of"
        lines.append(f"{nothing} {few(job.missing)}.")
    if not job.is_stated:
        lines.append(f"No file reports how many ranks the job has: there may be more than {job.shown:,}.")
    if dropped := [rank for rank, dump in job.dumps.items() if dump.dropped]:
        lines.append(f"The dumps of {few(dropped)} hold the last calls alone; earlier ones were overwritten.")
    for what, ranks in alike((rank, what) for rank, dump in job.dumps.items() for what in dump.unknown).items():
        if what == ONLY_LOG:
            of = "" if len(ranks) == len(job.dumps) else f"Of {few(ranks)}: "
            lines.append(f"{of}{what[0].lower() if of else what[0]}{what[1:]}.")
            continue
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
