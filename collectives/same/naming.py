"""Names of parameters that mean the same on a rank and in one process, learned from those with unmistakable values."""

from collections import Counter
from typing import Sequence

Pair = tuple[str, str]  # a parameter's name on a rank, and in one process


def renamed(name: str, pairs: Sequence[Pair]) -> list[str]:
    """Likely names in one process, best first, for a parameter whose values are found at several names.

    pairs: the names of one rank.  A stage may be called "layer.0" where one process has "model.layers.2": the longest known
    prefix is replaced.  A stage that counts from 0 differs in one number: the same is added to it.
    """
    words = name.split(".")
    prefixes: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
    shifts: Counter[tuple[int, tuple[str, ...], int]] = Counter()
    for own, target in pairs:
        a, b = own.split("."), target.split(".")
        while a and b and a[-1] == b[-1]:
            a.pop()
            b.pop()
        if a == words[: len(a)]:
            prefixes[tuple(a), tuple(b)] += 1
        k, digits = len(a) - 1, [*a[-1:], *b[-1:]]
        if a[:-1] == b[:-1] and len(digits) == 2 and all(word.isdigit() for word in digits):
            shifts[k, tuple(a[:-1]), int(b[-1]) - int(a[-1])] += 1
    likely = sorted(prefixes, key=lambda pair: (-len(pair[0]), -prefixes[pair]))
    names = [".".join([*b, *words[len(a) :]]) for a, b in likely if a]
    for (k, before, shift), _ in shifts.most_common():
        if tuple(words[:k]) == before and len(words) > k and words[k].isdigit():
            names.append(".".join([*before, str(int(words[k]) + shift), *words[k + 1 :]]))
    names += [".".join([*b, *words]) for a, b in likely if not a]
    return list(dict.fromkeys([*names, name]))
