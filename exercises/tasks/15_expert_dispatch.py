"""expert_dispatch(x, chosen, gate, w, dy): tokens go to the ranks of their experts and come back, and so do gradients.
dispatch_by_node(x, chosen, w, node): a token crosses to a node once, whatever experts it wants there.
"""

import torch

from helpers.exercise import Budget, Case, Measure, Suspect, Task

# --- to the experts' ranks ------------------------------------------------------------------

WIDTH = 8  # numbers of a token
FIRST, NOT_LAST, HOME = (
    "all want expert 0 most",
    "no token wants the last expert",
    "all want their own rank's expert most",
)
CASES = (
    Case(2, size=3),
    Case(2, FIRST, 4),
    Case(2, "fractions", 6, uneven=True),
    Case(3, size=5),
    Case(3, HOME, 3),
    Case(3, NOT_LAST, 4, late=0),
    Case(4, size=6),
    Case(4, FIRST, 5, late=3),
    Case(5, FIRST, 300, torch.float64),
    Case(6, "fractions", 6, torch.float64, uneven=True),
    Case(8, size=7),
    Case(7, NOT_LAST, 2, uneven=True),
    Case(1, size=4),
)


def draw(d):
    n, tokens = d.world_size, d.case.length(d.rank)
    scores = torch.rand(tokens, n, generator=d.own)
    if d.case.kind == FIRST:
        scores[:, 0] = 2.0
    elif d.case.kind == NOT_LAST:
        scores[:, -1] = -1.0
    elif d.case.kind == HOME:
        scores[:, d.rank] = 2.0
    chosen = scores.topk(min(2, n)).indices
    gate = (torch.randint(1, 8, chosen.shape, generator=d.own) / 8).to(d.case.dtype)
    return d.numbers(tokens, WIDTH), chosen, gate, d.numbers(WIDTH, WIDTH), d.numbers(tokens, WIDTH)


def computed(
    args,
    expert=lambda chosen, rank: chosen,
    keep=lambda chosen, rank: torch.ones_like(chosen),  # [tokens, choices]: whose results count
    matrix=lambda w: w,  # forward
    weight=lambda gate: gate,  # forward
    slope=lambda gate: gate,  # backward: what dy is multiplied by
    transposed=lambda w: w.T,  # backward
    dw=lambda parts, rank: sum(parts),  # from every rank's tokens' part of the gradient of a rank's w
):
    """Per rank y, dx, dgate, dw.  All but args: mistakes are made by others than these."""
    every = [[t.double() if t.is_floating_point() else t for t in mine] for mine in args]
    there, home = torch.stack([matrix(w) for *_, w, _ in every]), torch.stack([transposed(w) for *_, w, _ in every])
    made, parts = [], []
    for rank, (x, chosen, gate, _, dy) in enumerate(every):
        experts, counts = expert(chosen, rank), keep(chosen, rank)
        results = torch.einsum("td,tkde->tke", x, there[experts]) * counts[..., None]
        slopes = torch.einsum("tk,te->tke", slope(gate) * counts, dy)
        y, dgate = torch.einsum("tk,tke->te", weight(gate), results), torch.einsum("tke,te->tk", results, dy)
        made.append((y, torch.einsum("tke,tked->td", slopes, home[experts]), dgate))
        parts.append([torch.einsum("td,tke,tk->de", x, slopes, (experts == k).double()) for k in range(len(args))])
    dtype = args[0][0].dtype
    return [tuple(t.to(dtype) for t in (*mine, dw([of[rank] for of in parts], rank))) for rank, mine in enumerate(made)]


def reordered(args, order):
    """The rows of y and dx in a different order."""
    return [
        (y[order(chosen)], dx[order(chosen)], dgate, dw)
        for (y, dx, dgate, dw), (_, chosen, *_) in zip(computed(args), args)
    ]


def within(chosen, room):
    """Whether a choice is one of the first so many of its expert."""
    flat = chosen.flatten()
    before = [int((flat[:k] == expert).sum()) for k, expert in enumerate(flat)]
    return (torch.tensor(before, dtype=torch.int64) < room).view_as(chosen)


def first_only(chosen, rank):
    return (torch.arange(chosen.shape[1]) == 0).expand_as(chosen)


def budget(case, args):
    n = case.world_size
    wants = torch.stack([chosen.flatten().bincount(minlength=n) for _, chosen, *_ in args])  # [rank, expert]
    away = wants.sum(1) - wants.diagonal()
    visit = wants.sum(0) - wants.diagonal()
    limit = [8 * (n - 1) + 2 * WIDTH * case.dtype.itemsize * int(rows) for rows in away + visit]
    return Budget(
        "a number of 8 bytes to each other rank; for each choice that leaves its rank, the token there and its result back, "
        "and a gradient each way",
        limit,
        limit,
    )


def needs(case, args):
    """A row for each token whose result depends on another rank's expert; or such an expert, where it is smaller."""
    bytes_needed = []
    for rank, (_, chosen, *_) in enumerate(args):
        firsts = [next((e for e in row if e != rank), None) for row in chosen.tolist()]
        rows = sum(min(firsts.count(e), WIDTH) for e in range(case.world_size))
        bytes_needed.append(WIDTH * case.dtype.itemsize * rows)
    return bytes_needed


DISPATCH = Task(
    "expert_dispatch",
    CASES,
    draw,
    computed,
    budget,
    needs=needs,
    parameters=("x", "chosen", "gate", "w", "dy"),
    outputs=("y", "dx", "dgate", "dw"),
    scale=lambda args: max([1.0, *(float(t.abs().max()) for made in computed(args) for t in made if t.numel())]),
    suspects=(
        Suspect(
            lambda args: computed(args, expert=lambda chosen, rank: torch.full_like(chosen, rank)),
            "each rank used its own expert for all its tokens.",
        ),
        Suspect(
            lambda args: computed(args, expert=lambda chosen, rank: chosen.flatten().sort().values.view_as(chosen)),
            "the tokens left in their own order, and so came to the wrong experts. all_to_all cuts the tensor from "
            "top to bottom: first those for rank 0, then those for rank 1.",
        ),
        Suspect(
            lambda args: computed(args, keep=first_only),
            "only a token's first expert counts. Its row of `chosen` names two, and both results belong to y.",
        ),
        Suspect(
            lambda args: computed(args, keep=lambda chosen, rank: chosen == rank),
            "only what stayed on its rank has a result.",
        ),
        Suspect(
            lambda args: computed(args, keep=lambda chosen, rank: within(chosen, -(-chosen.numel() // len(args)))),
            "some choices have no result: those beyond an equal share for one expert. There's no capacity here, nothing is "
            "dropped.",
            where_wrong=True,
        ),
        Suspect(
            lambda args: computed(args, weight=torch.ones_like, slope=torch.ones_like),
            "the results are added without their gates, forward and backward.",
        ),
        Suspect(
            lambda args: computed(args, weight=torch.ones_like),
            "y adds the results without their gates.",
        ),
        Suspect(
            lambda args: computed(args, slope=torch.ones_like),
            "dx and dw forget the gate: y is gate times result, so the gradient of a result is gate times dy.",
        ),
        Suspect(
            lambda args: computed(args, transposed=lambda w: w),
            "dx isn't right: forward is token @ w, so backward is gradient @ w.T.",
        ),
        Suspect(
            lambda args: computed(args, matrix=lambda w: w.T, transposed=lambda w: w),
            "the expert's matrix is transposed. A token is a row: x @ w.",
        ),
        Suspect(
            lambda args: computed(args, dw=lambda parts, rank: parts[rank]),
            "dw has the part of this rank's own tokens alone. Tokens of other ranks have been to the expert too.",
        ),
        Suspect(
            lambda args: computed(args, dw=lambda parts, rank: sum(parts) / len(parts)),
            "dw is divided by the number of ranks. The loss here is the sum over ranks, not their mean.",
        ),
        Suspect(
            lambda args: reordered(args, lambda chosen: chosen[:, 0].argsort(stable=True)),
            "the rows are in the order in which the tokens traveled, by expert. Each belongs where its token was.",
        ),
    ),
    thoughts={
        "values": "follow one choice of one token: where is it after sorting, on which rank and in which row does it arrive, "
        "and which row of y does its result go to? Its gradients make the same trip. (Row j of what returns is choice "
        "order[j], of token order[j] // k.)",
        "sent": "what has to leave a rank? To every other rank a count; then for each choice a token there and a result "
        "back; then the same once more for the gradients. A second count isn't needed, and gates stay at home.",
        "received": "what has to reach a rank? From every other rank a count; then for each choice a token there and a result "
        "back; then the same once more for the gradients. A second count isn't needed, and gates stay at home.",
        "Mismatch": "how many rows come from each rank? Only that rank knows, so it has to say so first: one number to every "
        "rank, which takes bincount's `minlength`. On the way back the two lists of split sizes change places.",
        "Stuck": "does a rank that has no tokens, or gets none, make all the calls that the others make? Empty tensors are "
        "sent and multiplied like any others.",
        "RankFailed": "print the split sizes on each rank. The first list (output) adds up to the rows of what arrives, the "
        "second (input) to those of what leaves; on the way back they change places. (And with gloo, all_to_all takes lists "
        "of equal pieces only: unequal ones need all_to_all_single.)",
    },
)

# --- one copy per node ----------------------------------------------------------------------

NODES = {  # what a case says -> ranks of a node, and nodes among whose experts a token's are
    "nodes of 1": (1, None),
    "nodes of 2": (2, None),
    "nodes of 2, both experts in one node": (2, 1),
    "nodes of 3": (3, None),
    "nodes of 4": (4, None),
    "nodes of 4, both experts in one node": (4, 1),
    "one node": (None, None),
}
CHOSEN_BYTES = 16  # two integers of 8 bytes go with a token
COUNT_BYTES = 16  # for each pair of ranks of different nodes


def draw_nodes(d):
    n, tokens = d.world_size, d.case.length(d.rank)
    node, among = NODES[d.case.kind]
    node = node or n
    scores = torch.rand(tokens, n, generator=d.own)
    if among:
        home = torch.randint(0, n // node, (tokens, 1), generator=d.own)
        scores += torch.arange(n)[None] // node == home
    return d.numbers(tokens, WIDTH), scores.topk(min(2, n)).indices, d.numbers(WIDTH, WIDTH), node


def summed(args, keep=lambda chosen: torch.ones_like(chosen), matrix=lambda w: w, expert=lambda chosen, rank: chosen):
    """Per rank y, the sum of the results of a token's experts.  The options are mistakes."""
    experts, found = torch.stack([matrix(w.double()) for *_, w, _ in args]), []
    for rank, (x, chosen, _, _) in enumerate(args):
        results = torch.einsum("td,tkde->tke", x.double(), experts[expert(chosen, rank)])
        found.append((results * keep(chosen)[..., None]).sum(1).to(x.dtype))
    return found


def bytes_across(e, node):
    """The bytes of an event that go to ranks of other nodes."""
    away = [rank // node != e.rank // node for rank in e.group]
    if e.is_message:
        return e.nbytes * (e.op == "send" and e.dst // node != e.rank // node)
    if e.op.startswith("all_to_all"):
        if isinstance(e.before, list):
            parts = [part.nbytes for part in e.before]
        else:
            rows = e.shape[0] if e.shape else 0
            shares = e.splits[0] if e.splits and e.splits[0] else [rows / len(e.group)] * len(e.group)
            parts = [e.nbytes * share / rows if rows else 0 for share in shares]
        return sum(part for part, is_away in zip(parts, away) if is_away)
    return e.nbytes * sum(away)


def from_node(node):
    """A count, for each rank: the bytes that all ranks of its node send to other nodes."""

    def count(events):
        sent = [sum(bytes_across(e, node) for e in mine) for mine in events]
        return [sum(sent[rank - rank % node : rank - rank % node + node]) for rank in range(len(sent))]

    return count


ACROSS = "bytes that its node sends to other nodes"


def budget_of_nodes(case, args):
    n, node = case.world_size, args[0][3]
    nodes, row = n // node, WIDTH * case.dtype.itemsize
    crossing = torch.zeros(nodes, nodes, dtype=torch.int64)  # copies of tokens, from node to node
    for rank, (_, chosen, *_) in enumerate(args):
        wants = torch.zeros(len(chosen), nodes, dtype=torch.int64).scatter_(1, chosen // node, 1)
        crossing[rank // node] += wants.sum(0)
    crossing.fill_diagonal_(0)
    leave, visit = crossing.sum(1), crossing.sum(0)
    limit = [
        int(leave[k] * (row + CHOSEN_BYTES) + visit[k] * row) + COUNT_BYTES * node * (nodes - 1) for k in range(nodes)
    ]
    return Budget(
        "between nodes, a token and its two experts' numbers go to each node that has one of these, once; one row comes back, the sum of its "
        "results there; and 16 B for counts between two ranks. Inside a node, bytes aren't limited",
        measures=(Measure(ACROSS, from_node(node), [limit[rank // node] for rank in range(n)]),),
    )


BY_NODE = Task(
    "dispatch_by_node",
    (
        Case(2, "nodes of 1", 3),
        Case(4, "nodes of 2", 5),
        Case(4, "nodes of 2, both experts in one node", 6, late=3),
        Case(3, "nodes of 1", 4),
        Case(3, "one node", 3),
        Case(5, "one node", 4),
        Case(6, "nodes of 3", 6, torch.float64, uneven=True),
        Case(6, "nodes of 2", 5),
        Case(8, "nodes of 4, both experts in one node", 7),
        Case(8, "nodes of 2", 6, torch.float64, uneven=True),
        Case(7, "nodes of 1", 2, uneven=True),
        Case(1, "one node", 4),
    ),
    draw_nodes,
    summed,
    budget_of_nodes,
    needs=needs,
    after=None,
    parameters=("x", "chosen", "w", "node"),
    scale=lambda args: max([1.0, *(float(y.abs().max()) for y in summed(args) if y.numel())]),
    suspects=(
        Suspect(
            lambda args: summed(args, keep=lambda chosen: first_only(chosen, 0)),
            "only a token's first expert counts. Its row of `chosen` names two, and y is the sum of both results.",
        ),
        Suspect(
            lambda args: summed(args, expert=lambda chosen, rank: torch.full_like(chosen, rank)),
            "each rank used its own expert for all its tokens.",
        ),
        Suspect(
            lambda args: summed(args, matrix=lambda w: w.T),
            "the expert's matrix is transposed. A token is a row: x @ w.",
        ),
        Suspect(
            lambda args: [y / 2 for y in summed(args)], "y is the mean of the two results. It should be their sum."
        ),
    ),
    thoughts={
        "values": "follow one token with two experts in one other node: to which rank does it go first, to which two from there, where are "
        "their results added, and in which row of y does the sum end?",
        ACROSS: "a token whose two experts are in one node goes there once, to one rank, which passes it on inside the node. On the way back "
        "that rank adds the results up, and one row leaves the node.",
        "Mismatch": "how many rows come from each rank of a group? Only that rank knows, so it has to say so first. On the way back the two "
        "lists of split sizes change places.",
        "Stuck": "every rank makes every group, in the same order, and all members of a group make its calls, even without a token.",
        "RankFailed": "a group's ranks count from 0: split sizes are in the order of the group. And a node may get no token at all.",
    },
)
TASKS = (DISPATCH, BY_NODE)
