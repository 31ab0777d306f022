"""Runs one report under torchrun: python -m tests.corpus.reports NAME."""

import sys
from datetime import timedelta

import torch.distributed as dist

from tests.corpus.reports import REPORTS

dist.init_process_group("gloo", timeout=timedelta(seconds=6))
REPORTS[sys.argv[1]].job(dist.get_rank(), dist.get_world_size())
dist.destroy_process_group()
