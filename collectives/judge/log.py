"""The events of one rank, and what later messages add to them."""

from typing import Iterator

from ..rank import protocol
from ..record.event import Event


class Log:
    """A rank's events, counted from its first. One that is forgotten leaves the others their numbers."""

    def __init__(self) -> None:
        self._kept: dict[int, Event] = {}
        self._made = 0
        self.last: Event | None = None

    def append(self, event: Event) -> None:
        self._kept[self._made] = self.last = event
        self._made += 1

    def forget(self, index: int) -> None:
        self._kept.pop(index, None)

    def get(self, index: int) -> Event | None:
        """The event of this number, None once it is forgotten. Raises IndexError if there was none."""
        if index >= self._made:
            raise IndexError(f"this rank has made {self._made} calls, not {index + 1}")
        return self._kept.get(index)

    def __len__(self) -> int:
        """How many events there were, forgotten ones included."""
        return self._made

    def __iter__(self) -> Iterator[Event]:
        return iter(self._kept.values())


def note(event: Event, message: protocol.Message) -> None:
    """Write what a message says about a call into its event."""
    match message:
        case protocol.Waiting(_, since):
            event.waiting = since
        case protocol.Completed(_, after, end, waited, src):
            event.after, event.end, event.waited = after, end, waited
            event.src = event.src if src is None else src
        case protocol.Misused(_, "viewed", line):  # which is no mistake, if it is read only after the wait
            event.viewed_at = line
        case protocol.Misused(_, how, line):
            event.misuse, event.misused_at = how, line
