"""The dumps of a job, put together: each group's members, the calls that pair up, and the ones that have not ended.

The k-th collectives of a group's members pair up; so do the k-th messages between two ranks.
"""

from array import array
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain
from typing import Iterator, NamedTuple

from ...log import backends
from .dump import Dump, Form, Launch, Launches, ProcessGroup

# A lane's key: a group, for its collectives; (group, sender, receiver) for messages.
LaneKey = ProcessGroup | tuple[ProcessGroup, int, int]


class DumpedLane(NamedTuple):
    """The calls of a rank that pair up, k-th with k-th, with its peers' calls."""

    numbers: array
    places: array  # in the rank's launches
    launches: Launches

    def at(self, number: int) -> Launch | None:
        at = bisect_left(self.numbers, number)
        return self.launches[self.places[at]] if at < len(self.numbers) and self.numbers[at] == number else None

    def calls(self, first: int = 0) -> Iterator[tuple[int, Launch]]:
        """The calls with their numbers, without the first ones."""
        return zip(self.numbers[first:], map(self.launches.__getitem__, self.places[first:]))

    def over(self) -> list[bool | None]:
        """For each call, whether it has ended."""
        forms = self.launches.forms
        return [forms[place].over for place in self.places]


@dataclass
class DumpedJob:
    """The dumps of a job, put together.

    size: the number of ranks that a file reports, or 0.  seen: the number of ranks that the files show at least.
    """

    dumps: dict[int, Dump]  # by rank
    size: int = 0
    seen: int = 0
    members: dict[ProcessGroup, tuple[int, ...]] = field(default_factory=dict)
    inferred: list[ProcessGroup] = field(default_factory=list)  # groups whose members are the ranks that called it
    unlisted: set[ProcessGroup] = field(default_factory=set)  # groups of which one member is known
    lanes: dict[int, dict[LaneKey, DumpedLane]] = field(default_factory=dict)  # by rank
    same: dict[ProcessGroup, ProcessGroup] = field(default_factory=dict)  # a group as dumps have it -> as it is meant
    open: dict[int, dict[LaneKey, int]] = field(default_factory=dict)  # by rank, its first call that has not ended
    world_size: int = 0
    shown: int = 0  # ranks, of the files: all, or the ones that are known to exist
    is_stated: bool = False  # whether the files state the world size: else there may be more ranks

    def __post_init__(self) -> None:
        self._find_members()
        for rank, dump in self.dumps.items():
            self.lanes[rank] = self._lanes_of(dump)
        self._number_messages()
        doubtful = self._doubtful()
        for rank, lanes in self.lanes.items():
            first = {key: self._first_unended(lane, doubtful[key]) for key, lane in lanes.items()}
            self.open[rank] = {key: number for key, number in first.items() if number is not None}

    @property
    def missing(self) -> list[int]:
        """Ranks that the files show, and of which there is no dump."""
        return [rank for rank in range(self.shown) if rank not in self.dumps]

    @property
    def is_partial(self) -> bool:
        """Whether so few ranks are heard of that the others can't be accused for their silence."""
        return self.world_size >= 2 * len(self.dumps)

    @property
    def is_on_gpu(self) -> bool:
        """Whether calls return before their collectives have ended, as NCCL's do."""
        return bool(self.dumps) and not any(backends.of(dump.backend).blocks for dump in self.dumps.values())

    def latest(self, rank: int) -> Launch | None:
        """The last call of a rank."""
        return self.dumps[rank].launches[-1] if self.dumps[rank].launches else None

    # --- groups and lanes -----------------------------------------------------------------

    def _find_members(self) -> None:
        """Fill in each group's members."""
        by_name: dict[str, set[ProcessGroup]] = defaultdict(set)
        callers: dict[ProcessGroup, set[int]] = defaultdict(set)
        for rank, dump in self.dumps.items():
            for group in {form.group for form in set(dump.launches.forms)}:
                callers[group].add(rank)
            for group in dump.groups.values():
                if group.ranks:
                    by_name[group.name].add(group)
        for group in callers:
            if group.ranks:
                by_name[group.name].add(group)
        known = [group for groups in by_name.values() for group in groups]
        last = max(chain(self.dumps, *(group.ranks for group in known)), default=-1)
        self.shown = max(1 + last, self.size, self.seen)
        self.is_stated = bool(self.size) or any(not dump.from_log for dump in self.dumps.values())
        # A rank that waits isn't alone, whoever the others are.
        self.world_size = self.shown if self.is_stated else max(self.shown, 2)
        for group in chain(known, callers):
            like = by_name[group.name]
            self.same[group] = next(iter(like)) if not group.ranks and len(like) == 1 else group
        for group in self.same.values():
            if group.ranks:
                self.members[group] = group.ranks
            elif group.desc == "default_pg" or group.name == "0":
                self.members[group] = tuple(range(self.world_size))
            elif group not in self.members:
                alone = len(callers[group]) == 1  # no group of one rank ever waits: it has others, whoever they are
                self.members[group] = self._possible(group, callers[group]) if alone else tuple(sorted(callers[group]))
                self.unlisted |= {group} if alone else set()
                self.inferred += [group] * (not alone)

    def _possible(self, group: ProcessGroup, callers: set[int]) -> tuple[int, ...]:
        """The ranks that may be in a group of which one is known: those whose dumps don't show that they aren't."""
        has_kind = group.desc not in ("", "undefined")
        elsewhere = {
            rank
            for rank, dump in self.dumps.items()
            if not dump.from_log and any(listed.ranks for listed in dump.groups.values()) and group.name not in dump.groups
            or has_kind and any(sibling.desc == group.desc and sibling.name != group.name for sibling in dump.groups.values())
        }
        possible = set(range(self.world_size)) - elsewhere | callers
        return tuple(sorted(possible)) if len(possible) > 1 else tuple(range(self.world_size))

    def _lanes_of(self, dump: Dump) -> dict[LaneKey, DumpedLane]:
        lanes: dict[LaneKey, DumpedLane] = {}
        of: dict[Form, list[DumpedLane]] = {}
        for form in dict.fromkeys(dump.launches.forms):
            group = self.same[form.group]
            keys = [(group, *part.ends) for part in form.messages if part.ends] if form.messages else [group]
            of[form] = [lanes.setdefault(key, DumpedLane(array("q"), array("q"), dump.launches)) for key in keys]
        for place, (form, number) in enumerate(zip(dump.launches.forms, dump.launches.numbers)):
            for lane in of[form]:
                lane.numbers.append(number)
                lane.places.append(place)
        return lanes

    def _number_messages(self) -> None:
        """Number each lane's messages from 1, or, if the first are lost, so that the ended ones agree."""
        for rank, lanes in self.lanes.items():
            for key, lane in lanes.items():
                if type(key) is tuple:
                    ends = [self.dumps[end] for end in key[1:] if end in self.dumps]
                    over = lane.over().count(True) if any(d.dropped for d in ends) else 0
                    lane.numbers[:] = array("q", range(1 - over, len(lane.numbers) + 1 - over))

    # --- calls that have not ended --------------------------------------------------------

    def reached(self, rank: int, key: LaneKey) -> int | None:
        """The number of a rank's last call in a lane, 0 if it has made none; None if its dump doesn't show it."""
        if lane := self.lanes[rank].get(key):
            return lane.numbers[-1]
        return 0 if not self.dumps[rank].dropped and self.dumps[rank].whole else None

    def needed(self, lane: LaneKey) -> tuple[int, ...]:
        """The ranks that a call in this lane needs."""
        return lane[1:] if type(lane) is tuple else self.members[lane]

    def _doubtful(self) -> dict[LaneKey, int]:
        """Per lane, the first call number whose outcome is in doubt, if the call may have failed.

        A rank is missing from it or still in it; or a rank has no dump, and it is the last call of the others.
        """
        doubtful: dict[LaneKey, int] = {}
        for lane in {key for lanes in self.lanes.values() for key in lanes}:
            ranks = [rank for rank in self.needed(lane) if rank in self.dumps]
            reached = [number for rank in ranks if (number := self.reached(rank, lane)) is not None]
            pending = [launch_number for rank in ranks if (launch_number := self._first_open(rank, lane)) is not None]
            complete = len(ranks) == len(self.needed(lane))
            doubtful[lane] = min([*pending, min(reached, default=0) + 1 if complete else max(reached, default=0)])
        return doubtful

    def _first_open(self, rank: int, key: LaneKey) -> int | None:
        lane = self.lanes[rank].get(key)
        return next((n for n, over in zip(lane.numbers, lane.over()) if over is False), None) if lane else None

    def _first_unended(self, lane: DumpedLane, doubtful: int) -> int | None:
        """The number of a rank's first call in a lane that has not ended.  doubtful: see _doubtful."""
        ended = lane.over()
        first = len(ended)
        while first and ended[first - 1] is not True:
            first -= 1
        for number, over in zip(lane.numbers[first:], ended[first:]):
            if over is False or over is None and number >= doubtful:
                return number
        return None

    def is_open(self, rank: int, lane: LaneKey, number: int) -> bool:
        """Whether a rank's call has not ended, as far as all dumps show."""
        first = self.open[rank].get(lane)
        return first is not None and number >= first
