"""Messages and their seconds of each kind of parallelism in an optimizer step, for a GPU of the fullest pipeline rank.

The one place where ways to divide a model are priced.  Messages take NCCL's time (cost/tuner.py).
"""

from functools import lru_cache
from typing import NamedTuple

from ..cost.tuner import Nccl, nccl
from ..log.collectives import least
from ..machines.topology import Machine
from .compute import Compute
from .division import Division
from .memory import Bytes, held_parameters
from .shape import Shape
from .software import Overlap


class Messages(NamedTuple):
    """One kind of parallelism's messages."""

    sent: float = 0.0  # bytes per step
    seconds: float = 0.0  # per step, one after the other
    exposed: float = 0.0  # seconds per step that no computing hides


class CallPrices:
    """A machine's prices of calls among ranks that are equally far apart; asked for again, they are not made again."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._priced: dict[tuple, Nccl] = {}
        self._seconds: dict[tuple, float] = {}

    def seconds(self, op: str, ranks: int, apart: int, nbytes: float) -> float:
        if (key := (op, ranks, apart, nbytes)) not in self._seconds:
            self._seconds[key] = self._price(op, ranks, apart)(nbytes).seconds
        return self._seconds[key]

    def _price(self, op: str, ranks: int, apart: int) -> Nccl:
        if (key := (op, ranks, apart)) not in self._priced:
            self._priced[key] = nccl(op, self.machine, range(0, ranks * apart, apart))
        return self._priced[key]


network = lru_cache(maxsize=64)(CallPrices)


class CallGroup(NamedTuple):
    """Ranks that communicate, and the distance of two neighbors among them."""

    network: CallPrices
    ranks: int
    apart: int

    def seconds(self, op: str, nbytes: float) -> float:
        """Seconds of one call; nbytes: the whole buffer."""
        if self.ranks == 1:
            return 0.0
        return self.network.seconds(op, 2 if op == "send" else self.ranks, self.apart, nbytes)

    def sent(self, op: str, nbytes: float) -> float:
        """Bytes that a rank sends in one call, as record.traffic has it."""
        return least(op, self.ranks) * nbytes if self.ranks > 1 else 0.0


def tensor_messages(
    model: Shape, d: Division, net: CallPrices, overlap: Overlap, microbatches: int, bytes_: Bytes
) -> Messages:
    """Four all_reduces per layer, or an all_gather and a reduce_scatter for each, and two more to recompute.

    Experts that are whole on a rank need none for their block.
    """
    group = CallGroup(net, d.tensor, 1)
    nbytes = bytes_.activation * model.length / d.context * d.microbatch * model.hidden
    whole = model.routed if d.experts > 1 else 0.0
    forward = 2 - whole  # per layer: one for attention, one for the feed-forward block
    again = {"full": forward, "mlp": 1 - whole}.get(d.recompute, 0.0)
    calls = microbatches * d.layers(model) * (2 * forward + again)
    ops = ("all_gather", "reduce_scatter") if d.sequence else ("all_reduce",)
    seconds = calls * sum(group.seconds(op, nbytes) for op in ops)
    return Messages(calls * sum(group.sent(op, nbytes) for op in ops), seconds, seconds * (1 - overlap.tensor))


def context_messages(
    model: Shape, d: Division, net: CallPrices, overlap: Overlap, microbatches: int, bytes_: Bytes, attention: float
) -> Messages:
    """All keys and values forward, again backward, and their gradients, hidden by attention (its seconds)."""
    group = CallGroup(net, d.context, d.tensor)
    nbytes = 2 * bytes_.activation * model.kv_width / d.tensor * model.length * d.microbatch
    calls, each = d.layers(model) * microbatches, 3 + (d.recompute == "full")
    seconds = each * group.seconds("all_gather", nbytes)
    exposed = max(0.0, seconds - overlap.context * 3 * attention)
    return Messages(calls * each * group.sent("all_gather", nbytes), calls * seconds, calls * exposed)


def expert_messages(
    model: Shape, d: Division, net: CallPrices, overlap: Overlap, microbatches: int, bytes_: Bytes
) -> Messages:
    """Tokens to their experts and back, forward and backward.  A token crosses to a node once, as DeepEP sends it."""
    group = CallGroup(net, d.experts, 1)
    nodes = max(1, d.experts // net.machine.gpus.node)
    copies = nodes * (1 - (1 - 1 / nodes) ** model.active) if nodes > 1 else model.active  # nodes that a token visits
    tokens = model.length / d.context * d.microbatch / d.tensor
    nbytes = bytes_.activation * tokens * copies * model.hidden
    calls = 4 + 2 * (d.recompute in ("mlp", "full"))
    calls *= d.layers(model) * model.routed * microbatches
    seconds = calls * group.seconds("all_to_all", nbytes)
    return Messages(calls * group.sent("all_to_all", nbytes), seconds, seconds * (1 - overlap.experts))


def pipeline_messages(
    model: Shape, d: Division, net: CallPrices, overlap: Overlap, microbatches: int, bytes_: Bytes
) -> Messages:
    """An activation forward and its gradient backward, at each border of a rank's stages."""
    group = CallGroup(net, d.pipeline, d.tensor * d.context * d.data)
    # the tensor ranks send a part each
    nbytes = bytes_.activation * model.length / d.context * d.microbatch * model.hidden / d.tensor
    calls = 2 * d.chunks * microbatches
    seconds = calls * group.seconds("send", nbytes)
    return Messages(calls * nbytes, seconds, seconds * (1 - overlap.pipeline))


class DataCalls(NamedTuple):
    """The data ranks' messages: seconds and bytes of gathering all parameters once, scattering all gradients once, and
    summing the gradients of copies."""

    gather: float = 0.0
    scatter: float = 0.0
    total: float = 0.0
    gather_sent: float = 0.0
    scatter_sent: float = 0.0
    total_sent: float = 0.0

    def __add__(self, other: "DataCalls") -> "DataCalls":
        return DataCalls(*map(sum, zip(self, other)))


def data_calls(model: Shape, d: Division, net: CallPrices, bytes_: Bytes) -> DataCalls:
    """The calls for a GPU's parameters: for all at once, or layer by layer where these are sharded, too."""
    held = max((held_parameters(model, d, stage) for stage in (0, 1)), key=lambda held: held.total)
    apart = d.experts if d.experts > 1 else d.tensor
    expert_shards = d.expert_replicas // d.expert_copies
    shards, copies = CallGroup(net, d.shards, d.tensor), CallGroup(net, d.copies, d.tensor * d.shards)
    calls = _calls(held.dense, shards, copies, d, model, bytes_)
    if held.experts:
        shards = CallGroup(net, expert_shards, apart)
        copies = CallGroup(net, d.expert_copies, apart * expert_shards)
        calls += _calls(held.experts, shards, copies, d, model, bytes_)
    return calls


def _calls(
    parameters: float, shards: CallGroup, copies: CallGroup, d: Division, model: Shape, bytes_: Bytes
) -> DataCalls:
    """The calls for that many parameters, sharded over `shards`; the ranks of `copies` have the same shard."""
    values, gradients = parameters * bytes_.parameter, parameters * bytes_.gradient
    if d.shard == 0:
        seconds, sent = (
            shards.seconds("all_reduce", gradients) + copies.seconds("all_reduce", gradients),
            shards.sent("all_reduce", gradients) + copies.sent("all_reduce", gradients),
        )
        return DataCalls(total=seconds, total_sent=sent)
    pieces = d.layers(model) if d.shard == 3 else 1
    return DataCalls(
        pieces * shards.seconds("all_gather", values / pieces),
        pieces * shards.seconds("reduce_scatter", gradients / pieces),
        copies.seconds("all_reduce", gradients / shards.ranks),
        shards.sent("all_gather", values),
        shards.sent("reduce_scatter", gradients),
        copies.sent("all_reduce", gradients / shards.ranks),
    )


def data_messages(d: Division, calls: DataCalls, overlap: Overlap, microbatches: int, compute: Compute) -> Messages:
    """Gradients, and parameters where they are sharded; one microbatch's forward and backward hide them.

    Copies of the shards sum their gradients once a step, behind the last backward.
    """
    forward, backward = overlap.data * compute.forward, overlap.data * compute.backward  # that hide
    if d.shard == 3 and d.gather == "microbatch":
        gathers, scatters, behind = 2 * microbatches, microbatches, calls.gather + calls.scatter
        exposed = microbatches * (max(0.0, calls.gather - forward) + max(0.0, behind - backward))
    else:
        gathers, scatters, behind = 1, microbatches if d.shard == 2 else 1, calls.scatter
        exposed = scatters * max(0.0, behind - backward) + max(0.0, calls.gather - forward)
    exposed += max(0.0, calls.total - max(0.0, backward - behind))
    return Messages(
        gathers * calls.gather_sent + scatters * calls.scatter_sent + calls.total_sent,
        gathers * calls.gather + scatters * calls.scatter + calls.total,
        exposed,
    )
