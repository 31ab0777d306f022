"""What computing takes beside communicating: a collective can hide behind it, and behind no more than it."""

from __future__ import annotations

from ..machines.gpu import gpu as gpu_of

# Of the peak, what a large training run reaches: Llama 3 405B on 8,192 to 16,384 H100, 38 to 43 %
# (arxiv.org/abs/2407.21783, table 4).
UTILISATION = 0.4


def matmul_flops(m: int, k: int, n: int) -> int:
    """Floating point operations of an [m, k] by [k, n] product: a multiplication and an addition for each of m k n."""
    return 2 * m * k * n


def training_flops(parameters: float, tokens: float) -> float:
    """Floating point operations of a training step: 2 a parameter and token forward, 4 backward.

    Without attention's own products, which count where sequences are long (Kaplan et al. 2020,
    arxiv.org/abs/2001.08361, section 2.1).
    """
    return 6 * parameters * tokens


def compute_seconds(flops: float, gpu: str = "H100", utilisation: float = UTILISATION) -> float:
    """Seconds that one GPU takes for so many floating point operations in bf16.

    utilisation: the share of its peak that it reaches, 0 to 1.  Raises ValueError for a GPU whose peak
    is not in gpus.csv, or for a utilisation outside 0 to 1.
    """
    if not 0 < utilisation <= 1:
        raise ValueError(f"a utilisation is more than 0 and at most 1, not {utilisation}.")
    return flops / (gpu_of(gpu).value("peak", "compute_seconds()") * utilisation)
