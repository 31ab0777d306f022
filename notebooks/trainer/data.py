"""The batch of a step, the same on every mesh, and this rank's part of it."""

import zlib
from pathlib import Path

import torch
from mesh import place_on_mesh


def load_text(config):
    """A file's bytes as tokens; by default those of this program."""
    files = [Path(config.text)] if config.text else sorted(Path(__file__).parent.glob("*.py"))
    return torch.tensor(list(b"".join(file.read_bytes() for file in files)))


def batch(text, step, config):
    """Passages, and for each token the next: [rows, length] both. They depend on the step alone."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{config.seed} {step}".encode()))
    starts = torch.randint(len(text) - config.length, (config.rows, 1), generator=generator)
    passages = text[starts + torch.arange(config.length + 1)]
    return passages[:, :-1], passages[:, 1:]


def zigzag_positions(rank, n, length):
    piece = length // (2 * n)
    return [k * piece + i for k in (rank, 2 * n - 1 - rank) for i in range(piece)]


def zigzag(length, n):
    """The positions of each of n ranks: a piece from the front and one from the back, so that all have equal work."""
    return [torch.tensor(zigzag_positions(rank, n, length)) for rank in range(n)] if n > 1 else [torch.arange(length)]


def microbatches(tokens, config, mesh):
    """This rank's rows (by dp, fs and ep) and positions (by cp, and by tp if they are shared), in microbatches."""
    at = dict(zip(mesh.mesh_dim_names, place_on_mesh(mesh.get_rank(), list(mesh.mesh.shape))))
    share = (at["dp"] * config.fs + at["fs"]) * config.ep + at["ep"]
    positions = zigzag(config.length, config.cp)[at["cp"]]
    if config.sequence:
        positions = positions.chunk(config.tp)[at["tp"]]
    mine = tokens.chunk(config.dp * config.fs * config.ep)[share][:, positions]
    return mine.contiguous().to(config.device).chunk(config.microbatches)
