"""Marks in a program: the tensors to compare besides its modules' and optimizers', and its rows of data."""

from typing import Protocol

import torch


class MarkRecorder(Protocol):
    """The recorder of this rank."""

    def note(self, name: str, value: torch.Tensor | float) -> None: ...
    def data(self, rows: torch.Tensor, dim: int) -> torch.Tensor: ...


listener: MarkRecorder | None = None


def note(name: str, value: torch.Tensor | float) -> None:
    """Compares this tensor, too, with one process's of the same name.  Outside of `same` it does nothing.

    name: how to report it.
    value: of any shape and dtype.  A leaf that requires gradients is treated as a parameter from now on, and its
        gradient is compared; any other tensor is compared as it is now.
    """
    if listener is not None:
        listener.note(name, value)


def data(rows: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """This rank's rows of the data; in one process, the rows of all ranks, concatenated along `dim`.

    rows: what this rank read or drew, of any shape and dtype.  Ranks with equal rows count once.
    Outside of `same` it returns `rows`.  Draws of torch.randn, rand, randint and normal and the batches of a DataLoader
    need no mark.
    """
    return rows if listener is None else listener.data(rows, dim)
