"""The data that ranks were fed, and the same rows for one process."""

import pickle
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator

import torch

LARGEST = 50_000_000  # numbers of a draw that is kept


@dataclass
class Feed:
    """The data of one rank, in order: draws of random numbers, batches of a DataLoader, rows that the program marked."""

    draws: list[torch.Tensor] = field(default_factory=list)
    batches: list[bytes | None] = field(default_factory=list)  # pickled: their classes may be the program's
    rows: list[torch.Tensor] = field(default_factory=list)
    originals: list[torch.Tensor] = field(default_factory=list)  # the program's, of draws
    weights: set[int] = field(default_factory=set)  # the draws that became parameters
    counts: list[int] = field(default_factory=lambda: [0, 0, 0])  # draws, batches and rows that were asked for

    def drawn(self, made: torch.Tensor, others: list["Feed"] | None) -> torch.Tensor:
        """A draw of random numbers; with the feeds of other ranks, all of their rows instead."""
        k = self._next(0)
        if others is None:
            kept = made if made.numel() <= LARGEST else made[:0]
            self.draws.append(kept.detach().clone())  # the program may write into its own
            self.originals.append(made)
            return made
        if all(k < len(feed.draws) for feed in others):
            if any(k in feed.weights for feed in others):
                return others[0].draws[k].clone().requires_grad_(made.requires_grad)
            return joined([feed.draws[k] for feed in others]).requires_grad_(made.requires_grad)
        return made

    def batch(self, batch: Any, others: list["Feed"] | None) -> Any:
        """A batch of a DataLoader; with the feeds of other ranks, all of their rows."""
        k = self._next(1)
        if others is None:
            try:
                self.batches.append(pickle.dumps(batch))
            except Exception:  # whatever a class raises: such a batch isn't given to one process
                self.batches.append(None)
            return batch
        packed = [feed.batches[k] if k < len(feed.batches) else None for feed in others]
        return batch if None in packed else _joined_batches([pickle.loads(each) for each in packed])

    def given(self, rows: torch.Tensor, dim: int, others: list["Feed"] | None) -> torch.Tensor:
        k = self._next(2)
        if others is None:
            self.rows.append(rows.detach().clone())
            return rows
        return joined([feed.rows[k] for feed in others], dim) if all(k < len(f.rows) for f in others) else rows

    def finish(self, is_weight: Callable[[torch.Tensor], bool]) -> None:
        """Note the draws that have become parameters, which aren't data."""
        self.weights = {k for k, made in enumerate(self.originals) if made.numel() and is_weight(made)}
        self.originals.clear()

    def _next(self, kind: int) -> int:
        self.counts[kind] += 1
        return self.counts[kind] - 1


def joined(tensors: list[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """The rows of all ranks; ranks with equal rows, such as a tensor-parallel group, count once.

    Tensors of no dimension can't be joined: the first is returned.
    """
    different: list[torch.Tensor] = []
    for tensor in tensors:
        if not any(tensor.shape == other.shape and torch.equal(tensor, other) for other in different):
            different.append(tensor)
    return torch.cat(different, dim) if different[0].dim() else different[0].clone()


def _joined_batches(batches: list[Any]) -> Any:
    first = batches[0]
    if isinstance(first, torch.Tensor):
        return joined(batches)
    if isinstance(first, dict):
        return {key: _joined_batches([batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(_joined_batches(list(column)) for column in zip(*batches)))
    if isinstance(first, (list, tuple)) and all(
        isinstance(value, (torch.Tensor, list, tuple, dict)) for value in first
    ):
        return type(first)(_joined_batches(list(column)) for column in zip(*batches))
    if isinstance(first, list):  # of strings: the rows
        return [value for batch in batches for value in batch]
    return first


@contextmanager
def batches_through(passed: Callable[[Any], Any]) -> Iterator[None]:
    """Every batch of a DataLoader goes through this function."""
    from torch.utils.data import DataLoader

    original = DataLoader.__iter__

    def iterate(loader):
        for batch in original(loader):
            yield passed(batch)

    DataLoader.__iter__ = iterate
    try:
        yield
    finally:
        DataLoader.__iter__ = original
