"""Answers to the short tasks of chapters 02 to 04, in the tables of practice.py."""

import torch
import torch.distributed as dist

from tests.corpus.practice import right, wrong


def me():
    return dist.get_rank(), dist.get_world_size()


def exchange(x, to, source):
    """What arrives when each rank starts to send and to receive before it waits."""
    rank, n = me()
    arrived = x.clone()
    if n > 1:
        receiving = dist.irecv(arrived, src=source % n)
        sending = dist.isend(x, dst=to % n)
        receiving.wait()
        sending.wait()
    return arrived


# --- 02 from_the_last ---------------------------------------------------------------------


@right("from_the_last")
def by_cases(x):
    rank, n = me()
    if rank == n - 1 != 0:
        dist.isend(x, 0).wait()
    if rank == 0 != n - 1:
        x = x.clone()
        dist.irecv(x, n - 1).wait()
    return x if rank == 0 else None


@wrong("from_the_last", "(?s)there is no rank(?!.*that's alone)")
def from_beyond_the_last(x):
    rank, n = me()
    y = torch.zeros_like(x)
    if rank == n - 1 > 0:
        dist.send(x, 0)
    if rank == 0 < n - 1:
        dist.recv(y, n)
    return (y if n > 1 else x) if rank == 0 else None


@wrong("from_the_last", "recv returns the number of the sender")
def returned_by_recv(x):
    rank, n = me()
    if rank == n - 1:
        dist.send(x, 0)
    elif rank == 0:
        return dist.recv(x.clone(), n - 1)


@wrong("from_the_last", "every send needs a recv")
def everyone_sends(x):
    rank, n = me()
    if rank:
        dist.send(x, 0)
    else:
        arrived = x.clone()
        dist.recv(arrived, n - 1)
        return arrived


@wrong("from_the_last", "its own buffer")
def into_x(x):
    rank, n = me()
    if rank == n - 1:
        dist.send(x, 0)
    elif rank == 0:
        dist.recv(x, n - 1)
        return x


# --- 02 swap_in_turn ----------------------------------------------------------------------


def swap(x, first):
    """The other's x; rank `first` sends first."""
    rank, theirs = dist.get_rank(), x.clone()
    for sends in [True, False] if rank == first else [False, True]:
        if rank < 2 <= dist.get_world_size():
            dist.send(x, 1 - rank) if sends else dist.recv(theirs, 1 - rank)
    return theirs


@right("swap_in_turn")
def rank_1_sends_first(x):
    return swap(x, 1)


@wrong("swap_in_turn", "Let one of them receive first, and then send")
def both_send_first(x):
    return swap(x, dist.get_rank())


@wrong("swap_in_turn", "Stuck")
def both_receive_first(x):
    return swap(x, None)


@wrong("swap_in_turn", "Does it exist")
def with_itself(x):
    theirs = x.clone()
    if dist.get_rank() == 0:
        dist.send(x, 1)
        dist.recv(theirs, 1)
    elif dist.get_rank() == 1:
        dist.recv(theirs, 0)
        dist.send(x, 0)
    return theirs


@wrong("swap_in_turn", "What do the other ranks return")
def the_two_alone(x):
    theirs = swap(x, 0)
    return theirs if dist.get_rank() < 2 else None


@wrong("swap_in_turn", "each rank still has its own numbers")
def into_a_lost_buffer(x):
    swap(x, 0)
    return x


@wrong("swap_in_turn", "its own buffer")
def received_into_x(x):
    rank = dist.get_rank()
    if rank == 0:
        dist.send(x, 1)
        dist.recv(x, 1)
    elif rank == 1:
        mine = x.clone()
        dist.recv(x, 0)
        dist.send(mine, 0)
    return x


@wrong("swap_in_turn", "rank 1 what rank 0 had")
def one_way(x):
    y = x.clone()
    if dist.get_rank() == 0:
        dist.send(x, 1)
    elif dist.get_rank() == 1:
        dist.recv(y, 0)
    return y


# --- 02 hand_over -------------------------------------------------------------------------


@right("hand_over")
def a_copy_is_sent(x):
    rank, n = me()
    mine = x.clone()
    x.zero_()
    return exchange(mine, rank + 1, rank - 1)


@wrong("hand_over", "until its wait|Wait first")
def emptied_too_early(x):
    rank, n = me()
    arrived = x.clone()
    sending = dist.isend(x, (rank + 1) % n)
    x.zero_()
    dist.recv(arrived, (rank - 1) % n)
    sending.wait()
    return arrived


@wrong("hand_over", "writes into the one that was passed in")
def never_emptied(x):
    rank, n = me()
    arrived = exchange(x, rank + 1, rank - 1)
    x = torch.zeros_like(x)
    return arrived


@wrong("hand_over", "a second name for the same tensor")
def emptied_by_its_other_name(x):
    rank, n = me()
    arrived = x if n == 1 else exchange(x, rank + 1, rank - 1)
    x.zero_()
    return arrived


@wrong("hand_over", r"dropped the handle of isend #1 .*wait\(\) for it\.\n(?!Think)")
def without_the_handle(x):
    rank, n = me()
    arrived = x.clone()
    if n > 1:
        dist.isend(x, (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
    x.zero_()
    return arrived


@wrong("hand_over", "is it x that's returned")
def its_own_zeros(x):
    exchange(x, dist.get_rank() + 1, dist.get_rank() - 1)
    return x.zero_()


@wrong("hand_over", "Start the send, then receive")
def all_send_first(x):
    rank, n = me()
    arrived = x.clone()
    dist.send(x, (rank + 1) % n)
    dist.recv(arrived, (rank - 1) % n)
    x.zero_()
    return arrived


# --- 02 pass_left -------------------------------------------------------------------------


@right("pass_left")
def irecv_and_isend(x, hops):
    rank, n = me()
    for _ in range(hops):
        x = exchange(x, rank - 1, rank + 1)
    return x


@wrong("pass_left", "came from the left")
def to_the_right(x, hops):
    rank, n = me()
    for _ in range(hops):
        x = exchange(x, rank + 1, rank - 1)
    return x


@wrong("pass_left", "What should a rank send in the second step")
def its_own_each_time(x, hops):
    rank, n = me()
    for _ in range(hops):
        arrived = exchange(x, rank - 1, rank + 1)
    return arrived


@wrong("pass_left", "goes to the left neighbor")
def in_one_leap(x, hops):
    rank, n = me()
    return exchange(x, rank - hops, rank + hops)


@wrong("pass_left", "start both before it waits")
def waits_at_once(x, hops):
    rank, n = me()
    arrived = x.clone()
    dist.isend(x, (rank - 1) % n).wait()
    dist.recv(arrived, (rank + 1) % n)
    return arrived


@wrong("pass_left", "start both before it waits|does it receive from there|in the second step")
def from_where_it_sends(x, hops):
    rank, n = me()
    return exchange(x, rank - 1, rank - 1)


@wrong("pass_left", "be in flight at once")
def even_ranks_first(x, hops):
    rank, n = me()
    for _ in range(hops):
        arrived = x.clone()
        for first in (rank % 2 == 0, rank % 2):
            if first:
                dist.send(x, (rank - 1) % n)
            else:
                dist.recv(arrived, (rank + 1) % n)
        x = arrived
    return x


# --- 02 running_total ---------------------------------------------------------------------


def chained(x, passed):
    """The total along the chain.  passed: x, what came, their sum -> what is sent on."""
    rank, n = me()
    before = torch.zeros_like(x)
    if rank > 0:
        dist.recv(before, rank - 1)
    if rank < n - 1:
        dist.send(passed(x, before, before + x), rank + 1)
    return before + x


@right("running_total")
def before_and_mine(x):
    return chained(x, lambda mine, before, total: total)


@wrong("running_total", "Which tensor should a rank pass on")
def passes_its_own(x):
    return chained(x, lambda mine, before, total: mine)


@wrong("running_total", "Where does a rank add its own")
def overwrites(x):
    rank, n = me()
    total = x.clone()
    if rank > 0:
        dist.recv(total, rank - 1)
    if rank < n - 1:
        dist.send(total, rank + 1)
    return total


@wrong("running_total", "receives from nobody")
def all_receive_first(x):
    rank, n = me()
    before = torch.zeros_like(x)
    dist.recv(before, (rank - 1) % n)
    dist.send(before + x, (rank + 1) % n)
    return before + x


# --- 03 from_owner ------------------------------------------------------------------------


@right("from_owner")
def empty_elsewhere(x, owner):
    y = x.clone() if dist.get_rank() == owner else torch.empty_like(x)
    dist.broadcast(y, owner)
    return y


@wrong("from_owner", "names? the same source|a rank's own number")
def itself_the_source(x, owner):
    y = x.clone()
    dist.broadcast(y, src=dist.get_rank())
    return y


@wrong("from_owner", "Pass it a copy")
def in_place(x, owner):
    dist.broadcast(x, owner)
    return x


@wrong("from_owner", "rank 0's numbers")
def always_zero(x, owner):
    y = x.clone()
    dist.broadcast(y, 0)
    return y


# --- 03 settings_for_all ------------------------------------------------------------------


@right("settings_for_all")
def gathered(settings, owner):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, settings)
    return found[owner]


@wrong("settings_for_all", "in the list that you passed")
def returns_what_it_got(settings, owner):
    dist.broadcast_object_list([settings], src=owner)
    return settings


@wrong("settings_for_all", "The settings are its element")
def returns_the_list(settings, owner):
    box = [settings]
    dist.broadcast_object_list(box, src=owner)
    return box


@wrong("settings_for_all", "Who is the source here")
def from_rank_0(settings, owner):
    box = [settings]
    dist.broadcast_object_list(box, src=0)
    return box[0]


@wrong("settings_for_all", "every rank passes a list")
def without_a_list(settings, owner):
    dist.broadcast_object_list(settings, src=owner)
    return settings


@wrong("settings_for_all", "if the owner's list held its settings before")
def an_empty_box(settings, owner):
    box = [None]
    dist.broadcast_object_list(box, src=owner)
    return box[0]


@wrong("settings_for_all", "every rank makes the call")
def only_the_source(settings, owner):
    box = [settings]
    if settings:
        dist.broadcast_object_list(box, src=owner)
    return box[0]


# --- 03 same_state ------------------------------------------------------------------------


@right("same_state")
def started_together(tensors):
    for work in [dist.broadcast(tensor, src=0, async_op=True) for tensor in tensors]:
        work.wait()


@wrong("same_state", "A counter is part of the model too")
def floats_only(tensors):
    for tensor in tensors:
        if tensor.is_floating_point():
            dist.broadcast(tensor, src=0)


@wrong("same_state", r"`xs\[k\] = ...` or `torch.cat` makes is a new one")
def replaced_in_the_list(tensors):
    for k, tensor in enumerate(tensors):
        tensors[k] = tensor.clone()
        dist.broadcast(tensors[k], src=0)


@wrong("same_state", "on this rank, the tensor should stay as it was")
def averaged_state(tensors):
    for tensor in tensors:
        if tensor.is_floating_point():
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        else:
            dist.broadcast(tensor, src=0)


@wrong("same_state", "rounded on its way")
def in_one_tensor(tensors):
    flat = torch.cat([tensor.flatten().float() for tensor in tensors])
    dist.broadcast(flat, src=0)
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
        tensor.copy_(part.view_as(tensor))


@wrong("same_state", "nothing needs to be divided")
def averaged_state(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)


@wrong("same_state", "equally many calls")
def stops_at_integers(tensors):
    for tensor in tensors:
        if dist.get_rank() and not tensor.is_floating_point():
            return
        dist.broadcast(tensor, src=0)


# --- 03 deal_cards ------------------------------------------------------------------------


@right("deal_cards")
def transposed(deck):
    hands = list(deck.view(-1, dist.get_world_size()).T.contiguous())
    mine = hands[0].clone()
    dist.scatter(mine, hands if dist.get_rank() == 0 else None, src=0)
    return mine


@wrong("deal_cards", "next to each other")
def neighbors(deck):
    hands = list(deck.chunk(dist.get_world_size()))
    mine = hands[0].clone()
    dist.scatter(mine, hands if dist.get_rank() == 0 else None, src=0)
    return mine


@wrong("deal_cards", "own next to each other")
def with_gaps(deck):
    n = dist.get_world_size()
    hands = [deck[r::n] for r in range(n)]
    mine = hands[0].clone()
    dist.scatter(mine, hands if dist.get_rank() == 0 else None, src=0)
    return mine


@wrong("deal_cards", "on rank 0 only")
def a_list_everywhere(deck):
    n = dist.get_world_size()
    hands = [deck[r::n].contiguous() for r in range(n)]
    mine = hands[0].clone()
    dist.scatter(mine, hands, src=0)
    return mine


@wrong("deal_cards", "Only rank 0's counts")
def without_a_call(deck):
    rank, n = me()
    return deck[rank::n].contiguous()


# --- 04 largest ---------------------------------------------------------------------------


@right("largest")
def started_first(x):
    rank, n = me()
    y = x.clone()
    dist.reduce(y, n - 1, op=dist.ReduceOp.MAX, async_op=True).wait()
    return y if rank == n - 1 else None


@wrong("largest", "one reduce is enough")
def all_of_them(x):
    y = x.clone()
    dist.all_reduce(y, op=dist.ReduceOp.MAX)
    rank, n = me()
    return y if rank == n - 1 else None


def reduced(x, dst, op=dist.ReduceOp.MAX):
    y = x.clone()
    dist.reduce(y, dst, op)
    return y if dist.get_rank() == dst else None


@wrong("largest", "all ranks must name the same dst")
def each_its_own(x):
    return reduced(x, dist.get_rank())


@wrong("largest", "this is the sum")
def summed(x):
    return reduced(x, dist.get_world_size() - 1, dist.ReduceOp.SUM)


@wrong("largest", "The last rank wants it")
def on_rank_0(x):
    return reduced(x, 0)


@wrong("largest", "Give it a copy of x")
def in_x(x):
    rank, n = me()
    dist.reduce(x, n - 1, dist.ReduceOp.MAX)
    return x if rank == n - 1 else None


@wrong("largest", "the result is in its tensor")
def returned(x):
    return dist.reduce(x.clone(), dist.get_world_size() - 1, dist.ReduceOp.MAX)


# --- 04 as_matrix -------------------------------------------------------------------------


def rows_of(x):
    rank, n = me()
    rows = [torch.zeros_like(x) for _ in range(n)] if rank == 0 else None
    dist.gather(x, rows, dst=0)
    return rows


@right("as_matrix")
def views_of_a_matrix(x):
    rank, n = me()
    matrix = x.new_zeros(n, len(x)) if rank == 0 else None
    dist.gather(x, list(matrix) if rank == 0 else None, dst=0)
    return matrix


@wrong("as_matrix", "in one row")
def concatenated(x):
    rows = rows_of(x)
    return rows and torch.cat(rows)


@wrong("as_matrix", "the list that gather filled")
def the_list(x):
    return rows_of(x)


@wrong("as_matrix", "They should be in row r")
def columns(x):
    rows = rows_of(x)
    return rows and torch.stack(rows, dim=1)


@wrong("as_matrix", "every other rank None")
def lists_everywhere(x):
    rows = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
    dist.gather(x, rows, dst=0)
    return torch.stack(rows)


@wrong("as_matrix", "each with its own memory")
def one_buffer(x):
    rank, n = me()
    rows = [torch.zeros_like(x)] * n if rank == 0 else None
    dist.gather(x, rows, dst=0)
    return torch.stack(rows) if rank == 0 else None


# --- 04 add_bytes -------------------------------------------------------------------------


def sum_on_0(y):
    dist.reduce(y, 0)
    return y if dist.get_rank() == 0 else None


@right("add_bytes")
def by_all_reduce(x):
    y = x.to(torch.int64)
    dist.all_reduce(y)
    return y if dist.get_rank() == 0 else None


@wrong("add_bytes", "wrapped around at 256")
def converted_after(x):
    y = sum_on_0(x.clone())
    return None if y is None else y.long()


@wrong("add_bytes", "has no room for these sums")
def bytes_stay(x):
    return sum_on_0(x.clone())


@wrong("add_bytes", "this is one number")
def over_the_elements_too(x):
    return sum_on_0(x.long().sum())


@wrong("add_bytes", "rank 0's own bytes")
def into_another_tensor(x):
    sum_on_0(x.long())
    return x if dist.get_rank() == 0 else None


@wrong("add_bytes", "but not the dtype")
def as_floats(x):
    return sum_on_0(x.float())


# --- 04 nan_ranks -------------------------------------------------------------------------


@right("nan_ranks")
def flags_gathered(loss):
    rank, n = me()
    flags = [torch.zeros(1, dtype=torch.bool) for _ in range(n)] if rank == 0 else None
    dist.gather(loss.isnan(), flags, dst=0)
    return [rank for rank, flag in enumerate(flags) if flag] if flags else None


def flags_on_0(loss):
    flags = torch.zeros(dist.get_world_size())
    flags[dist.get_rank()] = float(loss.isnan())
    return sum_on_0(flags)


@wrong("nan_ranks", r"flatten\(\) makes one row")
def rows_of_indices(loss):
    flags = flags_on_0(loss)
    return None if flags is None else flags.nonzero().tolist()


@wrong("nan_ranks", "in a tensor. tolist")
def indices_in_a_tensor(loss):
    flags = flags_on_0(loss)
    return None if flags is None else flags.nonzero().flatten()


@wrong("nan_ranks", "Which ones")
def counted(loss):
    bad = loss.isnan().long()
    dist.reduce(bad, 0)
    return bad.item() if dist.get_rank() == 0 else None


@wrong("nan_ranks", "A NaN isn't equal to anything")
def compared(loss):
    rank, n = me()
    bad = torch.zeros(n)
    bad[rank] = loss.item() == float("nan")
    dist.reduce(bad, 0)
    return bad.nonzero().flatten().tolist() if rank == 0 else None


@wrong("nan_ranks", "only rank 0 should return")
def everywhere(loss):
    rank, n = me()
    bad = torch.zeros(n)
    bad[rank] = loss.isnan().any()
    dist.all_reduce(bad)
    return bad.nonzero().flatten().tolist()


@wrong("nan_ranks", "every rank makes the call")
def only_with_nan(loss):
    rank, n = me()
    bad = torch.zeros(n)
    bad[rank] = loss.isnan().any()
    if bad.any() or rank == 0:
        dist.reduce(bad, 0)
    return bad.nonzero().flatten().tolist() if rank == 0 else None
