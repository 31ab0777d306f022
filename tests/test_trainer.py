"""The trainer on every mesh: one process's losses and gradients, bytes and memory by formula, and a resumed run."""

import ast
import itertools
import sys

import pytest
import torch

from collectives import run
from tests import ROOT
from tests.sampling import when

TRAINER = ROOT / "notebooks" / "trainer"
sys.path.append(str(TRAINER))
FILES = sorted(TRAINER.glob("*.py"))
DIMENSIONS = ("pp", "dp", "fs", "ep", "cp", "tp")
SMALL = dict(layers=6, width=16, heads=8, length=16, dtype="float64")  # float64: what isn't rounding is a fault
TOLERANCE = dict(rtol=1e-9, atol=1e-11)
STEPS = 2


def meshes(ranks):
    """All meshes of so many ranks, without the dimensions of one."""
    divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
    for sizes in itertools.product(divisors, repeat=len(DIMENSIONS)):
        if torch.tensor(sizes).prod() == ranks:
            yield {name: n for name, n in zip(DIMENSIONS, sizes) if n > 1}


def grid():
    """(mesh, number of experts) of all meshes of 1, 2, 4 and 8 ranks, and of 3 and 6 where layers aren't cut evenly."""
    for ranks in (1, 2, 4, 8, 3, 6):
        for mesh in meshes(ranks):
            if ranks % 3 or {*mesh} <= {"pp", "dp", "fs"}:
                yield mesh, 8
                if "ep" not in mesh:
                    yield mesh, 0


def label(mesh, experts):
    return "-".join(f"{name}{n}" for name, n in mesh.items()) + ("-experts" if experts else "") or "alone"


def options_of(mesh, experts):
    rows = 12 if any(n % 3 == 0 for n in mesh.values()) else 16
    return dict(SMALL, experts=experts, rows=rows, **mesh)


def trained(options, path, steps=STEPS):
    """Losses and norms of some steps, and each piece: its name and place, its value, its last gradient."""
    sys.path.append(path)
    from config import Config
    from train import Trainer

    trainer = Trainer(Config(**options))
    sums = [trainer.step() for _ in range(steps)]
    pieces = [(p.name, tuple(p.place), p.first, p.value, p.gradient) for p in trainer.optimizer.pieces]
    return sums, pieces


def alone(options, steps=STEPS):
    """The same by one process: the model, autograd and torch's own optimizer, and nothing else of the trainer."""
    from config import Config
    from data import batch, load_text
    from model import decoder, loss_of

    config = Config(**{name: value for name, value in options.items() if name not in DIMENSIONS})
    model, text, sums = decoder(config), load_text(config), []
    norms = [p for name, p in model.named_parameters() if "norm" in name]
    matrices = [p for name, p in model.named_parameters() if "norm" not in name]
    groups = [dict(params=norms, weight_decay=0.0), dict(params=matrices, weight_decay=config.decay)]
    optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95))
    for step in range(steps):
        tokens, targets = batch(text, step, config)
        optimizer.zero_grad()
        loss = loss_of(model(tokens), targets, targets.numel())
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        sums.append((loss.item(), torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip).item()))
        optimizer.step()
    return sums, {name: (p.detach(), gradients[name]) for name, p in model.named_parameters()}


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


SAMPLE = [
    {}, {"fs": 2}, {"pp": 2, "tp": 2}, {"dp": 2, "cp": 2, "ep": 2}, {"pp": 2, "fs": 2, "tp": 2}, {"pp": 2, "fs": 2, "cp": 2},
    {"pp": 3, "fs": 2},
]  # fmt: skip


@pytest.mark.parametrize(
    "mesh, experts",
    [
        pytest.param(mesh, experts, marks=when(mesh in SAMPLE, k % 5 == 0), id=label(mesh, experts))
        for k, (mesh, experts) in enumerate(grid())
    ],
)
def test_a_mesh_computes_what_one_process_does(mesh, experts):
    options = options_of(mesh, experts)
    world_size = int(torch.tensor([1, *mesh.values()]).prod())
    expected_sums, expected = alone(options)
    results = run(trained, options, str(TRAINER), world_size=world_size, record=False).results
    for sums, _ in results:
        torch.testing.assert_close(sums, expected_sums, **TOLERANCE)
    for name, tensors in assembled(results, expected).items():
        torch.testing.assert_close(tensors, expected[name], **TOLERANCE, msg=lambda words: f"{name}: {words}")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_short_plain_torch(path):
    text = path.read_text()
    nodes = [*ast.walk(ast.parse(text))]
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    ours = {file.stem for file in FILES}
    assert {module.partition(".")[0] for module in modules} <= {"torch"} | ours | sys.stdlib_module_names
    assert len(text.splitlines()) <= 120
