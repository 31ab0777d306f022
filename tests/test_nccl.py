"""Jobs on NCCL, by a backend that has its ways (nccl_like/backend.cpp): what is told of calls that a stream carries out."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from functools import partial

import nbformat
import pytest
import torch
import torch.distributed as dist

from collectives import RankFailed, Stuck, run
from collectives.cost import bill
from collectives.jobs import load
from collectives.judge import diagnose
from collectives.judge.monitor import Monitor
from collectives.log.calls import pair
from collectives.log.event import Event
from collectives.log.messages import Called, Issued
from collectives.machines import machine
from collectives.outcome.run import Run
from collectives.play import timeline
from collectives.remote.export import export
from tests import ROOT
from tests.nccl_like import programs
from tests.nccl_like.build import COMPILER, build
from tests.sampling import one_in


@pytest.fixture(scope="session")
def backend():
    """The backend, built."""
    if not shutil.which(COMPILER):
        pytest.skip(f"there is no compiler {COMPILER} to build a backend with")
    return build()


@pytest.fixture
def job(backend, tmp_path):
    """Runs a function of nccl_like/job.py as a job under the recorder. Returns exit code, output, and its record."""

    def run_job(name, *options, ranks=2, limit=60.0):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
        command += ["-m", "collectives.watch", "--record", tmp_path / "r", *options]
        command += [ROOT / "tests" / "nccl_like" / "job.py", name, limit]
        environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(list(map(str, command)), cwd=tmp_path, env=environ, text=True, timeout=240, **pipes)
        return done.returncode, done.stdout, load(tmp_path / "r")

    return run_job


# --- what is told -------------------------------------------------------------------------


@pytest.mark.slow
def test_calls_are_told_as_issued_and_as_complete_once_something_shows_it(job):
    code, said, record = job("ways")
    assert code == 0 and record.verdict == "", said
    assert Counter(e.op for e in record.events[1]) == {
        "all_reduce": 3, "all_gather_single": 1, "broadcast": 1, "reduce_scatter_single": 1, "gather": 1, "scatter": 1,
        "send": 1, "recv": 1, "all_reduce_coalesced": 1, "barrier": 1,
    }  # fmt: skip
    for e in record.events[0] + record.events[1]:
        assert e.backend == "nccl" and e.waited and e.end is not None  # the barrier waited for the device
        assert e.issued is None or e.start <= e.issued <= e.end
    assert all(call.is_complete for call in record.calls)
    assert "not waited for" not in record.table() and "never" not in record.table()
    synchronous = [e for e in record.events[0] if not e.async_op and e.op != "barrier"]
    assert len(synchronous) == 6 and all(e.issued is not None for e in synchronous)


@one_in(0, 2)
def test_nothing_is_told_as_complete_before_it_is_and_nobody_waits_for_it(job):
    code, said, record = job("held")
    assert code == 0, said  # the script itself asserts that the device had done nothing when wait() returned
    for mine in record.events:
        barrier, one, other = mine
        assert barrier.issued is None and one.issued < one.end and other.issued < other.end
        assert other.issued < one.end  # one was not complete when both had been issued


@one_in(1, 2)
def test_a_work_passes_on_whatever_it_is_asked(job):
    code, said, record = job("handles")
    assert code == 0 and [e.op for e in record.events[0]] == ["all_reduce", "barrier"], said


@one_in(0, 2)
def test_a_call_that_connects_its_group_holds_up_no_other_group(job):
    code, said, record = job("threads")
    assert code == 0 and len({e.group_name for e in record.events[0]}) == 2, said


@one_in(1, 2)
def test_gradients_of_ddp_are_issued_though_its_futures_are_done_at_once(job):
    code, said, record = job("ddp", "--values")
    assert code == 0 and "Warning: tensors on a device are recorded by shape and dtype alone" in said
    gradients = [e for e in record.events[0] if e.op == "all_reduce"]
    assert len(gradients) == 3 and all(e.waited and e.issued is not None for e in gradients)
    assert not any(isinstance(e.after, torch.Tensor) for mine in record.events for e in mine)


@one_in(0, 2)
def test_of_numbers_that_are_none_the_first_is_told_when_its_call_is_through(job):
    code, said, record = job("not_a_number", "--nan")
    assert code == 0, said
    told = re.search(r"rank 1 passes a NaN or an infinity to all_reduce #2, the first: not_a_number, line \d+", said)
    assert told and said.count("a NaN or") == 1, said
    assert [e.non_finite for e in record.events[0]] == [False, False, True, False]
    assert all(e.backend == "nccl" for e in record.events[1]) and record.events[1][-1].end is not None


@one_in(1, 2)
def test_a_nan_is_told_where_a_wait_finds_its_call_through(job):
    code, said, record = job("not_a_number_waited_for", "--nan")
    assert code == 0, said
    assert [e.non_finite for mine in record.events for e in mine if e.op == "all_reduce"] == [False, True]


@one_in(0, 2)
def test_a_call_from_a_thread_without_python_has_the_line_of_the_main_thread(job):
    code, said, record = job("in_thread")
    assert code == 0, said
    first = record.events[0][0]
    assert (first.op, first.waited, first.line.function) == ("all_reduce", True, "in_thread")


@one_in(1, 2)
def test_what_goes_into_a_graph_is_told_apart(job):
    code, said, record = job("graph", "--values")  # a look at an event in a capture would be an error
    assert code == 0, said
    assert [e.captured for e in record.events[0]] == [False, False, True, True, False]
    captured = record.events[0][2]
    assert captured.end is None and captured.issued is not None and captured.waited
    assert all(e.end is not None for e in record.events[0] if not e.captured)
    assert "4 of them went into CUDA graphs: they are counted once, and no replay is seen." in repr(record.totals)
    assert "(captured)" in record.table(2) and "never" not in record.table()


def test_table_timeline_and_bill_say_issued_where_that_is_all_that_is_known():
    def call(rank, index, **about):
        made = Event(rank, index, "all_reduce", (0, 1), dtype=torch.float32, shape=(4,), nbytes=16, backend="nccl")
        vars(made).update(start=float(index), issued=index + 0.25 + rank / 8, waited=True, after=torch.ones(4), **about)
        return made

    events = [[call(rank, 0), call(rank, 1, end=1.5), call(rank, 2, captured=True)] for rank in range(2)]
    done = Run(world_size=2, events=events)
    first, second, third = (done.table(k) for k in range(3))
    assert first.count("(issued)") == 2 and third.count("(captured)") == 2
    assert "1 1 1 1" in second and "(" not in second
    times = timeline(done)
    assert [span.end for span in times.spans if span.event.rank == 0] == [0.25, 1.25, 2.25]
    assert all(span.waits == 0 for span in times.spans)  # the stream waits, and not the rank
    assert times.text.count("(issued)") == 6 and "never" not in times.text
    paid = bill(done, machine("DGX H100", 2))
    assert (paid.issued, paid.captured) == (1, 1)
    assert "1 of them were issued: whether they ended is not known" in repr(paid)
    assert "1 of them are in CUDA graphs: priced once, and no replay" in repr(paid)


# --- the judge ----------------------------------------------------------------------------


@one_in(0, 2)
def test_tensors_of_different_sizes_are_right_where_the_backend_takes_them(job):
    code, said, record = job("uneven", ranks=3)
    assert code == 0 and record.verdict == "", said


def parts(op, backend, **of):
    """The call of two ranks; of: a field's values on them."""
    made = [Event(rank, 0, op, (0, 1), backend=backend, dtype=torch.float32, nbytes=4) for rank in range(2)]
    for name, values in of.items():
        for e, value in zip(made, values):
            setattr(e, name, value)
    (call,) = pair([[e] for e in made])
    return call


@pytest.mark.parametrize(
    "op, nccl, on_gloo, unknown",
    [("all_gather", None, "shape", None), ("reduce_scatter", None, "shape", None), ("gather", "shape", "shape", None),
     ("all_reduce", "shape", "shape", "shape")],
)  # fmt: skip
def test_a_mismatch_is_what_its_backend_refuses_or_gets_wrong(op, nccl, on_gloo, unknown):
    shapes = [(1,), (2,)]
    assert diagnose.mismatch(parts(op, "nccl", shape=shapes)) == nccl
    assert diagnose.mismatch(parts(op, "gloo", shape=shapes)) == on_gloo
    assert diagnose.mismatch(parts(op, None, shape=shapes)) == unknown
    assert diagnose.mismatch(parts(op, "ncclx", shape=shapes)) == unknown


def test_on_nccl_everybody_needs_everybody():
    call = parts("broadcast", "nccl", src=[0, 0])
    call.events.pop()
    assert diagnose.needs(call.events[0], call) == {1}


@pytest.mark.parametrize("backend", [None, "ncclx"])
def test_a_backend_with_unknown_ways_accuses_nobody(backend):
    """A rank needs only the ranks whose data it gets; no view is wrong, and no message is lost."""
    root, other = parts("broadcast", backend, src=[0, 0]), parts("reduce", backend, dst=[0, 0])
    for call in (root, other):
        call.events.pop()
    assert diagnose.needs(root.events[0], root) == set() and diagnose.needs(other.events[0], other) == {1}
    leaf = parts("broadcast", backend, src=[0, 0])
    del leaf.events[0]
    assert diagnose.needs(leaf.events[0], leaf) == {0}
    assert diagnose.mismatch(parts("all_reduce", backend, non_dense=[("in",), ("in",)])) is None
    assert diagnose.mismatch(parts("all_reduce", backend, strides=[(1, 2), None])) is None
    assert not diagnose.may_be_lost(Event(0, 0, "send", (0, 1), dst=1, abandoned=True, backend=backend))


@pytest.mark.parametrize("backend, pairs", [("nccl", True), ("gloo", False), (None, False), ("ncclx", False)])
def test_a_message_pairs_by_its_tag_unless_its_backend_ignores_tags(backend, pairs):
    """On NCCL the first recv gets the first message, whatever their tags are."""
    send = Event(0, 0, "send", (0, 1), dst=1, tag=1, backend=backend, start=0.0)
    recv = Event(1, 0, "recv", (0, 1), src=0, tag=2, backend=backend, start=0.5)
    assert [call.is_complete for call in pair([[send], [recv]])] == ([True] if pairs else [False, False])
    monitor = Monitor(2)
    for e in (send, recv):
        monitor.feed(e.rank, Called(e))
        monitor.feed(e.rank, Issued(0, None, 1.0))
    standstill = monitor.standstill(4.0)
    kinds = {cause.kind for cause in standstill.causes}
    assert kinds == ({"joined"} if pairs else {"cycle"}), standstill.causes


@pytest.mark.slow
def test_a_hang_in_which_nobody_lacks_a_call_is_told(job):
    code, said, record = job("stuck", "--patience", "3", limit=15)
    assert code == 1
    first = record.verdict.split("RankFailed")[0]
    assert "Standstill: no rank has started or finished a call for 3 s." in first
    assert (
        "No rank lacks a call: every call that has not ended was made by all its ranks. In flight: all_reduce #2 on ranks"
        in first
    )
    assert "a link, a card or a kernel" in first and "device.synchronize()" in first
    assert record.events[1][1].end is None and record.events[1][1].issued is not None


@one_in(1, 2)
def test_what_is_complete_is_found_to_be_before_anybody_is_told_of_a_hang(job):
    code, said, record = job("idle", "--patience", "5")  # longer than ranks that start beside other work are apart
    assert code == 0 and record.verdict == "", said
    assert all(len(mine) == 3 and all(e.end is not None for e in mine) for mine in record.events)


@pytest.mark.nightly
def test_the_rank_that_the_watchdog_ends_is_not_accused(job):
    code, said, record = job("absent", "--patience", "3", ranks=3, limit=10)
    assert code == 1 and "Watchdog caught" in said
    lacks = "all_reduce #2 of ranks 0 and 2 lacks rank 1."
    holds = "Rank 1 holds up the other 2: it has not made all_reduce #2.\n"
    standstill, end = record.verdict.split("RankFailed: ")
    assert holds in standstill and lacks in standstill
    assert re.match(
        r"when rank [02] ended, no rank had started or finished a call for \d+ s.\n" + re.escape(holds + lacks), end
    )
    assert re.search(r"That rank [02] ended is most likely a consequence, of a watchdog or a time limit:", end)


# --- run() --------------------------------------------------------------------------------


@pytest.mark.slow
def test_run_takes_a_backend_waits_for_its_calls_and_shows_their_values(backend):
    from tests.nccl_like import functions

    done = run(functions.total, world_size=3, backend="nccl_like")
    assert [(name, x.tolist()) for name, x in done.results] == [("nccl_like", [9.0, 9.0])] * 3
    assert [e.after.tolist() for e in done.events[1]] == [[3.0, 3.0], [9.0, 9.0]]
    assert all(e.issued is None and e.waited for mine in done.events for e in mine)
    with pytest.raises(Stuck, match="ranks 1 and 2 are waiting in all_reduce #1; rank 0 returned before any call"):
        run(functions.deadlock, world_size=3, backend="nccl_like")


def unwrapped(note):
    return " ".join(note.split())


@pytest.mark.parametrize("name, size", programs.HANG.items())
def test_a_run_that_would_hang_on_nccl_has_a_note(name, size):
    """The rule's words, and every rank that would wait."""
    note = run(getattr(programs, name), world_size=size).on("nccl")
    rules = {
        "ring": "A group's first call on NCCL", "crossed_groups": "A group's first call on NCCL",
        "half_a_batch": "matched only by another batch", "batch_without_all": "A group's first call on NCCL",
        "send_across_a_barrier": "A group's first call on NCCL",
    }  # fmt: skip
    assert note.startswith("Fine here; on NCCL it would hang.\n") and rules.get(
        name, "one after the other"
    ) in unwrapped(note)
    waiting = range(2 if name == "batch_without_all" else size)
    assert all(re.search(rf"^  ranks? .*\b{rank}\b.* would wait in", note, re.M) for rank in waiting), note


@pytest.mark.parametrize("name, size", programs.RIGHT.items())
def test_a_run_that_would_be_right_on_nccl_has_none(name, size):
    note = run(getattr(programs, name), world_size=size).on("nccl")
    if name == "tags":
        assert unwrapped(note).startswith(
            "NCCL ignores tags: recv #1 from 0 on rank 1 (tag 2) would get the message of send #1 to 1 on rank 0 (tag 1)."
        )
    else:
        assert note == "By NCCL's rules, too, every call of this run ends."


@pytest.mark.parametrize(
    "name, size", [pytest.param(*of, marks=one_in(k, 4)) for k, of in enumerate(programs.HANG.items())]
)
def test_a_program_hangs_as_its_note_has_it(backend, name, size):
    from tests.nccl_like import functions

    with pytest.raises(Stuck):
        run(partial(functions.play, name), world_size=size, backend="nccl_like", timeout=8)


@pytest.mark.parametrize(
    "name, size", [pytest.param(*of, marks=one_in(k)) for k, of in enumerate(programs.RIGHT.items())]
)
def test_a_program_without_a_note_ends(backend, name, size):
    from tests.nccl_like import functions

    done = run(partial(functions.play, name), world_size=size, backend="nccl_like", timeout=60)
    if name == "tags":  # NCCL has none
        assert [x.tolist() for x in done.results[1]] == [[2.0], [1.0]]


def test_two_groups_in_two_orders_may_hang_even_if_they_are_connected():
    def program():
        groups = [dist.new_group(), dist.new_group()]
        for group in groups:
            dist.all_reduce(torch.ones(2), group=group)
        programs.wait(*(dist.barrier(group, async_op=True) for group in groups[:: 1 - 2 * dist.get_rank()]))

    note = run(program, world_size=2).on("nccl")
    assert note.startswith("Fine here; on NCCL it may hang.\nRanks 0 and 1 hold up each other:")
    assert "NCCL asks every rank to issue the calls of different groups in one order" in unwrapped(note)


def test_a_note_does_not_depend_on_who_came_first():
    done = run(programs.swap, world_size=2)
    notes = set()
    for late in (0, 1):
        for rank, events in enumerate(done.events):
            for k, event in enumerate(events):
                event.start = k + 0.5 * (rank == late)
        notes.add(done.on("nccl"))
    assert len(notes) == 1


def test_only_nccl_and_whole_runs_are_judged():
    done = run(programs.swap, world_size=2)
    with pytest.raises(ValueError, match="only the rules of \"nccl\" are known here, not those of 'mpi'"):
        done.on("mpi")
    done.events[1].pop()
    with pytest.raises(ValueError, match="this run lacks calls"):
        done.on("nccl")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a device here")
def test_a_device_that_is_not_there_is_said():
    with pytest.raises(
        RankFailed, match="could not start: RuntimeError: there is no cuda here: torch finds the CPU alone"
    ):
        run(print, world_size=2, device="cuda")


def test_an_exported_notebook_names_backend_and_device(tmp_path):
    notebook = tmp_path / "n.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")]), notebook)
    assert 'begin(pictures="n-pictures")\n' in export(notebook)
    program = export(notebook, "nccl", "cuda")
    assert "begin(pictures=\"n-pictures\", backend='nccl', device='cuda')\n" in program
