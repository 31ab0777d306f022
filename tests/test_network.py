"""Costs: against formulas, a little simulator, NCCL's known choices, published figures, and what must always hold."""

from __future__ import annotations

import base64
import io
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from math import ceil, inf, log2

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from collectives.algorithms import (
    ALGORITHMS,
    Schedule,
    add,
    binomial_broadcast,
    binomial_gather,
    binomial_reduce,
    binomial_scatter,
    bruck_all_gather,
    bruck_all_to_all,
    chain_broadcast,
    chain_reduce,
    copy,
    double_tree_all_reduce,
    doubling_all_gather,
    doubling_all_reduce,
    flat_broadcast,
    flat_gather,
    flat_reduce,
    flat_scatter,
    halving_reduce_scatter,
    hierarchical_all_reduce,
    multi_ring_all_reduce,
    naive_all_reduce,
    outline,
    pairwise_all_to_all,
    rabenseifner_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    scatter_ring_broadcast,
    tree_all_reduce,
)
from collectives.cost import (
    GROUPS,
    bill,
    busbw,
    calibration,
    charts,
    compute_seconds,
    cost,
    exchange,
    fit,
    loopback,
    nccl,
    ping_pong,
    price,
    training_flops,
)
from collectives.format import duration
from collectives.machines import (
    Level,
    Machine,
    Port,
    Protocol,
    efa,
    fat_tree,
    flat,
    gpus,
    networks,
    nvl72,
    nvlink_node,
    pcie_node,
    rails,
)
from collectives.machines import gpu as gpu_of
from collectives.machines import machine as machine_of
from helpers import run
from tests.corpus.schedules import variants
from tests.sampling import when

A, B, G = 5e-6, 1 / 12e9, 1 / 40e9  # seconds, seconds a byte, seconds a byte added
S = 3_000_000


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 16, 33, 64])
def test_on_a_flat_machine_costs_are_the_formulas(n):
    """T = steps α + bytes β + added bytes γ (Thakur, Rabenseifner, Gropp 2005), for every algorithm there is."""
    lg, each = ceil(log2(n)), (n - 1) / n * S
    node = next(d for d in (8, 4, 3, 1) if n % d == 0)
    nodes = n // node
    in_node, between = (node - 1) / node * S, (nodes - 1) / n * S
    wanted = [
        (flat_broadcast(n), (n - 1) * (A + S * B)),
        (flat_scatter(n), (n - 1) * A + each * B),
        (binomial_scatter(n), lg * A + each * B),
        (flat_reduce(n), (n - 1) * (A + S * (B + G))),
        (chain_reduce(n, 0, 8), (n + 6) * (A + S / 8 * (B + G))),
        (binomial_reduce(n), lg * (A + S * (B + G))),
        (flat_gather(n), (n - 1) * A + each * B),
        (binomial_gather(n), lg * A + each * B),
        (bruck_all_to_all(n), lg * A + sum(map(int.bit_count, range(n))) / n * S * B),
        (multi_ring_all_reduce(n, node), 2 * (n - 1) * A + 2 * each * B + each * G),
        (hierarchical_all_reduce(n, node), 2 * (node + nodes - 2) * A + (in_node + between) * (2 * B + G)),
        (binomial_broadcast(n), lg * (A + S * B)),
        (chain_broadcast(n, 0, 8), (n + 6) * (A + S / 8 * B)),
        (ring_all_gather(n), (n - 1) * A + each * B),
        (ring_reduce_scatter(n), (n - 1) * A + each * (B + G)),
        (pairwise_all_to_all(n), (n - 1) * A + each * B),
        (bruck_all_gather(n), lg * A + each * B),
        (naive_all_reduce(n), 2 * (n - 1) * (A + S * B) + (n - 1) * S * G),
        (tree_all_reduce(n), 2 * lg * (A + S * B) + lg * S * G),
        (ring_all_reduce(n), 2 * (n - 1) * A + 2 * each * B + each * G),
    ]
    if n & n - 1 == 0:
        wanted += [
            (scatter_ring_broadcast(n), (lg + n - 1) * A + 2 * each * B),
            (doubling_all_gather(n), lg * A + each * B),
            (halving_reduce_scatter(n), lg * A + each * (B + G)),
            (doubling_all_reduce(n), lg * (A + S * (B + G))),
            (rabenseifner_all_reduce(n), 2 * lg * A + 2 * each * B + each * G),
            # Two children send S/2 each to their parent; only the root has a single one.
            (double_tree_all_reduce(n, 1), 2 * lg * A + (lg - 0.5) * S * (2 * B + G)),
        ]
        assert len({(s.collective, s.name) for s, _ in wanted}) == len(ALGORITHMS)
    for s, seconds in wanted:
        found = cost(s, S, flat(A, 1 / B, G))
        assert found.seconds == pytest.approx(seconds), s.name
        assert found.start + found.latency + found.transfer + found.addition == pytest.approx(found.seconds)


# --- an independent simulator -------------------------------------------------------------


def path(machine: Machine, source: int, target: int) -> tuple[float, list[tuple[object, float]]]:
    """A message's latency, and everything it occupies with its bandwidth."""

    def group(k, rank):
        level = machine.levels[k]
        return k, rank // level.size, rank % level.rails

    k = next(k for k in range(len(machine.levels)) if group(k, source) == group(k, target))
    level = machine.levels[k]
    out, into = ("out", "in") if level.port.duplex else ("both", "both")
    uses = [
        ((level.port.name, out, source), level.port.bandwidth),
        ((level.port.name, into, target), level.port.bandwidth),
    ]
    for below in range(k):
        uses.append((("up", group(below, source)), machine.levels[below].uplink))
        uses.append((("down", group(below, target)), machine.levels[below].uplink))
    uses.append((("bus", group(k, source)), level.bus))
    return level.latency, uses


def in_lockstep(s: Schedule, nbytes: float, machine: Machine) -> float:
    """Step by step, message by message: the slowest message ends the step."""
    total = 0.0
    for step in s.steps:
        load, added, sends, receives = defaultdict(float), defaultdict(float), defaultdict(int), defaultdict(int)
        for m in step:
            for what, _ in set(path(machine, m.source, m.target)[1]):
                load[what] += len(m.chunks) * nbytes / s.cuts
            added[m.target] += m.adds * len(m.chunks) * nbytes / s.cuts
            sends[m.source] += 1
            receives[m.target] += 1
        slowest = 0.0
        for m in step:
            latency, uses = path(machine, m.source, m.target)
            shared = max(load[what] / bandwidth for what, bandwidth in uses)
            busy = machine.overhead * max(sends[m.source], receives[m.target])
            slowest = max(slowest, latency + busy + shared + added[m.target] * machine.addition)
        total += slowest
    return total


def in_flow(s: Schedule, nbytes: float, machine: Machine) -> float:
    """Nobody waits but for what it needs: a chunk goes on when it has arrived, and what it shares is free of the last."""
    arrived = defaultdict(float)  # (rank, chunks) -> seconds
    free = defaultdict(float)  # (rank, what it sends through) -> seconds
    for step in s.steps:
        load = defaultdict(float)
        for m in step:
            for what, _ in set(path(machine, m.source, m.target)[1]):
                load[what] += len(m.chunks) * nbytes / s.cuts
        then = {}
        for m in step:
            latency, uses = path(machine, m.source, m.target)
            transfer = max(load[what] / bandwidth for what, bandwidth in uses)
            start = max(arrived[m.source, m.chunks], free[m.source, m.target, uses[0][0]])
            then[m.source, m.target, uses[0][0]] = start + transfer
            adding = m.adds * sum(len(o.chunks) for o in step if o.target == m.target) * nbytes / s.cuts
            arrived[m.target, m.chunks] = start + latency + transfer + adding * machine.addition
        free.update(then)
    return max(arrived.values())


NIC = Port("nic", 25e9)
MACHINES = {
    "flat": flat(A, 1 / B, G).with_(overhead=1e-6),
    "half duplex": flat(A, 1 / B, G, duplex=False),
    "nodes of 2": Machine("nodes", (Level("node", 2, 1e-6, Port("nvlink", 300e9)), Level("all", 64, 9e-6, NIC)), addition=G),
    "oversubscribed": Machine(
        "tree",
        (
            Level("node", 2, 1e-6, Port("nvlink", 300e9), uplink=30e9),
            Level("leaf", 8, 4e-6, NIC, uplink=40e9),
            Level("spine", 64, 6e-6, NIC),
        ),
        overhead=2e-7,
    ),
    "rails": Machine(
        "rails",
        (Level("node", 4, 1e-6, Port("nvlink", 300e9)), Level("rail", 16, 4e-6, NIC, rails=4), Level("spine", 64, 7e-6, NIC)),
    ),
    "one bus": Machine("bus", (Level("bus", 4, A, Port("port", 12e9), bus=20e9), Level("all", 64, 2 * A, NIC, bus=30e9))),
}  # fmt: skip


def is_ring(s: Schedule) -> bool:
    """Whether each rank sends on what came in the step before, to the same rank: there the model does not go in lockstep."""
    return any(
        {(m.source, m.target) for m in a} == {(m.source, m.target) for m in b}
        and {(m.target, m.chunks) for m in a} == {(m.source, m.chunks) for m in b}
        for a, b in zip(s.steps, s.steps[1:])
    )


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("n", [2, 3, 5, 8, 12, 16])
def test_costs_are_what_a_simulator_finds(n, machine):
    machine = MACHINES[machine]
    for s in variants(n, {n - 1}):
        if is_ring(s) and machine.name != "flat":
            continue
        for nbytes in (80, 10**6):
            assert cost(s, nbytes, machine).seconds == pytest.approx(in_lockstep(s, nbytes, machine)), s.name


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("n", [pytest.param(n, marks=when(False, each_push=n == 24)) for n in (24, 33, 64)])
def test_costs_are_what_a_simulator_finds_with_many_ranks(n, machine):
    test_costs_are_what_a_simulator_finds(n, machine)


@pytest.mark.parametrize("n", [4, 8, 16])
def test_a_ring_pays_for_a_slow_hop_once_a_round(n):
    """As in a simulator without lockstep, but for one hop of n: the model does not know which one is not gone."""
    tree = fat_tree(4)
    for machine in (
        MACHINES["nodes of 2"],
        MACHINES["rails"],
        tree.with_(levels=plain(tree), protocols=(Protocol("x"),)),
    ):
        rings = [ring_all_gather(n), ring_reduce_scatter(n), ring_all_reduce(n)]
        rings += [multi_ring_all_reduce(n, node) for node in (2, 4)]
        for s in rings:
            for nbytes in (80, 10**6, 10**9):
                model, found = cost(s, nbytes, machine).seconds, in_flow(s, nbytes, machine)
                hop = sum(path(machine, r, (r + 1) % n)[0] for r in range(n))
                assert model * (n - 1) / n <= found <= model * n / (n - 1) + hop
                assert model <= in_lockstep(s, nbytes, machine) * 1.001


def plain(machine: Machine) -> tuple[Level, ...]:
    return tuple(replace(level, latency=level.latency[-1]) for level in machine.levels)


# --- outlines -----------------------------------------------------------------------------


def rows(o):
    return [
        (times, sorted(zip(source.tolist(), target.tolist(), share.round(12).tolist(), adds.tolist())))
        for times, source, target, share, adds, *_ in o
    ]


def joined(phases):
    """The same with equal neighbours counted as one."""
    found = []
    for times, messages in phases:
        if found and found[-1][1] == messages:
            times += found.pop()[0]
        found.append((times, messages))
    return found


REGULAR = [ring_all_reduce, ring_reduce_scatter, ring_all_gather, doubling_all_reduce, rabenseifner_all_reduce,
           tree_all_reduce, double_tree_all_reduce]  # fmt: skip


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 7, 8, 12, 16, 31])
def test_an_outline_is_its_schedule_without_names(n):
    for algorithm in REGULAR:
        assert joined(rows(outline(algorithm, n))) == joined(rows(outline(algorithm(n)))), algorithm
    for node in (d for d in (1, 2, 3, 4, n) if n % d == 0):
        for pieces in (1, 9):
            made = double_tree_all_reduce(n, pieces, node)
            assert joined(rows(outline(double_tree_all_reduce, n, pieces, node))) == joined(rows(outline(made)))
        for algorithm in (hierarchical_all_reduce, multi_ring_all_reduce):
            short, made = outline(algorithm, n, node), outline(algorithm(n, node))
            assert joined(rows(short)) == joined(rows(made))
            if n > 1:
                prices = [cost(o, nbytes, MACHINES["rails"]).seconds for o in (short, made) for nbytes in (8, 10**7)]
                assert prices[:2] == pytest.approx(prices[2:])  # the same rings are seen in both


def test_a_hundred_thousand_ranks():
    """Steps and, for buffers so large that nothing else counts, bytes over bandwidth, as the formulas say."""
    n, machine = 131_072, rails(16_384)
    nvlink, nic = (level.port.bandwidth for level in machine.levels[:2])
    rings = price(outline(hierarchical_all_reduce, n, 8), machine)
    assert rings.steps == 2 * 7 + 2 * (n // 8 - 1)
    assert rings(1e15).seconds == pytest.approx(1e15 * (2 * 7 / 8 / nvlink + 2 * (n / 8 - 1) / n / nic), rel=1e-3)
    tree = price(outline(double_tree_all_reduce, n, 1), machine)
    assert tree.steps == 2 * 17 and tree(8).seconds < rings(8).seconds / 100
    ring = price(outline(ring_all_reduce, 16_384), rails(2048))
    assert ring.steps == 2 * 16_383
    with pytest.raises(ValueError, match="too long to write out; at most 2048. At any size: ring_all_gather, "):
        outline(pairwise_all_to_all, 4096)


# --- what must always hold ----------------------------------------------------------------

positive = st.floats(1e8, 1e12)
latency = st.floats(1e-7, 1e-4)


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 12), st.integers(0, 10**6), latency, positive, st.floats(1, 1e10))
def test_no_algorithm_beats_the_bound(n, seed, alpha, bandwidth, nbytes):
    schedules = list(variants(n, {0}))
    s = schedules[seed % len(schedules)]
    bound = s.count().bound
    found = cost(s, nbytes, flat(alpha, bandwidth)).seconds
    assert found * (1 + 1e-9) >= max(bound.steps * alpha, float(bound.bytes) * nbytes / bandwidth)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(2, 12), st.integers(0, 10**6), st.tuples(latency, latency), st.tuples(*[positive] * 5),
    st.integers(0, 4), st.floats(1, 100), st.booleans(), st.floats(1, 1e10), st.floats(1, 10),
)  # fmt: skip
def test_more_bandwidth_is_never_slower_nor_more_bytes_faster(
    n, seed, hops, speeds, which, faster, duplex, nbytes, more
):
    schedules = list(variants(n, {0}))
    s = schedules[seed % len(schedules)]

    def machine(speeds):
        inner = Level("node", 3, hops[0], Port("a", speeds[0], duplex), uplink=speeds[1], bus=speeds[2])
        return Machine("any", (inner, Level("all", 12, hops[1], Port("b", speeds[3]), bus=speeds[4])))

    better = tuple(v * faster if k == which else v for k, v in enumerate(speeds))
    before = cost(s, nbytes, machine(speeds)).seconds
    assert cost(s, nbytes, machine(better)).seconds <= before * (1 + 1e-9)
    assert cost(s, nbytes * more, machine(speeds)).seconds >= before * (1 - 1e-9)


# --- sharing ------------------------------------------------------------------------------


def two_messages(machine: Machine, a, b, n=4) -> float:
    return cost(Schedule("all_reduce", n, [[copy(*a, 0), copy(*b, 0)]]), 1e9, machine).seconds


def test_what_is_shared_is_divided():
    port = Port("port", 1e9)
    apart = Machine("apart", (Level("switch", 4, 0.0, port),))
    assert two_messages(apart, (0, 1), (2, 3)) == pytest.approx(1)
    assert two_messages(apart, (0, 1), (0, 2)) == pytest.approx(2)  # one port sends both
    assert two_messages(apart, (0, 1), (1, 0)) == pytest.approx(1)
    half = Machine("half", (Level("switch", 4, 0.0, Port("port", 1e9, duplex=False)),))
    assert two_messages(half, (0, 1), (1, 0)) == pytest.approx(2)
    bus = Machine("bus", (Level("bus", 4, 0.0, port, bus=1e9),))
    assert two_messages(bus, (0, 1), (2, 3)) == pytest.approx(2)
    nodes = Machine("nodes", (Level("node", 2, 0.0, port, uplink=1e9), Level("all", 4, 0.0, port)))
    assert two_messages(nodes, (0, 2), (1, 3)) == pytest.approx(2)
    assert two_messages(nodes, (0, 2), (3, 1)) == pytest.approx(1)  # one up, one down
    assert two_messages(nodes, (0, 1), (2, 3)) == pytest.approx(1)
    again = cost(Schedule("all_reduce", 4, [[add(0, 2, 0), add(1, 3, 0)]]), 1e9, nodes)
    assert max(again.limits, key=again.limits.get) == "node uplink"


def test_rails_spare_the_spine():
    machine = rails(64)
    (rail, spine) = (cost(Schedule("all_reduce", 512, [[copy(0, to, 0)]]), 8, machine) for to in (8, 9))
    assert rail.latency < spine.latency
    flat_ring, many = (
        cost(outline(ring_all_reduce, 32), 2**34, rails(4)),
        cost(outline(multi_ring_all_reduce, 32, 8), 2**34, rails(4)),
    )
    assert flat_ring.seconds / many.seconds == pytest.approx(8, rel=0.01)  # one network card of a node, or all eight


def test_an_oversubscribed_tree_costs_its_share():
    full, half = (cost(outline(rabenseifner_all_reduce, 64), 2**34, fat_tree(8, oversubscribed=k)) for k in (1, 2))
    assert full.transfer < half.transfer < 2 * full.transfer
    assert cost(ring_all_reduce(8), 2**30, pcie_node()).busbw < cost(ring_all_reduce(8), 2**30, nvlink_node()).busbw / 4


# --- what NCCL runs -----------------------------------------------------------------------

KIB, MIB, GIB = 2**10, 2**20, 2**30


@pytest.mark.parametrize(
    "collective, machine, choices",
    [
        # stas00/ml-engineering, network/README.md: 8 x H200, and fewer of its GPUs
        ("all_reduce", nvlink_node("H200"), {32 * KIB: "Ring/LL", MIB: "Ring/LL", 2 * MIB: "NVLS/Simple", 16 * GIB: "NVLS/Simple"}),
        ("all_gather", nvlink_node("H200"), {16 * GIB: "Ring/Simple"}),
        ("reduce_scatter", nvlink_node("H200"), {16 * GIB: "Ring/Simple"}),
        ("all_reduce", nvlink_node("H200", 4), {8 * GIB: "Ring/Simple"}),
        ("all_reduce", nvlink_node("H200", 5), {8 * GIB: "NVLS/Simple"}),
        ("all_reduce", nvlink_node("B200", 5), {8 * GIB: "Ring/Simple"}),
        ("all_reduce", nvlink_node("B200", 7), {8 * GIB: "NVLS/Simple"}),
        # NVIDIA/nccl-tests#309: 8 x H100 alone, then several nodes: "some TREE for really small, NVLSTree"
        ("all_reduce", nvlink_node("H100"), {8: "Ring/LL", MIB: "Ring/LL", 2 * MIB: "NVLS/Simple"}),
        ("all_reduce", rails(2), {8: "Tree/LL", GIB: "NVLSTree/Simple"}),
        ("all_reduce", rails(4), {8: "Tree/LL", 256 * MIB: "NVLSTree/Simple", 16 * GIB: "Ring/Simple"}),
        # stas00/ml-engineering, todo.md: EFA
        ("all_reduce", efa(4), {16 * GIB: "Ring/Simple"}),
        ("all_reduce", efa(2), {16 * GIB: "NVLSTree/Simple"}),
        # src/graph/tuning.cc: neither adders in an A100's switch, nor trees for anything but all_reduce
        ("all_reduce", nvlink_node("A100"), {8: "Ring/LL", 16 * GIB: "Ring/Simple"}),
        ("broadcast", rails(8), {8: "Ring/LL", GIB: "Ring/Simple"}),
    ],
)  # fmt: skip
def test_nccl_chooses_what_it_was_seen_to_choose(collective, machine, choices):
    priced = nccl(collective, machine)
    for nbytes, choice in choices.items():
        assert "/".join(priced.choice(nbytes)) == choice, (machine.name, nbytes)
        assert priced(nbytes).algorithm == choice.split("/")[0] and priced(nbytes).protocol == choice.split("/")[1]
        assert min(priced.estimates(nbytes), key=priced.estimates(nbytes).get) == priced.choice(nbytes)


def without_software(machine):
    """The machine by NCCL's own figures."""
    return machine.with_(gpus=replace(machine.gpus, inside=None, between=None))


def test_an_older_nccl_turned_to_the_switch_earlier():
    """The times of NVIDIA/nccl-tests#309 (NCCL 2.26.2) jump by half from 1 to 2 MiB on 4 nodes, from 4 to 8 on 8."""
    before = {4: {MIB: "Tree/LL128", 2 * MIB: "NVLSTree/Simple", 128 * MIB: "NVLSTree/Simple", 256 * MIB: "Ring/Simple"},
              8: {4 * MIB: "Tree/LL128", 8 * MIB: "NVLSTree/Simple", GIB: "Ring/Simple"}}  # fmt: skip
    for nodes, choices in before.items():
        old, new = (nccl("all_reduce", rails(nodes), version=v) for v in ("2.26", "2.30"))
        assert {nbytes: "/".join(old.choice(nbytes)) for nbytes in choices} == choices
        assert new.choice(8 * MIB) == ("Tree", "LL128")  # its constants of 2.28.9 put this off
        for nbytes in choices:  # it chooses otherwise; what runs takes as long
            assert old(nbytes, "NVLSTree").seconds == new(nbytes, "NVLSTree").seconds
    old, new = (nccl("all_reduce", nvlink_node("H100"), version=v) for v in ("2.26", "2.30"))
    assert old.estimates(GIB)["NVLS", "Simple"] == pytest.approx(25e-6 + GIB / (8 * 40e9 * 5 / 6))
    assert old(GIB).seconds == new(GIB).seconds


@pytest.mark.parametrize("gpus", [8, 16, 64, 256])
def test_a_schedule_and_nccls_ring_cost_the_same(gpus):
    """NCCL adds latency and bytes and takes the latency 1.4 times, so its ring is the dearer one, by little."""
    machine = without_software(rails(gpus // 8) if gpus > 8 else nvlink_node())
    rings = price(outline(multi_ring_all_reduce, gpus, 8) if gpus > 8 else outline(ring_all_reduce, 8), machine)
    by_nccl = nccl("all_reduce", machine)
    for nbytes, least in ((2**30, 0.88), (2**34, 0.95)):
        assert least < rings(nbytes).seconds / by_nccl(nbytes, "Ring").seconds <= 1


def test_a_ring_over_several_nodes_leaves_every_node_once_a_round():
    """The longest way round skips a hop inside a node; NCCL counts as if it skipped one between nodes."""
    for collective, rounds in (("all_reduce", 2), ("all_gather", 1)):
        price_of = nccl(collective, without_software(rails(4)))
        estimate = price_of.estimates(1024)["Ring", "LL"]
        assert price_of(1024, "Ring", "LL").seconds - estimate == pytest.approx(rounds * (2.7e-6 - 1e-6))
        one_gpu_each = nccl(collective, without_software(rails(4)), range(0, 32, 8))
        assert one_gpu_each(1024, "Ring", "LL").seconds == pytest.approx(one_gpu_each.estimates(1024)["Ring", "LL"])


def test_nccls_estimates_are_its_own():
    """Its log on 2 nodes of 8 x H100 (NVIDIA/nccl#1453): Tree/LL takes 25.874907 µs for 4 KiB, 26.549810 for 8 KiB."""
    tree = nccl("all_reduce", rails(2))
    assert tree.estimates(0)["Tree", "LL"] == pytest.approx(25.874907e-6 - (26.549810e-6 - 25.874907e-6))
    # 8 GPUs, one switch: 14 hops of 0.6 µs after 6.6; 8 channels of 40 GB/s, of which 0.85, 7 of 8 at a time, both ways.
    node = nccl("all_reduce", nvlink_node("H100")).estimates(GIB)
    assert node["Ring", "LL"] == pytest.approx(15e-6 + GIB / (141e9 * 8 / 14))
    assert node["NVLS", "Simple"] == pytest.approx(25e-6 + GIB / (8 * 40e9 * 0.85 * 7 / 8 * 2 * 8 / 14))


def test_chunks_are_cut_as_nccl_cuts_them():
    """src/enqueue.cc, calcCollChunking: 16 channels, 8 heads."""
    (way,) = (way for way in nccl("all_reduce", nvlink_node("H100")).ways if way.algorithm == "NVLS")
    sizes = {2 * MIB: 16, 8 * MIB - 1: 16, 8 * MIB: 32, 64 * MIB: 64, GIB - 1: 64, GIB: 128, 16 * GIB: 128}
    assert {nbytes: way.chunks.chunk(nbytes) // KIB for nbytes in sizes} == sizes
    assert way.chunks.rounds(2 * MIB) == 1 and way.chunks.rounds(2 * MIB + 1) == 2 and way.chunks.rounds(GIB) == 64


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(gpus())), st.integers(1, 5), st.integers(2, 9), st.floats(1, 3e10),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"]),
    st.sampled_from([12.5e9, 25e9, 50e9, 100e9]),
)  # fmt: skip
def test_nccl_beats_no_wire(gpu, nodes, ranks, nbytes, collective, nic):
    """No choice, nor any other way, is faster than its start and the bytes that a rank and its node have to move."""
    machine = rails(nodes, gpu, nic, ranks) if nodes > 1 else nvlink_node(gpu, ranks)
    priced, n = nccl(collective, machine), nodes * ranks
    nvlink = 1.25 * gpu_of(gpu).nvlink  # as sold: NCCL's figure leaves out the links' headers
    least = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1, "reduce": 1}.get(collective, (n - 1) / n)
    for algorithm, protocol in priced.estimates(nbytes):
        c = priced(nbytes, algorithm, protocol)
        # Each rank lets the switch read its whole buffer and gets back the sum of its N-th (S and S/N), then sends that
        # sum once and gets every sum (S/N and S).
        in_switch = algorithm == "NVLS" and collective == "all_reduce"
        inside = (1 + 1 / n if in_switch else least) * nbytes / nvlink
        assert c.seconds >= inside * (nodes == 1) + 6e-6
        if nodes > 1:  # a node's cards have to let in what its ranks have not, once at least
            away = {"all_to_all": (nodes - 1) / nodes * ranks, "broadcast": 1, "reduce": 1}.get(
                collective, (nodes - 1) / nodes
            )
            assert c.seconds >= away * nbytes / (ranks * nic)
        assert c.start + c.latency + c.transfer == pytest.approx(c.seconds) and c.steps > 0
    assert priced(2 * nbytes, algorithm, protocol).transfer >= c.transfer


def test_nccl_is_faster_on_faster_machines():
    for collective in ("all_reduce", "all_to_all", "all_gather"):
        for nbytes in (8, MIB, GIB):
            slow, fast, inside = (
                nccl(collective, m)(nbytes).seconds for m in (rails(4, nic=25e9), rails(4), nvlink_node("H100", 32))
            )
            assert fast <= slow, (collective, nbytes)
            if collective != "all_gather":  # its ring between nodes spares each GPU one of eight NVLink hops
                assert inside < fast, (collective, nbytes)


def test_nccl_prices_some_of_the_ranks():
    machine = rails(4)
    column, node, all_ = (nccl("all_gather", machine, ranks) for ranks in (range(0, 32, 8), range(8, 16), None))
    assert (column.world_size, column.nodes, node.world_size, node.nodes) == (4, 4, 8, 1)
    assert (all_.world_size, all_.nodes) == (32, 4)
    assert column(GIB).seconds == pytest.approx(0.75 * GIB / 48e9, rel=0.02)  # one GPU a node, one card
    assert node(GIB).seconds == nccl("all_gather", nvlink_node("H100"))(GIB).seconds
    message = nccl("send", machine, (0, 8))(GIB)  # of a card's 400 Gb/s, as much as the channels of a ring use
    assert message.transfer == pytest.approx(GIB / 48e9) and message.algorithm == "pairs"
    assert ("PAT", "Simple") in column.estimates(8) and ("PAT", "Simple") not in all_.estimates(8)
    alone = nccl("all_reduce", machine, [3])
    assert alone(GIB).seconds == 0 and alone.choice(GIB) == ("none", "none")
    assert "all_reduce by none, 1 ranks on 4 nodes" in repr(alone(8))


def test_nccl_on_a_hundred_thousand_gpus():
    machine = rails(16_384)
    price_, far = nccl("all_reduce", machine), nccl("all_reduce", rails(16))
    assert price_.world_size == 131_072
    assert price_.choice(8) == ("Tree", "LL") and price_(8).steps == 2 * (7 + 14)
    assert 1 < price_(8).seconds / far(8).seconds < 4  # 14 levels instead of 4
    assert nccl("all_reduce", machine)(8, "Ring").seconds > 500 * price_(8).seconds


def test_what_nccl_cannot_run_is_refused():
    with pytest.raises(ValueError, match="NCCL has no 'scan', only all_reduce"):
        nccl("scan", nvlink_node())
    with pytest.raises(ValueError, match="no figures for NCCL '2.4', only for 2.26, 2.30"):
        nccl("all_reduce", nvlink_node(), version="2.4")
    with pytest.raises(ValueError, match="flat does not say which GPUs it has"):
        nccl("all_reduce", flat(1e-6, 1e9))
    with pytest.raises(ValueError, match="has the ranks 0 to 7"):
        nccl("all_reduce", nvlink_node(), [0, 8])
    with pytest.raises(ValueError, match="does not run by NVLS/any protocol, only by Ring/LL, Ring/LL128, Ring/Simple"):
        nccl("all_reduce", nvlink_node("A100"))(8, "NVLS")
    with pytest.raises(ValueError, match="0 bytes or more, not -1"):
        nccl("all_reduce", nvlink_node())(-1)
    with pytest.raises(ValueError, match="too slow for any channel"):
        nccl("all_reduce", rails(2, nic=1e6))


# --- bills --------------------------------------------------------------------------------


def a_step():
    """What a rank of a 2 x 2 grid does: both dimensions' collectives, a message, a barrier."""
    rank = dist.get_rank()
    rows, columns = [[dist.new_group(ranks) for ranks in pairs] for pairs in (((0, 1), (2, 3)), ((0, 2), (1, 3)))]
    x, both = torch.ones(1000), torch.zeros(2000)
    for _ in range(3):
        dist.all_reduce(x, group=rows[rank // 2])
    dist.all_gather_single(both, x, group=columns[rank % 2])
    dist.reduce_scatter_single(x, both, group=columns[rank % 2])
    dist.all_to_all_single(torch.zeros(1000), x)
    if rank < 2:
        dist.send(x, rank + 2)
    else:
        dist.recv(x, rank - 2)
    dist.barrier()


@pytest.fixture(scope="module")
def recorded():
    return run(a_step, world_size=4)


def test_a_run_is_billed_as_it_was_recorded(recorded):
    machine = nvlink_node("H100", 4)
    found = bill(recorded, machine)
    prices = {(item.op, item.over): item for item in found}
    assert prices["all_reduce", "2 of 4"].seconds == pytest.approx(
        3 * nccl("all_reduce", machine, (0, 1))(4000).seconds
    )
    assert prices["all_gather_single", "2 of 4"].nbytes == 8000  # what a rank ends with
    assert prices["reduce_scatter_single", "2 of 4"].nbytes == 8000
    assert prices["barrier", "all"].seconds == nccl("all_reduce", machine)(4).seconds
    assert prices["all_to_all_single", "all"].calls == 1 and prices["all_reduce", "2 of 4"].calls == 3
    assert found.seconds == pytest.approx(sum(item.seconds for item in found)) and found.latency <= found.seconds
    assert len(found) == 6 and f"one of 4 on {machine.name}" in repr(found)
    some = bill([call for call in recorded.calls if call.op == "all_reduce"], machine)
    assert [item.op for item in some] == ["all_reduce"] and some.seconds == prices["all_reduce", "2 of 4"].seconds


def test_a_bill_grows_with_the_job(recorded):
    machine = rails(64)
    found = {item.op: item for item in
             bill(recorded, machine, grid={"dp": 2, "tp": 2}, scale={"dp": 32, "tp": 4}, larger=1000)}  # fmt: skip
    assert {op: (item.over, item.ranks, item.nodes) for op, item in found.items()} == {
        "all_reduce": ("tp", 8, 1), "all_gather_single": ("dp", 64, 64), "reduce_scatter_single": ("dp", 64, 64),
        "all_to_all_single": ("dp x tp", 512, 64), "send": ("dp", 2, 2), "barrier": ("dp x tp", 512, 64),
    }  # fmt: skip
    assert found["all_reduce"].seconds == 3 * nccl("all_reduce", machine, range(8))(4e6).seconds
    assert found["all_gather_single"].seconds == nccl("all_gather", machine, range(0, 512, 8))(8e6).seconds
    assert found["send"].seconds == nccl("send", machine, (0, 8))(4e6).seconds
    assert found["barrier"].nbytes == 4  # a barrier is no larger in a larger job
    other = {item.op: item for item in bill(recorded, machine, grid={"tp": 2, "dp": 2}, scale={"dp": 4, "tp": 32})}
    assert (other["all_reduce"].over, other["all_reduce"].nodes) == ("dp", 1)


def neighbours():
    """Every rank sends to the next one, the last to the first."""
    rank, n = dist.get_rank(), dist.get_world_size()
    both = [
        dist.P2POp(dist.isend, torch.ones(8), (rank + 1) % n),
        dist.P2POp(dist.irecv, torch.zeros(8), (rank - 1) % n),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()


def test_messages_pass_each_other_and_neighbours_stay_neighbours():
    machine = rails(3)
    found = bill(run(neighbours, world_size=3), machine, scale=8)
    (item,) = found  # rank 0 receives from the last rank, in another node, while it sends to its neighbour
    assert (found.rank, item.op, item.calls, item.over, item.nodes) == (0, "recv", 1, "all", 2)
    assert found.seconds == nccl("send", machine, (23, 0))(32).seconds > nccl("send", machine, (0, 1))(32).seconds


def test_a_bill_that_cannot_be_made_says_why(recorded):
    with pytest.raises(ValueError, match=r"the grid \{'dp': 3\} has 3 ranks, and 4 were recorded"):
        bill(recorded, rails(4), grid={"dp": 3})
    with pytest.raises(ValueError, match="is not a row, plane or block of the grid"):
        bill(recorded, rails(4), scale=2)
    with pytest.raises(ValueError, match="scale names pp, the grid only dp, tp"):
        bill(recorded, rails(4), grid={"dp": 2, "tp": 2}, scale={"pp": 2})
    with pytest.raises(ValueError, match="has 8 ranks, and the job would have 16"):
        bill(recorded, nvlink_node(), grid={"dp": 2, "tp": 2}, scale=2)
    with pytest.raises(ValueError, match="scaled by 1 or more, not by 0"):
        bill(recorded, nvlink_node(), scale=0)
    with pytest.raises(ValueError, match="does not say which GPUs"):
        bill(recorded, pcie_node())
    empty = bill([], nvlink_node(), grid={"all": 1})
    assert empty == [] and empty.seconds == 0 and "0 s" in repr(empty) or "0 µs" in repr(empty)


def test_computing_takes_flops_over_the_share_of_the_peak():
    """NVIDIA/dgxc-benchmarking: Nemotron4 15B, 256 sequences of 4096 on 64 H100 in 2.693 s, 57.82 % of their peak."""
    flops = 256 * 3.85e14
    assert compute_seconds(flops / 64, "H100", 0.5782) == pytest.approx(2.693, rel=1e-3)
    assert training_flops(15.6e9, 4096) == pytest.approx(3.85e14, rel=0.01)
    for wrong in (0, 1.1, -1):
        with pytest.raises(ValueError, match="more than 0 and at most 1"):
            compute_seconds(1, utilization=wrong)


def test_a_bill_has_the_bands_of_what_it_adds_up():
    def calls():
        x = torch.ones(1000)
        dist.all_reduce(x)
        dist.all_reduce(x[:10])

    priced = bill(run(calls, world_size=2), rails(2), scale=8)
    price_of = nccl("all_reduce", rails(2))
    for end in (0, 1):
        assert priced.band[end] == pytest.approx(sum(price_of(nbytes).band[end] for nbytes in (4000, 40)))
    assert f"nine of ten systems: {duration(priced.band[0])} to" in repr(priced)


# --- protocols, fits, calibration ---------------------------------------------------------


def test_the_cheapest_protocol_is_taken():
    p = price(ring_all_reduce(8), nvlink_node("H200"))
    assert p(1024).protocol == "LL" and p(2**33).protocol == "Simple"
    for nbytes in (1024, 2**22, 2**33):
        assert p(nbytes).seconds == min(p(nbytes, name).seconds for name in ("LL", "LL128", "Simple"))
    with pytest.raises(ValueError, match="no protocol 'NVLS', only LL, LL128, Simple"):
        p(8, "NVLS")


def test_a_protocol_is_capped():
    """LL on 8 x A100 carries 87.7 GB/s, not half of 240; on the fly, a cap above the wire changes nothing."""
    ring = price(ring_all_reduce(8), nvlink_node("A100"))
    assert ring(2**36, "LL").busbw == pytest.approx(87.7e9, rel=0.01)
    assert max(ring(2**36, "LL").limits, key=ring(2**36, "LL").limits.get) == "protocol LL"
    assert ring(2**36, "Simple").busbw == pytest.approx(240e9, rel=0.01)
    machine = flat(1e-6, 1e9)
    for cap, seconds in ((inf, 4e-6 + 1.5), (2e9, 4e-6 + 1.5), (5e8, 4e-6 + 3)):
        capped = machine.with_(protocols=(Protocol("p", cap=cap),))
        assert cost(rabenseifner_all_reduce(4), 1e9, capped).seconds == pytest.approx(seconds)


def test_a_fit_finds_the_line():
    found = fit((b, 3e-5 + b / 2e9) for b in (8, 1024, 2**16, 2**24))
    assert (found.latency, found.bandwidth) == (pytest.approx(3e-5), pytest.approx(2e9)) and found.error < 1e-9
    assert fit([(8, 1e-5), (8, 1.2e-5), (2**20, 1e-5)]).bandwidth == inf
    for wrong in ([(8, 1.0)], [(8, 1.0), (8, 2.0)], [(8, 0.0), (16, 1.0)]):
        with pytest.raises(ValueError):
            fit(wrong)


def test_this_machine_is_measured_by_real_ranks():
    sizes = (16, 2**20, 2**24)  # the largest takes longer than what disturbs a busy machine
    pair = fit(run(ping_pong, sizes, 3, world_size=2).results[0])
    every = run(exchange, sizes, 3, world_size=3).results
    assert every[0] == every[1] == every[2]  # the slowest rank's time, for all alike
    crowd = fit(every[0])
    for found in (pair, crowd):
        assert 1e-6 < found.latency < 1 and 1e6 < found.bandwidth < 1e12
    machine = loopback(pair, crowd, 3)
    whole_ring = cost(Schedule("all_gather", 3, ring_all_gather(3).steps[:1], 3), 3 * 2**20, machine)
    assert whole_ring.seconds == pytest.approx(crowd.seconds(2**20))


def test_bus_bandwidth_is_that_of_nccl_tests():
    factors = {
        "all_reduce": 1.75,
        "all_gather": 0.875,
        "reduce_scatter": 0.875,
        "all_to_all": 0.875,
        "broadcast": 1,
        "reduce": 1,
    }
    for collective, factor in factors.items():
        assert busbw(collective, 1e9, 8, 0.5) == pytest.approx(factor * 2e9)
    with pytest.raises(ValueError, match="barrier"):
        busbw("barrier", 1, 8, 1)


def test_published_figures_are_met():
    """Rows of sources that the fit never saw, group by group; nine of ten are in the band that the other sources give."""
    table = calibration()
    reached = {"one node, below 1 MiB": 0.13, "one node, 1 to 64 MiB": 0.11, "one node, 64 MiB and more": 0.05,
               "several nodes, below 64 MiB": 0.18, "several nodes, 64 MiB and more": 0.06}  # fmt: skip
    assert list(reached) == list(GROUPS)
    for group, bound in reached.items():
        rows = table.of(group)
        assert rows.median < bound and rows.within > 0.8 and rows.foreseen > 0.9, group
    unseen = table.of(role="held out")
    assert unseen.median < 0.1 and unseen.foreseen > 0.9 and len({row.source for row in unseen}) >= 14
    # The bands are what Calibration.spreads finds.
    for network in networks().values():
        low, _, high = zip(*table.spreads(network.name))
        for found, figure in ((low, "low"), (high, "high")):
            assert [round(share, 2) for share in found] == list(network.value(figure, "this test")), network.name
    # No source is fitted to at one size and held out at another.
    assert not {r.source for r in table.of(role="fitted") if r.group in GROUPS[3:]} & {
        r.source for r in unseen if r.group in GROUPS[3:] and "coreweave" not in r.source and "dstack" not in r.source
    }
    # LAUNCH_SECONDS is the median of what the three rows it was fitted to take beyond the model.
    launched = [row for row in table.of(role="fitted") if row.group == GROUPS[0] and row.network == "NVLink"]
    assert [row.what for row in launched] == ["8 x A100", "8 x H200", "8 x B200"]
    assert sorted(row.error for row in launched)[1] == pytest.approx(0, abs=0.01)
    # What counts nowhere says why, and what is displayed says which.
    assert all(row.source for row in table) and all(bool(row.note) == (row.role == "suspect") for row in table)
    assert {row.role for row in table} == {"", "fitted", "form", "held out", "suspect"}
    assert all(group in repr(table) for group in GROUPS) and f"{table.median:.0%}" in repr(table).splitlines()[-1]
    assert all(row.source in table.sweeps() for row in table)


def test_a_price_says_how_far_it_can_be_trusted():
    near, far = nccl("all_reduce", rails(2)), nccl("all_reduce", rails(16_384))
    cost = near(MIB)
    assert cost.band[0] < cost.seconds < cost.band[1] and not cost.beyond
    assert f"nine of ten systems: {duration(cost.band[0])} to {duration(cost.band[1])}" in repr(cost)
    assert f"\n  start {duration(cost.start)} + latency {duration(cost.latency)} + transfer " in repr(cost)
    assert "extrapolated: no sweep of verbs has more than 256 GPUs" in repr(far(8))
    slowest = nccl("all_reduce", machine_of("A3 High", 16))(8)
    assert slowest.seconds > 10 * near(8).seconds and slowest.algorithm == "Ring" and slowest.protocol == "Simple"
    assert (
        "nine of ten" not in repr(cost_of_ring := price(ring_all_reduce(8), nvlink_node())(8))
        and cost_of_ring.band is None
    )
    with pytest.raises(ValueError, match="no network is called 'token ring', only NVLink, "):
        rails(2, network="token ring")


def test_what_cannot_be_priced_is_refused():
    with pytest.raises(ValueError, match="8 x H100 has 8 ranks, and the algorithm 9"):
        cost(ring_all_reduce(9), 1, nvlink_node())
    for make in (nvlink_node, lambda gpu: rails(2, gpu), lambda gpu: compute_seconds(1, gpu)):
        with pytest.raises(ValueError, match="no figures for 'V100'"):
            make("V100")
    with pytest.raises(ValueError, match="multiple of the one inside"):
        Machine("odd", (Level("a", 3, 0.0, NIC), Level("b", 4, 0.0, NIC)))
    with pytest.raises(ValueError, match="2 latencies for 1 protocols"):
        Machine("odd", (Level("a", 3, (0.0, 1.0), NIC),))
    with pytest.raises(ValueError, match="0 bytes or more, not -5"):
        cost(ring_all_reduce(2), -5, nvlink_node())
    assert nvl72().most_ranks == 72


def test_one_rank_alone_costs_nothing():
    for algorithm in (ring_all_reduce, tree_all_reduce, double_tree_all_reduce):
        alone = cost(algorithm(1), 1e6, flat(A, 1 / B))
        assert alone.seconds == alone.busbw == 0 and "0 steps" in repr(alone)


def test_an_empty_step_takes_no_time():
    a, b = [copy(0, 1, 0)], [copy(1, 2, 0)]
    machine = Machine("switch", (Level("switch", 3, 1e-6, Port("port", 1e9)),))
    prices = {
        cost(Schedule("broadcast", 3, steps), 1000, machine).seconds for steps in ([a, b], [a, [], b], [[], a, b])
    }
    assert len(prices) == 1


# --- pictures -----------------------------------------------------------------------------


def test_the_words_of_a_picture_say_what_it_draws():
    """Each has a text twin with the numbers drawn, and an image that is the same every time."""
    prices = {8: nccl("all_reduce", nvlink_node()), 64: nccl("all_reduce", rails(8))}
    sizes = [2**k for k in range(8, 31)]
    choices = charts.draw_choices(prices, sizes)
    for line, of in zip(choices.words.splitlines()[1:], prices.values()):
        borders = [b for a, b in zip(sizes, sizes[1:]) if of.choice(a) != of.choice(b)]
        assert line.split(" | ")[1::2] == [charts.said_bytes(b) for b in borders]
        assert line.split(" | ")[0].endswith(" ".join(of.choice(sizes[0])))
    curves = charts.draw_seconds({"ring": {"r": lambda n: 2e-6 * n}}, [8, 64, 512], "GPUs", growth=True)
    assert curves.words.splitlines()[1].split() == ["r", "16", "µs", "128", "µs", "1.02", "ms", "64", "x"]
    (line,) = curves.picture.panels[0].lines[:1]
    assert list(line.get_ydata()) == pytest.approx([16e-6, 128e-6, 1024e-6])
    table = calibration().of(GROUPS[0])
    errors = charts.draw_errors(table)
    assert errors.words == repr(table) and f"{table.median:.0%}" in errors.words
    drawn = sorted(float(dot.get_ydata()[0]) for dot in errors.picture.panels[0].lines if dot.get_xdata()[0] >= 8)
    assert drawn[-len(table) :] == pytest.approx(sorted(row.times for row in table))
    banded = charts.draw_seconds({"rails": {"NCCL": nccl("all_reduce", rails(2))}}, [8, 2**20, 2**30])
    far = charts.draw_seconds({"far": {"NCCL": lambda n: nccl("all_reduce", rails(n // 8))(8)}}, [64, 1024], "GPUs")
    assert "nine of ten, from" in banded.words and len(banded.picture.panels[0].collections) == 1
    assert far.picture.panels[0].get_title(loc="left").endswith("(hollow: extrapolated)")
    assert far.words.endswith("extrapolated: no sweep of verbs has more than 256 GPUs")
    message = charts.draw_message([(16, 5e-5), (2**20, 3e-4), (2**22, 1e-3)], fit([(16, 5e-5), (2**22, 1e-3)]))
    assert "latency α        50.0 µs" in message.words
    for shown in (choices, curves, errors, message, charts.draw_machines()):
        first, again = (shown.picture._repr_mimebundle_()[0] for _ in range(2))
        assert first["image/png"] == again["image/png"] and first["text/plain"].startswith("Picture: ")


def test_a_chart_is_light_and_looks_as_it_was_drawn():
    chart = charts.draw_errors(calibration()).picture
    png = base64.b64decode(chart._repr_mimebundle_()[0]["image/png"])
    small = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)
    off = np.abs(small - np.asarray(chart.canvas.buffer_rgba())[..., :3]).max(axis=2)
    assert len(png) < 60_000 and off.max() < 48 and off.mean() < 0.33


def test_ranks_that_import_the_package_do_not_load_matplotlib():
    program = "import collectives.cost, sys; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
