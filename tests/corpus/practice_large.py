"""Answers to the short tasks of chapters 15 to 17, 20 and 21, in the tables of practice.py."""

from math import ceil

from collectives.cost.planner import Division
from tests.corpus.practice import right, wrong

# --- 21 faster ----------------------------------------------------------------------------


@right("faster")
def gradients_sharded_too():
    return Division(2048, 8, shard=1)


@wrong("faster", "less than 209 ms is wanted")
def sequences_over_nodes():
    return Division(512, 8, context=4, shard=3)


@wrong("faster", "to bubble")
def stages():
    return Division(1024, 8, 2, shard=0)


@wrong("faster", "16,384")
def too_few_gpus():
    return Division(1024, 8, shard=1, copies=128)


@wrong("faster", "must return a Division")
def seconds():
    return 0.171


# --- 21 least_tokens ----------------------------------------------------------------------


@right("least_tokens")
def both_sides(flops, bandwidth, nbytes):
    gather, forward = nbytes / bandwidth, 2 / flops
    return ceil(gather / forward)


@wrong("least_tokens", "backward gathers and scatters")
def all_flops(flops, bandwidth, nbytes):
    return ceil(nbytes / 6 * flops / bandwidth)


@wrong("least_tokens", "Round up")
def rounded_down(flops, bandwidth, nbytes):
    return int(nbytes / 2 * flops / bandwidth)


@wrong("least_tokens", "F/B is for 2 bytes per weight")
def sixteen_bits(flops, bandwidth, nbytes):
    return ceil(flops / bandwidth)


@wrong("least_tokens", "a multiplication and an addition")
def one_flop(flops, bandwidth, nbytes):
    return ceil(nbytes * flops / bandwidth)


# --- 21 fits_sharded ----------------------------------------------------------------------


@right("fits_sharded")
def by_table(parameters, gpus, activations, memory):
    divided = {0: 0, 1: 12, 2: 14, 3: 16}
    needed = {z: 1.2 * (parameters * (16 - d + d / gpus) + activations) for z, d in divided.items()}
    return min((z for z in needed if needed[z] <= memory), default=None)


@wrong("fits_sharded", "20% of what you need")
def to_the_brim(parameters, gpus, activations, memory):
    for z, whole in enumerate((16, 4, 2, 0)):
        if parameters * (whole + (16 - whole) / gpus) + activations <= memory:
            return z
    return None


@wrong("fits_sharded", "smallest stage that fits")
def always_three(parameters, gpus, activations, memory):
    return 3


@wrong("fits_sharded", "which bytes does each stage leave")
def all_divided(parameters, gpus, activations, memory):
    return 0 if 1.2 * (16 * parameters / gpus + activations) <= memory else None


# --- 21 idle_share ------------------------------------------------------------------------


@right("idle_share")
def of_the_whole(stages, chunks, sequences):
    return 1 - sequences / (sequences + (stages - 1) / chunks)


@wrong("idle_share", "idle time per \\*compute\\*")
def of_the_work(stages, chunks, sequences):
    return (stages - 1) / (chunks * sequences)


@wrong("idle_share", "chunks shorten the wait")
def without_chunks(stages, chunks, sequences):
    return (stages - 1) / (sequences + stages - 1)


@wrong("idle_share", "share it works")
def at_work(stages, chunks, sequences):
    return sequences / (sequences + (stages - 1) / chunks)
