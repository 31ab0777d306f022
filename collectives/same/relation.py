"""How what ranks hold relates to one process's tensor: equal, shards, partial sums, a multiple, a combination."""

from typing import NamedTuple, Sequence

import torch

# Relative to the norm of a tensor, for a gradient of the first step.  Measured on a decoder of two layers on 2 to 8 ranks:
# mean of chunks and split contractions give up to 9e-7 in float32 and 1.7e-2 in bfloat16; of faults, one rank's rows
# counted 1.1 times give the least, 9e-3.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
NOISE = 1e-2  # of the tolerance: what rounding leaves of a gradient that is zero, relative to the largest one


class Relation(NamedTuple):
    """The way ranks hold a tensor, next to one process."""

    letter: str  # "R", "S(0)", "P", "M": mean of the ranks', or "?"
    factor: float = 1.0  # times one process's

    def words(self) -> str:
        named = {"R": "replicated", "P": "partial sums", "M": "one process's is the mean", "?": "unrelated"}
        word = named.get(self.letter) or f"sharded along dimension {self.letter[2:-1]}"
        return word if close(self.factor, 1, 1e-2) else f"{word}, {self.factor:.2f} times one process's"


def factor(part: torch.Tensor, whole: torch.Tensor) -> tuple[float, float]:
    """(k, residual): the part is about k times the whole, up to a residual relative to the part's norm.

    k is the least-squares solution, part . whole / whole . whole.
    """
    a, b = part.double().reshape(-1), whole.double().reshape(-1)
    square = float(b @ b)
    if not square:
        return (1.0, 0.0) if not a.any() else (float("inf"), 1.0)
    k = float(a @ b) / square
    norm = float(a.norm())
    return k, float((a - k * b).norm()) / norm if norm else 0.0


def error(part: torch.Tensor, whole: torch.Tensor) -> float:
    """Norm of the difference, relative to the whole's."""
    a, b = part.double(), whole.double()
    norm = float(b.norm())
    return float((a - b).norm()) / norm if norm else float(bool(a.any()))


def close(a: float, b: float, tolerance: float = 1e-3) -> bool:
    return abs(a - b) <= tolerance * max(abs(a), abs(b), 1e-300)


def clusters(tensors: Sequence[torch.Tensor], tolerance: float) -> list[list[int]]:
    """The indices of tensors that are equal, together."""
    found: list[list[int]] = []
    for k, tensor in enumerate(tensors):
        for cluster in found:
            if tensors[cluster[0]].shape == tensor.shape and error(tensor, tensors[cluster[0]]) <= tolerance:
                cluster.append(k)
                break
        else:
            found.append([k])
    return found


def combination(parts: Sequence[torch.Tensor], target: torch.Tensor, tolerance: float) -> list[float] | None:
    """Coefficients by which the parts add up to the target; None if they don't, or if the coefficients aren't unique.

    Least squares.  The first of equal parts has their common coefficient, the others 0.
    """
    groups = clusters(parts, tolerance)
    columns = torch.stack([parts[group[0]].double().reshape(-1) for group in groups], 1)
    b = target.double().reshape(-1)
    values = torch.linalg.svdvals(columns)
    if len(b) < len(groups) or not b.any() or not values[0] or values[-1] < 1e-3 * values[0]:
        return None
    solution = torch.linalg.lstsq(columns, b[:, None]).solution[:, 0]
    if float((columns @ solution - b).norm()) > max(10 * tolerance, 1e-3) * float(b.norm()):
        return None
    coefficients = [0.0] * len(parts)
    for group, value in zip(groups, solution.tolist()):
        coefficients[group[0]] = value
    return coefficients


def relation(held: Sequence[torch.Tensor], whole: torch.Tensor, tolerance: float) -> Relation:
    """How ranks hold a tensor.  held: each rank's tensor, of any shape; whole: one process's."""
    if all(part.shape == whole.shape for part in held):
        if all(error(part, whole) <= tolerance for part in held):
            return Relation("R")
        total = sum(part.double() for part in held)
        if len(held) > 1 and error(total, whole) <= tolerance:
            return Relation("P")
        if len(held) > 1 and error(total / len(held), whole) <= tolerance:
            return Relation("M")
        found = [factor(part, whole) for part in held]
        if all(residual <= tolerance and close(k, found[0][0]) for k, residual in found):
            k = found[0][0]
            if whole.numel() > 1 or _is_count(k) or _is_count(1 / k if k else 0):  # a number is a multiple of any other
                return Relation("R", k)
    different = [held[group[0]] for group in clusters(held, tolerance)]
    for dim in range(whole.dim()):
        sizes = [part.shape[:dim] + part.shape[dim + 1 :] for part in different if part.dim() == whole.dim()]
        if len(sizes) == len(different) and all(size == whole.shape[:dim] + whole.shape[dim + 1 :] for size in sizes):
            for parts in (different, list(held)):
                if sum(part.shape[dim] for part in parts) == whole.shape[dim]:
                    k, residual = factor(torch.cat([part.double() for part in parts], dim), whole)
                    if residual <= tolerance:
                        return Relation(f"S({dim})", k)
    return Relation("?")


def _is_count(k: float) -> bool:
    return k > 1.5 and close(k, round(k))
