"""What tests and validated notebooks need."""

import nbval.kernel

from tests.kernels import LocalKernelManager

nbval.kernel.KernelManager = LocalKernelManager
