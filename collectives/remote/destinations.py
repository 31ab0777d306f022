"""`run()` with ranks on other machines, or on hosts that this machine simulates."""

from functools import partial
from typing import Any, Callable, Sequence

from ..launch import run as launch
from ..launch.pool import LocalRanks
from ..launch.session import Settings
from ..launch.wire import Place
from ..outcome.run import Run
from .engines import EngineRanks
from .hosts import Hosts
from .ipp import engines_of

RANKS_PER_HOST = 2


class HostRanks(LocalRanks):
    """Ranks on hosts made of namespaces, equally many on each."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts, self.usual = hosts, RANKS_PER_HOST * hosts.count

    def _places(self, world_size: int) -> Sequence[Place]:
        return self._hosts.places(world_size)


def run(
    fn: Callable[..., Any],
    on: Any,
    *args: Any,
    world_size: int | None = None,
    timeout: float = 60.0,
    check: bool = True,
    whole: bool = False,
    record: bool = True,
    backend: str | None = None,
    device: str | None = None,
    **kwargs: Any,
) -> Run:
    """Like `collectives.run`, with the ranks on other hosts; the other arguments are explained there.

    on: a Hosts, or a Client or view of ipyparallel, whose engines then start the ranks.
    world_size: number of ranks. By default two on each host, or one on each engine.

    Returns the same Run and raises the same errors; EngineError for engines that cannot be used.
    """
    ranks = ranks_on(on)
    size = ranks.usual if world_size is None else world_size
    settings = Settings(size, timeout, check, whole, record, backend, device)
    return launch.run_on(ranks, settings, fn, args, kwargs)


def use(on: Any = None, backend: str | None = None, device: str | None = None) -> None:
    """From here on, `collectives.run` and whatever else runs a function take their ranks there.

    on: as for run(); None: this machine again.
    backend, device: the defaults for run().
    """
    if on is not None:
        ranks_on(on)  # otherwise unusable arguments would only fail at the next run
    launch.usual = backend, device
    launch.where = LocalRanks if on is None else partial(ranks_on, on)


def ranks_on(on: Any) -> HostRanks | EngineRanks:
    """The ranks of Hosts, or of ipyparallel's engines. Raises TypeError for anything else."""
    return HostRanks(on) if isinstance(on, Hosts) else EngineRanks(engines_of(on))
