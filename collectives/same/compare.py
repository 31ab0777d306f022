"""The first tensor that ranks and one process don't have in common, from their records."""

from collections import defaultdict
from dataclasses import replace
from typing import Callable, Sequence

import torch

from ..format import name_ranks
from . import clues, mistakes
from .findings import Comparison, Difference, RankPart, Records, TensorRow
from .naming import Pair, renamed
from .places import Region, block, places
from .records import FirstSteps, TensorStep
from .relation import NOISE, TOLERANCES, Relation, close, clusters, error, factor, relation
from .replay import Join, joins, same_numbers

LATER = 10  # times the tolerance from the second step on: rounding goes through an optimizer
MOST_BUFFERS = 3  # that are named
UPDATES = 5e-2  # tolerance of parameters' changes: Adam makes the sign of a gradient that is nearly zero count


class _CannotCompare(Exception):
    """The reason, and what to change."""


def compare(ranks: Sequence[FirstSteps], one: FirstSteps) -> Comparison:
    """Compare the records of a job's ranks with one process's that got all their data."""
    return _Comparing(list(ranks), one).judged()


def beside_one_process(ranks: Sequence[FirstSteps], alone: Callable[[Join, int], FirstSteps | str]) -> Comparison:
    """Compare with one process, which `alone` runs.

    alone: returns its record, or a sentence on why it can't run.  Its arguments are what it gets of all ranks (the next Join
        only if it can't be compared with the last), and how its gradients are shaken (see first_steps.recorded).
    """
    latest: Comparison | None = None
    for join in joins([record.feed for record in ranks]):
        single = alone(join, 0)
        if isinstance(single, str):
            comparison = Comparison("cannot compare", single, len(ranks), remarks=clues.of_ranks(ranks))
        else:
            comparison = compare(ranks, single)
            if comparison.stepped and (amplified := _amplified(single, lambda shaken: alone(join, shaken))):
                comparison = replace(comparison, verdict="cannot compare", reason=amplified, first="")
        if comparison.verdict != "cannot compare":
            return comparison
        if latest is None or not isinstance(single, str):
            latest = comparison
    return latest


def _amplified(one: FirstSteps, shaken: Callable[[int], FirstSteps | str]) -> str:
    """Why a difference after a step means nothing, if one process differs from itself once its gradients are shaken."""
    for record in map(shaken, (1, -1)):  # of which one turns a singular vector that rounding made
        again = None if isinstance(record, str) else compare([record], one)
        if again and again.verdict == "differs":
            return mistakes.amplified(again.first)
    return ""


class _Comparing(Records):
    def __init__(self, ranks: list[FirstSteps], one: FirstSteps) -> None:
        dtypes = set().union(one.dtypes, *(record.dtypes for record in ranks))
        dtypes |= {p.first.dtype for p in one.parameters.values() if p.first is not None}
        super().__init__(ranks, one, max((TOLERANCES.get(dtype, 1e-4) for dtype in dtypes), default=1e-4))
        self.coarse = [dtype for dtype in (torch.bfloat16, torch.float16) if dtype in dtypes]
        self.lost: list[tuple[int, str]] = []  # (rank, name) whose first values are nowhere in one process
        self.rows: dict[str, TensorRow] = {}
        self.compared: set[str] = set()
        self.updated: set[str] = set()  # parameters with only their values after steps to compare
        self.steps, self.worst, self.stepped = 0, 0.0, False
        self.remarks = sorted({remark for record in ranks for remark in record.remarks})

    def judged(self) -> Comparison:
        try:
            first, reason = self._first() or ("", "")
            if not first:
                self._enough()
        except _CannotCompare as why:
            self.remarks += [*clues.of_ranks(self.ranks, self.one), *self._buffers(), *self._read()]
            return self._comparison("cannot compare", str(why))
        self.remarks += self._buffers()
        if first:
            self.remarks += clues.of_ranks(self.ranks, self.one)
            return self._comparison("differs", reason, first)
        self.remarks += clues.of_copies(self.ranks, self.one)
        return self._comparison("same", self._counts())

    def _comparison(self, verdict: str, reason: str, first: str = "") -> Comparison:
        rows = list(self.rows.values())
        found = len(self.compared), self.steps, self.worst
        return Comparison(verdict, reason, self.n, first, rows, *found, self.remarks, self.stepped and verdict == "differs")

    def _counts(self) -> str:
        notes = [name for name in self.one.notes if name in self.rows]
        steps = _count(self.steps, "step")
        counted = [
            (len(self.compared), f"the gradients of {_count(len(self.compared), 'tensor')} in {steps}"),
            (len(self.updated), f"the updates of {_count(len(self.updated), 'tensor')} in {steps}"),
            (len(notes), _count(len(notes), "noted tensor")),
        ]
        text = f"{' and '.join(words for k, words in counted if k)} agree with one process"
        if self.compared:
            text += f", up to {self.worst:.0e} of each one's norm"
        if self.updated:
            text += "; where only updates were compared, Adam hides a wrong factor"
        if self.coarse:
            text += f"; {mistakes.dtype_words(self.coarse)} hides differences below {self.tolerance:.0%}, which float32 shows"
        return text

    def _first(self) -> tuple[str, str] | None:
        """The first tensor that differs, and the reason."""
        self._place()
        self._held_rows()
        if found := self._never_alike() or self._held_by_none():
            return found
        if found := self._noted():
            self._comparable()
            self.stepped = "#" in found[0]
            return found
        steps = max((len(p.steps) for p in self.one.parameters.values()), default=0)
        for k in range(steps):
            if differences := self._gradients(k):
                self._comparable()
                self._judged_by_its_gradient(differences[0])
                self.stepped = k > 0
                if k == 0 and (output := self._output()):
                    return output
                return mistakes.of(differences, self)
            if found := self._updates(k):
                self.stepped = True
                return found
        return None

    # Places.

    def _place(self) -> None:
        constant: list[tuple[int, str]] = []
        pairs: dict[int, list[Pair]] = defaultdict(list)
        for rank, record in enumerate(self.ranks):
            for name, p in record.parameters.items():
                if p.first is not None and p.first.numel() > 1 and bool((p.first == p.first.flatten()[0]).all()):
                    constant.append((rank, name))
                elif target := self._located(rank, name, [name]) or self._located(rank, name, self._like(name)):
                    pairs[rank].append((name, target))
        for rank, name in constant:
            self._located(rank, name, renamed(name, pairs[rank]))
        held = {(part.rank, part.name) for parts in self.parts.values() for part in parts}
        self.lost = [
            (rank, name) for rank, record in enumerate(self.ranks) for name, p in record.parameters.items()
            if (rank, name) not in held and 0 not in p.shape
        ]  # fmt: skip

    def _like(self, name: str) -> list[str]:
        return [other for other in self.one.parameters if other != name and _last(other) == _last(name)]

    def _located(self, rank: int, name: str, targets: list[str]) -> str | None:
        """The first of these names of one process that has the values of this rank's part; notes where."""
        p = self.ranks[rank].parameters[name]
        for target in targets:
            w = self.one.parameters.get(target)
            if w is None:
                continue
            found = []
            if p.start is not None and p.whole == w.shape and p.first is not None:
                at = block(p.start, p.shape, w.shape)
                if w.first is None or torch.equal(at.of(w.first), p.first):
                    found = [at]
            if not found and p.first is not None and w.first is not None:
                found = places(p.first, w.first)
            elif not found and p.shape == w.shape and target == name:
                found = [Region((None,) * len(w.shape))]
            if found:
                self.parts[target].append(RankPart(rank, name, tuple(found)))
                return target
        return None

    def _held_rows(self) -> None:
        for target, w in self.one.parameters.items():
            if parts := self.parts.get(target):
                self.rows[target] = TensorRow(target, _layout(parts, w.shape, self.n), "")

    # First values.

    def _never_alike(self) -> tuple[str, str] | None:
        for name in dict.fromkeys(name for _, name in self.lost):
            w = self.one.parameters.get(name)
            held = {
                rank: record.parameters[name] for rank, record in enumerate(self.ranks) if name in record.parameters
            }
            wholes = [rank for rank, p in held.items() if w is not None and p.shape == w.shape and p.first is not None]
            if len(wholes) == len(held) > 1 and len(clusters([held[rank].first for rank in wholes], 0.0)) > 1:
                taken = [p.steps[0].grad for p in held.values() if p.steps and p.steps[0].taken]
                if len(taken) == len(held) and None not in taken and len(clusters(taken, self.tolerance)) == 1:
                    self.rows[name] = TensorRow(name, "replicas", "different first values")
                    return name, mistakes.never_alike(name, wholes)
                raise _CannotCompare(
                    f"`{name}` has different first values on {name_ranks(wholes)}: divided, or never alike? If these are "
                    "replicas, broadcast rank 0's before the first step; if they are parts of a larger model, pass that "
                    "in, and let each rank take its part"
                )
            where = name_ranks([rank for rank, other in self.lost if other == name])
            if w is None:
                raise _CannotCompare(
                    f"one process has no `{name}`, which {where} trains: pass one process's program as `reference`"
                )
            if (
                any(a > b for rank, p in held.items() for a, b in zip(p.shape, w.shape))
                or wholes
                and len(wholes) < len(held)
            ):
                raise _CannotCompare(
                    f"the size of `{name}` depends on the number of ranks: {list(held[min(held)].shape)} there, "
                    f"{list(w.shape)} in one process. Fix the sizes, or pass one process's program as `reference`"
                )
            raise _CannotCompare(
                f"`{name}` starts with other values on {where} than in one process: draw the model from a fixed seed, or "
                "pass it in, and let each rank take its part"
            )
        return None

    def _held_by_none(self) -> tuple[str, str] | None:
        missing = [name for name, p in self.one.parameters.items() if _is_trained(p.steps) and name not in self.parts]
        for name in missing:
            for other, parts in self.parts.items():
                words, others = name.split("."), other.split(".")
                counted = [a != b for a, b in zip(words, others)]
                if len(words) == len(others) and sum(counted) == 1 and words[counted.index(True)].isdigit():
                    if 1 < len(parts) and _is_trained(self.one.parameters[other].steps):
                        self.rows[name] = TensorRow(name, "no rank", "missing")
                        return name, mistakes.held_by_none(name, other, [part.rank for part in parts])
        return self._rest_held_by_none()

    def _rest_held_by_none(self) -> tuple[str, str] | None:
        """A tensor of which all ranks hold the same part, while one process trains the rest, too."""
        for name, parts in self.parts.items():
            w, regions = self.one.parameters[name], {place for part in parts for place in part.places}
            if len(regions) > 1 or len({part.rank for part in parts}) < self.n or not _is_trained(w.steps[:1]):
                continue
            [place], gradient = regions, w.steps[0].grad
            cut = [d for d, positions in enumerate(place.index) if positions is not None]
            if len(cut) == 1 and self.n > 1:
                rows = tuple(k for k in range(w.shape[cut[0]]) if k not in place.index[cut[0]])
                rest = Region(tuple(rows if d == cut[0] else None for d in range(len(w.shape))))
                if bool(rest.of(gradient).any()):
                    self.rows[name] = TensorRow(name, "the same part on all ranks", "the rest is missing")
                    return name, mistakes.rest_held_by_none(name, rest.text(w.shape), place.text(w.shape), self.n)
        return None

    # Gradients.

    def _gradients(self, k: int) -> list[Difference]:
        """The differences in step k, in the order of a backward pass."""
        tolerance = self.tolerance * (LATER if k else 1)
        wholes = {
            name: p.steps[k].grad for name, p in self.one.parameters.items()
            if len(p.steps) > k and p.steps[k].taken and p.steps[k].grad is not None
        }  # fmt: skip
        largest = max((_rms(w) for w in wholes.values()), default=0.0)
        differences = []
        for target in reversed(wholes):
            w, shape = wholes[target], self.one.parameters[target].shape
            taken = [(part, step) for part in self.parts.get(target, ()) if (step := self._step(part, k))]
            for place, held in _by_place(taken, w, tolerance).items():
                whole = place.of(w)
                floor = NOISE * tolerance * largest * whole.numel() ** 0.5
                parts, steps = [part for part, _ in held], [step for _, step in held]
                found = Difference(target, place, k, parts, steps, whole, w, shape)
                errors = [float((g.double() - whole.double()).norm()) for g in found.gradients]
                allowed = tolerance * float(whole.double().norm()) + floor
                if max(errors) > allowed and self._counts_here(found):
                    differences.append(found)
                else:
                    if float(whole.norm()):
                        self.compared.add(target)
                        self.steps = max(self.steps, k + 1)
                    if max(errors) <= allowed and float(whole.norm()) > 10 * floor:
                        self.worst = max(self.worst, max(errors) / float(whole.double().norm()))
                    if target in self.rows and not self.rows[target].found:
                        self.rows[target] = self.rows[target]._replace(found="gradient equal")
        for found in differences:
            if target_row := self.rows.get(found.target):
                self.rows[found.target] = target_row._replace(found=mistakes.briefly(found, tolerance))
        return differences

    def _step(self, part: RankPart, k: int) -> TensorStep | None:
        steps = self.ranks[part.rank].parameters[part.name].steps
        return steps[k] if len(steps) > k and steps[k].taken else None

    def _counts_here(self, found: Difference) -> bool:
        """Whether the program's own arithmetic has used a gradient that differs: its values then differ, too."""
        if not all(step.by_hand and step.line for step in found.steps):
            return True
        w = self.one.parameters[found.target]
        if w.first is None or w.steps[found.step].after is None or any(step.after is None for step in found.steps):
            return True
        before = w.first if not found.step else w.steps[found.step - 1].after
        for part, step in zip(found.parts, found.steps):
            own = self.ranks[part.rank].parameters[part.name]
            start = own.first if not found.step else own.steps[found.step - 1].after
            if start is None or error(step.after - start, found.place.of(w.steps[found.step].after - before)) > UPDATES:
                return True
        return False

    def _judged_by_its_gradient(self, difference: Difference) -> None:
        """Raise _CannotCompare if a gradient that differs may be right: each rank's own, or not what the program uses."""
        calls = [call for rank in difference.ranks for call in self.ranks[rank].calls if call.step == difference.step]
        reduced = any(f"gradient of {part.name}" in call.about for part in difference.parts for call in calls)
        after = [call for call in calls if call.backward and not call.unwinding and "reduce" in call.op]
        copies = [call for call in after if any(owner.startswith("copy of") for owner in call.about)]
        copies += [call for call in after if not call.about and call.numel > difference.whole.numel()]
        if any(step.line is None for step in difference.steps):
            scale, rest = factor(difference.gradients[0], difference.whole)
            sums = (
                rest <= 3 * self.tolerance and close(scale, len(difference.ranks), 1e-2) and len(difference.ranks) > 1
            )
            if copies or sums:
                why = (
                    f"{mistakes.call_text(copies[0])} is passed a copy of it"
                    if copies
                    else "a sum may be divided later"
                )
                raise _CannotCompare(
                    f"nothing takes the gradient of `{difference.label}`, and {why}: let an optimizer step, so that what is used is "
                    "known"
                )
        averages = [call for rank in difference.ranks for call in self.ranks[rank].calls if mistakes.averages(call)]
        if not reduced and averages and difference.steps[0].taken:
            raise _CannotCompare(
                f"ranks take steps with gradients of their own, and {mistakes.call_text(averages[0])} reduces parameters, as local SGD "
                "does on purpose: one process takes other steps. For the comparison, reduce them after every step"
            )
        if not reduced and mistakes.exchanged(difference, self) and mistakes.is_partial_sum(difference, self.tolerance):
            raise _CannotCompare(mistakes.copy_or_own(difference))

    # Updates.

    def _updates(self, k: int) -> tuple[str, str] | None:
        """A parameter that has changed otherwise after step k, although gradients agree."""
        allowed = min(UPDATES * self.tolerance / 1e-4, 0.3) if self.coarse else UPDATES
        firsts = [s.local if s.grad is None else s.grad for p in self.one.parameters.values() for s in p.steps[:1]]
        largest = max((_rms(g) for g in firsts if g is not None), default=0.0)
        for target, w in self.one.parameters.items():
            step = w.steps[k] if len(w.steps) > k else None
            gradient = step and (step.local if step.grad is None else step.grad)
            if gradient is None or step.after is None or w.first is None or _rms(gradient) < 1e-3 * largest:
                continue
            for part in self.parts.get(target, ()):
                own = self.ranks[part.rank].parameters[part.name]
                values = own.steps[k].after if len(own.steps) > k else None
                if values is None or own.first is None or len(part.places) > 1:
                    continue
                change, whole = values - own.first, part.places[0].of(step.after - w.first)
                rounding = (k + 1) * torch.finfo(values.dtype).eps * values.abs()  # of all its values since the first
                excess = ((change - whole).abs() - rounding).clamp(min=0)
                if float(excess.norm()) > allowed * float(whole.norm()) > 0:
                    self._comparable()
                    if (settings := self.ranks[part.rank].settings) != self.one.settings:
                        raise _CannotCompare(mistakes.settings(settings, self.one.settings, self.n))
                    self.rows[target] = self.rows[target]._replace(found="its update differs")
                    return target, mistakes.update(target, part.rank, k, change, whole, step.unseen)
                if step.unseen and float(whole.norm()):
                    self.updated.add(target)
                    self.steps = max(self.steps, k + 1)
                    self.rows[target] = self.rows[target]._replace(found="update equal")
        return None

    # Notes and outputs.

    def _noted(self) -> tuple[str, str] | None:
        for name, w in self.one.notes.items():
            held = [record.notes.get(name) for record in self.ranks]
            if any(part is None for part in held):
                continue
            found = relation(held, w, 10 * self.tolerance)
            self.rows[name] = TensorRow(name, Relation(found.letter).words(), "equal")
            if found.letter == "?" or abs(found.factor - 1) > max(10 * self.tolerance, 1e-3):
                word = "unrelated" if found.letter == "?" else f"{found.factor:.2f} times one process's"
                self.rows[name] = self.rows[name]._replace(found=word)
                return name, mistakes.noted(name, found, self.ranks)
        return None

    def _output(self) -> tuple[str, str] | None:
        """The first output that all ranks have in common, and one process has otherwise."""
        for name, w in self.one.outputs.items():
            held = [record.outputs.get(name) for record in self.ranks]
            if any(part is None or part.shape != w.shape for part in held) or not self._is_whole(
                name.partition("#")[0]
            ):
                continue
            if len(clusters(held, self.tolerance)) == 1 and error(held[0], w) > 10 * self.tolerance:
                said = name or "the model"
                self.rows[f"output of {said}"] = TensorRow(f"output of {said}", "replicated", "differs")
                biases = {
                    part: self.ranks[0].parameters[part].first for part in self.one.parameters
                    if part.startswith(f"{name.partition('#')[0]}.") and _last(part) == "bias" and part in self.ranks[0].parameters
                }  # fmt: skip
                return said, mistakes.output(said, held[0], w, biases, self.tolerance)
        return None

    def _is_whole(self, module: str) -> bool:
        """Whether every rank holds a part of each parameter of a module, under its own name."""
        names = [name for name in self.one.parameters if name.startswith(f"{module}." if module else "")]
        return all(
            len({part.rank for part in self.parts.get(name, ()) if part.name == name}) == self.n for name in names
        )

    # Buffers, and numbers that the program reads.

    def _buffers(self) -> list[str]:
        """A sentence for each buffer of a module that ranks don't hold as one process does."""
        sentences = []
        for name, single in self.one.buffers.items():
            pairs = [(rank, record.buffers[name]) for rank, record in enumerate(self.ranks) if name in record.buffers]
            if not pairs or not single.numel():
                continue
            ranks, tensors = [rank for rank, _ in pairs], [buffer for _, buffer in pairs]
            layout = relation(tensors, single, max(UPDATES, 10 * self.tolerance))
            alike = layout.letter[0] in "RS" and abs(layout.factor - 1) <= UPDATES
            self.rows[f"buffer {name}"] = TensorRow(f"buffer {name}", layout.words(), "equal" if alike else "differs")
            if not alike:
                sentences.append(mistakes.buffer(name, layout, ranks, len(clusters(tensors, self.tolerance)) > 1))
        more = len(sentences) - MOST_BUFFERS
        return [*sentences[:MOST_BUFFERS], *([f"so do {more} other buffers"] if more > 0 else [])]

    def _read(self) -> list[str]:
        """A sentence on the first number that the program reads, the same on all ranks, and different in one process."""
        if self._same_rows():
            for line, values in self.one.reads.items():
                for k, (single, *parts) in enumerate(
                    zip(values, *(record.reads.get(line, ()) for record in self.ranks))
                ):
                    if all(part == parts[0] for part in parts) and not _near(parts[0], single):
                        return [mistakes.read(line, k, parts[0], single, self.n)]
        return []

    # Doubts.

    def _comparable(self) -> None:
        """Raise _CannotCompare if a difference might be no mistake."""
        if reason := next((doubt for record in self.ranks for doubt in record.doubts), None):
            raise _CannotCompare(reason)
        if not self._same_rows():
            raise _CannotCompare(
                "the ranks' rows together aren't one process's. Give the data a seed that doesn't depend on the rank, "
                "or mark what a rank reads: x = data(x), from collectives.same"
            )

    def _same_rows(self) -> bool:
        """Whether the numbers that entered the models are the same, each as many times as the others."""
        inputs = [x for record in self.ranks for x in record.inputs]
        if inputs and self.one.inputs:
            return same_numbers(inputs, self.one.inputs)
        feeds, alone = [record.feed.sources for record in self.ranks], self.one.feed.sources
        return all(
            same_numbers(list(parts), [single])
            for line in alone
            for single, *parts in zip(alone[line], *(sources.get(line, ()) for sources in feeds))
        )

    def _enough(self) -> None:
        """Raise _CannotCompare if agreement means little: nothing was seen, or not all that was trained."""
        if self.ranks[0].stale:
            raise _CannotCompare(self.ranks[0].stale)
        trained = [
            name for name, p in self.one.parameters.items()
            if any(step.unseen or step.taken and step.grad is not None and bool(step.grad.any()) for step in p.steps)
        ]  # fmt: skip
        if not trained and not (self.one.notes and self.rows):
            raise _CannotCompare(
                'no gradient of a parameter was seen. Mark the tensors to compare: note("w", w), from collectives.same'
            )
        if missing := [name for name in trained if name not in self.compared | self.updated]:
            raise _CannotCompare(mistakes.not_compared(missing, bool(self.parts.get(missing[0]))))


def _near(numbers: list[float], expected: list[float]) -> bool:
    return len(numbers) == len(expected) and all(
        abs(a - b) <= 1e-3 * max(abs(a), abs(b), 1e-6) for a, b in zip(numbers, expected)
    )


def _by_place(
    taken: list[tuple[RankPart, TensorStep]], whole: torch.Tensor, tolerance: float
) -> dict[Region, list[tuple[RankPart, TensorStep]]]:
    """The ranks that hold each place.  A rank with several possible places has the one at which its gradient fits."""
    found: dict[Region, list[tuple[RankPart, TensorStep]]] = defaultdict(list)
    for part, step in taken:
        chosen = part.places[0]
        if len(part.places) > 1 and step.grad is not None:
            chosen = min(part.places, key=lambda place: error(step.grad.view_as(place.of(whole)), place.of(whole)))
        found[chosen].append((part, step))
    return found


def _layout(parts: list[RankPart], shape: tuple[int, ...], n: int) -> str:
    """'replicated', 'sharded in 4 along dimension 0', 'whole on ranks 0 and 1'"""
    different = {part.places[0] for part in parts}
    ranks = [part.rank for part in parts]
    if different == {Region((None,) * len(shape))}:
        return "replicated" if len(set(ranks)) == n > 1 else f"whole on {name_ranks(sorted(set(ranks)))}"
    dims = sorted({d for place in different for d, positions in enumerate(place.index) if positions is not None})
    along = f" along dimension{'s' * (len(dims) > 1)} {' and '.join(map(str, dims))}" if dims else ""
    return f"sharded in {len(different)}{along}"


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _is_trained(steps: list[TensorStep]) -> bool:
    return any(step.taken and step.grad is not None for step in steps)


def _rms(tensor: torch.Tensor) -> float:
    return float(tensor.double().norm()) / max(1, tensor.numel()) ** 0.5


def _count(k: int, noun: str) -> str:
    return f"{k} {noun}{'s' * (k != 1)}"
