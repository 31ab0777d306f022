"""my_share(items): this rank's stretch of what all ranks hold."""

from helpers.exercise import Budget, Case, Suspect, Task

CASES = (
    Case(2, size=6),
    Case(2, size=5),
    Case(3, size=5),
    Case(3, size=6),
    Case(4, size=5),
    Case(4, size=0),
    Case(5, size=13),
    Case(6, size=13),
    Case(7, size=3),
    Case(8, size=3),
    Case(8, size=20),
    Case(1, size=3),
)


def draw(d):
    return (d.numbers(d.case.size, common=True),)


def reference(args):
    return list(args[0][0].tensor_split(len(args)))


def without_the_rest(args):
    n = len(args)
    each = len(args[0][0]) // n
    return [args[0][0][rank * each : (rank + 1) * each] for rank in range(n)]


def rest_to_the_last(args):
    shares = without_the_rest(args)
    return [*shares[:-1], args[0][0][sum(map(len, shares[:-1])) :]]


TASK = Task(
    "my_share",
    CASES,
    draw,
    reference,
    lambda case, args: Budget("no call at all", calls=[0] * case.world_size),
    needs=lambda case, args: [0] * case.world_size,
    allowed=frozenset(),
    parameters=("items",),
    suspects=(
        Suspect(
            lambda args: [args[0][0][rank :: len(args)] for rank in range(len(args))],
            "this deals the items out like cards. A share is a stretch: where does it begin, and where does it end?",
        ),
        Suspect(without_the_rest, "some items belong to nobody. What becomes of the remainder of the division?"),
        Suspect(rest_to_the_last, "the last rank gets the whole remainder. Shares may differ by one at most."),
    ),
    thoughts={
        "values": "how long is each share when the items do not divide evenly, and where does yours begin?",
        "calls": "every rank has all the items. Its rank and the world size tell it which are its own.",
        "RankFailed": "chunk makes fewer pieces than asked for when the items do not divide evenly. Which function does not?",
    },
)
