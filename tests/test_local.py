"""How the ranks of a host find their collector, and that what they send it arrives whole."""

import errno
import os
import signal
import socket
import string
import tempfile
import threading
from pathlib import Path

import pytest

from collectives.jobs import load
from collectives.log.messages import Called
from collectives.watch import client
from collectives.watch.message_decoder import MessageDecoder
from collectives.watch.pipe import Pipe
from collectives.watch.ring import RingReader
from collectives.watch.sockets import FOLDER, Listener, Untrusted, connect, same_user
from tests.test_cluster import event, job

STRANGER = 12345  # a user's number


@pytest.fixture
def folder(monkeypatch):
    """Where sockets are files, as they are everywhere on macOS."""
    with tempfile.TemporaryDirectory() as short:  # a worker's tmp_path is longer than a socket's path may be
        monkeypatch.setenv(FOLDER, str(Path(short, "s")))
        yield Path(short, "s")


class Child:
    """A process that has called a function, and holds what that returned until it's killed.  said: "" or an error's name."""

    def __init__(self, function):
        reading, writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                held = function()
                os.write(writing, b"\n")
            except OSError as error:
                os.write(writing, b"%s\n" % errno.errorcode[error.errno].encode())
            signal.pause()
            os._exit(bool(held))
        os.close(writing)
        with open(reading) as file:
            self.said = file.readline().strip()

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def is_taken(name):
    try:
        Listener(name, 1).remove()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def test_a_name_is_taken_for_as_long_as_a_process_listens_there(folder):
    listener = Listener("n", 1)
    holder = Child(lambda: listener)  # as a collector, whose listener its rank has made
    listener.close()
    assert is_taken("n")
    connect("n").close()
    holder.kill()
    assert sorted(os.listdir(folder)) == ["n", "n.lock"]  # what it could not remove
    with pytest.raises(ConnectionRefusedError):
        connect("n")
    again = Listener("n", 1)
    connect("n").close()
    again.remove()
    assert os.listdir(folder) == [] and not is_taken("n")
    again.remove()  # it isn't its own any more
    other = Listener("n", 1)
    again.remove()
    connect("n").close()
    other.remove()


def test_of_jobs_that_start_at_once_one_gets_the_name(folder):
    Child(lambda: Listener("n", 1)).kill()  # its file is left
    for _ in range(5):
        children = [Child(lambda: Listener("n", 1)) for _ in range(6)]
        assert sorted(child.said for child in children) == [""] + ["EADDRINUSE"] * 5
        connect("n").close()
        for child in children:
            child.kill()


def opened(folder):
    folder.mkdir(mode=0o700)
    folder.chmod(0o770)


def linked(folder):
    (folder.parent / "t").mkdir(mode=0o700)
    folder.symlink_to("t")


def given_away(folder):
    folder.mkdir(mode=0o700)
    if os.getuid():
        pytest.skip("only root can give a folder away")
    os.chown(folder, STRANGER, -1)


FLAWS = {
    opened: r"/s is open to other users \(its mode is 770, not 700\), so",
    linked: "/s isn't a folder, so",
    given_away: rf"/s belongs to a different user \({STRANGER}\), so",
}


@pytest.mark.parametrize("make", FLAWS)
def test_a_folder_that_others_can_enter_is_refused(make, folder):
    make(folder)
    for use in (lambda: Listener("n", 1), lambda: connect("n")):
        with pytest.raises(Untrusted, match=FLAWS[make] + f" .* Set {FOLDER} to a folder that only you can enter."):
            use()
    assert os.listdir(folder) == []


def test_a_path_that_no_socket_can_have_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path / string.ascii_letters / string.ascii_letters))
    (tmp_path / string.ascii_letters).mkdir()
    with pytest.raises(Untrusted, match=f"too long a path for a socket. Set {FOLDER} to a shorter one"):
        connect("n")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be a different user")
def test_a_stranger_is_noticed_at_either_end():
    """Where names are no files, anybody can take one."""
    name = f"collectives-test-{os.getpid()}"

    def as_stranger(function):
        os.setuid(STRANGER)
        return function()

    stranger = Child(lambda: as_stranger(lambda: Listener(name, 1)))
    with pytest.raises(Untrusted, match="somebody else's process is in its place"):
        connect(name)
    stranger.kill()
    with Listener(name, 1) as listener:
        mine, stranger = connect(name), Child(lambda: as_stranger(lambda: socket_to(name)))
        (first, _), (second, _) = listener.accept(), listener.accept()
        with mine, first, second:
            assert same_user(first) and not same_user(second)
        stranger.kill()


def socket_to(name):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(f"\0{name}")
    return sock


@pytest.mark.slow
def test_jobs_one_after_the_other_with_the_same_port_are_all_recorded(folder, tmp_path):
    Child(lambda: Listener("n", 1)).kill()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "--master-addr", "127.0.0.1", "--master-port", free.getsockname()[1]
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        launcher = "--nnodes", 1, "--node-rank", 0, *address
        code, said, record = job(tmp_path / name, "train", "tiny", 5, launcher=launcher, ranks=2)
        assert code == 0 and [len(events) for events in load(record).events] == [7, 7], said
        assert sorted(os.listdir(folder)) == ["n", "n.lock"]  # none of theirs


@pytest.fixture
def link(folder, monkeypatch):
    """A rank's link, whose script has made a call, while its host's collector isn't there yet."""
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setattr(client, "START_SECONDS", 0.0)
    monkeypatch.setattr(client, "FIND_SECONDS", 10.0)
    link = client.Client(0, 0.0, False)
    link.emit(Called(event(0, 0)))
    return link


def test_a_script_that_ends_before_its_collector_is_there_is_recorded(link):
    ending = threading.Thread(target=link.end)
    ending.start()
    ending.join(0.2)
    assert ending.is_alive()  # it waits for the collector
    with client.listener(1) as listener:
        pipe = Pipe(listener.accept()[0])
        with pipe.sock:
            frames = []
            while {"end": True} not in (asked := [what for what, _ in frames]):
                frames += pipe.receive()
            assert asked[0]["rank"] == 0
            ring = RingReader(pipe.descriptors.pop(0))
            pieces = [piece for piece, _ in ring.read()]
            ring.close()
            messages = [message for piece in pieces for _, message in MessageDecoder(0, 0.0).hear(piece, False)]
            assert Called in map(type, messages)
            pipe.send({"bye": True})
            ending.join(client.END_SECONDS)
            assert not ending.is_alive()


def test_a_script_that_ends_while_there_is_no_collector_says_that_it_is_not_recorded(link, monkeypatch, capfd):
    monkeypatch.setattr(client, "END_SECONDS", 0.1)
    link.end()
    assert "rank 0 is not recorded: the script has ended, and the collector is not reachable." in capfd.readouterr().err


@pytest.mark.slow
def test_a_job_whose_folder_others_can_enter_says_so_and_trains(folder, tmp_path):
    opened(folder)
    code, said, _ = job(tmp_path, "train", "tiny", 5, ranks=2)
    assert code == 0 and said.count("trained") == 2
    assert f"no collector can be started: {folder} is open to other users (its mode is 770, not 700)" in said
    for rank in range(2):
        assert f"rank {rank} is not recorded: the collector is not reachable ({folder} is open to other users" in said


def test_frames_of_two_threads_arrive_whole():
    here, there = map(Pipe, socket.socketpair())
    here.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)

    def send(thread):
        for number in range(10):
            here.send({"thread": thread, "number": number}, bytes([thread]) * 200_000)

    def send_all():
        threads = [threading.Thread(target=send, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        here.sock.shutdown(socket.SHUT_WR)

    threading.Thread(target=send_all, daemon=True).start()
    frames = []
    with here.sock, there.sock:
        while (arrived := there.receive()) is not None:
            frames += arrived
    for thread in (0, 1):
        arrived = [(what["number"], data) for what, data in frames if what["thread"] == thread]
        assert arrived == [(number, bytes([thread]) * 200_000) for number in range(10)]
