"""Answers to the short tasks of the chapters: right ones, and mistakes with the words each deserves.

RIGHT[name] and WRONG[name] as in answers.py. The first right answer is another one than the chapter's own.
"""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.distributed as dist

from collectives.algorithms import Schedule, copy
from tests.corpus.answers import register

RIGHT, WRONG, right, wrong = register()


# --- 00 train_together --------------------------------------------------------------------

KM, MINUTES = torch.tensor([1.0, 3.0] * 4), torch.tensor([3.5, 10.5, 4.5, 13.5, 5.5, 16.5, 6.5, 19.5])


def trained(line=lambda w: None, instead=lambda w: None):
    """The chapter's loop.  line: what a reader types in.  instead: typed in below the step."""
    rank, n = dist.get_rank(), dist.get_world_size()
    x, y = KM.tensor_split(n)[rank], MINUTES.tensor_split(n)[rank]
    w = torch.zeros(1, requires_grad=True)
    for _ in range(8):
        loss = ((w * x - y) ** 2).mean()
        loss.backward()
        line(w)
        with torch.no_grad():
            w -= 0.05 * w.grad
            instead(w)
        w.grad = None
    return round(w.item(), 2)


@right("train_together")
def sum_divided():
    def line(w):
        dist.all_reduce(w.grad)
        w.grad /= dist.get_world_size()

    return trained(line)


@right("train_together")
def weights_averaged():
    return trained(instead=lambda w: dist.all_reduce(w, op=dist.ReduceOp.AVG))


@wrong("train_together", "from its own trips alone")
def no_line():
    return trained()


@wrong("train_together", "from its own trips alone")
def a_copy_averaged():
    return trained(lambda w: dist.all_reduce(w.grad.clone(), op=dist.ReduceOp.AVG))


@wrong("train_together", "they follow the sum")
def op_forgotten():
    return trained(lambda w: dist.all_reduce(w.grad))


@wrong("train_together", "the sum is divided by 4")
def by_four():
    def line(w):
        dist.all_reduce(w.grad)
        w.grad /= 4

    return trained(line)


@wrong("train_together", "operations are members of `dist.ReduceOp`")
def a_string_for_an_op():
    return trained(lambda w: dist.all_reduce(w.grad, op="avg"))


@wrong("train_together", "did this None come from a call")
def into_the_name():
    def line(w):
        w.grad = dist.all_reduce(w.grad, op=dist.ReduceOp.AVG)

    return trained(line)


@wrong("train_together", "process 0's gradient, which is also the greatest")
def greatest_gradient():
    return trained(lambda w: dist.all_reduce(w.grad, op=dist.ReduceOp.MAX))


@wrong("train_together", "follow process 0's gradient")
def broadcast_gradient():
    return trained(lambda w: dist.broadcast(w.grad, src=0))


@wrong("train_together", "every process make the call")
def line_for_zero():
    return trained(lambda w: dist.get_rank() or dist.all_reduce(w.grad, op=dist.ReduceOp.AVG))


# --- 00 mean_loss -------------------------------------------------------------------------


@right("mean_loss")
def on_rank_zero(loss):
    dist.reduce(loss, dst=0)
    return loss.item() / dist.get_world_size() if dist.get_rank() == 0 else None


@wrong("mean_loss", "does every rank make the call")
def call_inside_if(loss):
    if dist.get_rank() == 0:
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        return loss.item()


@wrong("mean_loss", "divided by the number of ranks once too often")
def divided_again(loss):
    dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    return loss.item() / dist.get_world_size() if dist.get_rank() == 0 else None


@wrong("mean_loss", "the sum of the losses")
def undivided(loss):
    dist.all_reduce(loss)
    return loss.item() if dist.get_rank() == 0 else None


@wrong("mean_loss", "only rank 0 should return it")
def on_every_rank(loss):
    dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    return loss.item()


@wrong("mean_loss", "rank 0's own loss")
def without_a_call(loss):
    return loss.item() if dist.get_rank() == 0 else None


# --- 01 my_share --------------------------------------------------------------------------


@right("my_share")
def begin_and_end(items):
    rank, n = dist.get_rank(), dist.get_world_size()
    each, rest = divmod(len(items), n)
    begin = rank * each + min(rank, rest)
    return items[begin : begin + each + (rank < rest)]


@wrong("my_share", "deals the items out like cards")
def every_nth(items):
    return items[dist.get_rank() :: dist.get_world_size()]


@wrong("my_share", "belong to nobody")
def rest_forgotten(items):
    rank, each = dist.get_rank(), len(items) // dist.get_world_size()
    return items[rank * each : (rank + 1) * each]


@wrong("my_share", "the whole remainder")
def rest_at_the_end(items):
    rank, n = dist.get_rank(), dist.get_world_size()
    each = len(items) // n
    return items[rank * each : (rank + 1) * each if rank < n - 1 else len(items)]


@wrong("my_share", "fewer pieces than asked for")
def by_chunk(items):
    return items.chunk(dist.get_world_size())[dist.get_rank()]


@wrong("my_share", "all the items")
def asks_rank_zero(items):
    items = items.clone()
    dist.broadcast(items, src=0)
    return items.tensor_split(dist.get_world_size())[dist.get_rank()]


# --- 01 how_many --------------------------------------------------------------------------


@right("how_many")
def highest_rank():
    x = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x.item()


@wrong("how_many", "which call sends this rank")
def asked_for():
    return dist.get_world_size()


@wrong("how_many", "the sum of the ranks' numbers")
def sum_of_ranks():
    x = torch.tensor(dist.get_rank())
    dist.all_reduce(x)
    return x.item()


@wrong("how_many", "the rank's own number")
def own_number():
    return dist.get_rank()


# --- 01 rank_of ---------------------------------------------------------------------------


@right("rank_of")
def counted(node, local_rank, per_node):
    return sum(per_node for _ in range(node)) + local_rank


@wrong("rank_of", "the local rank")
def local_alone(node, local_rank, per_node):
    return local_rank


@wrong("rank_of", "as one rank")
def nodes_counted(node, local_rank, per_node):
    return node + local_rank


@wrong("rank_of", "like cards")
def dealt(node, local_rank, per_node):
    return local_rank * (dist.get_world_size() // per_node) + node


# --- 01 sum_of_mine -----------------------------------------------------------------------


@right("sum_of_mine")
def padded(items):
    rank, x = dist.get_rank(), torch.zeros(())
    if rank < len(items):
        x += items[rank]
    dist.all_reduce(x)
    return x


@wrong("sum_of_mine", "returned early")
def nothing_to_do(items):
    if dist.get_rank() < len(items):
        x = items[dist.get_rank()].clone()
        dist.all_reduce(x)
        return x


@wrong("sum_of_mine", "every rank added all the items")
def all_of_them(items):
    x = items.sum()
    dist.all_reduce(x)
    return x


@wrong("sum_of_mine", "The last ones may have none")
def past_the_end(items):
    x = items[dist.get_rank()].clone()
    dist.all_reduce(x)
    return x


# --- 02 swap_pairs ------------------------------------------------------------------------


def partner():
    rank, n = dist.get_rank(), dist.get_world_size()
    return rank ^ 1 if rank ^ 1 < n else None


@right("swap_pairs")
def both_in_flight(x):
    if partner() is None:
        return x
    theirs = torch.zeros_like(x)
    sending = dist.isend(x, dst=partner())
    dist.recv(theirs, src=partner())
    sending.wait()
    return theirs


@wrong("swap_pairs", "a send waits for its recv")
def send_first(x):
    if partner() is None:
        return x
    theirs = torch.zeros_like(x)
    dist.send(x, dst=partner())
    dist.recv(theirs, src=partner())
    return theirs


@wrong("swap_pairs", "one message waits for the other")
def one_after_the_other(x):
    if partner() is None:
        return x
    theirs = torch.zeros_like(x)
    if dist.get_rank() % 2:
        dist.recv(theirs, src=partner())
        dist.send(x, dst=partner())
    else:
        dist.send(x, dst=partner())
        dist.recv(theirs, src=partner())
    return theirs


@wrong("swap_pairs", "what the rank had before")
def returns_its_own(x):
    both_in_flight(x)
    return x


@wrong("swap_pairs", "a shift around the ring")
def shift(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    theirs = torch.zeros_like(x)
    if n == 1:
        return x
    sending = dist.isend(x, dst=(rank + 1) % n)
    dist.recv(theirs, src=(rank - 1) % n)
    sending.wait()
    return theirs


@wrong("swap_pairs", "the last one has no partner")
def always_paired(x):
    theirs = torch.zeros_like(x)
    sending = dist.isend(x, dst=dist.get_rank() ^ 1)
    dist.recv(theirs, src=dist.get_rank() ^ 1)
    sending.wait()
    return theirs


# --- 03 deal_rows -------------------------------------------------------------------------


@right("deal_rows")
def one_send_each(table):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = table.tensor_split(n)
    if rank == 0:
        for dst in range(1, n):
            dist.send(parts[dst], dst=dst)
        return parts[0]
    mine = torch.zeros_like(parts[rank])
    dist.recv(mine, src=0)
    return mine


@wrong("deal_rows", "gives every rank the whole table")
def broadcast_and_cut(table):
    whole = table.clone()
    dist.broadcast(whole, src=0)
    return whole.tensor_split(dist.get_world_size())[dist.get_rank()]


@wrong("deal_rows", "rows of the rank's own table")
def cut_my_own(table):
    return table.tensor_split(dist.get_world_size())[dist.get_rank()]


@wrong("deal_rows", "as long as the longest")
def blocks_of_two_lengths(table):
    rank, blocks = dist.get_rank(), list(table.tensor_split(dist.get_world_size()))
    mine = torch.zeros_like(blocks[rank])
    dist.scatter(mine, blocks if rank == 0 else None, src=0)
    return mine


@wrong("deal_rows", "the padding is still there")
def with_the_padding(table):
    rank, blocks = dist.get_rank(), list(table.tensor_split(dist.get_world_size()))
    most = len(blocks[0])
    padded = [torch.cat([block, block.new_zeros(most - len(block), block.shape[1])]) for block in blocks]
    mine = torch.zeros_like(padded[0])
    dist.scatter(mine, padded if rank == 0 else None, src=0)
    return mine


@wrong("deal_rows", "Who cuts?")
def let_scatter_cut(table):
    mine = torch.zeros_like(table.tensor_split(dist.get_world_size())[0])
    dist.scatter(mine, table if dist.get_rank() == 0 else None, src=0)
    return mine


@wrong("deal_rows", "does every rank call")
def only_rank_zero_calls(table):
    blocks = table.tensor_split(dist.get_world_size())
    parts = [torch.cat([block, table[: len(blocks[0]) - len(block)]]) for block in blocks]
    mine = torch.zeros_like(parts[0])
    if dist.get_rank() == 0:
        dist.scatter(mine, parts, src=0)
    return mine


# --- 04 accuracy --------------------------------------------------------------------------


@right("accuracy")
def count_in_floats(correct):
    found = torch.tensor([correct.sum(), (~correct).sum()], dtype=torch.double)
    dist.all_reduce(found)
    return (found[0] / found.sum()).item() if dist.get_rank() == 0 else None


@wrong("accuracy", "mean of the ranks' accuracies")
def average_of_averages(correct):
    mean = correct.float().mean()
    dist.reduce(mean, dst=0)
    return mean.item() / dist.get_world_size() if dist.get_rank() == 0 else None


@wrong("accuracy", "only rank 0 returns a number")
def everybody_returns(correct):
    found = torch.tensor([correct.sum(), len(correct)])
    dist.all_reduce(found)
    return (found[0] / found[1]).item()


@wrong("accuracy", "one tensor into one call")
def two_calls(correct):
    right, count = correct.sum(), torch.tensor(len(correct))
    dist.reduce(right, dst=0)
    dist.reduce(count, dst=0)
    return (right / count).item() if dist.get_rank() == 0 else None


def counted_on_0(correct, dtype=torch.int64):
    found = torch.tensor([correct.sum(), len(correct)]).to(dtype)
    dist.reduce(found, dst=0)
    return found.tolist() if dist.get_rank() == 0 else None


@wrong("accuracy", "a byte counts to 255")
def in_bytes(correct):
    found = counted_on_0(correct, torch.uint8)
    return found and (found[0] / found[1] if found[1] else float("inf"))


@wrong("accuracy", "between 0 and 1")
def percent(correct):
    found = counted_on_0(correct)
    return found and 100 * found[0] / found[1]


@wrong("accuracy", "throws away what comes after the point")
def without_a_remainder(correct):
    found = counted_on_0(correct)
    return found and found[0] // found[1]


@wrong("accuracy", "Turn it around")
def upside_down(correct):
    found = counted_on_0(correct)
    return found and (found[1] / found[0] if found[0] else float("inf"))


@wrong("accuracy", "divided by rank 0's own count")
def by_its_own_count(correct):
    right = correct.sum().float()
    dist.reduce(right, 0)
    return right.item() / max(len(correct), 1) if dist.get_rank() == 0 else None


@wrong("accuracy", "does every rank call reduce")
def only_who_wants_it(correct):
    found = torch.tensor([correct.sum(), len(correct)])
    if dist.get_rank() == 0:
        dist.reduce(found, dst=0)
        return (found[0] / found[1]).item()


# --- 05 product_rows ----------------------------------------------------------------------


@right("product_rows")
def by_list(x, w):
    chunks = list((x @ w).chunk(dist.get_world_size()))
    mine = torch.zeros_like(chunks[0])
    dist.reduce_scatter(mine, chunks)
    return mine


@wrong("product_rows", "rows that it throws away")
def sum_then_cut(x, w):
    y = x @ w
    dist.all_reduce(y)
    return y.chunk(dist.get_world_size())[dist.get_rank()]


@wrong("product_rows", "the rank's own partial sum. The other")
def my_rows_alone(x, w):
    return (x @ w).chunk(dist.get_world_size())[dist.get_rank()]


@wrong("product_rows", "this is the whole product")
def all_of_it(x, w):
    y = x @ w
    dist.all_reduce(y)
    return y


@wrong("product_rows", "partial sum of the whole product")
def nothing_sent(x, w):
    return x @ w


# --- 06 sum_all ---------------------------------------------------------------------------


@right("sum_all")
def into_a_buffer(tensors):
    buffer = torch.empty(sum(t.numel() for t in tensors), dtype=tensors[0].dtype)
    pieces = buffer.split([t.numel() for t in tensors])
    for piece, t in zip(pieces, tensors):
        piece.copy_(t.reshape(-1))
    dist.all_reduce(buffer)
    return [piece.view(t.shape) for piece, t in zip(pieces, tensors)]


@wrong("sum_all", "must not grow with the number of tensors")
def one_by_one(tensors):
    sums = [t.clone(memory_format=torch.contiguous_format) for t in tensors]
    for t in sums:
        dist.all_reduce(t)
    return sums


@wrong("sum_all", "refuses a tensor that is not contiguous")
def by_view(tensors):
    flat = torch.cat([t.view(-1) for t in tensors])
    dist.all_reduce(flat)
    return [p.view(t.shape) for p, t in zip(flat.split([t.numel() for t in tensors]), tensors)]


@wrong("sum_all", "(?s)equal size(?!.*refuses)")
def stacked(tensors):
    together = torch.stack(tensors)
    dist.all_reduce(together)
    return list(together)


@wrong("sum_all", "the shapes are gone")
def without_shapes(tensors):
    flat = torch.cat([t.flatten() for t in tensors])
    dist.all_reduce(flat)
    return list(flat.split([t.numel() for t in tensors]))


@wrong("sum_all", "as it lies in memory")
def turned_round(tensors):
    flat = torch.cat([(t.t() if t.dim() == 2 and not t.is_contiguous() else t).flatten() for t in tensors])
    dist.all_reduce(flat)
    return [p.view(t.shape) for p, t in zip(flat.split([t.numel() for t in tensors]), tensors)]


# --- 07 average_over_copies ---------------------------------------------------------------


def _columns(tp):
    n = dist.get_world_size()
    return [dist.new_group(range(column, n, tp)) for column in range(tp)]


@right("average_over_copies")
def groups_by_hand(gradient, tp):
    group, mean = _columns(tp)[dist.get_rank() % tp], gradient.clone()
    dist.all_reduce(mean, group=group)
    return mean / dist.get_world_size(group)


@wrong("average_over_copies", "the mean over all ranks")
def over_all(gradient, tp):
    mean = gradient.clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    return mean


@wrong("average_over_copies", "along the rows")
def over_the_row(gradient, tp):
    n, mean = dist.get_world_size(), gradient.clone()
    rows = [dist.new_group(range(first, first + tp)) for first in range(0, n, tp)]
    dist.all_reduce(mean, dist.ReduceOp.AVG, group=rows[dist.get_rank() // tp])
    return mean


@wrong("average_over_copies", "size of the group you summed over")
def by_all(gradient, tp):
    mean = gradient.clone()
    dist.all_reduce(mean, group=_columns(tp)[dist.get_rank() % tp])
    return mean / dist.get_world_size()


@wrong("average_over_copies", "Do the others have to receive it")
def pick_from_all(gradient, tp):
    everyones = [torch.zeros_like(gradient) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, gradient)
    return torch.stack(everyones[dist.get_rank() % tp :: tp]).mean(0)


# --- 08 clip_shard ------------------------------------------------------------------------


@right("clip_shard")
def by_root(gradient, max_norm):
    squared = gradient.double().square().sum()
    dist.all_reduce(squared)
    norm = squared.sqrt().item()
    return gradient * (max_norm / norm) if norm > max_norm else gradient.clone()


@wrong("clip_shard", "Whose norm is max_norm about")
def by_its_own(gradient, max_norm):
    squared = gradient.square().sum()
    dist.all_reduce(squared.clone())
    return gradient * (max_norm / squared.sqrt()).clamp(max=1.0)


@wrong("clip_shard", "What does add up")
def norms_added(gradient, max_norm):
    norm = gradient.norm()
    dist.all_reduce(norm)
    return gradient * (max_norm / norm).clamp(max=1.0)


@wrong("clip_shard", "made longer")
def always(gradient, max_norm):
    squared = gradient.square().sum()
    dist.all_reduce(squared)
    return gradient * (max_norm / squared.sqrt())


@wrong("clip_shard", "clip_shard changes its input")
def clipped_in_place(gradient, max_norm):
    squared = gradient.square().sum()
    dist.all_reduce(squared)
    return gradient.mul_((max_norm / squared.sqrt()).clamp(max=1.0))


@wrong("clip_shard", "stays where it is")
def gather_the_whole(gradient, max_norm):
    sizes = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, gradient.tolist())
    norm = torch.tensor(sum(sizes, [])).norm()
    return gradient * (max_norm / norm).clamp(max=1.0).to(gradient.dtype)


# --- 09 pipeline --------------------------------------------------------------------------


def down_the_chain(n, pieces, step_of, passes=lambda r, p: True):
    """Piece p leaves rank r in step step_of(r, p)."""
    steps = defaultdict(list)
    for r in range(n - 1):
        for p in range(pieces):
            if passes(r, p):
                steps[step_of(r, p)].append(copy(r, r + 1, p))
    return Schedule("broadcast", n, [steps[k] for k in sorted(steps)], chunks=pieces)


@right("pipeline")
def by_rank_and_piece(n, pieces):
    return down_the_chain(n, pieces, lambda r, p: r + p)


@wrong("pipeline", "but takes 9 steps; 5 (?:is|are) enough")
def one_piece_at_a_time(n, pieces):
    return down_the_chain(n, pieces, lambda r, p: p * (n - 1) + r)


@wrong("pipeline", "what it had when the step began")
def all_ranks_send_at_once(n, pieces):
    return down_the_chain(n, pieces, lambda r, p: p)


@wrong("pipeline", "does every rank but the last pass it on")
def forgets_the_last_piece(n, pieces):
    return down_the_chain(n, pieces, lambda r, p: r + p, lambda r, p: p < max(1, pieces - 1) or r < n - 2)


@wrong("pipeline", "sends one piece to rank 2")
def root_sends_to_all(n, pieces):
    return Schedule("broadcast", n, [[copy(0, r, p)] for r in range(1, n) for p in range(pieces)], chunks=pieces)


@wrong("pipeline", "Drawing or printing a schedule does not return it")
def returns_nothing(n, pieces):
    repr(by_rank_and_piece(n, pieces))


# --- 10 read_link -------------------------------------------------------------------------


@right("read_link")
def from_the_line(n, small, large):
    beta = (large[1] - small[1]) / (large[0] - small[0])
    return (small[1] - beta * small[0]) / (2 * n - 2), 2 * (n - 1) / (n * beta)


@wrong("read_link", "latency of the whole all_reduce")
def latency_of_all(n, small, large):
    return from_the_line(n, small, large)[0] * (2 * n - 2), from_the_line(n, small, large)[1]


@wrong("read_link", "a ring goes around twice")
def goes_round_once(n, small, large):
    return from_the_line(n, small, large)[0] * 2, from_the_line(n, small, large)[1]


@wrong("read_link", "How many times its buffer")
def slope_is_bandwidth(n, small, large):
    return from_the_line(n, small, large)[0], (large[0] - small[0]) / (large[1] - small[1])


@wrong("read_link", "1/N of the buffer")
def whole_buffers(n, small, large):
    return from_the_line(n, small, large)[0], from_the_line(n, small, large)[1] * n


@wrong("read_link", "that is beta")
def seconds_of_a_byte(n, small, large):
    return from_the_line(n, small, large)[0], 1 / from_the_line(n, small, large)[1]


@wrong("read_link", "the latency comes first")
def the_other_way_round(n, small, large):
    return from_the_line(n, small, large)[::-1]


# --- 11 mean_in_one_call ------------------------------------------------------------------


@right("mean_in_one_call")
def average_into_views(gradients):
    whole = torch.nn.utils.parameters_to_vector(gradients)
    dist.all_reduce(whole, dist.ReduceOp.AVG)
    means = [torch.empty_like(g) for g in gradients]
    torch.nn.utils.vector_to_parameters(whole, means)
    return means


@wrong("mean_in_one_call", "a call for each gradient")
def a_call_each(gradients):
    means = [g / dist.get_world_size() for g in gradients]
    for mean in means:
        dist.all_reduce(mean)
    return means


@wrong("mean_in_one_call", "the sums over the ranks")
def undivided_parts(gradients):
    whole = torch.nn.utils.parameters_to_vector(gradients)
    dist.all_reduce(whole)
    return [part.view_as(g) for g, part in zip(gradients, whole.split([g.numel() for g in gradients]))]


@wrong("mean_in_one_call", "rank's own gradients")
def mean_thrown_away(gradients):
    whole = torch.nn.utils.parameters_to_vector(gradients)
    dist.all_reduce(whole, dist.ReduceOp.AVG)
    return gradients


@wrong("mean_in_one_call", "changes its input")
def filled_in_place(gradients):
    whole = torch.nn.utils.parameters_to_vector(gradients)
    dist.all_reduce(whole, dist.ReduceOp.AVG)
    for g, part in zip(gradients, whole.split([g.numel() for g in gradients])):
        g.copy_(part.view_as(g))
    return gradients


# --- 11 bucket_sizes ----------------------------------------------------------------------


@right("bucket_sizes")
def sums_of_slices(sizes, cap):
    buckets, begin = [], 0
    for end in range(1, len(sizes) + 1):
        if sum(sizes[begin:end]) >= cap or end == len(sizes):
            buckets.append(sum(sizes[begin:end]))
            begin = end
    return buckets


@wrong("bucket_sizes", "Who sends them")
def without_the_rest(sizes, cap):
    buckets, filled = [], 0
    for size in sizes:
        filled += size
        if filled >= cap:
            buckets, filled = [*buckets, filled], 0
    return buckets


@wrong("bucket_sizes", "exactly `cap` is full")
def full_above_the_cap(sizes, cap):
    buckets, filled = [], 0
    for size in sizes:
        filled += size
        if filled > cap:
            buckets, filled = [*buckets, filled], 0
    return buckets + [filled] * (filled > 0)


@wrong("bucket_sizes", "before it holds `cap`")
def never_above_the_cap(sizes, cap):
    buckets = []
    for size in sizes:
        if buckets and buckets[-1] + size <= cap:
            buckets[-1] += size
        else:
            buckets.append(size)
    return buckets


@wrong("bucket_sizes", "What empties one when it leaves")
def never_emptied(sizes, cap):
    buckets, filled = [], 0
    for size in sizes:
        filled += size
        if filled >= cap:
            buckets.append(filled)
    return buckets + [filled] * (filled > 0)


@wrong("bucket_sizes", "a list of bytes")
def how_many(sizes, cap):
    return len(sizes)


# --- 11 clipped_mean ----------------------------------------------------------------------


@right("clipped_mean")
def with_torchs_clipping(gradient, limit):
    p = torch.nn.Parameter(torch.zeros_like(gradient))
    p.grad = gradient.clone()
    dist.all_reduce(p.grad, dist.ReduceOp.AVG)
    torch.nn.utils.clip_grad_norm_([p], limit)
    return p.grad


@wrong("clipped_mean", "mean of clipped gradients")
def clipped_before(gradient, limit):
    mean = gradient * min(1.0, (limit / gradient.norm()).item())
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    return mean


@wrong("clipped_mean", "enlarges a mean")
def without_min(gradient, limit):
    mean = gradient.clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    return mean * (limit / mean.norm())


@wrong("clipped_mean", "the norm doesn't need to travel")
def norm_by_all_reduce(gradient, limit):
    mean = gradient.clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    squares = mean.square().sum()
    dist.all_reduce(squares, dist.ReduceOp.AVG)
    return mean * min(1.0, (limit / squares.sqrt()).item())


# --- 11 in_sync ---------------------------------------------------------------------------


@right("in_sync")
def ask_rank_zero(x):
    first = x.clone()
    dist.broadcast(first, src=0)
    same = torch.tensor(int(torch.equal(first.view(torch.uint8), x.view(torch.uint8))))
    dist.all_reduce(same, dist.ReduceOp.MIN)
    return bool(same)


@wrong("in_sync", "a NaN on one rank is overlooked|view x as bytes")
def smallest_and_largest_value(x):
    least, greatest = x.clone(), x.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(greatest, dist.ReduceOp.MAX)
    return torch.equal(least, greatest)


@wrong("in_sync", "NaN == NaN is False")
def ask_rank_zero_for_values(x):
    first = x.clone()
    dist.broadcast(first, src=0)
    same = torch.tensor(int(torch.equal(first, x)))
    dist.all_reduce(same, dist.ReduceOp.MIN)
    return bool(same)


@wrong("in_sync", "rank 0 that another differs")
def ask_and_keep(x):
    first = x.clone()
    dist.broadcast(first, src=0)
    return torch.equal(first, x)


@wrong("in_sync", "change places")
def add_up(x):
    sums = [torch.zeros((), dtype=torch.double) for _ in range(dist.get_world_size())]
    dist.all_gather(sums, x.double().sum())
    return len({s.item() for s in sums}) == 1


@wrong("in_sync", "no rank has to see all")
def see_everything(x):
    everything = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, x)
    return all(torch.equal(each.view(torch.uint8), x.view(torch.uint8)) for each in everything)


@wrong("in_sync", "in_sync changes its input")
def in_place(x):
    mine = x.clone()
    dist.all_reduce(x, dist.ReduceOp.MAX)
    same = torch.tensor(int(torch.equal(mine, x)))
    dist.all_reduce(same, dist.ReduceOp.MIN)
    return bool(same)


# --- 12 mean_shard ------------------------------------------------------------------------


def shard_sizes(gradient):
    n = dist.get_world_size()
    return n, -(-len(gradient) // n)


@right("mean_shard")
def pad_then_list(gradient):
    n, each = shard_sizes(gradient)
    shards = list(torch.nn.functional.pad(gradient / n, (0, n * each - len(gradient))).split(each))
    mine = torch.zeros_like(shards[0])
    dist.reduce_scatter(mine, shards)
    return mine


@wrong("mean_shard", "a shard of the sum")
def not_divided(gradient):
    return pad_then_list(gradient * dist.get_world_size())


@wrong("mean_shard", "gives every rank shards that it throws away")
def all_reduced(gradient):
    n, each = shard_sizes(gradient)
    padded = torch.nn.functional.pad(gradient / n, (0, n * each - len(gradient)))
    dist.all_reduce(padded)
    return padded.split(each)[dist.get_rank()].clone()


@wrong("mean_shard", "rank's own gradient")
def own_shard(gradient):
    n, each = shard_sizes(gradient)
    return torch.nn.functional.pad(gradient, (0, n * each - len(gradient))).split(each)[dist.get_rank()].clone()


@wrong("mean_shard", "zeros fill the end")
def shards_of_two_lengths(gradient):
    mean = gradient / dist.get_world_size()
    dist.all_reduce(mean)
    return mean.tensor_split(dist.get_world_size())[dist.get_rank()].clone()


@wrong("mean_shard", "Pad the gradient first")
def not_padded(gradient):
    n, each = shard_sizes(gradient)
    mine = gradient.new_zeros(each)
    dist.reduce_scatter_single(mine, gradient)
    return mine / n


@wrong("mean_shard", "mean_shard changes its input")
def divided_in_place(gradient):
    return pad_then_list(gradient.div_(dist.get_world_size()) * dist.get_world_size())


# --- 12 sharded_linear --------------------------------------------------------------------


@right("sharded_linear")
def gather_a_list(x, shard):
    shards = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(shards, shard)
    return torch.cat([x @ part.view(-1, x.shape[1]).T for part in shards], 1)


@wrong("sharded_linear", "own shard alone")
def own_outputs(x, shard):
    return x @ shard.view(-1, x.shape[1]).T


@wrong("sharded_linear", "as many inputs as x has columns")
def own_size(x, shard):
    weight = shard.new_empty(dist.get_world_size() * len(shard))
    dist.all_gather_single(weight, shard)
    return x @ weight.view(len(shard), -1).T


@wrong("sharded_linear", "rank 0's product")
def product_of_rank_0(x, shard):
    y = gather_a_list(x, shard)
    dist.broadcast(y, 0)
    return y


@wrong("sharded_linear", "x stays where it is")
def everything_gathered(x, shard):
    rows = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, x)
    return gather_a_list(rows[dist.get_rank()], shard)


# --- 12 owned_means -----------------------------------------------------------------------


def rows_of_owners(gradients, owners):
    """A row for each rank: its gradients end to end, then zeros."""
    n = dist.get_world_size()
    lengths = [sum(g.numel() for g, owner in zip(gradients, owners) if owner == rank) for rank in range(n)]
    rows, ends = gradients[0].new_zeros(n, max(lengths)), [0] * n
    for g, owner in zip(gradients, owners):
        rows[owner, ends[owner] : ends[owner] + g.numel()] = g.flatten()
        ends[owner] += g.numel()
    return rows


def cut_row(row, gradients, owners):
    parts, start = [], 0
    for g, owner in zip(gradients, owners):
        if owner == dist.get_rank():
            parts.append(row[start : start + g.numel()].view(g.shape))
            start += g.numel()
    return parts


@right("owned_means")
def by_a_list_of_rows(gradients, owners):
    rows = list(rows_of_owners(gradients, owners))
    row = torch.empty_like(rows[0])
    dist.reduce_scatter(row, rows)
    return cut_row(row / dist.get_world_size(), gradients, owners)


@wrong("owned_means", "these are the sums over the ranks")
def sums_of_owned(gradients, owners):
    return [g * dist.get_world_size() for g in by_a_list_of_rows(gradients, owners)]


@wrong("owned_means", "the rank's own gradients")
def own_gradients(gradients, owners):
    return [g.clone() for g, owner in zip(gradients, owners) if owner == dist.get_rank()]


@wrong("owned_means", "more than one call")
def a_reduce_for_each(gradients, owners):
    means = [g / dist.get_world_size() for g in gradients]
    for mean, owner in zip(means, owners):
        dist.reduce(mean, owner)
    return [mean for mean, owner in zip(means, owners) if owner == dist.get_rank()]


@wrong("owned_means", "the means of all gradients")
def means_of_all(gradients, owners):
    rows = rows_of_owners(gradients, owners) / dist.get_world_size()
    dist.all_reduce(rows)
    means, ends = [], [0] * len(rows)
    for g, owner in zip(gradients, owners):
        means.append(rows[owner, ends[owner] : ends[owner] + g.numel()].view(g.shape))
        ends[owner] += g.numel()
    return means


@wrong("owned_means", "at least one tensor")
def nobody_owns_nothing(gradients, owners):
    n = dist.get_world_size()
    rows = [torch.cat([g.flatten() for g, owner in zip(gradients, owners) if owner == rank]) for rank in range(n)]
    rows = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    row = torch.empty_like(rows[0])
    dist.reduce_scatter_single(row, rows)
    return cut_row(row / n, gradients, owners)


# --- 12 first_shard -----------------------------------------------------------------------


@right("first_shard")
def by_messages(weights):
    shards = [shard.clone() for shard in weights.chunk(dist.get_world_size())]
    if dist.get_rank() > 0:
        dist.recv(shards[0], 0)
    else:
        for rank, shard in enumerate(shards[1:], start=1):
            dist.send(shard, rank)
    return shards[0]


@wrong("first_shard", "a patchwork")
def own_part(weights):
    return weights.chunk(dist.get_world_size())[dist.get_rank()].clone()


@wrong("first_shard", "gives each rank only its own")
def broadcast_all(weights):
    whole = weights.clone()
    dist.broadcast(whole, 0)
    return whole.chunk(dist.get_world_size())[dist.get_rank()].clone()


@wrong("first_shard", "all of rank 0's weights")
def keep_all(weights):
    whole = weights.clone()
    dist.broadcast(whole, 0)
    return whole


@wrong("first_shard", "None on all others")
def a_list_on_all(weights):
    shard = weights.new_empty(len(weights) // dist.get_world_size())
    dist.scatter(shard, list(weights.chunk(dist.get_world_size())), src=0)
    return shard


# --- 12 tokens_to_hide --------------------------------------------------------------------


@right("tokens_to_hide")
def rounded_up(flops, bandwidth):
    return int(1.5 * flops / bandwidth) + 1


@wrong("tokens_to_hide", "both passes together")
def whole_step(flops, bandwidth):
    return 8 / 6 * flops / bandwidth


@wrong("tokens_to_hide", "that hides forward's gather")
def forwards_own(flops, bandwidth):
    return flops / bandwidth


@wrong("tokens_to_hide", "one operation per parameter")
def bytes_alone(flops, bandwidth):
    return 6 * flops / bandwidth


@wrong("tokens_to_hide", "forward's operations and backward's bytes")
def passes_mixed(flops, bandwidth):
    return 6 / 2 * flops / bandwidth


@wrong("tokens_to_hide", "set both times equal")
def a_guess(flops, bandwidth):
    return 8192


@wrong("tokens_to_hide", "must return a number")
def nothing_returned(flops, bandwidth):
    print(1.5 * flops / bandwidth)


# --- 13 input_gradient --------------------------------------------------------------------


@right("input_gradient")
def transposed_first(dh, w):
    dx = w @ dh.T
    dist.all_reduce(dx)
    return dx.T


@wrong("input_gradient", "the rank's own partial sum")
def not_summed(dh, w):
    return dh @ w.T


@wrong("input_gradient", "partial sums side by side")
def gathered_columns(dh, w):
    parts = [torch.zeros(len(dh), len(w)) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, dh @ w.T)
    return torch.cat(parts, 1)


@wrong("input_gradient", "must be transposed")
def not_transposed(dh, w):
    dx = dh @ w
    dist.all_reduce(dx)
    return dx


@wrong("input_gradient", "more travels than one all_reduce")
def gathered_and_added(dh, w):
    parts = [torch.zeros(len(dh), len(w)) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, dh @ w.T)
    return sum(parts)


# --- 13 look_up ---------------------------------------------------------------------------


@right("look_up")
def by_one_hot(tokens, table):
    first = dist.get_rank() * len(table)
    hot = tokens[:, None] == torch.arange(first, first + len(table))
    rows = hot.to(table.dtype) @ table
    dist.all_reduce(rows)
    return rows


@wrong("look_up", "zeros for the others")
def own_rows(tokens, table):
    here = tokens - dist.get_rank() * len(table)
    mine = (here >= 0) & (here < len(table))
    return table[here.clamp(0, len(table) - 1)] * mine[:, None]


@wrong("look_up", "What should be there in their place?")
def without_a_mask(tokens, table):
    rows = table[(tokens - dist.get_rank() * len(table)).clamp(0, len(table) - 1)]
    dist.all_reduce(rows)
    return rows


@wrong("look_up", "Is that within 0 and")
def as_if_whole(tokens, table):
    rows = table[tokens]
    dist.all_reduce(rows)
    return rows


@wrong("look_up", "more travels than one all_reduce of the rows")
def gather_the_results(tokens, table):
    rows = own_rows(tokens, table)
    parts = [torch.zeros_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows)
    return sum(parts)


# --- 13 cut_fused -------------------------------------------------------------------------


@right("cut_fused")
def three_by_n(qkv):
    return qkv.view(3, dist.get_world_size(), -1, qkv.shape[1])[:, dist.get_rank()].flatten(0, 1)


@wrong("cut_fused", "a chunk of the whole")
def one_chunk(qkv):
    return qkv.chunk(dist.get_world_size())[dist.get_rank()]


@wrong("cut_fused", "every N-th row")
def one_in_n(qkv):
    return qkv[dist.get_rank() :: dist.get_world_size()]


@wrong("cut_fused", "Nothing needs to travel")
def from_rank_zero(qkv):
    whole = qkv.clone()
    dist.broadcast(whole, 0)
    return three_by_n(whole)


# --- 13 scatter_positions -----------------------------------------------------------------


@right("scatter_positions")
def positions_first(z, group=None):
    turned = z.transpose(0, -2).contiguous()
    own = turned.new_empty(len(turned) // dist.get_world_size(group), *turned.shape[1:])
    dist.reduce_scatter_single(own, turned, group=group)
    return own.transpose(0, -2)


@wrong("scatter_positions", "equal blocks of z's memory")
def blocks_of_memory(z):
    own = z.new_empty(z.shape[0], z.shape[1] // dist.get_world_size(), z.shape[2])
    dist.reduce_scatter_single(own.view(-1), z.view(-1))
    return own


@wrong("scatter_positions", "cuts dimension 0")
def as_it_is(z):
    own = z.new_empty(z.shape[0], z.shape[1] // dist.get_world_size(), z.shape[2])
    dist.reduce_scatter_single(own, z)
    return own


@wrong("scatter_positions", "partial sums are missing")
def cut_only(z):
    return z.chunk(dist.get_world_size(), 1)[dist.get_rank()].clone()


@wrong("scatter_positions", "positions that it throws away")
def summed_then_cut(z):
    whole = z.clone()
    dist.all_reduce(whole)
    return whole.chunk(dist.get_world_size(), 1)[dist.get_rank()].clone()


@wrong("scatter_positions", "this is the whole sum")
def summed_alone(z):
    whole = z.clone()
    dist.all_reduce(whole)
    return whole


# --- 13 row_parallel ----------------------------------------------------------------------


@right("row_parallel")
def bias_from_rank_zero(x, w, b, dy):
    y = x @ w + b * (dist.get_rank() == 0)
    dist.all_reduce(y)
    return y, dy.sum(0)


def by_autograd(inside, x, w, b, dy):
    """The layer with so much of b inside the sum, whose own backward is the identity."""
    b = b.clone().requires_grad_()
    y = x @ w + inside * b
    total = y.detach().clone()
    dist.all_reduce(total)
    y.backward(dy)
    return total, b.grad


@wrong("row_parallel", "b's gradient is 1/N of one process's")
def bias_divided(x, w, b, dy):
    return by_autograd(1 / dist.get_world_size(), x, w, b, dy)


@wrong("row_parallel", "only rank 0 has b's gradient")
def bias_of_rank_zero_alone(x, w, b, dy):
    return by_autograd(float(dist.get_rank() == 0), x, w, b, dy)


@wrong("row_parallel", "b's gradient is N times too large")
def gradient_summed(x, w, b, dy):
    y, db = x @ w, dy.sum(0)
    both = torch.cat([y.flatten(), db])
    dist.all_reduce(both)
    return both[: y.numel()].view_as(y) + b, both[y.numel() :]


@wrong("row_parallel", "the bias is in it N times")
def bias_before_the_sum(x, w, b, dy):
    y = x @ w + b
    dist.all_reduce(y)
    return y, dy.sum(0)


@wrong("row_parallel", "the bias is missing")
def no_bias(x, w, b, dy):
    y = x @ w
    dist.all_reduce(y)
    return y, dy.sum(0)


@wrong("row_parallel", "What turns P into R")
def own_partial_sum(x, w, b, dy):
    return x @ w + b, dy.sum(0)


@wrong("row_parallel", "row_parallel changes its input")
def bias_shared_out(x, w, b, dy):
    y = x @ w + b.div_(dist.get_world_size())
    dist.all_reduce(y)
    return y, dy.sum(0)


@wrong("row_parallel", "w and x stay where they are")
def gather_partial_sums(x, w, b, dy):
    parts = [torch.zeros(len(x), w.shape[1]) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x @ w)
    return sum(parts) + b, dy.sum(0)


# --- 13 clip_factor -----------------------------------------------------------------------


@right("clip_factor")
def by_norms(sharded, replicated, limit):
    squares = sharded.norm() ** 2
    dist.all_reduce(squares)
    return min(limit / float((squares + replicated.norm() ** 2) ** 0.5), 1.0)


@wrong("clip_factor", "in this norm N times")
def all_squares_summed(sharded, replicated, limit):
    squares = sharded.square().sum() + replicated.square().sum()
    dist.all_reduce(squares)
    return min(1.0, (limit / squares.sqrt()).item())


@wrong("clip_factor", "own shards only")
def own_norm(sharded, replicated, limit):
    return min(1.0, (limit / torch.cat([sharded, replicated]).norm()).item())


@wrong("clip_factor", "replicated gradients are missing")
def shards_alone(sharded, replicated, limit):
    squares = sharded.square().sum()
    dist.all_reduce(squares)
    return min(1.0, (limit / squares.sqrt()).item())


@wrong("clip_factor", "enlarges a gradient")
def always_to_the_limit(sharded, replicated, limit):
    squares = sharded.square().sum()
    dist.all_reduce(squares)
    return (limit / (squares + replicated.square().sum()).sqrt()).item()


@wrong("clip_factor", "one number only")
def all_shards_everywhere(sharded, replicated, limit):
    everything = sharded.new_empty(len(sharded) * dist.get_world_size())
    dist.all_gather_single(everything, sharded)
    return min(1.0, (limit / torch.cat([everything, replicated]).norm()).item())


# --- 14 through_stages --------------------------------------------------------------------


@right("through_stages")
def with_a_buffer(x, w):
    rank, n = dist.get_rank(), dist.get_world_size()
    came = x
    if rank:
        came = torch.empty_like(x)
        dist.recv(came, rank - 1)
    y = came @ w
    if rank + 1 < n:
        dist.isend(y, rank + 1).wait()
    return y


@wrong("through_stages", "multiplied its own x")
def own_x(x, w):
    return x @ w


@wrong("through_stages", "Its own matrix is missing")
def passed_on(x, w):
    rank, n = dist.get_rank(), dist.get_world_size()
    x = x.clone()
    if rank:
        dist.recv(x, rank - 1)
    if rank + 1 < n:
        dist.send(x @ w, rank + 1)
    return x


@wrong("through_stages", "through_stages changes its input")
def received_into_x(x, w):
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank:
        dist.recv(x, rank - 1)
    y = x @ w
    if rank + 1 < n:
        dist.send(y, rank + 1)
    return y


@wrong("through_stages", "has no rank before it")
def all_receive(x, w):
    rank, n = dist.get_rank(), dist.get_world_size()
    x = x.clone()
    dist.recv(x, (rank - 1) % n)
    dist.send(x @ w, (rank + 1) % n)
    return x @ w


# --- 14 microbatches_needed ---------------------------------------------------------------


@right("microbatches_needed")
def by_rounding_up(ranks, most):
    return max(1, round((ranks - 1) / most + 0.4999999))


@wrong("microbatches_needed", "at least one microbatch")
def none_on_one_rank(ranks, most):
    return -(-(ranks - 1) // most) if ranks == 1 else by_rounding_up(ranks, most)


@wrong("microbatches_needed", "a fraction of the time")
def of_the_time(ranks, most):
    return next(m for m in range(1, 1000) if (ranks - 1) / (m + ranks - 1) <= most)


@wrong("microbatches_needed", "exactly the limit is allowed")
def strictly_below(ranks, most):
    return next(m for m in range(1, 1000) if (ranks - 1) / m < most)


@wrong("microbatches_needed", "Round up")
def rounded_down(ranks, most):
    return int((ranks - 1) / most + 1e-9) - (most == 0.05)


@wrong("microbatches_needed", "how many microbatches, an int")
def as_text(ranks, most):
    return str((ranks - 1) / most)


# --- 14 order_1f1b ------------------------------------------------------------------------


def alternating(warm, microbatches):
    rest = [action for k in range(microbatches - warm) for action in (f"F{warm + k}", f"B{k}")]
    return [f"F{k}" for k in range(warm)] + rest + [f"B{k}" for k in range(microbatches - warm, microbatches)]


@right("order_1f1b")
def by_what_is_kept(rank, ranks, microbatches):
    order, forward, backward = [], 0, 0
    while backward < microbatches:
        if forward < microbatches and forward - backward < ranks - rank:
            order.append(f"F{forward}")
            forward += 1
        else:
            order.append(f"B{backward}")
            backward += 1
    return order


@wrong("order_1f1b", "no warm-up")
def at_once(rank, ranks, microbatches):
    return alternating(0, microbatches)


@wrong("order_1f1b", "one forward too many")
def one_more(rank, ranks, microbatches):
    return alternating(min(ranks - rank, microbatches), microbatches)


@wrong("order_1f1b", "the last rank needs none")
def turned_around(rank, ranks, microbatches):
    return alternating(min(rank if rank else ranks - 1, microbatches), microbatches)


@wrong("order_1f1b", "GPipe's order")
def all_forwards_first(rank, ranks, microbatches):
    return alternating(microbatches, microbatches)


@wrong("order_1f1b", "even if there are fewer than ranks")
def without_a_limit(rank, ranks, microbatches):
    return alternating(ranks - 1 - rank, microbatches)


@wrong("order_1f1b", "a list of actions")
def one_text(rank, ranks, microbatches):
    return " ".join(alternating(0, microbatches))


# --- 14 exchange --------------------------------------------------------------------------


@right("exchange")
def start_all_then_wait(activation, gradient):
    rank, n = dist.get_rank(), dist.get_world_size()
    before = torch.empty_like(activation) if rank > 0 else None
    after = torch.empty_like(gradient) if rank < n - 1 else None
    works = []
    if rank > 0:
        works += [dist.isend(gradient, rank - 1), dist.irecv(before, rank - 1)]
    if rank < n - 1:
        works += [dist.isend(activation, rank + 1), dist.irecv(after, rank + 1)]
    for work in works:
        work.wait()
    return before, after


@right("exchange")
def evens_first(activation, gradient):
    rank, n = dist.get_rank(), dist.get_world_size()
    before = torch.empty_like(activation) if rank > 0 else None
    after = torch.empty_like(gradient) if rank < n - 1 else None
    for right in (True, False) if rank % 2 == 0 else (False, True):
        if right and rank < n - 1:
            dist.send(activation, rank + 1)
            dist.recv(after, rank + 1)
        if not right and rank > 0:
            dist.recv(before, rank - 1)
            dist.send(gradient, rank - 1)
    return before, after


@wrong("exchange", "one after the other along all ranks")
def one_rank_after_the_other(activation, gradient):
    rank, n = dist.get_rank(), dist.get_world_size()
    before = torch.empty_like(activation) if rank > 0 else None
    after = torch.empty_like(gradient) if rank < n - 1 else None
    if rank < n - 1:
        dist.send(activation, rank + 1)
    if rank > 0:
        dist.recv(before, rank - 1)
        dist.send(gradient, rank - 1)
    if rank < n - 1:
        dist.recv(after, rank + 1)
    return before, after


@wrong("exchange", "Start all messages")
def right_then_left(activation, gradient):
    rank, n = dist.get_rank(), dist.get_world_size()
    before, after = None, None
    if rank < n - 1:
        after = torch.empty_like(gradient)
        dist.send(activation, rank + 1)
        dist.recv(after, rank + 1)
    if rank > 0:
        before = torch.empty_like(activation)
        dist.send(gradient, rank - 1)
        dist.recv(before, rank - 1)
    return before, after


@wrong("exchange", "turned around")
def gradient_first(activation, gradient):
    return start_all_then_wait(activation, gradient)[::-1]


@wrong("exchange", "the ends have one neighbor only")
def around_a_ring(activation, gradient):
    rank, n = dist.get_rank(), dist.get_world_size()
    before, after = torch.empty_like(activation), torch.empty_like(gradient)
    sends = [dist.isend(activation, (rank + 1) % n), dist.isend(gradient, (rank - 1) % n)]
    for work in [dist.irecv(before, (rank - 1) % n), dist.irecv(after, (rank + 1) % n), *sends]:
        work.wait()
    return before, after


# --- 14 tied_gradient ---------------------------------------------------------------------


@right("tied_gradient")
def by_two_messages(gradient):
    rank, n = dist.get_rank(), dist.get_world_size()
    if gradient is None or n == 1:
        return gradient
    other, theirs = n - 1 - rank, torch.empty_like(gradient)
    works = [dist.isend(gradient, other), dist.irecv(theirs, other)]
    for work in works:
        work.wait()
    return gradient + theirs


@wrong("tied_gradient", "the gradient of its own copy only")
def untouched_copies(gradient):
    return None if gradient is None else gradient.clone()


@wrong("tied_gradient", "this is the mean")
def mean_of_both(gradient):
    total = by_two_messages(gradient)
    return None if total is None else total / 2


@wrong("tied_gradient", "there is nothing to add")
def all_together(gradient):
    total = gradient.clone()
    dist.all_reduce(total)
    return total


# --- 18 steps_for_all ---------------------------------------------------------------------


@right("steps_for_all")
def least_by_max(batches):
    steps = torch.tensor([-batches])
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    return -steps.item()


@wrong("steps_for_all", "a rank with fewer batches can't take that many")
def most_of_all(batches):
    steps = torch.tensor(batches)
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    return int(steps)


@wrong("steps_for_all", "the sum of all ranks' batches")
def added_batches(batches):
    steps = torch.tensor(batches)
    dist.all_reduce(steps)
    return int(steps)


@wrong("steps_for_all", "what rank 0 has")
def as_rank_0_says(batches):
    steps = torch.tensor(batches)
    dist.broadcast(steps, src=0)
    return int(steps)


@wrong("steps_for_all", "a collective takes a tensor")
def a_number_for_a_tensor(batches):
    dist.all_reduce(batches, op=dist.ReduceOp.MIN)
    return batches


# --- 18 sum_metrics -----------------------------------------------------------------------


@right("sum_metrics")
def stacked_metrics(metrics):
    together = torch.stack([value for _, value in sorted(metrics.items())])
    dist.all_reduce(together)
    return together.flatten()


@wrong("sum_metrics", "one rank's loss meets another's count")
def in_the_dicts_order(metrics):
    together = torch.cat([*metrics.values()])
    dist.all_reduce(together)
    return together


@wrong("sum_metrics", "one call sums it")
def one_call_for_each(metrics):
    for name in sorted(metrics):
        dist.all_reduce(metrics[name])
    return torch.cat([metrics[name] for name in sorted(metrics)])


@wrong("sum_metrics", "the means over the ranks")
def averaged_metrics(metrics):
    together = torch.cat([metrics[name] for name in sorted(metrics)])
    dist.all_reduce(together, op=dist.ReduceOp.AVG)
    return together


# --- 18 straggler -------------------------------------------------------------------------


@right("straggler")
def by_a_dict(spans):
    waited = {rank: sum(end - start for start, end in calls) for rank, calls in enumerate(spans)}
    return min(waited, key=waited.get)


@wrong("straggler", "from different clocks")
def last_to_start(spans):
    return max(range(len(spans)), key=lambda rank: spans[rank][-1][0])


@wrong("straggler", "this rank waits longest")
def waits_longest(spans):
    return max(range(len(spans)), key=lambda rank: sum(end - start for start, end in spans[rank]))


@wrong("straggler", "compares the longest waits")
def shortest_of_the_longest(spans):
    return min(range(len(spans)), key=lambda rank: max(end - start for start, end in spans[rank]))


@wrong("straggler", "the first call only")
def by_the_first_call(spans):
    return min(range(len(spans)), key=lambda rank: spans[rank][0][1] - spans[rank][0][0])


# --- 18 first_difference ------------------------------------------------------------------


@right("first_difference")
def by_number(recorded):
    for k in range(max(map(len, recorded))):
        if len({calls[k] if k < len(calls) else None for calls in recorded}) > 1:
            return k + 1
    return None


@wrong("first_difference", "this counts from 0")
def from_zero(recorded):
    return None if (found := by_number(recorded)) is None else found - 1


@wrong("first_difference", "zip stops with the rank")
def by_zip(recorded):
    return next((k for k, calls in enumerate(zip(*recorded), start=1) if len(set(calls)) > 1), None)


@wrong("first_difference", "As many calls can be different calls")
def by_length(recorded):
    return None if len(set(map(len, recorded))) == 1 else min(map(len, recorded)) + 1


# --- 18 mean_of_good ----------------------------------------------------------------------


@right("mean_of_good")
def one_call(gradient, good):
    together = torch.cat([gradient, gradient.new_ones(1)]) if good else gradient.new_zeros(len(gradient) + 1)
    dist.all_reduce(together)
    return together[:-1] / together[-1].clamp(min=1)


@wrong("mean_of_good", "leaves a call out")
def leave_out(gradient, good):
    if not good:
        return torch.zeros_like(gradient)
    mean = gradient.clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    return mean


@wrong("mean_of_good", "NaN times 0 is NaN")
def multiplied(gradient, good):
    total, count = gradient * good, torch.tensor(float(good))
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count.clamp(min=1)


@wrong("mean_of_good", "number of all ranks")
def by_world_size(gradient, good):
    total = gradient.clone() if good else torch.zeros_like(gradient)
    dist.all_reduce(total)
    return total / dist.get_world_size()


@wrong("mean_of_good", "0 / 0 is NaN")
def nobody(gradient, good):
    total, count = gradient.clone() if good else torch.zeros_like(gradient), torch.tensor(float(good))
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count


# --- 19 crossings -------------------------------------------------------------------------


@right("crossings")
def by_index_of_the_neighbor(order, local):
    return sum(order[k] // local != order[k - 1] // local for k in range(len(order)))


@wrong("crossings", "the last rank sends, too")
def forgets_the_last(order, local):
    return sum(a // local != b // local for a, b in zip(order, order[1:]))


@wrong("crossings", "what leaves host 0 alone")
def leaves_the_first_host(order, local):
    return sum(a < local <= b for a, b in zip(order, order[1:] + order[:1]))


@wrong("crossings", "its number on its host|rank's number on its host")
def compares_local_ranks(order, local):
    return sum(a % local != b % local for a, b in zip(order, order[1:] + order[:1]))


# --- 19 sum_over_hosts --------------------------------------------------------------------


def _near(local):
    """This rank's group inside its host."""
    rank, n = dist.get_rank(), dist.get_world_size()
    return [dist.new_group(range(first, first + local)) for first in range(0, n, local)][rank // local]


def _far(local):
    """This rank's group between hosts: one rank of each."""
    rank, n = dist.get_rank(), dist.get_world_size()
    return [dist.new_group(range(place, n, local)) for place in range(local)][rank % local]


@right("sum_over_hosts")
def three_calls(x, local):
    inside, between = _near(local), _far(local)
    part, whole = x.new_empty(len(x) // local), torch.empty_like(x)
    dist.reduce_scatter_single(part, x, group=inside)
    dist.all_reduce(part, group=between)
    dist.all_gather_single(whole, part, group=inside)
    return whole


@right("sum_over_hosts")
def ring_inside_by_hand(x, local):
    inside, between = _near(local), _far(local)
    parts = [p.clone() for p in x.chunk(local)]
    place, right = dist.get_rank() % local, dist.get_rank() // local * local + (dist.get_rank() + 1) % local
    left = dist.get_rank() // local * local + (dist.get_rank() - 1) % local
    for step in range(local - 1):
        theirs = torch.empty_like(parts[0])
        sending = dist.isend(parts[(place - step - 1) % local], dst=right)
        dist.recv(theirs, src=left)
        sending.wait()
        parts[(place - step - 2) % local] += theirs
    dist.all_reduce(parts[place], group=between)
    wholes = [torch.empty_like(p) for p in parts]
    dist.all_gather(wholes, parts[place], group=inside)
    return torch.cat(wholes)


@wrong("sum_over_hosts", "48 bytes that leave its host; the limit is 32(.|\n)*which groups stay inside a host")
def one_flat_ring(x, local):
    total = x.clone()
    dist.all_reduce(total)
    return total


@wrong("sum_over_hosts", "which groups stay inside a host")
def hosts_by_turns(x, local):
    """Ranks 0 and 2 are taken for one host."""
    m = dist.get_world_size() // local
    groups = [dist.new_group(range(host, dist.get_world_size(), m)) for host in range(m)]
    across = [dist.new_group(range(first, first + m)) for first in range(0, dist.get_world_size(), m)]
    inside, between = groups[dist.get_rank() % m], across[dist.get_rank() // m]
    part, whole = x.new_empty(len(x) // local), torch.empty_like(x)
    dist.reduce_scatter_single(part, x, group=inside)
    dist.all_reduce(part, group=between)
    dist.all_gather_single(whole, part, group=inside)
    return whole


@wrong("sum_over_hosts", "don't all have to carry the same sum")
def whole_buffers_twice(x, local):
    total = x.clone()
    dist.all_reduce(total, group=_near(local))
    dist.all_reduce(total, group=_far(local))
    return total


@wrong("sum_over_hosts", "don't all have to carry the same sum")
def by_a_leader(x, local):
    inside, between = _near(local), _far(local)
    first, total = dist.get_rank() // local * local, x.clone()
    dist.reduce(total, dst=first, group=inside)
    if dist.get_rank() == first:
        dist.all_reduce(total, group=between)
    dist.broadcast(total, src=first, group=inside)
    return total


@wrong("sum_over_hosts", "the sum of the rank's own host")
def host_alone(x, local):
    total = x.clone()
    dist.all_reduce(total, group=_near(local))
    return total


@wrong("sum_over_hosts", "one part of the sum")
def parts_not_collected(x, local):
    inside, between = _near(local), _far(local)
    part = x.new_empty(len(x) // local)
    dist.reduce_scatter_single(part, x, group=inside)
    dist.all_reduce(part, group=between)
    return part


@wrong("sum_over_hosts", "once for every rank of a host")
def summed_again(x, local):
    inside, total = _near(local), x.clone()
    dist.all_reduce(total, group=inside)
    dist.all_reduce(total, group=_far(local))
    dist.all_reduce(total, group=inside)
    return total


@wrong("sum_over_hosts", "sum_over_hosts changes its input")
def added_in_place(x, local):
    inside, between = _near(local), _far(local)
    part = x.new_empty(len(x) // local)
    dist.reduce_scatter_single(part, x, group=inside)
    dist.all_reduce(part, group=between)
    dist.all_gather_single(x, part, group=inside)
    return x


@wrong("sum_over_hosts", "every rank has to make every group")
def groups_of_my_own(x, local):
    rank, n = dist.get_rank(), dist.get_world_size()
    inside = dist.new_group(range(rank - rank % local, rank - rank % local + local))
    between = dist.new_group(range(rank % local, n, local))
    part, whole = x.new_empty(len(x) // local), torch.empty_like(x)
    dist.reduce_scatter_single(part, x, group=inside)
    dist.all_reduce(part, group=between)
    dist.all_gather_single(whole, part, group=inside)
    return whole


# --- 18 cause -----------------------------------------------------------------------------


def _lacks(dumps, rank):
    return [member for member in dumps[rank][-1]["members"] if dumps[rank][-1] not in dumps[member]]


@right("cause")
def by_walking(dumps):
    rank = next(rank for rank in dumps if _lacks(dumps, rank))
    passed = []
    while rank not in passed and _lacks(dumps, rank):
        passed.append(rank)
        rank = _lacks(dumps, rank)[0]
    return None if rank in passed else rank


@wrong("cause", "Follow that to a rank that waits for no rank")
def names_the_first_that_is_absent(dumps):
    return _lacks(dumps, next(rank for rank in dumps if _lacks(dumps, rank)))[0]


@wrong("cause", "the ranks wait in a circle")
def takes_a_circle_for_a_chain(dumps):
    rank = next(rank for rank in dumps if _lacks(dumps, rank))
    for _ in dumps:
        rank = next(iter(_lacks(dumps, rank)), rank)
    return rank


@wrong("cause", "there's one that waits for no rank")
def finds_none(dumps):
    return None


@wrong("cause", "does any rank wait for this one")
def names_a_rank_that_does_not_exist(dumps):
    return -1


@wrong("cause", "cause must return a rank or None, not")
def with_a_reason(dumps):
    return by_walking(dumps), "missing"


# --- twelve puzzles: lines that fit the example -------------------------------------------


@wrong("anyone_broken", "What if the NaN is somewhere else")
def nan_of_the_last(loss):
    broken = loss.isnan().long()
    dist.broadcast(broken, src=dist.get_world_size() - 1)
    return bool(broken)


@wrong("anyone_broken", "Two of them cancel out")
def nans_that_cancel(loss):
    broken = loss.isnan().long()
    dist.all_reduce(broken, op=dist.ReduceOp.BXOR)
    return bool(broken)


@wrong("last_word", "this is the largest number")
def largest_word(x):
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x


@wrong("my_column", "the whole matrix came to every rank")
def whole_matrix(row):
    matrix = [torch.zeros_like(row) for _ in range(dist.get_world_size())]
    dist.all_gather(matrix, row)
    return torch.stack(matrix)[:, dist.get_rank()].clone()


@wrong("my_sum", "all the sums came to every rank")
def all_sums(row):
    dist.all_reduce(row)
    return row[dist.get_rank()].reshape(1).clone()


# --- feedback that would be false ----------------------------------------------------------


@wrong("my_share", "not their order: the larger shares come first")
def larger_shares_anywhere(items):
    rank, n = dist.get_rank(), dist.get_world_size()
    return items[rank * len(items) // n : (rank + 1) * len(items) // n]


@wrong("from_owner", "which tensor does the owner pass in")
def zeros_of_the_owner(x, owner):
    y = torch.zeros_like(x)
    dist.broadcast(y, src=owner)
    return y


@wrong("how_many", r"\A(?s:(?!.*the sum of the ranks))")
def largest_rank():
    x = torch.tensor([dist.get_rank()])
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x.item()


@wrong("how_many", "did rank 0 add nothing")
def all_but_rank_0():
    x = torch.tensor(float(dist.get_rank() > 0))
    dist.all_reduce(x)
    return int(x)


@wrong("how_many", "must return an int, not a float32 tensor of shape")
def count_in_a_tensor():
    x = torch.ones(1)
    dist.all_reduce(x)
    return x


@wrong("hand_over", "never waits for its irecv|without waiting for it")
def waits_for_its_send_only(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    mine, theirs = x.clone(), torch.zeros_like(x)
    works = [dist.isend(mine, (rank + 1) % n), dist.irecv(theirs, (rank - 1) % n)]
    works[0].wait()
    x.zero_()
    return theirs


@wrong("largest", "rank 1 alone should return the result")
def largest_on_every_rank(x):
    y = x.clone()
    dist.reduce(y, dst=dist.get_world_size() - 1, op=dist.ReduceOp.MAX)
    return y


@wrong("mean_loss", r"\A(?s:(?=.*NameError)(?!.*Think: ))")
def slip_of_a_name(loss):
    return losses.mean()  # noqa: F821


@wrong("nan_ranks", r"expected   \[")
def first_rank_always(loss):
    dist.all_reduce(loss)
    return [0] if dist.get_rank() == 0 else None
