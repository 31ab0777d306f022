"""Ordinary torch.distributed code, run for real on local ranks, and seen whole.

from helpers import run
"""

from .crew import start_early
from .errors import Mismatch, RankFailed, RunError, Stuck
from .launch import run
from .record import Call, Event, Line, Run, Summary

__all__ = ["run", "Run", "Event", "Call", "Line", "Summary", "RunError", "RankFailed", "Mismatch", "Stuck"]

start_early()
