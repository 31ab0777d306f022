"""Pretended ranks do what real ones do: the same values, verdicts and calls; and what isn't there is refused with a sentence."""

import json
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectives import Mismatch, Stuck, run
from tests import ROOT
from tests.pretended import differences, of_program, on_real_ranks, report, requests

EVERY = 115  # of the corpus's answers and cases, in a quick run
HANGS = {
    "send first": "x = torch.ones(1)\n    dist.send(x, (r + 1) % n)\n    dist.recv(x, (r - 1) % n)",
    "one rank's call": "x = torch.ones(1)\n    if r == 1:\n        dist.all_reduce(x)",
    "two orders": "x = torch.ones(1)\n    for op in [dist.all_reduce, dist.barrier][:: 1 - 2 * (r == 0)]:\n        op(*[x] * (op is dist.all_reduce))",
    "shapes": "x = torch.ones(1 + r)\n    dist.all_reduce(x)",
    "early use": "x = torch.ones(2)\n    w = dist.all_reduce(x, async_op=True)\n    y = x + 1\n    w.wait()\n    return y",
    "an error": "x = torch.ones(1)\n    if r == 1:\n        x[5]\n    dist.all_reduce(x)",
    "groups": "dist.new_group([0, 1 + r % 2])",
    "orders": "x = torch.arange(6.).view(2, 3)\n    dist.reduce_scatter(x, [torch.ones(3, 2).t() for _ in range(n)])",
    "a stack": "x = torch.ones(3)\n    out = torch.zeros(n, 3)\n    dist.all_gather_single(out, x)",
    "lists of several sizes": "many = [torch.ones(k + 1) for k in range(n)]\n    dist.all_to_all([torch.zeros(2) for _ in many], many)",
    "lists of other sizes": "dist.all_to_all([torch.zeros(3) for _ in range(n)], [torch.ones(2) for _ in range(n)])",
    "lists of each rank's size": "dist.all_to_all([torch.zeros(2 + r) for _ in range(n)], [torch.ones(2 + r) for _ in range(n)])",
    "no group": "x = torch.ones(1)\n    dist.all_reduce(x)\n    dist.destroy_process_group()\n    print(dist.is_initialized())\n    dist.barrier()",
    "a list too short": "dist.all_to_all([torch.zeros(1) for _ in range(n)], [torch.ones(1)])",
    "kinds": "x = [torch.zeros(1).long() for _ in range(n)]\n    dist.all_gather(x, torch.ones(1))",
    "one kind each": "dist.reduce_scatter_single(torch.zeros(1).long(), torch.ones(n))",
    "early change": "x = torch.ones(2)\n    w = dist.all_reduce(x, async_op=True)\n    x += 1\n    w.wait()",
    "not of the group": "g = dist.new_group([0, 1])\n    if r < 2:\n        dist.broadcast(torch.ones(1), 2, group=g)",
    "an output's order": "y = torch.zeros(2, n).t()\n    dist.all_to_all_single(y, torch.ones(n, 2))",
}
RIGHT = {
    "polls": "x = torch.ones(1)\n    w = dist.all_reduce(x, async_op=True)\n    while not w.is_completed():\n        pass\n    return x",
    "anyone": "x = torch.zeros(1)\n    total = 0\n    for k in range(1, n):\n        if r == k:\n            dist.send(x + r, 0)\n"
    "        elif r == 0:\n            dist.recv(x)\n            total += x.item()\n        dist.barrier()\n    return total",
    "objects": "many = [None] * n\n    dist.all_gather_object(many, {'rank': r})\n    box = [many, r]\n    dist.broadcast_object_list(box, 1)\n    return box",
    "uneven": "x = torch.arange(float(n * (n + 1) // 2))\n    sizes = [k + 1 for k in range(n)]\n    y = torch.zeros((r + 1) * n)\n"
    "    dist.all_to_all_single(y, x, [r + 1] * n, sizes)\n    return y.view(n, -1)",
    "printed": "x = torch.tensor([[1.5, 1e-3], [float('inf'), 2e5]])\n    return repr(x), repr(x.long() if False else x > 1), f'{x[0, 0]:.2f}'",
}


def pretended(*arguments, given=None):
    """Reports of pretended ranks, from a Python that has no other torch."""
    command = [sys.executable, "-m", "tests.pretended", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, input=given and json.dumps(given), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(programs):
    for (source, ranks), found in zip(programs, pretended("programs", given=programs), strict=True):
        real = json.loads(json.dumps(of_program(source, ranks, True)))
        assert not differences(real, found), source


@pytest.mark.parametrize("every", [EVERY, pytest.param(1, marks=pytest.mark.nightly)])
def test_answers_of_the_corpus_do_what_they_do_on_real_ranks(every):
    refused = 0
    for request, found in zip(requests(every), pretended(every), strict=True):
        if "refused" in found:
            assert found["refused"].startswith("this page has no ")
            refused += 1
            continue
        real = json.loads(json.dumps(report(*request, on_real_ranks)))
        assert not differences(real, found), (found["task"], found["answer"], found["ranks"])
    assert not refused  # so far none has to be


def program(body):
    return "def f():\n    r, n = dist.get_rank(), dist.get_world_size()\n    " + body + "\n"


def test_hangs_mismatches_and_errors_get_the_words_of_real_ranks_and_right_programs_their_values():
    compare([(program(body), 3) for body in [*HANGS.values(), *RIGHT.values()]])


CALLS = st.sampled_from([
    "dist.all_reduce(x)",
    "dist.all_reduce(x, op=dist.ReduceOp.MAX)",
    "dist.broadcast(x, src=1)",
    "dist.reduce(x, dst=1)",
    "dist.barrier()",
    "y = torch.zeros(n, *x.shape); dist.all_gather_single(y.view(-1), x); x = x + y.sum(0)",
    "y = [torch.zeros_like(x) for _ in range(n)]; dist.all_gather(y, x); x = y[r - 1]",
    "y = torch.zeros_like(x); dist.scatter(y, [x + k for k in range(n)] if r == 0 else None); x = y",
    "y = torch.zeros_like(x); dist.reduce_scatter_single(y, x.repeat(n)); x = y",
    "y = torch.zeros_like(x.repeat(n)); dist.all_to_all_single(y, torch.cat([x * (k + 1) for k in range(n)])); x = y[: len(x)]",
    "y = x.clone(); w = dist.isend(x, (r + 1) % n); dist.recv(y, (r - 1) % n); w.wait(); x = y",
    "y = x.clone(); dist.send(x, r ^ 1) if r % 2 else dist.recv(y, r ^ 1); x = y",
])  # fmt: skip
LINES = st.tuples(st.sampled_from(["if True:", "if True:", "if True:", "if r != 1:", "if x[0] > 0:"]), CALLS)
PROGRAMS = st.tuples(st.lists(LINES, min_size=1, max_size=4), st.integers(1, 7), st.sampled_from([2, 4]))


@pytest.mark.nightly
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(st.lists(PROGRAMS, min_size=4, max_size=4))
def test_random_programs(drawn):
    programs = []
    for lines, size, ranks in drawn:
        body = f"x = torch.arange(float({size})) + r\n    " + "\n    ".join(f"{when} {call}" for when, call in lines)
        programs.append((program(body + "\n    return x"), ranks))
    compare(programs)


def test_random_numbers_and_printing_are_torchs():
    import torch

    source = program(
        "g = torch.Generator().manual_seed(12345678901)\n    return torch.randint(-9, 10, (5,), generator=g).tolist(), torch.randn("
        "3, generator=g, dtype=torch.double), torch.randn(20, generator=g, dtype=torch.double), torch.randperm(9, generator=g)"
    )
    (found,) = pretended("programs", given=[(source, 1)])
    g = torch.Generator().manual_seed(12345678901)
    integers, few, many, order = found["results"][0]
    assert integers == torch.randint(-9, 10, (5,), generator=g).tolist()
    for numbers in (few, many):
        wanted = torch.randn(len(numbers["tensor"]), generator=g, dtype=torch.double)
        assert torch.allclose(torch.tensor(numbers["tensor"], dtype=torch.double), wanted)
    assert order["tensor"] == torch.randperm(9, generator=g).tolist()


def test_what_is_not_there_is_refused_with_a_sentence():
    script = (
        "from collectives.pretend.torch_module import install; torch = install()\n"
        "for use in ('torch.linalg', 'torch.ones(1).lgamma()', 'torch.distributed.fsdp', 'torch.zeros(1, dtype=torch.bfloat16)'):\n"
        "    try: eval(use)\n"
        "    except AttributeError as refused: print(refused)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "this page has no torch.linalg",
        "this page has no Tensor.lgamma",
        "this page has no torch.distributed.fsdp",
        "this page has no tensors of torch.bfloat16",
    ]


def ring_without_one():
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank != 700:
        dist.send(torch.ones(4), (rank + 1) % n)
        dist.recv(torch.ones(4))


def halves():
    dist.all_reduce(torch.ones(4 + dist.get_rank() % 2))


@pytest.mark.slow
def test_a_verdict_on_a_thousand_ranks_fits_a_screen():
    """In a table of as many rows, the odd ones stay."""
    with pytest.raises(Stuck) as error:
        run(ring_without_one, world_size=1024, pretend=True)
    words = str(error.value)
    assert len(words.splitlines()) < 24 and "\n  ... and 1,008 more rows\n" in words, words
    assert "; rank 700 returned before any call; ... and 1,008 more. This" in words and "\n  rank 700 " in words, words
    with pytest.raises(Mismatch) as error:
        run(halves, world_size=1024, pretend=True)
    assert "  512 ranks (0, 2, 4, ..., 1022)  all_reduce" in str(error.value) and len(str(error.value)) < 1000


def test_a_collectives_cost_grows_with_its_ranks_and_not_with_their_square():
    script = (
        "from time import process_time as clock\n"
        "from collectives.pretend.torch_module import install; torch = install()\n"
        "from collectives.launch.pretended import run_separately\n"
        "def f():\n"
        "    x = torch.ones(1)\n"
        "    torch.distributed.all_reduce(x)\n"
        "    return x.item()\n"
        "for ranks in (8, 128, 1024):\n"
        "    began = clock()\n"
        "    assert run_separately(f, [((), {})] * ranks).results == [ranks] * ranks\n"
        "    print(clock() - began)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    _, few, many = map(float, done.stdout.split())
    assert many < 24 * few  # eight times the ranks; each of them asking all took 56 times as long
