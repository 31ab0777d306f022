"""The last line that torchrun's terminal shows of a watched job with a verdict."""

import os
import subprocess
import sys

import pytest

from tests import ROOT

SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    raise ValueError("empty batch")
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.slow
def test_the_last_line_names_the_rank_and_the_verdict(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    watch = ["-m", "collectives.watch", "--record", str(tmp_path / "record"), str(script)]
    job = subprocess.run(
        [sys.executable, *launch, *watch], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=120,
    )  # fmt: skip
    last = job.stdout.strip().splitlines()[-1]
    assert last.startswith("collectives: rank 1, see ") and last.endswith("record/verdict.txt"), job.stdout[-2000:]
    assert "rank 1 raised ValueError" in (tmp_path / "record" / "verdict.txt").read_text()
