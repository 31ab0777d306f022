"""parallel_mlp(x, w1, w2, b, target): an MLP whose hidden units the ranks share, forward and backward.
wrong_letter(plan): the tensor of a plan that has the wrong letter, and the right one.
"""

from typing import Any

import torch

from collectives.format import kind
from helpers.exercise import Budget, Case, Finding, Puzzle, Suspect, Task

# --- an MLP ---------------------------------------------------------------------------------

CASES = (
    Case(2, size=3),
    Case(2, "fractions", 4),
    Case(3, size=4),
    Case(3, "fractions", 4, uneven=True),
    Case(4, size=3, late=2),
    Case(4, "fractions", 6, uneven=True),
    Case(6, size=3, dtype=torch.float64),
    Case(5, "fractions", 2, uneven=True, late=0),
    Case(7, size=2),
    Case(8, "fractions", 4, uneven=True),
    Case(1, size=5),
)


def draw(d):
    rows, width = {6: (2, 5), 7: (1, 3)}.get(d.world_size, (3, 4))

    def numbers(*shape, common=False):
        drawn = d.numbers(*shape, common=common)
        return drawn / 2 if d.case.kind == "fractions" else drawn.remainder(3) - 1  # -1, 0 or 1: sums stay exact

    x, b, target = (numbers(*shape, common=True) for shape in ((rows, width), (width,), (rows, width)))
    units = d.case.length(d.rank)
    return x, numbers(width, units), numbers(units, width), b, target


def outcome(args, *, before=None, output=None, slope=None, inner=None, result=None):
    """What each rank returns.  The options are mistakes.

    before: relu's input on all ranks, from the right one.  output: y, from (the addends of all ranks, a rank, b).  slope: dy, from (y - target).
    inner: the gradient of relu's input, from (that of its output, its input).
    result: what is returned, from (y, addends of dx, dw1 of all ranks, dw2 of all ranks, db, a rank).
    """
    args = [[t.double() for t in mine] for mine in args]
    ranks = range(len(args))
    x, _, _, b, target = args[0]
    units = [x @ w1 for _, w1, *_ in args]
    units = before(units) if before else units
    hidden = [a.relu() for a in units]
    addends = [h @ args[r][2] for r, h in enumerate(hidden)]
    output = output or (lambda z, r, b: sum(z) + b)
    inner = inner or (lambda dh, a: dh * (a > 0))
    y = [output(addends, r, b) for r in ranks]
    dy = [slope(y[r] - target) if slope else y[r] - target for r in ranks]
    da = [inner(dy[r] @ args[r][2].T, units[r]) for r in ranks]
    dx = [da[r] @ args[r][1].T for r in ranks]
    dw1, dw2 = [x.T @ da[r] for r in ranks], [hidden[r].T @ dy[r] for r in ranks]
    result = result or (lambda y, dx, dw1, dw2, db, r: (y, sum(dx), dw1[r], dw2[r], db))
    return [result(y[r], dx, dw1, dw2, dy[r].sum(0), r) for r in ranks]


def like(args, results):
    """The results in the dtype of the arguments."""
    dtype = args[0][0].dtype
    return [tuple(t.to(dtype) for t in mine) for mine in results]


def reference(args):
    return like(args, outcome(args))


def scale(args):
    return max(float(t.abs().max()) for mine in outcome(args) for t in mine if t.numel())


def mistake(thought, **options):
    return Suspect(lambda args: like(args, outcome(args, **options)), thought)


def summed_units(units):
    even = len({a.shape for a in units}) == 1
    return [sum(units)] * len(units) if even else units


def sums_weights(y, dx, dw1, dw2, db, r):
    even = len({g.shape for g in dw1}) == 1
    return y, sum(dx), *((sum(dw1), sum(dw2)) if even else (dw1[r], dw2[r])), db


def budget(case, args):
    n = case.world_size
    limit = [2 * 2 * (n - 1) / n * args[0][0].nbytes] * n
    return Budget(
        "one all_reduce of x's size forward and one backward: 4(N-1)/N times the bytes of x sent by a rank, in 2 steps",
        limit,
        limit,
        steps=2,
    )


def needs(case, args):
    """The other ranks' part of y; or one of their two weights, where they have few hidden units."""
    units = [w1.shape[1] for _, w1, *_ in args]
    x, itemsize = args[0][0], case.dtype.itemsize
    return [min(x.numel(), (sum(units) - own) * x.shape[1]) * itemsize for own in units]


MLP = Task(
    "parallel_mlp",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    scale=scale,
    parameters=("x", "w1", "w2", "b", "target"),
    outputs=("y", "dx", "dw1", "dw2", "db"),
    suspects=(
        mistake(
            "dx is this rank's partial sum only. x went into every rank's columns of w1: what comes back from all of them?",
            result=lambda y, dx, dw1, dw2, db, r: (y, dx[r], dw1[r], dw2[r], db),
        ),
        mistake(
            "dx is averaged, as gradients are where ranks see different data. Here each rank has a partial sum of one gradient.",
            result=lambda y, dx, dw1, dw2, db, r: (y, sum(dx) / len(dx), dw1[r], dw2[r], db),
        ),
        mistake(
            "dx is gathered, and so it's N times as wide as x. Does each rank hold a shard of it, or a partial sum?",
            result=lambda y, dx, dw1, dw2, db, r: (y, torch.cat(dx, 1), dw1[r], dw2[r], db),
        ),
        mistake(
            "what goes into relu is summed over ranks. But x @ w1 is complete in each of this rank's columns.",
            before=summed_units,
        ),
        mistake(
            "the bias is in y N times, once from each rank. Where is it added, before the sum or after it?",
            output=lambda z, r, b: sum(z) + len(z) * b,
        ),
        mistake(
            "y is made from this rank's hidden units only. What each rank has of h @ w2 is a partial sum.",
            output=lambda z, r, b: z[r] + b,
        ),
        mistake(
            "y is averaged. What each rank has of h @ w2 is a partial sum, and partial sums are added up.",
            output=lambda z, r, b: sum(z) / len(z) + b,
        ),
        mistake(
            "y lacks the bias.",
            output=lambda z, r, b: sum(z),
        ),
        mistake(
            "the gradient of y is summed over ranks. But every rank has all of y, and computes that gradient whole.",
            slope=lambda dy: dy,
            result=lambda y, dx, dw1, dw2, db, r: (
                y,
                len(dx) * sum(dx),
                len(dx) * dw1[r],
                len(dx) * dw2[r],
                len(dx) * db,
            ),  # fmt: skip
        ),
        mistake(
            "db is summed over ranks. Each of them has the whole gradient of b already, as it has the whole of y.",
            result=lambda y, dx, dw1, dw2, db, r: (y, sum(dx), dw1[r], dw2[r], len(dx) * db),
        ),
        mistake(
            "db is divided by N. The bias is in y once, whichever rank added it.",
            result=lambda y, dx, dw1, dw2, db, r: (y, sum(dx), dw1[r], dw2[r], db / len(dx)),
        ),
        mistake(
            "the weights' gradients are summed over ranks, as where ranks have the same weights. These weights only you have.",
            result=sums_weights,
        ),
        mistake(
            "the backward pass of relu is missing: where its input was not above 0, nothing goes back.",
            inner=lambda dh, a: dh,
        ),
        mistake(
            "at 0 relu lets no gradient through: it needs input > 0.",
            inner=lambda dh, a: dh * (a >= 0),
        ),
    ),
    thoughts={
        "values": "give each tensor its letter: is it the same on all ranks, a shard, or a partial sum? Only partial sums are summed.",
        "traffic": "weights and hidden units don't have to travel. What must travel is as large as x, once each way.",
        "steps": "one all_reduce in the forward pass, one in the backward pass. Which of your calls does a rank not need?",
        "Mismatch": "what travels has x's shape on all ranks, though their numbers of hidden units differ. And an async call "
        "has to be waited for before its tensor is used.",
        "Stuck": "does a rank without hidden units make all the calls that the others make? It contributes zeros.",
        "RankFailed": "try it by hand, on two ranks, as in the cell above the checks.",
    },
)

# --- a plan ---------------------------------------------------------------------------------

NAME = "wrong_letter"
LETTERS = ("R", "S(0)", "S(1)", "P")
RULES = {  # op -> letters of its inputs -> the letter of its result
    "matmul": {
        ("R", "R"): "R", ("R", "S(1)"): "S(1)", ("S(0)", "R"): "S(0)", ("S(1)", "S(0)"): "P", ("P", "R"): "P", ("R", "P"): "P",
    },
    "add": {(letter, letter): letter for letter in LETTERS},
    "gelu": {(letter,): letter for letter in LETTERS if letter != "P"},
    "double": {(letter,): letter for letter in LETTERS},
    "transpose": {("R",): "R", ("S(0)",): "S(1)", ("S(1)",): "S(0)", ("P",): "P"},
    "all_reduce": {("P",): "R"},
    "all_gather": {("S(0)",): "R", ("S(1)",): "R"},
    "reduce_scatter(0)": {("P",): "S(0)"},
    "all_to_all": {("S(0)",): "S(1)", ("S(1)",): "S(0)"},
}  # fmt: skip
KNOWN = {  # what a case says -> a plan, and where it is wrong
    "an MLP": (
        [
            ("x", "R", "given", []), ("w1", "S(1)", "given", []), ("w2", "S(0)", "given", []), ("h", "S(1)", "matmul", ["x", "w1"]),
            ("a", "S(1)", "gelu", ["h"]), ("z", "P", "matmul", ["a", "w2"]), ("y", "R", "all_reduce", ["z"]),
            ("out", "R", "add", ["x", "y"]),
        ],
        ("z", "R"),
    ),
    "an MLP under sequence parallelism": (
        [
            ("x", "S(0)", "given", []), ("w1", "S(1)", "given", []), ("w2", "S(0)", "given", []), ("g", "R", "all_gather", ["x"]),
            ("h", "S(1)", "matmul", ["g", "w1"]), ("a", "S(1)", "gelu", ["h"]), ("z", "P", "matmul", ["a", "w2"]),
            ("y", "S(0)", "reduce_scatter(0)", ["z"]), ("out", "S(0)", "add", ["x", "y"]),
        ],
        ("w1", "S(0)"),
    ),
}  # fmt: skip
STEPS = {"a short plan": 5, "a plan": 8, "a long plan": 14}  # that are drawn
NOTHING = "printing a pair doesn't return it. And if you found none: it may be a given tensor's letter that is wrong."


def consistent(plan):
    letters = {name: letter for name, letter, *_ in plan}
    return all(
        op == "given" or RULES[op].get(tuple(letters[name] for name in inputs)) == letter
        for _, letter, op, inputs in plan
    )


def with_letter(plan, name, letter):
    return [(own, letter if own == name else old, op, inputs) for own, old, op, inputs in plan]


def repairs(plan):
    """Every (name, letter) that makes a plan consistent."""
    return [
        (name, letter)
        for name, old, *_ in plan
        for letter in LETTERS
        if letter != old and consistent(with_letter(plan, name, letter))
    ]


def pick(d, among):
    return among[d.integer(0, len(among))]


def drawn_plan(d, steps):
    """A consistent plan of so many steps besides what is given."""
    plan, letters = [("x", pick(d, ("R", "S(0)")), "given", [])], {}
    letters["x"] = plan[0][1]
    for k in range(steps):
        possible = []
        for name, letter in letters.items():
            possible += [(op, [name], rule[letter,]) for op, rule in RULES.items() if (letter,) in rule]
            possible += [
                ("matmul", [name, own], found) for (left, own), found in RULES["matmul"].items() if left == letter
            ]
            possible += [("add", [name, own], letter) for own in letters if own != name and letters[own] == letter]
        op, inputs, letter = pick(
            d, [way for way in possible if way[0] in ("matmul", "add")] if d.integer(0, 2) else possible
        )
        if op == "matmul":  # by a weight of its own
            inputs, own = [inputs[0], f"w{k + 1}"], inputs[1]
            plan.append((inputs[1], own, "given", []))
        plan.append((f"t{k + 1}", letter, op, inputs))
        letters[f"t{k + 1}"] = letter
    return plan


def draw_plan(d):
    if d.case.kind in KNOWN:
        plan, wrong = KNOWN[d.case.kind]
        return (with_letter(plan, *wrong),)
    while True:
        plan = drawn_plan(d, STEPS[d.case.kind])
        name, letter, *_ = pick(d, plan)
        broken = with_letter(plan, name, pick(d, [other for other in LETTERS if other != letter]))
        if len(repairs(broken)) == 1 and not consistent(broken):
            return (broken,)


def shown(plan):
    return "\n".join(f"  {name:<4} {letter:<5} {op} {', '.join(inputs)}".rstrip() for name, letter, op, inputs in plan)


def verdict(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
    (plan,) = arguments
    ((name, letter),) = repairs(plan)
    headline, letters = f"{NAME} is wrong with this plan:\n{shown(plan)}\n", {own: old for own, old, *_ in plan}
    pair = tuple(result) if isinstance(result, (tuple, list)) else ()
    if len(pair) != 2 or not all(isinstance(part, str) for part in pair):
        words = f"{headline}It must return (name, letter), two texts, not {kind(result)}."
        return Finding("values", words=words, thought=NOTHING if result is None else "")
    if pair == (name, letter):
        return None
    words = f"{headline}  got        {pair[0]} should have {pair[1]}"
    if pair[0] == name:
        thought = (
            "that's the tensor, and it has this letter already."
            if pair[1] == letters[name]
            else "that's the tensor. Which letter suits both the op that makes it and those that use it?"
        )
    elif pair[0] not in letters:
        thought = "there's no such tensor in this plan."
    else:
        thought = (
            "with that change, the plan still has a step whose letters don't fit. A step that doesn't fit may be right itself, and have a wrong "
            "letter among its inputs: try a change, and look at all steps again."
        )
    return Finding("values", words=words, thought=thought)


def praise(case: Case, arguments: tuple, result: Any) -> str:
    (plan,) = arguments
    return f"{result[0]} should have {result[1]} in {case.kind} of {len(plan)} tensors."


PLAN = Puzzle(
    NAME,
    (*(Case(1, known) for known in KNOWN), *(Case(1, kind, k) for kind in STEPS for k in range(4))),
    draw_plan,
    verdict,
    praise,
    {"RankFailed": "does it handle every op of the table, and an input that comes twice?"},
)
TASKS = (MLP, PLAN)
