"""The data that ranks were fed, and the same rows for one process."""

import pickle
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, NamedTuple

import torch

LARGEST = 50_000_000  # numbers of a draw that is kept
LARGEST_SOURCE, MOST_SOURCES = 100_000, 16  # numbers of each, and how many from each line


class Join(NamedTuple):
    """The tensors of which one process gets all ranks' rows, besides batches and other draws of random numbers."""

    parts: bool = False  # those that the program cuts, or writes down, by rank
    weights: bool = True  # draws of a parameter's shape: else each is its own, as of a program that seeds them by names


@dataclass
class Feed:
    """The data of one rank, in order: draws of random numbers, batches of a DataLoader, rows that the program marked."""

    draws: list[torch.Tensor] = field(default_factory=list)
    batches: list[bytes | None] = field(default_factory=list)  # pickled: their classes may be the program's
    rows: list[torch.Tensor] = field(default_factory=list)
    # By line, tensors that the program wrote down, and parts of tensors that it chose.
    sources: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    originals: list[torch.Tensor] = field(default_factory=list)  # the program's, of draws
    weights: set[int] = field(default_factory=set)  # the draws that became parameters
    shapes: set[torch.Size] = field(default_factory=set)  # of parameters
    counts: list[int] = field(default_factory=lambda: [0, 0, 0])  # draws, batches and rows that were asked for

    def drawn(self, made: torch.Tensor, others: list["Feed"] | None, weights: bool = True) -> torch.Tensor:
        """A draw of random numbers; with the feeds of other ranks, all of their rows instead. weights: as in Join."""
        if others is None:
            kept = made if made.numel() <= LARGEST else made[:0]
            self.draws.append(kept.detach().clone())  # the program may write into its own
            self.originals.append(made)
            return made
        draws = [feed.draws for feed in others]
        if not weights:
            shapes = set().union(*(feed.shapes for feed in others))
            if made.shape in shapes:
                return made
            draws = [[draw for draw in of_rank if draw.shape not in shapes] for of_rank in draws]
        k = self._next(0)
        if all(k < len(of_rank) for of_rank in draws):
            if weights and any(k in feed.weights for feed in others):
                return draws[0][k].clone().requires_grad_(made.requires_grad)
            return joined([of_rank[k] for of_rank in draws]).requires_grad_(made.requires_grad)
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

    def source(self, line: str, tensor: torch.Tensor, feeds: list["Feed"] | None, join: bool) -> torch.Tensor:
        """A tensor of the program's own numbers; with the feeds of other ranks, all of their rows, if they differ."""
        sources = self.sources.setdefault(line, [])
        k = len(sources)
        if self.has_all_of(line) or tensor.numel() > LARGEST_SOURCE:
            return tensor
        if feeds is not None and join and all(k < len(feed.sources.get(line, ())) for feed in feeds):
            parts = [feed.sources[line][k] for feed in feeds]
            rows_of_one_shape = tensor.dim() and len({(part.dtype, part.dim(), part.shape[1:]) for part in parts}) == 1
            if rows_of_one_shape and not same_numbers(parts, [tensor]):
                tensor = joined(parts)
        sources.append(tensor.detach().clone())
        return tensor

    def has_all_of(self, line: str) -> bool:
        """Whether no more tensors of a line are kept."""
        return len(self.sources.get(line, ())) >= MOST_SOURCES

    def finish(self, is_weight: Callable[[torch.Tensor], bool], shapes: set[torch.Size]) -> None:
        """Note the draws that have become parameters, which aren't data, and the shapes of all parameters."""
        self.shapes = shapes
        self.weights = {k for k, made in enumerate(self.originals) if made.numel() and is_weight(made)}
        self.originals.clear()

    def _next(self, kind: int) -> int:
        self.counts[kind] += 1
        return self.counts[kind] - 1


def joins(feeds: list[Feed]) -> Iterator[Join]:
    """Ways to feed one process, the likeliest first."""
    yield Join()
    if differ(feeds):
        yield Join(parts=True)
    if any(draw.shape in feed.shapes for feed in feeds for draw in feed.draws):
        yield Join(weights=False)


def differ(feeds: list[Feed]) -> bool:
    """Whether ranks wrote down different numbers, or chose different parts, in some line."""
    return any(
        part.shape != parts[0].shape or not torch.equal(part, parts[0])
        for line in feeds[0].sources
        for parts in zip(*(feed.sources.get(line, ()) for feed in feeds))
        for part in parts
    )


def same_numbers(parts: list[torch.Tensor], total: list[torch.Tensor]) -> bool:
    """Whether the parts hold the numbers of the total, each as many times as the others."""
    a, b = (torch.cat([x.reshape(-1).double() for x in tensors]).sort().values for tensors in (parts, total))
    if len(b) == 0 or len(a) % len(b) == 0:
        return len(b) == 0 or torch.allclose(a, b.repeat_interleave(len(a) // len(b)), rtol=1e-5, atol=1e-6)
    return False


def joined(tensors: list[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """The rows of all ranks; groups of ranks with equal rows, such as tensor-parallel ones, count once.

    Tensors of no dimension can't be joined: the first is returned.
    """
    different: list[torch.Tensor] = []
    times: list[int] = []
    for tensor in tensors:
        k = next((k for k, t in enumerate(different) if tensor.shape == t.shape and torch.equal(tensor, t)), None)
        if k is None:
            different.append(tensor)
            times.append(1)
        else:
            times[k] += 1
    rows = different if len(set(times)) == 1 else tensors  # groups have one size: these are equal by chance
    return torch.cat(rows, dim) if rows[0].dim() else rows[0].clone()


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
def every_group_is_its_own() -> Iterator[None]:
    """One process stands for all ranks, so it's the only member of every group."""
    import torch.distributed as dist

    original = dist.new_group

    def new_group(ranks=None, *args, **kwargs):
        return original(None if ranks is None else [0], *args, **kwargs)

    dist.new_group = new_group
    try:
        yield
    finally:
        dist.new_group = original


@contextmanager
def samplers_through(note: Callable[[int, int, int], None]) -> Iterator[None]:
    """Each use of a DistributedSampler is noted: its ranks, how many examples they get in all, and how many there are."""
    from torch.utils.data import DistributedSampler

    original = DistributedSampler.__iter__

    def iterate(sampler):
        note(sampler.num_replicas, sampler.total_size, len(sampler.dataset))
        return original(sampler)

    DistributedSampler.__iter__ = iterate
    try:
        yield
    finally:
        DistributedSampler.__iter__ = original


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
