"""Engines of ipyparallel, which starts them directly or by SSH, MPI, Slurm, PBS, LSF, Kubernetes and others."""

import weakref
from typing import Any, Callable

from .engines import EngineError
from .relay import Answer, Engines


class IpyparallelEngines(Engines):
    """The engines of a client, or of a view of it."""

    def __init__(self, client: Any, ids: list[int]) -> None:
        super().__init__([f"engine {engine}" for engine in ids])
        self._views = [client[engine] for engine in ids]

    def ask(self, engine: int, function: Callable, *args: Any) -> Answer:
        return self._views[engine].apply_async(function, *args)


_engines_of: weakref.WeakKeyDictionary[Any, dict[tuple, IpyparallelEngines]] = weakref.WeakKeyDictionary()


def engines_of(on: Any) -> IpyparallelEngines:
    """The engines of an ipyparallel Client, or of a view, in its order. Raises TypeError for anything else."""
    try:
        import ipyparallel
    except ImportError:
        raise EngineError("ipyparallel is not installed: pip install 'collectives-course[cluster]'") from None
    if isinstance(on, ipyparallel.Client):
        client, ids = on, list(on.ids)
    elif isinstance(on, ipyparallel.DirectView):
        client, targets = on.client, on.targets
        ids = [targets] if isinstance(targets, int) else list(client.ids if targets in ("all", None) else targets)
    else:
        raise TypeError(f"ranks need Hosts, or a Client or view of ipyparallel, not a {type(on).__name__}.")
    if lost := [engine for engine in ids if engine not in client.ids]:
        raise EngineError(f"engines {lost} are gone; those that are left: {list(client.ids)}.")
    return _engines_of.setdefault(client, {}).setdefault(tuple(ids), IpyparallelEngines(client, ids))
