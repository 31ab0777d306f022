"""Answers to the exercises: several right ones, and the mistakes people make with the words each deserves.

RIGHT[name] and WRONG[name] belong to the task of that name.  A wrong answer comes with a
fragment of the message it gets.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Callable

import torch
import torch.distributed as dist

RIGHT: dict[str, list[Callable]] = defaultdict(list)
WRONG: dict[str, list[tuple[Callable, str]]] = defaultdict(list)


def right(name: str):
    def keep(fn):
        RIGHT[name].append(fn)
        return fn

    return keep


def wrong(name: str, words: str):
    def keep(fn):
        WRONG[name].append((fn, words))
        return fn

    return keep


def here():
    return dist.get_rank(), dist.get_world_size()


def floats(x):
    return x.clone() if x.is_floating_point() else x.float()


def exchange(out, to, into, source):
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, into, source)]):
        work.wait()


# --- 01 distributed_mean ------------------------------------------------------------------

MEAN = "distributed_mean"


@right(MEAN)
def divide_first(x):
    y = floats(x) / dist.get_world_size()
    dist.all_reduce(y)
    return y


@right(MEAN)
def average_op(x):
    y = floats(x)
    work = dist.all_reduce(y, op=dist.ReduceOp.AVG, async_op=True)
    work.wait()
    return y


@right(MEAN)
def reduce_scatter_then_gather(x):
    rank, n = here()
    whole = x.is_floating_point()
    padded = torch.zeros(-(-len(x) // n) * n, dtype=x.dtype)
    padded[: len(x)] = x
    if n > 1 and len(x) % n == 0 and len(x):
        mine = torch.zeros(len(padded) // n, dtype=x.dtype)
        dist.reduce_scatter_single(mine, padded)
        dist.all_gather_single(padded, mine)
    else:
        padded = padded[: len(x)].clone()
        dist.all_reduce(padded)
    return (padded if whole else padded.float())[: len(x)] / n


@wrong(MEAN, "this is the sum")
def no_division(x):
    y = floats(x)
    dist.all_reduce(y)
    return y


@wrong(MEAN, "divided by 4")
def fixed_world_size(x):
    y = floats(x)
    dist.all_reduce(y)
    return y / 4


@wrong(MEAN, "are enough")
def gather_and_broadcast(x):
    rank, n = here()
    y = floats(x)
    rows = [torch.zeros_like(y) for _ in range(n)] if rank == 0 else None
    dist.gather(y, rows, dst=0)
    if rank == 0:
        y = sum(rows) / n
    dist.broadcast(y, src=0)
    return y


@wrong(MEAN, "only their sum is wanted|hands around whole buffers")
def gather_all(x):
    y = floats(x)
    rows = [torch.zeros_like(y) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, y)
    return sum(rows) / len(rows)


@wrong(MEAN, "changes its input on rank 0")
def into_the_input(x):
    dist.all_reduce(x)
    return (x if x.is_floating_point() else x.float()) / dist.get_world_size()


@wrong(MEAN, "only rank 0 has the mean|is wrong on rank 1")
def reduce_to_zero(x):
    y = floats(x)
    dist.reduce(y, dst=0)
    return y / dist.get_world_size() if dist.get_rank() == 0 else floats(x)


@wrong(MEAN, "Printing a result does not return it")
def print_it(x):
    y = floats(x)
    dist.all_reduce(y)
    print(y / dist.get_world_size())


@wrong(MEAN, "must return a float32 tensor")
def integer_division(x):
    y = x.clone()
    dist.all_reduce(y)
    return y / dist.get_world_size() if y.is_floating_point() else y // dist.get_world_size()


@wrong(MEAN, "one mean over everything|must return a float32 tensor of shape")
def mean_of_all(x):
    y = floats(x).mean() if len(x) else floats(x).sum()
    dist.all_reduce(y)
    return y / dist.get_world_size()


@wrong(MEAN, "the result is in the tensor that was passed in")
def takes_what_it_returns(x):
    y = dist.all_reduce(floats(x))
    return y / dist.get_world_size()


@wrong(MEAN, "before waiting for it")
def reads_before_wait(x):
    y = floats(x)
    work = dist.all_reduce(y, async_op=True)
    y = y / dist.get_world_size()
    work.wait()
    return y


@wrong(MEAN, "still to be written")
def stub(x):
    raise NotImplementedError()


# --- 02 distributed_argmax ----------------------------------------------------------------

ARGMAX = "distributed_argmax"


def lowest(x):
    return -torch.inf if x.is_floating_point() else torch.iinfo(x.dtype).min


def gathered(value):
    out = [torch.zeros_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(out, value)
    return out


def offset_of(x):
    return sum(int(t) for t in gathered(torch.tensor([len(x)]))[: dist.get_rank()])


@right(ARGMAX)
def gather_candidates(x):
    lengths = [int(t) for t in gathered(torch.tensor([len(x)]))]
    top = gathered(x.max().reshape(1) if len(x) else torch.tensor([lowest(x)], dtype=x.dtype))
    places = gathered(torch.tensor([int(x.argmax()) if len(x) else 0]))
    owner = max((r for r in range(len(top)) if lengths[r]), key=lambda r: (top[r].item(), -r))
    return sum(lengths[:owner]) + int(places[owner])


@right(ARGMAX)
def as_doubles(x):
    rank, n = here()
    best = [float(x.max()), float(x.argmax())] if len(x) else [-torch.inf, 0.0]
    rows = gathered(torch.tensor([*best, len(x)], dtype=torch.double))
    owner = max(range(n), key=lambda r: (float(rows[r][0]), -r))
    return int(sum(float(row[2]) for row in rows[:owner]) + float(rows[owner][1]))


def argmax_by(x, filler, pick, before):
    top = x.max() if len(x) else torch.tensor(filler, dtype=x.dtype)
    mine = top.clone()
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    place = before + int(x.argmax()) if len(x) and mine == top else (1 << 40 if pick is dist.ReduceOp.MIN else -1)
    place = torch.tensor(place)
    dist.all_reduce(place, op=pick)
    return int(place)


@wrong(ARGMAX, "the last of them|the last place")
def last_of_ties(x):
    return argmax_by(x, lowest(x), dist.ReduceOp.MAX, offset_of(x))


@wrong(ARGMAX, "Are all shards equally long|RankFailed|is wrong on rank")
def equal_lengths(x):
    return argmax_by(x, lowest(x), dist.ReduceOp.MIN, dist.get_rank() * len(x))


@wrong(ARGMAX, "within the owner's own shard")
def without_offset(x):
    return argmax_by(x, lowest(x), dist.ReduceOp.MIN, 0)


@wrong(ARGMAX, "is wrong on rank")
def zero_for_empty(x):
    return argmax_by(x, 0, dist.ReduceOp.MIN, offset_of(x))


@wrong(ARGMAX, "empty shard")
def no_thought_of_empty(x):
    top = x.max()
    mine = top.clone()
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    place = torch.tensor(offset_of(x) + int(x.argmax()) if mine == top else 1 << 40)
    dist.all_reduce(place, op=dist.ReduceOp.MIN)
    return int(place)


@wrong(ARGMAX, "each rank")
def rebinds(x):
    before = offset_of(x)
    top = x.max() if len(x) else torch.tensor(lowest(x), dtype=x.dtype)
    dist.all_reduce(top.clone(), op=dist.ReduceOp.MAX)
    top = torch.max(top)
    return before + int(x.argmax()) if len(x) else before


@wrong(ARGMAX, "are enough")
def gather_the_vector(x):
    lengths = [int(t) for t in gathered(torch.tensor([len(x)]))]
    padded = torch.full((max(lengths),), lowest(x), dtype=x.dtype)
    padded[: len(x)] = x
    return int(torch.cat([row[:k] for row, k in zip(gathered(padded), lengths)]).argmax())


@wrong(ARGMAX, "2\\*\\*24 only")
def in_float32(x):
    return argmax_by(x.float(), -torch.inf, dist.ReduceOp.MIN, offset_of(x))


@wrong(ARGMAX, "make all the calls")
def empty_leaves(x):
    if not len(x):
        return 0
    return argmax_by(x, lowest(x), dist.ReduceOp.MIN, offset_of(x))


# --- 03 distributed_softmax ---------------------------------------------------------------

SOFTMAX = "distributed_softmax"


def top_of(x):
    return x.float().amax(1) if x.shape[1] else torch.full((len(x),), -torch.inf)


@right(SOFTMAX)
def merge_statistics(x):
    top = top_of(x)
    safe = top.masked_fill(top == -torch.inf, 0.0)
    stats = torch.stack([top, (x.float() - safe[:, None]).exp().sum(1)])
    rows = torch.stack(gathered(stats))
    highest = rows[:, 0].amax(0)
    total = (rows[:, 1] * (rows[:, 0] - highest).exp()).sum(0)
    return ((x.float() - highest[:, None]).exp() / total[:, None]).to(x.dtype)


@right(SOFTMAX)
def by_logarithms(x):
    top = top_of(x)
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    total = (x.float() - top[:, None]).exp().sum(1)
    dist.all_reduce(total)
    return (x.float() - top[:, None] - total.log()[:, None]).exp().to(x.dtype)


@wrong(SOFTMAX, "must never win")
def zero_where_there_is_nothing(x):
    top = x.float().amax(1) if x.shape[1] else torch.zeros(len(x))
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    raised = (x.float() - top[:, None]).exp()
    total = raised.sum(1)
    dist.all_reduce(total)
    return (raised / total[:, None]).to(x.dtype)


@wrong(SOFTMAX, "inf / inf is nan|is wrong on rank")
def without_maximum(x):
    raised = x.float().exp()
    total = raised.sum(1)
    dist.all_reduce(total)
    return (raised / total[:, None]).to(x.dtype)


@wrong(SOFTMAX, "adds up to 1 by itself")
def local_softmax(x):
    return x.softmax(1)


@wrong(SOFTMAX, "All must subtract the same")
def own_maximum(x):
    raised = (x.float() - top_of(x)[:, None]).exp()
    total = raised.sum(1)
    dist.all_reduce(total)
    return (raised / total[:, None]).to(x.dtype)


@wrong(SOFTMAX, "Whose exponentials must the sum count")
def own_sum(x):
    top = top_of(x)
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    raised = (x.float() - top[:, None]).exp()
    return (raised / raised.sum(1)[:, None]).to(x.dtype)


@wrong(SOFTMAX, "changes its input")
def in_place(x):
    top = top_of(x).to(x.dtype)
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    x.sub_(top[:, None]).exp_()
    total = x.float().sum(1)
    dist.all_reduce(total)
    return (x.float() / total[:, None]).to(x.dtype)


@wrong(SOFTMAX, "maximum of a block without columns")
def no_columns_forgotten(x):
    top = x.float().amax(1)
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    raised = (x.float() - top[:, None]).exp()
    total = raised.sum(1)
    dist.all_reduce(total)
    return (raised / total[:, None]).to(x.dtype)


@wrong(SOFTMAX, "are enough")
def gather_the_logits(x):
    widths = [int(t) for t in gathered(torch.tensor([x.shape[1]]))]
    padded = torch.full((len(x), max(widths)), -torch.inf)
    padded[:, : x.shape[1]] = x.float()
    rows = torch.cat([block[:, :w] for block, w in zip(gathered(padded), widths)], 1).softmax(1)
    return rows.split(widths, 1)[dist.get_rank()].to(x.dtype)


@wrong(SOFTMAX, "own columns only|must return a float32 tensor")
def whole_rows(x):
    widths = [int(t) for t in gathered(torch.tensor([x.shape[1]]))]
    padded = torch.full((len(x), max(widths)), -torch.inf)
    padded[:, : x.shape[1]] = x.float()
    return torch.cat([block[:, :w] for block, w in zip(gathered(padded), widths)], 1).softmax(1).to(x.dtype)


# --- 04 tree_broadcast --------------------------------------------------------------------

TREE = "tree_broadcast"


@right(TREE)
def by_lowest_bit(x, src):
    """As MPI does it: receive once, then send to ever nearer places."""
    rank, n = here()
    place, bit = (rank - src) % n, 1
    while bit < n and not place & bit:
        bit *= 2
    if place:
        dist.recv(x, src=(place - bit + src) % n)
    bit //= 2
    while bit:
        if place + bit < n:
            dist.send(x, dst=(place + bit + src) % n)
        bit //= 2


@right(TREE)
def halving_the_ranks(x, src):
    rank, n = here()
    place, low, high = (rank - src) % n, 0, n
    while high - low > 1:
        middle = low + (high - low + 1) // 2
        if place == low:
            dist.isend(x, (middle + src) % n).wait()
        elif place == middle:
            dist.irecv(x, (low + src) % n).wait()
        low, high = (low, middle) if place < middle else (middle, high)


@wrong(TREE, "steps; 2 are enough|messages; 2 are enough|sends .* are enough")
def root_sends_all(x, src):
    rank, n = here()
    if rank == src:
        for other in range(n):
            if other != src:
                dist.send(x, other)
    else:
        dist.recv(x, src)


@wrong(TREE, "steps; 2 are enough")
def along_a_chain(x, src):
    rank, n = here()
    place = (rank - src) % n
    if place:
        dist.recv(x, (rank - 1) % n)
    if place < n - 1:
        dist.send(x, (rank + 1) % n)


@wrong(TREE, "Stuck|RankFailed")
def powers_of_two_only(x, src):
    rank, n = here()
    place, have = (rank - src) % n, 1
    while have < n:
        if place < have:
            dist.send(x, (place + have + src) % n)
        elif place < 2 * have:
            dist.recv(x, (place - have + src) % n)
        have *= 2


@wrong(TREE, "rank 0's numbers")
def always_from_zero(x, src):
    rank, n = here()
    have = 1
    while have < n:
        if rank < have and rank + have < n:
            dist.send(x, rank + have)
        elif have <= rank < 2 * have:
            dist.recv(x, rank - have)
        have *= 2


@wrong(TREE, "as it was before")
def into_another(x, src):
    y = x.clone()
    by_lowest_bit(y, src)
    x = y


@wrong(TREE, "calls broadcast, which this exercise does without")
def library(x, src):
    dist.broadcast(x, src)


@wrong(TREE, "never waits for its isend")
def leaves_at_once(x, src):
    rank, n = here()
    place, bit = (rank - src) % n, 1
    while bit < n and not place & bit:
        bit *= 2
    if place:
        dist.recv(x, src=(place - bit + src) % n)
    bit //= 2
    while bit:
        if place + bit < n:
            dist.isend(x, (place + bit + src) % n)
        bit //= 2


@wrong(TREE, "Stuck|RankFailed")
def place_for_rank(x, src):
    """Forgets to turn places back into ranks."""
    rank, n = here()
    place, have = (rank - src) % n, 1
    while have < n:
        if place < have and place + have < n:
            dist.send(x, place + have)
        elif have <= place < 2 * have:
            dist.recv(x, place - have)
        have *= 2


# --- 05 reduce_scatter_by_hand ------------------------------------------------------------

SCATTER = "reduce_scatter_by_hand"


@right(SCATTER)
def all_at_once(chunks):
    rank, n = here()
    others = [r for r in range(n) if r != rank]
    into = {r: torch.zeros_like(chunks[rank]) for r in others}
    works = [dist.irecv(into[r], r) for r in others] + [dist.isend(chunks[r], r) for r in others]
    for work in works:
        work.wait()
    return sum(into.values(), chunks[rank].clone())


@right(SCATTER)
def around_the_ring(chunks):
    rank, n = here()
    part = chunks[(rank - 1) % n].clone()
    for step in range(n - 1):
        mine = chunks[(rank - step - 2) % n]
        arriving = torch.zeros_like(mine)
        exchange(part, (rank + 1) % n, arriving, (rank - 1) % n)
        part = arriving + mine
    return part


@wrong(SCATTER, "who receives first")
def all_send_first(chunks):
    rank, n = here()
    total = chunks[rank].clone()
    for shift in range(1, n):
        dist.send(chunks[(rank + shift) % n], (rank + shift) % n)
        arriving = torch.zeros_like(total)
        dist.recv(arriving, (rank - shift) % n)
        total += arriving
    return total


@wrong(SCATTER, "own contribution is missing")
def forgets_itself(chunks):
    rank, n = here()
    return all_at_once(chunks) - chunks[rank]


@wrong(SCATTER, "changes its input")
def adds_into_chunks(chunks):
    rank, n = here()
    for shift in range(1, n):
        arriving = torch.zeros_like(chunks[rank])
        exchange(chunks[(rank + shift) % n], (rank + shift) % n, arriving, (rank - shift) % n)
        chunks[rank] += arriving
    return chunks[rank]


@wrong(SCATTER, "before waiting for it")
def adds_before_wait(chunks):
    rank, n = here()
    total = chunks[rank].clone()
    for shift in range(1, n):
        arriving = torch.zeros_like(total)
        out, into = dist.isend(chunks[(rank + shift) % n], (rank + shift) % n), dist.irecv(arriving, (rank - shift) % n)
        total += arriving
        out.wait(), into.wait()
    return total


@wrong(SCATTER, "calls reduce_scatter, which")
def library_scatter(chunks):
    mine = torch.zeros_like(chunks[dist.get_rank()])
    dist.reduce_scatter(mine, chunks)
    return mine


@wrong(SCATTER, "sends .* are enough")
def everything_to_everybody(chunks):
    rank, n = here()
    whole, total = torch.cat(chunks), chunks[rank].clone()
    start = sum(len(c) for c in chunks[:rank])
    for shift in range(1, n):
        arriving = torch.zeros_like(whole)
        exchange(whole, (rank + shift) % n, arriving, (rank - shift) % n)
        total += arriving[start : start + len(total)]
    return total


@wrong(SCATTER, "any number of ranks|Stuck")
def partners_by_xor(chunks):
    rank, n = here()
    total = chunks[rank].clone()
    for bit in range(1, n):
        arriving = torch.zeros_like(total)
        exchange(chunks[rank ^ bit], rank ^ bit, arriving, rank ^ bit)
        total += arriving
    return total


@wrong(SCATTER, "steps; .* are enough")
def one_pair_after_the_other(chunks):
    rank, n = here()
    total = chunks[rank].clone()
    for source in range(n):
        for target in range(n):
            if rank == source != target:
                dist.send(chunks[target], target)
            elif rank == target != source:
                arriving = torch.zeros_like(total)
                dist.recv(arriving, source)
                total += arriving
    return total


@wrong(SCATTER, "as long as what arrives|size")
def equal_chunks(chunks):
    rank, n = here()
    total = chunks[rank].clone()
    for shift in range(1, n):
        arriving = torch.zeros_like(chunks[0])
        exchange(chunks[(rank + shift) % n], (rank + shift) % n, arriving, (rank - shift) % n)
        total += arriving
    return total


# --- 06 ring_all_reduce -------------------------------------------------------------------

RING = "ring_all_reduce"


def ring(x, chunks, turn=1, first=True, second=True):
    rank, n = here()
    right, left = (rank + turn) % n, (rank - turn) % n
    for step in range((n - 1) * first):
        into = chunks[(rank - turn * (step + 1)) % n]
        arriving = torch.zeros_like(into)
        exchange(chunks[(rank - turn * step) % n], right, arriving, left)
        into += arriving
    for step in range((n - 1) * second):
        into = chunks[(rank - turn * step) % n]
        arriving = torch.zeros_like(into)
        exchange(chunks[(rank + turn * (1 - step)) % n], right, arriving, left)
        into.copy_(arriving)


@right(RING)
def the_other_way_round(x):
    ring(x, x.tensor_split(dist.get_world_size()), turn=-1)


@right(RING)
def ceil_chunks(x):
    """Chunks of ceil(length / N), the last ones short or empty, and nothing sent for those."""
    rank, n = here()
    size = -(-len(x) // n)
    chunks = [x[k * size : (k + 1) * size] for k in range(n)]
    for step in range(2 * (n - 1)):
        out, into = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        arriving = torch.zeros_like(into)
        works = [dist.isend(out, (rank + 1) % n)] if len(out) else []
        works += [dist.irecv(arriving, (rank - 1) % n)] if len(into) else []
        for work in works:
            work.wait()
        into.copy_(into + arriving if step < n - 1 else arriving)


@right(RING)
def send_first_then_receive(x):
    rank, n = here()
    chunks = x.tensor_split(n)
    for step in range(2 * (n - 1)):
        into = chunks[(rank - step - 1) % n]
        arriving = torch.zeros_like(into)
        sending = dist.isend(chunks[(rank - step) % n].clone(), (rank + 1) % n)
        dist.recv(arriving, (rank - 1) % n)
        sending.wait()
        into.copy_(into + arriving) if step < n - 1 else into.copy_(arriving)


@wrong(RING, "one chunk, or the whole tensor")
def unchunked(x):
    rank, n = here()
    passing = x.clone()
    for _ in range(n - 1):
        arriving = torch.zeros_like(x)
        exchange(passing, (rank + 1) % n, arriving, (rank - 1) % n)
        x += arriving
        passing = arriving


@wrong(RING, "after the first half")
def first_half_only(x):
    ring(x, x.tensor_split(dist.get_world_size()), second=False)


@wrong(RING, "does not divide by N|wrong numbers")
def tail_left_out(x):
    n = dist.get_world_size()
    size = len(x) // n
    ring(x, [x[k * size : (k + 1) * size] for k in range(n)])


@wrong(RING, "who receives first")
def deadlock(x):
    rank, n = here()
    chunks = x.tensor_split(n)
    for step in range(n - 1):
        into = chunks[(rank - step - 1) % n]
        arriving = torch.zeros_like(into)
        dist.send(chunks[(rank - step) % n], (rank + 1) % n)
        dist.recv(arriving, (rank - 1) % n)
        into += arriving


@wrong(RING, "steps; .* are enough")
def taking_turns(x):
    rank, n = here()
    chunks = x.tensor_split(n)
    for step in range(2 * (n - 1)):
        out, into = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        arriving = torch.zeros_like(into)
        if rank % 2 == 0:
            dist.send(out, (rank + 1) % n)
            dist.recv(arriving, (rank - 1) % n)
        else:
            dist.recv(arriving, (rank - 1) % n)
            dist.send(out, (rank + 1) % n)
        into.copy_(into + arriving if step < n - 1 else arriving)


@wrong(RING, "calls all_reduce, which this exercise does without")
def library_reduce(x):
    dist.all_reduce(x)


@wrong(RING, "may not")
def not_to_neighbours(x):
    rank, n = here()
    chunks = x.tensor_split(n)
    total = chunks[rank].clone()
    for shift in range(1, n):
        arriving = torch.zeros_like(total)
        exchange(chunks[(rank + shift) % n], (rank + shift) % n, arriving, (rank - shift) % n)
        total += arriving
    chunks[rank].copy_(total)
    for shift in range(1, n):
        arriving = torch.zeros_like(chunks[(rank - shift) % n])
        exchange(chunks[rank], (rank + shift) % n, arriving, (rank - shift) % n)
        chunks[(rank - shift) % n].copy_(arriving)


@wrong(RING, "before waiting for it")
def early_read(x):
    rank, n = here()
    chunks = x.tensor_split(n)
    for step in range(n - 1):
        into = chunks[(rank - step - 1) % n]
        arriving = torch.zeros_like(into)
        works = [dist.isend(chunks[(rank - step) % n], (rank + 1) % n), dist.irecv(arriving, (rank - 1) % n)]
        into += arriving
        for work in works:
            work.wait()


@wrong(RING, "this is the mean")
def averages(x):
    ring(x, x.tensor_split(dist.get_world_size()))
    x.copy_(x / dist.get_world_size())


@wrong(RING, "as it was before")
def rebinds_its_name(x):
    y = x.clone()
    ring(y, y.tensor_split(dist.get_world_size()))
    x = y


# --- 07 settle ----------------------------------------------------------------------------

SETTLE = "settle"


def ends(strip, exchange_with):
    rank, n = here()
    left, right = strip[:1].clone(), strip[-1:].clone()
    exchange_with(strip, left, right, rank, n)
    return left, right


def together(strip, left, right, rank, n):
    works = []
    if rank > 0:
        works += [dist.isend(strip[:1], rank - 1), dist.irecv(left, rank - 1)]
    if rank < n - 1:
        works += [dist.isend(strip[-1:], rank + 1), dist.irecv(right, rank + 1)]
    for work in works:
        work.wait()


def in_turns(strip, left, right, rank, n):
    if rank > 0:
        dist.recv(left, rank - 1)
        dist.send(strip[:1], rank - 1)
    if rank < n - 1:
        dist.send(strip[-1:], rank + 1)
        dist.recv(right, rank + 1)


def give_first(strip, left, right, rank, n):
    if rank > 0:
        dist.send(strip[:1], rank - 1)
        dist.recv(left, rank - 1)
    if rank < n - 1:
        dist.send(strip[-1:], rank + 1)
        dist.recv(right, rank + 1)


def settling(strip, exchange_with=together, agree=True, report="all", most=10_000):
    steps = 0
    while True:
        left, right = ends(strip, exchange_with)
        padded = torch.cat([left, strip, right])
        after = (padded[:-2] + 2 * strip + padded[2:]) / 4
        change = (after - strip).abs().max()
        if agree:
            dist.all_reduce(change, op=dist.ReduceOp.MAX)
        strip, steps = after, steps + 1
        if change <= 0.5 and agree is not None or steps == most:
            break
    hottest = strip.max()
    if report == "all" or report == "zero" and dist.get_rank() == 0:
        dist.all_reduce(hottest, op=dist.ReduceOp.MAX)
    return strip, steps, float(hottest)


@right(SETTLE)
def all_ends_together(strip):
    return settling(strip)


@right(SETTLE)
def one_rank_after_the_other(strip):
    return settling(strip, in_turns)


@right(SETTLE)
def votes(strip):
    rank, n = here()
    steps = 0
    while True:
        left, right = ends(strip, together)
        padded = torch.cat([left, strip, right])
        after = (padded[:-2] + 2 * strip + padded[2:]) / 4
        restless = torch.tensor(int((after - strip).abs().max() > 0.5))
        dist.all_reduce(restless)
        strip, steps = after, steps + 1
        if not restless:
            break
    hottest = strip.max()
    dist.all_reduce(hottest, op=dist.ReduceOp.MAX)
    return strip, steps, float(hottest)


@wrong(SETTLE, "Stuck")
def as_it_was(strip):
    return settling(strip, give_first, agree=False, report="zero")


@wrong(SETTLE, "Stuck")
def only_the_sends(strip):
    return settling(strip, agree=False, report="zero")


@wrong(SETTLE, "Stuck|which collective|Mismatch")
def only_the_loop(strip):
    return settling(strip, report="zero")


@wrong(SETTLE, "Stuck|Mismatch")
def only_the_end(strip):
    return settling(strip, agree=False)


@wrong(SETTLE, "own strip")
def call_taken_out(strip):
    return settling(strip, report="none")


@wrong(SETTLE, "is wrong on rank")
def fixed_number_of_steps(strip):
    return settling(strip, agree=None, most=10)


@wrong(SETTLE, "are enough")
def rod_on_every_rank(strip):
    lengths = [int(t) for t in gathered(torch.tensor([len(strip)]))]
    padded = torch.zeros(max(lengths))
    padded[: len(strip)] = strip
    rod, steps, rank = torch.cat([row[:k] for row, k in zip(gathered(padded), lengths)]), 0, dist.get_rank()
    while True:
        wide = torch.cat([rod[:1], rod, rod[-1:]])
        after = (wide[:-2] + 2 * rod + wide[2:]) / 4
        change, rod, steps = (after - rod).abs().max(), after, steps + 1
        for _ in range(3):
            gathered(padded)
        if change <= 0.5:
            return rod.split(lengths)[rank], steps, float(rod.max())


# --- 08 choose the collective -------------------------------------------------------------


@right("same_settings")
def settings_by_broadcast(x):
    y = x.clone()
    dist.broadcast(y, 0)
    return y


@wrong("same_settings", "are enough")
def settings_by_sum(x):
    if dist.get_rank():
        x.zero_()
    dist.all_reduce(x)
    return x


@right("total_for_log")
def log_by_reduce(x):
    dist.reduce(x, 0)
    return x if dist.get_rank() == 0 else None


@wrong("total_for_log", "are enough")
def log_by_all_reduce(x):
    dist.all_reduce(x)
    return x


@right("whole_table")
def table_by_single(x):
    table = torch.zeros(dist.get_world_size() * len(x), dtype=x.dtype)
    dist.all_gather_single(table, x)
    return table.reshape(-1, len(x))


@wrong("whole_table", "are enough")
def table_by_sum(x):
    rank, n = here()
    table = torch.zeros(n, len(x), dtype=x.dtype)
    table[rank] = x
    dist.all_reduce(table)
    return table


@right("my_row")
def row_by_scatter(table, row):
    dist.scatter(row, [r.clone() for r in table] if dist.get_rank() == 0 else None, src=0)
    return row


@wrong("my_row", "are enough")
def row_by_broadcast(table, row):
    n = dist.get_world_size()
    table = table if table is not None else torch.zeros(n, len(row), dtype=row.dtype)
    dist.broadcast(table, 0)
    return table[dist.get_rank()]


@right("rows_for_checkpoint")
def rows_by_gather(x):
    rows = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
    dist.gather(x, rows if dist.get_rank() == 0 else None)
    return torch.stack(rows)


@wrong("rows_for_checkpoint", "are enough")
def rows_by_all_gather(x):
    return table_by_single(x)


@right("summed_gradient")
def gradient_by_all_reduce(x):
    dist.all_reduce(x)
    return x


@wrong("summed_gradient", "are enough")
def gradient_by_all_gather(x):
    return table_by_single(x).sum(0).to(x.dtype)


@wrong("summed_gradient", "takes 2 steps; 1 are enough")
def gradient_in_two_calls(x):
    dist.reduce(x, 0)
    dist.broadcast(x, 0)
    return x


@wrong("summed_gradient", "All ranks step their optimizer|is wrong on rank")
def gradient_on_zero(x):
    y = x.clone()
    dist.reduce(y, 0)
    return y if dist.get_rank() == 0 else x


@right("my_part_of_gradient")
def part_by_list(rows):
    mine = torch.zeros_like(rows[0])
    dist.reduce_scatter(mine, [r.clone() for r in rows])
    return mine


@wrong("my_part_of_gradient", "are enough")
def part_by_all_reduce(rows):
    dist.all_reduce(rows)
    return rows[dist.get_rank()]


@right("tokens_to_experts")
def tokens_by_single(rows):
    arrived = torch.zeros_like(rows)
    dist.all_to_all_single(arrived, rows)
    return arrived


@wrong("tokens_to_experts", "are enough")
def tokens_by_all_gather(rows):
    rank, n = here()
    every = [torch.zeros_like(rows) for _ in range(n)]
    dist.all_gather(every, rows)
    return torch.stack([table[rank] for table in every])
