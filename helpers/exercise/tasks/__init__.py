"""The exercises' tasks as data, a module an exercise; TASKS holds them all by the function's name."""

from . import argmax, beat, choose, crossover, hang, mean, ring, scatter, softmax, tree

EXERCISES = {
    "01_distributed_mean": mean.TASKS,
    "02_distributed_argmax": argmax.TASKS,
    "03_distributed_softmax": softmax.TASKS,
    "04_tree_broadcast": tree.TASKS,
    "05_reduce_scatter": scatter.TASKS,
    "06_ring_all_reduce": ring.TASKS,
    "07_find_the_hang": hang.TASKS,
    "08_choose_the_collective": choose.TASKS,
    "09_beat_the_schedule": beat.TASKS,
    "10_find_the_crossover": crossover.TASKS,
}
TASKS = {task.name: task for tasks in EXERCISES.values() for task in tasks}
