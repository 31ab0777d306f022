"""The tasks as data, from exercises/tasks/: a file per exercise, and in practice/ one for the short tasks of a chapter.

A file is named like its notebook. It defines TASK, or TASKS where the notebook asks for several functions. The folder is
the path of this module, which makes its files modules wherever the course is: their functions are pickled by name. So is a
folder of further exercises outside the course.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType

from ..course import TASKS as FOLDER
from ..course import own_exercises
from .task import Puzzle, Task

__path__ = [str(FOLDER), *map(str, own_exercises())]


def module(name: str) -> ModuleType:
    """The file of an exercise, as "02_distributed_mean", or of a short task, as "practice.01_ranks"."""
    return import_module(f"{__name__}.{name}")


def _tasks(folder: Path, package: str = "") -> dict[str, tuple[Task | Puzzle, ...]]:
    """The tasks of each file by its name.  Raises ImportError for a file that defines none."""
    tasks = {}
    for path in sorted(folder.glob("*.py")):
        names = vars(module(package + path.stem))
        tasks[path.stem] = names.get("TASKS") or (names.get("TASK"),)
        if not all(isinstance(task, (Task, Puzzle)) for task in tasks[path.stem]):
            raise ImportError(f"{path} must define TASK, a Task or a Puzzle, or TASKS, a tuple of them.")
    return tasks


EXERCISES = {name: tasks for folder in (FOLDER, *own_exercises()) for name, tasks in _tasks(folder).items()}
PRACTICE = _tasks(FOLDER / "practice", "practice.")
TASKS = {task.name: task for tasks in (*EXERCISES.values(), *PRACTICE.values()) for task in tasks}
