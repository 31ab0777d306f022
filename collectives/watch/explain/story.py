"""One verdict on all evidence: the first cause first, its consequences counted, and at the end what isn't known.

The judge decides who holds up whom; here its sentences are joined with how ranks ended and what their hosts report.
"""

import signal
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Iterator

from ...format import duration
from ...judge.wording.phrases import alike, few
from . import words
from .evidence import Evidence, hours_apart
from .failures import End
from .hosts import HostEvent
from .judged import Judged
from .nccl_log import PortError
from .runs import START_SECONDS
from .text import clock, listed

MOST_EVENTS = 6  # of hosts that are written out
MOST_ENDS = 4  # that are written out
NEAR_SECONDS = 3600.0  # between an event of a host and a wait, beyond which it is hardly their cause
HEALED_SECONDS = 600.0  # the same of a port that was active again
CAUGHT_SECONDS = 60.0  # between an exception that was caught, and the first wait
YEARS = (0, 365, 366, 730, 731, -365, -366, -730, -731)  # days between clocks one of which prints no year
TROUBLES = ("gone", "fault", "kill", "storage", "blocked", "service")  # kinds of events that can hold up a rank
LOST_SECONDS = 300.0  # after an event of a host, in which its peers notice that it is gone
OF_HOSTS = ("absent", "silent", "not started")  # causes that a host's fault explains: no host makes another call
FATAL = (48, 62, 79, 95, 119, 120, 143)  # Xids after which a GPU does no more work
SURE_SECONDS = 30.0  # from an event to what proves that the job went on: the kernel's clock drifts
LAST_CALLS = 64  # in a dump, among which the last completed one is looked for
KERNEL = 'dmesg -T | grep -iE "xid|killed process|link"'


def verdict(evidence: Evidence) -> list[str]:
    """The paragraphs of the verdict."""
    job = evidence.job if evidence.dumps else None
    judged = Judged(job) if job else None
    first = _Firsts(evidence, judged)
    losses = first.losses()
    lines = [*evidence.nccl.bootstrap(), *losses, *first.ends(), *first.spared(), *first.processes()]
    if judged and job:
        failures = evidence.watchdog.failures()
        text = words.explained(judged, failures, evidence.ras.is_whole, first.ended, evidence.host_map.of_rank, bool(losses))
        headline, newline, rest = text.partition("\n")
        if evidence.ras.is_whole and job.is_partial:
            lines += evidence.ras.sentences()
        lines += [*first.servers(), headline, *first.hosts_of_culprits(), *([rest] if newline else [])]
    else:
        lines += first.servers()
    further = [*first.caught(), *evidence.moved, *evidence.tables.sentences(), *evidence.failures.sentences(evidence.launches.local)]
    if not (judged and job and evidence.ras.is_whole and job.is_partial):
        further += evidence.ras.sentences()
    further += evidence.collected.sentences()
    on_gpu = job.is_on_gpu if job else False if evidence.collected.lacks_gpus else None
    further += evidence.stacks.sentences(job.world_size if job and job.is_stated else 0, evidence.host_map.of_file, on_gpu)
    further += [*first.hosts(), *evidence.launches.sentences(evidence.host_map), *evidence.counters.sentences(evidence.host_map), *evidence.failures.consequences()]
    paragraphs = []
    if judged and job:
        paragraphs = ["\n".join(lines)]
        if further:
            paragraphs.append("\n".join(further))
        if unknown := words.limits(job):
            paragraphs.append("\n".join(unknown).strip())
    elif lines or further:
        paragraphs = ["\n".join([*lines, *further])]
    if missing := [*first.missing()]:
        paragraphs.append("\n".join(missing))
    evidence.nccl.unrelated = [error for error in evidence.nccl.ports if first.is_past(error)]
    if unrelated := [*first.unrelated(), *(f"{error.words()}{first.before(error.at)}." for error in evidence.nccl.unrelated)]:
        heading = ["By their times or kinds, these are hardly the cause:"] * bool(paragraphs)
        paragraphs.append("\n".join([*heading, *unrelated]))
    return paragraphs


class _Firsts:
    """The ends of ranks and the events of hosts that come first, and those that are written about already."""

    def __init__(self, evidence: Evidence, judged: Judged | None) -> None:
        self._evidence, self._judged = evidence, judged
        self._roots = evidence.failures.roots()
        if evidence.zones:  # the first in time isn't known
            self._roots.sort(key=lambda end: -1 if end.rank is None else end.rank)
        self._done: list[HostEvent] = []

    @property
    def ended(self) -> frozenset[int]:
        """The ranks whose end is known."""
        return frozenset(end.rank for end in self._roots if end.rank is not None)

    def ends(self) -> list[str]:
        """A sentence for each rank that ended by itself, or was killed, the first in time first."""
        places = ((end.what, end.where) if end.kind == "raised" and end.rank is not None else k for k, end in enumerate(self._roots))
        ends = [*alike((end, (end.kind, place)) for end, place in zip(self._roots, places)).values()]
        lines = list(chain(*map(self._end, ends[:MOST_ENDS])))
        if self._evidence.zones and len(self._roots) > 1:
            lines.append(self._evidence.zones)
        if more := sum(map(len, ends[MOST_ENDS:])):
            lines.append(f"({more:,} more ended by themselves.)")
        failures = self._evidence.failures
        ranks = {end.rank for end in self._roots}
        if self._roots and failures.named is not None and None not in ranks and failures.named not in ranks:
            lines.append(
                f"torchrun names rank {failures.named} as the root cause: that is the one whose end it noticed first."
            )
        if 0 in ranks and failures.lost_store:
            lines.append("The store ran in rank 0's process, and ended with it.")
        return lines

    @property
    def _is_without_cause(self) -> bool:
        """Whether ranks ended, and all of them only because of another."""
        evidence, failures = self._evidence, self._evidence.failures
        met = failures.parts or failures.joined or failures.unreached or any(end.what.startswith("Rendezvous") for end in failures.ends)
        is_explained = self._roots or met or evidence.dumps or evidence.nccl.bootstrap()
        return bool(failures.ends) and not is_explained and all(map(self._is_far, evidence.hosts.ordered(["gone", "kill"])))

    def spared(self) -> list[str]:
        """A sentence on the ranks without an error, where all errors only mean that a rank was gone or late."""
        ranks = self._evidence.failures.spared(self._evidence.known_ranks) if self._is_without_cause else []
        if not ranks:
            return []
        look = "it is the first to look at. See the last lines of its log." if len(ranks) == 1 else "look at these first, and at the last lines of their logs."
        return [f"All these errors only mean that another rank was gone or late, and {few(ranks)} raised none in these files: {look}"]

    def caught(self) -> list[str]:
        """A sentence for each exception that ranks caught shortly before the first wait, or that ranks caught whose stacks are elsewhere."""
        caught, absent = [end for end in self._evidence.failures.caught if not end.follows], self._evidence.stacks.absent
        times = ((end, self._after(self._first_wait, end.at)) for end in caught)
        caught = alike((end, end.what) for end, after in times if end.rank in absent or after is not None and abs(after) <= CAUGHT_SECONDS)
        lines = []
        for ends in [*caught.values()][:MOST_ENDS]:
            ranks = sorted({end.rank for end in ends if end.rank is not None})
            lines.append(f"{ends[0].words(ranks)[:-1]}{self.before(ends[0].at)}.")
        return lines

    def losses(self) -> list[str]:
        """Sentences on the hosts that had an event, and were then lost by their peers."""
        lines = []
        nccl, events = self._evidence.nccl, self._evidence.hosts.ordered(("fault", "kill"))
        for address, accused in nccl.accused.items():
            name = nccl.address_of.get(address, "")
            if accused.first is None or self._evidence.zones:
                continue
            before = [event for event in events if event.at is not None and 0.0 <= accused.first - event.at <= LOST_SECONDS]
            before = [event for event in before if (event.host == name if name else event.host not in accused.by)]
            if not before or len({event.host for event in before}) > 1:
                continue
            event, by = before[0], sorted(accused.by)
            apart = duration(round(accused.first - event.at)) if accused.first - event.at >= 1 else "less than a second"
            likely = "" if name else f". So {address} is an address of {event.host or 'that host'}, it seems"
            ranks = self._evidence.host_map.ranks_on(event.host)
            ran = f" ({few(ranks)})" if ranks else ""
            lines.append(f"{event.words()}, {apart} before {listed(by)} lost contact with {address}{likely}: look at {event.host or 'it'}{ran} first, and not at a cable.")
            if event.local and len(ranks) == event.local[1]:
                lines.append(f"Process {event.pid} was the one with local rank {event.local[0]}, by the order of the processes' numbers, so rank {ranks[event.local[0]]}, probably.")
            lines += [event.memory] * bool(event.memory)
            lines += [f"{later.words()}{self._before(later)}." for later in before[1:MOST_EVENTS]]
            self._done += before
        return lines

    def _end(self, ends: list[End]) -> list[str]:
        end = ends[0]
        one_host = len({peer.host for peer in ends}) == 1
        node = next((node for node, pods in self._evidence.host_map.pods.items() if end.host in pods), "")
        ranks = [peer.rank for peer in ends if peer.rank is not None]
        lines = [(end if one_host else replace(end, host="")).words(ranks, node)]
        if end.kind != "killed":
            if end.host_error:
                places = {end.host, node} - {""}
                services = [event for event in self._evidence.hosts.ordered(["service"]) if event.host in places]
                self._done += services
                lines += [end.host_error, *(f"{event.words()}." for event in services)]
            return lines
        hosts = {end.host, self._evidence.host_map.of_rank.get(end.rank, "") if end.rank is not None else ""} - {""}
        for event in self._evidence.hosts.ordered(["kill", "fault"]):
            if event.pid is not None and event.pid == end.pid or event.host in hosts and not self._is_far(event):
                self._done.append(event)
                lines += [f"{event.words()}.", *([event.memory] if event.memory else [])]
        if end.signal == signal.SIGKILL and len(lines) == 1:
            where = f" on {end.host}" if end.host else " on its host"
            lines.append(
                f"It was killed from outside, most likely because its host or container ran out of memory: the kernel's log says so ({KERNEL}{where})."
            )
        return lines

    @cached_property
    def _culprits(self) -> set[int]:
        """The ranks that hold up others, as far as a host may be the reason."""
        causes = [cause for cause in self._judged.causes if cause.kind in OF_HOSTS] if self._judged else []
        return {rank for cause in causes for rank in cause.ranks}

    def servers(self) -> list[str]:
        """A sentence for each file server that hosts have lost, unless none of their ranks is late."""
        unanswered = (event for event in self._evidence.hosts.ordered(["storage"]) if not event.over and not self._is_far(event))
        events = alike((event, event.about) for event in unanswered)
        lines = []
        for server, reports in events.items():
            hosts = sorted({event.host for event in reports if event.host})
            ranks = sorted(chain(*map(self._evidence.host_map.ranks_on, hosts)))
            if self._judged and ranks and self._culprits.isdisjoint(ranks):
                continue
            self._done += reports
            blocked = [event for event in self._evidence.hosts.ordered(["blocked"]) if event.host in hosts]
            self._done += blocked
            whose = (listed(hosts) or "a host") + (f" ({few(ranks)})" if ranks else "")
            since = clock(reports[0].at).replace(" at", " since") + self._before(reports[0])
            lines.append(f"The file server {server} has not answered {whose}{since}.")
            if blocked:
                n = sum(event.times for event in blocked)
                lines[-1] += f" The kernel there reports blocked processes{f', {n:,} times' * (n > 1)}."
            alone = f"Look at {server}, and at the network of {hosts[0]}." if hosts else f"Look at {server}."
            lines.append(
                f"No single host is at fault: look at {server} and the network to it." if len(hosts) > 1 else alone
            )
        return lines

    def processes(self) -> list[str]:
        """The events about a rank's process."""
        events = [event for event in self._evidence.hosts.ordered(TROUBLES) if event.rank is not None]
        events = [event for event in events if event not in self._done and not self._is_far(event)]
        self._done += events
        return [f"{event.words()}{self._before(event)}. Process {event.pid} is rank {event.rank}." for event in events]

    def hosts_of_culprits(self) -> list[str]:
        """The events of the hosts of the ranks that hold up others."""
        culprits = self._culprits
        host_map = self._evidence.host_map
        where, by_order = host_map.of_rank, host_map.by_order
        lines = []
        hosts = sorted({where.get(rank, "") for rank in culprits})
        if len(culprits) > 1 and len(hosts) == 1 and hosts[0]:
            lines.append(f"They ran on {hosts[0]}{' (by the order of ranks)' * bool(culprits & by_order)}.")
        for event in self._evidence.hosts.ordered(TROUBLES):
            ranks = [rank for rank in host_map.ranks_on(event.host) if rank in culprits]
            if event in self._done or not ranks or self._is_far(event):
                continue
            self._done.append(event)
            if lines and len(hosts) == 1:
                lines.append(f"{event.words()}{self._before(event)}.")
                continue
            whose = "Its" if len(culprits) == 1 else f"The host of {few(ranks)},"
            name = f"host {event.host}" if len(culprits) == 1 else f"{event.host},"
            what = event.words().removeprefix(f"{event.host} ")
            name += " (by the order of ranks)" * by_order.issuperset(ranks)
            lines.append(f"{whose} {name} {what}{self._before(event)}.")
        return lines

    @cached_property
    def _first_wait(self) -> float | None:
        """When the first wait began, in seconds since the epoch; None if that is unknown."""
        if not self._judged:
            return None
        made = (self._judged.launch(wait.event).made / 1e9 for mine in self._judged.waits for wait in mine[:1])
        return min((at for at in made if at > 1e9), default=None)

    @cached_property
    def _first_error(self) -> float | None:
        """When the first rank ended, or lost another, in seconds since the epoch; None if that is unknown."""
        failures = self._evidence.failures
        lost = (accused.first for accused in self._evidence.nccl.accused.values())
        return min(filter(None, (failures.first_lost, *lost, *(end.at for end in failures.ends))), default=None)

    def _after(self, first: float | None, at: float | None) -> float | None:
        """Seconds from one time to another; None if either is unknown."""
        if first is None or at is None:
            return None
        return min((at - first + days * 86400.0 for days in YEARS), key=abs)

    @cached_property
    def _start(self) -> float | None:
        """When the launchers of the job started, the first of them; None if that is unknown, or after the first error."""
        starts = [moment.at for moment in self._evidence.moments if moment.kind == "start"]
        error = self._first_error or self._first_wait
        return min(starts) if starts and error and min(starts) <= error and not self._evidence.zones else None

    def _is_earlier(self, event: HostEvent) -> bool:
        """Whether a process was killed before the job began, so that it was one of something else."""
        if event.kind not in ("kill", "program"):
            return False
        ages = [age for _, age in self._evidence.launches.pods.values()]
        if event.age:  # a pod of the job may have been killed, and started again
            return event.host not in self._evidence.launches.pods and 0.0 < max(ages, default=0.0) < event.age_seconds
        return self._start is not None and event.at < self._start - START_SECONDS and not event.rank

    def is_past(self, error: PortError) -> bool:
        """Whether a port's error was long before or after the first wait or error; less long, if it was active again."""
        first = min(filter(None, (self._first_wait, self._first_error)), default=None)
        if first is None or error.at is None or self._evidence.zones:
            return False
        return abs(error.at - first) > (HEALED_SECONDS if error.is_over else NEAR_SECONDS)

    def _survived(self, event: HostEvent) -> str:
        """'; its ranks completed calls after it', of an event after which the job went on."""
        if event.at is None or event.kind not in ("fault", "kill", "blocked", "storage") or self._evidence.zones:
            return ""
        if self._evidence.stepped > event.at + SURE_SECONDS:
            return "; the job made steps after it"
        job = self._judged.job if self._judged else None
        ranks = [rank for rank in self._evidence.host_map.ranks_on(event.host) if job and rank in job.dumps and not job.dumps[rank].from_log]
        completed = max((launch.made / 1e9 for rank in ranks for launch in job.dumps[rank].launches[-LAST_CALLS:] if launch.over), default=0.0) if job else 0.0
        return "; its ranks began and ended calls after it" * (completed > event.at + SURE_SECONDS)

    def _is_far(self, event: HostEvent) -> bool:
        """Whether an event is hours away from the first wait, whatever the zones of their clocks, or before the job, or the job could not have survived it."""
        if any(f"Xid {number} " in event.what for number in FATAL) and self._survived(event):
            return True
        if self._is_earlier(event) or event.at is None and event.age_seconds - self._youngest > NEAR_SECONDS:
            return True
        after = self._after(self._first_wait or self._first_error, event.at) or 0.0
        return abs(after) > NEAR_SECONDS and not (hours_apart(after) and event.over is None)

    @cached_property
    def _youngest(self) -> float:
        """The least age of the events without a time on hosts of the job, or on any host."""
        events = [event for event in self._evidence.hosts.ordered(TROUBLES) if event.age and event.at is None]
        of_job = [event for event in events if self._evidence.host_map.ranks_on(event.host)]
        return min((event.age_seconds for event in of_job or events), default=0.0)

    def before(self, at: float | None) -> str:
        """', 2.3 hours before the first wait', of a time in a log of the job"""
        return self._before(HostEvent("", at, ""))

    def _before(self, event: HostEvent) -> str:
        """', 12 s before the first wait'"""
        return self._distance(event) + self._survived(event)

    def _distance(self, event: HostEvent) -> str:
        first, sign = self._first_wait, "the first wait"
        if first is None and self._is_far(event):
            first, sign = self._first_error, "the first error"
        after = self._after(first, event.at)
        if after is None:
            return ""
        if 0.0 < after < event.blur:
            return f", within {duration(event.blur)} of {sign}"
        order = "before" if after <= 0 else "after"
        if event.at is not None and event.at == int(event.at):  # a stamp of whole seconds
            if abs(after) < 1.5 and not self._evidence.zones:
                return f", within a second or two of {sign}"
            after = float(round(after))
        how = duration(abs(after))
        if abs(after) <= NEAR_SECONDS and not self._evidence.zones:
            return f", {how} {order} {sign}"
        if hours := hours_apart(after):
            how, near = f"{abs(hours)} hour{'s' * (abs(hours) != 1)}", duration(abs(after - 3600.0 * hours))
            return f", {how} {order} {sign}, or {near} from it if their clocks' zones differ"
        how = f"{abs(after) / 3600:,.1f} hours" if abs(after) > NEAR_SECONDS else how
        return f", {how} {order} {sign}, if their clocks have one zone"

    def _ran_on(self, event: HostEvent) -> str:
        """', where ranks 8-15 ran'"""
        ranks = self._evidence.host_map.ranks_on(event.host)
        node, age = self._evidence.launches.pods.get(event.host, ("", 0.0))
        if node and event.age_seconds > age > 0.0:
            return f". It has been started again since, on {node}"
        return f", where {few(ranks)} ran" if ranks and event.kind in ("gone", "kill") else ""

    def hosts(self) -> list[str]:
        """The other events of hosts."""
        left = [event for event in self._evidence.hosts.ordered([*TROUBLES, "program"]) if event not in self._done]
        left = [event for event in left if not self._is_far(event)]
        job = {*self._evidence.host_map.of_rank.values()}
        left.sort(key=lambda event: bool(job) and not self._evidence.host_map.ranks_on(event.host))
        if self._first_wait is None and self._first_error is None:  # the newest are likelier to be about tonight
            left = left[-MOST_EVENTS:] + left[:-MOST_EVENTS]
        lines = [f"{event.words()}{self._before(event)}{self._ran_on(event)}." for event in left[:MOST_EVENTS]]
        if len(left) > MOST_EVENTS:
            lines.append(f"({len(left) - MOST_EVENTS:,} more events of hosts.)")
        faulty = {event.host for event in left if event.kind == "fault" and event.host}
        if self._judged and faulty and not any(map(self._evidence.host_map.ranks_on, faulty)):
            behind = words.behind(self._judged.job) if len(faulty) == 1 else ()
            if_there = f" If {few(behind)} did, it is the cause." if behind else ""
            lines.append(
                f"Which ranks ran on {', '.join(sorted(faulty)[:3])} isn't in these files: NCCL_DEBUG=INFO, or the launcher's list of hosts, shows it.{if_there}"
            )
        return lines

    def unrelated(self) -> list[str]:
        """The events of hosts that were hours away, and the notes."""
        events = [event for event in self._evidence.hosts.ordered([*TROUBLES, "program"]) if event not in self._done and self._is_far(event)]
        events += [event for event in self._evidence.hosts.ordered(["note"]) if "Xid" in event.what]
        lines = [f"{event.words()}{self._before(event)}." for event in events[:MOST_EVENTS]]
        return lines + [f"({len(events) - MOST_EVENTS:,} more.)"] * (len(events) > MOST_EVENTS)

    def missing(self) -> Iterator[str]:
        """Sentences on evidence that would decide, and how to get it."""
        evidence = self._evidence
        yield from evidence.collected.gaps()
        if self._is_without_cause and not self.spared():
            yield (
                "All these errors only mean that another process was gone: the first cause isn't in these files. "
                "Look for the rank without such an error, in the logs of all hosts."
            )
        if evidence.ras.last.groups and len(evidence.ras.answers) == 1:
            yield "RAS was asked once, and a job that runs differs by an operation or two: ask again ten seconds later, and give both answers."
        if (evidence.dumps or evidence.failures.ends) and any(event.age and event.at is None for event in evidence.hosts.events):
            yield (
                "Kubernetes' events have ages and no times here, so whether they came first isn't known: print `date` before the events, "
                "or give them as JSON (kubectl get events -o json)."
            )
        if evidence.hosts.events and not (
            evidence.dumps or evidence.failures.ends or evidence.stacks.all or evidence.ras.is_ras
        ):
            yield "These lines are of hosts alone: the log of the job, its stacks or dumps show which ranks that concerns."
