"""New weights for a sampler: from the trainer's layout to tensor parallel ranks, by one all_to_all (chapter 23)."""

from collections import Counter

import torch
import torch.distributed as dist
from checkpoint import overlaps
from fsdp import Place
from tensor import cut_of


def needed_places(has, tp_rank, tp):
    """The part of each parameter that a sampler's rank holds: matrices are cut as tensor.py cuts them, and nothing else is."""
    totals, widths, places = Counter(), {}, {}
    for place_of in has:
        for name, place in place_of.items():
            totals[name] += place.stop - place.start
            widths[name] = place.width
    for name, width in widths.items():
        n, k = (1, 0) if cut_of(name) is None else (tp, tp_rank)
        places[name] = Place(width, width // n * k, width // n, 0, totals[name] // n)
    return places


def moves(has, needs):
    """(name, where it is in the target's part, where in the source's piece, how many numbers) of each run that must travel."""
    for name in sorted(has.keys() & needs.keys()):
        yield from ((name, *run) for run in overlaps(needs[name], has[name]))


class Sampler:
    """This rank's weights in a sampler of `tp` ranks; with more ranks, there are several copies.

    The plan is made once. Of several ranks that have a number, the first one sends it.
    """

    def __init__(self, pieces, tp):
        self.pieces, rank, n = {piece.name: piece for piece in pieces}, dist.get_rank(), dist.get_world_size()
        has = [None] * n
        dist.all_gather_object(has, {piece.name: piece.place for piece in pieces if piece.first})
        needs = [needed_places(has, k % tp, tp) for k in range(n)]
        self.places = needs[rank]
        self.sends = [list(moves(has[rank], needs[k])) for k in range(n)]
        self.receives = [list(moves(has[k], needs[rank])) for k in range(n)]
        like = pieces[0].value
        self.weights = {name: like.new_empty(place.stop - place.start) for name, place in self.places.items()}
        self.version = -1

    def update(self, version):
        """Take the trainer's weights as they are now. The optimizer must not step meanwhile, and here it can't."""
        out, into = ([sum(count for *_, count in each) for each in both] for both in (self.sends, self.receives))
        like = next(iter(self.weights.values()))
        going, coming = like.new_empty(sum(out)), like.new_empty(sum(into))
        runs = [self.pieces[name].value[there : there + count] for each in self.sends for name, _, there, count in each]
        torch.cat([going[:0], *runs], out=going)
        dist.all_to_all_single(coming, going, into, out)
        for (name, at, _, count), numbers in zip(
            (move for each in self.receives for move in each),
            coming.split([count for each in self.receives for *_, count in each]),
        ):
            self.weights[name][at : at + count] = numbers
        self.version = version

    def matrix(self, name):
        """A parameter's part as rows, for those that are cut by columns; a flat tensor for the others."""
        return self.weights[name].view(-1, self.places[name].size)
