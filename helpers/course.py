"""The course's files: chapters, exercises, their tasks, solutions."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS, EXERCISES, SOLUTIONS = ROOT / "notebooks", ROOT / "exercises", ROOT / "solutions"
TASKS = EXERCISES / "tasks"  # a Python file for each exercise


def chapters() -> list[Path]:
    """The chapters' notebooks, in reading order."""
    return sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
