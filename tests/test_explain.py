"""Dumps of torch's flight recorder, explained: hangs made for real with gloo, and played ones as NCCL would leave them."""

import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collectives.format import wrap
from collectives.judge.verdict import Cause
from collectives.watch.explain import dump, evidence, words
from collectives.watch.explain.command import explain
from collectives.watch.explain.judged import Judged
from collectives.watch.explain.dumped_job import DumpedJob
from collectives.watch.writer import Writer
from tests import ROOT
from tests.bench import dumps as bench
from tests.corpus import dumps
from tests.corpus.dumps import FREEZE, STOP, SYNC, WORLD, Do, Played
from tests.sampling import is_taken, when

MESH = (2, 2, 2)


# --- made for real ------------------------------------------------------------------------


def made(kind: str, folder: Path, ranks: int = 4) -> str:
    """What explain says of a hang that gloo ran into."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*torchrun, "-m", "tests.corpus.hangs", kind, str(folder)], cwd=ROOT, env=environment, timeout=120)
    return explain(folder)


REAL = {
    "absent": (4, "Rank 2 holds up the other 3: it has not made all_reduce #3.", "evaluate, hangs.py"),
    # Two ranks wait for rank 3, each in a group of its own: which of them came first is chance, and its call is named.
    "two_groups": (4, "Rank 3 holds up the other 3: it has not made all_reduce #3 of group ", "lacks rank 2"),
    "mismatch": (4, "Rank 1 holds up the other 3: in call #3, rank 1 calls broadcast, and ranks 0, 2 and 3 call all_reduce.", "Rank 1: broadcast float32 [4], 16 B"),
    "kernel": (4, "No rank lacks a call: all 4 ranks have made all_reduce #3, and it has not ended.", "float32 [8], 32 B"),
    "left_out": (4, "Rank 1 holds up the other 3: it has not made all_reduce #10.", "Rank 1 left out all_reduce #5, at step, hangs.py"),
    "order": (2, "Ranks 0 and 1 hold up each other: ", "in different orders"),
}  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=when(False, kind == "order" or is_taken(k, 6))) for k, kind in enumerate(REAL)],
)
def test_a_hang_that_gloo_ran_into(kind, tmp_path):
    ranks, first, further = REAL[kind]
    said = made(kind, tmp_path, ranks)
    assert said.startswith(first), said
    assert further in said, said


NCCL = ROOT / "tests" / "corpus" / "nccl"  # what hangs on one H200 left, by tests/gpu: torch 2.11, NCCL 2.28.9
LEFT = {
    "absent": ("Rank 1 holds up the other rank: it has not made all_reduce #2.", "at absent, job.py:76"),
    "stuck": ("No rank lacks a call: ranks 0 and 1 have made all_reduce #2, and it has not ended.", "at stuck, job.py:86"),
    "shapes": ("Ranks 0 and 1 hold up each other: in call #2, rank 1 passes 1,048,576 elements, and rank 0 passes 4 ", "4 MiB, at shapes"),
}  # fmt: skip


@pytest.mark.parametrize("kind", LEFT)
def test_a_hang_that_nccl_ran_into(kind):
    first, further = LEFT[kind]
    said = explain(NCCL / kind)
    assert said.startswith(first) and further in said, said


@pytest.mark.slow
def test_a_network_that_lost_a_message(tmp_path):
    from collectives.jobs import Hosts, HostsUnavailable

    try:
        hosts = Hosts(2)
    except HostsUnavailable as reason:
        pytest.skip(str(reason))
    with hosts:
        environment = os.environ | dict(
            MASTER_ADDR=hosts.addresses[0], MASTER_PORT="29500", WORLD_SIZE="2", GLOO_SOCKET_IFNAME=hosts.interface
        )
        command = [sys.executable, "-m", "tests.corpus.hangs", "network", str(tmp_path)]
        ranks = [hosts.start(r, command, cwd=ROOT, env=environment | {"RANK": str(r)}) for r in range(2)]
        _until(lambda: len(list(tmp_path.glob("ready_*"))) == 2)
        hosts.unplug(1)
        (tmp_path / "unplugged").touch()
        _until(lambda: len(list(tmp_path.glob("rank_*"))) == 2)
        for rank in ranks:
            rank.kill()
    assert explain(*tmp_path.glob("rank_*")).startswith(
        "No rank lacks a call: ranks 0 and 1 have made all_reduce #3, and it has not ended."
    )


def _until(true, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


# --- as NCCL would leave them -------------------------------------------------------------


def job_of(played: Played, missing=(), **options) -> DumpedJob:
    shared: dict = {}
    written = {r: pickle.loads(pickle.dumps(played.dump(r, **options))) for r in range(played.size) if r not in missing}
    return DumpedJob({rank: dump.read(data, f"rank_{rank}", shared) for rank, data in written.items()})


def told(job: DumpedJob) -> str:
    return words.explained(Judged(job))


def cause_of(job: DumpedJob) -> Cause:
    """The one cause that there is."""
    (cause,) = Judged(job).causes
    return cause


def about(cause: Cause) -> tuple:
    """The group and number of the call that a cause is about."""
    call = cause.waits[0].call
    return call.events[0].group_name, call.index + 1


def spoiled(kind: str, seed: int) -> tuple[Played, int, tuple]:
    """A training job in which something goes wrong on one rank at some call: the job, the rank, the call's group and number."""
    rng = random.Random(seed)
    groups, programs = dumps.mesh(*MESH), dumps.training(*MESH, steps=rng.choice([1, 2, 3]))
    rank = rng.randrange(len(programs))
    program = programs[rank]
    calls = [i for i, step in enumerate(program) if step != SYNC]
    at = rng.choice([i for i in calls if program[i].peer is None] if kind in ("mismatch", "lost") else calls)
    group = program[at].group
    number = sum(step != SYNC and step.group == group and step.peer is None for step in program[: at + 1])
    if kind == "mismatch":
        program[at] = program[at]._replace(shape=(7,))
    elif kind != "lost":
        program.insert(at, FREEZE if kind == "freeze" else STOP)
    return Played(groups, programs, lost=[(group, number)] if kind == "lost" else ()), rank, (group[0], number)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("timing", [False, True], ids=["", "timing"])
def test_the_rank_at_fault_is_named_in_a_job_of_three_parallelisms(seed, timing):
    played, rank, _ = spoiled("absent", seed)
    cause = cause_of(job_of(played, timing=timing))
    assert (cause.kind, cause.ranks) == ("absent", (rank,))

    played, rank, call = spoiled("mismatch", seed)
    cause = cause_of(job_of(played, timing=timing))
    assert cause.kind == "mismatch" and rank in cause.ranks and about(cause) == call

    played, rank, call = spoiled("lost", seed)
    cause = cause_of(job_of(played, timing=timing))
    assert cause.kind == "joined" and about(cause) == call

    played, rank, _ = spoiled("absent", seed)
    cause = cause_of(job_of(played, missing=(rank,), timing=timing))
    assert (cause.kind, cause.ranks) == ("silent", (rank,))

    played, rank, _ = spoiled("freeze", seed)
    cause = cause_of(job_of(played, timing=timing))
    if timing and cause.kind == "not started":
        assert cause.ranks == (rank,)
    else:  # nothing tells a kernel that is stuck from a message that is lost; a send does not begin without its recv
        assert cause.kind == "joined" or cause.ranks == (rank,)


STEP = [Do("all_reduce", WORLD, line=n) for n in range(4)]


def played(*programs, groups=None, **options) -> str:
    return told(job_of(Played(groups or {WORLD: tuple(range(len(programs)))}, list(programs)), **options))


def test_several_ranks_at_fault_are_named_together():
    said = played(*[STEP[:2] + [STOP] if rank in (3, 5) else STEP for rank in range(16)])
    assert said.startswith("Ranks 3 and 5 hold up the other 14: they have not made all_reduce #3.\n")
    assert "Ranks 0-2, 4, 6-15 are waiting in it" in said and "float32 [8], 32 B, at train_step, train.py:2" in said


def test_a_message_that_is_not_received():
    pair = ("7", "mesh_pp")
    groups = {WORLD: (0, 1, 2), pair: (1, 2)}
    said = played(STEP[:1], [*STEP[:1], Do("send", pair, peer=2)], [*STEP[:1], STOP], groups=groups)
    assert said.startswith("Rank 2 holds up 1 of the other 2: it has not made recv #1 from 1.")


def test_elements_and_dtypes_that_differ():
    said = played(*[[Do("all_reduce", WORLD, (1025 if rank == 6 else 262144,)), SYNC] for rank in range(8)])
    assert said.startswith(
        "Rank 6 holds up the other 7: in call #1, rank 6 passes 1,025 elements, and ranks 0-5, 7 pass 262,144 elements."
    )
    said = played(*[[Do("all_reduce", WORLD, dtype="Half" if rank else "Float"), SYNC] for rank in range(2)])
    assert said.startswith(
        "Ranks 0 and 1 hold up each other: in call #1, rank 1 passes float16, and rank 0 passes float32."
    )


def test_ranks_that_send_first_wait_for_each_other():
    said = played(*[[Do("send", WORLD, peer=1 - rank), Do("recv", WORLD, peer=1 - rank)] for rank in range(2)])
    assert "hold up" not in said.splitlines()[0] or "Ranks 0 and 1" in said


def test_the_call_that_the_culprit_would_make_next_is_named():
    """A pipeline's receives are posted early: the next call is the one that its tensor-parallel peers made."""
    groups, programs = dumps.mesh(2, 2, 4), dumps.training(2, 2, 4, steps=3)
    at = [k for k, step in enumerate(programs[9]) if step != SYNC and step.line == 22][1]
    programs[9].insert(at, STOP)
    said = told(job_of(Played(groups, programs)))
    assert said.startswith("Rank 9 holds up the other 15: it has not made all_reduce #6 of group mesh_tp (8-11).\n"), (
        said
    )
    sends = [k for k, step in enumerate(programs[9]) if step not in (SYNC, STOP) and step.line == 40]
    programs[9] = [step for step in programs[9][: sends[1]] if step != STOP] + [STOP]
    said = told(job_of(Played(groups, programs)))
    assert said.startswith("Rank 9 holds up the other 15: it has not made send #2 to 1.\n"), said


def test_the_next_call_of_a_peer_may_be_in_a_group_of_its_own():
    """In rows and columns: rank 3 stops before a call of its row, whose like rank 1 has made in another row."""
    tp, dp = [("t0", "tp"), ("t1", "tp")], [("d0", "dp"), ("d1", "dp")]
    groups = {WORLD: (0, 1, 2, 3), tp[0]: (0, 1), tp[1]: (2, 3), dp[0]: (0, 2), dp[1]: (1, 3)}
    programs = [[Do("all_reduce", (tp[r // 2], dp[r % 2])[k % 2], line=k % 2) for k in range(6)] for r in range(4)]
    programs[3] = programs[3][:4] + [STOP]
    said = told(job_of(Played(groups, programs)))
    assert said.startswith("Rank 3 holds up the other 3: it has not made all_reduce #3 of group tp (2, 3).\n"), said


def test_a_host_without_dumps_is_named_as_one():
    groups, programs = dumps.mesh(2, 2, 4), dumps.training(2, 2, 4)
    for rank in range(4, 8):
        programs[rank].insert(3, STOP)
    said = told(job_of(Played(groups, programs), missing=range(4, 8)))
    assert said.startswith("Ranks 4, 5, 6 and 7 may hold up the other 12: there is no dump of them, and "), said
    assert "They are 4 in a row: one host, probably." in said and "died" not in said


def test_few_dumps_accuse_nobody():
    said = told(
        job_of(Played(dumps.mesh(2, 4, 8), dumps.training(2, 4, 8, steps=1)[:63] + [[STOP]]), missing=range(1, 64))
    )
    first, second, *_ = said.splitlines()
    assert first == "There are dumps of 1 of 64 ranks: which rank isn't in the call can't be known.", said
    assert (
        second.startswith(
            "Rank 0 is waiting in reduce_scatter_single #1 of group mesh_dp (0, 8, 16, 24), for at least "
        )
        and "hold up" not in said
    )
    whole = job_of(Played({WORLD: (0, 1, 2)}, [[*STEP, SYNC]] * 3), missing=[2])
    assert "none is known to be waiting; but of rank 2 nothing is known." in told(whole)


def test_a_dump_without_entries_is_no_rank_without_calls(tmp_path):
    Played({WORLD: (0, 1, 2, 3)}, [STEP, STEP, STEP[:2], STEP]).write(tmp_path)
    (tmp_path / "nccl_trace_rank_3").write_bytes(pickle.dumps({"version": "2.9", "pg_config": {}, "pg_status": {}}))
    said = explain(tmp_path)
    assert said.startswith("Rank 2 holds up 2 of the other 3: it has not made all_reduce #3."), said
    assert "nccl_trace_rank_3 holds no entries, so it reports nothing about its rank: left out." in said


def test_512_ranks_in_a_hundred_columns():
    groups, programs = dumps.mesh(4, 16, 8), dumps.training(4, 16, 8, steps=1)
    programs[300].insert(1, STOP)
    for missing in ((), range(296, 304)):
        said = wrap(told(job_of(Played(groups, programs), missing=missing)))
        assert max(map(len, said.splitlines())) <= 100, said
        assert said.index("rank 300" if not missing else "ranks 296-303") < said.index("ranks 0-"), said
        assert "each waiting in recv" in said and "from rank + 128" in said and len(said.splitlines()) < 60, said


def test_a_ring_that_overflowed_is_read_from_where_all_have_it():
    programs = [[Do("all_reduce", WORLD, line=n % 5) for n in range(60)] + [SYNC] for _ in range(3)]
    programs[1] = programs[1][:57] + [STOP]
    said = played(*programs, ring=7)
    assert said.startswith("Rank 1 holds up the other 2: it has not made all_reduce #58.")
    job = job_of(Played({WORLD: (0, 1, 2)}, programs), ring=7)
    assert "The dumps of ranks 0, 1 and 2 hold the last calls alone; earlier ones were overwritten." in words.limits(
        job
    )


def test_a_rank_whose_ring_holds_nothing_of_a_group_is_not_accused_for_certain():
    pair = ("3", "dp")
    groups = {WORLD: (0, 1), pair: (0, 1)}
    both = [Do("all_reduce", WORLD) for _ in range(20)]
    said = played([*both, Do("all_reduce", pair), SYNC], [*both, STOP], groups=groups, ring=5)
    assert said.startswith("Rank 1 holds up the other rank: it has not made all_reduce #1 of group dp.")
    assert "Of rank 1 this is not certain" in said


def test_what_is_coalesced_is_one_call():
    played_ = Played({WORLD: (0, 1)}, [STEP[:1], STEP[:1]])
    data = [played_.dump(rank) for rank in range(2)]
    for rank, each in enumerate(data):
        (entry,) = each["entries"]
        inner = [
            entry | {"record_id": n, "op_id": n, "state": "scheduled", "profiling_name": "nccl:_all_gather_base"}
            for n in (1, 2)
        ]
        outer = entry | {"record_id": 3, "profiling_name": "nccl:coalesced", "state": "started"}
        inner[1]["input_sizes"] = [[9 if rank else 5]]
        for number, e in enumerate((*inner, outer), 1):
            e |= {"collective_seq_id": 2, "frames": entry["frames"]}
            each["entries"].append(e | {"record_id": number})
    for each in data:
        for e in each["entries"][1:3]:
            e.pop("frames")
    job = DumpedJob({rank: dump.read(each, f"rank_{rank}", {}) for rank, each in enumerate(data)})
    assert [launch.what.op for launch in job.dumps[0].launches] == ["all_reduce", "coalesced"]
    assert told(job).startswith("Ranks 0 and 1 hold up each other: in call #2")


# --- other formats ------------------------------------------------------------------------


def test_json_and_older_versions_say_the_same(tmp_path):
    programs = [STEP[: 2 if rank == 1 else 4] for rank in range(3)]
    job = Played({WORLD: (0, 1, 2)}, programs)
    first = "Rank 1 holds up the other 2: it has not made all_reduce #3."
    for version in ("2.3", "2.4", "2.9", "2.10"):
        for rank in range(3):
            data = job.dump(rank, version=version)
            if version == "2.3":
                for e in data["entries"]:
                    e["seq_id"] = e.pop("collective_seq_id")
            (tmp_path / f"nccl_trace_rank_node0{rank}_{rank}").write_text(json.dumps(data))
        assert explain(tmp_path).startswith(first)
    for rank in range(3):
        (tmp_path / f"nccl_trace_rank_node0{rank}_{rank}").write_text(json.dumps(job.dump(rank, version="3.0")))
    with pytest.raises(ValueError, match="has format 3.0, and versions 2.x are read"):
        explain(tmp_path)


def test_torchcomms_numbers_its_calls_over_all_groups(tmp_path):
    pair = ("tp", "nccl")
    groups = {("main", "nccl"): (0, 1, 2), pair: (0, 1)}
    calls = [Do("all_reduce", ("main", "nccl")), Do("all_reduce", pair), Do("all_reduce", ("main", "nccl"))]
    job = Played(groups, [calls, calls[:2], [calls[0], calls[2]]])
    for rank in range(3):
        data = job.dump(rank)
        for e in data["entries"]:
            e |= {"collective_seq_id": e["record_id"], "state": "scheduled", "is_p2p": False}
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(data, 2))
    assert explain(tmp_path).startswith("Rank 1 holds up the other 2: it has not made all_reduce #2 of group main.")


def test_a_ring_of_torchcomms_that_overflowed_is_counted_from_what_has_ended(tmp_path):
    main, pair = ("main", "nccl"), ("tp", "nccl")
    calls = [Do("all_reduce", group) for _ in range(20) for group in (main, pair)]
    job = Played({main: (0, 1), pair: (0, 1)}, [[*calls, SYNC], [*calls[:-2], STOP]])
    for rank in range(2):
        data = job.dump(rank, ring=9)
        for e in data["entries"]:
            e |= {"collective_seq_id": e["record_id"], "is_p2p": False}
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(data, 2))
    said = explain(tmp_path)
    assert said.startswith("Rank 1 holds up the other rank: it has not made all_reduce #1 of group main."), said
    assert "don't say how many calls were made on each group before the first that it holds." in said


def test_no_rank_of_gloo_is_late_because_its_recorder_has_not_noticed_the_end():
    played_ = Played({WORLD: (0, 1)}, [STEP[:2], STEP[:2]])
    data = [played_.dump(rank) for rank in range(2)]
    for rank, each in enumerate(data):
        for number, e in enumerate(each["entries"]):
            e |= {"state": "scheduled", "retired": rank == 0 or number == 0}
            e["profiling_name"] = e["profiling_name"].replace("nccl:", "gloo:")
    said = told(DumpedJob({rank: dump.read(each, f"rank_{rank}", {}) for rank, each in enumerate(data)}))
    assert said.startswith("No rank lacks a call: ranks 0 and 1 have made all_reduce #2"), said


# --- files that somebody sent -------------------------------------------------------------


class Bomb:
    def __reduce__(self):
        return os.system, ("touch exploded",)


def test_a_pickle_never_runs_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank_0").write_bytes(pickle.dumps({"version": "2.10", "entries": [Bomb()]}))
    with pytest.raises(ValueError, match="asks for posix.system to be called when it is opened"):
        explain(tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_files_that_cannot_be_used_are_named_and_the_rest_is_used(tmp_path):
    job = Played({WORLD: (0, 1, 2, 3, 4)}, [STEP[: 2 if rank == 1 else 4] for rank in range(5)])
    job.write(tmp_path)
    whole = (tmp_path / "nccl_trace_rank_3").read_bytes()
    (tmp_path / "nccl_trace_rank_2").write_bytes(b"")
    (tmp_path / "nccl_trace_rank_3").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "nccl_trace_rank_4").write_bytes(pickle.dumps({"version": "2.10", "entries": [{"record_id": 0}]}))
    (tmp_path / "notes.txt").write_text("the job hung")
    said = explain(tmp_path)
    assert said.startswith("There are dumps of 2 of 5 ranks.\nRank 1 holds up")
    assert "nccl_trace_rank_2 is empty: its process was ended before it wrote anything." in said
    assert "nccl_trace_rank_3 is cut short: its process was ended while it wrote." in said
    assert "nccl_trace_rank_4 is not a complete dump: " in said
    assert "There is no dump of ranks 2, 3 and 4." in said
    assert "Nothing is recognized in notes.txt." in said


def test_dumps_of_other_runs_and_of_the_same_rank_are_told_apart(tmp_path):
    job = Played({WORLD: (0, 1)}, [STEP, STEP[:2]])
    job.write(tmp_path)
    old = job.dump(1)
    for e in old["entries"]:
        e["time_created_ns"] -= 10**15
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / "rank_1").write_bytes(pickle.dumps(old))
    said = explain(tmp_path)
    assert said.startswith("Rank 1 holds up the other rank")
    assert "are both of rank 1: the second has the newer calls and is used." in said
    data = job.dump(0)
    for e in data["entries"]:
        e["time_created_ns"] += 10**15
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(data))
    assert "hours before the newest of the others. It is taken to be of another run, and left out." in explain(tmp_path)


def test_dumps_of_two_attempts_are_two_runs(tmp_path):
    """A rank's numbers have begun again, an hour later: no culprit of the one is a culprit of the other."""
    for attempt, (calls, late) in enumerate(((9, 1), (5, 0))):
        played = Played({WORLD: (0, 1)}, [[Do("all_reduce", WORLD, line=n) for n in range(calls - (r == late))] for r in (0, 1)])
        (tmp_path / f"attempt{attempt}").mkdir()
        for rank in (0, 1):
            data = played.dump(rank)
            for e in data["entries"]:
                e["time_created_ns"] += attempt * 3600 * 10**9
            (tmp_path / f"attempt{attempt}" / f"rank_{rank}").write_bytes(pickle.dumps(data))
    first, second = explain(tmp_path).split("--- Run ")[1:]
    assert first.startswith("1 ---\n\nRank 1 holds up the other rank: it has not made all_reduce #9.") and "#5" not in first
    assert second.startswith("2 ---\n\nRank 0 holds up the other rank: it has not made all_reduce #5.") and "#9" not in second


def test_a_record_of_watch_is_told_with_its_verdict(tmp_path):
    for name, verdict in (("hung", "Stuck: ranks 0 and 1 wait."), ("well", None)):
        writer = Writer(str(tmp_path / name), 2, ["train.py"], 2000, lambda: (), 0.0)
        writer.arrived(0, "here", 1)
        if verdict:
            writer.verdict(verdict)
        writer.close()
    hung, well = explain(tmp_path / "hung"), explain(tmp_path / "well" / "about.json")
    assert "hung is a record of collectives.watch.\nStuck: ranks 0 and 1 wait.\n" in hung
    assert "Nothing was found wrong" in well and f'collectives.jobs.load("{tmp_path / "well"}")' in well
    assert hung in explain(tmp_path) and well in explain(tmp_path)  # with whatever else is there


def test_a_reader_that_ends_first_is_no_error(tmp_path):
    Played({WORLD: (0, 1)}, [STEP, STEP[:2]]).write(tmp_path)
    command = f"set -o pipefail; {sys.executable} -m collectives explain {tmp_path} | true"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["collectives explain", "collectives.explain"])
def test_a_path_that_is_not_there(name):
    command = [sys.executable, "-m", *name.split(), "no/such"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == "there is no no/such.\n"


# --- as a Run -----------------------------------------------------------------------------


def test_dumps_become_a_run(tmp_path):
    from collectives.explain import load
    from collectives.machines import rails

    job = Played(dumps.mesh(2, 1, 2), dumps.training(2, 1, 2, steps=1))
    job.write(tmp_path, timing=True)
    run = load(tmp_path)
    assert run.world_size == 4 and run.verdict.startswith("No rank lacks a call")
    assert {e.op for each in run.events for e in each} == {
        "all_reduce",
        "send",
        "recv",
        "reduce_scatter_single",
        "all_gather_single",
    }
    assert run.traffic.ops["send"] == 4 and run.traffic.messages == [1, 1, 1, 1]
    assert all(call.is_complete for call in run.calls)
    assert "all_reduce" in repr(run.bill(rails(4), grid={"pp": 2, "dp": 1, "tp": 2}))
    assert "float32 [4, 16]" in run.table(0)
    assert json.loads(run.timeline().save(tmp_path / "trace.json").read_text())["traceEvents"]


def test_sixty_four_ranks_take_about_a_second(tmp_path):
    """Of 500 calls each, by CPU time; it is a quarter of that on two idle cores."""
    programs = dumps.training(2, 4, 8, steps=24, layers=8)
    programs[21] = programs[21][:-9] + [STOP]
    Played(dumps.mesh(2, 4, 8), programs).write(tmp_path)
    begin = time.process_time()
    found = evidence.gather([tmp_path])
    job = DumpedJob({each.rank: each for each in found.dumps})
    assert cause_of(job).ranks == (21,)
    assert time.process_time() - begin < 1.0


WITHOUT_TORCH = """
import sys

for name in ("torch", "numpy", "matplotlib", "cloudpickle", "IPython"):
    sys.modules[name] = None
from collectives.watch.explain.command import explain

print(explain(*sys.argv[1:]))
"""


def test_explaining_needs_nothing_but_python(tmp_path):
    """As on the website, whose Python has no torch."""
    programs = [[Do("all_reduce", WORLD, dtype=dtype)] for dtype in ("Float", "Half")]
    Played({WORLD: range(2)}, programs).write(tmp_path)
    log = ROOT / "tests" / "corpus" / "nccl" / "absent.log"
    for path, part in ((tmp_path, "rank 1 passes float16"), (log, "Rank 1 holds up the other rank")):
        command = [sys.executable, "-c", WITHOUT_TORCH, path]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert part in done.stdout and done.stdout.strip() == explain(path), done.stderr


@pytest.mark.parametrize("missing, sentence", [
    ((), "Ranks 1 and 6 hold up the other 14: rank 1 has not made all_reduce #5 of group mesh_tp (0-3); rank 6 has not made all_reduce #5 of group mesh_tp (4-7)."),
    ((6,), "\nBesides, nothing is known of rank 6, and ranks 4, 5 and 7 are waiting in all_reduce #5 of group mesh_tp (4-7) for it.\n"),
])  # fmt: skip
def test_two_faults_at_once_with_the_group_that_each_holds_up(missing, sentence, tmp_path):
    """The next call of both is their layer's, whatever the ranks at other places of a group of all did meanwhile."""
    programs = dumps.training(2, 2, 4)
    for rank in (1, 6):
        programs[rank][9:] = [STOP]
    Played(dumps.mesh(2, 2, 4), programs).write(tmp_path, missing)
    assert sentence in explain(tmp_path)


@pytest.mark.parametrize(
    ("shape", "most"),
    [
        pytest.param((2, 4, 8), 96 << 20, id="64", marks=pytest.mark.slow),
        pytest.param((4, 4, 64), 1 << 30, id="1024", marks=pytest.mark.nightly),
    ],
)
def test_full_rings_of_all_ranks_fit_in_memory(shape, most, tmp_path):
    """Of 2,000 calls each, as torch keeps by default."""
    bench.write(tmp_path, shape)
    usage = bench.explained(tmp_path, most)
    assert usage.verdict.startswith(f"Rank {bench.CULPRIT} holds up "), usage
    shutil.rmtree(tmp_path)  # hundreds of megabytes
