"""run(): what may be run, what comes back, what is printed, and what is said when it fails."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as with_history
from torch.distributed.algorithms.join import Join

from collectives.judge import wording
from collectives.judge.monitor import Monitor
from collectives.launch.conversation import Conversation
from collectives.log.event import Event
from collectives.log.messages import Called, Waiting
from helpers import Mismatch, RankFailed, Stuck, run
from tests.corpus.faults import on_standby
from tests.corpus.module_for_ranks import Net, share
from tests.sampling import one_in, slow

# --- what may be run, and what comes back -------------------------------------------------


def test_closures_lambdas_modules_and_containers_travel():
    scale, net = 3, Net(2, 2)

    def use(box, *, extra):
        return {"sum": box["t"].sum() * scale + extra, "net": net.weight, "rank": (dist.get_rank(),)}

    done = run(use, {"t": torch.ones(2)}, extra=1, world_size=2)
    assert [r["sum"].item() for r in done.results] == [7, 7] and done.results[1]["rank"] == (1,)
    assert torch.equal(done.results[0]["net"], net.weight) and isinstance(done.results[0]["net"], torch.nn.Parameter)
    assert run(lambda: dist.get_world_size(), world_size=3).results == [3, 3, 3]
    assert run(share, 5, world_size=2).results == [6, 6]
    assert isinstance(run(lambda: net, world_size=1).results[0], Net)


OWN = """
    import io, os, pickle
    from dataclasses import dataclass
    from enum import Enum

    import torch, torch.distributed as dist
    from helpers import run

    class Box:
        class Lid:
            def __eq__(self, other): return type(other) is Box.Lid

    class Used(Exception):
        def __eq__(self, other): return type(other) is Used

    def helper(): return Used()
    def triple(x): return 3 * x

    def saved(x):
        torch.save(x, file := io.BytesIO())
        file.seek(0)
        return torch.load(file, weights_only=False)

    def broadcast(x):
        box = [x if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(box)
        return box[0]

    def gathered(x):
        everyone = [None] * 2
        dist.all_gather_object(everyone, x)
        return everyone[1]

    def by_name(passed, made):
        values = [Settings(2), made(), Box.Lid(), passed, helper(), triple]
        ways = [lambda x: pickle.loads(pickle.dumps(x)), saved, broadcast, gathered]
        came = [(way(x), x) for way in ways for x in values]
        return [(y, x) for y, x in came if y != x or type(y) is not type(x)], values

    def enclosing():
        kept = Settings
        return lambda passed: by_name(passed, lambda: kept(3))
"""


@pytest.mark.slow
def test_what_a_notebook_defines_is_found_by_its_name_in_every_rank(script):
    """Its classes and functions: an argument's, a closure's, those of a function that is called, and one in another."""
    once = """
    @dataclass
    class Settings:
        {field}: int

    class Kind(Enum):
        SUM = 1

    for wrong, values in run(enclosing(), Kind.SUM, world_size=2).results:
        kinds = [type(x) for x in values[:-1]]
        print(wrong, values[:2], kinds == [Settings, Settings, Box.Lid, Kind, Used], values[-1](1))
    """
    done = script(OWN + once.format(field="seed") + once.format(field="size"))  # defined anew
    said = "[] [Settings({0}=2), Settings({0}=3)] True 3\n"
    assert (done.stdout, done.stderr) == (said.format("seed") * 2 + said.format("size") * 2, "")


def test_ranks_are_fresh_and_the_kernel_is_never_forked():
    torch.ones(1, requires_grad=True).mul(2).backward()  # forking after this breaks autograd

    def grad():
        import builtins

        seen, builtins.seen = getattr(builtins, "seen", 0), 1
        x = torch.ones(1, requires_grad=True)
        x.mul(3).backward()
        return seen, x.grad.item(), os.getpid(), torch.rand(1).item()

    results = [r for _ in range(2) for r in run(grad, world_size=2).results]
    assert [r[:2] for r in results] == [(0, 3.0)] * 4
    assert len({r[2] for r in results} | {os.getpid()}) == 5
    assert len({r[3] for r in results}) == 4  # unseeded ranks draw different numbers


def test_fresh_ranks_hash_strings_each_in_its_own_way():
    def order():
        dist.barrier()
        return list({f"metric {k}" for k in range(32)})

    forked, fresh = run(order, world_size=2), run(order, world_size=2, fresh=True)
    assert forked.results[0] == forked.results[1]
    assert fresh.results[0] != fresh.results[1] and sorted(fresh.results[0]) == sorted(forked.results[0])
    assert [e.op for e in fresh.events[0]] == ["barrier"]


def test_environment_is_what_torchrun_sets():
    def env():
        return [os.environ[k] for k in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")] + [os.getcwd()]

    assert run(env, world_size=2).results[1] == ["1", "1", "2", "2", os.getcwd()]


def test_surroundings_are_those_of_the_call_not_of_the_standby(monkeypatch, tmp_path):
    def seen():
        return os.getcwd(), os.environ.get("COURSE"), "HOME" in os.environ, sys.path[0], os.environ["RANK"]

    monkeypatch.setenv("HOME", "/somewhere")
    before = set(threading.enumerate())
    run(seen, world_size=2)
    for thread in set(threading.enumerate()) - before:
        thread.join()  # its work is the next two ranks, born in what is around now
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COURSE", "Collectives")
    monkeypatch.delenv("HOME")
    monkeypatch.syspath_prepend("/first")
    assert run(seen, world_size=2).results[1] == (str(tmp_path), "Collectives", False, "/first", "1")


def test_output_comes_in_rank_order_and_labelled(capfd):
    def talk():
        import warnings

        rank = dist.get_rank()
        for peer in reversed(range(dist.get_world_size())):  # rank 2 speaks first
            if peer == rank:
                print(f"I am {rank}\nof {dist.get_world_size()}")
            dist.barrier()
        if rank == 1:
            warnings.warn("mind the gap")

    done = run(talk, world_size=3)
    out, err = capfd.readouterr()
    assert out.splitlines() == [
        "[0] I am 0", "[0] of 3", "[1] I am 1", "[1] of 3", "[1] UserWarning: mind the gap", "[2] I am 2", "[2] of 3",
    ]  # fmt: skip
    assert err == "" and done.stdout[0] == "I am 0\nof 3\n"


def test_what_is_printed_after_the_last_look_at_it_is_kept(monkeypatch):
    on_standby(2)  # so the server has nothing to say
    monkeypatch.setattr(Conversation, "hear", lambda self, until: self.poll())  # it looks at what was sent alone
    assert run(lambda: print("last"), world_size=2).stdout == ["last\n"] * 2


def test_a_flood_of_output_is_cut_in_the_middle(capsys):
    done = run(lambda: [print("x" * 1000) for _ in range(20_000)] and print("end"), world_size=2)
    assert all(len(text) < 1.1 * 2**20 and "bytes left out" in text and text.endswith("end\n") for text in done.stdout)


def test_nothing_is_recorded_when_so_asked():
    def total():
        x = torch.ones(1)
        dist.all_reduce(x)
        return x.item()

    done = run(total, world_size=3, record=False)
    assert done.results == [3.0] * 3 and done.events == [[], [], []] and done.sent[0] > 0


def test_no_communication_and_world_size_one():
    def alone():
        x = torch.ones(2)
        dist.all_reduce(x)
        return x.tolist()

    assert run(alone, world_size=1).results == [[1.0, 1.0]]
    silent = run(lambda: None, world_size=2)
    with pytest.raises(IndexError, match="made no calls, so there's nothing to draw"):
        silent.draw(0)
    assert repr(silent) == "2 ranks ran <lambda>: no communication, nothing returned"
    assert repr(run(lambda: "hi", world_size=2)) == "  rank   <lambda> returned\n     0   'hi'\n     1   'hi'"


def test_one_or_two_more_calls_are_shown_and_many_counted_with_what_came_back():
    def in_turn(calls):
        x = torch.ones(1)
        for _ in range(calls):
            dist.all_reduce(x)
        return x

    five, six = (run(in_turn, calls, world_size=2) for calls in (5, 6))
    assert repr(five).count("all_reduce SUM") == 5 and "5 of 5" in five.draw().text + five.draw().svg()
    assert "more call" not in repr(five) and "returned" not in repr(five)
    assert repr(six).count("all_reduce SUM") == 3 and "... and 3 more calls: .draw(3)" in repr(six)
    assert repr(six).endswith("in_turn returned\n     0   tensor([64.])\n     1   tensor([64.])")


# --- bad arguments ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args, kwargs, error, words",
    [
        (["share"], {}, TypeError, "not a str"),
        ([None], {}, TypeError, r"not None. Pass the function without calling it: run\(share\)"),
        ([share, 1], {"world_size": 0}, ValueError, "from 1 to 256"),
        ([share, 1], {"world_size": 2.0}, TypeError, "whole number"),
        ([share, 1], {"world_size": True}, TypeError, "whole number"),
        ([share, 1], {"world_size": 1000}, ValueError, "from 1 to 256"),
        ([share, 1], {"timeout": 0}, ValueError, "more than 0"),
        ([share, 1], {"timeout": "1"}, TypeError, "seconds"),
        ([share, (i for i in range(3))], {}, TypeError, "argument 1, a generator, cannot travel"),
        ([share], {"start": threading.Lock()}, TypeError, "argument start, a lock, cannot travel"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(args, kwargs, error, words):
    with pytest.raises(error, match=words):
        run(*args, **kwargs)


def test_the_variable_that_cannot_travel_is_named():
    lock = threading.Lock()
    with pytest.raises(TypeError, match="the variable lock that the function uses, a lock, cannot travel"):
        run(lambda: lock)
    with pytest.raises(TypeError, match="the variable lock .* Make it inside the function"):
        run(share, lambda: lock)


def test_run_inside_a_rank_is_refused():
    with pytest.raises(RankFailed, match="called inside a rank"):
        run(lambda: run(share, 1), world_size=1)


# --- failure ------------------------------------------------------------------------------


def said(error, fn, **kwargs):
    with pytest.raises(error) as caught:
        run(fn, **kwargs)
    return str(caught.value), caught.value


def test_a_none_is_asked_about_where_it_is_used_like_a_tensor():
    def what_a_call_returned():
        return dist.all_reduce(torch.ones(1)) / 2

    def the_learners_own():
        dist.all_gather([None, None], torch.ones(1))

    def before_backward():
        dist.all_reduce(torch.ones(1, requires_grad=True).grad)

    assert "come from a call" not in said(RankFailed, before_backward, world_size=2)[0]
    assert "Did this None come from a call?" in said(RankFailed, what_a_call_returned, world_size=2)[0]
    assert "come from a call" not in said(RankFailed, the_learners_own, world_size=2)[0]


def test_the_rank_that_raised_is_named_with_the_learners_frames():
    def inner(x):
        raise ValueError("too hot")

    def outer():
        if dist.get_rank() == 1:
            inner(0)
        dist.barrier()

    text, error = said(RankFailed, outer, world_size=3)
    assert text.splitlines()[0] == "rank 1 raised ValueError: too hot"
    assert [line.split(",")[0].strip() for line in text.splitlines()[1:3]] == ["outer", "inner"]
    assert text.splitlines()[2].endswith('raise ValueError("too hot")') and error.rank == 1
    assert text.splitlines()[3] == "As a consequence, ranks 0 and 2 couldn't finish barrier #1."
    assert error.run.events[0][0].op == "barrier"


def test_the_same_error_everywhere_is_said_once():
    text, _ = said(RankFailed, lambda: dist.broadcast(torch.ones(1)), world_size=3)
    assert text.startswith("ranks 0, 1 and 2 raised ValueError: Must specify") and text.count("raised") == 1


def close_unix_sockets():
    for descriptor in range(3, 100):
        with suppress(OSError):
            if socket.socket(fileno=os.dup(descriptor)).family == socket.AF_UNIX:
                os.close(descriptor)


@pytest.mark.parametrize(
    "die, words",
    [
        (lambda: os._exit(3), "rank 1 ended itself with exit code 3"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "rank 1 was killed by SIGKILL"),
        (lambda: os.abort(), "rank 1 was killed by SIGABRT"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "rank 1 was killed by SIGTERM"),
        (lambda: os.kill(os.getpid(), 40), "rank 1 was killed by signal 40"),  # a real-time signal: most have no name
        (lambda: sys.exit("enough"), "rank 1 raised SystemExit: it called sys.exit('enough')"),
        (lambda: close_unix_sockets(), "rank 1 cut its connection"),
    ],
)
def test_a_rank_that_dies_is_named_with_how(die, words):
    def work():
        x = torch.ones(1)
        dist.all_reduce(x)
        if dist.get_rank() == 1:
            die()
        dist.all_reduce(x)

    text, error = said(RankFailed, work, world_size=4)
    assert text.startswith(words) and error.rank == 1
    assert text.endswith("As a consequence, ranks 0, 2 and 3 couldn't finish all_reduce #2.")


def test_a_result_that_cannot_travel_is_named():
    text, _ = said(RankFailed, lambda: (i for i in range(3)), world_size=2)
    assert "it returned a generator, which cannot travel back" in text


# --- stuck --------------------------------------------------------------------------------


def test_time_limit_says_where_each_rank_stands():
    def slow():
        if dist.get_rank() == 0:
            time.sleep(60)
        dist.barrier()

    text, error = said(Stuck, slow, world_size=2, timeout=1)
    verdict, first, second, _ = text.splitlines()
    assert verdict == "out of time after 1 s: rank 0 is running your code; rank 1 is waiting in barrier #1."
    assert first.startswith("  rank 0  running your code, before any call  slow, line ") and first.endswith(
        "time.sleep(60)"
    )
    assert second.startswith("  rank 1  waiting in barrier #1 ") and second.endswith("dist.barrier()")
    assert error.ranks == (0, 1)


def test_a_message_whose_handle_is_dropped_is_lost_and_said_to_be():
    def drops(receiver_first):
        if dist.get_rank() == 0:
            if receiver_first:
                dist.recv(torch.empty(1), 1)
                time.sleep(0.2)  # for the recv to be posted
            dist.isend(torch.ones(4), 1)
            dist.barrier()
        elif receiver_first:
            arriving = torch.empty(4)
            later = dist.irecv(arriving, 0)
            dist.send(torch.ones(1), 0)
            later.wait()
            dist.barrier()
        else:
            dist.barrier()
            dist.recv(torch.empty(4), 0)

    dropped = (
        r"Rank 0 dropped the handle of isend #{} \(drops, line \d+:  dist.isend\(torch.ones\(4\), 1\)\) before it was"
    )
    text, _ = said(Stuck, drops, receiver_first=False, world_size=2, timeout=60)
    assert text.startswith("rank 1 is waiting in recv #2 from 0; rank 0 returned after 2 calls.")
    assert re.search(dropped.format(1), text) and "cable" not in text
    assert re.search(dropped.format(2), repr(run(drops, True, world_size=2)))


def test_what_was_waited_for_was_not_dropped():
    def waits():
        n, me = dist.get_world_size(), dist.get_rank()
        x, left, right = torch.ones(2), (me - 1) % n, (me + 1) % n
        pair = dist.new_group(timeout=timedelta(seconds=0.2))
        for _ in range(3):
            works = [dist.isend(x, right), dist.irecv(torch.empty(2), left)]
            while works:
                works.pop().wait()
            for work in dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, x.clone(), left)]
            ):
                work.wait()
        if me == 0:
            with suppress(RuntimeError):  # nobody receives it
                dist.isend(x, 1, group=pair).wait()
        dist.send(x, right) if me == 0 else dist.recv(x) if me == 1 else None

    assert "dropped" not in repr(run(waits, world_size=3))


def test_ranks_of_one_machine_are_not_said_to_have_a_cable_between_them():
    monitor = Monitor(2)
    for rank in range(2):
        monitor.feed(rank, Called(Event(rank, 0, "barrier", (0, 1), backend="gloo")))
        monitor.feed(rank, Waiting(0, 0.0, False, "main"))
    together, apart = (wording.words(monitor.out_of_time(20.0, distant)) for distant in (False, True))
    assert "a cable, a firewall" in apart and "cable" not in together
    assert "their calls fit together. Give it longer with run(..., timeout=seconds)" in together


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: dist.send(torch.ones(2), -1), "no rank -1 to send to. Ranks are 0 to 1"),
        (lambda: dist.isend(torch.ones(2), 2), "no rank 2 to send to"),
        (lambda: dist.recv(torch.ones(2), -1), "no rank -1 to receive from"),
        (lambda: dist.recv(torch.ones(2), group_src=2), "no rank 2 to receive from"),
        (lambda: dist.recv_object_list([None], src=-1), "no rank -1 to receive from"),
        (lambda: dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(2), 2)]), "no rank 2 to receive from"),
    ],
)
def test_a_rank_that_does_not_exist_is_named_at_once(call, words):
    with pytest.raises(RankFailed, match=words):
        run(call, world_size=2)


@pytest.mark.parametrize("way", ["plain", "in a dict", "a view", "a parameter", "received"])
def test_a_result_that_nobody_waited_for_is_named_before_its_numbers_are_judged(way):
    def returned():
        x = torch.ones(2, 2)
        if way == "received":
            peer = 1 - dist.get_rank()
            works = [dist.isend(torch.ones(2, 2), peer), dist.irecv(x, peer)]
            dist.barrier()
            return x if works else None
        dist.all_reduce(x, async_op=True)
        return {"in a dict": [{"x": x}], "a view": x[1], "a parameter": torch.nn.Parameter(x)}.get(way, x)

    with pytest.raises(Mismatch, match=r"ranks? .* returns? the tensor of (all_reduce #1|recv #2) without waiting"):
        run(returned, world_size=2)


def test_a_result_that_was_waited_for_in_any_way_is_returned_in_peace():
    def returned():
        xs = [torch.ones(1) for _ in range(4)]
        works = [dist.all_reduce(x, async_op=True) for x in xs]
        works[0].wait()
        works[1].get_future().wait()
        while not works[2].is_completed():
            pass
        thread = threading.Thread(target=works[3].wait)
        thread.start()
        thread.join()
        given, unread = torch.ones(1), torch.ones(1)
        if dist.get_rank() == 0:  # what a call only sends may be read meanwhile
            works += [dist.isend(given, 1), dist.broadcast(given, 0, async_op=True)]
        else:
            dist.recv(given, 0)
            dist.broadcast(given, 0)
        works.append(dist.all_reduce(unread, async_op=True))
        dist.barrier()
        return xs, given

    assert run(returned, world_size=2).results == [([2.0] * 4, 1.0)] * 2


def test_a_result_that_nobody_can_read_is_named():
    def lost(way):
        x, rank = torch.arange(6.0).view(2, 3).t(), dist.get_rank()
        model = torch.nn.Linear(2, 2)
        if way == "x.contiguous()":
            dist.all_reduce(x.contiguous())
        elif way == "x[...].contiguous()":
            dist.all_reduce(x[0].contiguous())
        elif way == "x[...], a copy":
            dist.all_reduce(x[[0, 2]])
        elif way == "metrics[...].double(...)":
            metrics = {"loss": torch.ones(1)}
            dist.all_reduce(metrics["loss"].double())
        elif way == "x.clone(...)":
            dist.all_reduce(x.clone(memory_format=torch.contiguous_format))
        elif way == "x / ...":
            dist.all_reduce(x / 2)
        elif way == "model.weight.detach(...)":
            dist.broadcast(model.weight.detach().clone(), src=0)
        elif way == "model.bias.detach(...)" and rank == 0:
            dist.send(torch.ones(2), 1)
        elif way == "model.bias.detach(...)":
            dist.recv(model.bias.detach().clone(), 0)
        elif way == "a list":
            dist.broadcast_object_list([rank], src=0)

    told = {
        "x.contiguous()": "Ranks 0 and 1 got the result of all_reduce #1 (",
        "x[...].contiguous()": "Ranks 0 and 1 got the result of all_reduce #1 (",
        "x[...], a copy": "Ranks 0 and 1 got the result of all_reduce #1 (",
        "metrics[...].double(...)": "Ranks 0 and 1 got the result of all_reduce #1 (",
        "x.clone(...)": "Ranks 0 and 1 got the result of all_reduce #1 (",
        "x / ...": "Ranks 0 and 1 got the result of all_reduce #1 (",
        "model.weight.detach(...)": "Rank 1 got the result of broadcast #1 (",
        "model.bias.detach(...)": "Rank 1 got the result of recv #1 (",
        "a list": "Rank 1 got the result of broadcast_object_list #1 (",
    }
    for way, words in told.items():
        done = repr(run(lost, way, world_size=2))
        assert words in done and f"in {way}" in done, done


def test_a_result_that_somebody_may_read_is_no_loss():
    def kept():
        x, rank = torch.ones(3), dist.get_rank()
        holder, model = [x], torch.nn.Linear(2, 2)
        dist.all_reduce(x.contiguous())  # x itself
        dist.all_reduce(x.view(-1))  # a view of it
        dist.all_reduce(x[1:])
        dist.all_reduce(x[1:].contiguous())
        dist.all_reduce(holder[0].contiguous())
        dist.all_reduce([x, torch.ones(1)].pop())
        dist.all_reduce(model.weight.detach())
        dist.all_reduce(torch.ones(1))  # as a barrier
        dist.all_reduce(torch.ones(1).contiguous())
        dist.all_reduce(torch.tensor(rank).float())
        dist.all_reduce((y := x.clone()))
        work = dist.all_reduce(x.clone(), async_op=True)
        work.wait()
        total = work.result()[0]
        dist.broadcast(x.clone() if rank == 0 else x, 0)  # which only gives
        dist.reduce(x.clone(), 0) if rank == 1 else dist.reduce(x, 0)
        dist.broadcast_object_list(box := [rank], src=0)
        dist.broadcast_object_list(holder, src=0)
        return y, total, box

    assert "lost" not in repr(run(kept, world_size=2))
    assert "lost" not in repr(run(lambda x: dist.all_reduce(x.clone()), torch.ones(2), world_size=1))  # nothing to lose


def test_a_look_at_a_programs_variables_keeps_none_of_them():
    def deletes():
        x, deleted = torch.ones(2, 3).t(), torch.ones(1)
        dist.all_reduce(x.contiguous())
        left = weakref.ref(deleted)
        del deleted
        return left() is None

    def shows():
        x = torch.ones(2, 3).t()
        shown = locals()
        dist.all_reduce(x.contiguous())
        return "x" in shown

    assert run(deletes, world_size=2).results == run(shows, world_size=2).results == [True, True]


def test_only_the_root_reduces():
    def only_root():
        loss = torch.ones(1)
        if dist.get_rank() == 0:
            dist.reduce(loss, dst=0)

    text, error = said(Stuck, only_root)
    assert text.startswith("rank 0 is waiting in reduce #1; ranks 1, 2 and 3 returned before any call. This can never finish.")
    assert error.ranks == (0,) and "dist.reduce(loss, dst=0)" in text


def test_everybody_sends_first():
    def shift():
        rank, n = dist.get_rank(), dist.get_world_size()
        x = torch.ones(1)
        dist.send(x, (rank + 1) % n)
        dist.recv(x, (rank - 1) % n)

    text, error = said(Stuck, shift, world_size=3)
    assert error.ranks == (0, 1, 2) and "isend" in text


def test_groups_in_another_order():
    def cross():
        a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
        first, second = (a, b) if dist.get_rank() == 0 else (b, a)
        dist.barrier(group=first)
        dist.barrier(group=second)

    text, _ = said(Stuck, cross, world_size=2)
    assert "Use the groups in the same order" in text


def test_a_group_that_some_ranks_do_not_make():
    def members_only():
        made = [dist.new_group([0])]
        if dist.get_rank() != 1:
            made.append(dist.new_group([0, 2]))
        return len(made)

    def among_themselves():
        return dist.get_rank() in (0, 2) and len(dist.new_group([0, 2], use_local_synchronization=True).group_name) > 0

    text, error = said(Mismatch, members_only)
    assert text.startswith(
        "ranks 0, 2 and 3 call new_group twice, rank 1 once.\n  ranks 0, 2 and 3  once  members_only, line "
    )
    assert "Every rank must call new_group" in text and error.call is None and error.run.results == [2, 1, 2, 2]
    assert run(among_themselves, world_size=4).results == [True, False, True, False]
    assert run(members_only, world_size=4, check=False).results == [2, 1, 2, 2]


def test_groups_of_other_ranks_on_other_ranks():
    """With plain torch, each ends without a word in some runs, and waits until time is out in others."""

    def own_pairs():
        first = dist.get_rank() // 2 * 2
        dist.all_reduce(torch.ones(1), group=dist.new_group([first, first + 1]))

    def never_comes():  # the group of rank 0 waits for a rank that makes another
        dist.new_group([0, 1] if dist.get_rank() == 0 else [1, 2, 3])

    def in_another_order():
        mine = [[0, 1], [0, 2]] if dist.get_rank() else [[0, 2], [0, 1]]
        return [dist.new_group(ranks) for ranks in mine]

    text, error = said(Mismatch, own_pairs)
    assert text.startswith(
        "ranks make different groups in call #1 of new_group.\n  ranks 0 and 1  a group of ranks 0 and 1  own_pairs, line "
    )
    assert "\n  ranks 2 and 3  a group of ranks 2 and 3  own_pairs, line " in text and error.call is None
    assert "in the same order and with the same ranks" in text
    assert "\n  rank 0            a group of ranks 0 and 1     never_comes" in said(Mismatch, never_comes)[0]
    assert "in call #1 of new_group" in said(Mismatch, in_another_order)[0]


def test_what_comes_first_is_told_a_wrong_call_or_a_wrong_group():
    def call_first():
        dist.all_reduce(torch.ones(1 + dist.get_rank()))
        dist.new_group([0, 1] if dist.get_rank() else [0])

    def group_first():
        dist.new_group([0, 1] if dist.get_rank() else [0])
        dist.all_reduce(torch.ones(1 + dist.get_rank()))

    assert "the shape of all_reduce" in said(Mismatch, call_first)[0]
    assert "call #1 of new_group" in said(Mismatch, group_first)[0]


def test_members_that_make_a_group_alone_and_name_it_differently():
    """With plain torch, these wait until time is out: torch puts into the name how many groups a process is in."""

    def one_more():
        if dist.get_rank() in (0, 2):
            dist.new_group([0, 2], use_local_synchronization=True)
        dist.new_group(range(3), use_local_synchronization=True)

    def in_another_order():
        ranks = [0, 1, 2] if dist.get_rank() else [2, 1, 0]
        dist.new_group(ranks, sort_ranks=False, use_local_synchronization=True)

    def stays_away():
        if dist.get_rank() != 1:
            dist.new_group(range(3), use_local_synchronization=True)

    text, error = said(Mismatch, one_more)
    assert text.startswith(
        "the members of the group of ranks 0, 1 and 2 look for each other under different names.\n"
        "  ranks 0 and 2  in 2 groups  one_more, line "
    )
    assert "\n  rank 1         in 1 group   one_more, line " in text and error.call is None
    assert "Every member must pass them in the same order." in said(Mismatch, in_another_order)[0]
    with pytest.raises(
        Stuck, match="new_group of ranks 0 and 2 lacks rank 1. With use_local_synchronization=True only"
    ):
        run(stays_away, world_size=4, timeout=2)


def test_groups_that_members_make_alone_and_find():
    def make():
        rank = dist.get_rank()
        groups = [dist.new_group([rank % 2, rank % 2 + 2], use_local_synchronization=True)]
        groups += [dist.new_group(use_local_synchronization=True) for _ in range(2)]
        dist.new_group([rank], use_local_synchronization=True)  # nobody is waited for
        dist.new_group(range(4), backend="fake", use_local_synchronization=True)
        with suppress(ValueError):
            dist.new_group([rank, rank], use_local_synchronization=True)  # torch refuses it
        for group in groups:
            dist.barrier(group=group)
        if rank == 0:  # from here on, in one group fewer than the others
            dist.destroy_process_group(groups.pop())
        own = dist.new_group([1, 3], use_local_synchronization=True)  # for the others None, and from torch 2.14 on a mark
        return len(groups), own in (None, dist.GroupMember.NON_GROUP_MEMBER)

    assert run(make, world_size=4).results == [(2, True), (3, False), (3, True), (3, False)]


def test_groups_of_a_world_of_the_programs_own(tmp_path):
    def worlds():
        rank = dist.get_rank()
        dist.destroy_process_group()
        store = dist.FileStore(str(tmp_path / f"world {rank // 2}"), 2)
        dist.init_process_group("gloo", store=store, rank=rank % 2, world_size=2)
        dist.all_reduce(x := torch.ones(1), group=dist.new_group([0, 1] if rank < 2 else None))
        dist.new_group([0] if rank < 2 else [0, 1])
        return x.item()

    assert "init_process_group of your own made this rank 0 of 2" in said(RankFailed, worlds)[0]
    for world in tmp_path.iterdir():
        world.unlink()
    assert run(worlds, world_size=4, record=False).results == [2.0] * 4


def test_groups_that_are_the_same_though_ranks_say_them_otherwise():
    def make():
        rank = dist.get_rank()
        if rank == 1:
            with suppress(RuntimeError, ValueError):
                dist.new_group([0, 9])
        dist.new_group([None, [0, 1, 2], range(3)][rank], backend="gloo")
        dist.new_group([rank])  # of nobody but itself
        return dist.get_world_size(dist.new_group(iter([0, 1]) if rank else [1, 0]))

    assert run(make, world_size=3).results == [2, 2, -1]


def test_ranks_that_wait_for_each_other_are_told_to_keep_one_order_of_calls_or_of_groups():
    def calls():
        x = torch.ones(1)
        dist.recv(x, 1) if dist.get_rank() == 0 else dist.all_reduce(x)

    def groups():
        pair = [dist.new_group(), dist.new_group()]
        dist.all_reduce(torch.ones(1), group=pair[dist.get_rank()])

    with pytest.raises(Stuck, match=r"wait for each other\. Put their calls in the same order on every rank\.$"):
        run(calls, world_size=2)
    with pytest.raises(Stuck, match=r"each other in different groups\. Use the groups in the same order on every rank\.$"):
        run(groups, world_size=2)


@pytest.mark.parametrize("n", [2, *slow(4, 5), pytest.param(8, marks=pytest.mark.nightly)])
def test_who_hangs_in_a_broadcast_is_what_gloo_does(n):
    """The verdict names exactly the ranks that gloo leaves hanging when rank `missing` stays away."""

    def without(missing):
        if dist.get_rank() != missing:
            dist.broadcast(torch.ones(2), src=1)

    for missing in range(n):
        try:
            run(without, missing, world_size=n)
            verdict = ()
        except Stuck as error:
            verdict = error.ranks
        try:
            run(without, missing, world_size=n, check=False, timeout=0.5)
            real = ()
        except Stuck as error:
            real = error.ranks
        assert set(verdict) == set(real) and (real or missing != 1)


# --- mismatch -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong, words",
    [
        (lambda r: dist.all_reduce(torch.ones(3 + (r == 1))), "on the shape of"),
        (lambda r: dist.all_reduce(torch.ones(2, dtype=torch.float if r else torch.int)), "on the dtype of"),
        (
            lambda r: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if r else dist.ReduceOp.SUM),
            "on the reduce op of",
        ),
        (lambda r: dist.broadcast(torch.ones(2), src=r % 2), "on the src of broadcast"),
        (
            lambda r: dist.broadcast(torch.ones(2), src=0) if r else dist.all_reduce(torch.ones(2)),
            "on which collective",
        ),
        (
            lambda r: dist.all_to_all_single(
                torch.zeros(4), torch.ones(4), output_split_sizes=[2, 2], input_split_sizes=[3, 1] if r else [2, 2]
            ),
            "on the split sizes of",
        ),
        (
            lambda r: dist.all_to_all([torch.zeros(2 + r) for _ in range(2)], [torch.ones(2 + r) for _ in range(2)]),
            "on the shape of all_to_all",
        ),
        (lambda r: dist.recv(torch.zeros(2), 0) if r else dist.send(torch.ones(3), 1), "disagree on the size"),
        (
            lambda r: dist.recv(torch.zeros(2, dtype=torch.int), 0) if r else dist.send(torch.ones(2), 1),
            "disagree on the dtype",
        ),
    ],
)
def test_calls_that_disagree_are_named(wrong, words):
    text, error = said(Mismatch, lambda: wrong(dist.get_rank()), world_size=2)
    assert words in text.splitlines()[0]
    assert [line.split()[:2] for line in text.splitlines()[1:3]] == [["rank", "0"], ["rank", "1"]]
    assert error.call.ranks == (0, 1)


@pytest.mark.parametrize("shape, works", [((2, 2), True), ((5,), False)])
def test_a_shape_that_gives_right_numbers_is_said_to(shape, works):
    text, _ = said(Mismatch, lambda: dist.broadcast(torch.ones(4 if dist.get_rank() else shape), 0), world_size=2)
    assert ("so they do arrive" in text, "abort" in text) == (works, not works)


def turned(x):
    """The same numbers, stored column by column."""
    return x.t().contiguous().t()


def reduces(follow):
    x = torch.arange(6.0).view(2, 3) * (1 + dist.get_rank())
    x = turned(x) if dist.get_rank() else x
    follow(x, dist.all_reduce)
    return x.tolist() == [[0, 3, 6], [9, 12, 15]]


def reduces_a_column(follow):
    x = torch.arange(6.0).view(3, 2)[:, dist.get_rank()]
    follow(x, dist.all_reduce)
    return x.tolist() == [1, 5, 9]


def receives(follow):
    x, numbers = torch.zeros(2, 3), torch.arange(6.0).view(2, 3)
    x = turned(x) if dist.get_rank() else x
    follow(x, lambda y: dist.scatter(y, None if dist.get_rank() else [numbers, numbers], 0))
    return x.equal(numbers)


def deals(follow):
    x, numbers = torch.zeros(2, 3), torch.arange(6.0).view(2, 3)
    follow([turned(numbers)] * 2, lambda y: dist.scatter(x, None if dist.get_rank() else y, 0))
    return x.equal(numbers)


@pytest.mark.parametrize(
    "program, copied", [(reduces, True), (reduces_a_column, True), (receives, True), (deals, False)]
)
def test_advice_on_a_layout_is_right_if_it_is_followed_to_the_letter(program, copied):
    def as_it_stands(x, call):
        call(x)

    def as_advised(x, call):
        if copied:
            names = {"x": x}
            exec(before, names)
            call(names["y"])
            exec(after, names)
        else:
            call(eval(given, {"xs": x}))

    text, _ = said(Mismatch, lambda: program(as_it_stands), world_size=2)
    before, after = re.findall(r"Write (y = .*), pass y, and .* with (x\..*?\))\.", text)[0] if copied else ("", "")
    given = re.findall(r"Pass (\[.*\]) as", text)[0] if not copied else ""
    assert run(lambda: program(as_advised), world_size=2).results == [True, True]
    assert ("Write" in text, "Pass" in text) == (copied, not copied)


def test_advice_on_the_layout_of_a_gradient_is_for_who_makes_no_call():
    """torch's all_gather with history scatters gradients as they come, here transposed, into buffers of that layout."""

    def job(advised):
        x = torch.ones(3, 4, requires_grad=True)
        parts = with_history.all_gather(x)
        for y in parts if advised else ():
            y.register_hook(lambda grad: grad.contiguous())
        weights = torch.arange(24.0).view(8, 3)
        ((dist.get_rank() + 1) * weights * torch.cat([part.t() for part in parts])).sum().backward()
        return x.grad.equal(3 * weights.chunk(2)[dist.get_rank()].t())

    text, _ = said(Mismatch, lambda: job(False), world_size=2)
    assert "for each y that the forward call returned, write y.register_hook(lambda grad: grad.contiguous())." in text
    assert "pass y" not in text and "Pass" not in text
    assert run(job, True, world_size=2).results == [True, True]


def test_an_own_call_within_join_is_where_ranks_parted():
    def job():
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        with Join([model]):
            for _ in range(1 + 2 * dist.get_rank()):
                model(torch.ones(2, 4)).sum().backward()
                dist.all_reduce(torch.ones(1))

    text, error = said(Mismatch, job, world_size=2)
    [first] = re.findall(
        r"^  (#\d+)  rank 0  job, .*Join.*\n  \1  rank 1 +job, line \d+:  dist.all_reduce", text, re.MULTILINE
    )
    assert re.search(rf"^Earlier, ranks made calls? {first}\b", text, re.MULTILINE), text
    assert "Join matches only the calls" in text


def test_without_check_the_program_goes_on_as_gloo_would():
    def half():
        x = torch.full((4 if dist.get_rank() else 3,), 7.0 if dist.get_rank() == 0 else 0.0)
        dist.broadcast(x, src=0)
        return x.tolist()

    assert run(half, world_size=2, check=False).results == [[7, 7, 7], [7, 7, 7, 0]]


# --- from anywhere, and nothing left behind -----------------------------------------------


SCRIPT = """
    import torch, torch.distributed as dist
    from helpers import run
    print("once")

    class Point:
        def __init__(self, x): self.x = x

    def work():
        x = torch.ones(1); dist.all_reduce(x); return Point(x.item())

    {guard}
    done = run(work, world_size=2)
    print([p.x for p in done.results], isinstance(done.results[0], Point))
"""


@pytest.mark.parametrize("guard", [pytest.param("", marks=pytest.mark.slow), pytest.param('if __name__ == "__main__": pass', marks=one_in(2))])
def test_a_script_runs_once_with_or_without_a_guard(script, guard):
    done = script(SCRIPT.format(guard=guard))
    assert (done.stdout, done.stderr) == ("once\n[2.0, 2.0] True\n", "")


@one_in(0, 3)
def test_python_dash_c():
    code = "from helpers import run; print(run(lambda: 1, world_size=2).results)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[1, 1]\n", "")


@one_in(1, 3)
def test_an_uncaught_failure_of_a_script_reads_well(script):
    done = script("from helpers import run\ndef f():\n    1 / 0\nrun(f, world_size=2)")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(
        "RankFailed: ranks 0 and 1 raised ZeroDivisionError: division by zero\n    f, line 3:  1 / 0"
    )


@pytest.mark.slow
def test_many_calls_leave_nothing_behind(script, tmp_path):
    """No open file, process or temporary file more after 40 calls than after 5, failures included."""
    done = script(
        """
        import glob, os, tempfile, threading, time
        import psutil, torch, torch.distributed as dist
        from helpers import RankFailed, run

        me = psutil.Process()

        def work(k):
            dist.all_reduce(torch.ones(1))
            if k % 5 == 4:
                raise ValueError

        def left():
            # The last ranks are ended, and the next ones made, in the background: what stays is
            # the server, two ranks on standby, and the file by which these found each other.
            (folder,) = glob.glob(os.path.join(tempfile.gettempdir(), "collectives-*"))
            until = time.monotonic() + 30
            while time.monotonic() < until:
                now = len(me.children(recursive=True)), len(os.listdir(folder))
                if now == (3, 1) and threading.active_count() == 1:  # nobody is at it any more
                    break
            return *now, me.num_fds()

        for k in range(40):
            try:
                run(work, k, world_size=2)
            except RankFailed:
                pass
            if k in (4, 39):
                print(left())
        """,
        TMPDIR=str(tmp_path),
    )
    few, many = done.stdout.splitlines()
    assert few == many and few.startswith("(3, 1,")
    assert not list(tmp_path.glob("collectives-*"))


def test_a_message_that_was_waited_for_is_complete_as_often_as_the_program_asks():
    def exchange():
        other = 1 - dist.get_rank()
        works = [dist.isend(torch.ones(1), other), dist.irecv(torch.empty(1), other)]
        for work in works:
            work.wait()
        return [work.is_completed() for work in works * 2]

    assert run(exchange, world_size=2, timeout=20).results == [[True] * 4] * 2
