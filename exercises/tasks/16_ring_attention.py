"""ring_attention(q, k, v): causal attention over a sequence that is cut over the ranks, from messages between neighbours."""

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
    return tuple(t.to(d.case.dtype) for t in (q, k, v))


def scores(args, root=None):
    """[rank, hop, queries, keys] of every pair: hop h of rank r is the block of rank r - h."""
    n, root = len(args), root or args[0][0].shape[1] ** 0.5
    return [
        [args[rank][0].double() @ args[(rank - hop) % n][1].double().T / root for hop in range(n)] for rank in range(n)
    ]


def lower(c, diagonal=0):
    return torch.ones(c, c).tril(diagonal).bool()


def mask(rank, hop, c, n):
    """Which keys of the block that is here at a hop the queries of a rank may see."""
    return lower(c) if hop == 0 else torch.full((c, c), hop <= rank)


def attention(args, seen=mask, hops=lambda rank, n: range(n), root=None):
    """What each rank returns.  seen, hops, root: mistakes are made by others than these."""
    n, made, all_scores = len(args), [], scores(args, root)
    for rank, (q, _, v) in enumerate(args):
        blocks = list(hops(rank, n))
        s = torch.cat([all_scores[rank][hop].masked_fill(~seen(rank, hop, len(q), n), -torch.inf) for hop in blocks], 1)
        values = torch.cat([args[(rank - hop) % n][2].double() for hop in blocks])
        made.append((s.softmax(-1) @ values).to(v.dtype))
    return made


def reference(args):
    return attention(args)


def averaged(args):
    """The mean of what each visible block gives by itself."""
    n, made, all_scores = len(args), [], scores(args)
    for rank, (q, _, v) in enumerate(args):
        parts = [
            all_scores[rank][hop].masked_fill(~mask(rank, hop, len(q), n), -torch.inf).softmax(-1)
            @ args[(rank - hop) % n][2].double()
            for hop in range(rank + 1)
        ]
        made.append((sum(parts) / len(parts)).to(v.dtype))
    return made


def not_rescaled(args):
    """As if the running maximum changed and what was summed up before kept its old one."""
    n, made, all_scores = len(args), [], scores(args)
    for rank, (q, _, v) in enumerate(args):
        top, total, mean = torch.full((len(q), 1), -torch.inf, dtype=torch.double), 0.0, 0.0
        for hop in range(rank + 1):
            s = all_scores[rank][hop].masked_fill(~mask(rank, hop, len(q), n), -torch.inf)
            top = torch.maximum(top, s.amax(-1, keepdim=True))
            e = (s - top).exp()
            total, mean = total + e.sum(-1, keepdim=True), mean + e @ args[(rank - hop) % n][2].double()
        made.append((mean / total).to(v.dtype))
    return made


def scale(args):
    largest = max(float(s.abs().max()) for mine in scores(args) for s in mine)
    return max(1.0, largest) * max(1.0, *(float(v.abs().max()) for _, _, v in args))


def budget(case, args):
    n, (_, k, v) = case.world_size, args[0]
    limit = [(n - 1) * (k.nbytes + v.nbytes)] * n
    return Budget(
        "N-1 times the bytes of a block of keys and values sent by a rank, to its neighbours only, in 2(N-1) messages and "
        "as many steps, none larger than such a block",
        limit,
        limit,
        [2 * (n - 1)] * n,
        largest=[k.nbytes + v.nbytes] * n,
        steps=2 * (n - 1),
        links={(r, (r + way) % n) for r in range(n) for way in (1, -1)},
    )


def mistake(thought, where_wrong=False, **options):
    return Suspect(lambda args: attention(args, **options), thought, where_wrong)


def needs(case, args):
    """As much as a result for each query, of the keys before this rank's; rank 0 has all of its own."""
    return [(rank > 0) * v.nbytes for rank, (_, _, v) in enumerate(args)]


TASK = Task(
    "ring_attention",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    allowed=frozenset({"send", "recv"}),
    scale=scale,
    parameters=("q", "k", "v"),
    suspects=(
        mistake(
            "all positions see all others. A position may see itself and those before it, and nothing after.",
            seen=lambda rank, hop, c, n: torch.ones(c, c).bool(),
        ),
        mistake(
            "each rank has seen its own block only. The others' keys and values still have to come round.",
            hops=lambda rank, n: [0],
        ),
        mistake(
            "every block is masked like the rank's own. A block from further left is seen as a whole, and one from "
            "further right not at all.",
            seen=lambda rank, hop, c, n: lower(c),
        ),
        mistake(
            "blocks of later positions are masked like the rank's own, where they should not be seen at all.",
            seen=lambda rank, hop, c, n: mask(rank, hop, c, n) if hop <= rank else lower(c),
        ),
        mistake(
            "the last block to arrive is missing. How many hops until every block was everywhere?",
            hops=lambda rank, n: range(max(1, n - 1)),
        ),
        mistake(
            "the block of a hop is taken for another rank's. What comes from the left started on rank - hop.",
            seen=lambda rank, hop, c, n: lower(c) if hop == 0 else torch.full((c, c), (rank + hop) % n < rank),
            where_wrong=True,
        ),
        mistake("the scores are not divided by the square root of the width.", root=1.0),
        Suspect(
            averaged,
            "each block's result counts alike. A block with larger scores weighs more: by its sum of exp(score).",
        ),
        Suspect(
            not_rescaled,
            "the maximum grew, and what was summed up before still belongs to the old one. Multiply it by exp(old - new).",
        ),
    ),
    thoughts={
        "values": "take rank 1 and two ranks: which keys may its first query see? Are the parts merged by their sums of "
        "exp(score), with one maximum for all? Is anything divided by 0, or exp of a number above 88?",
        "calls": "build it from send and recv (isend, irecv, batch_isend_irecv). An all_gather would hold all blocks at once.",
        "sent": "after N-1 hops every block was on every rank. What is the last send for? And do queries have to travel?",
        "received": "after N-1 hops every block was on every rank. What is the last receive for? And do queries have to travel?",
        "messages": "one message with keys and values a hop, or one of each.",
        "largest": "one block at a time.",
        "steps": "all ranks can send in the same step. Which of your calls waits for another rank's turn? See batch_isend_irecv.",
        "links": "in a ring, rank r sends to (r + 1) % N and receives from (r - 1) % N.",
        "Stuck": "who receives first? If everybody sends first, nobody receives. Start both, then wait for both.",
        "Mismatch": "a received block may be used after wait() only, and so may the buffer of a send be written to.",
        "RankFailed": "does it work for one rank, which has no neighbours, and for a block of one position?",
    },
)
