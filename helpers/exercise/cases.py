"""The inputs of an exercise: drawn from a case, a seed and a rank; and as Python code for a line to paste."""

import hashlib
from dataclasses import dataclass
from math import isfinite
from struct import pack, unpack
from typing import Any

import torch

from collectives.format import dtype_name

LARGE = 1 << 14  # numbers: 300,000 bits, where they are "fractions" and may be 1e-5 off
# In the order in which they are tried: small pictures first. 6 and 7 are 2 and 3 more than a power of two.
WORLD_SIZES = (2, 3, 4, 5, 6, 7, 8, 1)


@dataclass(frozen=True)
class Case:
    """One situation an answer must handle."""

    world_size: int
    kind: str = "small numbers"  # one of KINDS, or one that the exercise itself defines
    size: int = 3  # elements; the exercise defines of which tensor
    dtype: torch.dtype = torch.float32
    late: int | None = None  # this rank starts after the others
    uneven: bool = False  # sizes differ, see length

    def __str__(self) -> str:
        late = "" if self.late is None else f", rank {self.late} starts late"
        return f"{self.kind}, {dtype_name(self.dtype)}{', uneven sizes' * self.uneven}{late}"

    def length(self, k: int) -> int:
        """The size of the k-th part: `size`, or from 0 to `size` where they are uneven; an even size makes some empty."""
        return (2 * k + 1) % (self.size + 1) if self.uneven else self.size


def ranks(world_size: int) -> str:
    return f"{world_size} rank{'s' * (world_size != 1)}"


KINDS = {
    "small numbers": lambda shape, g: torch.randint(-9, 10, shape, generator=g).double(),
    "negative numbers": lambda shape, g: torch.randint(-9, 0, shape, generator=g).double(),
    "fractions": lambda shape, g: torch.randn(shape, generator=g, dtype=torch.double),
    "ties": lambda shape, g: torch.randint(0, 2, shape, generator=g).double(),
    "close together, above 2**30": lambda shape, g: 2.0**30 + torch.randint(0, 60, shape, generator=g).double(),
    "all equal": lambda shape, g: torch.full(shape, 5.0).double(),
    "around -10,000": lambda shape, g: torch.randint(-9, 10, shape, generator=g).double() - 1e4,
    "up to 10,000 and down to -10,000": lambda shape, g: (
        torch.randint(-1, 2, shape, generator=g) * 1e4 + torch.randint(-9, 10, shape, generator=g).double()
    ),
}


class Draw:
    """Random things for one rank of one case: the same for the same seed, others for any other."""

    def __init__(self, seed: str, task: str, case: Case, rank: int) -> None:
        self.case, self.rank, self.world_size = case, rank, case.world_size
        self.own = _generator(seed, task, case, rank)
        self.common = _generator(seed, task, case)  # gives every rank the same

    def numbers(self, *shape: int, common: bool = False) -> torch.Tensor:
        """Numbers of the case's kind and dtype; a kind that is not in KINDS has small numbers."""
        kind = KINDS.get(self.case.kind, KINDS["small numbers"])
        return kind(shape, self.common if common else self.own).to(self.case.dtype)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Whole numbers from low up to, and not including, high, of the case's dtype."""
        return torch.randint(low, high, shape, generator=self.own).to(self.case.dtype)

    def integer(self, low: int, high: int, common: bool = False) -> int:
        """From low up to, and not including, high."""
        return int(torch.randint(low, high, (), generator=self.common if common else self.own))


def _generator(*of: object) -> torch.Generator:
    digest = hashlib.sha256(repr(of).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def literal(value: Any) -> str:
    """Python code for this value, with torch's names only. Raises ValueError if there is no short one."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_complex():
        return _tensor(value)
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if value is None or isinstance(value, (bool, int, str)) or isinstance(value, float) and isfinite(value):
        return repr(value)
    raise ValueError(f"{type(value).__name__} has no short literal")


def _tensor(value: torch.Tensor) -> str:
    if value.dim() == 2 and not value.is_contiguous() and value.t().is_contiguous():
        return f"{_tensor(value.t())}.t()"
    usual = [torch.float32] if value.is_floating_point() or not value.numel() else [torch.int64, torch.bool]
    dtype = "" if value.dtype in usual else f", dtype=torch.{dtype_name(value.dtype)}"
    if not value.numel():
        return f"torch.zeros({', '.join(map(str, value.shape))}{dtype})"
    return f"torch.tensor({_numbers(value)}{dtype})"


def _numbers(value: torch.Tensor) -> str:
    if value.dim():
        return f"[{', '.join(map(_numbers, value))}]"
    if not value.is_floating_point():
        return str(value.item())
    if not value.isfinite():
        return {"inf": "torch.inf", "-inf": "-torch.inf", "nan": "torch.nan"}[str(value.item())]
    if value.dtype == torch.float64:
        return repr(value.item())
    short = _shortest(value.item())
    return short.removesuffix("0") if short.endswith(".0") else short


def _shortest(number: float) -> str:
    """A number in the fewest digits that give its float32 again."""
    (single,) = unpack("f", pack("f", number))
    digits = (float(f"{number:.{count}g}") for count in range(1, 10))
    return repr(next(short for short in digits if unpack("f", pack("f", short)) == (single,)))
