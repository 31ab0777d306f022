"""Exercises: what is wanted (tasks, cases), whether an answer is right (judge), how a notebook asks (check)."""

from .check import CheckFailed, check_budget, check_values

__all__ = ["CheckFailed", "check_budget", "check_values"]
