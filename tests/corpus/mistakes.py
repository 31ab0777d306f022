"""Mistakes that can be made inside a rank function, one function each.

Each row: an id, the mistake in a reader's words, the error that run() must end with, a pattern
that its first line matches, and the program.  Programs take (rank, n) and work for n from 2 to 8; rank 1
(or the last) is the one that errs, unless the mistake is everybody's.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Callable, NamedTuple

import torch
import torch.distributed as dist

from helpers import Mismatch, RankFailed, RunError, Stuck


class Mistake(NamedTuple):
    id: str
    what: str  # in a reader's words
    error: type[RunError]
    words: str  # a regular expression for the first line of the verdict
    program: Callable[[int, int], object]


MISTAKES: list[Mistake] = []


def mistake(what: str, error: type[RunError], words: str):
    def add(program):
        MISTAKES.append(Mistake(program.__name__, what, error, words, program))
        return program

    return add


def ones(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype)


# --- shapes and sizes ---------------------------------------------------------------------


@mistake("all_reduce of 4 numbers on one rank, 3 on the others", Mismatch, "on the shape of .* in call #1")
def all_reduce_other_size(r, n):
    dist.all_reduce(ones(4 if r == 1 else 3))


@mistake("all_reduce of (2, 3) on one rank, (3, 2) on the others", Mismatch, "on the shape of .* in call #1")
def all_reduce_other_shape(r, n):
    dist.all_reduce(ones(2, 3) if r == 1 else ones(3, 2))


@mistake("one rank passes an empty tensor", Mismatch, "on the shape of")
def all_reduce_empty(r, n):
    dist.all_reduce(ones(0 if r == 1 else 3))


@mistake("all_reduce of 1001 numbers on one rank, 1000 on the others", Mismatch, "on the shape of")
def all_reduce_one_more(r, n):
    dist.all_reduce(ones(1001 if r == 1 else 1000))


@mistake("broadcast into a buffer that is too small", Mismatch, "on the shape of")
def broadcast_too_small(r, n):
    dist.broadcast(ones(3 if r == 1 else 4), src=0)


@mistake("broadcast into a buffer that is too large", Mismatch, "on the shape of")
def broadcast_too_large(r, n):
    dist.broadcast(ones(4 if r == 1 else 3), src=0)


@mistake("all_gather of tensors of different sizes", Mismatch, "on the shape of")
def all_gather_uneven(r, n):
    dist.all_gather([ones(k + 1) for k in range(n)], ones(r + 1))


@mistake("gather, where one rank sends less", Mismatch, "on the shape of")
def gather_less(r, n):
    dist.gather(ones(2 if r == 1 else 3), [ones(3) for _ in range(n)] if r == 0 else None, dst=0)


@mistake("scatter into a buffer that is too large", Mismatch, "on the shape of")
def scatter_too_large(r, n):
    dist.scatter(ones(4 if r == 1 else 3), [ones(3) for _ in range(n)] if r == 0 else None, src=0)


@mistake("scatter of a list that is too short", RankFailed, "rank 0 raised")
def scatter_short_list(r, n):
    dist.scatter(ones(3), [ones(3) for _ in range(n - 1)] if r == 0 else None, src=0)


@mistake("reduce_scatter of a size that does not divide", RankFailed, "ranks .* raised")
def reduce_scatter_indivisible(r, n):
    dist.reduce_scatter_single(ones(2), ones(2 * n + 1))


@mistake("all_to_all whose split sizes disagree", Mismatch, "on the split sizes of")
def all_to_all_splits(r, n):
    splits = [1] * n
    if r == 1:
        splits[0], splits[1] = 2, 0
    dist.all_to_all_single(ones(n), ones(n), output_split_sizes=[1] * n, input_split_sizes=splits)


@mistake("all_to_all of a length that does not divide", Mismatch, "a number of rows that isn't a multiple")
def all_to_all_remainder(r, n):
    dist.all_to_all_single(torch.empty(2 * n + 1), ones(2 * n + 1))


@mistake("recv into a buffer that is too small", Mismatch, "rank 0 .* rank 1 disagree on the size")
def recv_too_small(r, n):
    if r == 0:
        dist.send(ones(3), 1)
    elif r == 1:
        dist.recv(ones(2), 0)


@mistake("recv into a buffer that is too large", Mismatch, "disagree on the size")
def recv_too_large(r, n):
    if r == 0:
        dist.send(ones(2), 1)
    elif r == 1:
        dist.recv(ones(3), 0)


@mistake("broadcast_object_list with lists of different lengths", Mismatch, "on the shape of")
def objects_other_length(r, n):
    dist.broadcast_object_list([1, 2] if r == 0 else [None], src=0)


# --- dtypes -------------------------------------------------------------------------------


@mistake("all_reduce of float32 on one rank, int32 on the others", Mismatch, "on the dtype of")
def all_reduce_float_int(r, n):
    dist.all_reduce(ones(3, dtype=torch.float32 if r == 1 else torch.int32))


@mistake("all_reduce of float16 on one rank, bfloat16 on the others", Mismatch, "on the dtype of")
def all_reduce_half_bfloat(r, n):
    dist.all_reduce(ones(3, dtype=torch.float16 if r == 1 else torch.bfloat16))


@mistake("broadcast of float32 into a float64 buffer", Mismatch, "on the dtype of")
def broadcast_other_dtype(r, n):
    dist.broadcast(ones(3, dtype=torch.float64 if r == 1 else torch.float32), src=0)


@mistake("all_gather, each rank a different dtype", Mismatch, "on the dtype of")
def all_gather_other_dtype(r, n):
    dtype = torch.int32 if r == 1 else torch.float32
    dist.all_gather([ones(2, dtype=dtype) for _ in range(n)], ones(2, dtype=dtype))


@mistake("send of float32 received as int32", Mismatch, "disagree on the dtype")
def recv_other_dtype(r, n):
    if r == 0:
        dist.send(ones(2), 1)
    elif r == 1:
        dist.recv(ones(2, dtype=torch.int32), 0)


@mistake("all_gather of integers into a list of floats", RankFailed, "ranks .* raised ValueError")
def all_gather_list_dtype(r, n):
    dist.all_gather([torch.zeros(1) for _ in range(n)], torch.tensor([r]))


# --- order, roots, groups -----------------------------------------------------------------


@mistake("SUM on one rank, MAX on the others", Mismatch, "on the reduce op of")
def other_reduce_op(r, n):
    dist.all_reduce(ones(2), op=dist.ReduceOp.SUM if r == 1 else dist.ReduceOp.MAX)


@mistake("two all_reduces in a different order on one rank", Mismatch, "calls #1 and #2 in different orders")
def swapped_calls(r, n):
    a, b = ones(2), ones(2)
    if r == 1:
        second(b)
        first(a)
    else:
        first(a)
        second(b)


def first(x):
    dist.all_reduce(x)


def second(x):
    dist.all_reduce(x)


@mistake("all_reduce on one rank, broadcast on the others", Mismatch, "on which collective")
def other_collective(r, n):
    if r == 1:
        dist.all_reduce(ones(2))
    else:
        dist.broadcast(ones(2), src=0)


@mistake("one rank makes one call fewer", Stuck, "rank 1 returned after 2 calls")
def one_call_fewer(r, n):
    for _ in range(2 if r == 1 else 3):
        dist.all_reduce(ones(2))


@mistake("one rank never calls all_reduce", Stuck, "rank 1 returned before any call")
def missing_all_reduce(r, n):
    if r != 1:
        dist.all_reduce(ones(2))


@mistake("one rank never calls barrier", Stuck, "rank 1 returned before any call")
def missing_barrier(r, n):
    if r != 1:
        dist.barrier()


@mistake("only the root calls reduce", Stuck, "rank 0 is waiting in reduce #1")
def only_root_reduces(r, n):
    if r == 0:
        dist.reduce(ones(1), dst=0)


@mistake("the source never calls broadcast", Stuck, "rank 0 returned before any call")
def missing_source(r, n):
    if r != 0:
        dist.broadcast(ones(1), src=0)


@mistake("one rank never joins a gather", Stuck, "rank 0 is waiting in gather #1")
def missing_gather(r, n):
    if r != 1:
        dist.gather(ones(1), [ones(1) for _ in range(n)] if r == 0 else None, dst=0)


@mistake("ranks name different sources", Mismatch, "on the (src|dst)")
def other_source(r, n):
    dist.broadcast(ones(2), src=1 if r == 1 else 0)


@mistake("ranks name different targets", Mismatch, "on the (src|dst)")
def other_target(r, n):
    dist.reduce(ones(2), dst=1 if r == 1 else 0)


@mistake("a source that does not exist", RankFailed, "ranks .* raised")
def no_such_source(r, n):
    dist.broadcast(ones(2), src=n)


@mistake("no source given", RankFailed, "ranks .* raised ValueError: Must specify")
def no_source(r, n):
    dist.broadcast(ones(2))


@mistake("src given as a rank of the group instead of a global one", RankFailed, "raised ValueError")
def group_rank_as_source(r, n):
    group = dist.new_group([1])
    if r == 1:
        dist.broadcast(ones(1), src=0, group=group)


@mistake("new_group not called in the same order", Mismatch, "ranks make different groups in call #1 of new_group")
def groups_in_other_order(r, n):
    if r == 1:
        dist.new_group([0])
        dist.new_group([0, 1])
    else:
        dist.new_group([0, 1])
        dist.new_group([0])


@mistake("two groups used in a different order", Stuck, "ranks 0 and 1 are waiting in all_reduce #1.* never finish")
def crossed_groups(r, n):
    a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
    if r == 0:
        dist.all_reduce(ones(1), group=a)
        dist.all_reduce(ones(1), group=b)
    elif r == 1:
        dist.all_reduce(ones(1), group=b)
        dist.all_reduce(ones(1), group=a)


@mistake("a result taken from a call that returns None", RankFailed, "ranks .* raised TypeError")
def none_as_result(r, n):
    loss = dist.all_reduce(ones(1))
    return loss / n


# --- messages -----------------------------------------------------------------------------


@mistake("every rank sends first", Stuck, "rank 0 is waiting in send #1 to 1")
def send_first(r, n):
    dist.send(ones(1), (r + 1) % n)
    dist.recv(ones(1), (r - 1) % n)


@mistake("every rank receives first", Stuck, "rank 0 is waiting in recv #1 from")
def recv_first(r, n):
    dist.recv(ones(1), (r - 1) % n)
    dist.send(ones(1), (r + 1) % n)


@mistake("a different tag on the receiving side", Stuck, "rank 0 is waiting in send #1 to 1")
def other_tag(r, n):
    if r == 0:
        dist.send(ones(1), 1, tag=1)
    elif r == 1:
        dist.recv(ones(1), 0, tag=2)


@mistake("a send to oneself", RankFailed, "rank 1 raised ValueError")
def send_to_self(r, n):
    if r == 1:
        dist.send(ones(1), 1)


# --- tensors ------------------------------------------------------------------------------


@mistake("all_reduce of every other number of a tensor", Mismatch, "ranks .* give all_reduce #1 a view with gaps")
def strided_all_reduce(r, n):
    dist.all_reduce(torch.arange(8.0)[::2])


@mistake("broadcast of a column", Mismatch, "broadcast #1 a view with gaps")
def column_broadcast(r, n):
    dist.broadcast(ones(3, 3)[:, 0], src=0)


@mistake("reduce of a column", Mismatch, "reduce #1 a view with gaps")
def column_reduce(r, n):
    dist.reduce(ones(3, 3)[:, 0], dst=0)


@mistake("scatter into a column", Mismatch, "scatter #1 a view with gaps")
def column_scatter(r, n):
    dist.scatter(ones(3, 3)[:, 0], [ones(3) for _ in range(n)] if r == 0 else None, src=0)


@mistake("reduce_scatter into a column", Mismatch, "reduce_scatter #1 a view with gaps")
def column_reduce_scatter(r, n):
    dist.reduce_scatter(ones(3, 3)[:, 0], [ones(3) for _ in range(n)])


@mistake("all_to_all_single into every other number", Mismatch, "all_to_all_single #1 a view with gaps")
def strided_all_to_all(r, n):
    dist.all_to_all_single(ones(2 * n)[::2], ones(n))


@mistake("a strided send", RankFailed, "rank 0 raised")
def strided_send(r, n):
    if r == 0:
        dist.send(torch.zeros(4)[::2], 1)
    elif r == 1:
        dist.recv(ones(2), 0)


@mistake("one rank's matrix is transposed", Mismatch, "on the layout of")
def transposed(r, n):
    x = torch.arange(4.0).reshape(2, 2)
    dist.all_reduce(x.t() if r == 1 else x)


@mistake("all_gather into [t] * n", Mismatch, "all_gather #1 a list that holds the same memory")
def aliased_list(r, n):
    dist.all_gather([torch.zeros(1)] * n, ones(1))


@mistake("the result read before wait", Mismatch, "read the tensor of all_reduce #1 before")
def read_before_wait(r, n):
    x = ones(1)
    work = dist.all_reduce(x, async_op=True)
    total = x.item()
    work.wait()
    return total


@mistake("a result that nobody waits for is returned", Mismatch, "return the tensor of all_reduce #1 without waiting")
def returned_before_wait(r, n):
    x = ones(2)
    dist.all_reduce(x, async_op=True)
    return x


@mistake("the tensor changed before wait", Mismatch, "rank 1 writes to the tensor of all_reduce #1 before")
def write_before_wait(r, n):
    x = ones(1)
    work = dist.all_reduce(x, async_op=True)
    if r == 1:
        x.zero_()
    work.wait()


@mistake("a send buffer used again before wait", Mismatch, "writes? to the tensor of send #1 before")
def reuse_before_wait(r, n):
    x = ones(1)
    if r == 0:
        work = dist.isend(x, 1)
        x.fill_(7)
        work.wait()
    elif r == 1:
        dist.recv(x, 0)


@mistake("the received tensor used before wait", Mismatch, "rank 1 reads the tensor of recv #1 before")
def use_before_received(r, n):
    x = ones(1)
    if r == 0:
        dist.send(x, 1)
    elif r == 1:
        work = dist.irecv(x, 0)
        y = x + 1
        work.wait()
        return y


# --- a rank that goes away ----------------------------------------------------------------


@mistake("one rank raises, the others wait for it", RankFailed, "rank 1 raised ValueError: bad batch")
def raises(r, n):
    if r == 1:
        raise ValueError("bad batch")
    dist.all_reduce(ones(1))


@mistake("one rank exits, the others wait for it", RankFailed, "rank 1 raised SystemExit")
def exits(r, n):
    if r == 1:
        raise SystemExit(1)
    dist.all_reduce(ones(1))


@mistake("monitored_barrier on one rank, barrier on the others", Mismatch, "on which collective")
def monitored(r, n):
    if r == 0:
        dist.monitored_barrier(timeout=timedelta(seconds=0.5))
    else:
        dist.barrier()
