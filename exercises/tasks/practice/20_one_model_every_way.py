"""place_on_mesh, sum_over, tensor_bytes and norm_of_all: a step on a mesh of several dimensions."""

from helpers.exercise import Budget, Case, Suspect, Task, valued


def place_on_mesh(rank, sizes):
    place = []
    for size in reversed(sizes):
        rank, here = divmod(rank, size)
        place.append(here)
    return place[::-1]


def is_cut(name):
    return "attention" in name or "mlp" in name


def sum_over(name, dims, summed=("dp", "cp"), whole=("sp",)):
    return [dim for dim in dims if dim in summed or dim in whole and not is_cut(name)]


def tensor_bytes(activations, layers, dp, pp, tp, parts=lambda dp, pp: dp * pp, calls=4):
    return calls * layers * 2 * (tp - 1) / tp * activations / parts(dp, pp)


CASES = (
    Case(2, size=2),
    Case(2, "negative numbers", 1),
    Case(3, size=3),
    Case(4, "fractions", 2),
    Case(5, size=1, late=3),
    Case(6, size=2),
    Case(7, size=4),
    Case(8, "fractions", 3),
    Case(1, size=2),
)


def draw(d):
    return d.numbers(d.case.size), d.numbers(2, common=True)


def norms(args, copies=1, squares=lambda x: x.double().square().sum()):
    total = sum(squares(own) for own, _ in args) + copies * squares(args[0][1])
    return [total.sqrt().float()] * len(args)


def budget(case, args):
    limit = [2 * (case.world_size - 1) / case.world_size * 8] * case.world_size
    return Budget("one number, summed", sent=limit, received=limit)


TASKS = (
    valued(
        "place_on_mesh",
        {
            "rank 5 of 2 x 2 x 2": (5, [2, 2, 2]),
            "rank 6 of 2 x 4": (6, [2, 4]),
            "rank 6 of 4 x 2": (6, [4, 2]),
            "rank 17 of 2 x 3 x 4": (17, [2, 3, 4]),
            "rank 3 of 8": (3, [8]),
        },
        place_on_mesh,
        suspects={
            lambda rank, sizes: place_on_mesh(rank, sizes)[::-1]: "right numbers, from the last dimension to the first.",
            lambda rank, sizes: place_on_mesh(rank, sizes[::-1])[::-1]: "here the first dimension is fastest. On a mesh it's the last.",
            lambda rank, sizes: [rank % size for size in sizes]: "divide before you take the next remainder.",
        },
        thought="ranks 0 and 1 differ in the last dimension. Take remainders from the back.",
    ),
    valued(
        "sum_over",
        {
            "a matrix, dp pp tp": ("block0.mlp.up.weight", ["dp", "pp", "tp"]),
            "a norm, dp pp tp": ("block0.norm1.weight", ["dp", "pp", "tp"]),
            "a norm, dp sp": ("block0.norm1.weight", ["dp", "sp"]),
            "a matrix, dp sp": ("block0.attention.q.weight", ["dp", "sp"]),
            "a matrix, cp dp": ("block0.attention.q.weight", ["cp", "dp"]),
            "a norm, fs sp": ("block0.norm2.weight", ["fs", "sp"]),
        },
        sum_over,
        suspects={
            lambda name, dims: sum_over(name, dims, ("dp", "cp", "tp")): "along tp, ranks have different columns, and what is whole has seen all tokens.",
            lambda name, dims: sum_over(name, dims, ("dp", "cp", "fs")): "fully_shard has summed over fs already.",
            lambda name, dims: sum_over(name, dims, ("dp", "cp", "sp"), ()): "along sp, attention and mlp are cut. Each rank has its piece's whole gradient.",
            lambda name, dims: sum_over(name, dims, whole=()): "along sp, what is whole has seen only this rank's positions.",
            lambda name, dims: list(dims): "ranks along tp, sp and pp have different pieces or layers. Their gradients don't add up.",
        },
        thought="along which dimensions do ranks hold the same parameter, but see different tokens?",
    ),
    valued(
        "tensor_bytes",
        {
            "tp alone": (262_144, 6, 1, 1, 8),
            "dp 2, pp 2, tp 2": (262_144, 6, 2, 2, 2),
            "dp 4, tp 2": (262_144, 6, 4, 1, 2),
            "no tp": (262_144, 6, 2, 4, 1),
        },
        tensor_bytes,
        suspects={
            lambda a, layers, dp, pp, tp: tensor_bytes(a, layers, dp, pp, tp, lambda dp, pp: 1): "a rank has 1/dp of the rows and 1/pp of the layers.",
            lambda a, layers, dp, pp, tp: tensor_bytes(a, layers, dp, pp, tp, lambda dp, pp: dp): "a rank has 1/pp of the layers only.",
            lambda a, layers, dp, pp, tp: tensor_bytes(a, layers, dp, pp, tp, lambda dp, pp: pp): "a rank has 1/dp of the rows only.",
            lambda a, layers, dp, pp, tp: tensor_bytes(a, layers, dp, pp, tp, calls=2): "two sums forward, and two backward.",
        },
        thought="four all_reduces per block, each of 2 (tp - 1)/tp times its buffer, for the rows and layers that dp and pp leave.",
    ),
    Task(
        "norm_of_all",
        CASES,
        draw,
        norms,
        budget,
        parameters=("mine", "shared"),
        needs=lambda case, args: [4] * case.world_size,
        suspects=(
            Suspect(lambda args: norms(args, len(args)), "`shared` is the same on all ranks, and it's in there once for each of them."),
            Suspect(lambda args: norms(args, 0), "`shared` is missing."),
            Suspect(
                lambda args: [sum(norms([pair])[0] for pair in args)] * len(args),
                "norms don't add up. Their squares do: sum squares, and take the root last.",
            ),
            Suspect(lambda args: [norms([pair])[0] for pair in args], "that's the norm of what this rank has. Others have other gradients."),
        ),
        thoughts={
            "values": "sum the squares of all ranks' `mine`, add those of `shared` once, and take the root.",
            "traffic": "a number per rank is enough.",
        },
    ),
)  # fmt: skip
