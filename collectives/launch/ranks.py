"""Where a run's ranks come from."""

from typing import Sequence

from ..rank.protocol import Place, ProcessContext
from .forkserver import ForkServer
from .pool import server
from .workers import Patience, WorkerGroup


class Ranks:
    """Where a run's ranks come from: this machine.  Others do the same elsewhere (jobs/engines.py).

    places: the host of each rank; empty for this machine itself.
    hosts: how many they are on, once there are workers.
    """

    hosts = 1

    def __init__(self, places: Sequence[Place] = ()) -> None:
        self._places = places

    def server(self) -> ForkServer:
        """What forks the ranks. Raises OSError if the system has no room for it."""
        return server()

    def workers(
        self, server: ForkServer, world_size: int, context: ProcessContext, patience: Patience, new: bool
    ) -> WorkerGroup:
        """Ranks that nobody has used. new: none that were made in advance. Raises as ForkServer's methods do."""
        return server.workers(world_size, context, patience, new, self._places)
