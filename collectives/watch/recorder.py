"""The recorder around a script, in each rank; the first of a host starts the collector there besides."""

import argparse
import atexit
import os
import secrets
import socket
import sys
import threading
import time
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Callable, Iterator, NoReturn

import torch.distributed as dist

from ..log.event import Failure, Line, Value
from ..log.messages import Called, Completed, Failed, Joining, Message
from ..rank import threads, torch_private
from ..rank.callers import is_learners
from ..rank.callsites import Callsites
from ..rank.early_use import Unwatched
from ..rank.failure import failure
from ..rank.finite import Finite
from ..rank.groups import Groups, KnownGroups
from ..rank.replicas import Replicas
from ..rank.tensors import capture, outline
from ..rank.tracer import Tracer
from . import client
from .lines import RETURN_MESSAGE
from .pipe import say

CAUGHT_SECONDS = 60  # a shorter timeout, of a group other than the world's, was set to be caught


@contextmanager
def recording(options: argparse.Namespace) -> Iterator[None]:
    """Record the block's calls, and all until the process ends. options: from the command line."""
    rank, began = int(os.environ["RANK"]), time.perf_counter()
    if rank == client.first_rank():
        try:
            _start_collector(options, began)
        except OSError as error:  # each rank reports that it is not recorded
            say(f"no collector can be started: {error}")
    way = client.Client(rank, began, options.values)
    emit = (lambda message: way.emit(_without_tensors(message))) if options.values else way.emit
    if rank == 0:
        torch_private.warn()
    tracer = Tracer(rank, emit, began, capture if options.values else outline)
    _compose(tracer, way, options)
    way.before_stack = tracer.ask
    failed = False

    def tell(error: Failure) -> None:
        nonlocal failed
        failed = True
        way.emit(Failed(error))

    def end() -> None:
        if os.getpid() != pid:  # a child that the script forked
            return
        tracer.finish()
        if not failed:
            way.emit(RETURN_MESSAGE)
        way.end()

    pid = os.getpid()
    atexit.register(end)  # first in, last out: the script's work at its exit is recorded too
    _told_of_exit(end, tell)
    tracer.__enter__()
    Groups(int(os.environ["WORLD_SIZE"]), way.emit).__enter__()
    if options.replicas:
        Replicas(options.replicas, emit, lambda: tracer.calls).start()
    try:
        yield
    except BaseException as error:
        if not (isinstance(error, SystemExit) and error.code in (None, 0)):
            tell(failure(error, True))
        raise
    finally:
        if not failed and threads.to_join:
            way.emit(Joining(set(threads.to_join)))


def _compose(tracer: Tracer, way: client.Client, options: argparse.Namespace) -> None:
    """Set the parts of a job's tracer that its options ask for."""
    tracer.groups = KnownGroups(
        tracer.rank, _is_caught, lambda at: way.give_up(f"the program made it rank {at}, in a default group of its own")
    )
    if not options.watch:
        tracer.watch = Unwatched()
    if options.nan:
        tracer.finite = Finite(tracer.emit)
    elif not options.values:  # no call's tensors are read
        tracer.callsites = Callsites(tracer)


def _is_caught(timeout: float, group: dist.ProcessGroup) -> bool:
    """Whether the program set a group's timeout, in seconds, to catch its error: anything else a job should report."""
    return timeout < CAUGHT_SECONDS and group.group_name != dist.group.WORLD.group_name


def _told_of_exit(end: Callable[[], None], tell: Callable[[Failure], None]) -> None:
    """Have os._exit, at which Python calls nothing, end the recording first."""
    leave, pid = os._exit, os.getpid()

    @wraps(leave)
    def _exit(status: int) -> NoReturn:
        if os.getpid() == pid:
            if status != 0:
                lines = [Line(*line) for line in client.stack(threading.get_ident())]
                frames = [line for line in lines if is_learners(line.file)]
                tell(Failure("SystemExit", f"it called os._exit({status})", frames, True))
            end()
        leave(status)

    os._exit = _exit


def _without_tensors(message: Message) -> Message:
    """The message with copies of its tensors, which are the program's own."""
    if type(message) is Called:
        message.event.before = _copy(message.event.before)
    elif type(message) is Completed:
        return message._replace(after=_copy(message.after))
    return message


def _copy(value: Value) -> Value:
    if isinstance(value, list):
        return [_copy(v) for v in value]
    return value.clone() if hasattr(value, "clone") else value


def _start_collector(options: argparse.Namespace, began: float) -> None:
    """Start the collector of this host, in a process that outlives this one."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    count = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if "LOCAL_RANK" in os.environ else 1
    folder = _folder(options.record, options.script[0]) if rank == 0 else None
    launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None  # torchrun, which ends after its ranks
    others, way = None, {"token": secrets.token_hex(16), "began": began, "launcher": launcher}
    if rank == 0 and count < size:
        others = socket.create_server(("", 0), backlog=size)
        way |= {"addresses": [os.environ["MASTER_ADDR"], socket.gethostname()], "port": others.getsockname()[1]}
    local = client.listener(count)
    sys.stdout.flush()
    sys.stderr.flush()
    if child := os.fork():
        os.waitpid(child, 0)
        for listener in filter(None, (local, others)):
            listener.close()
        return
    try:
        os.setsid()  # a launcher that ends its ranks ends their sessions
        if os.fork():
            os._exit(0)
        from .collector import collect

        collect(local, others, way, size, count, folder, options)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        local.remove()
        sys.stderr.flush()
        os._exit(0)  # it is not waited for


def _folder(wanted: str | None, script: str) -> str:
    folder = wanted or os.path.join("records", f"{Path(script).stem}-{time.strftime('%Y%m%d-%H%M%S')}")
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    folder += f"-restart{restart}" if restart != "0" else ""
    if os.path.isdir(folder) and os.listdir(folder):
        sys.exit(f"{folder} is there already: choose another with --record FOLDER.")
    return os.path.abspath(folder)
