"""Records on real ranks what README shows and the website plays besides its chapters:   python -m tools.recordings

Recordings are written to helpers/views/web/recorded.json, since the website is built without torch.
"""

import io
import json

import torch
import torch.distributed as dist
from PIL import Image

from collectives import step
from collectives.algorithms import (
    binomial_broadcast,
    chain_reduce,
    flat_gather,
    flat_scatter,
    pairwise_all_to_all,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    tree_all_reduce,
)
from collectives.algorithms import recorded as recorded_schedule
from collectives.launch.run import run
from collectives.outcome.errors import Stuck
from helpers import predict
from helpers.course import NOTEBOOKS
from helpers.views.costs import costs
from helpers.views.explore import record_choice as recorded_explore
from helpers.views.web import RECORDED_FILE

FRAME_MILLISECONDS = 1000  # of README's GIF


def ring() -> dict:
    """A ring of send and recv as four ranks ran it, read off their messages; it plays as soon as it is seen.

    Its sentences are for a reader who has seen no chunk and no schedule yet.
    """
    program = ring_all_reduce(4).program()

    def ring(x):
        return program(x)

    recording = step(recorded_schedule(ring, "all_reduce")).recording()
    return recording | {"title": "Four ranks add up what they hold", "says": words(recording["steps"]), "plays": True}


def words(steps: list) -> list[str]:
    """A sentence for the start of a ring, and one for each of its steps: [source, target, chunks, adds] of each message."""
    does = {
        True: "each rank sends a chunk to the next rank, which adds it to its own",
        False: "each rank sends a finished sum to the next rank, which keeps it",
    }
    says = ["Each rank holds four chunks of its own; in 6 steps, every rank will hold the sums of all."]
    says += [f"Step {k}: {does[messages[0][3]]}." for k, messages in enumerate(steps, 1)]
    says[-1] = says[-1][:-1] + ". Now every rank holds every sum."
    return says


def question() -> dict:
    """The first prediction of a visitor."""

    def everybody_calls():
        x = torch.tensor([10.0 * dist.get_rank() + 1])
        dist.all_reduce(x)

    return _question_data(predict(everybody_calls, world_size=4))


def deadlock() -> dict:
    """A program that hangs, with the course's verdict on it."""

    def everybody_receives_first():
        rank, world_size = dist.get_rank(), dist.get_world_size()
        x = torch.ones(4)
        dist.recv(x, (rank - 1) % world_size)
        dist.send(x, (rank + 1) % world_size)

    return _question_data(predict(everybody_receives_first, ask="verdict", world_size=4))


def _question_data(prediction) -> dict:
    prediction.unattended()
    return prediction.recording()


def keys_and_values():
    """Ring attention's messages: each rank's keys and values visit all others."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    block, arriving = torch.tensor([float(rank)]), torch.zeros(1)
    for _ in range(world_size - 1):
        sending = dist.isend(block, (rank + 1) % world_size)
        dist.recv(arriving, (rank - 1) % world_size)
        sending.wait()
        block = arriving.clone()


def three_microbatches():
    """A pipeline's forward pass: activations go from stage to stage."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for microbatch in range(3):
        x = torch.tensor([float(microbatch)])
        if rank > 0:
            dist.recv(x, rank - 1)
        if rank < world_size - 1:
            dist.send(x, rank + 1)


def players() -> dict:
    """The players of the website below a chapter's cells, by "notebook/cell": algorithms, and messages of ranks."""
    moving = {
        "03_one_to_many/87aed109": (binomial_broadcast(8), "Who has it passes it on: a tree"),
        "03_one_to_many/fa3d27ec": (flat_scatter(4), "gloo's scatter: the root sends to one rank after another"),
        "04_many_to_one/5751f18c": (chain_reduce(4), "The sum walks down to rank 0"),
        "04_many_to_one/2dbdcf80": (flat_gather(4), "Every rank sends its tensor to the root"),
        "05_many_to_many/8025fb5c": (ring_all_reduce(4), "An all_reduce around a ring"),
        "05_many_to_many/f6c13946": (ring_all_gather(4), "An all_gather around a ring"),
        "05_many_to_many/e994845c": (ring_reduce_scatter(4), "A reduce_scatter around a ring"),
        "05_many_to_many/2a74ced3": (pairwise_all_to_all(4), "An all_to_all: in step k, to the k-th neighbor"),
        "09_algorithms/51f9985a": (tree_all_reduce(8), "Up the tree, and down again"),
        "12_sharded_data_parallel/sharded-19": (
            ring_all_gather(4),
            "A layer is whole on every rank only while it is used",
        ),
        "14_pipeline_parallel/b732820f": (
            run(three_microbatches, world_size=4),
            "Three microbatches go through four stages",
        ),
        "15_experts/experts-09": (pairwise_all_to_all(4), "Tokens go to the ranks of their experts"),
        "16_long_context/context-13": (
            run(keys_and_values, world_size=4),
            "Every rank's keys and values visit all others",
        ),
    }
    return {place: step(messages).recording() | {"title": title} for place, (messages, title) in moving.items()}


def recordings() -> dict:
    found = {
        "ring": ring(),
        "question": question(),
        "deadlock": deadlock(),
        "costs": costs().recording(),
        "players": players(),
    }
    asked = dict(op="all_reduce", world_size=4, root=0, reduce_op="SUM", dtype="float32", size=3)
    return {**found, "explore": recorded_explore(asked)}


def log_loss():
    loss = torch.ones(1)
    if dist.get_rank() == 0:
        dist.all_reduce(loss)
        print("loss", loss.item() / 4)


def first_step():
    gradient = torch.tensor([-35.0 - 10 * dist.get_rank()])
    dist.all_reduce(gradient, op=dist.ReduceOp.AVG)


def waiting_picture() -> bytes:
    """The PNG of the ranks that wait for each other."""
    try:
        run(log_loss, world_size=4)
    except Stuck as stuck:
        return stuck.draw().png()
    raise AssertionError("rank 0 waited for nobody")


def moving_ring() -> bytes:
    """The GIF of a ring's steps, played without end."""
    ring, film = ring_all_reduce(4), io.BytesIO()
    drawn = [Image.open(io.BytesIO(ring.draw(k + 1).png())).convert("RGB") for k in range(len(ring.steps) + 1)]
    frames = [Image.new("RGB", drawn[0].size, "white") for _ in drawn]
    for frame, picture in zip(frames, drawn):
        frame.paste(picture)
    played = {"duration": FRAME_MILLISECONDS, "loop": 0, "optimize": True}
    frames[0].save(film, "gif", save_all=True, append_images=frames[1:], **played)
    return film.getvalue()


if __name__ == "__main__":
    text = json.dumps(recordings(), ensure_ascii=False, separators=(",", ":"))
    RECORDED_FILE.write_text(text + "\n", encoding="utf-8")
    averaged = run(first_step, world_size=4).draw().png()
    for name, image in (("all_reduce.png", averaged), ("deadlock.png", waiting_picture()), ("ring.gif", moving_ring())):
        (NOTEBOOKS / "images" / name).write_bytes(image)
