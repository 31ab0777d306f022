"""The course's own modules that lie in the sandbox, as source: what a schedule is made of, and no algorithm.

The sandbox shows answers no part of the course; an answer to a Puzzle gets these modules. Each is
executed as it is (inside/rank.py), in this order, so it may import only what stands before it,
torch and the standard library.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

MODULES = (
    "helpers.format",
    "helpers.schedule.model",
    "helpers.schedule.text",
    "helpers.schedule.proof",
    "helpers.schedule.count",
    "helpers.schedule.schedule",
)
# helpers.schedule as the sandbox has it
SCHEDULE = "__path__ = []\nfrom .model import Message, add, copy\nfrom .proof import WrongSchedule\nfrom .schedule import Schedule"


def modules() -> list[tuple[str, str]]:
    """Name and source of each."""
    return [*((name, source(name)) for name in MODULES), ("helpers.schedule", SCHEDULE)]


def source(name: str) -> str:
    return Path(importlib.util.find_spec(name).origin).read_text(encoding="utf-8")
