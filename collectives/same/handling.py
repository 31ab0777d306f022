"""How a program handles tensors around its calls: cuts, copies, detaches, reads and loads them; for likely causes (clues)."""

from contextlib import contextmanager
from typing import Any, Iterator

import torch
import torch.nn as nn

from ..log.event import Line
from ..rank.callers import learners_call
from ..rank.torch_private import local
from .records import FirstSteps
from .variables import variable

SMALL = 16  # numbers whose values are kept
MOST = 1_000
READERS = {"item", "tolist", "__float__"}
CUTTERS, COPIERS = {"chunk", "split", "tensor_split"}, {"clone", "contiguous"}
ADDERS = {"add", "__add__", "__radd__", "sub", "__sub__", "__rsub__"}
HANDLED = READERS | CUTTERS | COPIERS | ADDERS | {"detach", "sqrt"}


class Handling:
    """Notes in a rank's record how its program handles tensors, outside of modules."""

    def __init__(self, record: FirstSteps) -> None:
        self._record = record
        self._detached: dict[int, str] = {}  # storage -> the variable of what was detached from its history
        self._pieces: dict[tuple[int, int], tuple[int, int]] = {}  # address and size -> which piece, of how many
        self._sums: dict[int, int] = {}  # address -> index of the call that has summed it
        self._saved: dict[int, str] = {}  # address -> name in a dict of parameters
        self._received: set[int] = set()  # addresses of what a call has filled
        self._alive: list[Any] = []  # an address is a tensor's

    def function(self, name: str, args: tuple, value: Any) -> None:
        """A function of HANDLED has returned."""
        tensor = args[0]
        if len(self._alive) > MOST or not isinstance(tensor, torch.Tensor):
            return
        if name in READERS:
            self._read(tensor, value if isinstance(value, list) else [value])
        elif name in ADDERS:
            self._added(tensor, args[1:])
        elif name in CUTTERS and len(value) > 1:
            self._alive += value
            self._pieces |= {(address(piece), piece.numel()): (k, len(value)) for k, piece in enumerate(value)}
        elif name in COPIERS and (piece := self.piece(tensor)):
            self._alive.append(value)
            self._pieces[address(value), value.numel()] = piece
        elif name == "detach" and tensor.requires_grad and not tensor.is_leaf:
            self._alive.append(value)
            self._detached[_storage(value)] = f"`{variable(tensor) or 'a tensor'}`"
        elif name == "sqrt" and (k := self._sums.get(address(tensor))) is not None and value.numel() == 1:
            self._record.calls[k] = self._record.calls[k]._replace(reading=float(value), is_norm=True)

    def _read(self, tensor: torch.Tensor, numbers: list) -> None:
        line, function, _ = learners_call()
        if function and "Tensor." not in function:
            return  # read by torch, for its own purposes
        if any(not placement.is_replicate() for placement in getattr(tensor, "placements", ())):
            self._record.clue(
                "a number is read from a DTensor that is not replicated, so it belongs to this rank's part: call "
                f"full_tensor() first, on every rank{_in(line)}"
            )
        k = self._sums.get(address(tensor))
        if k is not None and len(numbers) == 1 and self._record.calls[k].reading is None:
            self._record.calls[k] = self._record.calls[k]._replace(reading=float(numbers[0]))
        is_small = len(numbers) <= SMALL and all(isinstance(number, (int, float)) for number in numbers)
        if line and is_small and sum(map(len, self._record.reads.values())) < MOST:
            self._record.reads.setdefault(str(line), []).append(numbers)

    def _added(self, tensor: torch.Tensor, operands: tuple) -> None:
        partial = any(placement.is_partial() for placement in getattr(tensor, "placements", ()))
        if partial and any(isinstance(operand, (int, float)) and operand for operand in operands):
            self._record.clue(
                "a number is added to a DTensor that is a partial sum: torch 2.13 adds it to each rank's part, so the whole has it "
                f"once for each rank. Call redistribute() to Replicate() first{_in(learners_call()[0])}"
            )

    def sampled(self, ranks: int, drawn: int, examples: int) -> None:
        """A DistributedSampler is used."""
        if drawn > examples:
            self._record.clue(
                f"DistributedSampler gives {ranks} ranks {drawn} examples where there are {examples}, so some examples count "
                "twice, in a loss and in a metric: leave the repeated ones out of the metric, or set drop_last=True"
            )

    def detached(self, tensor: torch.Tensor) -> str:
        """The variable whose detached numbers this tensor is; "" if it isn't detached."""
        return "" if tensor.requires_grad else self._detached.get(_storage(tensor), "")

    def piece(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """Which piece a tensor is, and of how many."""
        return self._pieces.get((address(tensor), tensor.numel()))

    def summed(self, tensor: torch.Tensor, call: int) -> None:
        """A call sums a tensor in place.  call: its index in the record."""
        self._alive.append(tensor)
        self._sums[address(tensor)] = call

    def received(self, tensors: list[torch.Tensor]) -> None:
        """A call fills these tensors."""
        if len(self._alive) < MOST:
            self._alive += tensors
            self._received |= set(map(address, tensors))

    def is_received(self, tensor: torch.Tensor) -> bool:
        return address(tensor) in self._received

    @contextmanager
    def loads(self) -> Iterator[None]:
        """Which parameters of a saved model a module loads is noted."""
        save, load, read = nn.Module.state_dict, nn.Module.load_state_dict, torch.load

        def state_dict(module, *args, **kwargs):
            value = save(module, *args, **kwargs)
            if not args and "destination" not in kwargs:  # called by the program
                self._note_saved(value)
            return value

        def load_state_dict(module, parameters, *args, **kwargs):
            if self._saved:
                addresses = [address(value) for value in parameters.values() if isinstance(value, torch.Tensor)]
                names = tuple(self._saved.get(place, "") for place in addresses)
                self._record.loads.append((tuple(self._saved.values()), names))
            return load(module, parameters, *args, **kwargs)

        def load_file(*args, **kwargs):
            value = read(*args, **kwargs)
            for part in (value, *(value.values() if isinstance(value, dict) else ())):
                self._note_saved(part)
            return value

        nn.Module.state_dict, nn.Module.load_state_dict, torch.load = state_dict, load_state_dict, load_file
        try:
            yield
        finally:
            nn.Module.state_dict, nn.Module.load_state_dict, torch.load = save, load, read

    def _note_saved(self, value: Any) -> None:
        if isinstance(value, dict) and len(self._saved) < MOST:
            tensors = {name: tensor for name, tensor in value.items() if type(tensor) in (torch.Tensor, nn.Parameter)}
            self._saved |= {address(tensor): str(name) for name, tensor in tensors.items()}
            self._alive.append(value)


def address(tensor: torch.Tensor) -> int:
    return local(tensor).data_ptr()


def _storage(tensor: torch.Tensor) -> int:
    return local(tensor).untyped_storage().data_ptr()


def _in(line: Line | None) -> str:
    return f" ({line})" if line else ""
