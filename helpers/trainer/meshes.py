"""All meshes of the trainer on up to 8 ranks, and one process to compare them with."""

import functools
import itertools
import socket
import subprocess
import sys
from math import prod
from pathlib import Path

import torch

from collectives import run

from ..course import TRAINER

sys.path.append(str(TRAINER))

DIMENSIONS = ("pp", "dp", "fs", "ep", "cp", "tp")
TEXT = str(TRAINER / "train.py")
SMALL = dict(layers=6, width=16, heads=8, length=16, text=TEXT, dtype="float64")  # float64: a difference is a fault
TOLERANCE = dict(rtol=1e-9, atol=1e-11)
STEPS = 2
SAMPLE = [  # a mesh of each kind
    {}, {"fs": 2}, {"pp": 2, "tp": 2}, {"dp": 2, "cp": 2, "ep": 2}, {"pp": 2, "fs": 2, "tp": 2}, {"pp": 2, "fs": 2, "cp": 2},
    {"ep": 2, "cp": 2, "tp": 2}, {"pp": 3, "fs": 2}, {"fs": 2, "cp": 2, "tp": 2, "sequence": 1, "gather": 1},
]  # fmt: skip
VARIANTS = [SAMPLE[-1], {"pp": 2, "tp": 4, "sequence": 1}, {"ep": 2, "tp": 2, "sequence": 1}, {"dp": 2, "cp": 4, "gather": 1}]


def meshes(ranks):
    """All meshes of this number of ranks, without the dimensions of size 1."""
    divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
    for sizes in itertools.product(divisors, repeat=len(DIMENSIONS)):
        if prod(sizes) == ranks:
            yield {name: n for name, n in zip(DIMENSIONS, sizes) if n > 1}


def grid():
    """(mesh, number of experts) of all meshes of 1, 2, 4 and 8 ranks, of 3 and 6 where layers aren't cut evenly, and VARIANTS."""
    for ranks in (1, 2, 4, 8, 3, 6):
        for mesh in [*meshes(ranks), *(mesh for mesh in VARIANTS if prod(mesh.values()) == ranks)]:
            if ranks % 3 or {*mesh} <= {"pp", "dp", "fs"}:
                yield mesh, 8
                if "ep" not in mesh:
                    yield mesh, 0


def label(mesh, experts):
    return "-".join(f"{name}{n}" for name, n in mesh.items()) + ("-experts" if experts else "") or "alone"


def options_of(mesh, experts):
    rows = 12 if any(n % 3 == 0 for n in mesh.values()) else 16
    return dict(SMALL, experts=experts, rows=rows, **mesh)


def trained(cases, path, steps=STEPS, folder=None):
    """The losses and norms of some steps of each case, and its pieces: name and place, value, last gradient.

    path: the trainer's folder.  folder: of checkpoints, from which it resumes, and into which it saves the last step.
    """
    sys.path.insert(0, path)
    from checkpoint import load, save
    from config import Config
    from train import Trainer

    results = []
    for options in cases:
        trainer = Trainer(Config(**options))
        if folder is not None:
            load(folder, trainer.optimizer)
        sums = [trainer.step() for _ in range(steps)]
        if folder is not None:
            save(folder, trainer.optimizer)
        pieces = [(p.name, tuple(p.place), p.first, p.value, p.gradient) for p in trainer.optimizer.pieces]
        results.append((sums, pieces))
    return results


@functools.cache
def alone(experts, rows, steps=STEPS):
    """The same by one process: the course's model, autograd and torch's optimizer, and nothing else of the trainer."""
    from config import Config
    from data import batch, load_text
    from model import decoder, loss_of

    config = Config(**SMALL, experts=experts, rows=rows)
    model, text, sums = decoder(config), load_text(config), []
    optimizer = adamw(model, config)
    for step in range(steps):
        tokens, targets = batch(text, step, config)
        optimizer.zero_grad()
        loss = loss_of(model(tokens), targets, targets.numel())
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        sums.append((loss.item(), torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip).item()))
        optimizer.step()
    return sums, {name: (p.detach(), gradients[name]) for name, p in model.named_parameters()}


def adamw(model, config):
    """torch's optimizer for the course's model: norms don't decay."""
    norms = [p for name, p in model.named_parameters() if "norm" in name]
    matrices = [p for name, p in model.named_parameters() if "norm" not in name]
    groups = [dict(params=norms, weight_decay=0.0), dict(params=matrices, weight_decay=config.decay)]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95))


def assembled(results, expected):
    """Each parameter and gradient from all ranks' pieces. Each number is there, from its first rank once."""
    found = {name: tuple(torch.full_like(t, torch.nan) for t in pair) for name, pair in expected.items()}
    for name, (width, first, size, start, stop), is_first, *numbers in (piece for r in results for piece in r[1]):
        for tensor, part in zip(found[name], numbers):
            where = torch.arange(tensor.numel()).view(-1, width)[:, first : first + size].flatten()[start:stop]
            here = tensor.view(-1)[where]
            assert here.isnan().all() or torch.equal(here, part), f"ranks differ in {name}"
            tensor.view(-1)[where] = part
    firsts = sum(piece[3].numel() for r in results for piece in r[1] if piece[2])
    assert firsts == sum(p.numel() for p, _ in expected.values())
    return found


def check(results, expected_sums, expected, words):
    """Compare each rank's sums and pieces with one process's; raises AssertionError."""
    for sums, _ in results:
        torch.testing.assert_close(sums, expected_sums, **TOLERANCE, msg=lambda text: f"{words}: {text}")
    for name, tensors in assembled(results, expected).items():
        torch.testing.assert_close(tensors, expected[name], **TOLERANCE, msg=lambda text: f"{words}, {name}: {text}")


def compare(path, ranks, cases):
    """Train each mesh of a trainer's folder, all of them on this number of ranks, and compare; raises AssertionError."""
    options = [options_of(*case) for case in cases]
    results = run(trained, options, str(path), world_size=ranks, record=False, timeout=300).results
    for case, chosen, pieces in zip(cases, options, zip(*results)):
        check(pieces, *alone(chosen["experts"], chosen["rows"]), label(*case))


def resume(path, folder):
    """Train two steps on each of three meshes, each of which resumes from the one before; raises AssertionError."""
    expected_sums, expected = alone(experts=8, rows=12, steps=6)
    for k, mesh in enumerate(({"pp": 2, "fs": 2, "tp": 2}, {"ep": 2, "cp": 2}, {"fs": 3})):
        cases = [dict(SMALL, experts=8, rows=12, **mesh)]
        done = run(trained, cases, str(path), 2, folder, world_size=prod(mesh.values()), record=False, timeout=120)
        for ((sums, _),) in done.results:
            torch.testing.assert_close(sums, expected_sums[2 * k : 2 * k + 2], **TOLERANCE)
    check([result for (result,) in done.results], expected_sums[4:], expected, "the last")


# --- islands --------------------------------------------------------------------------------

ISLANDS = dict(SMALL, rows=16, steps=5, islands=2, talk=2, fragments=2, outer_lr=0.7, outer_momentum=0.9)


def islands_in_turn():
    """The lines that each island prints, from one process: torch's AdamW within an island, and its SGD for the outer step."""
    from config import Config
    from data import batch, load_text
    from model import decoder, loss_of

    config = Config(**ISLANDS)
    text, anchor, lines = load_text(config), decoder(config), [[] for _ in range(config.islands)]
    replicas = [decoder(config) for _ in lines]
    inner = [adamw(model, config) for model in replicas]
    outer = torch.optim.SGD(anchor.parameters(), config.outer_lr, config.outer_momentum, nesterov=True)
    for step in range(config.steps):
        for k, (model, optimizer) in enumerate(zip(replicas, inner)):
            tokens, targets = batch(text, step * config.islands + k, config)
            optimizer.zero_grad()
            loss = loss_of(model(tokens), targets, targets.numel())
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            optimizer.step()
            lines[k].append(f"step {step + 1}: loss {loss.item():.6f}, gradient {norm.item():.6f}")
        outer.zero_grad()
        for layers in list(zip(anchor, *replicas))[step % config.fragments :: config.fragments]:  # talk == fragments
            for p, *copies in zip(*(layer.parameters() for layer in layers)):
                p.grad = p.detach() - torch.stack([copy.detach() for copy in copies]).mean(0)
        outer.step()
        for layers in list(zip(anchor, *replicas))[step % config.fragments :: config.fragments]:
            for p, *copies in zip(*(layer.parameters() for layer in layers)):
                for copy in copies:
                    copy.data.copy_(p)
    return lines


def compare_islands(path):
    """Train a trainer's islands as jobs of their own, and compare with one process's lines; raises AssertionError."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    program = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(Path(path) / "train.py"),
    ]
    options = [f"--{name}={value}" for name, value in ISLANDS.items()] + ["--fs=2", f"--meet=127.0.0.1:{port}"]
    jobs = [
        subprocess.Popen(
            [*program, *options, f"--island={k}"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for k in range(ISLANDS["islands"])
    ]
    try:
        for k, (job, expected) in enumerate(zip(jobs, islands_in_turn())):
            output, errors = job.communicate(timeout=120)
            lines = [line for line in output.splitlines() if line.startswith("step ")]
            assert lines == expected, f"island {k} isn't what one process computes:\n{output}{errors}"
    finally:
        for job in jobs:
            job.kill()
            job.wait()
