"""A rank in a Python of its own: it shares no hash seed and no imports with its peers, as under torchrun."""

import os
import pickle
import socket
import sys
import tempfile
from typing import NoReturn

from .wire import RankSpec


def start(spec: RankSpec, descriptors: list[int]) -> NoReturn:
    """Replace this process, a fork of the server, by a new Python that runs the rank."""
    with tempfile.TemporaryFile() as file:
        pickle.dump((spec, descriptors), file)
        file.flush()
        for descriptor in (*descriptors, file.fileno()):
            os.set_inheritable(descriptor, True)
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from collectives.launch.fresh import main; main({file.fileno()})"
        )
        os.execv(sys.executable, [sys.executable, "-c", code])


def main(descriptor: int) -> None:
    """Run the rank that `start` was given."""
    from .process import rank_main
    from .warmup import preload

    with open(descriptor, "rb") as file:
        file.seek(0)
        spec, (sock, *streams) = pickle.load(file)
    preload()
    rank_main(spec, socket.socket(fileno=sock), *streams)
