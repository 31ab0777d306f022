"""Order and steps of a run's calls: as defined, and in time and memory in proportion to the run."""

import math

import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collectives.algorithms import chain_broadcast, from_run
from collectives.log import traffic, transfers
from collectives.log.calls import Matcher, pair
from helpers import Event, Run, run
from tests import work
from tests.sampling import slow

# --- the definitions, in the fewest words ---------------------------------------------------


def order_by_definition(events, of):
    """The calls, each once nothing before it is left on its ranks; where there is no such call, the oldest."""
    left, ordered = [list(mine) for mine in events], []
    while any(left):
        next_ones = []
        for mine in left:
            ends = math.inf
            for e in mine:
                if e.start >= ends:
                    break
                ends = min(ends, math.inf if e.end is None else e.end)
                next_ones.append(e)
        heads = list(dict.fromkeys(of[id(e)] for e in next_ones))
        ready = [call for call in heads if all(e in next_ones for e in call)]
        ordered.append(min(ready or heads, key=lambda c: (min(e.index for e in c), c.events[0].rank)))
        left = [[e for e in mine if of[id(e)] is not ordered[-1]] for mine in left]
    return ordered


def steps_by_definition(calls):
    """One more than the highest step of the calls that had ended, on one of its ranks, before it was made there."""
    of = {e: k for k, call in enumerate(calls) for e in call}
    follows = [
        {(of[d], d.op) for e in call for d in of if d.rank == e.rank and d.index < e.index and ended(d, e.start)}
        for call in calls
    ]
    step = {}
    while left := [k for k in range(len(calls)) if k not in step]:
        now = [k for k in left if all(j in step for j, _ in follows[k])]
        now = now or [k for k in left if all(j in step for j, op in follows[k] if op == "recv")] or left[:1]
        step |= {k: 1 + max((step[j] for j, _ in follows[k] if j in step), default=-1) for k in now}
    return [step[k] for k in range(len(calls))]


def ended(e, when):
    return e.end is not None and e.end <= when


# --- programs -------------------------------------------------------------------------------

NEVER = None
LASTS = st.sampled_from([0, 1, 1, 2, 5, NEVER])  # how long a call is open
CALL = st.tuples(st.sampled_from([0, 0, 1, 2]), LASTS, st.booleans())  # time before, time in it, whether the rank waits
STEP = st.tuples(
    st.sampled_from(["both", "both", "both", "recv first", "anyone", "only sent", "only awaited", "all_reduce"]),
    st.permutations(range(4)),
    st.tuples(CALL, CALL, CALL, CALL),
    st.integers(0, 1),
)


class Program:
    """Ranks that make calls, each on a clock of its own."""

    def __init__(self, world_size):
        self.events, self.now = [[] for _ in range(world_size)], [0.0] * world_size

    def call(self, rank, op, group=None, before=0.0, lasts=1.0, waits=True, value=None, **ends):
        start = self.now[rank] + before
        end = None if lasts is NEVER else start + lasts
        self.now[rank] = end if waits and end is not None else start
        e = Event(rank, len(self.events[rank]), op, group or tuple(range(len(self.now))), start=start, end=end, **ends)
        e.dtype, e.shape, e.nbytes, e.waited, e.async_op = torch.float32, (1,), 4, waits, not waits
        e.before, e.after = value if op == "send" else None, value if op == "recv" else None
        self.events[rank].append(e)


def performed(n, steps):
    program = Program(n)
    for kind, ranks, timing, tag in steps:
        source, target, *_ = members = [rank for rank in ranks if rank < n]
        how = [dict(zip(("before", "lasts", "waits"), one)) for one in timing]
        if kind == "all_reduce":
            for rank in members[: 2 + tag]:
                program.call(rank, kind, tuple(members[: 2 + tag]), **how[rank])
            continue
        calls = [(source, "send", how[0], {"dst": target}), (target, "recv", how[1], {"src": source})]
        calls = {"recv first": calls[::-1], "only sent": calls[:1], "only awaited": calls[1:]}.get(kind, calls)
        for rank, op, timing, ends in calls:
            ends = {"src": None} if kind == "anyone" and op == "recv" and tag else ends
            program.call(rank, op, tag=tag, **timing, **ends)
    return program.events


BOTH_SEND_FIRST = [
    ("only sent", [0, 1, 2, 3], ((0, 1, True),) * 4, 0),
    ("only sent", [1, 0, 2, 3], ((0, 1, True),) * 4, 0),
    ("only awaited", [0, 1, 2, 3], ((0, 1, True),) * 4, 0),
    ("only awaited", [1, 0, 2, 3], ((0, 1, True),) * 4, 0),
]


@settings(max_examples=300, deadline=None)
@example(2, BOTH_SEND_FIRST * 2)
@given(st.integers(2, 4), st.lists(STEP, max_size=20))
def test_calls_and_steps_are_those_of_the_definition(n, steps):
    events = performed(n, steps)
    matcher = Matcher()
    for mine in events:
        for e in mine:
            matcher.add(e)
    calls = pair(events)
    shape = [[(e.rank, e.index) for e in call] for call in calls]
    assert shape == [[(e.rank, e.index) for e in call] for call in order_by_definition(events, matcher.of)]
    assert transfers.steps_of(calls) == steps_by_definition(calls)
    some = [call for call in calls if call.is_message]
    assert transfers.steps_of(some) == steps_by_definition(some)


def test_a_send_that_ends_early_holds_nobody_up():
    calls = pair(performed(2, BOTH_SEND_FIRST * 2))
    assert sorted(transfers.steps_of(calls)) == [0, 0, 1, 1]


# --- size -----------------------------------------------------------------------------------


def ping_pong(many):
    program = Program(2)
    for k in range(many):
        value = torch.tensor([float(k)])
        program.call(k % 2, "send", dst=1 - k % 2, tag=0, value=value)
        program.call(1 - k % 2, "recv", src=k % 2, tag=0, value=value)
    return program.events


def ring(many, n=4):
    """Every rank sends before it receives: cycles of calls that follow each other."""
    program = Program(n)
    for k in range(many // n):
        for rank in range(n):
            program.call(rank, "send", dst=(rank + 1) % n, tag=0, value=torch.tensor([float(rank)]))
        for rank in range(n):
            program.call(rank, "recv", src=(rank - 1) % n, tag=0, value=torch.tensor([float(rank)]))
    return program.events


def never_waited_for(many, n=4):
    program = Program(n)
    for k in range(many // n):
        for rank in range(n):
            program.call(
                rank, "send", dst=(rank + 1) % n, tag=0, value=torch.ones(1), before=1, lasts=NEVER, waits=False
            )
    return program.events


def large_group(many, n=64):
    program = Program(n)
    for k in range(many // n):
        for rank in range(n):
            program.call(rank, "all_reduce", tuple(reversed(range(n))))
    return program.events


PROGRAMS = [ping_pong, ring, never_waited_for, large_group]
USES = {
    "calls": pair,
    "steps": lambda events: transfers.steps_of(pair(events)),
    "messages": lambda events: transfers.read([call for call in pair(events) if call.is_message]),
    "traffic": traffic.count,
    "text": lambda events: repr(Run(len(events), [None] * len(events), events)),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("use", USES)
def test_work_grows_with_the_run_and_no_faster(use, program):
    small, large = work.lines(USES[use], program(128)), work.lines(USES[use], program(512))
    assert large < 1.5 * 4 * small  # n log n; four times as many take 16 times as long where all pairs are looked at


def test_a_call_of_many_ranks_is_put_together_rank_by_rank():
    few, many = (work.lines(pair, large_group(n, n)) for n in (16, 256))
    assert many < 1.5 * 16 * few


@pytest.mark.parametrize("program", [*slow(ping_pong, ring), never_waited_for, large_group])
def test_memory_is_some_1200_bytes_a_message(program):
    events = program(2048)
    for use in USES.values():
        assert work.peak(use, events) < 2048 * 2000


@pytest.mark.slow
def test_a_picture_of_many_messages():
    many = [Run(2, [None] * 2, ping_pong(count)) for count in (500, 2000)]
    small, large = (work.lines(run.draw) for run in many)
    assert large < 1.5 * 4 * small


def test_a_schedule_is_read_from_many_chunks():
    def made(pieces):
        schedule = chain_broadcast(3, pieces=pieces)
        inputs = [torch.randperm(2 * pieces).float() for _ in range(3)]
        program = schedule.program()
        ran = run(lambda: program(inputs[dist.get_rank()].clone()), world_size=3, whole=True)
        assert [sorted(step) for step in from_run(ran, "broadcast", inputs).steps] == [
            sorted(s) for s in schedule.steps
        ]
        return work.lines(from_run, ran, "broadcast", inputs)

    small, large = made(16), made(64)
    assert large < 1.5 * 4 * small
