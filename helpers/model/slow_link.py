"""A link that is slow on purpose, so that one machine shows the value of overlap: sleeping takes no processor.

link = SlowLink(bandwidth=6e6, latency=0.008)
link.compute("block1", seconds=0.06)
work = link.start("480 KB", dist.all_reduce, torch.zeros(120_000))
link.finish()  # spans for collectives.train.overlap
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable

import torch

Span = tuple[str, str, float, float]  # lane, activity, start and end in seconds


class SlowLink:
    """A link that carries one call at a time: it makes the call, then sleeps as long as its bytes would take.

    bandwidth: bytes per second.  latency: seconds per call.  lane: the name of the computation's spans.
    """

    def __init__(self, bandwidth: float, latency: float = 0.0, lane: str = "backward") -> None:
        self._bandwidth, self._latency, self._lane = bandwidth, latency, lane
        self._thread = ThreadPoolExecutor(1)
        self._computed: list[Span] = []
        self._carried: list[Span] = []

    def start(self, words: str, call: Callable, *tensors: torch.Tensor) -> Future:
        """The call in flight; result() waits until the link has carried it.  Its largest tensor is the message."""
        return self._thread.submit(self._carry, words, call, tensors)

    def compute(self, words: str, seconds: float) -> None:
        """Sleep, as a GPU would compute, while the link continues."""
        start = time.perf_counter()
        time.sleep(seconds)
        self._computed.append((self._lane, words, start, time.perf_counter()))

    def finish(self) -> list[Span]:
        """All spans so far, after the last call in flight has arrived."""
        self._thread.shutdown()
        return self._computed + self._carried

    def _carry(self, words: str, call: Callable, tensors: tuple[torch.Tensor, ...]) -> None:
        start = time.perf_counter()
        call(*tensors)
        time.sleep(self._latency + max(tensor.nbytes for tensor in tensors) / self._bandwidth)
        self._carried.append(("link", words, start, time.perf_counter()))
