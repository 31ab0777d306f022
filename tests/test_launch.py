"""Ranks, their server and the machine before a function runs: many ranks, slow, stopped, lost, refused; who is told what."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from collectives.judge import wording
from collectives.judge.verdict import NoStart
from collectives.launch import run as launch
from collectives.launch import session
from collectives.outcome.errors import StartFailed, Stuck
from helpers import RankFailed, run
from tests.corpus.faults import end, on_standby, server
from tests.kernels import kernels
from tests.sampling import when

HERE = Path(__file__).resolve().parents[1]


# What might wait for ever, or changes the whole process, runs in another one, in pieces:
# a kernel, where a cell has a minute.
IN_KERNEL = """
import os, resource, signal, threading, time
import psutil, torch
from helpers import RankFailed, run
from collectives.launch import pool, session
from collectives.launch import wire
from collectives.judge import monitor
from collectives.outcome.errors import ServerLost, StartFailed
from tests.corpus.faults import end, on_standby, server

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and all that it starts
me = psutil.Process()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

def rank():
    return int(os.environ["RANK"])

def interrupted(*args, **kwargs):
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        run(*args, **kwargs)
    except KeyboardInterrupt as error:
        return str(error).splitlines()[0]
    finally:
        timer.join()
"""


@pytest.fixture(scope="module")
def kernel():
    with kernels(1) as (one,):
        assert one.run(IN_KERNEL) == []
        yield one


def said_by(kernel, code):
    """What a cell prints, and the error that it should not end with."""
    return "".join(
        "\n".join(content["traceback"]) if kind == "error" else content
        for kind, content in kernel.run(textwrap.dedent(code))
        if kind != "display_data"  # the line that says what the ranks of a long run do
    )


def script(folder, code, timeout=180, **options):
    """What a program prints that ends well and says nothing else."""
    file = Path(folder, "script.py")
    file.write_text(IN_KERNEL + textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, str(file)], cwd=folder, env={**os.environ, "PYTHONPATH": str(HERE)},
        capture_output=True, text=True, timeout=timeout, **options,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@contextmanager
def every_new_rank(strike):
    """Strikes each rank as soon as there is a process for it."""
    known, end = set(server().children()), threading.Event()

    def watch():
        while not end.is_set():
            for child in set(server().children()) - known:
                known.add(child)
                strike(child)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


# --- many ranks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(sizes, marks=when(False, each_push=sizes == (64, 128)))
        for sizes in [(64, 128), (180, 180), (128, 256), (256, 256, 256)]
    ],
)
def test_hundreds_of_ranks_again_and_again(sizes, tmp_path):
    code = f"for n in {sizes}: print(run(rank, world_size=n).results == list(range(n)))"
    assert script(tmp_path, code, timeout=400) == "True\n" * len(sizes)


@pytest.mark.parametrize(
    "times, n",
    [pytest.param(k, n, marks=when(False, each_push=n == 32)) for k, n in ((1, 32), (2, 64), (2, 128), (8, 256))],
)
def test_many_ranks_after_interrupts_at_any_moment(times, n, tmp_path):
    code = f"""
    import random
    print(run(rank, world_size=2).results)
    for k in range({times}):
        timer = threading.Timer(random.random() * 10, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            while True:
                run(lambda: None, world_size={n})
        except KeyboardInterrupt:
            timer.join()
    print(len(run(rank, world_size={n}).results))
    """
    assert script(tmp_path, code, timeout=500) == f"[0, 1]\n{n}\n"


# --- a server that does not read, or reads late -------------------------------------------


# The socket has room for the requests of three, not of 64.
@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 64])
def test_a_stopped_server_can_be_interrupted_and_continued(n, kernel):
    code = f"""
    run(rank, world_size=2)
    server().suspend()
    for _ in range(2):
        print(interrupted(rank, world_size={n}))
    threading.Timer(0.3, server().resume).start()
    print(run(rank, world_size={n}).results == list(range({n})))
    """
    said = "interrupted. The ranks had not started yet."
    assert said_by(kernel, code) == f"{said}\n{said}\nTrue\n"


@pytest.mark.slow
def test_how_a_rank_died_is_known_from_a_server_that_is_late(kernel):
    code = """
    def stop_the_server_and_die():
        os.kill(os.getppid(), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGKILL)
    run(rank, world_size=2)
    process = server()
    def resume():
        while process.status() != psutil.STATUS_STOPPED:
            pass
        time.sleep(2 * monitor.FAILURE_GRACE_SECONDS)
        process.resume()
    threading.Thread(target=resume).start()
    try:
        run(stop_the_server_and_die, world_size=1)
    except RankFailed as error:
        print(str(error).splitlines()[0])
    """
    assert said_by(kernel, code) == "rank 0 was killed by SIGKILL before any call.\n"


def test_a_rank_that_does_not_read_its_job_is_no_reason_to_wait_for_ever(kernel):
    """The job is larger than a socket holds, and one rank on standby is stopped."""
    code = """
    waiting = on_standby(2)
    waiting[1].suspend()
    data = b"x" * (8 << 20)
    print(interrupted(len, data, world_size=2))
    print(run(len, data, world_size=2).results)
    """
    assert said_by(kernel, code) == f"interrupted. The ranks were here:\n[{8 << 20}, {8 << 20}]\n"


@pytest.mark.slow
def test_a_server_that_must_be_killed_does_not_hold_up_the_end_of_the_program(tmp_path):
    assert script(tmp_path, "run(rank, world_size=2)\nserver().suspend()\nprint('end')") == "end\n"


@pytest.mark.slow
def test_a_slow_start_is_told_as_one(monkeypatch):
    run(lambda: None, world_size=2)
    monkeypatch.setattr(session, "START_SECONDS_PER_RANK", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(session, "START_SECONDS", 0.01)
        with pytest.raises(StartFailed, match="the ranks did not start within 0.01 s: 0 of 40 were ready") as caught:
            run(lambda: None, world_size=40, timeout=30)
        assert "None of your code has run" in str(caught.value) and "torch" not in str(caught.value)
        assert caught.value.run.events == [[] for _ in range(40)]
    assert run(dist.get_rank, world_size=40).results == list(range(40))


@pytest.mark.slow
def test_a_server_that_still_loads_torch_goes_on_with_it(monkeypatch):
    run(lambda: None, world_size=2)
    end(server())
    monkeypatch.setattr(session, "START_SECONDS_PER_RANK", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(session, "START_SECONDS", 0.01)
        with pytest.raises(
            StartFailed, match="0 of 3 were ready. The process that starts them was still loading torch"
        ):
            run(lambda: None, world_size=3)
    loading = server()
    assert run(dist.get_rank, world_size=3).results == [0, 1, 2] and server() == loading


@pytest.mark.slow
def test_our_own_signal_ends_no_rank_that_just_starts():
    run(lambda: None, world_size=2)
    server().send_signal(signal.SIGUSR1)
    with every_new_rank(lambda child: child.send_signal(signal.SIGUSR1)):
        assert run(dist.get_rank, world_size=40).results == list(range(40))


# --- lost between two calls, or before the function ran -----------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_ranks_lost_on_standby_are_nobodys_fault(count):
    for process in on_standby(3)[-count:]:
        end(process)
    assert run(dist.get_rank, world_size=3).results == [0, 1, 2]


def test_a_server_lost_between_two_calls_is_nobodys_fault():
    on_standby(3)
    end(server())
    assert run(dist.get_rank, world_size=3).results == [0, 1, 2]


def test_a_rank_lost_while_it_starts_is_told_as_such():
    run(lambda: None, world_size=2)
    with every_new_rank(lambda child: child.kill()):
        with pytest.raises(RankFailed) as caught:
            run(lambda: None, world_size=40)
    assert str(caught.value).splitlines() == [
        f"rank {caught.value.rank} was killed by SIGKILL before it ran any of your code.",
        "Something outside ended it: usually the system, when memory runs out.",
        "Run the cell again.",
    ]
    assert run(dist.get_rank, world_size=2).results == [0, 1]


# --- the server's own words ---------------------------------------------------------------


def test_the_traceback_of_a_crashed_server_is_told(kernel, tmp_path):
    code = f"""
    folder = {str(tmp_path)!r}
    def work():
        print("on my way")
        os.mkdir(os.path.join(folder, str(rank())))
        time.sleep(1000)
    def crash():
        while len(os.listdir(folder)) < 2:
            pass
        pool.server().post(wire.Ready())  # which is no request
    threading.Thread(target=crash).start()
    try:
        run(work, world_size=2)
    except ServerLost as error:
        print(error)
        assert error.run.stdout == ["on my way\\n"] * 2
    print(run(rank, world_size=2).results)
    """
    said = said_by(kernel, code)
    assert "the process that starts the ranks crashed, and the ranks with it. Its last words:\n" in said
    assert (
        "Traceback (most recent call last):" in said
        and "TypeError: the server was sent Ready(), which is not a request" in said
    )
    assert said.endswith("Run the cell again: it starts again.\n[0, 1]\n")


@pytest.mark.slow
def test_a_server_that_warns_without_end_goes_on(tmp_path):
    Path(tmp_path, "noisy.py").write_text("import os\nfor _ in range(64): os.write(2, b'x' * (1 << 16))")
    code = """
    run(rank, world_size=2)
    pool.server().learn(["noisy"])
    print(run(rank, world_size=3).results)
    """
    assert script(tmp_path, code) == "[0, 1, 2]\n"


# --- what the system refuses --------------------------------------------------------------


NO_PROCESSES = """
import os, resource, signal
root, usual = os.geteuid() == 0, resource.getrlimit(resource.RLIMIT_NPROC)

def undo(*_):
    if root:
        os.setresuid(0, 0, 0)
    resource.setrlimit(resource.RLIMIT_NPROC, usual)

signal.signal(signal.SIGUSR2, undo)
resource.setrlimit(resource.RLIMIT_NPROC, (1, usual[1]))
if root:  # whom the limit does not bind
    os.setresuid(65534, 65534, 0)
"""


@pytest.mark.slow
def test_no_processes_are_left_is_told_and_survived(tmp_path):
    Path(tmp_path, "no_processes.py").write_text(NO_PROCESSES)
    code = """
    on_standby(2)
    pool.server().learn(["no_processes"])
    for n in (2, 2, 5):  # of the first, a worker group is on standby already
        try:
            print(run(rank, world_size=n).results)
        except StartFailed as error:
            print(error)
    first = server()
    first.send_signal(signal.SIGUSR2)
    print(run(rank, world_size=5).results, server() == first)
    """
    words = [
        "ranks could be started: the system allows no more processes (ulimit -u, or a container's limit). "
        "None of your code has run.",
        "Close programs and other notebooks, use fewer ranks, or raise the limit.",
    ]
    assert script(tmp_path, code).splitlines() == [
        "[0, 1]", f"only 0 of 2 {words[0]}", words[1], f"only 0 of 5 {words[0]}", words[1], "[0, 1, 2, 3, 4] True"
    ]  # fmt: skip


def test_no_descriptors_are_left_wherever_it_happens_and_none_leaks(kernel):
    code = """
    on_standby(2)
    before, said = me.num_fds(), []
    for spare in range(24):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + spare, hard))
        try:
            said.append(run(rank, world_size=5).results)
        except StartFailed as error:
            said.append(str(error))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        on_standby(2)
        assert me.num_fds() == before
    print(said[0])
    print(len(set(said[:16])), said[-1])
    """
    assert said_by(kernel, code) == (
        "the ranks could not be started: too many files are open. None of your code has run.\n"
        "A run needs about 35 of them in this process. Close some, use fewer ranks, restart the kernel, or raise the "
        "limit\n(ulimit -n) before you start Jupyter.\n1 [0, 1, 2, 3, 4]\n"
    )


@pytest.mark.slow
def test_no_room_for_a_server_is_told_wherever_it_happens_and_the_next_call_tries_again(kernel):
    code = """
    on_standby(2)
    usual = me.num_fds()
    end(server())
    lowest = os.dup(0)
    os.close(lowest)
    said = 0
    for limit in range(lowest - 9, lowest + 99):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            print(run(rank, world_size=2).results)
            break
        except StartFailed as error:
            said += "too many files are open" in str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    on_standby(2)
    print(said == limit - (lowest - 9) > 9, me.num_fds() - usual)
    """
    assert said_by(kernel, code) == "[0, 1]\nTrue 0\n"


@pytest.mark.slow
def test_more_than_1024_open_files_are_no_obstacle(kernel):
    code = """
    kept = []
    if hard < 2048:
        print("this user may not open so many")
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
        pool.server().close()  # what the kernel opens for the next one, it opens above 1024
        kept += [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        print(run(rank, world_size=3).results)
        for descriptor in kept:
            os.close(descriptor)
    """
    if (said := said_by(kernel, code)).startswith("this"):
        pytest.skip(said)
    assert said == "[0, 1, 2]\n"


@pytest.mark.parametrize(
    "number, why", [(errno.ENOMEM, "there is no memory left"), (errno.ENOSPC, "the disk for temporary files is full")]
)
def test_what_cannot_be_arranged_here_is_told_in_words_too(number, why):
    said = wording.words(NoStart(world_size=1, number=number, why=os.strerror(number)))
    assert said.startswith(f"the ranks could not be started: {why}. None of your code has run.\n")


@pytest.mark.slow
def test_importing_the_package_needs_nothing_of_the_system(tmp_path):
    """The server that a kernel starts in advance is an optimisation. The first run says what is wrong."""
    with kernels(1) as (kernel,):
        kernel.run("import torch")  # this does need the folder
        kernel.run(f"import os\nos.mkdir({str(tmp_path / 'gone')!r}); os.chdir({str(tmp_path / 'gone')!r})")
        kernel.run(f"os.rmdir({str(tmp_path / 'gone')!r})")
        assert kernel.run("from helpers import run") == []
        (error,) = kernel.run("run(lambda: 1, world_size=2)")
        assert error[1]["ename"] == "FileNotFoundError" and "os.chdir" in error[1]["evalue"]
        assert kernel.text("os.chdir('/')\nprint(run(lambda: 1, world_size=2).results)") == "[1, 1]\n"


# --- forks, threads and signals of the caller ---------------------------------------------


@pytest.mark.slow
def test_a_forked_child_runs_ranks_of_its_own_and_does_not_keep_its_parents_server(tmp_path):
    code = """
    run(rank, world_size=2)
    first, begun = server(), threading.Event()
    thread = threading.Thread(target=lambda: begun.set() or run(time.sleep, 1, world_size=2))
    thread.start()
    begun.wait()
    if os.fork() == 0:  # while a run is under way
        print(run(rank, world_size=3).results, flush=True)
        os.kill(os.getppid(), signal.SIGKILL)
        while first.is_running() and first.status() != psutil.STATUS_ZOMBIE:
            pass
        print("its server is gone")
    else:
        thread.join()
        print(run(rank, world_size=2).results, flush=True)
        signal.pause()
    """
    file = Path(tmp_path, "script.py")
    file.write_text(IN_KERNEL + textwrap.dedent(code))
    with subprocess.Popen(
        [sys.executable, str(file)], env={**os.environ, "PYTHONPATH": str(HERE)}, stdout=subprocess.PIPE, text=True
    ) as process:
        said, _ = process.communicate(timeout=180)  # until the child ends, too
    assert "[0, 1, 2]" in said.splitlines() and said.endswith("its server is gone\n")


def test_runs_in_threads_take_turns():
    results, threads = {}, []
    for n in (2, 3, 4):
        work = threading.Thread(target=lambda n=n: results.update({n: run(dist.get_rank, world_size=n).results}))
        threads.append(work)
        work.start()
    for work in threads:
        work.join()
    assert results == {n: list(range(n)) for n in (2, 3, 4)}


def test_a_program_that_ignores_interrupts_goes_on(kernel):
    code = """
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    print(run(lambda: time.sleep(0.5) or rank(), world_size=2).results)
    _ = signal.signal(signal.SIGINT, usual)
    """
    assert said_by(kernel, code) == "[0, 1]\n"


# --- results that cannot be read ----------------------------------------------------------

HOME = os.getpid()


class ReadableElsewhere:
    """A value that unpickles in a rank, and not where run() was called."""

    def __init__(self):
        self.x = 1

    def __setstate__(self, state):
        if os.getpid() == HOME:
            raise AttributeError("this version has no x")


def test_a_result_that_cannot_be_read_is_named_and_the_record_is_kept():
    def work():
        x = torch.ones(1)
        dist.all_reduce(x)
        return ReadableElsewhere() if dist.get_rank() else x

    with pytest.raises(RankFailed) as caught:
        run(work, world_size=3)
    error = caught.value
    assert str(error).startswith(
        "ranks 1 and 2 returned something that cannot be read here: AttributeError: this version has no x\n"
    )
    assert error.rank == 1 and "__setstate__" in error.traceback
    assert error.run.results[0].item() == 3 and error.run.results[1:] == [None, None]
    assert [e.op for e in error.run.events[2]] == ["all_reduce"]


@pytest.mark.slow
def test_a_result_that_cannot_be_read_hides_no_verdict():
    def work():
        if dist.get_rank() == 0:
            return ReadableElsewhere()
        raise ValueError("too hot")

    with pytest.raises(RankFailed, match="rank 1 raised ValueError: too hot"):
        run(work, world_size=2)


@pytest.mark.skipif(
    not hasattr(time, "pthread_getcpuclockid") or sys.platform != "linux", reason="no clock of other processes"
)
@pytest.mark.slow
def test_ranks_that_compute_get_longer_than_their_timeout_but_no_more_than_their_share(monkeypatch):
    """As on a busy machine, where ten seconds are few."""
    monkeypatch.setattr(session, "MOST_PATIENCE", 1000.0)

    def computes(seconds):
        until = time.process_time() + seconds
        while time.process_time() < until:
            pass
        return "done"

    def tried(seconds, computing):
        settings = session.Settings(2, 0.4, True, False, True, computing=computing)
        return launch.run_on(launch.where(), settings, computes, (seconds,), {})

    assert tried(1.0, computing=60.0).results == ["done", "done"]
    for seconds, computing in ((1.0, 0.0), (600.0, 1.0)):
        with pytest.raises(Stuck, match="out of time"):
            tried(seconds, computing)
