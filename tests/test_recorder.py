"""What the recorder sees and how it names it: calls of DTensor, threads, C++ and hooks; and what it leaves alone."""

from __future__ import annotations

import copy
import functools
import gc
import importlib.util
import inspect
import os
import pickle
import re
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from operator import methodcaller

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup, Work
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from collectives.draw.panels import draw_calls
from collectives.judge import diagnose
from collectives.launch import pickling
from collectives.log.calls import pair
from collectives.log.event import as_list
from collectives.log.traffic import count
from collectives.rank.callsites import Callsites
from collectives.rank.early_use import ALWAYS, SELDOM
from collectives.rank.finite import all_finite
from collectives.rank.operators import MADE_OF_OPS, OPS, _reduction, read
from collectives.rank.tensors import LARGE, aliased, capture, outline, summarise
from collectives.rank.torch_private import HasSource
from collectives.rank.traced import TracedWork
from collectives.rank.tracer import MAX_OPEN, Tracer
from helpers import Mismatch, Stuck, Summary, run
from tests import ROOT

# Operators that communicate nothing by themselves. wait_tensor waits for a Work, and that tells of it; wait_tensors,
# of torch 2.15, for several. Two are there once torch._dynamo is imported.
NO_CALLS = {
    "_c10d_functional": {"wait_tensor", "wait_tensors", "_wrap_tensor_autograd"},
    "c10d": {"check_for_nan"},
    "_dtensor": {"mesh_get_process_group"},
}


def told(done, rank=0):
    """(op, function that the learner called, source line) of a rank's events."""
    return [(e.op, e.within, e.line.text) for e in done.events[rank]]


# --- which operators ----------------------------------------------------------------------


@pytest.mark.parametrize("namespace", ["c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"])
def test_every_operator_of_torch_is_recorded_or_known_to_communicate_nothing(namespace):
    registered = {name.removeprefix(f"{namespace}::") for name in torch._C._dispatch_get_all_op_names()
                  if name.startswith(f"{namespace}::")}  # fmt: skip
    recorded = set(OPS) if namespace == "c10d" else MADE_OF_OPS[namespace]
    assert registered - recorded <= NO_CALLS.get(namespace, set())
    assert recorded - registered <= {"gather_into_tensor_"}  # comes with torch 2.14


RANKS = (2, 5, 7)  # a group whose global ranks are not its places
ONE, ROW = torch.ones(2), torch.ones(6)
THREE = [torch.ones(2) for _ in RANKS]


class Max:
    """As the dispatcher passes a ReduceOp: an object of TorchScript."""

    def op(self):
        return int(dist.ReduceOp.RedOpType.MAX)


@pytest.mark.parametrize(
    "operator, given, fields, inputs, outputs",
    [
        ("allreduce_", dict(tensors=[ONE], reduce_op=Max()), dict(op="all_reduce", reduce_op="MAX", nbytes=8), ONE, ONE),
        ("allreduce_coalesced_", dict(tensors=THREE), dict(op="all_reduce_coalesced", nbytes=24), THREE, THREE),
        ("broadcast_", dict(tensors=[ONE], root_rank=1), dict(op="broadcast", src=5, dst=None), ONE, ONE),
        ("broadcast_", dict(tensors=[ONE], root_rank=9), dict(src=9), ONE, ONE),  # no such place: told as it was passed
        ("reduce_", dict(tensors=[ONE], root_rank=0, reduce_op=Max()), dict(op="reduce", src=None, dst=2), ONE, ONE),
        ("scatter_", dict(input_tensors=[], output_tensors=[ONE], root_rank=0), dict(op="scatter", src=2), None, ONE),
        ("scatter_", dict(input_tensors=[THREE], output_tensors=[ONE], root_rank=1), dict(nbytes=24), THREE, ONE),
        ("gather_", dict(input_tensors=[ONE], output_tensors=[], root_rank=0), dict(op="gather", dst=2), ONE, None),
        ("gather_", dict(input_tensors=[ONE], output_tensors=[THREE], root_rank=1), dict(dst=5, nbytes=8), ONE, THREE),
        ("gather_into_tensor_", dict(input_tensor=ONE, output_tensor=ROW[:0], root_rank=0, async_op=True),
         dict(op="gather_single", dst=2, nbytes=8, async_op=True), ONE, None),
        ("gather_into_tensor_", dict(input_tensor=ONE, output_tensor=ROW, root_rank=1), dict(dst=5), ONE, ROW),
        ("allgather_", dict(input_tensors=[ONE], output_tensors=[THREE]), dict(op="all_gather"), ONE, THREE),
        ("allgather_into_tensor_coalesced_", dict(inputs=[ONE], outputs=[ROW]), dict(op="all_gather_single"), ONE, ROW),
        ("allgather_into_tensor_coalesced_", dict(inputs=THREE, outputs=[ROW] * 3),
         dict(op="all_gather_coalesced", misuse="aliased"), THREE, [ROW] * 3),
        ("alltoall_base_", dict(input=ROW, output=ROW[1:], input_split_sizes=[1, 2, 3], output_split_sizes=[0, 1, 4]),
         dict(op="all_to_all_single", splits=((1, 2, 3), (0, 1, 4))), ROW, ROW[1:]),
        ("barrier", {}, dict(op="barrier", nbytes=0, dtype=None), None, None),
        ("send", dict(tensors=[ROW[::2]], dst=2, tag=3),
         dict(op="send", src=None, dst=7, tag=3, non_dense=("in", "out"), strides=(2,)), ROW[::2], ROW[::2]),
        ("recv_", dict(tensors=[ONE], src=0, tag=0), dict(op="recv", src=2, dst=None, tag=0), ONE, ONE),
        ("recv_any_source_", dict(tensors=[ONE], tag=4), dict(op="recv", src=None, tag=4), ONE, ONE),
    ],
)  # fmt: skip
def test_arguments_of_an_operator_are_read_without_a_process_group(operator, given, fields, inputs, outputs):
    def same(read, passed):  # the very tensors
        return [t.data_ptr() for t in as_list(read)] == [t.data_ptr() for t in as_list(passed)] and type(read) is type(
            passed
        )

    reading = read(operator, given, RANKS, rank=5)
    event = reading.event
    assert {name: getattr(event, name) for name in fields} == fields
    assert (event.rank, event.group) == (5, RANKS) and same(reading.inputs, inputs) and same(reading.outputs, outputs)


def test_gather_single_is_counted_drawn_and_judged_as_gather():
    """It comes with torch 2.14, and gloo refuses it: so its calls are read here, and not run."""

    def gathered(operator, wrap, source, target, full):
        events = []
        for rank in range(3):
            given = {source: wrap(ONE), target: full if rank == 1 else wrap(ROW[:0]), "root_rank": 1}
            event = read(operator, given, (0, 1, 2), rank).event
            event.before, event.after = ONE, (full[0] if isinstance(full, list) else full) if rank == 1 else None
            events.append([event])
        (call,) = pair(events)
        return count(events), call

    def same(tensor):
        return tensor

    listed, call = gathered("gather_", lambda t: [t], "input_tensors", "output_tensors", [THREE])
    single, other = gathered("gather_into_tensor_", same, "input_tensor", "output_tensor", ROW)
    listed.ops = single.ops
    assert single == listed and single.received == [0, 16, 0]
    assert draw_calls([[other]]).text.count("->") == draw_calls([[call]]).text.count("->")
    assert diagnose.mismatch(other) is None
    other.events[2].dst = 0
    assert diagnose.mismatch(other) == "root"


def functional(make):
    """The result of an operator of _c10d_functional, waited for."""
    out = make(torch.ops._c10d_functional, dist.group.WORLD.group_name)
    wait = torch.ops._c10d_functional.wait_tensor
    return [wait(t) for t in out] if isinstance(out, (list, tuple)) else wait(out)


@pytest.mark.parametrize(
    "make, kind, count",
    [
        (lambda ops, name: ops.all_reduce(torch.ones(2), "sum", name), "all_reduce", 1),
        (lambda ops, name: ops.all_reduce_(torch.ones(2), "sum", name), "all_reduce", 1),
        (lambda ops, name: ops.all_reduce_coalesced([torch.ones(2)] * 2, "sum", name), "all_reduce_coalesced", 1),
        (lambda ops, name: ops.broadcast(torch.ones(2), 0, name), "broadcast", 1),
        (lambda ops, name: ops.all_gather_into_tensor(torch.ones(2), 2, name), "all_gather_single", 1),
        (lambda ops, name: ops.all_gather_into_tensor_coalesced([torch.ones(2)] * 2, 2, name), "all_gather_coalesced", 1),
        (lambda ops, name: ops.reduce_scatter_tensor(torch.ones(2), "sum", 2, name), "reduce_scatter_single", 1),
        (
            lambda ops, name: ops.reduce_scatter_tensor_coalesced([torch.ones(2)] * 2, "sum", 2, name),
            "reduce_scatter_coalesced",
            1,
        ),
        (lambda ops, name: ops.all_to_all_single(torch.ones(2), [1, 1], [1, 1], name), "all_to_all_single", 1),
        (
            lambda ops, name: torch.ops._dtensor.shard_dim_alltoall(torch.ones(2, 2), 0, 1, name).clone(),
            "all_to_all_single",
            1,
        ),
    ],
)  # fmt: skip
def test_functional_operators_are_recorded_and_waited_for(make, kind, count):
    done = run(functional, make, world_size=2)
    for events in done.events:
        assert [(e.op, e.waited, e.within) for e in events] == [(kind, True, None)] * count


# --- DTensor, and the names of what was called --------------------------------------------


def mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def test_collectives_inside_dtensors_operators_are_recorded():
    def implicit():
        from torch.distributed.tensor import DTensor, Shard

        a = DTensor.from_local(torch.ones(2, 2), mesh(), [Shard(1)])
        b = DTensor.from_local(torch.ones(2, 2), mesh(), [Shard(0)])
        (a @ b).relu()
        rows = DTensor.from_local(torch.ones(1, 2), mesh(), [Shard(0)])
        rows @ rows

    done = run(implicit, world_size=2)
    assert told(done) == [
        ("all_reduce", "DTensor.relu", "(a @ b).relu()"),
        ("all_gather_single", "DTensor.mm", "rows @ rows"),
    ]
    assert done.events[0][0].after.tolist() == [[4, 4], [4, 4]]


def test_loss_parallel_is_recorded():
    def loss():
        from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

        head = parallelize_module(nn.Linear(4, 6, bias=False), mesh(), ColwiseParallel(use_local_output=False))
        with loss_parallel():
            nn.functional.cross_entropy(head(torch.ones(2, 4)), torch.tensor([0, 5])).backward()

    _, *events = run(loss, world_size=2).events[0]
    assert [(e.op, e.reduce_op, e.within, e.waited) for e in events] == [
        ("all_reduce", op, "cross_entropy", True) for op in ("MAX", "SUM", "SUM")
    ]


def test_clipping_under_fully_shard_is_recorded():
    def clip():
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(nn.Linear(4, 4, bias=False))
        model(torch.ones(1, 4)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    done = run(clip, world_size=2)
    assert told(done)[2:] == [("all_reduce", "clip_grad_norm_", "nn.utils.clip_grad_norm_(model.parameters(), 1.0)")]
    assert done.events[0][2].nbytes == 4


def test_sequence_parallel_waits_for_what_it_gathers_in_the_backward_pass():
    def step():
        from torch.distributed.tensor import Shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        model = parallelize_module(
            nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
            mesh(),
            {"0": ColwiseParallel(input_layouts=Shard(0)), "1": RowwiseParallel(output_layouts=Shard(0))},
        )
        x = torch.ones(2, 4, requires_grad=True)
        model(x).sum().backward()
        return x.grad + 0  # until it is used, nobody has waited for it

    events = run(step, world_size=2).events[0]
    backward = [e for e in events if e.within == "Tensor.backward"]
    assert sorted({e.op for e in backward}) == ["all_gather_single", "reduce_scatter_single"]
    assert all(e.waited and e.line.text.endswith(".backward()") for e in backward)


def test_the_line_is_the_learners_behind_wrappers_hooks_and_deprecated_names():
    def through():
        def twice(fn):
            @functools.wraps(fn)
            def both(*args):
                return fn(*args), fn(*args)

            return both

        x, out = torch.ones(2), torch.ones(4)
        functools.partial(twice(dist.all_reduce), x)()
        model = nn.Linear(2, 2)
        model.register_forward_hook(lambda *_: dist.barrier())
        model.weight.register_hook(lambda grad: dist.broadcast(grad, 0))
        y = model(x)
        y.sum().backward()
        dist.all_gather_into_tensor(out, x)  # typing_extensions.deprecated stands between

    assert told(run(through, world_size=2)) == [
        ("all_reduce", None, "return fn(*args), fn(*args)"),
        ("all_reduce", None, "return fn(*args), fn(*args)"),
        ("barrier", None, "model.register_forward_hook(lambda *_: dist.barrier())"),
        ("broadcast", None, "model.weight.register_hook(lambda grad: dist.broadcast(grad, 0))"),
        ("all_gather_single", None, "dist.all_gather_into_tensor(out, x)  # typing_extensions.deprecated stands between"),
    ]  # fmt: skip


def test_only_send_and_recv_wait_at_once():
    def talk():
        x, group = torch.ones(1), dist.group.WORLD
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.isend(x, 1).wait()
            group.send([x], 1, 0).wait()
        else:
            dist.recv(x, 0)
            dist.irecv(x, 0).wait()
            group.recv([x], 0, 0).wait()

    for events in run(talk, world_size=2).events:
        assert [e.async_op for e in events] == [False, True, True]


def test_calls_by_deprecated_names_in_different_orders_are_accused():
    def crossed():
        out = torch.ones(4)

        def first():
            dist.all_gather_into_tensor(out, torch.ones(2))

        def second():
            dist.all_gather_into_tensor(out, torch.zeros(2))

        for step in (first, second) if dist.get_rank() else (second, first):
            step()

    with pytest.raises(Mismatch, match="in different orders"):
        run(crossed, world_size=2)


def test_ranks_that_change_parts_are_not_accused():
    def root(x, source):
        dist.broadcast(x, src=source)
        dist.barrier()

    def others(x, source):
        dist.broadcast(x, src=source)
        dist.barrier()

    def leader():
        rank, n = dist.get_rank(), dist.get_world_size()
        for step in range(n):
            (root if rank == step else others)(torch.ones(1), step)
            if rank == step:
                dist.all_reduce(torch.ones(1))
            else:
                dist.all_reduce(torch.zeros(1))

    run(leader, world_size=3)


def test_compiled_programs_are_recorded():
    def compiled():
        from torch.distributed import _functional_collectives as functional

        whole = torch.compile(
            lambda x: functional.all_reduce(2 * x, "sum", dist.group.WORLD) + 1, backend="eager", fullgraph=True
        )
        model = torch.compile(DistributedDataParallel(nn.Linear(2, 2)), backend="eager")
        for _ in range(2):  # the second one synchronises inside its forward pass
            model(torch.ones(1, 2)).sum().backward()
        return whole(torch.ones(2)).tolist()

    done = run(compiled, world_size=2)
    assert done.results[0] == [5, 5] and done.stdout == ["", ""]
    assert [(e.op, e.line.function) for e in done.events[0][-2:]] == [
        ("all_reduce", "compiled"),
        ("all_reduce", "<lambda>"),
    ]


# --- threads ------------------------------------------------------------------------------


def test_calls_of_threads_are_recorded_with_their_lines():
    def work(x):
        dist.all_reduce(x)

    def many():
        x = torch.ones(2)
        thread = threading.Thread(target=work, args=(x,))
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(work, x).result()
            handed = pool.submit(dist.all_reduce, x)
            handed.result()
        threading.Timer(0, work, (x,)).start()  # nobody joins it: the rank does, as Python at its exit
        return threading.active_count()

    done = run(many, world_size=2)
    assert told(done) == [
        ("all_reduce", None, "dist.all_reduce(x)"),
        ("all_reduce", None, "dist.all_reduce(x)"),
        ("all_reduce", None, "handed = pool.submit(dist.all_reduce, x)"),
        ("all_reduce", None, "dist.all_reduce(x)"),
    ]
    assert all(e.waited for e in done.events[1])


def test_calls_that_a_communication_hook_makes_in_gloos_threads_are_recorded():
    def train():
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

        model = DistributedDataParallel(nn.Linear(32, 32, bias=False))
        state = power.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1)
        model.register_comm_hook(state, power.powerSGD_hook)
        for _ in range(6):
            model(torch.ones(1, 32)).sum().backward()

    # Two whole all_reduces, then three for each step: what stays as it is, P and Q.
    for events in run(train, world_size=2).events:
        made = [e for e in events if e.within == "Tensor.backward"]
        assert len(made) == 2 + 4 * 3 and all(e.line.text.endswith(".backward()") for e in made)


@pytest.mark.parametrize("daemon", [False, True])
def test_a_rank_with_threads_is_not_called_stuck_while_one_may_act(daemon):
    def receives_in_a_thread():
        box = torch.zeros(1)

        def later():
            time.sleep(0.5)  # meanwhile both ranks' main threads wait
            dist.recv(box, 1)

        if dist.get_rank() == 0:
            thread = threading.Thread(target=later, daemon=daemon)
            thread.start()
            dist.barrier()
            thread.join()
            return box.item()
        dist.send(torch.tensor([5.0]), 0)
        dist.barrier()

    assert run(receives_in_a_thread, world_size=2).results == [5.0, None]


def test_a_daemon_thread_may_act_after_its_rank_has_returned():
    def later():
        if dist.get_rank() == 0:
            go = threading.Event()
            threading.Thread(target=lambda: go.wait(1) or dist.send(torch.ones(1), 1), daemon=True).start()
        else:
            dist.recv(torch.zeros(1), 0)

    done = run(later, world_size=2)
    assert [e.op for e in done.events[0]] == ["send"]


def test_a_daemon_thread_that_waits_for_ever_holds_nobody_up():
    def left_behind():
        if dist.get_rank() == 0:
            threading.Thread(target=dist.recv, args=(torch.zeros(1), 1), daemon=True).start()
        time.sleep(0.3)
        return "done"

    assert run(left_behind, world_size=2).results == ["done", "done"]


def test_threads_that_all_wait_for_ever_are_called_stuck():
    def both():
        if dist.get_rank() == 0:
            threading.Thread(target=dist.recv, args=(torch.zeros(1), 1)).start()
            dist.barrier()

    with pytest.raises(Stuck, match="rank 0 is waiting in barrier.*This can never finish"):
        run(both, world_size=2, timeout=20)


def test_a_thread_that_outlives_the_function_and_waits_for_ever_is_called_stuck():
    def left_behind():
        if dist.get_rank() == 0:
            threading.Thread(target=dist.recv, args=(torch.zeros(1), 1)).start()

    with pytest.raises(Stuck, match="rank 0 is waiting in recv #1 from 1; rank 1 returned.*This can never finish") as caught:
        run(left_behind, world_size=2, timeout=20)
    assert "threading.Thread(target=dist.recv" in str(caught.value)


def test_a_librarys_thread_that_knows_no_torch_does_not_hide_a_hang(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"  # as tqdm's monitor
    folder.mkdir()
    (folder / "bars.py").write_text(
        "import threading\nclass Monitor(threading.Thread):\n    def run(self):\n        threading.Event().wait()\n"
    )
    monkeypatch.syspath_prepend(folder)

    def watched():
        import bars

        bars.Monitor(daemon=True).start()
        if dist.get_rank() == 0:
            dist.barrier()

    with pytest.raises(Stuck, match="This can never finish"):
        run(watched, world_size=2, timeout=20)


def test_an_idle_pool_does_not_hide_a_hang():
    def idle():
        pool = ThreadPoolExecutor(2)
        list(pool.map(abs, range(4)))
        if dist.get_rank() == 0:
            dist.barrier()

    with pytest.raises(Stuck, match="This can never finish"):
        run(idle, world_size=2, timeout=20)


# --- waits in C++ -------------------------------------------------------------------------


def test_join_that_divides_by_those_left_passes():
    def uneven():
        model = DistributedDataParallel(nn.Linear(2, 1))
        with model.join(divide_by_initial_world_size=False):
            for _ in range(1 + dist.get_rank()):
                model(torch.ones(1, 2)).sum().backward()
        return model.module.weight.grad.tolist()

    done = run(uneven, world_size=2)
    assert done.results[1] == run(uneven, world_size=2, record=False).results[1]


def test_uneven_inputs_without_join_are_called_stuck():
    def uneven():
        model = DistributedDataParallel(nn.Linear(2, 1))
        for _ in range(2 + dist.get_rank()):  # the second step still synchronises in its forward pass
            model(torch.ones(1, 2)).sum().backward()

    with pytest.raises(Stuck) as caught:
        run(uneven, world_size=2, timeout=30)
    verdict, *rows = str(caught.value).splitlines()
    assert verdict == "rank 1 is waiting in all_reduce #8; rank 0 returned after 7 calls. This can never finish."
    assert rows[1].endswith("model(torch.ones(1, 2)).sum().backward()") and caught.value.ranks == (1,)


@pytest.mark.slow
def test_a_slow_peer_is_waited_for_in_the_backward_pass():
    def slow():
        model = DistributedDataParallel(nn.Linear(2, 1))
        loss = model(torch.ones(1, 2)).sum()
        if dist.get_rank() == 0:
            time.sleep(2.0)  # longer than the other's wait takes to be noticed
        loss.backward()

    run(slow, world_size=2)


@pytest.mark.slow
def test_a_call_given_up_is_not_taken_for_what_a_rank_waits_for():
    """Rank 0 never finishes a call with rank 1, and does not care; it waits in C++ for rank 2, which is slow."""

    def abandon():
        rank = dist.get_rank()
        pair, others = dist.new_group([0, 1]), dist.new_group([0, 2])
        if rank == 1:
            return
        if rank == 0:
            dist.all_reduce(torch.ones(1), group=pair, async_op=True).get_future()
        loss = DistributedDataParallel(nn.Linear(2, 1), process_group=others)(torch.ones(1, 2)).sum()
        if rank == 2:
            time.sleep(2.0)
        loss.backward()
        return "done"

    assert run(abandon, world_size=3).results == ["done", None, "done"]


def test_a_hook_that_sleeps_is_not_a_wait():
    def sleepy():
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1), async_op=True).get_future()  # never completes: the other has returned
            x = torch.ones(1, requires_grad=True)
            x.register_hook(lambda grad: time.sleep(2.0))
            x.sum().backward()
            return "done"

    assert run(sleepy, world_size=2).results == ["done", None]


def test_a_wait_that_failed_is_over():
    def patient():
        group = dist.new_group(timeout=timedelta(seconds=0.3))  # its waits end by themselves
        if dist.get_rank() == 0:
            with pytest.raises(RuntimeError):
                dist.recv(torch.zeros(1), 1, group=group)
            return "gave up"

    assert run(patient, world_size=2).results == ["gave up", None]


def test_a_limit_that_is_set_later_counts_for_collectives_as_gloo_has_it():
    def impatient(receives):
        group = dist.new_group()
        dist.all_reduce(torch.ones(1), group=group)
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.3), group)
        if dist.get_rank() == 0:
            with nullcontext() if receives else pytest.raises(RuntimeError):
                dist.recv(torch.zeros(1), 1, group=group) if receives else dist.barrier(group=group)
            return "gave up"

    assert run(impatient, False, world_size=2).results == ["gave up", None]
    with pytest.raises(Stuck, match="rank 0 is waiting in recv #2.*This can never finish"):
        run(impatient, True, world_size=2, timeout=20)


def test_a_group_of_the_same_name_has_its_own_limit(tmp_path):
    def again():
        rank, n = dist.get_rank(), dist.get_world_size()
        for k, limit in enumerate((1.5, 3600)):
            dist.destroy_process_group()
            at = f"file://{tmp_path / str(k)}"
            dist.init_process_group("gloo", at, timedelta(seconds=limit), n, rank)
            if rank == 0:
                with pytest.raises(RuntimeError) if limit < 2 else nullcontext():
                    dist.recv(torch.zeros(1), 1)

    with pytest.raises(Stuck, match="rank 0 is waiting in recv #2.*This can never finish"):
        run(again, world_size=2, timeout=20)


def test_a_reduction_that_torch_does_not_tell_is_not_known():
    assert _reduction(object()) is None  # as torch 2.8's, whose operators get an object without attributes


def test_a_wait_takes_seconds_as_torchs_does():
    def waits():
        work = dist.all_reduce(torch.ones(1), async_op=True)
        with pytest.raises(TypeError, match="incompatible function arguments"):
            work.wait("long")
        return work.wait(20.0)

    assert run(waits, world_size=2).results == [True, True]


def test_what_stands_in_for_torchs_own_is_called_as_that_is():
    """Names, defaults and order of the parameters of every method of a Work, and of what else the recorder replaces."""

    def own(function):
        kinds = inspect.signature(function).parameters.values()
        return [(p.name, None if p.default is p.empty else repr(p.default)) for p in kinds][1:]

    def torchs(function):
        listed = re.search(r"\((.*)\) ->", function.__doc__.strip().splitlines()[0])[1]
        parts = [re.match(r"(\w+)(?:: [^=]+?)?(?: = (.*))?$", part) for part in listed.split(", ")]
        return [part.groups() for part in parts][1:]

    public = {name for name in vars(Work) if not name.startswith("_")} - {"boxed", "unbox"}  # how C++ passes it on
    names = sorted(public | {"_source_rank", "_get_op_type", "_get_duration"})
    assert "wait" in names and [n for n in names if all(n not in vars(kind) for kind in (TracedWork, HasSource))] == []
    start, end = Tracer(0, print, 0.0)._batching()
    methods = [name for name in names if not isinstance(vars(Work).get(name), property)]
    pairs = [(getattr(TracedWork, name), getattr(Work, name)) for name in methods]
    pairs += [(start, ProcessGroup._start_coalescing), (end, ProcessGroup._end_coalescing)]
    for mine, other in pairs:
        assert str(own(mine)).replace("datetime.", "") == str(torchs(other)).replace("datetime.", ""), other.__doc__


# --- calls like an earlier one ----------------------------------------------------------


def repeating(rank, emit):
    """A tracer that reads no values, with the fast path for repeated calls."""
    tracer = Tracer(rank, emit, 0.0, outline)
    tracer.callsites = Callsites(tracer)
    return tracer


@pytest.mark.slow
def test_a_call_like_an_earlier_one_is_told_as_one_that_is_read():
    def both():
        from collectives.log.messages import Again, Called, Completed, Misused

        me, peer = dist.get_rank(), 1 - dist.get_rank()

        def program():
            whole = torch.arange(8.0)
            for turn in range(ALWAYS + SELDOM + 1):
                group = dist.new_group() if turn % 4 == 0 else None  # a later one may lie in an earlier one's memory
                for tag, x in ((0, whole), (1, whole[2:6]), (1, whole.double()), (1, nn.Parameter(whole[:3]))):
                    got = torch.empty_like(x)
                    sends, gets = (
                        dist.P2POp(dist.isend, x, peer, group, tag),
                        dist.P2POp(dist.irecv, got, peer, group, tag),
                    )
                    for work in dist.batch_isend_irecv([sends, gets]):
                        if turn == 2 and tag == 0:
                            got.tolist()  # too early, but for the send's
                        work.wait()
                    assert torch.equal(got, x)
                for op, later in ((dist.ReduceOp.SUM, False), (dist.ReduceOp.MAX, False), (dist.ReduceOp.MAX, True)):
                    total = whole.clone()
                    work = dist.all_reduce(total, op, group, later)
                    if later:
                        work.wait()
                    assert torch.equal(total, whole * 2 if op == dist.ReduceOp.SUM else whole)
                for total in (torch.ones(2, 3), torch.ones(3, 2).t()):
                    dist.all_reduce(total, group=group)
                for part, later in ((whole[:4], False), (whole[:2], True)):
                    parts, mine = part.new_empty(2 * len(part)), torch.empty_like(part)
                    work = dist.all_gather_single(parts, part, group, later)
                    if later:
                        work.wait()
                    work = dist.reduce_scatter_single(mine, parts, dist.ReduceOp.MAX, group, later)
                    if later:
                        if turn == 3:
                            mine.tolist()  # too early
                        work.wait()
                    assert torch.equal(parts, part.repeat(2)) and torch.equal(mine, part)
                if group is not None:
                    dist.destroy_process_group(group)
                try:
                    dist.send(whole, 1, tag=3) if me == 0 else dist.recv(whole, 0, tag=3)
                    raise KeyError("the next is called while this is handled")
                except KeyError:
                    dist.send(whole, 0, tag=3) if me == 1 else dist.recv(whole, 1, tag=3)

        def told(repeats):
            messages = []
            tracer = Tracer(me, messages.append, 0.0, outline)
            tracer.callsites = Callsites(tracer) if repeats else None
            with tracer:
                program()
            events = [m.event for m in messages if type(m) in (Called, Again)]
            fields = [{k: v for k, v in vars(e).items() if k not in ("start", "group_name")} for e in events]
            names = [sum(e.group_name == name for e in events) for name in dict.fromkeys(e.group_name for e in events)]
            after = [(m.index, m.after, m.waited) for m in messages if type(m) is Completed]
            misused = [m for m in messages if type(m) is Misused]
            return fields, names, after, misused, sum(type(m) is Again for m in messages)

        quick, read = told(True), told(False)
        with pytest.raises(RuntimeError, match="gloo does not implement"):  # torch's own again, bound to its group
            dist.group.WORLD._start_coalescing(torch.device("cpu"))
        return quick[:4] == read[:4], len(quick[3]), len(quick[0]), quick[4], read[4]

    same, misused, calls, again, none = zip(*run(both, world_size=2, record=False).results)
    turns = ALWAYS + SELDOM + 1
    assert same == (True, True) and misused == (2, 2) and none == (0, 0) and calls == (19 * turns,) * 2
    firsts = 18 + 17 * len(range(0, turns, 4))  # of each place and group
    assert again == (18 * turns - firsts,) * 2  # nor those of a handler


def test_a_call_that_somebody_else_watches_goes_the_whole_way():
    def seen():
        from torch.utils._python_dispatch import TorchDispatchMode

        from collectives.log.messages import Again

        ops = []

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                ops.append(func.name())
                return func(*args, **(kwargs or {}))

        def swap():
            for _ in range(3):
                for work in [dist.irecv(torch.empty(3), peer), dist.isend(x, peer)]:
                    work.wait()

        def in_a_thread():
            thread = threading.Thread(target=swap)
            thread.start()
            thread.join()

        messages, counts, x, peer = [], [], torch.ones(3), 1 - dist.get_rank()
        with repeating(dist.get_rank(), messages.append):
            for where in (nullcontext(), nullcontext(), torch.profiler.profile(), Mode(), in_a_thread, nullcontext()):
                before = len(messages)
                if callable(where):
                    where()
                else:
                    with where as there:
                        swap()
                if hasattr(there, "events"):
                    ops += {e.name for e in there.events()} & {"c10d::send"}
                counts.append(sum(type(m) is Again for m in messages[before:]))
        return counts, ops.count("c10d::send")

    assert run(seen, world_size=2, record=False).results == [([4, 6, 0, 0, 0, 6], 4)] * 2


def test_calls_under_way_that_are_repeated_are_watched_for_what_the_program_does_alone():
    """gloo's threads fill what a call gets, and that is no use by the program."""

    def loops(reads_early):
        from collectives.log.messages import Again, Misused

        n, me = dist.get_world_size(), dist.get_rank()
        x, peer, messages = torch.ones(3), 1 - me, []
        with repeating(me, messages.append):
            for turn in range(40):
                own, whole, part, arriving = torch.ones(6), torch.empty(6), torch.empty(3), torch.empty(3)
                works = [
                    dist.all_reduce(own, async_op=True),
                    dist.all_gather_single(whole, x.clone(), async_op=True),
                    dist.all_gather_single(torch.empty(6), x.clone(), async_op=True),
                    dist.reduce_scatter_single(part, torch.ones(6), async_op=True),
                    dist.broadcast(torch.ones(3), 0, async_op=True),
                    dist.isend(x, peer),
                    dist.irecv(arriving, peer),
                ]
                both = dist.P2POp(dist.irecv, torch.empty(3), peer), dist.P2POp(dist.isend, x, peer)
                works += dist.batch_isend_irecv([*both])
                if reads_early and turn == 30:
                    whole.sum()
                for work in works:
                    work.wait()
                assert own.sum() == 6 * n and whole.sum() == 6 and part.sum() == 3 * n and arriving.sum() == 3
        again = sum(type(m) is Again for m in messages)
        return again > 100, [(m.how, m.index // 9) for m in messages if type(m) is Misused]

    assert run(loops, False, world_size=2, record=False).results == [(True, [])] * 2
    assert run(loops, True, world_size=2, record=False).results == [(True, [("read", 30)])] * 2


def test_a_call_that_failed_is_never_told_as_complete():
    """gloo's is_completed() is true of it, too."""

    def left_alone():
        from collectives.log.messages import Completed

        messages, me = [], dist.get_rank()
        tracer, complete = repeating(me, messages.append), []
        with tracer:
            dist.all_reduce(torch.ones(2))
            if me == 0:
                dist.destroy_process_group()
            else:
                works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(3)]
                future = works[0].get_future()
                for work in works[2:]:
                    with pytest.raises(RuntimeError):
                        work.wait()
                with pytest.raises(RuntimeError):
                    future.wait()
                while not works[1].is_completed():
                    time.sleep(0.001)
                complete = [work.complete for work in works]
                tracer.ask()
            tracer.finish()
        return complete, [m.index for m in messages if type(m) is Completed and m.end is not None]

    done = run(left_alone, world_size=2, record=False)
    assert done.results == [([], [0]), ([False] * 3, [0])]


# --- what the recorder keeps --------------------------------------------------------------


@pytest.mark.parametrize("values", [True, False])
def test_a_message_dies_with_its_handle_as_without_the_recorder(values):
    """Three are let go of before they are received; the fourth, which is kept, arrives."""

    def drops():
        from collectives.log.messages import Completed
        from collectives.rank.traced import TracedWork

        messages, me = [], dist.get_rank()
        store = dist.PrefixStore("drops", dist.distributed_c10d._get_default_store())
        tracer = Tracer(me, messages.append, 0.0) if values else repeating(me, messages.append)
        got = torch.zeros(1)
        with tracer:
            if me == 0:
                for k in range(3):
                    work = dist.isend(torch.ones(1), 1, tag=k)
                del work
                kept = dist.isend(torch.ones(1), 1, tag=3)
                works = sum(type(o) is TracedWork for o in gc.get_objects())
                store.set("sent", "")
                kept.wait()
            else:
                store.wait(["sent"])
                works = dist.recv(got, 0, tag=3)
            tracer.finish()
        return works, [(m.index, m.end is None) for m in messages if type(m) is Completed]

    sent, received = run(drops, world_size=2, record=False).results
    assert received == (0, [(0, False)])
    assert sent == (1, [(0, True), (1, True), (2, True), (3, False)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.float8_e5m2])
def test_a_sum_that_runs_over_is_no_infinity_but_a_cancelled_one_is(dtype):
    largest = torch.finfo(dtype).max
    assert all_finite([torch.full((1000,), largest).to(dtype), torch.zeros(0).to(dtype)], False)
    for bad in (float("nan"), float("inf")):
        assert not all_finite(torch.tensor([bad, 1.0, -bad]).to(dtype), False)


@pytest.mark.slow
def test_works_are_let_go():
    def many():
        from collectives.rank.tracer import TracedWork

        x = torch.ones(4)
        for _ in range(300):
            dist.all_reduce(x, async_op=True).wait()
        waited = sum(type(o) is TracedWork for o in gc.get_objects())
        for _ in range(MAX_OPEN + 300):
            dist.all_reduce(torch.ones(4), async_op=True)
        dist.barrier()
        dist.all_reduce(torch.ones(4), async_op=True)
        return waited, sum(type(o) is TracedWork for o in gc.get_objects())

    def late():
        works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(MAX_OPEN)]
        dist.barrier()
        dist.all_reduce(torch.ones(4), async_op=True).wait()
        works[0].wait()

    for waited, open_ones in run(many, world_size=2).results:
        assert waited < 10 and open_ones <= MAX_OPEN + 10
    first, second, *_ = run(late, world_size=2).events[0]
    assert first.waited and not second.waited and first.after.tolist() == second.after.tolist() == [2] * 4


def test_memory_of_an_input_that_gloo_let_go_is_not_another_tensors():
    def shards():
        works = []
        for rows in (128, 100, 64) * 5:
            grad = torch.empty(rows, 64).fill_(1.0)
            works.append(dist.reduce_scatter_single(torch.empty(rows // 2, 64), grad.clone(), async_op=True))
            del grad
        for work in works:
            work.wait()

    run(shards, world_size=2)


def test_tensors_used_too_early_are_noticed_in_a_hook_and_after_the_pass():
    def in_hook():
        x = torch.ones(2, requires_grad=True)

        def hook(p):
            work = dist.all_reduce(p.grad, async_op=True)
            p.grad.div_(2)
            work.wait()

        x.register_post_accumulate_grad_hook(hook)
        x.sum().backward()

    def after_the_pass():
        x = torch.ones(2, requires_grad=True)
        works = []
        x.register_post_accumulate_grad_hook(lambda p: works.append(dist.all_reduce(p.grad, async_op=True)))
        x.sum().backward()
        x.grad.div_(2)
        works[0].wait()

    def inside_a_dtensor():
        from torch.distributed.tensor import DTensor, Replicate

        x = torch.ones(2)
        stands_for_x = DTensor.from_local(x, mesh(), [Replicate()])
        work = dist.all_reduce(x, async_op=True)
        stands_for_x.div_(2)
        work.wait()

    for program in (in_hook, after_the_pass, inside_a_dtensor):
        with pytest.raises(Mismatch, match=r"write to the tensor of all_reduce #1 before waiting") as caught:
            run(program, world_size=2)
        assert ".div_(2)" in str(caught.value)


@pytest.mark.parametrize(
    "use, how",
    [
        (lambda x, y: torch.add(y, 1, out=x), "write to"),  # by name
        (lambda x, y: torch._foreach_mul_([y, x], 2), "write to"),  # in a list
        (lambda x, y: y.T.add_(x), "read"),  # second, and by a view
        (lambda x, y: torch.cat([y, x]), "read"),  # in a list
    ],
)
def test_a_tensor_is_noticed_in_every_place_of_an_operator(use, how):
    def early():
        x, y = torch.ones(2, 2), torch.ones(2, 2)
        work = dist.all_reduce(x, async_op=True)
        use(x, y)
        work.wait()

    with pytest.raises(Mismatch, match=f"ranks 0 and 1 {how} the tensor of all_reduce #1 before waiting"):
        run(early, world_size=2)


@pytest.mark.parametrize("use", [methodcaller("tolist"), repr, pickle.dumps, copy.deepcopy])
def test_reads_without_an_operator_before_the_wait_are_seen(use):
    def early():
        x = torch.ones(2)
        work = dist.all_reduce(x, async_op=True)
        use(x)
        work.wait()

    with pytest.raises(Mismatch, match="ranks 0 and 1 read the tensor of all_reduce #1 before waiting") as caught:
        run(early, world_size=2)
    assert "use(x)" in str(caught.value)


@pytest.mark.parametrize("receive", [dist.recv, lambda *args: dist.irecv(*args).wait()], ids=["recv", "irecv"])
def test_a_message_that_arrives_where_another_is_being_sent_from_is_noticed(receive):
    def around():
        rank, n = dist.get_rank(), dist.get_world_size()
        x, y = torch.full((1,), float(rank)), torch.empty(1)
        sending = dist.isend(x, (rank + 1) % n)
        receive(y if fits else x, (rank - 1) % n)
        sending.wait()
        return y.item() if fits else x.item()

    fits = True
    assert run(around, world_size=3).results == [2.0, 0.0, 1.0]
    fits = False
    with pytest.raises(Mismatch, match="writes? to the tensors? of send #1 before waiting for it"):
        run(around, world_size=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_the_recorder_itself_reads_is_no_early_use(dtype):
    def two_at_once():
        x = torch.ones(2 * LARGE, dtype=dtype)
        for work in [dist.all_reduce(x, async_op=True) for _ in range(2)]:
            work.wait()

    run(two_at_once, world_size=2)


@pytest.mark.slow
def test_a_place_that_makes_thousands_of_calls_is_looked_at_now_and_then():
    """Each operator beside a watched call takes three times as long; a mistake that goes on is found all the same."""

    def training(wrong_from, steps=1000):
        x, watched = torch.ones(2), 0
        for step in range(steps):
            work = dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True)
            watched += torch._C._len_torch_dispatch_stack()
            if step >= wrong_from:
                x.add_(1)
            work.wait()
        return watched

    assert max(run(training, 1000, world_size=2).results) <= ALWAYS + 1000 / SELDOM
    for wrong_from in (ALWAYS - 1, ALWAYS + 1):
        with pytest.raises(Mismatch, match="write to the tensor of all_reduce #") as caught:
            run(training, wrong_from, world_size=2)
        assert wrong_from < int(re.search(r"all_reduce #(\d+)", str(caught.value))[1]) <= wrong_from + SELDOM


@pytest.mark.parametrize("view", [methodcaller("numpy"), torch.from_dlpack])
def test_a_view_taken_before_the_wait_is_no_mistake_but_said(view):
    def early():
        x = torch.ones(2)
        work = dist.all_reduce(x, async_op=True)
        seen = view(x)
        work.wait()
        return seen.tolist()

    done = run(early, world_size=2)
    assert done.results == [[2.0, 2.0]] * 2
    line = done.events[0][0].viewed_at
    assert line.text == "seen = view(x)"
    assert repr(done).count(f"(a view taken before the wait, {line}: read only after it?)") == 2
    assert torch.Tensor.numpy is torch.Tensor.__base__.numpy  # nothing has changed here


def test_modes_of_the_program_are_left_as_they_are():
    def modes():
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as stack
        from torch.utils.flop_counter import FlopCounterMode

        x, y = torch.ones(2), torch.ones(2, 2)
        before = list(stack())
        work = dist.all_reduce(x, async_op=True)
        with FlopCounterMode(display=False) as counter:
            y @ y
            another = dist.all_reduce(y, async_op=True)
            most = len(stack())
            another.wait()
            work.wait()
            inside = dist.all_reduce(x, async_op=True)
            y @ y
        inside.wait()
        return counter.get_total_flops(), most, before + list(stack())

    assert run(modes, world_size=2).results == [(32, 2, []), (32, 2, [])]


@pytest.mark.parametrize(
    "make", [torch.rand_like, torch.randn_like, lambda x: x.new_ones(3), lambda x: x.new_full((2,), 1.0)]
)
def test_a_tensor_made_like_one_under_way_does_not_read_it(make):
    def like():
        x = torch.ones(2)
        work = dist.all_reduce(x, async_op=True)
        make(x)
        work.wait()

    run(like, world_size=2)


# --- tensors of all kinds -----------------------------------------------------------------


class Elsewhere(torch.Tensor):
    """As a tensor on a device: numpy refuses it, and each element that is copied to the CPU is counted."""

    copied = 0
    is_cpu = property(lambda self: False)

    def numpy(self):
        raise TypeError("can't convert a device tensor to numpy")

    def cpu(self):
        Elsewhere.copied += self.numel()
        return self.as_subclass(torch.Tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_a_summary_reads_a_tensor_where_it_lies(dtype):
    x = torch.arange(100_001).to(dtype)
    Elsewhere.copied = 0
    there = summarise(x.as_subclass(Elsewhere))
    assert there == summarise(x) and Elsewhere.copied < 0.1 * x.nbytes
    changed = x.clone()
    changed[50_000] = 0
    assert summarise(changed).checksum != there.checksum
    assert summarise(x[1:]).checksum == summarise(x[1:].clone()).checksum  # memory that int64 cannot be read from


def test_memory_that_was_recorded_can_be_given_back():
    def release():
        whole, mine = torch.zeros(4096), torch.ones(2048)
        dist.all_gather_single(whole, mine)
        whole.untyped_storage().resize_(0)
        return whole.untyped_storage().nbytes()

    assert run(release, world_size=2).results == [0, 0]


def test_small_tensors_are_captured_on_the_cpu():
    x = torch.arange(3.0)
    assert type(capture(x.as_subclass(Elsewhere), whole=False)) is torch.Tensor
    assert capture([x.requires_grad_(), None], whole=False)[0].tolist() == [0, 1, 2]
    assert isinstance(capture(torch.ones(2000).as_subclass(Elsewhere), whole=False), Summary)


def test_calls_of_a_group_that_torch_does_not_know_run_and_are_no_events():
    """As torchft makes its groups, anew whenever a replica falls out."""

    def past_torch():
        rank, size = dist.get_rank(), dist.get_world_size()
        store = dist.PrefixStore("own", dist.distributed_c10d._get_default_store())
        group = dist.ProcessGroup(store, rank, size)
        gloo = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=60))
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        x = torch.ones(2)
        group.allreduce([x], dist.AllreduceOptions()).wait()
        dist.all_reduce(x)
        return x.tolist()

    done = run(past_torch, world_size=2)
    assert done.results == [[4.0, 4.0]] * 2 and [len(events) for events in done.events] == [1, 1]


def test_calls_with_meta_tensors_move_nothing_and_are_no_events():
    def meta():
        dist.all_reduce(torch.ones(2, device="meta"))
        dist.barrier()

    assert [e.op for e in run(meta, world_size=2).events[0]] == ["barrier"]


def test_sparse_tensors_and_lists_of_lists_are_recorded():
    def both():
        x = torch.sparse_coo_tensor([[dist.get_rank()]], [1.0], (2,))
        dist.all_reduce(x)
        outputs = [[torch.zeros(2), torch.zeros(3)] for _ in range(2)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dist.all_gather_coalesced(outputs, [torch.ones(2), torch.ones(3)])

    done = run(both, world_size=2)
    sparse, gathered = done.events[1]
    assert sparse.before.tolist() == [0, 1] and sparse.after.tolist() == [1, 1]
    assert [t.tolist() for t in gathered.after] == [[1, 1], [1, 1, 1]] * 2
    assert repr(done) and done.draw()


@pytest.mark.parametrize(
    "make, tag",
    [
        (lambda: torch.eye(3).to_sparse(), 0),
        (lambda: torch.arange(6.0).reshape(2, 3).T, 0),
        (lambda: torch.ones(2), -3),
        (lambda: torch.tensor([1 + 2j]).conj().imag, 0),
        (lambda: torch.empty(0), 0),
    ],
    ids=["sparse", "strided", "tag", "negative bit", "empty"],
)
def test_messages_end_as_they_do_unrecorded(make, tag):
    def message():
        x, other = make(), 1 - dist.get_rank()
        try:
            (dist.isend(x, other, tag=tag) if other else dist.irecv(x, other, tag=tag)).wait()
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:150]  # the dispatcher goes on with all keys that it knows
        return x.tolist()

    plain, recorded = (run(message, world_size=2, record=record).results for record in (False, True))
    assert recorded == plain


def test_what_a_large_buffer_for_a_batch_held_is_not_read():
    def exchange():
        mine, theirs, other = torch.ones(LARGE + 1), torch.full((LARGE + 1,), 7.0), 1 - dist.get_rank()
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, theirs, other)]
        ):
            work.wait()

    sent, got = run(exchange, world_size=2).events[0]
    assert sent.before.head == got.after.head == (1, 1, 1)
    assert got.before == Summary((LARGE + 1,), torch.float32, 4 * (LARGE + 1), 0, (), ())


def test_lists_whose_tensors_share_no_element_are_not_accused():
    def columns():
        rank, n = dist.get_rank(), dist.get_world_size()
        out = torch.zeros(3, n)
        dist.all_gather(list(out.unbind(1)), torch.full((3,), float(rank)))
        scratch = torch.empty(2)  # padding, as Muon's: nobody reads it
        dist.all_gather([torch.empty(2), *[scratch] * (n - 1)], torch.ones(2))
        return out.tolist()

    assert run(columns, world_size=3).results[0] == [[0, 1, 2]] * 3


def test_lists_that_hold_the_same_memory_are_known():
    x = torch.zeros(4, 4)
    assert aliased([x[:, 0]] * 2) and aliased([x[:2], x[1:3], x[2:]]) and aliased([torch.zeros(70_000)] * 2)
    assert not aliased(list(x.unbind(1))) and not aliased([x[:2], x[2:]]) and not aliased([x, x.clone(), x])


# --- what travels, and what is printed ----------------------------------------------------

NAMED = torch.ops.aten.mm


def test_functions_that_name_operators_travel():
    overload, space = torch.ops.aten.mm.default, torch.classes

    def product(same):
        x = torch.ones(2, 2)
        every = [torch.ops.aten.mm(x, x), torch.ops.aten.mm.default(x, x), NAMED(x, x), overload(x, x)]
        assert torch.ops._c10d_functional.all_reduce and space is torch.classes and torch.classes.c10d.name == "c10d"
        return same is torch.ops.aten.mm, [t.sum().item() for t in every]

    assert run(product, NAMED, world_size=1).results == [(True, [8.0] * 4)]


def test_cloudpickle_is_as_it_was_for_others():
    own = cloudpickle.cloudpickle._find_imported_submodules  # a private function: this fails once it is renamed
    seen = []

    class Spy:
        def __reduce__(self):
            seen.append(cloudpickle.cloudpickle._find_imported_submodules)
            return list, ()

    pickling.pack(Spy())
    with pytest.raises(TypeError):
        pickling.pack(threading.Lock())
    assert seen == [pickling._submodules] and cloudpickle.cloudpickle._find_imported_submodules is own is not seen[0]


def test_warnings_of_torch_about_itself_are_not_printed(tmp_path):
    def quiet(path):
        import torch.distributed.checkpoint as checkpoint
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
        from torch.distributed.optim import ZeroRedundancyOptimizer

        model = DistributedDataParallel(nn.Linear(2, 2))
        ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        state, options = nn.Linear(2, 2).state_dict(), StateDictOptions(broadcast_from_rank0=True, full_state_dict=True)
        set_model_state_dict(nn.Linear(2, 2), state, options=options)
        if dist.get_rank() == 0:
            checkpoint.save(state, checkpoint_id=path, no_dist=True)
            checkpoint.load(state, checkpoint_id=path, no_dist=True)

    assert run(quiet, str(tmp_path), world_size=2).stdout == ["", ""]


def test_a_plans_key_that_fits_no_module_is_named_once():
    def planned():
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        model = nn.ModuleDict(
            {str(k): nn.ModuleDict({"up": nn.Linear(2, 2)}) for k in range(2)} | {"out": nn.Linear(2, 2)}
        )
        keys = "*.up", "*.upp", "outt", "out"  # "*.up" does not fit "out", and "*.upp" nothing in three modules
        parallelize_module(model, dist.init_device_mesh("cpu", (1,)), {key: ColwiseParallel() for key in keys})

    said = run(planned, world_size=1).stdout[0]
    assert re.findall("key '(.*?)'", said) == ["*.upp", "outt"] and len(said.splitlines()) == 2


def test_warnings_about_the_learners_line_are_printed():
    def loud():
        from torch.distributed.nn import functional  # torch.distributed does not import it

        def old():
            warnings.warn("mine is old", DeprecationWarning, stacklevel=2)

        x = torch.ones(2)
        warnings.warn("mine")
        old()
        dist.all_reduce_coalesced([x])  # put down to torch's decorator
        nn.MSELoss()(torch.ones(2, 1), x)  # put down to torch.nn
        torch.ones(2, 2, 2).T  # raised by C++
        functional.all_reduce(x)  # deprecated, as a function below it says
        torch.optim.lr_scheduler.StepLR(torch.optim.SGD([x], lr=1.0), 1).step()
        with warnings.catch_warnings(record=True) as caught:
            warnings.warn("kept")
        return len(caught)

    done = run(loud, world_size=1)
    kinds = [line.partition(":")[0] for line in done.stdout[0].splitlines() if "Warning: " in line]
    words = [
        "mine",
        "mine is old",
        "all_reduce_coalesced",
        "target size",
        "x.T",
        "functional.all_reduce",
        "lr_scheduler",
    ]
    user, future = "UserWarning", "FutureWarning"
    assert kinds == [user, "DeprecationWarning", future, user, user, future, user]
    assert all(word in done.stdout[0] for word in words) and done.results == [1]


# --- what depends on torch's version ------------------------------------------------------


def test_an_average_is_recorded_as_one_and_fails_where_torch_does():
    """gloo has had AVG since 2025, for floating-point numbers; functional collectives have a backward of it from torch 2.14 on."""

    def averages():
        from torch.distributed import _functional_collectives

        rank = dist.get_rank()
        x, whole = torch.tensor([1.0 + rank, -3.0]), torch.tensor([rank, 1])
        dist.all_reduce(x, dist.ReduceOp.AVG)
        with pytest.raises(RuntimeError, match="can't be cast"):
            dist.all_reduce(whole, dist.ReduceOp.AVG)
        slope = torch.ones(2, requires_grad=True)
        mean = _functional_collectives.all_reduce(slope, "avg", dist.group.WORLD)
        with nullcontext() if has_backward else pytest.raises(RuntimeError, match="only supports 'sum'"):
            mean.sum().backward()
        return x.tolist(), None if slope.grad is None else slope.grad.tolist()

    has_backward = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)
    done = run(averages, world_size=2)
    assert done.results == [([1.5, -3.0], [1.0, 1.0] if has_backward else None)] * 2
    assert [(e.op, e.reduce_op) for e in done.events[0]] == [("all_reduce", "AVG")] * (4 if has_backward else 3)


EVERY_KIND = """
import torch, torch.distributed as dist
from helpers import run

def calls():
    rank, n = dist.get_rank(), dist.get_world_size()
    x, all_of_it = torch.full((4,), float(rank)), torch.zeros(8)
    dist.broadcast(x, src=1)
    dist.all_reduce(x)
    dist.all_gather_single(all_of_it, x)
    dist.reduce_scatter_single(x, all_of_it)
    dist.all_to_all_single(torch.zeros(4), x)
    dist.all_reduce(x, group=dist.new_group([0, 1]))
    ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, torch.zeros(4), 1 - rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    dist.barrier()
    return x.tolist()

if __name__ == "__main__":
    done = run(calls, world_size=2)
    print(done.results, [[(e.op, e.nbytes, e.reduce_op) for e in mine] for mine in done.events])
"""
TORCHCOMMS = "TORCH_DISTRIBUTED_USE_TORCHCOMMS"
HAS_BACKENDS = importlib.util.find_spec("torchcomms._comms") if importlib.util.find_spec("torchcomms") else None
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


def recorded_under(setting, folder):
    (folder / "calls.py").write_text(EVERY_KIND)
    environ = os.environ | {"PYTHONPATH": str(ROOT), TORCHCOMMS: setting}
    return subprocess.run(
        [sys.executable, "calls.py"], cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=True
    ).stdout


@pytest.mark.skipif(VERSION < (2, 14) or not HAS_BACKENDS, reason="TorchComms needs torch 2.14 and its own backends")
def test_calls_that_torchcomms_carries_are_recorded_like_gloos(tmp_path):
    assert recorded_under("1", tmp_path) == recorded_under("0", tmp_path)
