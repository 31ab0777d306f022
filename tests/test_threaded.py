"""`run(..., pretend=True)`: values, calls, verdicts and words are the same as with real ranks, and a thousand take seconds."""

import json
import os
import random
import re
import signal
import sys
import threading
import time
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectives import Mismatch, RankFailed, RunError, Stuck, run
from collectives.launch.turns import Belongings, Turn, Turns
from collectives.log.traffic import count
from tests.pretended import compiled, described, differences, plain
from tests.sampling import when
from tests.test_pretend import HANGS, PROGRAMS, RIGHT, program

SAME = {
    "parts": "x = torch.arange(2. * n) + 10 * r\n    y, z, q = torch.zeros(2 * n), torch.zeros(2), torch.zeros(2)\n"
    "    dist.all_to_all_single(y, x)\n    dist.reduce_scatter_single(z, x)\n    out = [torch.zeros(2) for _ in range(n)]\n"
    "    dist.all_to_all(out, list(x.view(n, 2)))\n    dist.reduce_scatter(q, list(x.view(n, 2).clone()))\n    return y, z, q, out",
    "float sums": "torch.manual_seed(r)\n    x, y, z = torch.randn(1000), torch.randn(37), torch.randn(3)\n    dist.all_reduce(x)\n"
    "    dist.reduce(y, 1)\n    dist.reduce(z, 0, op=dist.ReduceOp.AVG)\n    return x, y, z",
    "objects": "many = [None] * n\n    dist.gather_object({'r': r}, many if r == 0 else None)\n    one = [None]\n"
    "    dist.scatter_object_list(one, [5, 6, 7] if r == 0 else None)\n    return many, one",
    "groups": "g = [dist.new_group([0, 1]), dist.new_group([2])]\n    x = torch.ones(2) * r\n    dist.all_reduce(x, group=g[r // 2])\n"
    "    return x, dist.get_rank(g[0]), dist.get_backend(g[r // 2])",
    "a mesh": "from torch.distributed.device_mesh import init_device_mesh\n    x = torch.ones(1)\n"
    "    dist.all_reduce(x, group=init_device_mesh('cpu', (n,)).get_group())\n    return x",
    "functional": "import torch.distributed._functional_collectives as f\n    x = torch.arange(6.) + r\n"
    "    return f.all_reduce(x, 'sum', dist.group.WORLD) + 0, f.all_gather_single(x, 0, dist.group.WORLD) + 0",
    "a list for all": "out = [torch.zeros(2) for _ in range(n)]\n    dist.all_gather(out, torch.ones(2) + r)\n    out[1].add_(1)\n"
    "    dist.all_gather(out, out[1] * r)\n    w = dist.all_gather(out, torch.full((2,), 7. * r), async_op=True)\n    w.wait()\n"
    "    out[0] += 5\n    flat = [torch.zeros(1, 2) for _ in range(n)]\n    dist.all_gather(flat, torch.ones(1, 2) * r)\n    return out, flat",
    "a batch": "a, b = torch.ones(2) * r, torch.zeros(2)\n    ops = dist.P2POp(dist.isend, a, (r + 1) % n), dist.P2POp(dist.irecv, b, (r - 1) % n)\n"
    "    for w in dist.batch_isend_irecv(list(ops)):\n        w.wait()\n    return b",
    "training": "torch.manual_seed(0)\n    m = torch.nn.Linear(3, 1)\n    o = torch.optim.SGD(m.parameters(), 0.1)\n    torch.manual_seed(r)\n"
    "    for k in range(3):\n        m(torch.randn(4, 3)).pow(2).mean().backward()\n        for p in m.parameters():\n"
    "            dist.all_reduce(p.grad)\n            p.grad /= n\n        o.step()\n        o.zero_grad()\n    return m.weight.detach()",
    "DDP": "torch.manual_seed(0)\n    m = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
    "    m(torch.ones(1, 2) * r).sum().backward()\n    return m.module.weight.grad",
    "a monitored barrier": "dist.monitored_barrier()\n    print('here', r)\n    import os\n    return os.environ['RANK']",
    "an average of integers": "dist.all_reduce(torch.ones(2, dtype=torch.int64), op=dist.ReduceOp.AVG)",
    "a caught error": "try:\n        if r == 1: raise ValueError('no')\n        dist.barrier()\n    except ValueError: pass",
    "a rank that isn't there": "dist.send(torch.ones(1), 7)",
    "a message to itself": "dist.isend(torch.ones(1), r)",
    "a dropped message": "if r == 0:\n        dist.isend(torch.ones(1), 1)\n    dist.barrier()\n    if r == 1:\n        dist.recv(torch.zeros(1), 0)",
    "a group that one leaves out": "if r != 1:\n        dist.new_group([0, 2])",
    "an endless loop": "while r == 1: pass\n    dist.barrier()",
}  # fmt: skip
BOUND_SECONDS = 60.0  # for 1,024 ranks of an all_reduce, which take about one on a quiet machine


def report(source, ranks, **how):
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            done = run(compiled(source), world_size=ranks, timeout=2.0 if "while r == 1" in source else 60.0, **how)
        results, words, events = plain(done.results), "", done.events
        traffic = count(events)
        results += [traffic.sent, traffic.received, traffic.messages, traffic.steps]
    except RunError as error:
        results, words, events = None, re.sub(r"\]:\d+\$", "]:0$", f"{type(error).__name__}: {error}"), error.run.events
    found = {"results": results, "words": words, "events": [[described(e) for e in own] for own in events]}
    return json.loads(json.dumps(found | {"printed": printed.getvalue()}))


def compare(source, ranks):
    assert not differences(report(source, ranks), report(source, ranks, pretend=True)), source


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=when(k % 2 == 0, True)) for k, name in enumerate((*HANGS, *RIGHT, *SAME))]
)
def test_the_same_as_real_ranks(name):
    compare(program({**HANGS, **RIGHT, **SAME}[name]), 3)


@pytest.mark.nightly
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(PROGRAMS, st.sampled_from([2, 4, 5]))
def test_random_programs(drawn, ranks):
    lines, size, _ = drawn
    body = f"x = torch.arange(float({size})) + r\n    " + "\n    ".join(f"{when} {call}" for when, call in lines)
    compare(program(body + "\n    return x"), ranks if "r ^ 1" not in body else 4)


def total():
    x = torch.ones(3) * dist.get_rank()
    dist.all_reduce(x)
    return x[0].item()


@pytest.mark.slow
def test_a_thousand_ranks():
    began = time.perf_counter()
    done = run(total, world_size=1024, pretend=True)
    assert time.perf_counter() - began < BOUND_SECONDS
    assert done.results == [1023 * 512] * 1024 and len(done.calls) == 1
    assert repr(done).endswith(
        "1,024 pretended ranks: one process ran them in turn. Values, calls and traffic are those of real ranks, its seconds are not."
    )


def processor_seconds(ranks, program):
    began = time.process_time()
    run(program, world_size=ranks, pretend=True)
    return time.process_time() - began


def everything():
    n = dist.get_world_size()
    x, y, z = torch.ones(2), torch.zeros(2 * n), torch.zeros(2)
    dist.all_gather_single(y, x)
    dist.reduce_scatter_single(z, y)
    dist.all_to_all_single(torch.zeros_like(y), y)
    dist.broadcast(x, 0)
    dist.reduce(x, 0)
    dist.barrier(dist.new_subgroups(8)[0])


def test_many_ranks_are_named_in_ranges():
    def deserted():
        if dist.get_rank() != 17:
            dist.barrier()

    def every_second():
        if dist.get_rank() % 2:
            dist.barrier()

    with pytest.raises(Stuck, match="^ranks 0-16, 18-63 are waiting in barrier #1; rank 17 returned") as caught:
        run(deserted, world_size=64, pretend=True)
    assert max(map(len, str(caught.value).splitlines())) < 250
    with pytest.raises(Stuck, match=r"^32 ranks \(1, 3, 5, ..., 63\) are waiting in barrier #1; 32 ranks \(0, 2, 4, ..., 62\) returned"):
        run(every_second, world_size=64, pretend=True)


@pytest.mark.slow
def test_the_cost_of_a_rank_hardly_grows_with_their_number():
    processor_seconds(8, everything)
    few, many = map(sum, zip(*([processor_seconds(n, everything) for n in (32, 256)] for _ in range(3))))
    assert many < 16 * few  # eight times the ranks; 64 would be N²


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_real_ranks_alone_have_some_things():
    for setting, reason in {
        "backend": "nccl", "device": "cuda", "fresh": True, "record": False,
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=f"pretended ranks have no {setting}="):
            run(total, pretend=True, **{setting: reason})

    def from_a_thread():
        thread = threading.Thread(target=dist.barrier)
        thread.start()
        thread.join()

    with pytest.raises(RankFailed, match="make calls from one thread each"):
        run(from_a_thread, pretend=True)
    with pytest.raises(RankFailed, match="use_local_synchronization"):
        run(lambda: dist.new_group([0, 1], use_local_synchronization=True), pretend=True)
    with pytest.raises(RankFailed, match="ranks cannot start ranks"):
        run(lambda: run(total), pretend=True)


def test_the_process_is_left_as_it_was():
    def untidy():
        torch.manual_seed(dist.get_rank())
        random.seed(dist.get_rank())
        os.environ["RANK"] = "9"
        sys.stdout = None
        assert torch.get_num_threads() == 1 == len(cores())
        return torch.rand(1).item()

    def cores():
        return os.sched_getaffinity(0) if sys.platform == "linux" else {0}

    def state():
        return random.getstate(), sys.stdout, sys.excepthook, dist.new_group, os.environ.get("RANK"), torch.get_num_threads(), cores()

    before, numbers = state(), torch.get_rng_state()
    first, second = (run(untidy, pretend=True).results for _ in range(2))
    assert first == second and len(set(first)) == 4  # each has its own random numbers
    assert torch.equal(numbers, torch.get_rng_state()) and before == state() and not dist.is_initialized()


def test_a_turn_may_be_over_before_its_giver_goes_on():
    class Quick(Turn):
        def begin(self):
            super().begin()
            self._dead.acquire()  # until it has ended

    given = []
    turns = Turns(lambda: given.pop() if given else None)
    given.append(Quick(turns, lambda: None, Belongings()))
    turns.run(lambda: True, lambda turn: None)


def draws(seeding):
    """Numbers from all three generators, in each of three turns; an odd number of normal ones, which come in pairs."""
    rank, found = dist.get_rank(), []
    if rank in seeding:
        torch.manual_seed(rank), random.seed(rank), np.random.seed(rank)
    for _ in range(3):
        found += [torch.rand(1).item(), random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]
        dist.barrier()
    return found


@pytest.mark.parametrize("seeding", [(), (2,), (0, 1, 2, 3)])
def test_a_rank_draws_its_own_numbers_whoever_draws_meanwhile(seeding):
    real, pretended = run(draws, seeding, world_size=4).results, run(draws, seeding, world_size=4, pretend=True).results
    assert [pretended[rank] for rank in seeding] == [real[rank] for rank in seeding]
    drawn = [number for numbers in pretended for number in numbers]
    assert len(set(drawn)) == len(drawn)


def test_a_call_that_ends_before_all_have_made_it_is_judged_as_with_real_ranks():
    def differs(kind):
        rank = dist.get_rank()
        x = torch.ones(3) if kind != "size" or rank != 3 else torch.ones(4)
        if kind == "collective" and rank == 1:
            dist.all_reduce(x)
        else:
            dist.broadcast(x, 1 if kind == "root" and rank == 2 else 0)
        return x.tolist()

    for kind in ("none", "size", "root", "collective"):
        words = []
        for pretend in (False, True):
            try:
                words.append(str(run(differs, kind, world_size=5, pretend=pretend).results))
            except Mismatch as error:
                words.append(str(error))
        assert words[0] == words[1], words


def test_an_interrupt_names_where_the_ranks_were():
    def waits():
        if dist.get_rank() == 1:
            signal.raise_signal(signal.SIGINT)
            while True:
                pass
        dist.barrier()

    with pytest.raises(KeyboardInterrupt, match=r"(?s)interrupted\. .*rank 0 +waiting in barrier #1"):
        run(waits, pretend=True)
    assert run(total, pretend=True).results == [6.0] * 4


def test_kinds_of_errors():
    for body, kind in ((HANGS["send first"], Stuck), (HANGS["shapes"], Mismatch), (HANGS["an error"], RankFailed)):
        with pytest.raises(kind):
            run(compiled(program(body)), pretend=True)
