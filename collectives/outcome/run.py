"""`Run`: the return value of `run`, with its picture and its table."""

from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Mapping, Sequence

import torch

from ..format import align, short
from ..frontend import show
from ..judge.diagnose import may_be_lost
from ..log.calls import Call, blocks, pair
from ..log.event import Event, Value
from ..log.text import all_discarded, all_dropped, block_table, block_tables, failed_calls
from ..log.text import is_discarded, is_failed, loss_notes
from ..log.transfers import steps_of

SHOWN_BLOCKS = 3  # of a run that is abridged on display
SHORTENED = 6  # blocks from which a run is abridged: one or two beyond SHOWN_BLOCKS are shown rather than counted
SHOWN_MESSAGES = 12  # likewise one exchange of messages


@dataclass(repr=False)
class Run:
    """The return value of `run`: the results, and all communication between the ranks."""

    world_size: int
    results: list[Any] = field(default_factory=list)  # per rank: fn's return value
    events: list[list[Event]] = field(default_factory=list)  # per rank, in call order
    stdout: list[str] = field(default_factory=list)  # per rank: the text it printed
    seconds: float = 0.0  # from the call of run to the last result
    # Per rank: bytes its sockets carried while fn ran, gloo's headers included; None where that isn't known (macOS).
    sent: list[int | None] = field(default_factory=list)
    received: list[int | None] = field(default_factory=list)
    name: str = "fn"  # of the function that ran
    began: float = 0.0  # second 0 of its events' times, as Unix time; 0: not known
    losses: Mapping[int, str] = field(default_factory=dict)  # see run's may_lose. By rank, how: "was killed by SIGKILL"
    caught: Sequence[Mapping] = field(default_factory=list)  # per rank: by place, the latest exception that fn caught there

    @property
    def calls(self) -> list[Call]:
        """The events of all ranks, put together into collectives and messages, in order."""
        return pair(self.events)

    @property
    def steps(self) -> int:
        """The length of the longest chain of calls that had to wait for one another."""
        return 1 + max(steps_of(self.calls), default=-1)

    def draw(self, which: int | slice | None = None, letters: bool = False):
        """The picture of this run: a matplotlib Figure.  Messages that follow each other share one panel.

        which: the index of one call in `.calls`, or a slice of them; by default all
        panels, or the first SHOWN_BLOCKS of many.  Raises IndexError for a call that did not happen.
        letters: with R, S or P beside "before" and "after", as the collective's meaning has it.
        """
        from ..draw.panels import draw_calls  # who opens a record needs no matplotlib to read it

        calls = self.calls
        return draw_calls(_blocks(calls) if which is None else blocks(_select(calls, which)), calls, letters)

    def table(self, which: int | slice | None = None, letters: bool = False) -> str:
        """The picture in words, for all calls or the chosen ones."""
        return block_tables(blocks(self.chosen(which)), letters)

    def on(self, backend: str) -> str:
        """How these calls would go on "nccl", as far as its rules determine that: a note, in words.

        Raises ValueError for a different backend, or if not all calls of the run ended well.
        """
        from ..judge.wording import forecast  # few runs ask for it

        return forecast.note(backend, self.calls, self.events)

    def chosen(self, which: int | slice | None) -> list[Call]:
        """The calls that `draw(which)` and `table(which)` are about."""
        return _select(self.calls, which)

    def __repr__(self) -> str:
        calls = self.calls
        shown = _blocks(calls)
        parts = [block_table(block, SHOWN_MESSAGES) for block in shown]
        rest = len(calls) - sum(map(len, shown))
        if rest:
            following = f".draw({len(calls) - rest}) draws the next one, .table() lists all {len(calls)}"
            parts.append(f"... and {rest} more call{'s' * (rest > 1)}: {following}")
        parts += all_dropped(filter(may_be_lost, chain(*self.events)))
        parts += all_discarded(discarded) if (discarded := [*filter(is_discarded, chain(*self.events))]) else []
        parts += failed_calls(calls, self.caught) if any(map(is_failed, chain(*self.events))) else []
        parts += loss_notes(self.losses, self.events) if self.losses else []
        if returned := self._returned(last_shown=not rest):
            parts.append(returned)
        return "\n\n".join(parts) or f"{self.world_size} ranks ran {self.name}: no communication, nothing returned"

    def _returned(self, last_shown: bool) -> str:
        """The results, unless all are None or they only repeat the results of the last calls, which are shown."""
        if all(result is None for result in self.results):
            return ""
        last = [events[-1].after if events else None for events in self.events]
        if last_shown and all(_is_same(r, value) for r, value in zip(self.results, last)):
            return ""
        cells = ("(lost)" if r in self.losses else short(result) for r, result in enumerate(self.results))
        rows = [("rank", f"{self.name} returned"), *((str(r), cell) for r, cell in enumerate(cells))]
        return align(rows, right=(0,), indent="  ", gap="   ")

    def _ipython_display_(self) -> None:
        show(self.draw() if any(self.events) else None, repr(self))


def _blocks(calls: list[Call]) -> list[list[Call]]:
    """The blocks of calls that are shown by default."""
    found = blocks(calls)
    return found if len(found) < SHORTENED else found[:SHOWN_BLOCKS]


def _is_same(result: Any, value: Value) -> bool:
    tensors = isinstance(result, torch.Tensor) and isinstance(value, torch.Tensor)
    return tensors and result.shape == value.shape and torch.equal(result.detach().to(value.dtype), value)


def _select(calls: list[Call], which: int | slice | None) -> list[Call]:
    if which is None:
        return calls
    if isinstance(which, slice):
        return calls[which]
    if not calls:
        raise IndexError("this run made no calls, so there's nothing to draw")
    if not -len(calls) <= which < len(calls):
        made = f"this run made {len(calls)}, the first is call 0" if calls else "this run made none"
        raise IndexError(f"there is no call {which}: {made}")
    return [calls[which]]
