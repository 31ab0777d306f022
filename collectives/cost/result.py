"""Seconds of one collective, their parts, and the bandwidths that follow; with the standard library alone, for a page."""

from dataclasses import dataclass
from math import inf

from ..format import duration, size
from ..log.collectives import COLLECTIVES, least


@dataclass(frozen=True, repr=False)
class Cost:
    """Seconds of one collective, and their parts."""

    what: str
    machine: str
    collective: str
    world_size: int
    nbytes: float
    protocol: str
    steps: int
    seconds: float
    start: float  # before the first step
    latency: float
    transfer: float
    addition: float
    limits: dict[str, float]  # port or link -> seconds of transfer it decided
    algorithm: str = ""  # NCCL's name for it, where NCCL chose
    band: tuple[float, float] | None = None  # seconds, the least and the most that nine of ten systems take
    whose: str = ""  # which systems
    beyond: str = ""  # why the price is an extrapolation

    @property
    def algbw(self) -> float:
        return algbw(self.nbytes, self.seconds)

    @property
    def busbw(self) -> float:
        return busbw(self.collective, self.nbytes, self.world_size, self.seconds)

    def __repr__(self) -> str:
        limit = max(self.limits, key=self.limits.get) if self.limits else "nothing"
        around = " to ".join(map(duration, self.band)) if self.band else ""
        known = f"  nine of ten {self.whose}: {around}\n" if around else ""
        known += f"  extrapolated: {self.beyond}\n" if self.beyond else ""
        return (
            f"{self.what} on {self.machine}, {size(self.nbytes)}: {duration(self.seconds)}\n{known}"
            f"  {self.steps} steps, protocol {self.protocol}; busbw {self.busbw / 1e9:.3g} GB/s\n"
            f"  start {duration(self.start)} + latency {duration(self.latency)} + transfer "
            f"{duration(self.transfer)} (mostly {limit}) + addition {duration(self.addition)}"
        )


def check_bytes(nbytes: float) -> None:
    if nbytes < 0:
        raise ValueError(f"a buffer has 0 bytes or more, not {nbytes}.")


def algbw(nbytes: float, seconds: float) -> float:
    """Algorithm bandwidth in bytes/s: the buffer's size over the time."""
    return nbytes / seconds if seconds else inf


def busbw(collective: str, nbytes: float, world_size: int, seconds: float) -> float:
    """Bus bandwidth in bytes/s: what the busiest link carries where the algorithm is as good as can be.

    nbytes: S, as in nccl-tests, doc/PERFORMANCE.md.  Raises ValueError for a collective without such a factor.
    """
    known = [op for op, row in COLLECTIVES.items() if row.least] + ["send"]
    if collective not in known:
        raise ValueError(f"there is no bus bandwidth for {collective!r}, only for {', '.join(known)}.")
    if world_size < 2:
        return 0.0
    return algbw(nbytes, seconds) * (1.0 if collective == "send" else least(collective, world_size))
