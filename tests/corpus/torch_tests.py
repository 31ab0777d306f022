"""torch's own tests of torch.distributed, those that ship with it (torch.testing._internal.distributed).

python -m tests.corpus.torch_tests 4            each by itself on 4 recorded ranks: its name, and what came of it
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

import torch.distributed as dist

from helpers import RunError, run

# Right programs, for all that a backend may offer. These are for another: they fail without a recorder too.
NOT_HERE = {
    "test_SyncBatchNorm_process_group": "wants torchvision",
    "test_all_to_all": "gloo's all_to_all wants equal shapes",
    "test_all_to_all_complex": "the same",
    "test_all_to_all_full_group": "the same",
    "test_all_to_all_cuda": "wants GPUs",
    "test_all_to_all_cuda_complex": "wants GPUs",
    "test_all_to_all_full_group_cuda": "wants GPUs",
    "test_batch_isend_irecv_mixed_backend_err": "wants NCCL",
    "test_batch_isend_irecv_op_err": "wants GPUs",
    "test_barrier_timeout_global": "replaces the default group",
}
OF_FOUR = {"test_new_subgroups_with_group_param"}  # names rank 3
# Mistakes on purpose: the test is that torch notices. name -> the verdict here.
MISTAKES = {"test_monitored_barrier_gloo": "ranks disagree on which collective to make"}


def suite() -> type:
    """torch's class of tests, its ranks those of a process group that there is already."""
    os.environ.update(BACKEND="gloo", TEMP_DIR=tempfile.gettempdir(), INIT_METHOD="")
    from torch.testing._internal.distributed import distributed_test

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def _barrier(self, *args, **kwargs):  # torch's own is made of files
            dist.barrier()

    return Suite


def names(world_size: int) -> list[str]:
    left_out = NOT_HERE if world_size > 3 else {*NOT_HERE, *OF_FOUR}
    return [name for name in dir(suite()) if name.startswith("test_") and name not in left_out]


def one(name: str) -> str:
    """In a rank: runs a test. Returns "passed", or "skipped" if it does not apply to this machine and backend."""
    from torch.testing._internal.common_utils import set_rng_seed

    set_rng_seed(1234)  # as torch's runner does
    test = suite()(name)
    test.rank = dist.get_rank()
    try:
        getattr(test, name)()
    except (unittest.SkipTest, SystemExit):  # torch's way of saying that GPUs are missing
        return "skipped"
    return "passed"


def main(world_size: int) -> None:
    os.environ["WORLD_SIZE"] = str(world_size)
    for name in names(world_size):
        try:
            (outcome,) = set(run(one, name, world_size=world_size, timeout=120).results)
        except RunError as error:
            outcome = f"{type(error).__name__}: {error}"
        print(json.dumps([name, outcome]), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("barrier", "test_dir"):  # where torch's tests write
            Path(folder, name).mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        main(int(sys.argv[1]))
