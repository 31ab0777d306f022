"""Scripts run as in a terminal: what is printed, and that nothing outlives the call."""

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import psutil
import pytest
import torch.distributed as dist

from helpers import terminal
from tests import ROOT

WAITS = """
import os, signal, sys

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as a script may
print("rank", os.environ.get("RANK", "-"), "is about to wait")
with open({fifo!r}, "w") as alive:
    print(os.getpid(), os.getppid(), file=alive, flush=True)
    signal.pause()
"""


@contextmanager
def waiting(folder, ranks):
    """A script whose ranks wait without end, and the function that returns their and their parents' pids once they do."""
    fifo = str(folder / "alive")
    os.mkfifo(fifo)
    descriptor = os.open(fifo, os.O_RDWR)  # opening one end alone would wait for the other

    def when_all_wait():
        with open(descriptor, closefd=False) as lines:
            return {int(pid) for _ in range(ranks) for pid in lines.readline().split()}

    try:
        yield WAITS.format(fifo=fifo), when_all_wait
    finally:
        os.close(descriptor)


@pytest.mark.slow
def test_nodes_that_print_more_than_a_pipe_holds_end(capsys):
    script = """
import os, sys
rank = os.environ["RANK"]
for stream in (sys.stdout, sys.stderr):
    stream.write(f"rank {rank}\\n" + "x" * 180_000 * int(rank) + "\\n")
"""
    terminal.torchrun(script, nodes=2, per_node=1)
    assert capsys.readouterr().out.splitlines() == ["", "rank 0", "rank 1", "x" * 180_000]


def test_lines_are_sorted_and_errors_follow_them_if_the_script_fails(capsys):
    script = "import sys\nprint('b')\nprint('a')\nprint('an error', file=sys.stderr)\nsys.exit(int(sys.argv[1]))"
    terminal.python(script, 0)
    assert capsys.readouterr().out == "a\nb\n"
    terminal.python(script, 1)
    assert capsys.readouterr().out == "a\nb\nan error\n\n"


@pytest.mark.slow
def test_an_interrupted_call_leaves_no_process_and_no_store(tmp_path, monkeypatch):
    ports = []
    store = dist.TCPStore

    def noted(*args, **kwargs):
        board = store(*args, **kwargs)
        ports.append(board.port)
        return board

    monkeypatch.setattr(dist, "TCPStore", noted)
    before, pids = set(psutil.Process().children(recursive=True)), set()
    with waiting(tmp_path, ranks=2) as (script, when_all_wait):

        def interrupt():
            pids.update(when_all_wait())
            os.kill(os.getpid(), signal.SIGINT)

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt) as kept:  # with its traceback
            terminal.torchrun(script, nodes=2, per_node=1)
        interrupting.join()
    assert kept and len(pids) == 4 and not any(map(psutil.pid_exists, pids))
    assert set(psutil.Process().children(recursive=True)) <= before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", *ports))


@pytest.mark.slow
def test_what_kills_the_caller_ends_its_nodes(tmp_path):
    with waiting(tmp_path, ranks=1) as (script, when_all_wait):
        code = f"from helpers.terminal import torchrun\ntorchrun({script!r}, nodes=1, per_node=1)"
        caller = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)})
        left = [psutil.Process(pid) for pid in when_all_wait()]
        caller.kill()
        caller.wait()
        _, alive = psutil.wait_procs(left, timeout=60)
    assert len(left) == 2 and alive == []


@pytest.mark.slow
def test_a_script_that_takes_too_long_is_ended_and_what_it_printed_last_is_told(tmp_path):
    with waiting(tmp_path, ranks=1) as (script, when_all_wait):
        child = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', {!r}], start_new_session=True)"
        with pytest.raises(TimeoutError, match=r"within 5 s.*\n.*node 0, still running: rank - is about to wait"):
            terminal.python(child.format(script), timeout=5)
        assert not any(map(psutil.pid_exists, when_all_wait()))
