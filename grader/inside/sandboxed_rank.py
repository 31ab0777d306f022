"""One rank: runs a submitted answer, once for each case the scorer hands it, in one world after the other.

In each world the cells run again, as in a notebook that is restarted.  Data that a rank keeps from an earlier case
reveals nothing about a later one, whose inputs are drawn independently and sent once all ranks have returned.
"""

import asyncio
import errno
import importlib.abc
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
from importlib.machinery import ModuleSpec
from typing import Any

import torch

from . import seccomp
from .cell import plain
from .loop import Policy
from .process_group import ANSWER, Uplink, join, open_to
from .protocol import OpenedFile, decode, encode

PRETENDED = ("helpers", "collectives", "grader", "matplotlib", "IPython")  # packages that are not here
LATE_SECONDS = 0.05  # a rank starts after the others, if its case is late


def live(sock: socket.socket, base: int, closed_in: bool) -> None:
    """Runs in a freshly forked process, and never returns."""
    try:
        os.setsid()
        uplink = Uplink(sock)
        job, _ = uplink.hear()
        seccomp.limit(base)
        if closed_in:
            seccomp.close_in()
        random.seed()
        torch.default_generator.seed()
        sys.stdout = sys.stderr = _OutputStream(uplink)
        warnings.simplefilter("ignore")  # they name files of the sandbox, and are seen where the answer is written
        open_to(uplink)
        asyncio.set_event_loop_policy(Policy())
        sys.meta_path.insert(0, Pretended())
        loaded = set(sys.modules)
        while job:
            job = _work(uplink, job, loaded)
    finally:
        os._exit(0)


def _work(uplink: Uplink, job: dict[str, Any], loaded: set[str]) -> dict[str, Any] | None:
    """The job that follows this one; None once the answer has failed."""
    try:
        os.environ.update(_environment(job["rank"], job["world_size"]))
        join(uplink, job["rank"], job["world_size"])
        answer = _answer(job)
    except BaseException as error:
        return uplink.say(_failure(error))
    uplink.say({"ready": True})
    while True:
        header, body = uplink.hear()
        if "case" not in header:
            return header
        values = decode(header["case"], body)
        values = by_columns(values) if header["by columns"] else values
        arguments = tuple(RemoteFile(uplink, value) if isinstance(value, OpenedFile) else value for value in values)
        passed = hold(arguments)
        uplink.groups.clear()
        if header["late"]:
            time.sleep(LATE_SECONDS)
        try:
            result = answer(*arguments)
            _join_threads()
            value, body = encode((_flat(result), passed))
        except BaseException as error:
            return uplink.say(_failure(error))
        loads = "torch._dynamo" in sys.modules  # checkpoint, for one, imports it, which takes a second
        uplink.say({"returned": value, "groups": uplink.groups, "left": _uses_modules(loaded), "loads": loads}, body)


def _uses_modules(loaded: set[str]) -> bool:
    """Whether an answer has left something that could meddle in the next world: a thread, or a module that knows this.

    torch.distributed.nn, for one, takes the world that it is imported in as the default of its functions.
    """
    imported = {name.partition(".")[0] for name in set(sys.modules) - loaded}
    return threading.active_count() > 1 or not imported <= {"__main__", *PRETENDED, *sys.stdlib_module_names}


def by_columns(value: Any) -> Any:
    """The arguments with matrices stored column by column, which aren't contiguous."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(by_columns, value)) if type(value) in (list, tuple) else value
    return value.t().contiguous().t() if isinstance(value, torch.Tensor) and value.dim() == 2 else value


def hold(value: Any) -> Any:
    """Aliases of the arguments that the answer can't rebind: it can't replace a tensor or a list in them."""
    if isinstance(value, (list, tuple)):
        return type(value)(hold(part) for part in value)
    return value.detach() if isinstance(value, torch.Tensor) else value


def _join_threads() -> None:
    """Wait for the threads that the answer has left, as the end of a program does; not for a pool's, which wait for work."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon and thread not in pools._threads_queues:
            thread.join()


def _environment(rank: int, world_size: int) -> dict[str, str]:
    """The environment variables that torchrun sets."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    return {name: str(value) for name, value in ranks.items()}


def _answer(job: dict[str, Any]) -> Any:
    """Runs the notebook's cells as a notebook would, and returns the function that is asked for."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.display = print  # as in a notebook
    trouble = None
    for name, source in job["cells"]:
        if name.startswith("collectives."):  # a module of the library that this exercise's answers need
            sys.modules[name] = types.ModuleType(name)
            exec(compile(source, f"<{name}>", "exec"), vars(sys.modules[name]))
            continue
        try:
            file = f"{ANSWER}{name}>"
            exec(compile(plain(source, file), file, "exec"), vars(module))
        except BaseException as error:
            trouble = trouble or error
    if job["function"] not in vars(module):
        functions = [value for value in vars(module).values() if isinstance(value, types.FunctionType)]
        also = [value.__name__ for value in functions if value.__code__.co_filename.startswith(ANSWER)]
        more = f" It defines {', '.join(also[:5])}: keep the name that the statement gives." if also else ""
        raise trouble or NameError(f"the answer cell must define {job['function']}.{more}")
    return vars(module)[job["function"]]


class Pretended(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stand-ins for packages that are not here: a cell that imports them or tries itself out continues without."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] in PRETENDED:
            return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__getattr__ = self._missing

    def _missing(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


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


class _OutputStream:
    """Standard output: an answer's prints go to the scorer, in order with its calls."""

    encoding = "utf-8"

    def __init__(self, uplink: Uplink) -> None:
        self._uplink = uplink

    def write(self, text: str) -> int:
        for k in range(0, len(text), 1000):
            self._uplink.say({"printed": text[k : k + 1000]})
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


class RemoteFile(io.RawIOBase):
    """An open file as open(path, "rb", buffering=0) gives one."""

    def __init__(self, uplink: Uplink, opened: OpenedFile) -> None:
        self._uplink, self._opened, self._at = uplink, opened, 0

    def readable(self) -> bool:
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._opened.size}[whence]
        if at < 0:
            raise OSError(errno.EINVAL, "there is nothing before the first byte of a file")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        buffer = memoryview(buffer).cast("B")
        if not len(buffer):
            return 0
        _, part = self._uplink.ask({"read": self._opened.number, "at": self._at, "most": len(buffer)})
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)
