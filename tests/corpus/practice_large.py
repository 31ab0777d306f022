"""Answers to the short tasks of chapters 15 to 17 and 20 to 24, in the tables of practice.py."""

import json
import re
import struct
from math import ceil

import torch
import torch.distributed as dist

from collectives.planner import Division
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
def both_passes(flops, bandwidth, weight, gradient):
    forward = weight / 2 * flops / bandwidth
    backward = (weight + gradient) / 4 * flops / bandwidth
    return max(ceil(forward), ceil(backward))


@right("least_tokens")
def seconds_next_to_seconds(flops, bandwidth, weight, gradient):
    passes = ((weight, 2), (weight + gradient, 4))  # bytes sent and FLOP, per parameter and token
    return ceil(max((nbytes / bandwidth) / (flop / flops) for nbytes, flop in passes))


@wrong("least_tokens", "What does backward send")
def forward_pass(flops, bandwidth, weight, gradient):
    return ceil(weight / 2 * flops / bandwidth)


@wrong("least_tokens", "gradients are small")
def backward_pass(flops, bandwidth, weight, gradient):
    return ceil((weight + gradient) / 4 * flops / bandwidth)


@wrong("least_tokens", "can't hide what backward sends")
def whole_step(flops, bandwidth, weight, gradient):
    return ceil((2 * weight + gradient) / 6 * flops / bandwidth)


@wrong("least_tokens", "Round up")
def rounded_down(flops, bandwidth, weight, gradient):
    return int(max(weight / 2, (weight + gradient) / 4) * flops / bandwidth)


@wrong("least_tokens", "F/B is for 2 bytes each")
def sixteen_bits(flops, bandwidth, weight, gradient):
    return ceil(flops / bandwidth)


@wrong("least_tokens", "a multiplication and an addition")
def one_flop(flops, bandwidth, weight, gradient):
    return ceil(max(weight, (weight + gradient) / 2) * flops / bandwidth)


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


@wrong("fits_sharded", "how many of the 16 bytes are on every rank")
def shards_forgotten(parameters, gpus, activations, memory):
    return next((z for z, b in enumerate((16, 4, 2, 0)) if 1.2 * (parameters * b + activations) <= memory), None)


@wrong("fits_sharded", "smallest stage that fits")
def always_three(parameters, gpus, activations, memory):
    return 3


@wrong("fits_sharded", "16 bytes here")
def gradients_in_32_bits(parameters, gpus, activations, memory):
    for stage, whole in enumerate((18, 4, 2, 0)):
        if 1.2 * (parameters * (whole + (18 - whole) / gpus) + activations) <= memory:
            return stage


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


# --- 16 merge_parts -----------------------------------------------------------------------


@right("merge_parts")
def one_by_one(means, lses):
    o, lse = means[0], lses[0]
    for other, more in zip(means[1:], lses[1:]):
        both = torch.logaddexp(lse, more)
        o, lse = o * (lse - both).exp() + other * (more - both).exp(), both
    return o


@wrong("merge_parts", "all parts count alike")
def averaged(means, lses):
    return torch.stack(means).mean(0)


@wrong("merge_parts", "exp of a large lse overflows")
def by_exp(means, lses):
    return sum(m * lse.exp() for m, lse in zip(means, lses)) / sum(lse.exp() for lse in lses)


@wrong("merge_parts", "logarithm of the weight")
def by_lse(means, lses):
    return sum(m * lse for m, lse in zip(means, lses)) / sum(lses)


# --- 16 needed_blocks ---------------------------------------------------------------------


@right("needed_blocks")
def down_to_zero(rank, n):
    return tuple(range(rank, -1, -1))


@wrong("needed_blocks", "masked entirely")
def all_of_them(rank, n):
    return [(rank - hop) % n for hop in range(n)]


@wrong("needed_blocks", "In which order")
def upwards(rank, n):
    return list(range(rank + 1))


@wrong("needed_blocks", "from the left")
def from_the_right(rank, n):
    return [(rank + hop) % n for hop in range(n)]


# --- 16 zigzag_positions ------------------------------------------------------------------


@right("zigzag_positions")
def two_ranges(rank, n, length):
    piece = length // n // 2
    return [*range(rank * piece, (rank + 1) * piece), *range(length - (rank + 1) * piece, length - rank * piece)]


@wrong("zigzag_positions", "contiguous")
def one_piece(rank, n, length):
    return list(range(rank * length // n, (rank + 1) * length // n))


@wrong("zigzag_positions", "striped")
def dealt_out(rank, n, length):
    return list(range(rank, length, n))


@wrong("zigzag_positions", "keep each piece in order")
def second_backward(rank, n, length):
    piece = length // n // 2
    return [
        *range(rank * piece, (rank + 1) * piece),
        *reversed(range(length - (rank + 1) * piece, length - rank * piece)),
    ]


# --- 16 to_heads --------------------------------------------------------------------------


@right("to_heads")
def by_list(x):
    n, rank = dist.get_world_size(), dist.get_rank()
    pieces = list(x.chunk(n))
    arrived = [torch.empty_like(pieces[rank]) for _ in range(n)]
    dist.all_to_all(arrived, [piece.contiguous() for piece in pieces])
    return torch.cat(arrived, 1)


@wrong("to_heads", "Along which dimension")
def joined_as_heads(x):
    arrived = torch.empty_like(x)
    dist.all_to_all_single(arrived, x)
    return arrived


@wrong("to_heads", "don't need all heads")
def gathers_everything(x):
    n, rank = dist.get_world_size(), dist.get_rank()
    every = x.new_empty(n, *x.shape)
    dist.all_gather_single(every, x[None])
    return torch.cat([part.chunk(n)[rank] for part in every], 1)


@wrong("to_heads", "rank 0's come first")
def last_rank_first(x):
    arrived = torch.empty_like(x)
    dist.all_to_all_single(arrived, x)
    return torch.cat(arrived.chunk(dist.get_world_size())[::-1], 1)


# --- 16 fewest_bytes ----------------------------------------------------------------------


@right("fewest_bytes")
def forward_decides(n, heads, keys):
    return "gather" if n * keys < heads + max(keys, n) else "heads"


@wrong("fewest_bytes", "that's the ring")
def ring_counted(n, heads, keys):
    return "gather" if (6 * n - 4) * keys / heads < 2 * (2 + 2 * max(keys, n) / heads) * (n - 1) / n else "heads"


@right("fewest_bytes")
def a_gather_for_no_more_ranks_than_heads_per_key(n, heads, keys):
    return "gather" if n * keys <= heads else "heads"


@wrong("fewest_bytes", "4 \\(n-1\\) blocks of keys")
def always_heads(n, heads, keys):
    return "heads"


@wrong("fewest_bytes", "4 \\(n-1\\) blocks of keys")
def always_a_gather(n, heads, keys):
    return "gather"


# --- 15 route -----------------------------------------------------------------------------


@right("route")
def by_sorting(probabilities, k):
    best, experts = probabilities.sort(descending=True)
    return experts[:, :k], best[:, :k] / best[:, :k].sum(1)[:, None]


@wrong("route", "must sum to 1")
def as_they_are(probabilities, k):
    return probabilities.topk(k)[1], probabilities.topk(k)[0]


@wrong("route", "leave softmax to the router")
def another_softmax(probabilities, k):
    best, experts = probabilities.topk(k)
    return experts, best.softmax(-1)


@wrong("route", "experts come first")
def weights_first(probabilities, k):
    best, experts = probabilities.topk(k)
    return best / best.sum(-1, keepdim=True), experts


# --- 15 send_to_experts -------------------------------------------------------------------


@right("send_to_experts")
def selected(tokens, expert):
    n = dist.get_world_size()
    parts = [tokens[expert == rank] for rank in range(n)]
    send = torch.tensor([len(part) for part in parts])
    receive = torch.empty_like(send)
    dist.all_to_all_single(receive, send)
    here = torch.empty(int(receive.sum()))
    dist.all_to_all_single(here, torch.cat(parts), receive.tolist(), send.tolist())
    return here


@wrong("send_to_experts", "does the receiver name what the sender sends")
def hopes(tokens, expert):
    n = dist.get_world_size()
    send, order = expert.bincount(minlength=n).tolist(), expert.argsort(stable=True)
    receive = [len(part) for part in torch.tensor_split(tokens, n)]
    here = torch.empty(len(tokens))
    dist.all_to_all_single(here, tokens[order], receive, send)
    return here


@wrong("send_to_experts", "tokens go to one rank only")
def gathers_all(tokens, expert):
    n, rank = dist.get_world_size(), dist.get_rank()
    every, wanted = tokens.new_empty(n * len(tokens)), expert.new_empty(n * len(tokens))
    dist.all_gather_single(every, tokens)
    dist.all_gather_single(wanted, expert)
    return every[wanted == rank]


@wrong("send_to_experts", "keep each sender's tokens in their order")
def last_first(tokens, expert):
    return selected(tokens.flip(0), expert.flip(0))


# --- 15 sums_with -------------------------------------------------------------------------


@right("sums_with")
def by_column(name, rank, ep, n):
    return [other for other in range(n) if "experts" not in name or (other - rank) % ep == 0]


@wrong("sums_with", "which ranks have this expert")
def all_ranks(name, rank, ep, n):
    return list(range(n))


@wrong("sums_with", "that's a row")
def the_row(name, rank, ep, n):
    return [other for other in range(n) if "experts" not in name or other // ep == rank // ep]


@wrong("sums_with", "copy of the router")
def always_the_column(name, rank, ep, n):
    return list(range(rank % ep, n, ep))


# --- 15 balance_loss ----------------------------------------------------------------------


@right("balance_loss")
def by_product(probabilities, tokens):
    share = tokens.to(probabilities.dtype) / tokens.sum()
    return len(tokens) * share @ probabilities.mean(0)


@wrong("balance_loss", "times the number of experts")
def not_scaled(probabilities, tokens):
    return by_product(probabilities, tokens) / len(tokens)


@wrong("balance_loss", "not their number")
def counted(probabilities, tokens):
    return by_product(probabilities, tokens) * tokens.sum()


@wrong("balance_loss", "this rank's rows")
def share_of_own_rows(probabilities, tokens):
    return len(tokens) * (tokens / len(probabilities) * probabilities.mean(0)).sum()


@wrong("balance_loss", "not their sum")
def summed(probabilities, tokens):
    return len(tokens) * (tokens / tokens.sum() * probabilities.sum(0)).sum()


@wrong("balance_loss", "what the experts got")
def without_the_counts(probabilities, tokens):
    return len(tokens) * (probabilities.mean(0) ** 2).sum()


# --- 15 next_bias -------------------------------------------------------------------------


@right("next_bias")
def by_where(bias, tokens, speed):
    even = tokens.sum() / len(tokens)
    return torch.where(tokens > even, bias - speed, torch.where(tokens < even, bias + speed, bias))


@wrong("next_bias", "even more popular")
def raised(bias, tokens, speed):
    return 2 * bias - by_where(bias, tokens, speed)


@wrong("next_bias", "only the sign")
def in_proportion(bias, tokens, speed):
    return bias - speed * (tokens - tokens.float().mean())


@wrong("next_bias", "start from the bias so far")
def from_zero(bias, tokens, speed):
    return by_where(torch.zeros_like(bias), tokens, speed)


# --- 17 place_of --------------------------------------------------------------------------


@right("place_of")
def by_struct(data, name):
    (size,) = struct.unpack("<Q", data[:8])
    return [8 + size + offset for offset in json.loads(data[8 : 8 + size])[name]["data_offsets"]]


@wrong("place_of", "count from behind the header")
def offsets_alone(data, name):
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size])[name]["data_offsets"]


@wrong("place_of", "the 8 bytes that hold")
def without_the_length(data, name):
    return [place - 8 for place in by_struct(data, name)]


@wrong("place_of", "then the numbers")
def size_alone(data, name):
    first, last = by_struct(data, name)
    return last - first


# --- 17 shard_range -----------------------------------------------------------------------


@right("shard_range")
def by_counting(length, rank, n):
    sizes = [len(range(r, length, n)) for r in range(n)]
    return sum(sizes[:rank]), sum(sizes[: rank + 1])


@wrong("shard_range", "belongs to no rank")
def remainder_lost(length, rank, n):
    return rank * (length // n), (rank + 1) * (length // n)


@wrong("shard_range", "the whole remainder")
def remainder_to_the_last(length, rank, n):
    return rank * (length // n), length if rank == n - 1 else (rank + 1) * (length // n)


@wrong("shard_range", "how chunk\\(\\) divides")
def as_chunk(length, rank, n):
    each = -(-length // n)
    return min(length, rank * each), min(length, (rank + 1) * each)


# --- 17 newest_complete -------------------------------------------------------------------


@right("newest_complete")
def by_pattern(names):
    steps = [int(found[1]) for name in names if (found := re.fullmatch(r"step(\d+)", name))]
    return f"step{max(steps)}" if steps else None


@wrong("newest_complete", "Compare numbers")
def by_text(names):
    return max((name for name in names if re.fullmatch(r"step\d+", name)), default=None)


@wrong("newest_complete", "isn't complete")
def with_partial(names):
    steps = [name for name in names if re.match(r"step\d", name)]
    return max(steps, key=lambda name: int(re.search(r"\d+", name)[0]), default=None)


@wrong("newest_complete", "largest number")
def the_last(names):
    return names[0]


# --- 17 save_every ------------------------------------------------------------------------


@right("save_every")
def both_equal(stop, between_failures):
    share = (2 * stop / between_failures) ** 0.5
    return (2 * stop * between_failures) ** 0.5, share


@wrong("save_every", "half an interval is lost")
def without_the_two(stop, between_failures):
    t = (stop * between_failures) ** 0.5
    return t, stop / t + t / 2 / between_failures


@wrong("save_every", "done again is lost")
def saving_alone(stop, between_failures):
    t = (2 * stop * between_failures) ** 0.5
    return t, stop / t


@wrong("save_every", "return both")
def interval_alone(stop, between_failures):
    return (2 * stop * between_failures) ** 0.5


# --- 20 place_on_mesh ---------------------------------------------------------------------


@right("place_on_mesh")
def by_unravel(rank, sizes):
    return [int(index) for index in torch.unravel_index(torch.tensor(rank), sizes)]


@wrong("place_on_mesh", "from the last dimension to the first")
def from_the_back(rank, sizes):
    return by_unravel(rank, sizes)[::-1]


@wrong("place_on_mesh", "first dimension is fastest")
def first_fastest(rank, sizes):
    return by_unravel(rank, sizes[::-1])[::-1]


@wrong("place_on_mesh", "divide before")
def remainders(rank, sizes):
    return [rank % size for size in sizes]


# --- 20 sum_over --------------------------------------------------------------------------


@right("sum_over")
def by_sets(name, dims):
    cut = any(part in name for part in ("attention", "mlp"))
    return [dim for dim in dims if dim in ({"dp", "cp"} if cut else {"dp", "cp", "sp"})]


@wrong("sum_over", "different pieces or layers")
def over_everything(name, dims):
    return list(dims)


@wrong("sum_over", "over fs already")
def over_fs_again(name, dims):
    return [dim for dim in dims if dim == "fs" or dim in by_sets(name, dims)]


@wrong("sum_over", "only this rank's positions")
def norms_forgotten(name, dims):
    return [dim for dim in dims if dim in ("dp", "cp")]


@wrong("sum_over", "Each rank has its piece's whole gradient")
def always_over_sp(name, dims):
    return [dim for dim in dims if dim in ("dp", "cp", "sp")]


# --- 20 tensor_bytes ----------------------------------------------------------------------


@right("tensor_bytes")
def per_block(activations, layers, dp, pp, tp):
    block = 4 * 2 * (tp - 1) / tp * activations / dp
    return block * layers / pp


@wrong("tensor_bytes", "1/dp of the rows and 1/pp of the layers")
def undivided(activations, layers, dp, pp, tp):
    return 8 * layers * (tp - 1) / tp * activations


@wrong("tensor_bytes", "1/dp of the rows only")
def of_all_replicas(activations, layers, dp, pp, tp):
    return 4 * (layers / pp) * 2 * (tp - 1) / tp * activations


@wrong("tensor_bytes", "two backward")
def forward_alone(activations, layers, dp, pp, tp):
    return per_block(activations, layers, dp, pp, tp) / 2


@wrong("tensor_bytes", "1/pp of the layers only")
def all_layers(activations, layers, dp, pp, tp):
    return per_block(activations, layers, dp, 1, tp)


# --- 20 norm_of_all -----------------------------------------------------------------------


@right("norm_of_all")
def shared_divided(mine, shared):
    total = mine.square().sum() + shared.square().sum() / dist.get_world_size()
    dist.all_reduce(total)
    return total.sqrt()


@wrong("norm_of_all", "once for each of them")
def shared_by_all(mine, shared):
    total = mine.square().sum() + shared.square().sum()
    dist.all_reduce(total)
    return total.sqrt()


@wrong("norm_of_all", "take the root last")
def norms_summed(mine, shared):
    norm = torch.cat([mine, shared]).norm()
    dist.all_reduce(norm)
    return norm


@wrong("norm_of_all", "what this rank has")
def local_norm(mine, shared):
    return torch.cat([mine, shared]).norm()


@wrong("norm_of_all", "a number per rank is enough")
def gathered(mine, shared):
    every = mine.new_empty(dist.get_world_size() * len(mine))
    dist.all_gather_single(every, mine)
    every = torch.cat([every, shared])
    dist.all_reduce(mine.clone())
    dist.all_reduce(mine.new_zeros(64))
    return every.norm()


# --- 23 fastest ---------------------------------------------------------------------------


def seconds_of(n, nbytes, alpha, beta):
    each = 2 * (n - 1) / n * nbytes * beta
    return {"one-shot": alpha + (n - 1) * nbytes * beta, "two-shot": 2 * alpha + each, "ring": 2 * (n - 1) * alpha + each}


@right("fastest")
def by_sorting(n, nbytes, alpha, beta):
    return sorted(seconds_of(n, nbytes, alpha, beta).items(), key=lambda item: item[1])[0][0]


@wrong("fastest", "the ring is optimal in bytes")
def always_a_ring(n, nbytes, alpha, beta):
    return "ring"


@wrong("fastest", "one-shot sends N-1 whole buffers")
def always_one_shot(n, nbytes, alpha, beta):
    return "one-shot"


@wrong("fastest", "one step with more bytes is faster")
def always_two_shot(n, nbytes, alpha, beta):
    return "two-shot"


@wrong("fastest", "the one with fewer steps")
def more_steps_first(n, nbytes, alpha, beta):
    times = dict(reversed(seconds_of(n, nbytes, alpha, beta).items()))
    return min(times, key=times.get)


# --- 23 merge_shares ----------------------------------------------------------------------


def scaled_share(y, total, top, scaled=True):
    most = top.clone()
    dist.all_reduce(most, dist.ReduceOp.MAX)
    both = torch.cat([y, total], -1)
    both = both * (top - most).exp() if scaled else both
    dist.all_reduce(both)
    return both


@right("merge_shares")
def of_slices(y, total, top):
    both = scaled_share(y, total, top)
    return both[..., : y.shape[-1]] / both[..., y.shape[-1] :]


@wrong("merge_shares", "each is relative to its own top")
def not_scaled(y, total, top):
    both = scaled_share(y, total, top, scaled=False)
    return both[..., :-1] / both[..., -1:]


@wrong("merge_shares", "Divide it by the total")
def not_divided(y, total, top):
    return scaled_share(y, total, top)[..., :-1].clone()


@wrong("merge_shares", "the rank's own share")
def own_share(y, total, top):
    dist.barrier()
    return (y / total).nan_to_num()


@wrong("merge_shares", "writes into the argument|hasn't changed|changed")
def top_overwritten(y, total, top):
    before = top.clone()
    dist.all_reduce(top, dist.ReduceOp.MAX)
    both = torch.cat([y, total], -1) * (before - top).exp()
    dist.all_reduce(both)
    return both[..., :-1] / both[..., -1:]


@wrong("merge_shares", "can travel in one tensor")
def three_calls(y, total, top):
    most = top.clone()
    dist.all_reduce(most, dist.ReduceOp.MAX)
    factor = (top - most).exp()
    y, total = y * factor, total * factor
    dist.all_reduce(y)
    dist.all_reduce(total)
    return y / total


# --- 23 overlap_box -----------------------------------------------------------------------


@right("overlap_box")
def by_ranges(a, b):
    box = []
    for (p, s), (q, t) in zip(a, b):
        common = range(max(p, q), min(s, t))
        if not len(common):
            return None
        box.append((common.start, common.stop))
    return box


@wrong("overlap_box", "a box without elements isn't one")
def never_none(a, b):
    return [(max(p, q), min(s, t)) for (p, s), (q, t) in zip(a, b)]


@wrong("overlap_box", "stop isn't part of a box")
def touching(a, b):
    box = never_none(a, b)
    return box if all(start <= stop for start, stop in box) else None


@wrong("overlap_box", "the smallest box around both")
def around_both(a, b):
    return [(min(p, q), max(s, t)) for (p, s), (q, t) in zip(a, b)]


@wrong("overlap_box", "in every dimension")
def in_some_dimension(a, b):
    box = never_none(a, b)
    return box if any(start < stop for start, stop in box) else None


# --- 23 usable ----------------------------------------------------------------------------


@right("usable")
def young_enough(samples, newest, most):
    young = {k for k, versions in enumerate(samples) if versions and min(versions) >= newest - most}
    return sorted(young)


@wrong("usable", "as old as its oldest token")
def by_newest_token(samples, newest, most):
    return [k for k, versions in enumerate(samples) if versions and newest - max(versions) <= most]


@wrong("usable", "on the limit counts")
def below_the_limit(samples, newest, most):
    return [k for k, versions in enumerate(samples) if versions and newest - min(versions) < most]


@wrong("usable", "return the indices")
def samples_themselves(samples, newest, most):
    return [samples[k] for k in young_enough(samples, newest, most)]


@wrong("usable", "an empty sample isn't usable")
def empty_ones_too(samples, newest, most):
    return [k for k, versions in enumerate(samples) if not versions or newest - min(versions) <= most]


# --- 24 to_int8 ---------------------------------------------------------------------------


@right("to_int8")
def by_a_list_of_blocks(x, block):
    numbers, scales = [], []
    for part in x.split(block):
        scale = part.abs().max() / 127
        numbers.append((part / scale if scale else part).round())
        scales.append(scale)
    return torch.cat(numbers).to(torch.int8), torch.stack(scales)


def scaled(x, block, scales):
    return (x.view(-1, block) / scales.clamp_min(1e-30)[:, None]).round().to(torch.int8).flatten(), scales


@wrong("to_int8", "cuts off, and doesn't round")
def cut_off(x, block):
    scales = x.view(-1, block).abs().amax(1) / 127
    return (x.view(-1, block) / scales.clamp_min(1e-30)[:, None]).to(torch.int8).flatten(), scales


@wrong("to_int8", "all blocks have one scale")
def one_scale(x, block):
    return scaled(x, block, (x.abs().max() / 127).repeat(len(x) // block))


@wrong("to_int8", "A negative number may be larger")
def signed_maximum(x, block):
    scales = x.view(-1, block).amax(1) / 127
    steps = (x.view(-1, block) / scales[:, None]).round().nan_to_num()
    return ((steps.long() + 128) % 256 - 128).to(torch.int8).flatten(), scales


@wrong("to_int8", "becomes 128, which an int8 doesn't have")
def to_128(x, block):
    scales = x.view(-1, block).abs().amax(1) / 128
    steps = (x.view(-1, block) / scales.clamp_min(1e-30)[:, None]).round()
    return ((steps.long() + 128) % 256 - 128).to(torch.int8).flatten(), scales


@wrong("to_int8", "expected   the numbers in int8")
def not_converted(x, block):
    numbers, scales = by_a_list_of_blocks(x, block)
    return numbers.float(), scales


@wrong("to_int8", "two tensors, numbers and scales")
def decoded_again(x, block):
    numbers, scales = by_a_list_of_blocks(x, block)
    return (numbers.view(-1, block) * scales[:, None]).flatten()


# --- 24 part_of_sum -----------------------------------------------------------------------


@right("part_of_sum")
def rows_of_bytes(numbers, scales):
    """One call: a row holds a block's numbers and its scale."""
    n, blocks = dist.get_world_size(), len(scales)
    rows = torch.cat([numbers.view(blocks, -1), scales.view(torch.int8).view(blocks, 4)], 1)
    versions = torch.empty_like(rows)
    dist.all_to_all_single(versions, rows)
    decoded = versions[:, :-4] * versions[:, -4:].contiguous().view(torch.float32)
    return decoded.view(n, -1).sum(0)


@wrong("part_of_sum", "the integers were added up in 8 bits")
def all_reduce_of_bytes(numbers, scales):
    total = numbers.clone()
    dist.all_reduce(total)
    return (
        (total.view(len(scales), -1) * scales[:, None]).flatten().chunk(dist.get_world_size())[dist.get_rank()].clone()
    )


@wrong("part_of_sum", "the integers were added up before they were scaled")
def all_reduce_of_integers(numbers, scales):
    total = numbers.int()
    dist.all_reduce(total)
    return (
        (total.view(len(scales), -1) * scales[:, None]).flatten().chunk(dist.get_world_size())[dist.get_rank()].clone()
    )


@wrong("part_of_sum", "the rank's own version")
def own_version(numbers, scales):
    return (
        (numbers.view(len(scales), -1) * scales[:, None])
        .flatten()
        .chunk(dist.get_world_size())[dist.get_rank()]
        .clone()
    )


@wrong("part_of_sum", "Which collective sends each rank a different part")
def by_all_gather(numbers, scales):
    n, rank = dist.get_world_size(), dist.get_rank()
    numbers_of_all, factors = numbers.new_empty(n * len(numbers)), scales.new_empty(n * len(scales))
    dist.all_gather_single(numbers_of_all, numbers)
    dist.all_gather_single(factors, scales)
    versions = (numbers_of_all.view(n, len(scales), -1) * factors.view(n, -1, 1)).flatten(1)
    return versions.sum(0).chunk(n)[rank].clone()


@wrong("part_of_sum", "Which collective sends each rank a different part")
def in_float32(numbers, scales):
    x = (numbers.view(len(scales), -1) * scales[:, None]).flatten()
    part = x.new_empty(len(x) // dist.get_world_size())
    dist.reduce_scatter_single(part, x)
    return part


# --- 24 outer_step ------------------------------------------------------------------------


def way(weights, anchor):
    moved = anchor - weights
    dist.all_reduce(moved, dist.ReduceOp.AVG)
    return moved


@right("outer_step")
def by_torchs_optimizer(weights, anchor, momentum, lr, mu):
    """torch.optim.SGD's formula: the averaged weights travel instead of the way."""
    mean = weights / dist.get_world_size()
    dist.all_reduce(mean)
    moved = anchor - mean
    momentum.copy_(momentum * mu + moved)
    return anchor - lr * (moved + mu * momentum)


@wrong("outer_step", "A gradient points uphill")
def uphill(weights, anchor, momentum, lr, mu):
    moved = -way(weights, anchor)
    momentum.mul_(mu).add_(moved)
    return anchor - lr * (moved + mu * momentum)


@wrong("outer_step", "it should be their mean")
def sum_of_ways(weights, anchor, momentum, lr, mu):
    moved = anchor - weights
    dist.all_reduce(moved)
    momentum.mul_(mu).add_(moved)
    return anchor - lr * (moved + mu * momentum)


@wrong("outer_step", "the replicas are different models")
def own_way(weights, anchor, momentum, lr, mu):
    moved = anchor - weights
    momentum.mul_(mu).add_(moved)
    return anchor - lr * (moved + mu * momentum)


@wrong("outer_step", "that is plain momentum")
def plain_momentum(weights, anchor, momentum, lr, mu):
    momentum.mul_(mu).add_(way(weights, anchor))
    return anchor - lr * momentum


@wrong("outer_step", "this is the mean of the weights")
def mean_of_weights(weights, anchor, momentum, lr, mu):
    mean = weights / dist.get_world_size()
    dist.all_reduce(mean)
    return mean


@wrong("outer_step", "writes into the tensor that was passed|hasn't changed")
def new_momentum(weights, anchor, momentum, lr, mu):
    moved = way(weights, anchor)
    momentum = mu * momentum + moved
    return anchor - lr * (moved + mu * momentum)


@wrong("outer_step", "All ranks have the same anchor and momentum")
def momentum_averaged(weights, anchor, momentum, lr, mu):
    moved = way(weights, anchor)
    momentum.mul_(mu).add_(moved)
    dist.all_reduce(momentum, dist.ReduceOp.AVG)
    return anchor - lr * (moved + mu * momentum)


# --- 24 due_fragment ----------------------------------------------------------------------


@right("due_fragment")
def from_a_list(step, every, fragments):
    turns = [*range(fragments)] * step
    due, left = divmod(step * fragments, every)
    return turns[due - 1] if left < fragments else None


@wrong("due_fragment", "forgets the fragments")
def whole_model(step, every, fragments):
    return None if step % every else 0


@wrong("due_fragment", "fragment 0")
def from_the_second(step, every, fragments):
    gap = every // fragments
    return None if step % gap else step // gap % fragments


@wrong("due_fragment", "fragment 0 is due again")
def counts_on(step, every, fragments):
    gap = every // fragments
    return None if step % gap else step // gap - 1


# --- 24 steps_between ---------------------------------------------------------------------


@right("steps_between")
def tried_one_by_one(n, nbytes, bandwidth, compute, share):
    talk = 2 * (n - 1) / n * nbytes / bandwidth
    steps = 1
    while talk > share * (talk + steps * compute):
        steps += 1
    return steps


@wrong("steps_between", "not of the steps alone")
def share_of_the_steps(n, nbytes, bandwidth, compute, share):
    return ceil(2 * (n - 1) / n * nbytes / bandwidth / (share * compute))


@wrong("steps_between", r"2\(N-1\)/N times the bytes")
def once_the_bytes(n, nbytes, bandwidth, compute, share):
    return max(1, ceil(nbytes / bandwidth * (1 - share) / (share * compute)))


@wrong("steps_between", "rounded down")
def one_step_too_few(n, nbytes, bandwidth, compute, share):
    return max(1, int(2 * (n - 1) / n * nbytes / bandwidth * (1 - share) / (share * compute)))


@wrong("steps_between", "round up")
def not_an_integer(n, nbytes, bandwidth, compute, share):
    return 2 * (n - 1) / n * nbytes / bandwidth * (1 - share) / (share * compute)


# --- 22 agreed ----------------------------------------------------------------------------


@right("agreed")
def number_that_failed(ok):
    """A sum: zero if none has failed."""
    failed = torch.tensor([0 if ok else 1])
    dist.all_reduce(failed)
    return failed.item() == 0


@wrong("agreed", "what the rank itself has seen")
def decides_alone(ok):
    return ok


@wrong("agreed", "True if anybody is fine")
def with_max(ok):
    flag = torch.tensor([float(ok)])
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag.item())


@wrong("agreed", "this counts the ranks that are fine")
def count_of_fine(ok):
    count = torch.tensor([int(ok)])
    dist.all_reduce(count)
    return count.item()


@wrong("agreed", "upside down")
def somebody_failed(ok):
    flag = torch.tensor([float(ok)])
    dist.all_reduce(flag, dist.ReduceOp.MIN)
    return flag.item() == 0


@wrong("agreed", "this is a majority")
def majority(ok):
    count = torch.tensor([float(ok)])
    dist.all_reduce(count)
    return 2 * count.item() > dist.get_world_size()


@wrong("agreed", "one number per rank is enough")
def every_result_to_all(ok):
    flags = [torch.zeros(4) for _ in range(dist.get_world_size())]
    dist.all_gather(flags, torch.full((4,), float(ok)))
    return all(flag[0].item() == 1 for flag in flags)


# --- 22 to_heal ---------------------------------------------------------------------------


@right("to_heal")
def in_a_loop(steps):
    source = 0
    for member, made in enumerate(steps):
        if made > steps[source]:
            source = member
    return source, [member for member in range(len(steps)) if steps[member] != steps[source]]


@wrong("to_heal", "member 0 may be behind itself")
def always_from_0(steps):
    return 0, [member for member, made in enumerate(steps) if made < max(steps)]


@wrong("to_heal", "throw steps away")
def back_to_the_slowest(steps):
    least = min(steps)
    return steps.index(least), [member for member, made in enumerate(steps) if made > least]


@wrong("to_heal", "have its weights already")
def to_everyone(steps):
    source = steps.index(max(steps))
    return source, [member for member in range(len(steps)) if member != source]


@wrong("to_heal", "more than one may be behind")
def only_one_behind(steps):
    ahead = max(steps)
    return steps.index(ahead), [member for member, made in enumerate(steps) if made < ahead][:1]


@wrong("to_heal", "the first of them is the source")
def from_the_last(steps):
    ahead = max(steps)
    return max(k for k, made in enumerate(steps) if made == ahead), [k for k, made in enumerate(steps) if made < ahead]


@wrong("to_heal", "the first member with the most steps")
def only_the_source(steps):
    return steps.index(max(steps))


# --- 22 keeper ----------------------------------------------------------------------------


@right("shares_lost")
def by_what_is_left(every, pause, restart, between):
    return [seconds / period for seconds, period in ((pause, every), (every * 0.5, between), (restart, between))]


@wrong("shares_lost", "How much is computed again, on average")
def all_since_the_save(every, pause, restart, between):
    return pause / every, every / between, restart / between


@wrong("shares_lost", "whether or not a failure follows")
def a_save_per_failure(every, pause, restart, between):
    return pause / between, every / 2 / between, restart / between


@wrong("shares_lost", "Return the three shares apart")
def all_that_is_lost(every, pause, restart, between):
    return pause / every + every / 2 / between + restart / between


@wrong("shares_lost", "in a different order")
def restart_before_redo(every, pause, restart, between):
    return pause / every, restart / between, every / 2 / between


@wrong("shares_lost", "how many seconds are there between two such times")
def redo_left_out(every, pause, restart, between):
    return pause / every, 0, restart / between


@right("keeper")
def by_the_last_bit(host, hosts):
    return host ^ 1


@wrong("keeper", "that's the ring")
def ring_to_the_right(host, hosts):
    return (host + 1) % hosts


@wrong("keeper", "a ring in the other direction")
def ring_to_the_left(host, hosts):
    return (host - 1) % hosts


@wrong("keeper", "make them of neighbors")
def pairs_half_way_around(host, hosts):
    return (host + hosts // 2) % hosts


@wrong("keeper", "that's the ring|What do odd hosts do")
def always_the_next(host, hosts):
    return host + 1


@wrong("keeper", "its own copy dies with it")
def itself(host, hosts):
    return host


@wrong("keeper", "keep each other's copy, 2 and 3 do")
def all_on_host_0(host, hosts):
    return 0 if host else 2
