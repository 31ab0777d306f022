"""Sentences: what is wrong with the first tensor that differs, and which call is missing or doubled."""

from typing import Mapping, Sequence

import torch

from ..format import dtype_name, name_ranks
from .findings import Difference, Records
from .records import CallMade, FirstSteps
from .relation import NOISE, Relation, close, clusters, combination, error, factor, relation

MOST_LEFT = 0.5  # of a difference, by its explanation: in bfloat16 a fit to the gradient may miss just what differs
MOST_EXPLAINED = 8  # differences among which one is looked for that can be explained


def of(differences: list[Difference], evidence: Records) -> tuple[str, str]:
    """The first of these differences, and its reason."""
    first, tolerance = differences[0], evidence.tolerance * (10 if differences[0].step else 1)
    when = f" in step {first.step + 1}" if first.step else ""
    text = _scaled(differences, evidence)
    if not text:
        explained = ((found, _explained(found, evidence, tolerance)) for found in differences[:MOST_EXPLAINED])
        first, text = next((pair for pair in explained if pair[1]), (first, _unexplained(first, evidence, tolerance)))
    others = len({found.target for found in differences}) - 1
    more = f" So do {others} other gradients." if others > 1 else " So does one other gradient." if others else ""
    return first.target, f"`{first.label}`: its gradient{when} {text}{'' if text.endswith('?') else '.'}{more}"


def briefly(found: Difference, tolerance: float) -> str:
    """'gradient 2.00 times one process's'"""
    if factors := _multiples(found, tolerance):
        words = dict.fromkeys(f"{k:.2f}" for k in factors)
        return f"gradient {', '.join(words)} times one process's"
    if len(found.parts) > 1 and _partial(found, tolerance):
        return "gradient a partial sum"
    return "gradient differs"


def _explained(found: Difference, evidence: Records, tolerance: float) -> str | None:
    """How this gradient is made of one process's, or of the ranks' own; None if it can't be seen."""
    gradients, ranks, whole = found.gradients, found.ranks, found.whole
    none = [rank for rank, g in zip(ranks, gradients) if not bool(g.any())]
    if none:
        return f"is zero on {name_ranks(none)}, and not in one process{_cut_off(evidence)}"
    if len(whole.reshape(-1)) < len(ranks) and (weights := _weights(found, evidence, tolerance)):
        return weights  # a multiple, too, as so few numbers are
    factors = _multiples(found, tolerance)
    partial = _partial(found, tolerance) if len(ranks) > 1 else None
    if factors and not (partial and whole.numel() == 1):  # one number is a multiple of any other
        if all(close(k, factors[0], 1e-2) for k in factors):
            return _multiple(found, factors[0], evidence, tolerance)
        words = ", ".join(f"{k:.2f}" for k in factors)
        return f"is {words} times one process's on {name_ranks(ranks)}: ranks scale it differently"
    if partial:
        who, mean = partial
        where = _where(found)
        if mean and exchanged(found, evidence) and not _calls(found, evidence):
            return (
                f"is each rank's own on {name_ranks(who)}{where}, and one process's is their mean. If these ranks hold one "
                f"tensor, all_reduce its gradient and divide it by {len(who)}; if each has its own, as with experts, it is a "
                f"sum over all rows that were sent there: divide it by {len(who)}"
            )
        if mean:
            return (
                f"is each rank's own on {name_ranks(who)}, and the optimizer takes it as the mean of all{where}: "
                + (
                    "DistributedDataParallel has not reduced it. Is the last backward before the step inside no_sync()?"
                    if found.parts[0].name in evidence.ranks[found.ranks[0]].in_ddp
                    else f"all_reduce it over these ranks, and divide it by {len(who)}"
                )
            )
        return (
            f"is a partial sum over {name_ranks(who)}, and the optimizer takes it as whole{where}: all_reduce it over "
            "these ranks"
        )
    weights = _weights(found, evidence, tolerance) or _weights_of_passes(found, tolerance)
    return weights or _cut_first(found, evidence, tolerance)


def _unexplained(difference: Difference, evidence: Records, tolerance: float) -> str:
    gradients, ranks = difference.gradients, difference.ranks
    if len(ranks) > 1 and len(clusters(gradients, tolerance)) > 1:
        return (
            f"differs between {name_ranks(ranks)}, and is one process's on none of them: no sum or mean of theirs is it"
            f"{_forward(difference, evidence)}"
        )
    where = f" on {name_ranks(ranks)}" if ranks else ""
    return f"is unrelated to one process's{where}: no part, multiple or sum of it{_cut_off(evidence) or _forward(difference, evidence)}"


def _forward(difference: Difference, evidence: Records) -> str:
    """Evidence from the first forward: the first module that gives all ranks the same, or that all are right."""
    if difference.step or not evidence.one.outputs:
        return ""
    for name, expected in evidence.one.outputs.items():
        outputs = [record.outputs.get(name) for record in evidence.ranks]
        if any(part is None for part in outputs):
            return ""
        if relation(outputs, expected, 10 * evidence.tolerance).letter == "?":
            if len(clusters(outputs, evidence.tolerance)) == 1 and outputs[0].shape != expected.shape:
                return (
                    f". `{name}` gives the same output on all ranks, and one process a different one for each rank's rows: does each "
                    "rank count something from 0, such as positions?"
                )
            return ""
    trained = [name for name, p in evidence.one.parameters.items() if p.steps and p.steps[0].grad is not None]
    own_rows = _has_own_rows(evidence)
    if not own_rows and difference.target != trained[-1]:
        after = trained[trained.index(difference.target) + 1]
        return (
            f". Outputs of modules agree, and the gradient of `{after}` does: look at the backward between it and this one, "
            "and for a loss of a rank's own rows, such as one that balances experts' load"
        )
    return (
        f". Outputs of modules agree in the first forward, so it's the loss{own_rows}: does it have a mean, a deviation or a count of a "
        "rank's own rows, where one process has all of them? Reduce that over ranks first, unless each rank balances its own "
        "experts' load on purpose"
    )


def _has_own_rows(evidence: Records) -> str:
    """Words on the first losses, if one process's is neither the ranks' mean nor their sum, though they have equally many rows."""
    losses = [record.losses[0] for record in evidence.ranks if record.losses]
    if len(losses) < evidence.n or not evidence.one.losses or len(set(map(evidence.data_size, range(evidence.n)))) > 1:
        return ""
    single, total = evidence.one.losses[0], sum(losses)
    if any(close(loss, single, 2 * NOISE * evidence.tolerance) for loss in (*losses, total, total / len(losses))):
        return ""
    word, nearest = min(("mean", total / len(losses)), ("sum", total), key=lambda pair: abs(pair[1] - single))
    return f" (ranks' have a {word} of {nearest:.7g}, and one process's is {single:.7g})"


def _multiples(difference: Difference, tolerance: float) -> list[float] | None:
    """By rank, how many times one process's gradient it has; None unless all are multiples."""
    factors = [factor(g, difference.whole) for g in difference.gradients]
    rest = sum((residual * float(g.double().norm())) ** 2 for (_, residual), g in zip(factors, difference.gradients))
    distance = sum(float((g.double() - difference.whole.double()).norm()) ** 2 for g in difference.gradients)
    fits = all(residual <= 3 * tolerance for _, residual in factors) and rest <= MOST_LEFT**2 * distance
    return [k for k, _ in factors] if fits else None


def _partial(found: Difference, tolerance: float) -> tuple[list[int], bool] | None:
    """Ranks whose gradients add up to one process's, and whether it's their mean."""
    groups = clusters(found.gradients, tolerance)
    if len(groups) < 2:
        return None
    firsts = [found.gradients[group[0]].double() for group in groups]
    k, residual = factor(sum(firsts), found.whole)
    if residual > 3 * tolerance or not (close(k, 1, 1e-2) or close(k, len(groups), 1e-2)):
        return None
    return [found.ranks[group[0]] for group in groups], not close(k, 1, 1e-2)


def exchanged(difference: Difference, evidence: Records) -> bool:
    """Whether ranks sent each other rows in the forward: then equal first values don't show that they hold one tensor."""
    calls = evidence.ranks[difference.ranks[0]].calls
    return len(difference.ranks) > 1 and any(
        call.step == difference.step and not call.backward and call.op.startswith("all_to_all") for call in calls
    )


def is_partial_sum(difference: Difference, tolerance: float) -> bool:
    partial = _partial(difference, tolerance)
    return partial is not None and not partial[1]


def copy_or_own(difference: Difference) -> str:
    ranks = name_ranks(difference.ranks)
    return (
        f"`{difference.label}` has the same first values on {ranks}, each with a gradient of its own, and all_to_all sends rows "
        "between them. If it is one tensor, its gradient is a partial sum: all_reduce it. If each rank has its own, as with "
        "experts, start them with different values, and give one process all of them, under names of their own"
    )


def _multiple(found: Difference, k: float, evidence: Records, tolerance: float) -> str:
    """The gradient is k times one process's on all ranks that hold it."""
    text = f"is {k:.2f} times one process's"
    calls = _calls(found, evidence)
    needs, has = _fits(found, tolerance)
    n, holders = evidence.n, len(found.ranks)
    if len(calls) > 1 and k > 1.5:
        return f"{text}: it is reduced {len(calls)} times, by {' and by '.join(map(call_text, calls))}. Leave one out"
    if needs and has and _even(needs) and _even(has) and k > 1.5 and close(k, round(k), 1e-2):
        if close(sum(has), sum(needs) * holders, 1e-2) and holders > 1:
            return f"{text}: it is the sum over {name_ranks(found.ranks)}, where one process has the mean. Divide it by {holders}{_by(calls)}"
    if (passes := len(found.steps[0].passes)) > 1 and close(k, passes, 1e-2) and not exchanged(found, evidence):
        return f"{text}: it is the sum over {passes} backward passes, where one process has the mean. Divide each loss by {passes}"
    if holders < n and k > 1.5 and close(k, round(k), 1e-2):
        who = f"{name_ranks(found.ranks)} alone {'holds' if holders == 1 else 'hold'} it"
        return (
            f"{text}: {who}, so it is a sum over all rows that were sent there, and the loss is a mean over each rank's "
            f"own rows. Divide it by {round(k)}"
        )
    if k > 1.5 and close(k, round(k), 1e-2):
        return f"{text}: a sum over {round(k)} ranks where one process has the mean, or a sum made twice{_by(calls)}"
    if needs and has and _even(needs) and _even(has) and k < 1:
        divided, should = 1 / max(has), 1 / max(needs)
        if should > 1.5 and close(divided, round(divided), 1e-2) and close(should, round(should), 1e-2):
            return f"{text}: it is divided by {divided:.0f}, where one process's is a mean over {should:.0f}. Divide it by {should:.0f}{_by(calls)}"
    if k and k < 0.7 and close(1 / k, round(1 / k), 1e-2):
        return (
            f"{text}: a mean over {round(1 / k)} ranks where one process has the sum, so don't divide it, or multiply the "
            f"loss by {round(1 / k)}{_by(calls)}{_cut_off(evidence)}"
        )
    return _weights(found, evidence, tolerance) or f"{text}{_by(calls)}"


def averages(call: CallMade) -> bool:
    """Whether a call reduces parameters themselves."""
    return "reduce" in call.op and any(owner.startswith("parameter") for owner in call.about)


def _fits(found: Difference, tolerance: float) -> tuple[list[float] | None, list[float] | None]:
    """By what coefficients of ranks' own gradients one process's is made, and the optimizer's."""
    own = [step.local for step in found.steps]
    if any(g is None or g.numel() != found.whole.numel() for g in own):
        return None, None
    own = [g.view_as(found.whole) for g in own]
    needs, has = (combination(own, g, tolerance) for g in (found.whole, found.gradients[0]))
    if needs and has:
        change = sum((b - a) * g.double() for a, b, g in zip(needs, has, own))
        if error(change, found.gradients[0].double() - found.whole.double()) > MOST_LEFT:
            return None, None
    return needs, has


def _fits_passes(difference: Difference, tolerance: float) -> tuple[list[list[float]], list[list[float]]] | None:
    """The coefficients of _fits for each of several backward passes, by pass and rank."""
    passes, n = [step.passes for step in difference.steps], len(difference.steps)
    count = len(passes[0])
    if count < 2 or any(len(columns) != count or columns[0].numel() != difference.whole.numel() for columns in passes):
        return None
    columns = [passes[rank][k].view_as(difference.whole) for k in range(count) for rank in range(n)]
    needs = combination(columns, difference.whole, tolerance)
    if not needs or not (has := combination(columns, difference.gradients[0], tolerance)):
        return None
    return tuple([c[k : k + n] for k in range(0, len(c), n)] for c in (needs, has))


def _weights_of_passes(difference: Difference, tolerance: float) -> str | None:
    """Ranks count for more, or less, in a backward pass of several than they do in one process, or passes do."""
    if not (fits := _fits_passes(difference, tolerance)):
        return None
    needs, has = fits
    totals = [sum(row) for row in has]
    if _even([c for row in needs for c in row]) and all(map(_even, has)) and not _even(totals):
        return (
            f"counts backward passes 1 to {len(totals)} as {_numbers(totals, sum(totals))}, and one process counts them alike: what "
            "is accumulated is scaled again in each. Scale each pass's own gradient, or all of them once"
        )
    k = max(range(len(needs)), key=lambda k: max(needs[k]) - min(needs[k]))
    if not _even(needs[k]) and _even(has[k]):
        return (
            f"counts {name_ranks(difference.ranks)} as {_numbers(has[k], sum(has[k]))} in backward pass {k + 1}, and one process counts "
            f"their rows as {_numbers(needs[k], sum(needs[k]))}: a mean of means. Divide each loss by the number of tokens of all "
            "ranks and micro-batches together"
        )
    return None


def _fits_rows(
    difference: Difference, evidence: Records, tolerance: float
) -> tuple[list[float] | None, list[float] | None]:
    """The coefficients of _fits if ranks have different numbers of rows, and each rank's gradient is their mean."""
    gradients, n = [step.local for step in difference.steps], len(difference.ranks)
    counts = [evidence.data_size(rank) for rank in difference.ranks]
    if len(set(counts)) < 2 or any(g is None or g.numel() != difference.whole.numel() for g in gradients):
        return None, None
    gradients = [g.view_as(difference.whole).double() for g in gradients]
    needs = [count / sum(counts) for count in counts]
    total, (scale, residual) = sum(gradients), factor(difference.gradients[0], sum(gradients))
    weighted = sum(a * g for a, g in zip(needs, gradients))
    fits = error(weighted, difference.whole) <= 10 * tolerance and residual <= 10 * tolerance and bool(total.any())
    return (needs, [scale] * n) if fits and error(total / n, difference.whole) > 10 * tolerance else (None, None)


def _even(coefficients: Sequence[float]) -> bool:
    nonzero = [c for c in coefficients if abs(c) > 1e-3]
    return all(close(c, nonzero[0], 1e-2) for c in nonzero)


def _numbers(coefficients: Sequence[float], total: float) -> str:
    """'0.38 and 0.62': each one's share."""
    *most, last = (f"{c / total:.2f}" for c in coefficients)
    return f"{', '.join(most)} and {last}" if most else last


def _weights(found: Difference, evidence: Records, tolerance: float) -> str | None:
    """Ranks count for more, or less, than they do in one process."""
    needs, has = _fits(found, tolerance)
    if not needs or not has:
        needs, has = _fits_rows(found, evidence, tolerance)
    if not needs or not has or len(clusters(found.gradients, tolerance)) > 1:
        return None
    left_out = [r for r, a, b in zip(found.ranks, needs, has) if abs(b) < 1e-3 * max(map(abs, has)) and abs(a) > 1e-3]
    if left_out:
        return f"lacks what {name_ranks(left_out)} {'adds' if len(left_out) == 1 else 'add'}: reduce it over all that hold it"
    scales = [b / a for a, b in zip(needs, has) if abs(a) > 1e-3]
    if all(close(scale, scales[0]) for scale in scales):
        return None  # a multiple
    if _even(needs):
        words = " and ".join(f"{scale:.3f}" for scale in scales[:2])
        return (
            f"is a sum in which each rank's own is scaled differently, by {words}{', ...' * (len(scales) > 2)}, as if it were "
            "clipped before it is reduced. Reduce it first, and scale it then"
        )
    text = (
        f"counts {name_ranks(found.ranks)} as {_numbers(has, sum(has))}, and one process counts their rows as "
        f"{_numbers(needs, sum(needs))}: a mean of means. Weight each rank's loss by its number of rows or tokens"
    )
    if sum(has) > 1.5 * sum(needs) and found.steps[0].line:
        text = f"is {sum(has) / sum(needs):.2f} times too large, and {text}"
    calls = {
        call_text(call): None for record in evidence.ranks[:1] for call in record.calls
        if call.step == 0 and not call.backward and call.numel == 1 and call.op == "all_reduce"
    }  # fmt: skip
    return text + (
        f". A single number is summed by {' and by '.join(list(calls)[:2])}: is it a count that is used as this rank's own afterward?"
        if calls
        else ""
    )


def _cut_first(found: Difference, evidence: Records, tolerance: float) -> str | None:
    """It was cut to each rank's own part first, and summed then: different parts were added."""
    gradients = {}
    for part in evidence.parts[found.target]:
        steps = evidence.ranks[part.rank].parameters[part.name].steps
        if len(steps) > found.step and steps[found.step].grad is not None:
            gradients.setdefault(part.places[0], (part.rank, steps[found.step].grad))
    ranks, held = [rank for rank, _ in gradients.values()], [g for _, g in gradients.values()]
    if len(held) < 2 or len(clusters(held, tolerance)) > 1:
        return None
    return (
        f"is the same on {name_ranks(ranks)}, which hold different parts: it was cut first and reduced afterward"
        f"{_by(_calls(found, evidence))}. Reduce first, then cut, as reduce_scatter does"
    )


def _scaled(differences: list[Difference], evidence: Records) -> str | None:
    """Every gradient is off by the same factor, which isn't a number of ranks: it was scaled as a whole."""
    k, tolerance = differences[0].step, evidence.tolerance * (10 if differences[0].step else 1)
    trained = {name for name, p in evidence.one.parameters.items() if len(p.steps) > k and p.steps[k].grad is not None}
    if len(trained) < 2 or {found.target for found in differences} != trained:
        return None
    factors: dict[int, list[float]] = {}
    for found in differences:
        multiples = _multiples(found, tolerance)
        if multiples is None or 0 in multiples:
            return None
        for rank, scale in zip(found.ranks, multiples):
            factors.setdefault(rank, []).append(scale)
    if any(not close(scale, scales[0], 1e-2) for scales in factors.values() for scale in scales):
        return None
    scales = [scales[0] for _, scales in sorted(factors.items())]
    if all(close(scale, scales[0], 1e-2) for scale in scales):
        if any(close(s, round(s), 1e-2) and s > 0.5 or close(1 / s, round(1 / s), 1e-2) for s in scales[:1]):
            return None  # a sum for a mean, or the reverse
        calls = {
            call_text(call): None for call in evidence.ranks[0].calls
            if call.step == k and call.backward and call.numel == 1 and not call.about
        }  # fmt: skip
        hint = f" It was made by {list(calls)[-1]}" if calls else ""
        return (
            f"is {scales[0]:.3f} times one process's, and so are all others: they were scaled together, as clipping does. A "
            "norm over ranks must count each tensor once: what all ranks hold counts on one of them, and parts on "
            f"all.{hint}"
        ).rstrip(".")
    words = ", ".join(f"{scale:.3f}" for scale in scales)
    return (
        f"is {words} times one process's on {name_ranks(sorted(factors))}, and so are all others: each rank scales by its "
        "own number, such as the norm of the parts that it holds. all_reduce the squares first"
    )


# --- calls --------------------------------------------------------------------------------


def _calls(found: Difference, evidence: Records) -> list[CallMade]:
    """The calls that were passed this gradient, on the first rank that holds it."""
    part = found.parts[0]
    name = f"gradient of {part.name}"
    return [c for c in evidence.ranks[part.rank].calls if c.step == found.step and name in c.about]


def call_text(call: CallMade) -> str:
    return f"{call.op}{f' in {call.line}' if call.line else ''} over {name_ranks(call.ranks)}"


def _by(calls: Sequence[CallMade]) -> str:
    return f" ({call_text(calls[-1])})" if calls else ""


def _where(found: Difference) -> str:
    return f" ({found.steps[0].line})" if found.steps[0].line else ""


def _cut_off(evidence: Records) -> str:
    """A call that was passed something without its history."""
    call = next((call for record in evidence.ranks for call in record.calls if call.cut_off), None)
    if call is None:
        return ""
    return (
        f". {call_text(call)} was passed {call.cut_off} without its history, so no gradient goes back through it: use "
        "torch's functional collectives"
    )


# --- other reasons ------------------------------------------------------------------------


def never_alike(name: str, ranks: list[int]) -> str:
    return (
        f"`{name}`: its first values differ between {name_ranks(ranks)}, which take the same gradient: these replicas were "
        "never alike. broadcast rank 0's parameters before the first step, or draw them from one seed"
    )


def held_by_none(name: str, other: str, ranks: list[int]) -> str:
    return (
        f"`{name}`: no rank holds it, and {name_ranks(ranks)} all hold `{other}`: does each stage count its layers from 0? "
        "Names need the number of the stage's first layer"
    )


def rest_held_by_none(name: str, rest: str, part: str, n: int) -> str:
    return (
        f"`{name}`: no rank holds {rest}, which one process trains, and {name_ranks(range(n))} all hold {part}: does each rank take "
        "the first part? Its own begins at its rank times the size of a part"
    )


def update(name: str, rank: int, step: int, change: torch.Tensor, whole: torch.Tensor, unseen: bool) -> str:
    """unseen: no optimizer was seen to take its gradient."""
    k, residual = factor(change, whole)
    how = f"changes {k:.2f} times as much" if residual < 5e-2 else "changes otherwise"
    how = how if change.any() else "doesn't change"
    start = f"`{name}`: on rank {rank} it {how} in step {step + 1}"
    if unseen:
        return f"{start}: compare the gradients from which its update is made"
    return (
        f"{start}, although its gradient is one process's: compare the optimizers' settings, and pass updated parts around "
        "after the step"
    )


def amplified(name: str) -> str:
    return (
        f"one process itself computes a different `{name}` once its gradients are rounded differently: what the program makes of "
        "them amplifies rounding, as singular vectors of a singular matrix do. For the comparison, take steps with SGD, or give "
        "the first steps more rows"
    )


def settings(ranks: list[dict], one: list[dict], n: int) -> str:
    for mine, theirs in zip(ranks, one):
        for key in mine:
            if mine[key] != theirs.get(key):
                return (
                    f"the optimizer's {key} is {mine[key]} with {n} ranks and {theirs.get(key)} in one process: fix it for "
                    "the comparison"
                )
    return "the optimizers' groups differ between ranks and one process: give both the same ones"


def noted(name: str, found: Relation, ranks: list[FirstSteps]) -> str:
    if found.letter == "?":
        return (
            f"`{name}`: what ranks hold is unrelated to one process's: not equal, no parts of it, and no partial sums"
        )
    return (
        f"`{name}`: {found.factor:.2f} times one process's on all ranks: it was summed over ranks that held it whole already, "
        "or divided once too often"
    )


def buffer(name: str, layout: Relation, ranks: list[int], differ: bool) -> str:
    """differ: between ranks."""
    if layout.letter == "P":
        how = f"is a partial sum over {name_ranks(ranks)}: each has its own part of one process's"
    elif layout.letter == "M":
        how = f"is each rank's own on {name_ranks(ranks)}, and one process's is their mean"
    elif differ:
        how = f"differs between {name_ranks(ranks)}, and from one process's"
    elif layout.letter == "?":
        how = f"is the same on {name_ranks(ranks)}, and unrelated to one process's"
    else:
        how = f"is {layout.factor:.2f} times one process's on {name_ranks(ranks)}"
    return f"the buffer `{name}` {how}. Reduce it before it's used, or saved, as the whole model's"


def read(line: str, k: int, numbers: list[float], expected: list[float], n: int) -> str:
    a, b = (", ".join(f"{number:.4g}" for number in numbers) for numbers in (numbers, expected))
    when = f", at its reading {k + 1}" if k else ""
    return (
        f"the first number that the program reads and that differs is in {line}{when}: {a} on each of {n} ranks, and {b} in "
        "one process. Unless it is a sum over ranks that has yet to be divided, look at the calls before it"
    )


def output(
    name: str, held: torch.Tensor, whole: torch.Tensor, biases: Mapping[str, torch.Tensor], tolerance: float
) -> str:
    rest = held.double() - whole.double()
    for bias, values in biases.items():
        if values is not None and values.dim() == 1 and rest.dim() and rest.shape[-1] == len(values):
            k, residual = factor(rest, values.double().expand_as(rest))
            if residual <= max(100 * tolerance, 1e-3) and close(k, round(k), 1e-2) and k > 0.5:
                return (
                    f"`{bias}`: the output of `{name}` contains it {round(k) + 1} times: every rank adds it before the partial "
                    "sums are added up. Add it once, after the all_reduce"
                )
    k, residual = factor(held, whole)
    times = f"{k:.2f} times one process's" if residual <= tolerance else "different from one process's"
    return f"`{name}`: its output is the same on all ranks, and {times}. What is before it in the forward pass agrees"


def not_compared(missing: list[str], held: bool) -> str:
    names = ", ".join(f"`{name}`" for name in missing[:3]) + (" and others" if len(missing) > 3 else "")
    if held:
        return f"ranks hold {names}, and no optimizer there takes the gradient that it takes in one process"
    return f"no rank holds {names} under a name or with values by which it could be found: pass in one model, and let each rank take its part"


def dtype_words(dtypes: Sequence[torch.dtype]) -> str:
    return " and ".join(map(dtype_name, dtypes))
