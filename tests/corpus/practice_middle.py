"""Answers to the short tasks of chapters 05 to 10 that came after each chapter's first, in the tables of practice.py."""

import math

import torch
import torch.distributed as dist

from collectives.algorithms import Schedule, add, binomial_broadcast, copy
from tests.corpus.practice import right, wrong

# --- 05 full_product ----------------------------------------------------------------------


@right("full_product")
def gathered_and_added(x, w):
    y = x @ w
    parts = [torch.zeros_like(y) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, y)
    return sum(parts)


@wrong("full_product", "the rank's own partial sum")
def product_of_my_own(x, w):
    return x @ w


@wrong("full_product", "multiply first, then add")
def added_before_multiplying(x, w):
    both = torch.cat([x.flatten(), w.flatten()])
    dist.all_reduce(both)
    return both[: x.numel()].view_as(x) @ both[x.numel() :].view_as(w)


@wrong("full_product", "not their sum")
def averaged_product(x, w):
    y = x @ w
    dist.all_reduce(y, op=dist.ReduceOp.AVG)
    return y


@wrong("full_product", "did this None come from a call")
def product_into_the_name(x, w):
    y = dist.all_reduce(x @ w)
    return y + 0


# --- 05 value_range -----------------------------------------------------------------------


@right("value_range")
def smallest_and_largest(x):
    ends = torch.tensor([x.min().neg(), x.max()], dtype=x.dtype)
    dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    return ends[1] + ends[0]


@wrong("value_range", "the rank's own numbers")
def own_range(x):
    return x.max() - x.min()


@wrong("value_range", "largest of the ranks' ranges")
def largest_range(x):
    ends = x.max() - x.min()
    dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    return ends


@wrong("value_range", "How can one MAX")
def one_call_for_each_end(x):
    high, low = x.max(), x.min()
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    return high - low


@wrong("value_range", "Give it a new one")
def into_the_input(x):
    ends = torch.stack([x.max(), -x.min()])
    x.zero_()
    dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    return ends.sum()


@wrong("value_range", r"not the shape. y.reshape\(\[\]\)")
def range_in_a_list(x):
    ends = torch.stack([x.max(), -x.min()])
    dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    return ends.sum(0, keepdim=True)


# --- 05 gather_columns --------------------------------------------------------------------


@right("gather_columns")
def rows_of_the_transpose(part):
    n = dist.get_world_size()
    whole = part.new_empty(n * part.shape[1], part.shape[0])
    dist.all_gather_single(whole, part.T.contiguous())
    return whole.T.contiguous()


@right("gather_columns")
def blocks_put_in_order(part):
    n = dist.get_world_size()
    blocks = part.new_empty(n, *part.shape)
    dist.all_gather_single(blocks.view(-1, part.shape[1]), part)
    return blocks.transpose(0, 1).reshape(part.shape[0], -1)


@right("gather_columns")
def with_gaps(part):
    whole = part.new_empty(dist.get_world_size() * part.shape[1], part.shape[0])
    dist.all_gather_single(whole, part.T)
    return whole.T.contiguous()


@wrong("gather_columns", "one below the other")
def stacked(part):
    parts = [torch.zeros_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return torch.cat(parts)


@wrong("gather_columns", "A view can't mix them")
def viewed(part):
    flat = part.new_empty(dist.get_world_size() * part.numel())
    dist.all_gather_single(flat, part.flatten())
    return flat.view(len(part), -1)


@wrong("gather_columns", "the transpose of the matrix")
def not_turned_back(part):
    whole = part.new_empty(dist.get_world_size() * part.shape[1], part.shape[0])
    dist.all_gather_single(whole, part.T.contiguous())
    return whole


# --- 05 my_votes --------------------------------------------------------------------------


@right("my_votes")
def given_to_each(votes):
    arrived = torch.empty_like(votes)
    dist.all_to_all_single(arrived, votes)
    return arrived.sum().view(1)


@wrong("my_votes", "gives to itself")
def own_vote(votes):
    return votes[dist.get_rank()].view(1)


@wrong("my_votes", "Which collective leaves")
def all_reduce_then_pick(votes):
    total = votes.clone()
    dist.all_reduce(total)
    return total[dist.get_rank()].view(1)


@wrong("my_votes", "what every rank gets")
def all_of_the_votes(votes):
    total = votes.clone()
    dist.all_reduce(total)
    return total


@wrong("my_votes", "is a view of `votes`")
def into_a_slice(votes):
    mine = votes[:1]
    dist.reduce_scatter_single(mine, votes.clone())
    return mine.clone()


# --- 05 transposed_rows -------------------------------------------------------------------


@right("transposed_rows")
def one_tensor(rows):
    n, size = dist.get_world_size(), len(rows)
    blocks = rows.T.contiguous()
    arrived = torch.empty_like(blocks)
    dist.all_to_all_single(arrived, blocks)
    return arrived.view(n, size, size).transpose(0, 1).reshape(size, -1)


@wrong("transposed_rows", "Who has the rest")
def my_rows_turned(rows):
    return rows.T.contiguous()


@wrong("transposed_rows", "lies on its side")
def blocks_not_turned(rows):
    blocks = [block.contiguous() for block in rows.chunk(dist.get_world_size(), dim=1)]
    arrived = [torch.zeros_like(block) for block in blocks]
    dist.all_to_all(arrived, blocks)
    return torch.cat(arrived, dim=1)


@wrong("transposed_rows", "turns rows into columns")
def gather_the_matrix(rows):
    n = dist.get_world_size()
    whole = rows.new_empty(n * len(rows), rows.shape[1])
    dist.all_gather_single(whole, rows)
    return whole.T.chunk(n)[dist.get_rank()].contiguous()


@right("transposed_rows")
def views(rows):
    blocks = [block.T for block in rows.chunk(dist.get_world_size(), dim=1)]
    arrived = [torch.zeros(block.shape) for block in blocks]
    dist.all_to_all(arrived, blocks)
    return torch.cat(arrived, dim=1)


@wrong("transposed_rows", "this is the rank's columns")
def columns_standing_up(rows):
    blocks = list(rows.chunk(dist.get_world_size(), dim=1))
    arrived = [torch.zeros(block.shape) for block in blocks]
    dist.all_to_all(arrived, blocks)
    return torch.cat(arrived)


# --- 06 share_of_sum ----------------------------------------------------------------------


@right("share_of_sum")
def divided_by_gathered(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return x / torch.stack(parts).sum(0)


@wrong("share_of_sum", "a sum divided by itself")
def one_tensor_for_both(x):
    total = x.clone()
    x = total
    dist.all_reduce(total)
    return x / total


@wrong("share_of_sum", "Work on a copy")
def sum_in_the_argument(x):
    mine = x.clone()
    dist.all_reduce(x)
    return mine / x


@wrong("share_of_sum", "the sum of the rank's own numbers")
def share_of_my_own(x):
    total = x.clone()
    dist.all_reduce(total)
    return x / x.sum()


@wrong("share_of_sum", "right numbers without their fractions")
def share_without_a_fraction(x):
    total = x.clone()
    dist.all_reduce(total)
    return x // total


@wrong("share_of_sum", "the sum of the \\*other\\* ranks")
def share_of_the_others(x):
    total = x.clone()
    dist.all_reduce(total)
    return x / (total - x)


@wrong("share_of_sum", "by the mean over the ranks")
def share_of_the_mean(x):
    total = x.clone()
    dist.all_reduce(total, op=dist.ReduceOp.AVG)
    return x / total


# --- 06 broadcast_any ---------------------------------------------------------------------


@right("broadcast_any")
def padded_shape(x):
    shape = torch.zeros(9, dtype=torch.int64)
    if dist.get_rank() == 0:
        shape[: x.dim() + 1] = torch.tensor([x.dim(), *x.shape])
    dist.broadcast(shape, src=0)
    dimensions, *lengths = shape.tolist()
    result = x.clone() if dist.get_rank() == 0 else torch.empty(lengths[:dimensions])
    dist.broadcast(result, src=0)
    return result


@right("broadcast_any")
def as_an_object(x):
    objects = [None if x is None else tuple(x.shape)]
    dist.broadcast_object_list(objects, src=0)
    result = torch.empty(objects[0]) if x is None else x.clone()
    dist.broadcast(result, src=0)
    return result


@wrong("broadcast_any", "the shape is gone")
def only_the_length(x):
    count = torch.tensor(0 if x is None else x.numel())
    dist.broadcast(count, src=0)
    result = torch.empty(int(count)) if x is None else x.flatten()
    dist.broadcast(result, src=0)
    return result


@wrong("broadcast_any", "the others do before they know")
def asks_for_the_shape_of_none(x):
    shape = torch.tensor(x.shape)
    dist.broadcast(shape, src=0)
    return x


@wrong("broadcast_any", "How many dimensions are there")
def two_dimensions(x):
    shape = torch.zeros(2, dtype=torch.int64) if x is None else torch.tensor(x.shape)
    dist.broadcast(shape, src=0)
    result = torch.empty(shape.tolist()) if x is None else x.clone()
    dist.broadcast(result, src=0)
    return result


@wrong("broadcast_any", "still have nothing")
def on_rank_0_only(x):
    return x if x is None else x.clone()


# --- 06 summed ----------------------------------------------------------------------------


@right("summed")
def out_of_place(x):
    total = torch.empty(x.shape, dtype=x.dtype)
    total.copy_(x)
    dist.all_reduce(total)
    return total


@right("summed")
def zero_and_add(x):
    total = torch.zeros(x.shape, dtype=x.dtype) + x.reshape(x.shape).contiguous()
    dist.all_reduce(total)
    return total


@wrong("summed", "keeps the memory order")
def plain_clone(x):
    total = x.clone()
    dist.all_reduce(total)
    return total


@wrong("summed", "all_reduce overwrites it")
def only_contiguous(x):
    total = x.contiguous()
    dist.all_reduce(total)
    return total


@wrong("summed", "and then forgotten")
def forgets_the_copy(x):
    dist.all_reduce(x.clone(memory_format=torch.contiguous_format))
    return x.clone()


@wrong("summed", "the function returns None")
def takes_what_it_returns(x):
    return dist.all_reduce(x.clone(memory_format=torch.contiguous_format))


# --- 06 sum_each --------------------------------------------------------------------------


@right("sum_each")
def pairs(tensors):
    started = [(x, dist.all_reduce(x, async_op=True)) for x in (tensor.clone() for tensor in tensors)]
    return [(work.wait(), x)[1] for x, work in started]


@wrong("sum_each", "Then wait for each")
def one_by_one(tensors):
    sums = [tensor.clone() for tensor in tensors]
    for x in sums:
        dist.all_reduce(x)
    return sums


@wrong("sum_each", "Then wait for each")
def waits_in_the_loop(tensors):
    sums = [tensor.clone() for tensor in tensors]
    for x in sums:
        dist.all_reduce(x, async_op=True).wait()
    return sums


@wrong("sum_each", "Sum copies")
def the_tensors_themselves(tensors):
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    for work in works:
        work.wait()
    return [x.clone() for x in tensors]


@wrong("sum_each", "not their sums")
def copies_that_nobody_keeps(tensors):
    works = [dist.all_reduce(x.clone(), async_op=True) for x in tensors]
    for work in works:
        work.wait()
    return [x.clone() for x in tensors]


# --- 06 gathered_gradient -----------------------------------------------------------------


@right("gathered_gradient")
def by_all_to_all(dy):
    arrived = torch.empty_like(dy)
    dist.all_to_all_single(arrived, dy)
    return arrived.view(dist.get_world_size(), -1).sum(0)


@wrong("gathered_gradient", "own loss says")
def own_part(dy):
    return dy.chunk(dist.get_world_size())[dist.get_rank()].clone()


@wrong("gathered_gradient", "Which collective leaves just that")
def sum_and_cut(dy):
    total = dy.clone()
    dist.all_reduce(total)
    return total.chunk(dist.get_world_size())[dist.get_rank()].clone()


@wrong("gathered_gradient", "gradient of all of y")
def all_of_it(dy):
    total = dy.clone()
    dist.all_reduce(total)
    return total


@wrong("gathered_gradient", "this is a mean")
def averaged(dy):
    n = dist.get_world_size()
    mine = torch.empty(len(dy) // n, dtype=dy.dtype)
    dist.reduce_scatter_single(mine, dy)
    return mine / n


# --- 06 collect_uneven --------------------------------------------------------------------


def _sizes(mine):
    sizes = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    dist.all_gather_single(sizes, torch.tensor([len(mine)]))
    return sizes.tolist()


def _padded(mine, sizes):
    padded = mine.new_zeros(max(sizes))
    padded[: len(mine)] = mine
    rows = mine.new_zeros(len(sizes) * max(sizes))
    dist.all_gather_single(rows, padded)
    return rows


@right("collect_uneven")
def by_messages_to_rank_0(mine):
    sizes = _sizes(mine)
    if dist.get_rank() == 0:
        pieces = [mine, *(mine.new_zeros(size) for size in sizes[1:])]
        for rank, size in enumerate(sizes):
            if rank and size:
                dist.recv(pieces[rank], src=rank)
        return torch.cat(pieces)
    if len(mine):
        dist.send(mine, dst=0)


@wrong("collect_uneven", "sends its own elements once")
def pads_and_sends_to_all(mine):
    sizes = _sizes(mine)
    rows = _padded(mine, sizes).view(len(sizes), -1)
    return torch.cat([row[:size] for row, size in zip(rows, sizes)]) if dist.get_rank() == 0 else None


@wrong("collect_uneven", "they are padding")
def leaves_the_padding(mine):
    rows = _padded(mine, _sizes(mine))
    return rows if dist.get_rank() == 0 else None


@wrong("collect_uneven", "The others return None")
def on_every_rank(mine):
    sizes = _sizes(mine)
    arrived = mine.new_zeros(sum(sizes))
    dist.all_to_all_single(arrived, mine.repeat(len(sizes)), sizes, [len(mine)] * len(sizes))
    return arrived


@wrong("collect_uneven", "Which call takes a size for each pair of ranks")
def gathers_what_does_not_fit(mine):
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = [torch.zeros_like(mine) for _ in range(n)] if rank == 0 else None
    dist.gather(mine, pieces, dst=0)
    return torch.cat(pieces) if rank == 0 else None


# --- 07 pair_sum --------------------------------------------------------------------------


@right("pair_sum")
def groups_of_two(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    group = None
    for first in range(0, n, 2):
        members = [r for r in (first, first + 1) if r < n]
        pair = dist.new_group(members)
        group = pair if rank in members else group
    total = x.clone()
    dist.all_reduce(total, group=group)
    return total


@right("pair_sum")
def by_messages(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    other, theirs = rank ^ 1, torch.zeros_like(x)
    if other >= n:
        return x.clone()
    works = [dist.isend(x, other), dist.irecv(theirs, other)]
    for work in works:
        work.wait()
    return x + theirs


@wrong("pair_sum", "who takes part in a call")
def forgets_the_group(x):
    total = x.clone()
    dist.all_reduce(total)
    return total


@wrong("pair_sum", "Partners are neighbors")
def evens_and_odds(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(range(parity, n, 2)) if parity < n else None for parity in (0, 1)]
    total = x.clone()
    dist.all_reduce(total, group=groups[rank % 2])
    return total


@wrong("pair_sum", "isn't in, or has to itself, a call changes nothing")
def group_of_rank_0_and_1(x):
    pair = dist.new_group(range(min(2, dist.get_world_size())))
    total = x.clone()
    dist.all_reduce(total, group=pair)
    return total


@wrong("pair_sum", "the mean of the pair")
def mean_of_pair(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group(range(first, min(first + 2, n))) for first in range(0, n, 2)]
    mean = x.clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=pairs[rank // 2])
    return mean


@wrong("pair_sum", "every rank makes every group")
def own_pair_alone(x):
    first = dist.get_rank() // 2 * 2
    pair = dist.new_group(range(first, min(first + 2, dist.get_world_size())))
    total = x.clone()
    dist.all_reduce(total, group=pair)
    return total


# --- 07 from_first ------------------------------------------------------------------------


@right("from_first")
def by_global_rank(x, groups):
    made, result = [dist.new_group(members) for members in groups], x.clone()
    for group, members in zip(made, groups):
        if dist.get_rank(group) >= 0:
            dist.broadcast(result, src=members[0], group=group)
    return result


@wrong("from_first", "Which rank is the first member")
def from_global_rank_0(x, groups):
    made, result = [dist.new_group(members) for members in groups], x.clone()
    for group in made:
        if dist.get_rank(group) >= 0:
            dist.broadcast(result, src=0, group=group)
    return result


@wrong("from_first", "rank 0's numbers on every rank")
def to_all_ranks(x, groups):
    result = x.clone()
    dist.broadcast(result, src=groups[0][0])
    return result


@wrong("from_first", "Give it a copy")
def into_x(x, groups):
    for group in [dist.new_group(members) for members in groups]:
        if dist.get_rank(group) >= 0:
            dist.broadcast(x, group_src=0, group=group)
    return x.clone()


# --- 07 row_and_column --------------------------------------------------------------------


@right("row_and_column")
def by_looking_at_all(rank, n, tp):
    same_row = [r for r in range(n) if r // tp == rank // tp]
    return same_row, [r for r in range(n) if r % tp == rank % tp]


@wrong("row_and_column", "The row comes first")
def column_first(rank, n, tp):
    return by_looking_at_all(rank, n, tp)[::-1]


@wrong("row_and_column", "rows that have tp ranks")
def tp_rows(rank, n, tp):
    return by_looking_at_all(rank, n, n // tp)


@wrong("row_and_column", "the first of its row")
def from_this_rank(rank, n, tp):
    return list(range(rank, rank + tp)), list(range(rank, n, tp))


# --- 08 weighted_mean ---------------------------------------------------------------------


@right("weighted_mean")
def in_double(values, weights):
    sums = torch.tensor([(weights * values).sum(), weights.sum()], dtype=torch.double)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).to(values.dtype)


@wrong("weighted_mean", "mean of the ranks' means")
def mean_of_weighted_means(values, weights):
    mean = (weights * values).sum() / weights.sum()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


@wrong("weighted_mean", "without their weights")
def unweighted(values, weights):
    sums = torch.stack([values.sum(), torch.tensor(float(len(values)), dtype=values.dtype)])
    dist.all_reduce(sums)
    return sums[0] / sums[1]


@wrong("weighted_mean", "fit into one tensor")
def one_call_for_each_sum(values, weights):
    top, bottom = (weights * values).sum(), weights.sum()
    dist.all_reduce(top)
    dist.all_reduce(bottom)
    return top / bottom


@wrong("weighted_mean", "even one without values")
def only_ranks_with_values(values, weights):
    sums = torch.stack([(weights * values).sum(), weights.sum()])
    if len(values):
        dist.all_reduce(sums)
    return sums[0] / sums[1]


# --- 08 stable_variance -------------------------------------------------------------------


@right("stable_variance")
def squares_in_double(x):
    summary = torch.tensor([x.sum(), len(x)], dtype=torch.double)
    dist.all_reduce(summary)
    mean = summary[0] / summary[1]
    distances = (x.double() - mean).square().sum()
    dist.all_reduce(distances)
    return (distances / summary[1]).float()


@wrong("stable_variance", "before you square")
def mean_of_squares_minus_square_of_mean(x):
    summary = torch.tensor([x.sum(), len(x)])
    squares = (x * x).sum()
    dist.all_reduce(summary)
    dist.all_reduce(squares)
    return squares / summary[1] - (summary[0] / summary[1]) ** 2


@wrong("stable_variance", "Which mean is the variance about")
def distances_from_my_mean(x):
    mean = x.mean() if len(x) else x.new_zeros(())
    summary = torch.stack([((x - mean) ** 2).sum(), torch.tensor(float(len(x)))])
    dist.all_reduce(summary)
    return summary[0] / summary[1]


def _variance(x, less=0):
    summary = torch.tensor([x.sum(), len(x)])
    dist.all_reduce(summary)
    distances = ((x - summary[0] / summary[1]) ** 2).sum()
    dist.all_reduce(distances)
    return distances / (summary[1] - less)


@wrong("stable_variance", "standard deviation")
def deviation(x):
    return _variance(x).sqrt()


@wrong("stable_variance", "the count minus 1")
def unbiased(x):
    return _variance(x, less=1)


# --- 08 best_rank -------------------------------------------------------------------------


def _least(loss, claim=dist.ReduceOp.MIN, nobody=None):
    best = loss.clone()
    dist.all_reduce(best, op=dist.ReduceOp.MIN)
    nobody = dist.get_world_size() if nobody is None else nobody
    rank = torch.tensor(dist.get_rank() if loss == best else nobody)
    dist.all_reduce(rank, op=claim)
    return rank.item()


@right("best_rank")
def a_flag_in_the_rank(loss):
    best = loss.nan_to_num(math.inf)
    dist.all_reduce(best, op=dist.ReduceOp.MIN)
    rank = torch.tensor(-1 if loss.isnan() else dist.get_rank() if loss == best else dist.get_world_size())
    dist.all_reduce(rank, op=dist.ReduceOp.MIN)
    return rank.item()


@wrong("best_rank", "How do all ranks learn of it")
def nan_left_out(loss):
    return _least(loss.nan_to_num(math.inf))


@wrong("best_rank", "Which reduce operation finds the smallest")
def the_last_of_those_that_tie(loss):
    return _least(loss, dist.ReduceOp.MAX, -1)


@wrong("best_rank", "the largest loss")
def the_worst_rank(loss):
    return _least(-loss)


@wrong("best_rank", "Only a flag that all share")
def leaves_on_its_own_nan(loss):
    return -1 if loss.isnan() else _least(loss)


@wrong("best_rank", "Reduce a copy")
def reduces_the_loss_itself(loss):
    mine = loss.clone()
    dist.all_reduce(loss, op=dist.ReduceOp.MIN)
    rank = torch.tensor(dist.get_rank() if loss == mine else dist.get_world_size())
    dist.all_reduce(rank, op=dist.ReduceOp.MIN)
    return rank.item()


# --- 08 top_places ------------------------------------------------------------------------


@right("top_places")
def places_as_floats(scores, k):
    best = scores.topk(k)
    offer = torch.stack([best.values, (best.indices + dist.get_rank() * len(scores)).float()])
    offers = [torch.zeros_like(offer) for _ in range(dist.get_world_size())]
    dist.all_gather(offers, offer)
    values, places = torch.cat(offers, dim=1)
    return places[values.topk(k).indices].long()


def _offered(scores, k):
    n, best = dist.get_world_size(), scores.topk(k)
    values, places = torch.zeros(n * k), torch.zeros(n * k, dtype=torch.int64)
    dist.all_gather_single(values, best.values)
    dist.all_gather_single(places, best.indices)
    return values.topk(k).indices, places


@wrong("top_places", "On which rank is each")
def place_within_a_rank(scores, k):
    chosen, places = _offered(scores, k)
    return places[chosen]


@wrong("top_places", "places among the offers")
def place_among_offers(scores, k):
    return _offered(scores, k)[0]


@wrong("top_places", "rank's own best")
def my_own_best(scores, k):
    return scores.topk(k).indices + dist.get_rank() * len(scores)


@wrong("top_places", "however many scores there are")
def gather_everything(scores, k):
    whole = torch.zeros(dist.get_world_size() * len(scores), dtype=torch.double)
    dist.all_gather_single(whole, scores.double())
    dist.all_gather_single(torch.zeros_like(whole), scores.double())
    return whole.topk(k).indices


# --- 08 majority --------------------------------------------------------------------------


@right("majority")
def by_mean(content):
    share = torch.tensor(float(content))
    dist.all_reduce(share, op=dist.ReduceOp.AVG)
    return share.item() > 0.5


def _flag(content, op):
    flag = torch.tensor(int(content))
    dist.all_reduce(flag, op=op)
    return bool(flag)


@wrong("majority", "as soon as one rank")
def any_of_them(content):
    return _flag(content, dist.ReduceOp.MAX)


@wrong("majority", "Half and one are enough")
def all_of_them_agree(content):
    return _flag(content, dist.ReduceOp.MIN)


@wrong("majority", "a draw as a majority")
def draws_count(content):
    votes = torch.tensor(int(content))
    dist.all_reduce(votes)
    return 2 * votes.item() >= dist.get_world_size()


@wrong("majority", "rank 0's opinion, on every rank")
def as_rank_0_says(content):
    said = torch.tensor(int(content))
    dist.broadcast(said, src=0)
    return bool(said)


@wrong("majority", "even one that says no")
def only_who_says_yes(content):
    votes = torch.tensor(1)
    if content:
        dist.all_reduce(votes)
    return 2 * votes.item() > dist.get_world_size()


# --- 09 busiest_sends ---------------------------------------------------------------------


@right("busiest_sends")
def as_a_list(n, nbytes):
    return [nbytes * n - nbytes, 2 * (nbytes - nbytes / n)]


@wrong("busiest_sends", "What it receives is not asked for")
def with_what_arrives(n, nbytes):
    return 2 * (n - 1) * nbytes, 2 * (n - 1) / n * nbytes


@wrong("busiest_sends", "the right ones, in a different order")
def least_first(n, nbytes):
    return 2 * (n - 1) / n * nbytes, (n - 1) * nbytes


@wrong("busiest_sends", "travels twice")
def half_of_the_minimum(n, nbytes):
    return (n - 1) * nbytes, (n - 1) / n * nbytes


@wrong("busiest_sends", "How many share it")
def all_ranks_together(n, nbytes):
    return (n - 1) * nbytes, 2 * (n - 1) * nbytes


# --- 09 left_ring -------------------------------------------------------------------------


def _left(n, summed, passed, second=copy):
    add_up = [[add(r, (r - 1) % n, summed(r, k) % n) for r in range(n)] for k in range(n - 1)]
    pass_around = [[second(r, (r - 1) % n, passed(r, k) % n) for r in range(n)] for k in range(n - 1)]
    return Schedule("all_reduce", n, add_up + pass_around, chunks=n)


@right("left_ring")
def mirrored(n):
    return _left(n, lambda r, k: r + k, lambda r, k: r - 1 + k)


@right("left_ring")
def chunks_named_otherwise(n):
    return _left(n, lambda r, k: r + k + 1, lambda r, k: r + k)


@wrong("left_ring", "every message goes there")
def to_the_right(n):
    add_up = [[add(r, (r + 1) % n, (r - k) % n) for r in range(n)] for k in range(n - 1)]
    pass_around = [[copy(r, (r + 1) % n, (r + 1 - k) % n) for r in range(n)] for k in range(n - 1)]
    return Schedule("all_reduce", n, add_up + pass_around, chunks=n)


@wrong("left_ring", "In step 1 rank 0 sends one")
def old_indices(n):
    return _left(n, lambda r, k: r - k, lambda r, k: r + 1 - k)


@wrong("left_ring", "copy, not add")
def adds_twice(n):
    return _left(n, lambda r, k: r + k, lambda r, k: r - 1 + k, second=add)


@wrong("left_ring", "follow one chunk")
def one_chunk_early(n):
    return _left(n, lambda r, k: r + k, lambda r, k: r + k)


# --- 09 tree_reduce -----------------------------------------------------------------------


@right("tree_reduce")
def halves(n):
    steps, distance = [], 1 << (n - 1).bit_length()
    while distance > 1:
        distance //= 2
        steps.append([add(r + distance, r, 0) for r in range(distance) if r + distance < n])
    return Schedule("reduce", n, steps)


@wrong("tree_reduce", "can share a step")
def one_after_the_other(n):
    return Schedule("reduce", n, [[add(r, 0, 0)] for r in range(1, n)])


@wrong("tree_reduce", "comes first in the reduce")
def not_reversed(n):
    return Schedule("reduce", n, [[add(m.target, m.source, 0) for m in step] for step in binomial_broadcast(n).steps])


@wrong("tree_reduce", "not copy")
def copies_back(n):
    steps = reversed(binomial_broadcast(n).steps)
    return Schedule("reduce", n, [[copy(m.target, m.source, 0) for m in step] for step in steps])


@wrong("tree_reduce", "Swap source and target")
def arrows_as_they_were(n):
    steps = reversed(binomial_broadcast(n).steps)
    return Schedule("reduce", n, [[add(m.source, m.target, 0) for m in step] for step in steps])


# --- 09 best_pieces -----------------------------------------------------------------------


def _seconds(p, n, nbytes, alpha, beta):
    return (n - 2 + p) * (alpha + nbytes / p * beta)


@right("best_pieces")
def try_them_all(n, nbytes, alpha, beta):
    return min(range(1, 20_000), key=lambda p: _seconds(p, n, nbytes, alpha, beta))


@wrong("best_pieces", "whole number of pieces")
def not_rounded(n, nbytes, alpha, beta):
    return math.sqrt((n - 2) * nbytes * beta / alpha)


@wrong("best_pieces", "not N - 1")
def one_hop_more(n, nbytes, alpha, beta):
    return min(range(1, 20_000), key=lambda p: _seconds(p, n + 1, nbytes, alpha, beta))


@wrong("best_pieces", "Which number of pieces gives it")
def the_time(n, nbytes, alpha, beta):
    return min(_seconds(p, n, nbytes, alpha, beta) for p in range(1, 20_000))


@wrong("best_pieces", "one term grows with p")
def as_many_as_ranks(n, nbytes, alpha, beta):
    return n


# --- 09 rail_bytes ------------------------------------------------------------------------


@right("rail_bytes")
def message_by_message(n, k, nbytes):
    return sum(nbytes / (n / k) / k for _ in range(2 * (k - 1)))


@wrong("rail_bytes", "what a leader sends")
def as_a_leader(n, k, nbytes):
    return 2 * (k - 1) / k * nbytes


@wrong("rail_bytes", "link of the flat ring")
def as_the_flat_ring(n, k, nbytes):
    return 2 * (n - 1) / n * nbytes


@wrong("rail_bytes", "twice")
def one_round_only(n, k, nbytes):
    return (k - 1) * nbytes / n


@wrong("rail_bytes", "How many are that")
def ring_of_all_ranks(n, k, nbytes):
    return 2 * (n - 1) / n * (nbytes * k / n)


# --- 10 equal_parts -----------------------------------------------------------------------


@right("equal_parts")
def by_seconds_per_byte(alpha, bandwidth):
    beta = 1 / bandwidth
    return alpha / beta


@wrong("equal_parts", "divided by that")
def divided_by_bandwidth(alpha, bandwidth):
    return alpha / bandwidth


@wrong("equal_parts", "a third of the time")
def twice_the_size(alpha, bandwidth):
    return 2 * alpha * bandwidth


@wrong("equal_parts", "one over the size")
def upside_down(alpha, bandwidth):
    return 1 / bandwidth / alpha


# --- 10 bus_bandwidth ---------------------------------------------------------------------


@right("bus_bandwidth")
def by_cases(op, n, nbytes, seconds):
    sent = nbytes
    if op not in ("broadcast", "reduce"):
        sent = nbytes - nbytes / n
    if op == "all_reduce":
        sent *= 2
    return sent / seconds / 1e9


@wrong("bus_bandwidth", "this is algbw")
def without_factor(op, n, nbytes, seconds):
    return nbytes / seconds / 1e9


@wrong("bus_bandwidth", "in bytes per second")
def in_bytes(op, n, nbytes, seconds):
    return 1e9 * by_cases(op, n, nbytes, seconds)


@wrong("bus_bandwidth", "is all_reduce's")
def one_factor_for_all(op, n, nbytes, seconds):
    return 2 * (n - 1) / n * nbytes / seconds / 1e9


@wrong("bus_bandwidth", "This counts 2\\*\\*30")
def in_gibibytes(op, n, nbytes, seconds):
    return by_cases(op, n, nbytes, seconds) * 1e9 / 2**30


# --- 10 exposed ---------------------------------------------------------------------------


@right("exposed")
def in_closed_form(backward, count, seconds):
    return max(seconds, backward / count + count * seconds - backward)


@wrong("exposed", "the last bucket is ready only when")
def all_minus_backward(backward, count, seconds):
    return max(0.0, count * seconds - backward)


@wrong("exposed", "How long is that after the pass")
def from_the_start(backward, count, seconds):
    return backward + in_closed_form(backward, count, seconds)


@wrong("exposed", "as if none could start")
def nothing_hides(backward, count, seconds):
    return count * seconds


@wrong("exposed", "longer than a bucket takes to fill")
def only_the_last(backward, count, seconds):
    return seconds
