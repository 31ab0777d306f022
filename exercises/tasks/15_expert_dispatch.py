"""expert_dispatch(x, chosen, w): tokens go to the ranks of their experts and come back."""

import torch

from helpers.exercise import Budget, Case, Suspect, Task

WIDTH = 8  # numbers of a token
FIRST, NOT_LAST, HOME = "all want expert 0", "nobody wants the last expert", "all want their own rank's expert"
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
    chosen = torch.randint(n, (tokens,), generator=d.own)
    if d.case.kind == FIRST:
        chosen = torch.zeros_like(chosen)
    elif d.case.kind == NOT_LAST:
        chosen = chosen % max(1, n - 1)
    elif d.case.kind == HOME:
        chosen = torch.full_like(chosen, d.rank)
    return d.numbers(tokens, WIDTH), chosen, d.numbers(WIDTH, WIDTH)


def computed(args, expert=lambda chosen, rank: chosen, matrix=lambda w: w):
    """Per rank, every token times the matrix of the expert that `expert` names."""
    experts = torch.stack([matrix(w).double() for _, _, w in args])
    made = []
    for rank, (x, chosen, _) in enumerate(args):
        y = torch.einsum("td,tde->te", x.double(), experts[expert(chosen, rank)])
        made.append(y.to(x.dtype))
    return made


def reordered(args, order):
    return [y[order(chosen)] for y, (_, chosen, _) in zip(computed(args), args)]


def kept(args, keeps):
    """The wanted results of those tokens that `keeps` names, zeros for the others."""
    return [y * keeps(mine[1], rank)[:, None] for rank, (y, mine) in enumerate(zip(computed(args), args))]


def within(chosen, places):
    """Whether a token is one of the first so many that want its expert."""
    before = [int((chosen[:k] == expert).sum()) for k, expert in enumerate(chosen)]
    return torch.tensor(before, dtype=torch.int64) < places


def by_expert(chosen):
    return chosen.argsort(stable=True)


def budget(case, args):
    n = case.world_size
    wants = torch.stack([chosen.bincount(minlength=n) for _, chosen, _ in args])  # [rank, expert]
    away = wants.sum(1) - wants.diagonal()
    visit = wants.sum(0) - wants.diagonal()
    limit = [8 * (n - 1) + WIDTH * case.dtype.itemsize * int(rows) for rows in away + visit]
    return Budget(
        "a number of 8 bytes to each other rank, each token once to its expert's rank, and each result once back",
        limit,
        limit,
    )


def needs(case, args):
    """The results of its tokens that other ranks' experts make; or such an expert, where it is smaller."""
    counts = [chosen[chosen != rank].bincount() for rank, (_, chosen, _) in enumerate(args)]
    return [WIDTH * case.dtype.itemsize * int(those.clamp(max=WIDTH).sum()) for those in counts]


TASK = Task(
    "expert_dispatch",
    CASES,
    draw,
    computed,
    budget,
    needs=needs,
    parameters=("x", "chosen", "w"),
    scale=lambda args: max([1.0, *(float(y.abs().max()) for y in computed(args) if y.numel())]),
    suspects=(
        Suspect(
            lambda args: reordered(args, by_expert),
            "the results are in the order in which the tokens travelled, by expert. Each belongs where its token was.",
        ),
        Suspect(
            lambda args: reordered(args, lambda chosen: by_expert(chosen)[by_expert(chosen)]),
            "the order is applied twice. It led from the old places to the new ones, and here the way back is wanted: "
            "y[order] = back, not back[order].",
        ),
        Suspect(
            lambda args: computed(args, lambda chosen, rank: chosen.sort().values),
            "the tokens left in their own order, and so came to the wrong experts. all_to_all cuts the tensor from "
            "top to bottom: first those for rank 0, then those for rank 1.",
        ),
        Suspect(
            lambda args: computed(args, lambda chosen, rank: torch.full_like(chosen, rank)),
            "each rank used its own expert for all its tokens.",
        ),
        Suspect(
            lambda args: [x for x, _, _ in args],
            "these are the tokens themselves. Who multiplies them?",
        ),
        Suspect(
            lambda args: kept(args, lambda chosen, rank: chosen == rank),
            "only the tokens that stayed on their rank have a result.",
        ),
        Suspect(
            lambda args: kept(args, lambda chosen, rank: within(chosen, -(-len(chosen) // len(args)))),
            "some tokens have no result: those beyond T / N for one expert. There is no capacity here, nothing is dropped.",
            where_wrong=True,
        ),
        Suspect(
            lambda args: computed(args, matrix=lambda w: w.T),
            "the expert's matrix is transposed. A token is a row: x @ w.",
        ),
    ),
    thoughts={
        "values": "follow one token: where does it stand after sorting, on which rank and at which place does it arrive, "
        "and where does its result come back to?",
        "sent": "what has to leave a rank? To every other rank a count, then the tokens for it, then the results of its tokens.",
        "received": "what has to reach a rank? A count from every other rank, then their tokens, then its own tokens' results.",
        "Mismatch": "how many rows come from each rank? Only that rank knows, so it has to say so first. On the way back the "
        "two lists of split sizes change places.",
        "Stuck": "does a rank that has no tokens, or gets none, make all the calls that the others make? Empty tensors are "
        "sent and multiplied like any others.",
        "RankFailed": "with gloo, all_to_all takes lists of equal pieces only, and unequal ones need all_to_all_single. "
        "If it is that: print the split sizes on each rank. The first list (output) adds up to the rows of what arrives, the "
        "second (input) to those of what leaves; on the way back they change places.",
    },
)
