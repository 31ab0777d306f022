"""One rank: runs a submitted answer, once for each case the scorer hands it, in one world after the other.

In each world the cells run again, as in a notebook that is restarted.  Data that a rank keeps from an earlier case
reveals nothing about a later one, whose inputs are drawn independently and sent once all ranks have returned.
"""

import functools
import io
import os
import random
import socket
import sys
import threading
import time
import traceback
import types
import warnings
from concurrent.futures import thread as pools
from typing import Any

import torch

from helpers.exercise.on_rank import LATE_SECONDS, File, outcome

from . import seccomp
from .cell import code_of
from .process_group import ANSWER, Uplink, join, open_to
from .protocol import decode, encode
from .shipped import PRETENDED

cell_code = functools.cache(code_of)  # in one world after the other


def live(sock: socket.socket, memory: int, closed_in: bool) -> None:
    """Runs in a freshly forked process, and never returns."""
    try:
        os.setsid()
        uplink = Uplink(sock)
        job, _ = uplink.hear()
        seccomp.limit(memory)
        if closed_in:
            seccomp.close_in()
        random.seed()
        torch.default_generator.seed()
        sys.stdout = sys.stderr = _OutputStream(uplink)
        warnings.simplefilter("ignore")  # they name files of the sandbox, and are seen where the answer is written
        open_to(uplink)
        loaded = set(sys.modules)
        while job:
            job = _work(uplink, job, loaded)
    finally:
        os._exit(0)


def _work(uplink: Uplink, job: dict[str, Any], loaded: set[str]) -> dict[str, Any] | None:
    """The job that follows this one; None once the answer has failed."""
    try:
        for prefix in ("", "LOCAL_"):  # as torchrun sets them
            os.environ |= {f"{prefix}RANK": str(job["rank"]), f"{prefix}WORLD_SIZE": str(job["world_size"])}
        join(uplink, job["rank"], job["world_size"])
        answer = _answer(job)
    except BaseException as error:
        return uplink.say(_failure(error))

    def program(*arguments: Any) -> Any:
        result = answer(*arguments)
        _join_threads()
        return result

    uplink.say({"ready": True})
    while True:
        header, body = uplink.hear()
        if "case" not in header:
            return header
        values = decode(header["case"], body)
        for place, size in header["files"]:
            values[place] = File(RemoteBytes(uplink, place, size))
        arguments = tuple(values)
        uplink.groups.clear()
        if header["late"]:
            time.sleep(LATE_SECONDS)
        try:
            result, passed, left = outcome(program, arguments)
            value, body = encode((_flat(result), passed))
        except BaseException as error:
            return uplink.say(_failure(error))
        loads = "torch._dynamo" in sys.modules  # checkpoint, for one, imports it, which takes a second
        besides = {"groups": uplink.groups, "leaves": left, "used": _uses_modules(loaded), "loads": loads}
        uplink.say({"returned": value, **besides}, body)


def _uses_modules(loaded: set[str]) -> bool:
    """Whether an answer has left something that could meddle in the next world: a thread, or a module that knows this.

    torch.distributed.nn, for one, takes the world that it is imported in as the default of its functions.
    """
    imported = {name.partition(".")[0] for name in set(sys.modules) - loaded}
    return threading.active_count() > 1 or not imported <= {"__main__", *PRETENDED, *sys.stdlib_module_names}


def _join_threads() -> None:
    """Wait for the threads that the answer has left, as the end of a program does; not for a pool's, which wait for work."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon and thread not in pools._threads_queues:
            thread.join()


def _answer(job: dict[str, Any]) -> Any:
    """Runs the notebook's cells as a notebook would, and returns the function that is asked for."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.display = print  # as in a notebook
    trouble = None
    for name, source in job["cells"]:
        try:
            exec(cell_code(source, f"{ANSWER}{name}>"), vars(module))
        except BaseException as error:
            trouble = trouble or error
    if job["function"] not in vars(module):
        functions = [value for value in vars(module).values() if isinstance(value, types.FunctionType)]
        also = [value.__name__ for value in functions if value.__code__.co_filename.startswith(ANSWER)]
        more = f" It defines {', '.join(also[:5])}: keep the name that the statement gives." if also else ""
        raise trouble or NameError(f"the answer cell must define {job['function']}.{more}")
    return vars(module)[job["function"]]


def _flat(result: Any) -> Any:
    """A schedule as the numbers that the scorer takes (exercises/tasks/09_beat_the_schedule.py); anything else as it is."""
    if type(result).__name__ != "Schedule":
        return result
    messages = [(k, j, message) for k, step in enumerate(result.steps) for j, message in enumerate(step)]
    rows = [(k, j, m.source, m.target, m.adds, chunk) for k, j, m in messages for chunk in m.chunks]
    numbers = torch.tensor(rows, dtype=torch.int64).reshape(-1, 6)
    return result.collective, result.world_size, result.chunks, len(result.steps), numbers


def _failure(error: BaseException) -> dict[str, Any]:
    trace = traceback.extract_tb(error.__traceback__)
    frames = [[f.filename, f.lineno, f.name] for f in trace if f.filename.startswith(ANSWER)]
    if isinstance(error, SyntaxError) and str(error.filename).startswith(ANSWER):
        frames.append([error.filename, error.lineno, "answer cell"])
    message = f"it called sys.exit({error.code!r})" if isinstance(error, SystemExit) else str(error)
    if isinstance(error, SyntaxError):
        message = str(error.msg)  # without the name of a file that doesn't exist
    return {"failed": type(error).__name__, "message": message[:2000], "frames": frames[-8:]}


class _OutputStream(io.TextIOBase):
    """Standard output: an answer's prints go to the scorer, in order with its calls."""

    encoding = "utf-8"

    def __init__(self, uplink: Uplink) -> None:
        self._uplink = uplink

    def write(self, text: str) -> int:
        for k in range(0, len(text), 1000):
            self._uplink.say({"printed": text[k : k + 1000]})
        return len(text)


class RemoteBytes:
    """The content of a file that stays with the scorer, of which a slice asks for its bytes."""

    def __init__(self, uplink: Uplink, place: int, size: int) -> None:
        """place: among the arguments."""
        self._uplink, self._place, self._size = uplink, place, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        most = part.stop - part.start
        return self._uplink.ask({"read": self._place, "at": part.start, "most": most})[1] if most > 0 else b""
