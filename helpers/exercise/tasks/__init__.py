"""The exercises' tasks as data, a module an exercise; TASKS holds them all by the function's name."""

from . import mean, ring

EXERCISES = {
    "01_distributed_mean": mean.TASKS,
    "06_ring_all_reduce": ring.TASKS,
}
TASKS = {task.name: task for tasks in EXERCISES.values() for task in tasks}
