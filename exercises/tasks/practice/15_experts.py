"""route, send_to_experts, sums_with, balance_loss and next_bias: the pieces of a layer of experts."""

import torch

from helpers.exercise import Budget, Case, Suspect, Task, valued


def shares(tokens: int, experts: int) -> torch.Tensor:
    """A router's probabilities, [tokens, experts]."""
    return torch.randn(tokens, experts, generator=torch.Generator().manual_seed(tokens)).softmax(-1)


def route(probabilities, k):
    best, experts = probabilities.topk(k)
    return experts, best / best.sum(-1, keepdim=True)


def sums_with(name, rank, ep, n):
    return list(range(rank % ep, n, ep)) if "experts" in name else list(range(n))


def balance_loss(probabilities, tokens):
    return len(tokens) * (tokens / tokens.sum() * probabilities.mean(0)).sum()


def next_bias(bias, tokens, speed):
    return bias - speed * (tokens - tokens.double().mean()).sign().to(bias.dtype)


CASES = (
    Case(2, "spread", 4),
    Case(2, "all want rank 0", 3),
    Case(3, "spread", 5),
    Case(3, "nobody wants the last rank", 4),
    Case(4, "spread", 6),
    Case(5, "spread", 3, late=1),
    Case(6, "all want rank 0", 2),
    Case(7, "spread", 4),
    Case(8, "spread", 5),
    Case(1, "spread", 3),
)


def draw(d):
    size, n = d.case.size, d.world_size
    tokens = 100.0 * d.rank + torch.arange(size)
    most = {"all want rank 0": 1, "nobody wants the last rank": n - 1}.get(d.case.kind, n)
    return tokens, torch.randint(most, (size,), generator=d.own)


def arrived(args, order=lambda tokens: tokens):
    n = len(args)
    return [torch.cat([order(tokens[expert == rank]) for tokens, expert in args]) for rank in range(n)]


def arrives(args, rank):
    """Bytes of tokens that come to a rank from others."""
    return sum(4 * int((expert == rank).sum()) for r, (_, expert) in enumerate(args) if r != rank)


def leaves(args, rank):
    return 4 * int((args[rank][1] != rank).sum())


def budget(case, args):
    counts = 8 * (case.world_size - 1)
    sent, received = ([counts + each(args, rank) for rank in range(len(args))] for each in (leaves, arrives))
    return Budget("one count for each rank, and the tokens that leave", sent=sent, received=received)


def needs(case, args):
    return [arrives(args, rank) for rank in range(len(args))]


TASKS = (
    valued(
        "route",
        {
            "two of four": (shares(3, 4), 2),
            "one of four": (shares(2, 4), 1),
            "three of eight": (shares(5, 8), 3),
            "all of them": (shares(2, 3), 3),
        },
        route,
        suspects={
            lambda p, k: (p.topk(k)[1], p.topk(k)[0]): "these are shares of all experts. Whose weights must sum to 1?",
            lambda p, k: (p.topk(k)[1], p.topk(k)[0].softmax(-1)): "these are probabilities already: divide by their sum, and leave softmax to the router.",
            lambda p, k: tuple(reversed(route(p, k))): "the experts come first, then their weights.",
            lambda p, k: (p.sort()[1][:, -k:], p.topk(k)[0]): "best first.",
        },
        thought="topk gives values and indices. What do the values of a token sum to?",
    ),
    Task(
        "send_to_experts",
        CASES,
        draw,
        arrived,
        budget,
        parameters=("tokens", "expert"),
        needs=needs,
        suspects=(
            Suspect(lambda args: arrived(args, lambda tokens: tokens.flip(0)), "keep each sender's tokens in their order: argsort(stable=True)."),
            Suspect(lambda args: [arrived(args[::-1])[rank] for rank in range(len(args))], "rank 0's tokens come first."),
        ),
        thoughts={
            "values": "sort your tokens by expert, so each rank's are next to each other. In which order do they arrive?",
            "traffic": "counts are one integer per rank; tokens go to one rank only.",
            "Mismatch": "do all ranks pass as many counts as there are ranks (minlength), and does the receiver name what the sender sends?",
            "RankFailed": "how long must the buffer be, and which list of sizes comes first: what you receive, or what you send?",
            "Stuck": "do all ranks make both calls, even one that has no token to send?",
        },
    ),
    valued(
        "sums_with",
        {
            "an expert, 2 rows of 2": ("mlp.experts.1.up.weight", 1, 2, 4),
            "the router, 2 rows of 2": ("mlp.router.weight", 1, 2, 4),
            "an expert, 4 rows of 2": ("mlp.experts.0.up.weight", 6, 2, 8),
            "an expert, one row": ("mlp.experts.3.up.weight", 3, 4, 4),
        },
        sums_with,
        suspects={
            lambda name, rank, ep, n: list(range(n)): "which ranks have this expert? The others have different ones.",
            lambda name, rank, ep, n: list(range(rank // ep * ep, rank // ep * ep + ep)) if "experts" in name else list(range(n)): (
                "that's a row, where each rank has a different expert. Who has the same one?"
            ),
            lambda name, rank, ep, n: list(range(rank % ep, n, ep)): "that's for experts. Who has a copy of the router?",
        },
        thought="the same column of every row has the same experts, and all ranks have everything else.",
    ),
    valued(
        "balance_loss",
        {
            "two experts": (shares(4, 2), torch.tensor([2, 6])),
            "an expert that no token chose": (shares(6, 4), torch.tensor([5, 2, 5, 0])),
            "all chose one": (shares(5, 3), torch.tensor([0, 15, 0])),
        },
        balance_loss,
        suspects={
            lambda p, tokens: balance_loss(p, tokens) / len(tokens): "times the number of experts, so that it's 1 if all are equal.",
            lambda p, tokens: balance_loss(p, tokens) * tokens.sum(): "the *share* of the tokens, not their number.",
            lambda p, tokens: balance_loss(p, tokens) * tokens.sum() / len(p): "`tokens` counts those of all ranks, and `probabilities` has this rank's rows.",
            lambda p, tokens: balance_loss(p, tokens) * len(p): "the mean over this rank's tokens, not their sum.",
            lambda p, tokens: len(tokens) * (p.mean(0) ** 2).sum(): "one factor is what the experts got, from `tokens`.",
        },
        thought="for each expert: the share of tokens that chose it, times its mean probability.",
    ),
    valued(
        "next_bias",
        {
            "one has too many": (torch.zeros(4), torch.tensor([10, 2, 4, 4]), 0.5),
            "all are even": (torch.tensor([1.0, -1.0]), torch.tensor([3, 3]), 0.1),
            "one has just its share": (torch.tensor([0.5, 0.0, -0.5]), torch.tensor([4, 6, 2]), 0.02),
        },
        next_bias,
        suspects={
            lambda bias, tokens, speed: 2 * bias - next_bias(bias, tokens, speed): "that makes the favored expert even more popular.",
            lambda bias, tokens, speed: (bias - speed * (tokens - tokens.double().mean())).to(bias.dtype): "a step is always `speed`: only the sign of the difference counts.",
            lambda bias, tokens, speed: -speed * (tokens - tokens.double().mean()).sign().to(bias.dtype): "start from the bias so far.",
        },
        thought="more tokens than the mean: lower by `speed`; fewer: raise by `speed`; exactly the mean: leave it.",
    ),
)  # fmt: skip
