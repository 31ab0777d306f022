"""Schedules: proved, counted, executed on real ranks, read off real runs; and wrong ones refused."""

from __future__ import annotations

import random
from fractions import Fraction
from math import ceil, log2

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.algorithms import (
    ALGORITHMS,
    COLLECTIVES,
    Schedule,
    WrongSchedule,
    add,
    binomial_broadcast,
    binomial_reduce,
    bruck_all_gather,
    bruck_all_to_all,
    chain_broadcast,
    copy,
    double_tree_all_reduce,
    doubling_all_gather,
    doubling_all_reduce,
    from_run,
    halving_reduce_scatter,
    hierarchical_all_reduce,
    multi_ring_all_reduce,
    naive_all_reduce,
    pairwise_all_to_all,
    rabenseifner_all_reduce,
    recorded,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    scatter_ring_broadcast,
    tree_all_reduce,
)
from collectives.log import collectives
from helpers import run
from tests.corpus.schedules import variants
from tests.sampling import slow

# --- proof and count ----------------------------------------------------------------------


def test_facts_about_collectives_are_those_of_the_table():
    facts = {op: of for op, of in collectives.COLLECTIVES.items() if of.gives}
    assert set(COLLECTIVES) == set(facts)
    for op, of in facts.items():
        schedule = Schedule(op, 2, [], chunks=4)
        assert schedule.rooted == (of.root is not None)
        assert schedule.has_pieces == ("own" in (of.gives, of.gets))


@pytest.mark.parametrize("n", [1, 2, 3, 6, 8, 17])
def test_an_all_reduce_by_tree_is_a_reduce_and_a_broadcast(n):
    assert tree_all_reduce(n).steps == binomial_reduce(n).steps + binomial_broadcast(n).steps


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 31, 32])
def test_every_algorithm_keeps_its_promise(n):
    for s in variants(n):
        assert s.prove().schedule is s
        count = s.count()
        assert count.most >= count.bound.bytes and count.steps >= count.bound.steps


@pytest.mark.nightly
def test_every_algorithm_keeps_its_promise_at_any_size():
    for n in range(1, 65):
        test_every_algorithm_keeps_its_promise(n)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.__name__)
def test_no_ranks_are_refused(algorithm):
    with pytest.raises(ValueError):
        algorithm(0, 1) if algorithm in (hierarchical_all_reduce, multi_ring_all_reduce) else algorithm(0)


def test_sizes_an_algorithm_has_not_are_refused_with_advice():
    with pytest.raises(ValueError, match="2, 4, 8, .* not 6: take bruck_all_gather"):
        doubling_all_gather(6)
    with pytest.raises(ValueError, match="take ring_reduce_scatter"):
        halving_reduce_scatter(12)
    with pytest.raises(ValueError, match="nodes of 4 ranks do not divide 6"):
        hierarchical_all_reduce(6, 4)


@pytest.mark.parametrize("n", [2, 3, 4, 8, 13, 16, 64])
def test_counts_are_those_of_the_literature(n):
    """Steps and bytes of the busiest rank, in units of S (Thakur et al. 2005 and others, see reference)."""
    lg, each = ceil(log2(n)), Fraction(n - 1, n)
    wanted = [
        (binomial_broadcast(n), lg, lg),
        (chain_broadcast(n, 0, 5), n + 3, 1),
        (scatter_ring_broadcast(n), lg + n - 1, 2 * each),
        (ring_all_gather(n), n - 1, each),
        (bruck_all_gather(n), lg, each),
        (ring_reduce_scatter(n), n - 1, each),
        (pairwise_all_to_all(n), n - 1, each),
        (naive_all_reduce(n), 2 * (n - 1), n - 1),
        (tree_all_reduce(n), 2 * lg, lg),
        (ring_all_reduce(n), 2 * (n - 1), 2 * each),
    ]
    if n & n - 1 == 0:
        wanted += [
            (doubling_all_gather(n), lg, each),
            (halving_reduce_scatter(n), lg, each),
            (doubling_all_reduce(n), lg, lg),
            (rabenseifner_all_reduce(n), 2 * lg, 2 * each),
            (bruck_all_to_all(n), lg, Fraction(lg, 2)),
        ]
    for s, *figures in wanted:
        count = s.count()
        assert [count.steps, count.most] == figures, s.name
        assert count.bound.steps == lg


def test_who_does_more_at_a_time_needs_fewer_steps():
    """With two sends a rank in each step, three times as many know it after each."""
    s = Schedule(
        "broadcast", 9, [[copy(0, 1, 0), copy(0, 2, 0)], [copy(r, r + k, 0) for r in range(3) for k in (3, 6)]]
    )
    assert s.prove() and s.count().bound.steps == s.count().steps == 2


@pytest.mark.parametrize("n", [2, 4, 8, 16, 64])
def test_double_tree(n):
    """Sanders, Speck & Träff 2009: nobody sends more than 2 S, all together 2 (N-1) S; no rank is an inner one twice."""
    s = double_tree_all_reduce(n, 2)
    count = s.count()
    assert max(count.sent) <= 2 and count.total == 2 * (n - 1)
    inner = [{m.target for step in s.steps for m in step if m.adds and m.chunks[0] // 2 == tree} for tree in (0, 1)]
    assert not inner[0] & inner[1]


# --- wrong schedules ----------------------------------------------------------------------


def all_reduce(steps, n=3, chunks=1):
    return Schedule("all_reduce", n, steps, chunks)


def ring_without(k, i):
    s = ring_all_reduce(4)
    return Schedule(
        "all_reduce", 4, [[m for j, m in enumerate(step) if (at, j) != (k, i)] for at, step in enumerate(s.steps)], 4
    )


WRONG = {
    "a dropped message": (
        ring_without(5, 2),
        None,
        "at the end rank 3 has chunk a without the part of rank 0.",
    ),
    "a rank that is forgotten": (
        all_reduce([[add(1, 0, 0)], [add(2, 0, 0)], [copy(0, 1, 0)]]),
        None,
        "at the end rank 2 has chunk a without the parts of ranks 0, 1.",
    ),
    "a chunk that never comes": (
        Schedule("all_gather", 3, [[copy(r, (r + 1) % 3, r) for r in range(3)]], 3),
        None,
        "at the end rank 0 has no chunk b: no rank ever sends it there.",
    ),
    "a double sum": (
        all_reduce([[add(1, 0, 0), add(2, 0, 0)], [copy(0, 1, 0)], [add(0, 1, 0)]]),
        3,
        "step 3: rank 0 adds chunk a to rank 1's, and the parts of ranks 0-2 would be in the sum twice.",
    ),
    "a copy where an add was meant": (
        all_reduce([[copy(1, 0, 0)], [add(2, 0, 0)], [copy(0, 1, 0)], [copy(0, 2, 0)]]),
        None,
        "at the end rank 0 has chunk a without the part of rank 0. Step 1 copied rank 1's over it; was that meant to be an add?",
    ),
    "read one step too early": (
        Schedule("broadcast", 3, [[copy(0, 1, 0), copy(1, 2, 0)]]),
        1,
        "step 1: rank 1 sends chunk a to rank 2 but does not have it yet: it arrives in this same step. "
        "A message carries what its source holds when the step begins, so send it on one step later.",
    ),
    "read much too early": (
        Schedule("broadcast", 3, [[copy(1, 2, 0)], [copy(0, 1, 0)]]),
        1,
        "step 1: rank 1 sends chunk a to rank 2 but does not have it yet: it arrives in step 2.",
    ),
    "read though it never arrives": (
        Schedule("broadcast", 3, [[copy(0, 1, 0)], [copy(2, 1, 0)]]),
        2,
        "step 2: rank 2 sends chunk a to rank 1 but does not have it: no rank ever sends it to rank 2.",
    ),
    "a cycle": (
        Schedule("broadcast", 4, [[copy(1, 2, 0), copy(2, 3, 0), copy(3, 1, 0)]]),
        1,
        "step 1: rank 1 sends chunk a to rank 2 but does not have it: a cycle. rank 1 waits for rank 3, rank 3 waits for "
        "rank 2, rank 2 waits for rank 1, and none of them ever gets chunk a from elsewhere.",
    ),
    "overwritten while it is sent": (
        all_reduce([[add(0, 1, 0), copy(2, 0, 0)]]),
        1,
        "step 1: rank 2's message overwrites chunk a of rank 0 while rank 0 is still sending it to rank 1. "
        "Put one of the two in another step.",
    ),
    "written twice in a step": (
        all_reduce([[add(1, 0, 0), copy(2, 0, 0)]]),
        1,
        "step 1: ranks 1, 2 all write chunk a of rank 0, and not all add to it: which comes last is chance. "
        "Put one of them in a later step.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_schedule_is_told_what_is_wrong(what):
    s, step, sentence = WRONG[what]
    with pytest.raises(WrongSchedule) as caught:
        s.prove()
    assert (str(caught.value), caught.value.step) == (sentence, step)
    assert sentence in s.draw().text


IMPOSSIBLE = {
    "no rank 3": lambda: all_reduce([[add(0, 3, 0)]]),
    "no chunk 1: the buffer is cut in 1": lambda: all_reduce([[add(0, 1, 1)]]),
    "step 1 is one message, 0 -> 1: a step is a list": lambda: all_reduce([add(0, 1, 0)]),
    r"\(0, 1, 0\) is not a message": lambda: all_reduce([[(0, 1, 0)]]),
    "integers, not 0, 1.0": lambda: all_reduce([[add(0, 1.0, 0)]]),
    "not 0, 1, .'a',.": lambda: all_reduce([[add(0, 1, "a")]]),
    "sends to itself": lambda: all_reduce([[add(0, 0, 0)]]),
    "carries no chunk": lambda: all_reduce([[add(0, 1, [])]]),
    "a chunk twice": lambda: all_reduce([[add(0, 1, [0, 0])]]),
    "not a collective": lambda: Schedule("all_sum", 2, []),
    "multiple of 3": lambda: Schedule("all_gather", 3, [], chunks=4),
    "chunks=9": lambda: Schedule("all_to_all", 3, []),
    "root is a rank": lambda: Schedule("broadcast", 3, [], root=3),
    "pieces must": lambda: chain_broadcast(3, pieces=0),
}


@pytest.mark.parametrize("words", IMPOSSIBLE)
def test_what_is_no_schedule_at_all_is_refused(words):
    with pytest.raises(ValueError, match=words):
        IMPOSSIBLE[words]()


def test_steps_may_be_generated():
    s = Schedule("broadcast", 3, ((copy(0, r, 0) for _ in "x") for r in (1, 2)))
    assert s.prove() and s.count().messages == [2, 0, 0]


def by_numbers(s: Schedule, seed: int) -> bool:
    """Whether the schedule does its work on random numbers: steps carried out plainly, a race seen as an error."""
    draw = random.Random(seed)
    own = [{c: draw.randrange(1, 10**9) for c in range(s.chunks)} for _ in range(s.world_size)]
    held = [{c: own[r][c] for c in chunks} for r, chunks in enumerate(s.initial())]
    for step in s.steps:
        sent = [(m, c, held[m.source].get(c)) for m in step for c in m.chunks]
        if any(value is None for *_, value in sent):
            return False
        for m, c, _ in sent:
            others = [o for o, d, _ in sent if d == c and o is not m and o.target in (m.source, m.target)]
            if (
                not m.adds
                and any(o.target == m.target for o in others)
                or any(not o.adds and o.target == m.source for o in others)
            ):
                return False
        for m, c, value in sent:
            held[m.target][c] = held[m.target].get(c, 0) + value if m.adds else value
    total = {c: sum(o[c] for o in own) for c in range(s.chunks)}
    for r, wanted in enumerate(s.promised()):
        for c, parts in wanted.items():
            right = total[c] if parts == (1 << s.world_size) - 1 else own[parts.bit_length() - 1][c]
            if held[r].get(c) != right:
                return False
    return True


@settings(max_examples=300, deadline=None)
@given(
    st.integers(2, 6),
    st.integers(0, 10**6),
    st.sampled_from(["drop", "twice", "swap", "turn", "flip", "merge", "none"]),
)
def test_the_proof_says_what_numbers_say(n, seed, change):
    draw = random.Random(seed)
    s = draw.choice(list(variants(n)))
    steps = [list(step) for step in s.steps]
    k = draw.randrange(len(steps))
    i = draw.randrange(len(steps[k])) if steps[k] else None
    if i is not None:
        m = steps[k][i]
        if change == "drop":
            del steps[k][i]
        elif change == "twice":
            steps.insert(draw.randrange(len(steps) + 1), [m])
        elif change == "swap":
            steps.insert(draw.randrange(len(steps)), steps.pop(k))
        elif change == "turn":
            steps[k][i] = m._replace(source=m.target, target=m.source)
        elif change == "flip":
            steps[k][i] = m._replace(adds=not m.adds)
        elif change == "merge" and k:
            steps[k - 1 : k + 1] = [steps[k - 1] + steps[k]]
    changed, why = Schedule(s.collective, n, steps, s.chunks, s.root), ""
    try:
        proved = bool(changed.prove())
    except WrongSchedule as wrong:
        proved, why = False, str(wrong)
    # A double sum is refused even where a later copy puts it right.
    assert proved == by_numbers(changed, seed) or "in the sum twice" in why


# --- on real ranks ------------------------------------------------------------------------


def by_torch(what: str, x: torch.Tensor, root: int) -> torch.Tensor | None:
    n, rank, x = dist.get_world_size(), dist.get_rank(), x.clone()
    pieces = list(x.view(n, -1).unbind()) if len(x) % n == 0 else []
    if what == "broadcast":
        dist.broadcast(x, root)
    elif what == "all_reduce":
        dist.all_reduce(x)
    elif what == "reduce":
        dist.reduce(x, root)
        return x if rank == root else None
    elif what == "scatter":
        x = torch.empty_like(pieces[0])
        dist.scatter(x, pieces if rank == root else None, root)
    elif what == "gather":
        got = [torch.empty_like(x) for _ in range(n)] if rank == root else None
        dist.gather(x, got, root)
        return torch.cat(got) if got else None
    else:
        sizes = {"all_gather": n * len(x), "reduce_scatter": len(x) // n, "all_to_all": len(x)}
        got = x.new_empty(sizes[what])
        {
            "all_gather": dist.all_gather_single,
            "reduce_scatter": dist.reduce_scatter_single,
            "all_to_all": dist.all_to_all_single,
        }[what](got, x)
        return got
    return x


def on_ranks(schedules, numel):
    """The names of those whose result differs from torch.distributed's, or that harm their input."""
    wrong = []
    for s in schedules:
        x = torch.randint(-99, 99, (numel,), generator=torch.Generator().manual_seed(dist.get_rank())).float()
        given = x.clone()
        got = s.program()(given)
        wanted = by_torch(s.collective, x, s.root)
        if s.collective == "reduce" and dist.get_rank() != s.root:
            got = None
        kept = s.collective in ("broadcast", "all_reduce", "reduce", "scatter") or torch.equal(given, x)
        if not kept or not (got is wanted is None or torch.equal(got, wanted)):
            wrong.append((s.collective, s.name))
    return wrong


@pytest.mark.parametrize("n", [1, 2, 3, 4, *slow(5, 8)])
def test_executed_it_does_what_torch_does(n):
    assert run(on_ranks, list(variants(n, {n - 1})), 3 * n, world_size=n).results == [[]] * n


@pytest.mark.slow
def test_chunks_need_not_divide_the_buffer():
    schedules = [ring_all_reduce(4), rabenseifner_all_reduce(4), double_tree_all_reduce(4, 3), chain_broadcast(4, 1, 5)]
    for numel in (1, 2, 13):
        assert run(on_ranks, schedules, numel).results == [[]] * 4


@pytest.mark.parametrize("n", [2, 3, 5])
def test_what_travels_is_what_was_counted(n):
    """Message by message as recorded; and at the sockets, where each message has under 200 bytes of headers."""
    for s in (ring_all_reduce(n), tree_all_reduce(n), bruck_all_to_all(n), scatter_ring_broadcast(n)):
        elements = 1200 * n
        count = s.count(4 * elements, itemsize=4)
        program = s.program()
        result = run(lambda: program(torch.ones(elements)), world_size=n)
        sends = [[e for e in mine if e.op == "send"] for mine in result.events]
        assert [sum(e.nbytes for e in mine) for mine in sends] == count.sent
        assert [len(mine) for mine in sends] == count.messages
        for rank, sent in enumerate(result.sent):
            if sent is not None:
                both = count.messages[rank] + sum(m.target == rank for step in s.steps for m in step)
                assert count.sent[rank] <= sent <= count.sent[rank] + 200 * both


def test_a_program_runs_in_a_group():
    program = ring_all_reduce(3).program()

    def all_but_rank_2():
        group = dist.new_group([0, 1, 3])
        x = torch.full((7,), 10.0 ** dist.get_rank())
        return program(x, group) if dist.get_rank() != 2 else x

    assert [x.tolist() for x in run(all_but_rank_2, world_size=4).results] == [[1011.0] * 7] * 2 + [[100.0] * 7] + [
        [1011.0] * 7
    ]


def test_a_program_says_what_it_needs():
    program = ring_all_reduce(3).program()

    def wrong_size():
        try:
            program(torch.ones(6))
        except ValueError as error:
            return str(error)

    assert "for 3 ranks, and the group has 2: make one with world_size=2" in run(wrong_size, world_size=2).results[0]
    gaps = ring_all_reduce(2).program()

    def with_gaps():
        try:
            gaps(torch.ones(4, 4)[:, 0])
        except ValueError as error:
            return str(error)

    assert "pass x.contiguous()" in run(with_gaps, world_size=2).results[1]


# --- from a run ---------------------------------------------------------------------------


def my_ring(x):
    """As a learner writes it."""
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(x.chunk(n))
    arrived = torch.zeros_like(chunks[0])
    for k in range(2 * (n - 1)):
        out, into = (rank - k) % n, (rank - k - 1) % n
        work = dist.isend(chunks[out].clone(), (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        work.wait()
        if k < n - 1:
            chunks[into] += arrived
        else:
            chunks[into].copy_(arrived)


def test_a_learners_ring_becomes_a_schedule():
    s = recorded(my_ring, "all_reduce", world_size=4)
    assert s.steps == [[a_message(r, (r + 1) % 4, (r - k) % 4, adds=k < 3) for r in range(4)] for k in range(6)]
    assert s.name == "my_ring" and s.prove() and s.count().most == Fraction(3, 2)


def a_message(source, target, chunk, adds):
    return (add if adds else copy)(source, target, chunk)


def test_a_run_becomes_a_schedule_by_what_its_ranks_put_in():
    inputs = [torch.randn(12, generator=torch.Generator().manual_seed(r)) for r in range(3)]

    def mine():
        x = inputs[dist.get_rank()].clone()
        my_ring(x)
        return x

    assert from_run(run(mine, world_size=3), "all_reduce", inputs).steps == recorded(my_ring, "all_reduce", 3).steps


def test_what_was_executed_is_read_back():
    for s in (naive_all_reduce(4), rabenseifner_all_reduce(4), bruck_all_to_all(3), chain_broadcast(3, 2, 3)):
        again = recorded(s.program(), s.collective, s.world_size, s.root)
        assert again.prove()
        assert [sorted((m.source, m.target, m.adds) for m in step) for step in again.steps] == [
            sorted((m.source, m.target, m.adds) for m in step) for step in s.steps
        ]
        assert again.count().sent == s.count().sent


def whole_ring(x):
    """Passes whole buffers on and sums them elsewhere: right, but no all_reduce in place."""
    rank, n = dist.get_rank(), dist.get_world_size()
    passing = x.clone()
    arrived = torch.zeros_like(x)
    for _ in range(n - 1):
        work = dist.isend(passing, (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        work.wait()
        passing = arrived.clone()
        x += arrived


def forgets_to_add(x):
    if dist.get_rank() == 0:
        dist.recv(x, 1)
    else:
        dist.send(x, 0)


def adds_twice(x):
    arrived = torch.zeros_like(x)
    for _ in range(2):
        if dist.get_rank() == 0:
            dist.recv(arrived, 1)
            x += arrived
        else:
            dist.send(x, 0)


def test_a_learners_mistake_is_read_and_then_told():
    with pytest.raises(WrongSchedule, match="Step 1 copied rank 1's over it; was that meant to be an add"):
        recorded(forgets_to_add, "reduce", 2).prove()
    with pytest.raises(WrongSchedule, match="step 2: .* the part of rank 1 would be in the sum twice"):
        recorded(adds_twice, "reduce", 2).prove()


@pytest.mark.slow
def test_what_cannot_be_known_is_said():
    with pytest.raises(ValueError, match="sums it up elsewhere, moves its data as an all_gather"):
        recorded(whole_ring, "all_reduce", 4)
    assert recorded(whole_ring, "all_gather", 4).prove()

    def of_ones():
        x = torch.ones(8)
        my_ring(x)
        return x

    with pytest.raises(ValueError, match="fit chunk a of rank 0 and chunk b of rank 0. Put in numbers that differ"):
        from_run(run(of_ones), "all_reduce", [torch.ones(8)] * 4)
    with pytest.raises(ValueError, match="this run used all_reduce"):
        recorded(dist.all_reduce, "all_reduce", 2)
    big = [torch.randn(100_000, generator=torch.Generator().manual_seed(r)) for r in range(2)]
    large = run(lambda: my_ring(big[dist.get_rank()].clone()), world_size=2)
    with pytest.raises(ValueError, match="whole=True"):
        from_run(large, "all_reduce", big)


# --- pictures and words -------------------------------------------------------------------


def test_pictures_are_drawn_and_have_the_steps_as_text():
    for s in (
        ring_all_reduce(4),
        binomial_broadcast(8),
        pairwise_all_to_all(4),
        doubling_all_reduce(16),
        ring_all_reduce(1),
    ):
        picture = s.draw()
        assert picture.text == s.table() and picture.png()[:4] == b"\x89PNG"
    grid, lanes = ring_all_reduce(8).draw(3), ring_all_reduce(8).draw()
    assert grid.alt.endswith("step 3") and grid.pixels[0] < lanes.pixels[0]
    with pytest.raises(ValueError, match="there is no step 9"):
        ring_all_reduce(4).draw(9)
    with pytest.raises(ValueError, match="take style='lanes'"):
        ring_all_reduce(9).draw(style="grid")


def test_words():
    assert repr(ring_all_reduce(3)).splitlines() == [
        "all_reduce by ring, 3 ranks: 4 steps, 12 messages",
        "  step  1   0 -> 1 +c,  1 -> 2 +a,  2 -> 0 +b",
        "  step  2   0 -> 1 +b,  1 -> 2 +c,  2 -> 0 +a",
        "  step  3   0 -> 1 a,  1 -> 2 b,  2 -> 0 c",
        "  step  4   0 -> 1 c,  1 -> 2 a,  2 -> 0 b",
    ]
    assert "2(N-1)/N S" in repr(ring_all_reduce(3).count()) and "4/3 S, at least 4/3" in repr(
        ring_all_reduce(3).count()
    )
