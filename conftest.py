"""What tests and validated notebooks need."""

import nbval.kernel

from tests.kernels import LocalKernelManager

nbval.kernel.KernelManager = LocalKernelManager


def pytest_collectstart(collector):
    """What a notebook shows folded it has as text too, which is compared."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("text/html",)
