"""row_parallel(x, w, b): a linear layer with a bias, whose weight is cut by rows."""

from helpers.exercise import Budget, Case, Suspect, Task

INNER, COLUMNS = 2, 3  # of a rank's x and w
CASES = (
    Case(2, size=1),
    Case(2, "negative numbers", 2),
    Case(3, size=2),
    Case(3, size=1, late=2),
    Case(4, size=3),
    Case(5, size=1),
    Case(6, size=2),
    Case(7, size=1),
    Case(8, size=2, late=0),
    Case(1, size=2),
)


def draw(d):
    return d.numbers(d.case.size, INNER), d.numbers(INNER, COLUMNS), d.numbers(COLUMNS, common=True)


def product(args):
    return sum(x @ w for x, w, _ in args)


def everywhere(args, biases):
    return [product(args) + biases * b for _, _, b in args]


def reference(args):
    return everywhere(args, 1)


def budget(case, args):
    n = case.world_size
    limit = [2 * (n - 1) / n * case.size * COLUMNS * case.dtype.itemsize] * n
    return Budget("one all_reduce of the layer's output", sent=limit, received=limit)


def needs(case, args):
    return [case.size * COLUMNS * case.dtype.itemsize] * case.world_size


TASK = Task(
    "row_parallel",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    parameters=("x", "w", "b"),
    suspects=(
        Suspect(
            lambda args: everywhere(args, len(args)),
            "the bias is in it N times. Every rank has the whole b: what must be summed, and what must not?",
        ),
        Suspect(lambda args: everywhere(args, 0), "the bias is missing."),
        Suspect(
            lambda args: [x @ w + b for x, w, b in args],
            "each rank has only its own addend of x @ w. What turns P into R?",
        ),
    ),
    thoughts={
        "values": "x @ w is P, an addend on each rank, and b is R. In which order do they go together?",
        "traffic": "the result is right, but more travels than one all_reduce of the output. w and x stay where they are.",
    },
)
