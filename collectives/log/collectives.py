"""Every collective: its root, its input and output, the data that must travel, in words and as a call.

The one table from which traffic, bounds, bus bandwidth, pictures, proofs, checks and the grader's results follow.
Ranks import this module, so it imports nothing that draws; a sandbox may get its source alone, so it
imports nothing of this package; a page of the website has no torch, so only what makes a call imports that.
"""

from typing import Any, Callable, Iterable, Literal, NamedTuple

# The part of a rank's slots that a call takes or fills: one whole tensor, the rank's own slot of a row
# with a slot for every rank, or all of that row.
Shape = Literal["whole", "own", "all"]


class Least(NamedTuple):
    """The minimum that the busiest rank must send, or receive, in any algorithm, as a part of the whole buffer S.

    It is busbw's factor as well (nccl-tests, doc/PERFORMANCE.md).
    """

    formula: str
    parts: Callable[[int], int]  # for N ranks: how many N-ths of S
    source: str


_ONCE = Least("S", lambda n: n if n > 1 else 0, "each other rank has to get, or give, S once")
_OF_ROOT = Least("(N-1)/N S", lambda n: n - 1, "what the root lacks, or may not keep, must travel")
_OF_EACH = Least("(N-1)/N S", lambda n: n - 1, "what a rank lacks, or may not keep, must travel")
_TWICE = Least("2(N-1)/N S", lambda n: 2 * (n - 1), "Patarasuk & Yuan 2009, doi 10.1016/j.jpdc.2008.09.002")


# The ranks that a rank waits for on gloo, as places in the group.  root: None if it is outside of the group.


def all_ranks(me: int, root: int | None, n: int) -> Iterable[int]:
    return range(n)


def _star(me: int, root: int | None, n: int) -> Iterable[int]:
    """The root, which itself waits for everybody."""
    return range(n) if me == root else () if root is None else (root,)


def _chain(me: int, root: int | None, n: int) -> Iterable[int]:
    """gloo's sum of a chunk moves from the last rank down: it needs the ranks above, and the one below to receive."""
    return range(n) if me == root else (*range(max(0, me - 1), me), *range(me + 1, n))


def _tree(me: int, root: int | None, n: int) -> Iterable[int]:
    """Ancestors and children in the binomial tree by which gloo broadcasts."""
    if root is None:
        return ()
    at = (me - root) % n
    relatives = [at + (1 << k) for k in range(at.bit_length(), n.bit_length()) if at + (1 << k) < n]
    while at:
        at -= 1 << at.bit_length() - 1
        relatives.append(at)
    return [(place + root) % n for place in relatives]


class Collective(NamedTuple):
    op: str  # torch.distributed's name, without the form its tensors take
    root: Literal["src", "dst"] | None  # the argument that names the root
    reduces: bool
    gives: Shape | None  # each rank's input; None: no tensor
    gets: Shape | None  # what each rank is left with
    least: Least | None  # None: no tensor
    gloo: Callable[[int, int | None, int], Iterable[int]]  # (me, root, n): the ranks that a rank waits for on gloo
    # (given, me, root, total): the result of the rank at the place `me`, None if nothing is defined there.  given:
    # the input of each rank of the group, see `given`; root: a place, too; total: the reduction of several values.
    result: Callable[[list, int, int | None, Callable[[list], Any]], Any]
    dual: str | None  # the collective that is its backward pass
    says: str  # its effect, in a few words
    promise: str  # a sentence with {src}, {dst}, {reduce_op}
    proved: str  # the statement of a proof, with {root}
    signature: str
    needs: str  # who brings what, in words
    leaves: str  # the outcome, in words: each rank's data
    use: str
    code: tuple[str, ...]  # the call as one would write it, on x; with {root}, {reduce_op}, {dtype}, {size}
    also: tuple[str, ...] = ()  # the names of its other forms
    # The letters of their input and of their output: R, replicated; S, sharded; P, partial; "" if one rank alone has it.
    letters: tuple[str, str] = ("", "")

    def given(self, n: int, value: Callable[[int, int], Any]) -> list:
        """Each of n ranks' input, from a function of rank and slot: a list of n if its shape is "all"."""
        if self.gives == "all":
            return [[value(rank, slot) for slot in range(n)] for rank in range(n)]
        return [value(rank, rank if self.gives == "own" else 0) for rank in range(n)]

    @property
    def personal(self) -> bool:
        """Whether each rank has a separate chunk for each other rank."""
        return self.gives == self.gets == "all"

    @property
    def deals(self) -> bool:
        """Whether rank r gets the r-th chunk of one rank's input."""
        return self.gives == "all" and not self.reduces

    @property
    def together(self) -> bool:
        """Whether it ends on no rank before all have come to it; a broadcast may end on its root."""
        return bool(self.op) and self.gloo is all_ranks

    @property
    def in_place(self) -> bool:
        return self.gives == self.gets == "whole"


_TABLE = (
    Collective(
        "broadcast", "src", False, "whole", "whole", _ONCE, gloo=_tree, dual="reduce",
        result=lambda given, me, root, total: given[root],
        says="every rank gets what one has", signature="dist.broadcast(tensor, src)",
        promise="after a broadcast every rank holds what rank {src} had",
        proved="every rank has all of rank {root}'s buffer",
        needs="src: the data; the others: a buffer of the same shape", leaves="all: what src had",
        use="initial weights, settings, one rank's decisions",
        code=("dist.broadcast(x, src={root})",), letters=("", "R"),
    ),
    Collective(
        "scatter", "src", False, "all", "own", _OF_ROOT, gloo=_star, dual="gather",
        result=lambda given, me, root, total: given[root][me],
        says="one sends a part to each", signature="dist.scatter(tensor, scatter_list, src)",
        promise="scatter gives rank r the r-th of rank {src}'s list",
        proved="every rank has its piece of rank {root}'s buffer",
        needs="src: a list of N equal tensors; all: a buffer for one", leaves="rank r: the r-th of the list",
        use="equal parts (usually each rank reads its own data)",
        code=(
            "chunks = list(x.chunk(world_size)) if rank == {root} else None",
            "mine = torch.zeros({size}, dtype=torch.{dtype})",
            "dist.scatter(mine, chunks, src={root})",
        ),
        letters=("", "S"),
    ),
    Collective(
        "gather", "dst", False, "own", "all", _OF_ROOT, gloo=_star, dual="scatter",
        result=lambda given, me, root, total: given if me == root else None,
        says="one collects a part from each", signature="dist.gather(tensor, gather_list, dst)",
        promise="gather gives rank {dst} the tensors of all ranks, in rank order",
        proved="rank {root} has every rank's piece",
        needs="all: a tensor; dst: a list of N buffers", leaves="dst: the tensors of all ranks, in a list",
        use="predictions, things to look at",
        code=(
            "parts = [torch.zeros_like(x) for _ in range(world_size)] if rank == {root} else None",
            "dist.gather(x, parts, dst={root})",
        ),
        also=("gather_single",), letters=("S", ""),
    ),
    Collective(
        "reduce", "dst", True, "whole", "whole", _ONCE, gloo=_chain, dual="broadcast",
        result=lambda given, me, root, total: total(given) if me == root else None,
        says="the ranks' sum, on one rank", signature="dist.reduce(tensor, dst, op)",
        promise="reduce leaves the {reduce_op} over all ranks on rank {dst}",
        proved="rank {root} has the sum of all ranks, every part exactly once",
        needs="all: a tensor", leaves="dst: the sum, in place; the others: undefined",
        use="metrics; a shard's gradients, to its owner (ZeRO 1, 2)",
        code=("dist.reduce(x, dst={root}, op=dist.ReduceOp.{reduce_op})",), letters=("P", ""),
    ),
    Collective(
        "all_gather", None, False, "own", "all", _OF_EACH, gloo=all_ranks, dual="reduce_scatter",
        result=lambda given, me, root, total: given,
        says="every rank collects a part from each", signature="dist.all_gather_single(output, input)",
        promise="all_gather gives every rank the tensors of all ranks, in rank order",
        proved="every rank has every rank's piece",
        needs="all: a tensor, and a buffer for N of them", leaves="all: the tensors of all ranks",
        use="parameters (ZeRO 3, FSDP), sequence parallelism",
        code=("y = torch.zeros(world_size * {size}, dtype=torch.{dtype})", "dist.all_gather_single(y, x)"),
        also=("all_gather_single", "all_gather_coalesced"), letters=("S", "R"),
    ),
    Collective(
        "all_reduce", None, True, "whole", "whole", _TWICE, gloo=all_ranks, dual="all_reduce",
        result=lambda given, me, root, total: total(given),
        says="the ranks' sum, on every rank", signature="dist.all_reduce(tensor, op)",
        promise="all_reduce leaves the {reduce_op} over all ranks on every rank",
        proved="every rank has the sum of all ranks, every part exactly once",
        needs="all: a tensor", leaves="all: the sum, in place",
        use="gradients (DDP), partial sums (tensor parallelism)",
        code=("dist.all_reduce(x, op=dist.ReduceOp.{reduce_op})",), also=("all_reduce_coalesced",), letters=("P", "R"),
    ),
    Collective(
        "reduce_scatter", None, True, "all", "own", _OF_EACH, gloo=all_ranks, dual="all_gather",
        result=lambda given, me, root, total: total([row[me] for row in given]),
        says="one part of the sum for each", signature="dist.reduce_scatter_single(output, input, op)",
        promise="reduce_scatter gives rank r the {reduce_op} of all ranks' r-th chunks",
        proved="every rank has its piece of the sum, every part exactly once",
        needs="all: N chunks, and a buffer for one", leaves="rank r: the sum of the r-th chunks",
        use="gradients (ZeRO 2 and 3, FSDP), sequence parallelism",
        code=(
            "mine = torch.zeros({size}, dtype=torch.{dtype})",
            "dist.reduce_scatter_single(mine, x, op=dist.ReduceOp.{reduce_op})",
        ),
        also=("reduce_scatter_single", "reduce_scatter_coalesced"), letters=("P", "S"),
    ),
    Collective(
        "all_to_all", None, False, "all", "all", _OF_EACH, gloo=all_ranks, dual="all_to_all",
        result=lambda given, me, root, total: [row[me] for row in given],
        says="every rank sends a part to each", signature="dist.all_to_all_single(output, input)",
        promise="all_to_all gives rank r the r-th chunk of every rank, in rank order",
        proved="every rank has from every rank the chunk meant for it",
        needs="all: N chunks, a buffer for N; split sizes if uneven", leaves="rank r: the r-th chunk of every rank",
        use="tokens to experts and back (mixture of experts)",
        code=("y = torch.zeros_like(x)", "dist.all_to_all_single(y, x)"), also=("all_to_all_single",),
        letters=("S(0)", "S(1)"),  # of the table of chunks, where row r is what rank r passes in
    ),
    Collective(
        "barrier", None, False, None, None, None, gloo=all_ranks, dual=None,
        result=lambda given, me, root, total: None,
        says="no rank continues before all arrive", signature="dist.barrier()",
        promise="after a barrier every rank has arrived", proved="",
        needs="nothing", leaves="all: every rank has arrived",
        use="waiting for a file that one rank writes; timing",
        code=("dist.barrier()",), also=("monitored_barrier",),
    ),
)  # fmt: skip
# Operations between two ranks, by the direction of the data; and those that need no call of the other rank.
SENDS, RECEIVES = ("send", "put", "signal"), ("recv", "get", "wait")
ONE_SIDED = ("put", "signal", "get")
ON_WINDOWS = (*ONE_SIDED, "wait")
COUNTERPART = {"send": "recv", "recv": "send", "wait": "signal"}  # the call of the other rank
COLLECTIVES = {row.op: row for row in _TABLE}
_BY_NAME = {name: row for row in _TABLE for name in (row.op, *row.also)}
# For a message, or an operator that is newer than this table: no name, no tensor, no promise.
_NO_COLLECTIVE = COLLECTIVES["barrier"]._replace(op="", also=(), says="", promise="", code=())


def of(op: str) -> Collective:
    """The collective that an op is a form of: all_gather for "all_gather_single"; one without a name for a message."""
    return _BY_NAME.get(op, _NO_COLLECTIVE)


def shapes(op: str) -> tuple[Shape | None, Shape | None]:
    """The shapes of a rank's input to an op, and of its output; (None, None) for an op not in the table."""
    return of(op).gives, of(op).gets


def least(op: str, world_size: int) -> float:
    """The part of the whole buffer S that the busiest of N ranks must send, or receive: 2 (N - 1) / N for all_reduce."""
    return of(op).least.parts(world_size) / world_size
