"""A checkpoint that any mesh can load: each rank writes its pieces, and reads what overlaps with them."""

import shutil
from pathlib import Path

import torch
import torch.distributed as dist


def runs(place):
    """(where it is in the whole, where in the piece, how many numbers) of each contiguous run of a piece."""
    for row in range(place.start // place.size, -(-place.stop // place.size)):
        start, stop = max(place.start, row * place.size), min(place.stop, (row + 1) * place.size)
        yield row * place.width + place.first + start - row * place.size, start - place.start, stop - start


def overlaps(ours, theirs):
    """(where it is in our piece, where in theirs, how many numbers) of each run that both pieces have."""
    ours, theirs = list(runs(ours))[::-1], list(runs(theirs))[::-1]
    while ours and theirs:
        (x, i, n), (y, j, m) = ours[-1], theirs[-1]
        start, stop = max(x, y), min(x + n, y + m)
        if start < stop:
            yield i + start - x, j + start - y, stop - start
        (ours if x + n < y + m else theirs).pop()


def newest_complete(names):
    complete = [name for name in names if name.startswith("step") and name[4:].isdigit()]
    return max(complete, key=lambda name: int(name[4:]), default=None)


def save(folder, optimizer):
    """Complete or absent: files are written beside, and the folder gets its name when all ranks have written."""
    folder, name = Path(folder), f"step{optimizer.steps}"
    unfinished = folder / f"unfinished-{name}"
    if dist.get_rank() == 0:
        for old in (unfinished, folder / name):  # of a run that was killed
            shutil.rmtree(old, ignore_errors=True)
        unfinished.mkdir(parents=True)
    dist.barrier()
    mine = {
        piece.name: (tuple(piece.place), torch.stack([piece.value, *optimizer.states[piece.name]]))
        for piece in optimizer.pieces
        if piece.first
    }
    torch.save(mine, unfinished / f"{dist.get_rank()}.pt")
    dist.barrier()
    if dist.get_rank() == 0:
        unfinished.rename(folder / name)


def load(folder, optimizer):
    """Continue where the newest checkpoint in a folder was written; without one, at the beginning."""
    name = newest_complete([entry.name for entry in Path(folder).glob("*")])
    if name is None:
        return
    missing = {piece.name: piece.value.numel() for piece in optimizer.pieces}
    for file in sorted((Path(folder) / name).glob("*.pt")):
        saved = torch.load(file, map_location="cpu", mmap=True)  # reads a number when it is used
        for piece in optimizer.pieces:
            if piece.name in saved:
                place, numbers = saved[piece.name]
                for at, there, count in overlaps(piece.place, type(piece.place)(*place)):
                    for own, other in zip((piece.value, *optimizer.states[piece.name]), numbers):
                        own[at : at + count] = other[there : there + count]
                    missing[piece.name] -= count
    if any(missing.values()):
        raise ValueError(f"{Path(folder) / name} isn't of this model: {max(missing, key=missing.get)} is incomplete")
    optimizer.steps = int(name.removeprefix("step"))
