"""The network between submitted ranks: its time and its memory are limits, whatever the ranks send."""

import socket
import threading
from contextlib import suppress
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from grader import switch
from grader.described_calls import Ungradable
from grader.inside.protocol import encode, frame
from helpers import Stuck
from helpers.exercise.cases import Case
from tests import work

READY = frame({"ready": True})
RETURNED = frame({"returned": {"tuple": [None, {"tuple": []}]}})


def call(op, index, n=2, given=None, out=(), wait=False, **details):
    """What a rank sends for a call, as grader.inside.process_group does."""
    value, body = encode(given)
    made = {"call": op, "index": index, "in": value, "out": [list(one) for one in out], "line": None}
    sent = frame(made | {"group": list(range(n)), "name": "0"} | details, body)
    return sent + frame({"wait": index}) if wait else sent


def attempt(*ranks):
    """What becomes of ranks that send these bursts: the next one each time they are sent something."""

    def send(sock, bursts):
        with suppress(ConnectionError):  # refused
            for burst in (READY, *bursts):
                if not sock.recv(1 << 20):
                    break
                sock.sendall(burst)

    pairs = [socket.socketpair() for _ in ranks]
    threads = [threading.Thread(target=send, args=(sock, bursts)) for (_, sock), bursts in zip(pairs, ranks)]
    for thread in threads:
        thread.start()
    try:
        judged = switch.Switch([ours for ours, _ in pairs], {}, "answer", lambda: [None] * len(ranks))
        (done,) = judged.attempt([], [Case(len(ranks))], [[()] * len(ranks)])
        return done
    finally:
        for ours, _ in pairs:
            ours.close()
        for thread in threads:
            thread.join()
        for _, theirs in pairs:
            theirs.close()


def send(index, n=2, value=1.0, **details):
    return call("send", index, n, torch.tensor([value]), **details)


def recv(index, n=2, **details):
    return call("recv", index, n, out=[("float32", [1])], **details)


def test_a_recv_from_anyone_gets_the_first_send_of_its_tag_that_nobody_has_received():
    def barrier(index):
        return call("barrier", index, 3, wait=True)

    receiver = [
        barrier(0),
        recv(1, 3, src=1, tag=2, wait=True),
        *(recv(index, 3, src=None, tag=tag, wait=True) for index, tag in ((2, 1), (3, 2), (4, 2))),
        RETURNED,
    ]
    first = [b"".join(send(k, 3, 10.0 + k, dst=0, tag=2) for k in range(2)) + barrier(2), RETURNED]
    others = (send(0, 3, 20.0, dst=1, tag=1), send(1, 3, 21.0, dst=0, tag=2), send(2, 3, 22.0, dst=0, tag=1))
    second = [b"".join(others) + barrier(3), RETURNED]
    events = attempt(receiver, first, second).events[0]
    assert [(e.src, e.after.item()) for e in events[1:]] == [(1, 10.0), (2, 22.0), (1, 11.0), (2, 21.0)]


def test_a_send_goes_to_the_first_recv_from_anyone_that_waits_for_its_tag():
    receiver = [b"".join(recv(k, src=None, tag=tag) for k, tag in enumerate((1, 2, 1)))]
    receiver = [receiver[0] + call("barrier", 3, wait=True), frame({"wait": 2}), frame({"wait": 1}), frame({"wait": 0})]
    sender = [call("barrier", 0, wait=True), send(1, value=5.0, dst=0, tag=1) + send(2, value=6.0, dst=0, tag=2)]
    sender[1] += send(3, value=7.0, dst=0, tag=1) + RETURNED
    events = attempt([*receiver, RETURNED], sender).events[0]
    assert [e.after.item() for e in events[:3]] == [5.0, 6.0, 7.0]


def nobody_meets(k):
    """Recvs from anyone and sends, all under way, with other tags."""
    recvs = b"".join(recv(i, src=None, tag=1) for i in range(k))
    return lambda: attempt(
        *([recvs + b"".join(send(k + i, dst=1 - rank, tag=2) for i in range(k)) + RETURNED] for rank in range(2))
    )


def test_recvs_from_anyone_are_matched_without_looking_through_all_sends():
    assert work.lines(nobody_meets(100)) < 1.5 * 4 * work.lines(nobody_meets(25))


def test_the_time_is_looked_at_before_each_call(monkeypatch):
    ticks = count()
    monkeypatch.setattr(switch, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    with pytest.raises(Stuck, match="out of time") as stuck:
        attempt([b"".join(call("barrier", i, 1) for i in range(200))])  # all in one read
    assert len(stuck.value.run.events[0]) <= switch.SECONDS


# --- memory -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_as_many_calls_as_the_limit_names_have_room_and_one_more_is_refused_for_its_number():
    """At eight ranks, where what they keep together is the most."""
    n, one = 8, [("float32", [1])]
    calls = [
        call("all_reduce", i, n, torch.ones(1), one, wait=True, reduce_op="SUM") for i in range(switch.MAX_CALLS + 1)
    ]
    assert len(attempt(*([[*calls[:-1], RETURNED]] * n)).events[0]) == switch.MAX_CALLS
    with pytest.raises(Ungradable, match="more than 2000 calls for one input"):
        attempt(*([[*calls, RETURNED]] * n))


@pytest.fixture
def little(monkeypatch):
    monkeypatch.setattr(switch, "MAX_KEPT_BYTES", 1 << 20)
    monkeypatch.setattr(switch, "MAX_BYTES", 1 << 22)


def test_what_ranks_send_is_kept_up_to_a_limit(little):
    large = torch.zeros(1024, dtype=torch.float64)
    burst = b"".join(call("send", i, 1, large, dst=0, tag=0) for i in range(200)) + RETURNED
    with pytest.raises(Ungradable, match="more than 1 MiB"):
        attempt([burst])


def test_what_ranks_are_left_with_is_kept_up_to_a_limit(little):
    """Each rank sends a few bytes for a hundred times as many that all of them get."""
    n, large = 8, torch.zeros(1024, dtype=torch.float64)

    def gather(i):
        return call("all_gather", i, n, large, [("float64", [1024])] * n, wait=True)

    assert attempt(*([[gather(0), RETURNED]] * n)).events[0][0].after[7].shape == (1024,)
    with pytest.raises(Ungradable, match="more than 1 MiB"):
        attempt(*([[gather(0), gather(1), RETURNED]] * n))


def test_what_ranks_return_is_kept_up_to_a_limit(little):
    value = {"list": [{"other": "object"}] * 600}
    with pytest.raises(Ungradable, match="more than 1 MiB"):
        attempt([frame({"returned": {"tuple": [value, {"tuple": []}]}})])


def test_all_ranks_together_may_be_in_the_middle_of_so_much(little):
    unfinished = frame({"printed": ""}, bytes(1 << 21))[: (1 << 20) + 1000]
    with pytest.raises(Ungradable, match="without end"):
        attempt(*([[unfinished]] * 4))


def test_no_rank_is_left_with_more_than_it_could_read():
    with pytest.raises(Ungradable, match="more than 16 MiB"):
        attempt([call("recv", 0, 1, out=[("float64", [1 << 22])], src=0, tag=0)])
