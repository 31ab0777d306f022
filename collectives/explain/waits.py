"""From the dumps of a job to who holds whom up.

Every rank waits in the calls that it has made and that have not ended. The k-th collective of a group lacks each member
that has made fewer than k there; a message lacks its other end. Followed over all groups, these waits lead to ranks
that wait for nobody: they are elsewhere, and hold the others up. Where all have made a call and it does not end, its
arguments differ, or the fault lies below the program: a kernel, a card, a link.
"""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain
from typing import Iterable, Literal, NamedTuple

from . import signatures
from .dump import Dump, Launch, ProcessGroup
from .signatures import Lane

# Which lane: a group, for its collectives; (group, who sends, who receives) for messages.
LaneKey = ProcessGroup | tuple[ProcessGroup, int, int]


class Wait(NamedTuple):
    """A call that a rank has made and that has not ended.

    lacks: ranks that have not made it.  unsure: those of them whose dump does not reach back far enough to be certain.
    silent: ranks that it needs and of which there is no dump.
    """

    launch: Launch
    lane: LaneKey | None  # None: a message whose other end is not recorded
    number: int
    lacks: frozenset[int] = frozenset()
    unsure: frozenset[int] = frozenset()
    silent: frozenset[int] = frozenset()


Kind = Literal["absent", "silent", "mismatch", "not started", "joined", "cycle", "nothing"]


@dataclass
class Hang:
    """Who holds whom up, and how.

    kind: absent, the ranks have not made a call that others wait in; silent, there is no dump of them; mismatch, they
    pass something else; not started, their device has not come to the call; joined, all have made it; cycle, they wait
    for each other; nothing, no rank is known to wait.
    """

    kind: Kind
    ranks: tuple[int, ...] = ()  # that hold up the others
    held: frozenset[int] = frozenset()  # that wait for them, some by way of others
    waits: tuple[
        tuple[int, Wait], ...
    ] = ()  # (rank that waits, in what), of the call that it is about; of a cycle, all
    parts: tuple[tuple[tuple[int, ...], Launch], ...] = ()  # of a mismatch: ranks that pass the same, and what
    flaw: str = ""  # of a mismatch: what differs
    slip: "signatures.Slip | None" = None  # calls that a rank left out, or made besides, before that
    ended: tuple[int, ...] = ()  # members on which the call has ended


@dataclass
class Job:
    """The dumps of a job, put together."""

    dumps: dict[int, Dump]  # by rank
    members: dict[ProcessGroup, tuple[int, ...]] = field(default_factory=dict)
    inferred: list[ProcessGroup] = field(default_factory=list)  # groups whose members are those that called it
    lanes: dict[int, dict[LaneKey, Lane]] = field(default_factory=dict)  # by rank
    waits: dict[int, list[Wait]] = field(default_factory=dict)  # by rank, of each lane the first, in the order of calls
    world_size: int = 0

    def __post_init__(self) -> None:
        same = self._find_members()
        for rank, dump in self.dumps.items():
            self.lanes[rank] = self._lanes_of(dump, same)
        self._number_messages()
        doubtful = self._doubtful()
        for rank in self.dumps:
            waits = chain(self._waits_of(rank, doubtful), self._messages_without_peer(rank))
            self.waits[rank] = sorted(waits, key=lambda wait: wait.launch.made)

    @property
    def missing(self) -> list[int]:
        """Ranks of which there is no dump."""
        return [rank for rank in range(self.world_size) if rank not in self.dumps]

    def latest(self, rank: int) -> Launch | None:
        """The last call of a rank."""
        return self.dumps[rank].launches[-1] if self.dumps[rank].launches else None

    # --- groups and lanes -----------------------------------------------------------------

    def _find_members(self) -> dict[ProcessGroup, ProcessGroup]:
        """Fill in who is in which group. The groups as dumps have them -> those that are meant."""
        by_name: dict[str, set[ProcessGroup]] = defaultdict(set)
        callers: dict[ProcessGroup, set[int]] = defaultdict(set)
        for rank, dump in self.dumps.items():
            for group in {launch.group for launch in dump.launches}:
                callers[group].add(rank)
            for group in dump.groups.values():
                if group.ranks:
                    by_name[group.name].add(group)
        for group in callers:
            if group.ranks:
                by_name[group.name].add(group)
        known = [group for groups in by_name.values() for group in groups]
        self.world_size = 1 + max(chain(self.dumps, *(group.ranks for group in known)), default=-1)
        same = {}
        for group in chain(known, callers):
            like = by_name[group.name]
            same[group] = next(iter(like)) if not group.ranks and len(like) == 1 else group
        for group in same.values():
            if group.ranks:
                self.members[group] = group.ranks
            elif group.desc == "default_pg" or group.name == "0":
                self.members[group] = tuple(range(self.world_size))
            elif group not in self.members:
                alone = len(callers[group]) == 1  # no group of one rank ever waits: it has others, whoever they are
                self.members[group] = tuple(range(self.world_size)) if alone else tuple(sorted(callers[group]))
                self.inferred.append(group)
        return same

    def _lanes_of(self, dump: Dump, same: dict[ProcessGroup, ProcessGroup]) -> dict[LaneKey, Lane]:
        lanes: dict[LaneKey, Lane] = {}
        for launch in dump.launches:
            group = same[launch.group]
            if launch.number < 0:
                keys = [(group, *part.ends) for part in launch.what.messages if part.ends]
            else:
                keys = [group]
            for key in keys:
                if key not in lanes:
                    lanes[key] = Lane([], [])
                lanes[key].numbers.append(launch.number)
                lanes[key].launches.append(launch)
        return lanes

    def _number_messages(self) -> None:
        """Number each lane's messages from 1, or, where the first are lost, so that those that have ended agree."""
        for rank, lanes in self.lanes.items():
            for key, lane in lanes.items():
                if type(key) is tuple:
                    ends = [self.dumps[end] for end in key[1:] if end in self.dumps]
                    over = sum(launch.over is True for launch in lane.launches) if any(d.dropped for d in ends) else 0
                    lane.numbers[:] = range(1 - over, len(lane.numbers) + 1 - over)

    # --- who waits ------------------------------------------------------------------------

    def reached(self, rank: int, lane: LaneKey) -> int | None:
        """The number of a rank's last call in a lane, 0 if it has made none; None if its dump does not tell."""
        if known := self.lanes[rank].get(lane):
            return known.numbers[-1]
        return 0 if not self.dumps[rank].dropped and self.dumps[rank].whole else None

    def needed(self, lane: LaneKey) -> tuple[int, ...]:
        """The ranks that a call in this lane needs."""
        return lane[1:] if type(lane) is tuple else self.members[lane]

    def _doubtful(self) -> dict[LaneKey, int]:
        """Of a lane, the number from where on a call that may have failed has not ended well.

        It lacks somebody, or somebody is in it still; or of somebody there is no dump, and it is the last of the others.
        """
        doubtful: dict[LaneKey, int] = {}
        for lane in {key for lanes in self.lanes.values() for key in lanes}:
            ranks = [rank for rank in self.needed(lane) if rank in self.dumps]
            reached = [number for rank in ranks if (number := self.reached(rank, lane)) is not None]
            pending = [launch_number for rank in ranks if (launch_number := self._first_open(rank, lane)) is not None]
            complete = len(ranks) == len(self.needed(lane))
            doubtful[lane] = min([*pending, min(reached, default=0) + 1 if complete else max(reached, default=0)])
        return doubtful

    def _first_open(self, rank: int, lane: LaneKey) -> int | None:
        numbers, launches = self.lanes[rank].get(lane, ((), ()))
        return next((n for n, launch in zip(numbers, launches) if launch.over is False), None)

    def _waits_of(self, rank: int, doubtful: dict[LaneKey, int]) -> Iterable[Wait]:
        for key, (numbers, launches) in self.lanes[rank].items():
            if len(self.needed(key)) < 2:
                continue  # it is only queued behind something
            first = len(launches)
            while first and launches[first - 1].over is not True:
                first -= 1
            for number, launch in zip(numbers[first:], launches[first:]):
                if launch.over is False or launch.over is None and number >= doubtful[key]:
                    yield self._wait(rank, key, number, launch)
                    break

    def _wait(self, rank: int, lane: LaneKey, number: int, launch: Launch) -> Wait:
        others = [other for other in self.needed(lane) if other != rank]
        reached = {other: self.reached(other, lane) for other in others if other in self.dumps}
        return Wait(
            launch, lane, number,
            frozenset(other for other, last in reached.items() if last is None or last < number),
            frozenset(other for other, last in reached.items() if last is None),
            frozenset(others) - reached.keys(),
        )  # fmt: skip

    def _messages_without_peer(self, rank: int) -> Iterable[Wait]:
        for launch in self.dumps[rank].launches:
            if launch.over is False and any(part.ends is None for part in launch.what.messages):
                yield Wait(launch, None, launch.number)
                return

    # --- the verdict ----------------------------------------------------------------------

    def hang(self) -> Hang:
        """Who holds whom up."""
        firsts = {rank: waits[0] for rank, waits in self.waits.items() if waits}
        edges = {rank: self._waits_for(rank, firsts) for rank in self.dumps}
        absent = {rank for wait in self._all_waits() for rank in wait.lacks if not self.waits[rank]}
        mismatch = self._mismatch()
        if absent and (hang := self._absent(absent, edges)):
            if not mismatch or mismatch.parts[0][1].made >= hang.waits[0][1].launch.made:
                return hang
        if mismatch:
            return mismatch
        # What a rank waits in first keeps it from all that it has queued behind. A receive may have been posted early.
        unposted = {
            rank: next((w for w in self.waits[rank] if type(w.lane) is not tuple), w) for rank, w in firsts.items()
        }
        return (
            self._below(firsts, edges) or self._below(unposted, edges) or self._cycle(firsts, edges) or Hang("nothing")
        )

    def _all_waits(self) -> Iterable[Wait]:
        return chain.from_iterable(self.waits.values())

    def _waits_for(self, rank: int, firsts: dict[int, Wait]) -> set[int]:
        """The ranks that a rank waits for in any of its calls."""
        return set().union(*(self._behind(rank, wait, firsts) for wait in self.waits[rank]))

    def _behind(self, rank: int, wait: Wait, firsts: dict[int, Wait]) -> set[int]:
        """The ranks without which a call cannot go on: those that it lacks, or if there are none, those held in an earlier one."""
        if wait.lacks or wait.lane is None:
            return set(wait.lacks)
        others = (other for other in self.needed(wait.lane) if other in firsts and other != rank)
        return {other for other in others if self._is_held_before(other, wait, firsts[other])}

    def _is_held_before(self, rank: int, joined: Wait, first: Wait) -> bool:
        """Whether a rank that has made a call waits in one that it made before."""
        own = self.lanes[rank].get(joined.lane)
        launch = own and own.at(joined.number)
        return bool(launch and first.launch.index < launch.index)

    def _held(self, ranks: Iterable[int], edges: dict[int, set[int]]) -> frozenset[int]:
        """Those that wait for some of these ranks, some by way of others."""
        held, new = set(), set(ranks)
        while new:
            new = {rank for rank, targets in edges.items() if targets & new} - held
            held |= new
        return frozenset(held - set(ranks))

    def _absent(self, absent: set[int], edges: dict[int, set[int]]) -> Hang | None:
        """The call that lacks these ranks and that was made first; of them, those whose dumps are certain, if any are."""
        waiting = [(rank, wait) for rank, waits in self.waits.items() for wait in waits if wait.lacks & absent]
        if sure := {rank for _, wait in waiting for rank in wait.lacks - wait.unsure} & absent:
            absent = sure
            waiting = [(rank, wait) for rank, wait in waiting if wait.lacks & absent]
        waiting.sort(key=lambda at: at[1].launch.made)
        _, first = waiting[0]
        about = [(rank, wait) for rank, wait in waiting if (wait.lane, wait.number) == (first.lane, first.number)]
        about.sort(key=lambda at: at[1].launch.what.op == signatures.UNTOLD)  # some logs tell more than others
        about += [(rank, wait) for rank, wait in waiting if (rank, wait) not in about]
        slip = None
        if type(first.lane) is not tuple and len(absent) == 1:
            slip = self._slip(next(iter(absent)), first.lane)
        return Hang("absent", tuple(sorted(absent)), self._held(absent, edges), tuple(about), slip=slip)

    def _mismatch(self) -> Hang | None:
        """The first collective to which its members pass what does not fit together, and that has not ended on all."""
        found: list[Hang] = []
        for group, members in self.members.items():
            number, flaw = self._first_flaw(group)
            if not flaw:
                continue
            launches = {r: launch for r in members if r in self.dumps and (launch := self._at(r, group, number))}
            camps = signatures.camps({rank: launch.what for rank, launch in launches.items()})
            camps.sort(key=len, reverse=True)
            parts = tuple((tuple(camp), launches[camp[0]]) for camp in camps)
            ties = len(camps[0]) == len(camps[1])
            ranks = tuple(sorted(chain(*camps))) if ties else tuple(sorted(chain(*camps[1:])))
            slip = self._slip(ranks[0], group) if len(ranks) == 1 else None
            waiting = frozenset(rank for rank, waits in self.waits.items() if waits) | launches.keys()
            wait = Wait(launches[camps[0][0]], group, number)
            found.append(
                Hang("mismatch", ranks, waiting - set(ranks), ((camps[0][0], wait),), parts, flaw=flaw, slip=slip)
            )
        return min(found, key=lambda hang: hang.parts[0][1].made, default=None)

    def _at(self, rank: int, lane: LaneKey, number: int) -> Launch | None:
        own = self.lanes[rank].get(lane)
        return own and own.at(number)

    def _first_flaw(self, group: ProcessGroup) -> tuple[int, str]:
        """The number of the group's first collective that does not fit together and is not over, and what differs."""
        known = [lane for rank in self.members[group] if rank in self.lanes and (lane := self.lanes[rank].get(group))]
        best: tuple[int, str] = (0, "")
        for lane in known[1:]:
            reference = known[0]
            begin, end = max(lane.numbers[0], reference.numbers[0]), min(lane.numbers[-1], reference.numbers[-1])
            pairs = [
                (reference.launches[bisect_left(reference.numbers, begin) : bisect_left(reference.numbers, end + 1)]),
                (lane.launches[bisect_left(lane.numbers, begin) : bisect_left(lane.numbers, end + 1)]),
            ]
            if [launch.what for launch in pairs[0]] == [launch.what for launch in pairs[1]]:
                continue
            for one, other in zip(*pairs):
                if one.number != other.number:
                    break  # some are left out in between
                if one.over is True and other.over is True or one.what is other.what:
                    continue
                if flaw := signatures.flaw(one.what, other.what):
                    if not best[1] or one.number < best[0]:
                        best = one.number, flaw
                    break
        return best

    def _slip(self, rank: int, group: ProcessGroup) -> signatures.Slip | None:
        """How a rank's collectives on a group have slipped against the others'."""
        own = self.lanes[rank].get(group)
        peers = [
            lane for r in self.members[group] if r != rank and r in self.lanes and (lane := self.lanes[r].get(group))
        ]
        if not own or not peers:
            return None
        return signatures.slip(own, max(peers, key=lambda lane: len(lane.numbers)))

    def _below(self, firsts: dict[int, Wait], edges: dict[int, set[int]]) -> Hang | None:
        """Of calls that all have made and in which nobody is held by an earlier one, the first.  firsts: what each waits in."""
        stuck = [at for at in firsts.items() if at[1].lane is not None and not self._behind(*at, firsts)]
        if not stuck:
            return None
        _, first = min(stuck, key=lambda at: at[1].launch.made)
        about = tuple(
            (rank, wait)
            for rank, waits in self.waits.items()
            for wait in waits
            if (wait.lane, wait.number) == (first.lane, first.number)
        )
        about = tuple(sorted(about, key=lambda at: at[1].launch.what.op == signatures.UNTOLD))  # some logs tell more
        inside = {rank for rank, _ in about}
        if first.silent:
            ranks = tuple(sorted(first.silent))
            return Hang("silent", ranks, self._held(inside, edges) | inside, about)
        ended = tuple(sorted(set(self.needed(first.lane)) - inside))
        queued = tuple(sorted(rank for rank, wait in about if not wait.launch.began))
        if queued and len(queued) < len(inside):
            held = (self._held(inside, edges) | inside) - set(queued)
            return Hang("not started", queued, held, about, ended=ended)
        return Hang("joined", (), self._held(inside, edges) | inside, about, ended=ended)

    def _cycle(self, firsts: dict[int, Wait], edges: dict[int, set[int]]) -> Hang | None:
        """Ranks that wait for each other, from the one that began first."""
        behind = {rank: self._behind(rank, wait, firsts) for rank, wait in firsts.items()}
        waiting = {rank: wait for rank, wait in firsts.items() if behind[rank]}
        if not waiting:
            return None
        rank = min(waiting, key=lambda rank: waiting[rank].launch.made)
        path: list[int] = []
        while rank not in path:
            path.append(rank)
            onward = [other for other in behind[rank] if other in waiting]
            if not onward:
                return None
            lacked = waiting[rank].lacks & set(onward)
            rank = min(lacked or onward)
        cycle = path[path.index(rank) :]
        first = min(cycle, key=lambda rank: waiting[rank].launch.made)
        start = cycle.index(first)
        cycle = cycle[start:] + cycle[:start]
        return Hang("cycle", tuple(cycle), self._held(cycle, edges), tuple((r, waiting[r]) for r in cycle))
