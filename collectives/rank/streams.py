"""Calls that a device carries out later, in a stream: whether one is through, asked without waiting for it.

NCCL's calls return once they are in a stream, and `Work.wait()` makes another stream wait, not this process.  So a
rank is through with such a call when it is issued, and its end is seen only by asking.  No function here waits.
"""

from typing import Any, Callable, NamedTuple

import torch


class Streams(NamedTuple):
    """How a kind of device is asked.

    mark: makes what has a query(): whether all that is in the device's current stream now has been carried out.
    capturing: whether what is called now goes into a graph, to be carried out when that is replayed.
    """

    mark: Callable[[torch.device], Any]
    capturing: Callable[[], bool]


def _event(device: torch.device) -> torch.Event:
    event = torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    return event


def _cuda_event(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


KINDS = {"cuda": Streams(_cuda_event, torch.cuda.is_current_stream_capturing)}  # others than the CPU: as _OTHERS
_OTHERS = Streams(_event, lambda: False)


def of(device: torch.device) -> Streams | None:
    """The streams of a device; None for the CPU, whose calls are waited for."""
    return KINDS.get(device.type) or (None if device.type == "cpu" else _OTHERS)
