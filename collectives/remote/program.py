"""A notebook as a torchrun program: export.py puts a call of `begin()` at its top.

Rank 0 of the launcher runs the cells.  The launcher's processes, rank 0 among them, are engines: on each call
of run() they start the ranks that it asks for, wherever they are.  Without a launcher everything stays on this machine.
"""

import atexit
import itertools
import os
import pickle
import sys
from base64 import b64decode
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable

import torch.distributed as dist

from .. import frontend
from ..launch import run as launch
from .engines import EngineRanks
from .relay import Answer, Engines

LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what it sets
FOREVER = timedelta(days=365)
QUIT = b""

_pictures = Path()
_numbers = itertools.count(1)


def begin(pictures: str, backend: str | None = None, device: str | None = None) -> None:
    """Use the launcher's processes as engines.  Returns on rank 0 only: the others end when rank 0 has ended.

    pictures: a folder for the cells' pictures, made when the first is written.
    backend, device: as for `run`, for all ranks.
    """
    import IPython.display  # notebooks have it; a library that records a job does not

    global _pictures
    _pictures = Path(pictures)
    launch.usual = backend, device
    IPython.display.display = _display  # called by objects that show themselves
    if not all(name in os.environ for name in LAUNCHER):
        return
    store, rank, world_size = next(iter(dist.rendezvous("env://")))
    for name in LAUNCHER:  # run() would take this process for a rank
        del os.environ[name]
    store = dist.PrefixStore("collectives.remote.program", store)
    store.set_timeout(FOREVER)
    if rank:
        _serve(store, rank)
        sys.exit(0)
    engines = StoreEngines(store, world_size)
    atexit.register(engines.quit)
    launch.where = lambda: EngineRanks(engines)


def show(*values: Any) -> None:
    """Print each value's text as a notebook shows it, and write its picture into a file."""
    for value in values:
        if isinstance(value, BaseException):
            print(f"{type(value).__name__}: {value}", flush=True)
        elif hasattr(value, "unattended"):  # an interactive object: its output where nobody can use it
            frontend.show(*value.unattended())
        elif hasattr(value, "_ipython_display_"):
            value._ipython_display_()
        elif value is not None:
            _display(value)


def _display(*values: Any, raw: bool = False, **_: Any) -> None:
    """IPython's display() for a program."""
    for value in values:
        if raw:
            print(value["text/plain"], flush=True)
        elif hasattr(value, "_repr_mimebundle_"):
            _pictures.mkdir(parents=True, exist_ok=True)
            path = _pictures / f"{next(_numbers):02}.png"
            path.write_bytes(b64decode(value._repr_mimebundle_()[0]["image/png"]))
            print(f"[picture: {path}]", flush=True)
        else:
            print(repr(value), flush=True)


class StoreEngines(Engines):
    """The launcher's processes, reached through its key-value store. The first of them is this one."""

    def __init__(self, store: dist.Store, count: int) -> None:
        super().__init__([f"torchrun's rank {rank}" for rank in range(count)])
        self._store, self._asked = store, [itertools.count() for _ in range(count)]

    def ask(self, engine: int, function: Callable, *args: Any) -> Answer:
        key, question = f"{engine}/{next(self._asked[engine])}", pickle.dumps((function, args))
        if engine:
            self._store.set(f"ask/{key}", question)
        else:
            self._store.set(f"answer/{key}", _answer(question))
        return _PendingAnswer(self._store, f"answer/{key}")

    def quit(self) -> None:
        for engine, asked in enumerate(self._asked[1:], 1):
            self._store.set(f"ask/{engine}/{next(asked)}", QUIT)


class _PendingAnswer:
    """A future answer, read from the store."""

    def __init__(self, store: dist.Store, key: str) -> None:
        self._store, self._key = store, key

    def ready(self) -> bool:
        return self._store.check([self._key])

    def get(self) -> Any:
        value, error = pickle.loads(self._store.get(self._key))
        self._store.delete_key(self._key)
        if error:
            raise RuntimeError(error)
        return value


def _serve(store: dist.Store, rank: int) -> None:
    for number in itertools.count():
        question = store.get(f"ask/{rank}/{number}")
        store.delete_key(f"ask/{rank}/{number}")
        if question == QUIT:
            return
        store.set(f"answer/{rank}/{number}", _answer(question))


def _answer(question: bytes) -> bytes:
    """(result, "") or (None, what went wrong), pickled: an exception may not be picklable."""
    function, args = pickle.loads(question)
    try:
        return pickle.dumps((function(*args), ""))
    except Exception as error:
        return pickle.dumps((None, f"{type(error).__name__}: {error}"))
