"""The backend of backend.cpp, built once for each torch and each source, and kept in the system's temporary folder."""

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist

SOURCE = Path(__file__).with_name("backend.cpp")
COMPILER = os.environ.get("CXX", "c++")
NAME = "nccl_like"


def build() -> Path:
    """The built module's file. Raises OSError without a compiler, RuntimeError with its words if it refuses."""
    digest = hashlib.sha256(SOURCE.read_bytes() + f"{torch.__version__} {COMPILER}".encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"collectives-{NAME}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    built = folder / digest / f"{NAME}.so"
    with open(folder / "lock", "w") as lock:  # of several processes the first builds
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            _compile(built)
    return built


def _compile(built: Path) -> None:
    root = Path(torch.__file__).parent
    include = [root / "include", root / "include/torch/csrc/api/include", sysconfig.get_path("include")]
    partial = built.with_suffix(".partial")
    built.parent.mkdir(exist_ok=True)
    command = [COMPILER, "-std=c++20", "-O0", "-fPIC", "-shared", f"-DTORCH_EXTENSION_NAME={NAME}"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command += [f"-isystem{folder}" for folder in include] + [str(SOURCE), "-o", str(partial)]
    command += [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch_python"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    partial.rename(built)


def load(built: Path) -> ModuleType:
    """The built module, with its backend registered under its name for tensors of the CPU."""
    spec = importlib.util.spec_from_file_location(NAME, built)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dist.Backend.register_backend(NAME, module.backend, devices=["cpu"])
    return module
