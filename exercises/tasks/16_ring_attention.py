"""ring_attention(q, k, v, document): attention within documents that are cut over the ranks, from messages in a ring."""

import torch

from helpers.exercise import Budget, Case, Suspect, Task

PLAIN, LARGE, BELOW = "scores around 1", "scores around 300", "scores just above -1000"
CASES = (
    Case(2, PLAIN, 2),
    Case(2, LARGE, 3),
    Case(3, PLAIN, 3),
    Case(3, BELOW, 2),
    Case(3, PLAIN, 1, late=2),
    Case(4, PLAIN, 2),
    Case(4, LARGE, 4, late=0),
    Case(4, BELOW, 3),
    Case(5, PLAIN, 3, torch.float64),
    Case(6, LARGE, 2),
    Case(8, PLAIN, 2),
    Case(7, LARGE, 1),
    Case(1, PLAIN, 4),
)


def draw(d):
    width = {6: 6, 7: 3}.get(d.world_size, 4)
    q, k, v = torch.randn(3, d.case.size, width, generator=d.own, dtype=torch.double)
    if d.case.kind == LARGE:
        q = 300 * q
    elif d.case.kind == BELOW:
        q, k = torch.full_like(q, 500 / width**0.5), 0.004 * torch.rand(k.shape, generator=d.own, dtype=k.dtype) - 2
    begins = torch.rand(d.world_size * d.case.size, generator=d.common) < 0.25
    document = begins.cumsum(0).chunk(d.world_size)[d.rank].clone()
    return *(t.to(d.case.dtype) for t in (q, k, v)), document


def scores(args, root=None):
    """[rank, hop, queries, keys] of every pair: hop h of rank r is the block of rank r - h."""
    n, root = len(args), root or args[0][0].shape[1] ** 0.5
    return [
        [args[rank][0].double() @ args[(rank - hop) % n][1].double().T / root for hop in range(n)] for rank in range(n)
    ]


def lower(c, diagonal=0):
    return torch.ones(c, c).tril(diagonal).bool()


def before(rank, hop, c):
    """Which keys of the block that is here at a hop are at a position of this rank's queries, or before it."""
    return lower(c) if hop == 0 else torch.full((c, c), hop <= rank)


def same(args, rank, hop):
    """Which of these keys are in the query's document."""
    return args[rank][3][:, None] == args[(rank - hop) % len(args)][3]


def mask(args, rank, hop):
    """Which keys of the block that is here at a hop the queries of a rank may see."""
    return before(rank, hop, len(args[rank][0])) & same(args, rank, hop)


def attention(args, seen=mask, hops=lambda rank, n: range(n), root=None):
    """What each rank returns.  seen, hops, root: mistakes are made by others than these."""
    n, made, all_scores = len(args), [], scores(args, root)
    for rank, (_, _, v, _) in enumerate(args):
        blocks = list(hops(rank, n))
        s = torch.cat([all_scores[rank][hop].masked_fill(~seen(args, rank, hop), -torch.inf) for hop in blocks], 1)
        values = torch.cat([args[(rank - hop) % n][2].double() for hop in blocks])
        made.append((s.softmax(-1).nan_to_num() @ values).to(v.dtype))  # a query that sees nothing gets 0
    return made


def reference(args):
    return attention(args)


def averaged(args):
    """The mean of what each block gives by itself, over the blocks that a query sees something of."""
    n, made, all_scores = len(args), [], scores(args)
    for rank, (_, _, v, _) in enumerate(args):
        total, count = 0.0, 0.0
        for hop in range(rank + 1):
            seen = mask(args, rank, hop)
            s = all_scores[rank][hop].masked_fill(~seen, -torch.inf)
            total = total + s.softmax(-1).nan_to_num() @ args[(rank - hop) % n][2].double()
            count = count + seen.any(-1, keepdim=True)
        made.append((total / count).to(v.dtype))
    return made


def not_rescaled(args):
    """As if the running maximum changed and what was summed up before kept its old one."""
    n, made, all_scores = len(args), [], scores(args)
    for rank, (q, _, v, _) in enumerate(args):
        top, total, mean = torch.full((len(q), 1), -torch.inf, dtype=torch.double), 0.0, 0.0
        for hop in range(rank + 1):
            s = all_scores[rank][hop].masked_fill(~mask(args, rank, hop), -torch.inf)
            top = torch.maximum(top, s.amax(-1, keepdim=True))
            e = (s - top).exp()
            total, mean = total + e.sum(-1, keepdim=True), mean + e @ args[(rank - hop) % n][2].double()
        made.append((mean / total).to(v.dtype))
    return made


def scale(args):
    largest = max(float(s.abs().max()) for mine in scores(args) for s in mine)
    return max(1.0, largest) * max(1.0, *(float(v.abs().max()) for _, _, v, _ in args))


def budget(case, args):
    n, (_, k, v, document) = case.world_size, args[0]
    block = k.nbytes + v.nbytes + document.nbytes
    return Budget(
        "N-1 times the bytes of a block of keys, values and documents sent by a rank, to its neighbors only, in 3(N-1) "
        "messages and as many steps, none larger than such a block",
        [(n - 1) * block] * n,
        [(n - 1) * block] * n,
        [3 * (n - 1)] * n,
        largest=[block] * n,
        steps=3 * (n - 1),
        links={(r, (r + way) % n) for r in range(n) for way in (1, -1)},
    )


def mistake(thought, where_wrong=False, **options):
    return Suspect(lambda args: attention(args, **options), thought, where_wrong)


def needs(case, args):
    """For the queries of the document that reaches into a rank's block, a row each; or one for each key before."""
    every = torch.cat([document for *_, document in args])
    needed = []
    for rank, (_, _, v, document) in enumerate(args):
        first = every[: rank * len(v)] == document[0]
        needed.append(v[0].nbytes * min(int((document == document[0]).sum()), int(first.sum())))
    return needed


TASK = Task(
    "ring_attention",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    allowed=frozenset({"send", "recv"}),
    scale=scale,
    parameters=("q", "k", "v", "document"),
    suspects=(
        mistake(
            "all positions see all others. A position may see itself and those before it in its document, and nothing else.",
            seen=lambda args, rank, hop: torch.ones_like(same(args, rank, hop)),
        ),
        mistake(
            "the documents don't count: a position sees every position before it, in other documents too.",
            seen=lambda args, rank, hop: before(rank, hop, len(args[rank][0])),
        ),
        mistake(
            "a position sees all of its document, what comes after it too.",
            seen=same,
        ),
        mistake(
            "in its own block, a position sees what comes after it. Other blocks are taken whole or not at all, and one's own "
            "needs a mask.",
            seen=lambda args, rank, hop: (before(rank, hop, len(args[rank][0])) | (hop == 0)) & same(args, rank, hop),
        ),
        mistake(
            "the blocks of later ranks count too. After hop h you hold the block of rank - h: where it wrapped around, all of it "
            "comes after you.",
            seen=lambda args, rank, hop: (lower(len(args[rank][0])) | (hop > 0)) & same(args, rank, hop),
        ),
        mistake(
            "the keys that came from another rank are taken to be in the documents of this rank's own positions. Which "
            "documents theirs are in, only their rank knows: it has to travel too.",
            seen=lambda args, rank, hop: before(rank, hop, len(args[rank][0])) & same(args, rank, 0),
        ),
        mistake(
            "each rank has seen its own block only. The others' keys and values still have to come around.",
            hops=lambda rank, n: [0],
        ),
        mistake(
            "every block is masked like the rank's own. All of a block from further left comes before, and of one from "
            "further right nothing does.",
            seen=lambda args, rank, hop: lower(len(args[rank][0])) & same(args, rank, hop),
        ),
        mistake(
            "a position doesn't see itself. The diagonal belongs to what is seen.",
            seen=lambda args, rank, hop: (
                mask(args, rank, hop) if hop else lower(len(args[rank][0]), -1) & same(args, rank, hop)
            ),
        ),
        mistake(
            "the last block to arrive is missing. How many hops until every block was everywhere?",
            hops=lambda rank, n: range(max(1, n - 1)),
        ),
        mistake(
            "the block of a hop is taken for a different rank's. What comes from the left started on rank - hop.",
            seen=lambda args, rank, hop: (
                mask(args, rank, 0)
                if hop == 0
                else torch.full_like(same(args, rank, hop), (rank + hop) % len(args) < rank) & same(args, rank, hop)
            ),
            where_wrong=True,
        ),
        mistake("the scores are not divided by the square root of the width.", root=1.0),
        Suspect(
            lambda args: attention(args, root=len(args[0][0]) ** 0.5),
            "the scores are divided by the square root of the number of positions. Which size of q is the width?",
        ),
        Suspect(
            averaged,
            "every block counts the same. A block with larger scores weighs more: by its sum of exp(score).",
        ),
        Suspect(
            not_rescaled,
            "the maximum grew, and what was summed up before still belongs to the old one. Multiply it by exp(old - new).",
        ),
    ),
    thoughts={
        "values": "take rank 1 of two: which keys may its first query see, and which of them are in its document? Are the parts "
        "merged by their sums of exp(score), with one maximum for all? Where a query sees nothing of a block, its lse is -inf: "
        "is that subtracted from itself? Is anything divided by 0, or exp of a number above 88?",
        "calls": "build it from send and recv (isend, irecv, batch_isend_irecv). An all_gather would hold all blocks at once.",
        "sent": "after N-1 hops every block was on every rank. What is the last send for? And do queries have to travel?",
        "received": "after N-1 hops every block was on every rank. What is the last receive for? And do queries have to travel?",
        "messages": "a hop needs no more than one message each for keys, values and documents.",
        "largest": "one block at a time.",
        "steps": "all ranks can send in the same step. Which of your calls waits for another rank's turn? See batch_isend_irecv.",
        "links": "in a ring, rank r sends to (r + 1) % N and receives from (r - 1) % N.",
        "Stuck": "who receives first? If every rank sends first, none receives. Start both, then wait for both.",
        "Mismatch": "a received block may be used after wait() only, and so may the buffer of a send be written to.",
        "RankFailed": "does it work for one rank, which has no neighbors, and for a block of one position? Documents are int64, and so is "
        "the tensor that receives them.",
    },
)
