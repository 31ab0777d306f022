"""The trainer on every mesh: one process's losses and gradients, bytes and memory by formula, and a resumed run."""

import ast
import gc
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
from math import prod

import pytest
import torch
import torch.distributed as dist

from collectives import run
from collectives.log.traffic import count
from helpers.course import TRAINER
from helpers.trainer.meshes import (
    DIMENSIONS,
    SAMPLE,
    SMALL,
    adamw,
    alone,
    compare,
    compare_islands,
    grid,
    label,
    options_of,
    resume,
)
from tests.sampling import one_in, spread, when

FILES = sorted(TRAINER.glob("*.py"))


def in_runs():
    """The grid, several meshes of as many ranks in each run: first a sample, then all."""
    for sampled in (True, False):
        for ranks, cases in itertools.groupby(grid(), lambda case: prod(case[0].values())):
            chosen = [case for case in cases if not sampled or case[0] in SAMPLE]
            for k in range(0, len(chosen), 12):
                words = "sample" if sampled else f"{k} and on"
                yield pytest.param(ranks, chosen[k : k + 12], marks=when(sampled and ranks in (2, 3, 4), sampled and ranks < 8), id=f"{ranks} ranks, {words}")


@pytest.mark.parametrize("ranks, cases", list(in_runs()))
def test_a_mesh_computes_what_one_process_does(ranks, cases):
    compare(TRAINER, ranks, cases)


@pytest.mark.slow
def test_a_checkpoint_continues_on_other_meshes(tmp_path):
    resume(TRAINER, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step2", "step4", "step6"]


@pytest.mark.nightly
def test_islands_train_as_one_process_that_takes_them_in_turn():
    compare_islands(TRAINER)


# --- a sampler --------------------------------------------------------------------------------


def sampled(options, tp, path):
    """Each rank's place and numbers of each parameter in a sampler, after a step of the trainer and an update."""
    sys.path.append(path)
    from config import Config
    from sampler import Sampler
    from train import Trainer

    trainer = Trainer(Config(**options))
    sampler = Sampler(trainer.optimizer.pieces, tp)
    trainer.step()
    before = next(iter(sampler.pieces.values())).value.clone()
    dist.barrier()  # what follows is the update
    sampler.update(version=1)
    assert torch.equal(before, next(iter(sampler.pieces.values())).value) and sampler.version == 1
    return {name: (tuple(place), sampler.weights[name]) for name, place in sampler.places.items()}


@pytest.mark.parametrize(
    "mesh, experts, tp",
    [
        ({"dp": 2, "pp": 2}, 8, 4),
        *(
            pytest.param(*others, marks=pytest.mark.slow)
            for others in (({"pp": 2, "tp": 2}, 0, 4), ({"fs": 2, "tp": 2}, 0, 2), ({"fs": 4}, 0, 1))
        ),
    ],
    ids=lambda value: label(value, 0) if isinstance(value, dict) else str(value),
)
def test_a_sampler_gets_the_trainers_weights_by_one_all_to_all(mesh, experts, tp):
    options = options_of(mesh, experts)
    done = run(sampled, options, tp, str(TRAINER), world_size=prod(mesh.values()), timeout=120)
    _, expected = alone(experts, options["rows"], steps=1)
    for places in done.results:
        assert places.keys() == expected.keys()
        for name, ((width, first, size, start, stop), numbers) in places.items():
            rows = expected[name][0].reshape(-1, width)[:, first : first + size].flatten()
            torch.testing.assert_close(numbers, rows[start:stop], rtol=1e-9, atol=1e-11)
    *_, barrier, update = done.calls
    assert (barrier.op, update.op) == ("barrier", "all_to_all_single")
    held = sum(numbers.nbytes for places in done.results for _, numbers in places.values())
    assert sum(e.nbytes for e in update) == held  # a number travels once to each rank that needs it, or stays there


# --- bytes and memory -----------------------------------------------------------------------


def counted(options, path):
    """A step: this rank's coordinates, its tokens per expert, floating-point bytes after it, and complete layers in it."""
    sys.path.append(path)
    from config import Config
    from fsdp import ShardedLayer
    from model import MoE
    from train import Trainer

    tokens, complete = torch.zeros(options["experts"] or 1, dtype=torch.int64), []

    class Counted(ShardedLayer):
        def unshard(self, *_):
            super().unshard()
            complete.append(sum(layer.flat.untyped_storage().nbytes() for layer in trainer.layers))

    def chosen(router, inputs, logits):
        tokens.add_(logits.topk(2).indices.flatten().bincount(minlength=len(tokens)))

    sys.modules["fsdp"].ShardedLayer = Counted
    trainer = Trainer(Config(**options))
    for module in trainer.model.modules():
        if isinstance(module, MoE):
            module.router.register_forward_hook(chosen)
    trainer.step()
    gc.collect()
    tensors = [
        t for t in gc.get_objects() if type(t) in (torch.Tensor, torch.nn.Parameter) and t.dtype == torch.float64
    ]
    # Not the loss, nor the two sums of the last call, which gloo's thread may still hold.
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.numel() > 2}
    angles = sum(b.nbytes for b in trainer.model.buffers())
    return trainer.mesh.get_coordinate(), tokens, sum(storages.values()) - angles, max(complete)


def formula(options, at, tokens_of):
    """Bytes that a rank sends in a step, that it holds after it, and of its largest complete layer.

    at: its coordinates.  tokens_of: for each place along ep, how many tokens choose each expert, in this rank's layers.
    """
    from config import Config
    from pipeline import shard_range

    c, E = Config(**options), options["experts"]
    ranks = prod(options.get(name, 1) for name in DIMENSIONS)
    w, m, item = c.width, c.microbatches, 8
    vocabulary, attention, mlp = 256 * w, 4 * w * w // c.tp, 8 * w * w // c.tp
    block = [(attention + 2 * w + E * w, c.dp * c.ep * c.cp), (E // c.ep * mlp, c.dp * c.cp)]
    if not E:
        block = [(attention + 2 * w + mlp, c.dp * c.ep * c.cp)]
    layers = [[(vocabulary, c.dp * c.ep * c.cp)], *[block] * c.layers, [(vocabulary + w, c.dp * c.ep * c.cp)]]
    place = at[DIMENSIONS.index("pp")]
    mine = layers[slice(*shard_range(len(layers), place, c.pp))]
    blocks = sum(layer is block for layer in mine)
    shards = [[(n, -(-n // c.fs), copies) for n, copies in layer] for layer in mine]  # numbers, also of a shard
    padded = [[(c.fs * size * item, copies) for _, size, copies in layer] for layer in shards]

    x = c.rows // (c.dp * c.fs * c.ep) * (c.length // c.cp) * w * item  # activations, of all microbatches

    def around(n):
        return (n - 1) / n

    sent = sum(3 * m * around(c.fs) * n + 2 * around(k) * n / c.fs for layer in padded for n, k in layer)
    sent += (place > 0) * x + (place < c.pp - 1) * x
    sent += blocks * (2 * x // c.tp) * (3 * c.cp - 2) * (c.cp > 1)
    sent += 2 * around(ranks) * 2 * item
    ep = at[DIMENSIONS.index("ep")]
    own = slice(ep * (E // c.ep), (ep + 1) * (E // c.ep))
    here = sum(tokens[own].sum().item() for tokens in tokens_of)
    leave = tokens_of[ep].sum().item() - tokens_of[ep][own].sum().item()
    visit = here - tokens_of[ep][own].sum().item()
    sent += 2 * around(c.ep) * blocks * m * E * 8 / 2 + 2 * (leave + visit) * w * item
    reduced = 2 * blocks * x + 2 * (here * w * item if E else blocks * x)  # in the forward and backward passes
    sent += 2 * around(c.tp) * reduced

    fs = at[DIMENSIONS.index("fs")]
    held = sum(2 * size * item for layer in shards for _, size, _ in layer)  # parameters and gradients
    held += sum(2 * item * max(0, min(size, n - fs * size)) for layer in shards for n, size, _ in layer)  # m and v
    return sent, held, max(sum(n for n, _ in layer) for layer in padded)


COUNTED = [
    {"pp": 2, "dp": 2, "fs": 2}, {"fs": 2, "cp": 2, "tp": 2}, {"ep": 2, "cp": 2, "tp": 2}, {"fs": 4, "ep": 2},
    {"pp": 3, "fs": 2},
]  # fmt: skip


@spread(of=6, mesh=(COUNTED, [label(mesh, 0) for mesh in COUNTED]), experts=([0, 8], ["dense", "experts"]))
def test_bytes_sent_and_memory_are_those_of_the_formula(mesh, experts):
    options = options_of(mesh, experts)
    if "ep" in mesh and not experts:
        options["experts"] = 2
    ranks = prod(mesh.values())
    done = run(counted, options, str(TRAINER), world_size=ranks, timeout=120)
    plain = run(counted, options, str(TRAINER), world_size=ranks, record=False, timeout=120)  # a recorder holds tensors
    sent = count(done.events).sent
    ep = DIMENSIONS.index("ep")
    for rank, (at, _, held, complete) in enumerate(plain.results):
        group = [r for r in done.results if r[0][:ep] + r[0][ep + 1 :] == at[:ep] + at[ep + 1 :]]
        tokens_of = [tokens for _, tokens, _, _ in sorted(group, key=lambda r: r[0])]
        *expected, largest = formula(options, at, tokens_of)
        assert sent[rank] == pytest.approx(expected[0], abs=1e-6), f"rank {rank}, {at}"
        assert (held, complete) == (expected[1], largest)


# --- as a program ---------------------------------------------------------------------------

COMMAND = [f"--{name}={value}" for name, value in SMALL.items()] + ["--rows=12", "--experts=8"]


def torchrun(ranks, *arguments):
    """A program under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *arguments]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def steps_in(output):
    return re.findall(r"step \d+: .*", output)


def expected_steps(count):
    sums, _ = alone(experts=8, rows=12, steps=count)
    return [f"step {k}: loss {loss:.6f}, gradient {norm:.6f}" for k, (loss, norm) in enumerate(sums, start=1)]


PAGES = [TRAINER / "README.md", *sorted(TRAINER.parent.glob("[0-9]*.ipynb"))]
COMMAND_LINE = r"torchrun --nproc-per-node (\d) \S*train\.py( [-\w ]+)"
COMMANDS = sorted(
    {
        (ranks, re.sub(r" --(save|steps|device) \w+", "", options))  # on the CPU, here
        for page in PAGES
        for ranks, options in re.findall(COMMAND_LINE, page.read_text())
        if "--islands" not in options and "--replicas" not in options  # several jobs, see there
    }
)


@pytest.mark.parametrize(
    "ranks, options", [pytest.param(*command, marks=one_in(k + 1, 12)) for k, command in enumerate(COMMANDS)]
)
def test_a_command_of_a_page_trains_as_one_process_does(ranks, options):
    outputs = []
    for size, words in ((ranks, options), (1, re.sub(r" --(pp|dp|fs|ep|cp|tp) \d", "", options))):
        program = [str(TRAINER / "train.py"), *words.split(), "--dtype=float64", "--steps=2"]
        output, errors = torchrun(size, *program).communicate(timeout=300)
        outputs.append(steps_in(output))
        assert len(outputs[-1]) == 2, errors
    assert outputs[0] == outputs[1]


@one_in(0, 3)
def test_a_job_that_was_killed_resumes_on_fewer_ranks(tmp_path):
    program = [str(TRAINER / "train.py"), *COMMAND, f"--save={tmp_path}", "--every=2"]
    job, seen = torchrun(8, *program, "--steps=1000", "--pp=2", "--fs=2", "--tp=2"), ""
    while "step 5" not in seen and (line := job.stdout.readline()):
        seen += line
    workers = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(workers[3]), signal.SIGKILL)  # torchrun then stops the others
    job.communicate(timeout=120)
    assert job.returncode != 0
    saved = max(int(path.name.removeprefix("step")) for path in tmp_path.glob("step*"))
    job = torchrun(4, *program, f"--steps={saved + 4}", "--ep=2", "--cp=2")
    output, words = job.communicate(timeout=300)
    assert job.returncode == 0, words
    assert saved >= 4 and steps_in(seen)[:5] == expected_steps(5)
    assert steps_in(output) == expected_steps(saved + 4)[saved:]


@pytest.mark.slow
def test_replicas_go_on_without_one_that_was_killed_and_heal_a_new_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = dict(SMALL, rows=4, steps=1000, replicas=3, least=2)
    options = [f"--{name}={value}" for name, value in settings.items()] + [f"--meet=127.0.0.1:{port}"]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1"}

    def start(replica):
        program = [sys.executable, str(TRAINER / "train.py"), *options, f"--replica={replica}"]
        return subprocess.Popen(program, env={**os.environ, **alone}, text=True, stdout=subprocess.PIPE)

    def follow(words):
        """Read replica 0's lines, until one has these words."""
        while not seen or words not in seen[-1]:
            line = jobs[0].stdout.readline().strip()
            assert line, "replica 0 has ended"
            seen.append(line)

    store, seen = subprocess.Popen([sys.executable, str(TRAINER / "survive.py"), str(port)]), []
    jobs = [start(replica) for replica in range(3)]
    try:
        follow("step 3:")
        jobs[1].kill()
        follow("[0, 2]")
        jobs.append(start(1))
        healed = [jobs[3].stdout.readline().strip() for _ in range(2)]
        follow(healed[-1])
    finally:
        for job in [*jobs, store]:
            job.kill()
            job.communicate()
    assert seen == replicas_in_one_process(settings, seen)
    assert set(healed) <= set(seen)


def replicas_in_one_process(settings, lines):
    """The lines of a job whose replicas in each step were the ones that these lines name."""
    from config import Config
    from data import batch, load_text
    from model import decoder, loss_of

    config = Config(**settings)
    text, model, expected = load_text(config), decoder(config), []
    optimizer = adamw(model, config)
    for step, line in enumerate(lines):
        members = ast.literal_eval(line.partition("replicas ")[2])
        optimizer.zero_grad()
        losses = []
        for replica in members:
            tokens, targets = batch(text, step * config.replicas + replica, config)
            loss = loss_of(model(tokens), targets, targets.numel()) / len(members)
            loss.backward()
            losses.append(loss.item())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        expected.append(f"step {step + 1}: loss {sum(losses):.6f}, gradient {norm.item():.6f}, replicas {members}")
    return expected


@pytest.mark.nightly
def test_a_watched_job_prints_the_same_and_no_verdict(tmp_path):
    mesh = ["--pp=2", "--fs=2", "--cp=2", "--steps=3"]
    job = torchrun(8, "-m", "collectives.watch", str(TRAINER / "train.py"), *COMMAND, *mesh)
    output, words = job.communicate(timeout=300)
    assert job.returncode == 0 and steps_in(output) == expected_steps(3)
    assert not re.search("Stuck|Mismatch|waiting in", output + words)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_short_plain_torch(path):
    text = path.read_text()
    nodes = [*ast.walk(ast.parse(text))]
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    ours = {file.stem for file in FILES}
    assert {module.partition(".")[0] for module in modules} <= {"torch"} | ours | sys.stdlib_module_names
    assert len(text.splitlines()) <= 120
