"""Messages between ranks and kernel arrive whole and in order, however the bytes come; half a message is none."""

import gc
import os
import select
import socket
import subprocess
import sys
import threading

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.launch import wire
from collectives.launch.wire import (
    HEADER_BYTES,
    Channel,
    Counted,
    Frames,
    Preload,
    Ready,
    frame,
    receive_with_descriptors,
)
from collectives.launch.wire import MESSAGES as KINDS
from collectives.launch.workers import UNREAD_BYTES
from collectives.log import messages
from collectives.log.messages import Completed, Returned
from helpers import RankFailed, run

MESSAGES = [
    Counted(3),
    Completed(0, [torch.arange(6.0).reshape(2, 3)], 0.5, True, None),
    Ready(),
    Preload(["torch.nn"] * 300),
    Returned(b"\0" * 40, (None, 7), None, []),
]
STREAM = b"".join(map(frame, MESSAGES))


def same(got, wanted=MESSAGES):
    return repr(got) == repr(wanted)


def test_every_message_can_be_sent():
    parts = {wire.Place, wire.RankSpec}  # of messages
    defined = {
        kind for module in (messages, wire) for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, tuple) and kind.__module__ == module.__name__
    }  # fmt: skip
    assert set(KINDS) == defined - parts and len(KINDS) == len(set(KINDS)) < 256
    (got,) = Frames().feed(frame(messages.NotFinite(3)))
    assert got == messages.NotFinite(3) and type(got) is messages.NotFinite


def test_a_stream_is_read_byte_by_byte():
    frames, got, at = Frames(), [], [0]
    for message in MESSAGES:
        at.append(at[-1] + len(frame(message)))
    assert not frames.partial
    for k in range(len(STREAM)):
        got += frames.feed(STREAM[k : k + 1])
        assert len(got) == sum(end <= k + 1 for end in at[1:])  # at its last byte, not before and not after
        assert frames.partial == (k + 1 not in at)
    assert same(got)


@settings(deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
def test_a_stream_is_read_in_any_pieces(cuts):
    frames, got = Frames(), []
    cuts = [0, *sorted(cuts), len(STREAM)]
    for begin, end in zip(cuts, cuts[1:]):
        got += frames.feed(STREAM[begin:end])
    assert same(got) and not frames.partial


@pytest.mark.parametrize("cut", [1, 7, 8, 9, -1])
def test_half_a_message_is_none(cut):
    frames = Frames()
    assert frames.feed(frame(Counted(1)) + frame(Counted(2))[:cut]) == [Counted(1)] and frames.partial


def test_every_kind_of_message_keeps_its_kind():
    for kind in KINDS:
        (got,) = Frames().feed(frame(kind(*[None] * len(kind._fields))))
        assert type(got) is kind


# --- sockets ----------------------------------------------------------------------------------


@pytest.fixture
def channel():
    """The kernel's socket, the rank's channel, and the end of the pipe that is readable once the rank wakes us."""
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES)
    wakeup, ring = os.pipe()
    with ours, theirs:
        yield ours, Channel(theirs, ring), wakeup
    os.close(wakeup)
    os.close(ring)


def test_a_rank_finds_its_kernel_gone_whether_or_not_it_had_read_everything(channel):
    ours, rank, _ = channel
    rank.announce(Ready())
    ours.close()
    with pytest.raises(EOFError):
        rank.receive()


def all_from(sock, count):
    frames, got = Frames(), []
    while len(got) < count:
        got += frames.feed(sock.recv(1 << 16))
    assert not frames.partial
    return got


def test_a_message_larger_than_the_socket_is_announced_before_it_is_sent(channel):
    ours, rank, wakeup = channel
    large = torch.arange(UNREAD_BYTES, dtype=torch.float64)  # 8 times what the socket holds
    sender = threading.Thread(target=rank.send, args=(Completed(0, large, 0.0, True, None),), daemon=True)
    sender.start()
    assert select.select([wakeup], [], [], 20)[0]  # although nobody has read
    (got,) = all_from(ours, 1)
    sender.join()
    assert isinstance(got, Completed) and torch.equal(got.after, large)


def test_a_rank_ahead_of_the_kernel_waits_and_loses_nothing(channel):
    ours, rank, wakeup = channel
    sent, many = [], 4 * UNREAD_BYTES // 1000

    def send():
        for k in range(many):
            rank.send(Returned(bytes(1000), (k, k), None, []))
            sent.append(k)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    first = ours.recv(1)
    assert len(sent) < many  # the socket cannot hold them all
    frames = Frames()
    frames.feed(first)
    got = []
    while len(got) < many:
        got += frames.feed(ours.recv(1 << 16))
    sender.join()
    assert [message.moved[0] for message in got] == list(range(many))
    assert not select.select([wakeup], [], [], 0)[0]  # small messages do not wake the kernel


STOPPED = """
import gc, os, select, signal
import torch
import torch.distributed as dist
from helpers import run
from collectives.launch.wire import Channel

def ahead(kernel):
    (sock,) = [o._sock for o in gc.get_objects() if isinstance(o, Channel)]
    calls, x = 0, torch.zeros(1)
    os.kill(kernel, signal.SIGSTOP)
    while select.select([], [sock], [], 0)[1]:
        dist.all_reduce(x)
        calls += 1
    os.kill(kernel, signal.SIGCONT)
    for _ in range(1000):
        dist.all_reduce(x)
    return calls

done = run(ahead, os.getpid(), world_size=1)
(events,) = done.events
print(done.results[0] > 10, len(events) == done.results[0] + 1000)
print([e.index for e in events] == list(range(len(events))), all(e.end is not None for e in events))
"""


@pytest.mark.slow
def test_a_rank_waits_while_the_kernel_stands_still():
    done = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True True\nTrue True\n", done.stdout + done.stderr


def test_large_values_arrive_whole():
    def share(numel):
        x = torch.arange(numel, dtype=torch.float64) + dist.get_rank()
        dist.all_reduce(x)
        return x

    numel = UNREAD_BYTES  # 8 times what the socket holds
    done = run(share, numel, world_size=2, whole=True)
    wanted = 2 * torch.arange(numel, dtype=torch.float64) + 1
    assert all(torch.equal(x, wanted) for x in done.results)
    assert all(torch.equal(e.after, wanted) and e.before[0] == e.rank for (e,) in done.events)


# --- the other end is gone --------------------------------------------------------------------


def test_a_rank_that_ends_in_the_middle_of_a_message_is_reported_as_ended():
    def cut_off():
        (channel,) = [o for o in gc.get_objects() if isinstance(o, Channel)]
        if dist.get_rank() == 1:
            channel._sock.sendall(frame(Preload(["never whole"]))[:-1])
            os._exit(3)
        dist.barrier()

    with pytest.raises(RankFailed, match="rank 1 .*3") as failed:
        run(cut_off, world_size=2)
    assert failed.value.run.events[1] == []


def test_a_rank_notices_that_the_kernel_is_gone(channel):
    ours, rank, _ = channel
    ours.sendall(frame(Preload(["never whole"]))[:-1])
    ours.close()
    with pytest.raises(EOFError):
        rank.receive()


@pytest.mark.parametrize("sent", [0, 3, 8, 12])
def test_the_server_notices_that_the_kernel_is_gone(sent):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(frame(Preload(["never whole"]))[:sent])
        ours.close()
        with pytest.raises(EOFError):
            receive_with_descriptors(theirs, 4)


def test_descriptors_come_with_their_message():
    ours, theirs = socket.socketpair()
    readable, writable = os.pipe()
    with ours, theirs:
        sent = Preload(["x" * 100_000])
        data = frame(sent)
        socket.send_fds(ours, [data[:HEADER_BYTES]], [writable])
        ours.sendall(data[HEADER_BYTES:])
        os.close(writable)
        message, (writable,) = receive_with_descriptors(theirs, 4)
        os.write(writable, b"!")
        assert message == sent and os.read(readable, 1) == b"!"
    os.close(readable)
    os.close(writable)


def test_variables_may_come_and_go_while_they_are_read(monkeypatch):
    """The standbys' are read by a thread of their own, beside a program that sets some."""
    monkeypatch.setenv("HERE_ALL_ALONG", "1")
    read, names = threading.Event(), [f"COMES_AND_GOES_{k}" for k in range(200)]

    def flip():
        while not read.is_set():
            os.environ.update(dict.fromkeys(names, "1"))
            for name in names:
                del os.environ[name]

    other, interval = threading.Thread(target=flip), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    other.start()
    try:
        for _ in range(1000):
            assert wire.ProcessContext.here().environ["HERE_ALL_ALONG"] == "1"
    finally:
        sys.setswitchinterval(interval)
        read.set()
        other.join()
