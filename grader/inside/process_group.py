"""A torch.distributed process group whose network is the scorer, at the other end of one socket.

A call sends this rank's inputs to the scorer; waiting for it asks for its result.  Nothing is
computed here, so nothing here has to be believed.
"""

import functools
import inspect
import os
import socket
import sys
import threading
import time
from datetime import timedelta
from itertools import count
from typing import Any, Callable

import torch
import torch.distributed as dist

from collectives.rank.tensors import aliased, has_gaps, non_dense

from .protocol import FrameReader, decode, encode, frame

ANSWER = "<answer "  # how the file names of answer cells begin
# Before a wait, where there are other threads: no network answers so fast that they could not make their calls meanwhile.
LATENCY_SECONDS = 0.005
SUM = dist.ReduceOp.SUM


class Uplink:
    """This rank's end of the socket, for all its threads: each gets the answers to its own questions."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._frames, self._sending, self._count = sock, FrameReader(), threading.RLock(), 0
        self._news, self._reading = threading.Condition(), False  # whether one of the threads reads for all
        self._answers: dict[int, tuple[dict[str, Any], bytes]] = {}
        self._tickets, self._waiting = count(1), 0  # threads waiting for an answer
        self.groups: list[Any] = []  # a line and its ranks, of each call of new_group that every rank has to make

    def say(self, header: dict[str, Any], body: bytes = b"") -> None:
        with self._sending:
            self._sock.sendall(frame(header, body))

    def hear(self, ticket: int = 0) -> tuple[dict[str, Any], bytes]:
        """The answer to a ticket; for 0, the scorer's next message that answers no request."""
        with self._news:
            while ticket not in self._answers:
                if self._reading:
                    self._news.wait()
                    continue
                self._reading = True
                self._news.release()
                try:
                    data = self._sock.recv(1 << 18)
                finally:
                    self._news.acquire()
                    self._reading = False
                    self._news.notify_all()
                if not data:
                    os._exit(0)  # the scorer is done with this rank
                for header, body in self._frames.feed(data):
                    self._answers[header.get("to", 0)] = header, body
            return self._answers.pop(ticket)

    def ask(self, header: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        with self._sending:
            ticket, self._waiting = next(self._tickets), self._waiting + 1
            busy = threading.active_count() - self._waiting  # threads of which more may come
            self.say(header | {"ticket": ticket, "busy": max(0, busy)})
        try:
            return self.hear(ticket)
        finally:
            with self._sending:
                self._waiting -= 1

    def call(self, op: str, values: Any, outputs: Any, **details: Any) -> "PendingCall":
        """outputs: the tensors that will hold the result, in a list.  stored: the caller's own, if values are copies."""
        given = [values] if isinstance(values, torch.Tensor) else values or []
        _refused(op, [*given, *outputs], details.get("reduce_op"))
        stored = details.pop("stored", given)
        if not all(tensor.is_contiguous() for tensor in (*stored, *outputs)):
            details["strides"] = next((t.stride() for t in [*stored, *outputs][:1] if not t.is_contiguous()), None)
            details["non_dense"] = non_dense(stored, outputs)
        if len(outputs) > 1:
            details["aliased"] = aliased(outputs)
        if op in ("scatter", "reduce_scatter", "all_to_all_single"):
            outputs = list(map(_memory, outputs))
            values = list(map(_memory, values)) if isinstance(values, list) else values
        value, body = encoded = encode(values)
        described = [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in outputs]
        with self._sending:
            index, self._count = self._count, self._count + 1
            self.say({"call": op, "index": index, "in": value, "out": described, **details, **_caller()}, body)
        return PendingCall(self, index, values, outputs, encoded)


class PendingCall(dist.Work):
    """A call in flight, to which its tensors belong until the rank waits for it.

    The scorer has copied the sent data by then, but a network may read it, and write the received data, at any time
    before: an answer that writes into one of these tensors meanwhile gets an error.
    """

    def __init__(self, uplink: Uplink, index: int, values: Any, outputs: list[torch.Tensor], encoded: Any) -> None:
        super().__init__()
        self._uplink, self._index, self._outputs, self._source, self._done = uplink, index, outputs, -1, False
        self._asking = threading.Lock()  # one thread asks
        self._sends, self._receives = values, [tensor for tensor in outputs if tensor is not values]
        self._before = encoded, encode(self._receives)

    def _asked(self, how: str, **more: Any) -> bool:
        if self._done:
            return True
        written = (encode(self._sends), encode(self._receives)) != self._before
        header, body = self._uplink.ask({how: self._index, "written": written, **more})
        if not header["done"]:
            return False
        for target, value in zip(self._outputs, decode(header["value"], body)):
            with torch.no_grad():
                if 0 in target.stride():  # an expanded tensor: each number once
                    once = tuple(slice(None, None if stride else 1) for stride in target.stride())
                    target, value = target[once], value[once]
                target.copy_(value)
        self._done, self._source = True, header["source"]
        self._sends = self._receives = self._before = None
        return True

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if threading.active_count() > 1:
            time.sleep(LATENCY_SECONDS)
        with self._asking:
            is_main = threading.current_thread() is threading.main_thread()
            if not self._asked("wait", main=is_main, limit=timeout.total_seconds()):
                raise RuntimeError(f"Timed out waiting {timeout.total_seconds() * 1000:g}ms for the call to complete")
        return True

    def is_completed(self) -> bool:
        if not self._asking.acquire(blocking=False):
            return False  # another thread waits for it
        try:
            return self._asked("test")
        finally:
            self._asking.release()

    is_success, synchronize = is_completed, wait

    def result(self):
        self.wait()
        return self._outputs

    def get_future(self):
        return Future(self.result)

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank


class Future(torch.futures.Future):
    """The future of `compute`'s result, which is called when the result is asked for: nothing runs by itself here."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        super().__init__()
        self._compute = compute

    def wait(self):
        if not self.done():
            self.set_result(self._compute())
        return super().wait()

    value = wait

    def then(self, callback):
        def after():
            self.wait()
            return callback(self)

        return Future(after)


def _coalesced(call: Callable) -> Callable:
    """A method that makes one method's call for each output and input."""
    return lambda self, outputs, inputs, *opts: _AllWorks([call(self, *pair, *opts) for pair in zip(outputs, inputs)])


class SwitchGroup(dist.ProcessGroup):
    """The methods of a process group, as torch.distributed calls them, or an answer itself.

    opts: torch's options, or a short form's argument instead: a root, or a reduce op.
    """

    def __init__(self, uplink: Uplink, ranks: list[int], name: str) -> None:
        super().__init__(ranks.index(uplink.rank), len(ranks))
        self._uplink, self._ranks, self._name = uplink, ranks, name

    @property
    def group_name(self) -> str:  # which torch keeps in its own backend, and device meshes ask for
        return self._name

    def _call(self, op: str, values: Any, outputs: Any, **details: Any) -> PendingCall:
        return self._uplink.call(op, values, outputs, group=self._ranks, name=self._name, **details)

    def _in_place(self, op: str, tensors: list[torch.Tensor] | torch.Tensor, **details: Any) -> PendingCall:
        (tensor,) = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        return self._call(op, tensor, [tensor], **details)

    def _root(self, op: str, options: Any) -> int:
        """The global rank of a root. Raises RuntimeError, as gloo does, for one outside the group."""
        if (root := getattr(options, "rootRank", options)) not in range(len(self._ranks)):
            raise RuntimeError(f"ProcessGroupGloo::{op}: invalid root rank: {root}")
        return self._ranks[root]

    def _sized(self, op: str, tensors: list[torch.Tensor], size: Any = None) -> list[torch.Tensor]:
        """As many tensors as there are ranks, each of a size, or of any. Raises RuntimeError in gloo's words."""
        if len(tensors) != len(self._ranks):
            raise RuntimeError(f"ProcessGroupGloo::{op}: {LENGTHS[op].format(len(tensors), n=len(self._ranks))}")
        for k, shape in enumerate(tensor.shape for tensor in tensors if size is not None):
            if shape != size:
                sizes = "expected ({}), got ({})".format(*(", ".join(map(str, numbers)) for numbers in (size, shape)))
                raise RuntimeError(f"ProcessGroupGloo::{op}: invalid tensor size at index {k} ({sizes})")
        return tensors

    def _get_backend(self, device: Any) -> "SwitchGroup":  # which torch 2.14 asks whether it can coalesce messages
        return self

    def allreduce(self, tensors, opts=SUM):
        return self._in_place("all_reduce", tensors, reduce_op=_name(opts))

    def broadcast(self, tensors, opts=0):
        return self._in_place("broadcast", tensors, src=self._root("broadcast", opts))

    def reduce(self, tensors, opts=0, op=SUM):
        name = _name(getattr(opts, "reduceOp", op))
        return self._in_place("reduce", tensors, dst=self._root("reduce", opts), reduce_op=name)

    def allgather(self, outputs, inputs, opts=None):
        return self._call("all_gather", inputs[0], self._sized("allgather", outputs[0], inputs[0].shape))

    def all_gather_single(self, output, input, opts=None):
        self._sized("allgather", output.chunk(len(self._ranks)), input.shape)  # gloo cuts the output by rows
        return self._call("all_gather_single", input, [output])

    def gather(self, outputs, inputs, opts=0):
        outputs = self._sized("gather", outputs[0], inputs[0].shape) if outputs else []
        return self._call("gather", inputs[0], outputs, dst=self._root("gather", opts))

    def scatter(self, outputs, inputs, opts=0):
        inputs = self._sized("scatter", list(inputs[0])) if inputs else None
        return self._call("scatter", inputs, outputs, src=self._root("scatter", opts))

    def reduce_scatter(self, outputs, inputs, opts=SUM):
        (output,), values, me = outputs, list(inputs[0]), self.rank()
        if 0 in output.stride():
            output.mul_(1)  # raises torch's error for an expanded tensor
        values[me] = torch.empty_like(output).copy_(values[me])  # gloo begins with a copy of this one
        return self._call("reduce_scatter", values, outputs, reduce_op=_name(opts), stored=inputs[0])

    def reduce_scatter_single(self, output, input, opts=SUM):
        passed, wanted, parts = input.shape, output.shape, len(self._ranks)
        if not passed or not wanted or wanted[0] * parts != passed[0] or wanted[1:] != passed[1:]:
            raise RuntimeError(  # gloo cuts the input by rows, and not by numbers
                f"reduce_scatter_single: an input of shape {list(passed)} for {parts} ranks needs an output with "
                f"1/{parts} of its rows, and got one of shape {list(wanted)}."
            )
        return self._call("reduce_scatter_single", input, [output], reduce_op=_name(opts))

    def allreduce_coalesced(self, tensors, opts=SUM):
        return _AllWorks([self.allreduce([tensor], opts) for tensor in tensors])

    all_gather_single_coalesced, reduce_scatter_single_coalesced = _coalesced(all_gather_single), _coalesced(reduce_scatter_single)

    def alltoall(self, outputs, inputs, opts=None):
        for tensors in (inputs, outputs):
            self._sized("alltoall", tensors, tensors[0].shape if tensors else ())
        return self._call("all_to_all", list(inputs), list(outputs))

    def all_to_all_single(self, output, input, output_splits, input_splits, opts=None):
        if not input.is_contiguous():
            raise ValueError("Tensors must be contiguous")
        splits = [list(input_splits or ()), list(output_splits or ())]
        return self._call("all_to_all_single", input, [output], splits=splits)

    def barrier(self, opts=None):
        return self._call("barrier", None, [])

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        self.barrier().wait()

    def send(self, tensors, to, tag):
        (tensor,) = map(_contiguous, tensors)
        return self._call("send", tensor, [], dst=self._other(to), tag=tag)

    def recv(self, tensors, source, tag):
        return self._call("recv", None, list(map(_contiguous, tensors)), src=self._other(source), tag=tag)

    def recv_anysource(self, tensors, tag):
        if not tensors[0].numel():
            raise RuntimeError("gloo cannot receive an empty tensor from any source. Name the source.")
        return self._call("recv", None, list(map(_contiguous, tensors)), src=None, tag=tag)

    def _other(self, rank: int) -> int:
        """The global rank of a group's rank.  Raises IndexError for one outside it, RuntimeError for this rank."""
        if rank not in range(len(self._ranks)):
            raise IndexError(f"there is no rank {rank} in a group of {len(self._ranks)}")
        if (peer := self._ranks[rank]) == self._uplink.rank:
            raise RuntimeError(f"Pair is not connected: rank {peer} has none to itself")
        return peer

    def getBackendName(self) -> str:
        return "scored"


class _AllWorks(dist.Work):
    """Several calls that are waited for together."""

    def __init__(self, calls: list[PendingCall]) -> None:
        super().__init__()
        self._calls = calls

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return all(call.wait(timeout) for call in self._calls)

    def is_completed(self) -> bool:
        return all(call.is_completed() for call in self._calls)


def open_to(uplink: Uplink) -> None:
    """Makes `uplink` this process's network."""

    def create(options, backend_options):
        ranks = list(options.global_ranks_in_group) or list(range(uplink.world_size))
        return SwitchGroup(uplink, ranks, str(options.group_id))

    torch.futures.wait_all = lambda futures: [future.wait() for future in futures]
    torch.futures.collect_all = lambda futures: Future(lambda: torch.futures.wait_all(futures) and futures)
    dist.Backend.register_backend("scored", create, extended_api=True, devices=["cpu"])
    # Functions that are for gloo alone, as monitored_barrier, are for this one as well.
    c10d = dist.distributed_c10d
    dist.get_backend = c10d.get_backend = lambda group=None: "gloo"
    tagged, new_group = c10d._new_group_with_tag, dist.new_group
    signature = inspect.signature(new_group)

    def scored_group(ranks=None, timeout=None, backend=None, *more, **options):
        own = str(backend).lower() in ("gloo", "cpu:gloo")
        return tagged(ranks, timeout, None if own else backend, *more, **options)

    def followed(*args, **kwargs):
        group = new_group(*args, **kwargs)  # first, so that torch itself reports wrong arguments
        named = signature.bind(*args, **kwargs).arguments
        if not named.get("use_local_synchronization"):
            ranks = range(uplink.world_size) if named.get("ranks") is None else named["ranks"]
            uplink.groups.append([_caller()["line"], sorted(map(int, ranks))])
        return group

    c10d._new_group_with_tag = scored_group
    dist.new_group = c10d.new_group = functools.wraps(new_group)(followed)


def join(uplink: Uplink, rank: int, world_size: int) -> None:
    """Makes this process a rank of a world, and of no other from then on."""
    uplink.rank, uplink.world_size = rank, world_size
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("scored", store=dist.HashStore(), rank=rank, world_size=world_size)


def _name(op: Any) -> str:
    """The name of a reduce op, or of that in torch's options."""
    op = getattr(op, "reduceOp", op)
    kind = getattr(op, "op", op)
    return next(n for n, k in dist.ReduceOp.RedOpType.__members__.items() if k == kind)


# gloo's own limits. That a view has gaps, or strides that other ranks' tensors don't have, the scorer judges.
INTEGERS = {torch.int64: "Long", torch.int32: "Int", torch.int8: "Char", torch.uint8: "Byte", torch.bool: "Bool"}
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)
LENGTHS = {  # its words on a list that is longer or shorter than the group
    "allgather": "invalid output tensor list at index 0 (expected length {n}, got {0})",
    "gather": "Incorrect output list size {0}. Output list size should be {n}, same as size of the process group.",
    "scatter": "Incorrect input list size {0}. Input list size should be {n}, same as size of the process group.",
    "alltoall": "input tensor list size {0} does not match world size {n}",
}


def _refused(op: str, tensors: list[torch.Tensor], reduce_op: str | None) -> None:
    """Raises RuntimeError for a dtype that gloo refuses in a collective."""
    for tensor in tensors if op not in ("send", "recv") else ():
        if tensor.dtype not in (*INTEGERS, *FLOATS) or op == "gather" and tensor.is_complex():
            raise RuntimeError("Invalid scalar type")
        if reduce_op == "PREMUL_SUM":
            raise RuntimeError("Cannot use ReduceOp.PREMUL_SUM with Gloo")
        if reduce_op == "AVG" and not (tensor.is_floating_point() or tensor.is_complex()):
            raise RuntimeError(f"result type Float can't be cast to the desired output type {INTEGERS[tensor.dtype]}")
        if reduce_op in ("BAND", "BOR", "BXOR") and tensor.is_floating_point():
            raise RuntimeError(f"Cannot use ReduceOp.{reduce_op} with non-integral dtype")


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_contiguous():
        raise RuntimeError("input tensor has to be contiguous")
    return tensor


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers in their order in memory, as gloo reads a transposed tensor."""
    dense = tensor.is_contiguous() or has_gaps(tensor) or 0 in tensor.stride()
    return tensor if dense else tensor.as_strided((tensor.numel(),), (1,)).view(tensor.shape)


def _caller() -> dict[str, Any]:
    """The line of an answer cell that made the call."""
    frame = sys._getframe(2)
    while frame and not frame.f_code.co_filename.startswith(ANSWER):
        frame = frame.f_back
    return {"line": [frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name] if frame else None}
