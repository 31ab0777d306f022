"""The tasks as data, a module an exercise and one a short task; TASKS holds them all by the function's name."""

from . import (
    argmax,
    beat,
    buckets,
    choose,
    crossover,
    dispatch,
    hang,
    load,
    mean,
    parallel_mlp,
    ring,
    ring_attention,
    scatter,
    sharded,
    softmax,
    tree,
    within_memory,
)
from .practice import PRACTICE

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
    "11_average_in_buckets": buckets.TASKS,
    "12_sharded_step": sharded.TASKS,
    "13_parallel_mlp": parallel_mlp.TASKS,
    "14_within_memory": within_memory.TASKS,
    "15_expert_dispatch": dispatch.TASKS,
    "16_ring_attention": ring_attention.TASKS,
    "17_load_a_shard": load.TASKS,
}
TASKS = {task.name: task for tasks in (*EXERCISES.values(), PRACTICE.values()) for task in tasks}
