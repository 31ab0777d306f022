"""The short tasks at the end of chapters, ten minutes each, as data: a module a task, PRACTICE holds them by chapter."""

from . import (
    accuracy,
    average_over_copies,
    clip_shard,
    deal_rows,
    in_sync,
    mean_of_good,
    mean_shard,
    my_share,
    pipeline,
    product_rows,
    read_link,
    row_parallel,
    sum_all,
    sum_over_hosts,
    swap_pairs,
)

PRACTICE = {
    "01_ranks": my_share.TASK,
    "02_point_to_point": swap_pairs.TASK,
    "03_one_to_many": deal_rows.TASK,
    "04_many_to_one": accuracy.TASK,
    "05_many_to_many": product_rows.TASK,
    "06_tensors_in_tensors_out": sum_all.TASK,
    "07_groups": average_over_copies.TASK,
    "08_composing": clip_shard.TASK,
    "09_algorithms": pipeline.TASK,
    "10_what_it_costs": read_link.TASK,
    "11_data_parallel": in_sync.TASK,
    "12_sharded_data_parallel": mean_shard.TASK,
    "13_tensor_parallel": row_parallel.TASK,
    "17_when_it_hangs": mean_of_good.TASK,
    "18_real_hardware": sum_over_hosts.TASK,
}
