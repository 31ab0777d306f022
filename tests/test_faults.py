"""Whatever happens to ranks, server or machine: a result or a clear error, the next call works, nothing is left."""

import random
import subprocess
import sys

import psutil
import pytest

from collectives.launch.forkserver import STANDBY_RANKS
from helpers import run
from tests import ROOT
from tests.corpus import faults
from tests.kernels import SETUP, kernels
from tests.sampling import is_taken, one_in, when


def strays():
    """Ranks and what they started, besides the server and the worker groups on standby."""
    sizes = (2, 3, 4, STANDBY_RANKS - 9)  # no room is left for worker groups of other sizes
    for n in sizes:
        run(lambda: None, world_size=n)
    return faults.settled(1 + sum(sizes)) - 1 - sum(sizes)


@pytest.fixture(scope="module")
def no_strays():
    """Looks for strays when all faults have been."""
    yield
    assert strays() == 0


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=when(False, each_push=is_taken(k, 6)))
        for k, name in enumerate([*faults.FAULTS, *faults.FROM_OUTSIDE])
    ],
)
def test_a_fault_ends_in_a_result_or_a_clear_error(name, no_strays, capsys):
    chance = random.Random()
    for n in (2, 4):
        faults.attempt(name, n, chance)
        assert run(lambda: "fine", world_size=n).results == ["fine"] * n


@pytest.mark.nightly
def test_many_calls_with_faults_leave_nothing_behind():
    done = subprocess.run(
        [sys.executable, "-m", "tests.corpus.faults", "250"], cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.strip().splitlines()[-1].split("before ")[1].split(", after ")
    before, after = (eval(figures.replace(" MiB", "")) for figures in (before.replace("'", ""), after.replace("'", "")))
    files, running, memory, shared = (b - a for a, b in zip(before, after))
    assert files <= 0 and running <= 0 and shared <= 0 and memory < 30


# --- an awkward machine -------------------------------------------------------------------

SUM = """
    import torch, torch.distributed as dist
    from helpers import RunError, run
    def total():
        x = torch.ones(1)
        dist.all_reduce(x)
        return x.item()
"""


@pytest.mark.parametrize(
    "wrapper",
    [
        pytest.param('exec "$@" <&-', id="closed stdin", marks=one_in(0, 2)),
        pytest.param(
            'unshare --uts sh -c \'hostname "no such host"; exec "$@"\' sh "$@"',
            id="odd hostname",
            marks=one_in(1, 2),
        ),
        pytest.param(
            "unshare --net sh -c 'ip link set lo up && echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 && "
            'exec "$@"\' sh "$@"',
            id="no IPv6",
            marks=one_in(2, 2),
        ),
        pytest.param(
            "mkdir full && unshare --mount sh -c 'mount -t tmpfs -o size=4k none full && export TMPDIR=$PWD/full && "
            'head -c 4096 /dev/zero > full/all && exec "$@"\' sh "$@"',
            id="full temporary folder",
            marks=one_in(3, 2),
        ),
    ],
)
def test_an_odd_machine_makes_no_difference(script, wrapper):
    if (
        "unshare" in wrapper
        and subprocess.run(["unshare", "--uts", "--net", "--mount", "true"], capture_output=True).returncode
    ):
        pytest.skip("this user may not make namespaces (root may)")
    done = script(SUM + "    print(run(total).results)", wrapper)
    if "ip: not found" in done.stderr or "Read-only" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.stdout == "[4.0, 4.0, 4.0, 4.0]\n", done.stderr


@pytest.mark.slow
def test_no_free_descriptors_are_named(script):
    code = """
    import os, resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    kept = []
    try:
        while True:
            kept.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    try:
        print(run(total).results)
    except RunError as error:
        print(str(error).split(".")[0])
    for descriptor in kept:
        os.close(descriptor)
    print(run(total).results)
    """
    done = script(SUM + code)
    said = "the ranks could not be started: too many files are open\n[4.0, 4.0, 4.0, 4.0]\n"
    assert done.stdout == said, done


@pytest.mark.nightly
def test_twenty_notebooks_at_once():
    if psutil.virtual_memory().available < 10 << 30:
        pytest.skip("twenty kernels and their ranks need 10 GB")
    with kernels(20) as all_of_them:
        code = "x = torch.ones(1) * {k}\nprint(run(lambda: (dist.all_reduce(x), x.item())[1]).results)"
        started = [(k, one, one.start(SETUP), one.start(code.format(k=k))) for k, one in enumerate(all_of_them)]
        for k, one, setup, number in started:
            assert one.finish(setup, 120) == []
            said = [output for output in one.finish(number, 120) if output[0] == "stdout"]  # and what its ranks do
            assert said == [("stdout", f"{[4.0 * k] * 4}\n")]
