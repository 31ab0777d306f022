"""Every backend's ways, as far as they differ from one to the next: the waits of a call, losses, refusals, errors.

Code asks a trait of the row of an Event's backend, and compares no name.
A backend that has no row, as "ncclx", "xccl", "hccl", "ucc", "mpi" or one of your own, and one that is not known at
all, has the defaults: they accuse nobody, since nobody has looked its ways up.  Ranks import this module.
"""

from dataclasses import dataclass, field
from typing import Literal, Mapping

# Names that a recorder writes before a call's, or as a group's description.
NAMES = ("nccl", "ncclx", "nccl2", "gloo", "rccl", "rcclx", "xccl", "mccl", "hccl")


@dataclass(frozen=True)
class Backend:
    """A backend's ways.  The defaults are for a backend with unknown ways."""

    name: str | None = None

    # Its calls go into a device's stream: the rank continues, a wait makes the stream wait, and a call that has not ended
    # keeps all behind it from starting.
    in_stream: bool = False
    # A synchronous call returns once it is complete for its rank.
    blocks: bool = False
    # The ranks without which a collective does not end on a rank: all members; the partners that its algorithm
    # gives this rank (Collective.gloo); or only the ranks whose data the result contains.
    ends_with: Literal["all", "algorithm", "senders"] = "senders"
    # A send pairs with a recv of the same tag, as torch's documentation promises; False: tags are ignored.
    matches_tags: bool = True
    # A message whose Work is dropped before its recv is posted is not sent.
    drops_messages: bool = False
    # Its methods may be called in the operators' place: each call returns a Work of its own.
    direct: bool = False
    # Members connect as soon as they make a group, and not in its first call.
    connects_at_once: bool = False
    # The tensors, "in" or "out", of which it reads and writes the memory as if it were dense: numbers between the
    # view's own. (Of all others it makes a copy, or it raises.)
    takes_for_dense: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Collectives that accept a different size from each rank; all but the last take a list.
    uneven: tuple[str, ...] = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all", "all_to_all_single")
    # The flight recorder holds its sends and receives.
    records_messages: bool = True
    # The flight recorder's states distinguish a queued call from a started one.
    records_starts: bool = False
    # Part of the name of each of its kernels, in lower case.
    kernels: str | None = None


# Measured by tests/corpus/mistakes.py, and ProcessGroupGloo.cpp: a Work's destructor gives up its unbound buffers;
# RECORD_PARAM_COMMS and the recorder are called by collectives alone.
GLOO = Backend(
    "gloo", blocks=True, ends_with="algorithm", drops_messages=True, direct=True, connects_at_once=True,
    uneven=("all_to_all_single",), records_messages=False,
    takes_for_dense={
        "all_reduce": ("in",), "reduce": ("in",), "broadcast": ("in",), "scatter": ("in", "out"),
        "reduce_scatter": ("out",), "all_to_all_single": ("out",),
    },
)  # fmt: skip

# ProcessGroupNCCL.hpp: Work::wait "will not block the CPU", a device's kernel ends once all members have made the call.
# ProcessGroupNCCL.cpp: send and recv ignore the tag (as torch.distributed.isend's warning has it); all_gather and reduce_scatter with uneven lists become broadcasts and reduces (_broadcast_oop, _reduce_oop),
# gather and scatter refuse them; tensors that are not contiguous are refused; within a batch, calls return no Work.
# ROCm's RCCL has this name and these kernels in torch, too.
NCCL = Backend(
    "nccl", in_stream=True, ends_with="all", matches_tags=False, records_starts=True, kernels="nccl",
    uneven=("all_gather", "reduce_scatter", "all_to_all", "all_to_all_single"),
)  # fmt: skip

BACKENDS = {backend.name: backend for backend in (GLOO, NCCL)}
UNKNOWN = Backend()


def of(name: str | None) -> Backend:
    """The row of a backend, by the name that an Event has."""
    return BACKENDS.get(name, UNKNOWN)


def configured(config: str) -> list[Backend]:
    """The rows of all backends of a group: of "gloo", or of "cpu:gloo,cuda:nccl"."""
    return [of(part.rpartition(":")[2].strip()) for part in config.lower().split(",")]


# --- errors ---------------------------------------------------------------------------------

_ERRORS = ("RuntimeError", "DistBackendError", "DistNetworkError")
LOST_WORDS = (  # words of errors that another rank's end explains
    "Connection closed by peer",
    "Connection reset by peer",
    "pair closure",
    "Broken pipe",
    "Read error",
    "remote process exiting prematurely",  # NCCL's
    "Write error",
)


def may_follow(kind: str) -> bool:
    """Whether an exception of this class may only mean that a call could not finish, or that somebody has ended the job
    because of it."""
    return kind in (*_ERRORS, "DistStoreError", "KeyboardInterrupt")


def is_consequence(kind: str, message: str) -> bool:
    """Whether an exception of this class, with this message, only means that another rank is gone."""
    return kind in _ERRORS and any(words in message for words in LOST_WORDS)
