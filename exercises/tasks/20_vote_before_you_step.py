"""train_by_vote(w, gradients, fails, lr): a training loop in which a step happens on all ranks, or is repeated by all."""

from helpers.exercise import Budget, Case, Suspect, Task

STEPS = 4
LR = 0.5

# By kind of case: how often the sum of a step fails on a rank before it goes well.
FAILURES = {
    "nothing fails": lambda rank, n, step: 0,
    "one failure, on rank 0": lambda rank, n, step: int(rank == 0 and step == 1),
    "one failure, on the last rank": lambda rank, n, step: int(rank == n - 1 and step == 2),
    "one failure, on all but rank 0": lambda rank, n, step: int(rank > 0 and step == 0),
    "two failures in a row": lambda rank, n, step: 2 * int(rank == n - 1 and step == 3),
    "failures on different ranks in one step": lambda rank, n, step: rank % 3 if step == 1 else 0,
    "a failure in every step": lambda rank, n, step: int(rank == step % n),
}
CASES = (
    Case(2, "nothing fails"),
    Case(2, "one failure, on rank 0"),
    Case(2, "one failure, on the last rank", 1),
    Case(3, "one failure, on rank 0", 4),
    Case(3, "failures on different ranks in one step", 5),
    Case(4, "one failure, on all but rank 0"),
    Case(4, "two failures in a row", 6, late=3),
    Case(4, "a failure in every step", 8),
    Case(5, "failures on different ranks in one step", 2),
    Case(6, "two failures in a row", 3),
    Case(7, "one failure, on all but rank 0", 4),
    Case(8, "a failure in every step", 3),
    Case(8, "one failure, on the last rank", 10),
    Case(1, "two failures in a row", 2),
)


def draw(d):
    fails = [FAILURES[d.case.kind](d.rank, d.world_size, step) for step in range(STEPS)]
    return d.numbers(d.case.size, common=True), [d.numbers(d.case.size) for _ in range(STEPS)], fails, LR


def attempts(args):
    """How often each step is tried: until it fails nowhere."""
    return [1 + max(fails[step] for _, _, fails, _ in args) for step in range(STEPS)]


def weights(args, skips=lambda failures: False, repeats=lambda failures: 1, divisor=None):
    """The weights in the end.  skips, repeats: of a step, from how often it failed anywhere: what goes wrong with it."""
    w = args[0][0].double().clone()
    for step, tries in enumerate(attempts(args)):
        total = sum(gradients[step].double() for _, gradients, _, _ in args)
        if not skips(tries - 1):
            w -= LR * repeats(tries - 1) * total / (divisor or len(args))
    return w.to(args[0][0].dtype)


def everywhere(value):
    return lambda args: [value(args)] * len(args)


def budget(case, args):
    n, tries = case.world_size, sum(attempts(args))
    limit = [2 * (n - 1) / n * tries * (args[0][0].nbytes + 8)] * n
    return Budget(
        "per attempt: an all_reduce of the gradient, and a vote of at most 8 bytes",
        sent=limit,
        received=limit,
        calls=[2 * tries] * n,
    )


TASK = Task(
    "train_by_vote",
    CASES,
    draw,
    everywhere(attempts),
    budget,
    after=lambda args: [(weights(args), *rest) for _, *rest in args],
    needs=lambda case, args: [STEPS * args[0][0].nbytes * (case.world_size > 1)] * case.world_size,
    parameters=("w", "gradients", "fails", "lr"),
    suspects=(
        Suspect(
            everywhere(lambda args: weights(args, skips=bool)),
            "a step that failed somewhere was left out. Repeat it, until it has gone well on all ranks.",
        ),
        Suspect(
            everywhere(lambda args: weights(args, repeats=lambda failures: len(args) ** failures)),
            "a repeated step has summed what was a sum already. Each attempt begins with the rank's own gradient: clone it.",
        ),
        Suspect(
            everywhere(lambda args: weights(args, repeats=lambda failures: 1 + failures)),
            "a repeated step was applied more than once. Apply it after the vote that passes, and only then.",
        ),
        Suspect(
            everywhere(lambda args: weights(args, divisor=1)), "this steps by the sum over ranks. Step by the mean."
        ),
        Suspect(
            everywhere(lambda args: [tries - 1 for tries in attempts(args)]),
            "these are the failures. Return the attempts of each step, with the one that went well.",
        ),
        Suspect(
            lambda args: [[1 + count for count in fails] for _, _, fails, _ in args],
            "this counts the rank's own attempts. If a step fails on any rank, all of them repeat it.",
        ),
    ),
    thoughts={
        "values": "per attempt: clone the gradient, sum it, vote. If all are fine, step and go on; if not, all try again.",
        "inputs": "only w changes, and only after a vote that has passed. Sum a clone of the gradient, and write into w with `-=`.",
        "sent": "the result is right. A vote is a single number.",
        "received": "the result is right. A vote is a single number.",
        "calls": "the result is right. An attempt needs the sum and one vote.",
        "RankFailed": "sum_over_ranks raises a RuntimeError where it fails: catch it, and vote against the step.",
        "Mismatch": "some ranks repeat the sum while others vote, or go on. After each sum, all of them vote, whether it failed or "
        "not, and then all do the same.",
        "Stuck": "some ranks repeat a step that others are through with. Who has to know that it failed?",
    },
)
