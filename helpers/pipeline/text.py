"""A pipeline schedule in words: each rank's order."""

from __future__ import annotations

from .model import BasePipeline, kept

MAX_CHARACTERS = 56  # of a rank's order; a longer one is cut in the middle


def text(s: BasePipeline) -> str:
    """A line a rank; the stage before an action where a rank has several."""
    several = any(len(s.held(rank)) > 1 for rank in range(s.ranks))
    lines = [title(s)]
    for rank, row in enumerate(s.rows):
        words = [str(a) if several else a.short for a in row]
        lines.append(f"  rank {rank} keeps {max(kept(s, rank)):<6g}{_cut(words)}")
    return "\n".join(lines)


def _cut(words: list[str]) -> str:
    """The words, or as many first and last ones as there is room for."""
    fits = len(words)
    while (
        len(" ".join(shown := words[: -(-fits // 2)] + ["..."] * (fits < len(words)) + words[len(words) - fits // 2 :]))
        > MAX_CHARACTERS
    ):
        fits -= 1
    return " ".join(shown)


def title(s: BasePipeline) -> str:
    stages = f", {s.stages} stages" * (s.stages != s.ranks)
    return f"{s.name}: {s.ranks} rank{'s' * (s.ranks > 1)}{stages}, {s.microbatches} microbatch{'es' * (s.microbatches > 1)}"
