"""A line for each of some sixty pictures, with the SHA-256 of its PNG: are they still the same, byte for byte?

    python -m tests.pictures_hash > before                   in one checkout
    python -m tests.pictures_hash --against before           in another: names what differs, and ends with 1
    python -m tests.pictures_hash --save folder > after      keeps the images, to be looked at

For a change that is to leave every picture as it is.  Bytes depend on the version of matplotlib, so compare in
one environment.  It needs public names alone, and another checkout can be measured with this file:

    PYTHONPATH=/path/to/checkout python tests/pictures_hash.py
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, Iterator

os.environ.setdefault("COLLECTIVES_PROGRESS", os.path.join(tempfile.gettempdir(), "progress-of-pictures.json"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from collectives import algorithms as schedule  # noqa: E402
from helpers import Run, RunError, Stuck, explore, predict, run, step, timeline


def png(shown: Any) -> bytes:
    """The image that a notebook is given."""
    picture = shown.preview() if hasattr(shown, "preview") else shown
    return base64.b64decode(picture._repr_mimebundle_()[0]["image/png"])


def outcome(fn: Callable, *args, world_size: int = 4, **options) -> Run | RunError:
    try:
        return run(fn, *args, world_size=world_size, **options)
    except RunError as error:
        return error


def recorded(fn: Callable, *args, **options) -> Run:
    """What was recorded, with times that are the same each time."""
    done = outcome(fn, *args, **options)
    done = done if isinstance(done, Run) else done.run
    for events in done.events:
        for e in events:
            e.start = e.index + 0.3 * e.rank
            e.end = e.end and e.index + 2.0
            e.waiting = e.waiting and e.start
    return done


# --- what the ranks do --------------------------------------------------------------------


def collectives(each: int, root: int = 1, members: tuple[int, ...] | None = None) -> None:
    """Every collective, with so many numbers from each rank for each."""
    group = dist.new_group(members) if members else None
    if members and dist.get_rank() not in members:
        return
    r, n = dist.get_rank(), len(members) if members else dist.get_world_size()
    mine, row = torch.arange(1.0 * each) + 10 * r, torch.arange(1.0 * n * each) + 100 * r
    parts, room, one = list(row.chunk(n)), [torch.zeros(each) for _ in range(n)], torch.zeros(each)
    dist.broadcast(mine.clone(), root, group)
    dist.scatter(one, parts if r == root else None, root, group)
    dist.reduce(mine.clone(), root, group=group)
    dist.gather(mine, room if r == root else None, root, group)
    dist.all_gather(room, mine, group)
    dist.all_gather_single(torch.zeros(n * each), mine, group)
    dist.all_reduce(mine.clone(), dist.ReduceOp.MAX, group)
    dist.reduce_scatter(one, parts, group=group)
    dist.reduce_scatter_single(one, row, group=group)
    dist.all_to_all(room, parts, group)
    dist.all_to_all_single(torch.zeros(n * each), row, group=group)
    dist.barrier(group)


def values() -> None:
    for tensor in (
        torch.arange(6).reshape(2, 3), torch.arange(20), torch.arange(10).reshape(5, 2), torch.tensor([True, False]),
        torch.arange(7) + 1 / 3, torch.arange(5000.0), torch.zeros(0), torch.tensor([0.1], dtype=torch.float16),
    ):  # fmt: skip
        dist.broadcast(tensor if dist.get_rank() == 0 else torch.zeros_like(tensor), 0)


def uneven() -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = [(rank + c) % n for c in range(n)]
    dist.all_to_all_single(torch.zeros(sum(parts)), torch.arange(1.0 * sum(parts)) + 10 * rank, parts, parts)


def disagree() -> None:
    dist.broadcast(torch.zeros(2), src=dist.get_rank())


def aliased() -> None:
    dist.all_gather([torch.zeros(1)] * dist.get_world_size(), torch.tensor([1.0 * dist.get_rank()]))


def forgotten() -> None:
    dist.all_reduce(torch.ones(2), async_op=True)
    dist.barrier()


def all_but_one(call: Callable) -> None:
    if dist.get_rank() != 2:
        call()


def ring(rounds: int | None = None) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.tensor([10 * rank])
    for _ in range(n - 1 if rounds is None else rounds):
        got = torch.zeros_like(x)
        sending = dist.isend(x, (rank + 1) % n)
        dist.recv(got, (rank - 1) % n)
        sending.wait()
        x = got


def tree() -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    x, k = torch.arange(3.0) * (rank == 0), 1
    while k < n:
        if rank < k and rank + k < n:
            dist.send(x, rank + k)
        elif k <= rank < 2 * k:
            dist.recv(x, rank - k)
        k *= 2


def swap() -> None:
    rank = dist.get_rank()
    peer = dist.get_world_size() - 1 - rank
    sending = dist.isend(torch.tensor([10.5 * rank]), peer)
    dist.recv(torch.zeros(1), peer)
    sending.wait()


def everybody() -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    others = [peer for peer in range(n) if peer != rank]
    works = [dist.isend(torch.tensor([rank]), peer) for peer in others]
    works += [dist.irecv(torch.tensor([0]), peer) for peer in others]
    for work in works:
        work.wait()


def ping_pong(times: int) -> None:
    for k in range(times):
        if dist.get_rank() == k % 2:
            dist.send(torch.tensor([k]), 1 - k % 2)
        else:
            dist.recv(torch.tensor([0]), k % 2)


def lost() -> None:
    rank = dist.get_rank()
    if rank == 0:
        dist.isend(torch.tensor([5]), 3)
    elif rank < 3:
        dist.recv(torch.tensor([0]), {1: 0, 2: None}[rank])


def several() -> None:
    ring(1)
    dist.all_reduce(torch.ones(2))
    dist.barrier()


def waiting() -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank < n - 1:
        dist.recv(torch.zeros(1), rank ^ 1 if rank < 2 else n - 1)


def mean() -> torch.Tensor:
    x = torch.tensor([1.0, 2.0]) * dist.get_rank()
    dist.all_reduce(x, dist.ReduceOp.AVG)
    return x


def exchange() -> None:
    x = torch.arange(3) + 100 * dist.get_rank()
    dist.all_to_all_single(torch.zeros_like(x), x)


# --- the pictures -------------------------------------------------------------------------


def pictures() -> Iterator[tuple[str, Any]]:
    """Name and what a notebook would show."""
    for n, each in ((4, 2), (3, 5), (12, 1), (4, 2000)):
        done = recorded(collectives, each, world_size=n)
        for k, call in enumerate(done.calls):
            if (n, each) == (4, 2) or k % 3 == 2:
                yield f"{call.op}, {n} ranks, {each} numbers", done.draw(k)
    done = recorded(collectives, 2, 3, (1, 3, 4), world_size=5)
    yield "calls of a group", done.draw(slice(0, 5))
    done = recorded(values, world_size=2)
    yield "values", done.draw(slice(0, 8))
    for fn, n in ((uneven, 3), (disagree, 3), (aliased, 3), (forgotten, 2)):
        yield fn.__name__, recorded(fn, world_size=n, **({"check": False} if fn is aliased else {})).draw()
    yield "a rank never called", recorded(all_but_one, exchange).draw()
    yield "a rank never came to the barrier", recorded(all_but_one, lambda: dist.barrier()).draw()
    for n in (2, 4, 8):
        yield f"ring, {n} ranks", run(ring, world_size=n).draw()
    yield "tree", run(tree, world_size=8).draw()
    yield "swap", run(swap, world_size=6).draw()
    yield "everybody to everybody", run(everybody, world_size=6).draw()
    yield "40 messages", run(ping_pong, 40, world_size=2).draw()
    yield "lost messages", recorded(lost).draw()
    yield "several panels", recorded(several).draw()
    yield "nothing", run(lambda: None, world_size=2).draw()
    for n in (5, 18):
        error = outcome(waiting, world_size=n)
        assert isinstance(error, Stuck)
        yield f"{n} ranks wait", error.draw()
    steps = step(run(tree, world_size=4))
    for k in range(len(steps.frames)):
        yield f"step {k} of a run", steps.draw(k)
    yield "timeline", timeline(recorded(several))
    of = schedule.ring_all_reduce(4)
    yield "schedule, grid", of.draw()
    yield "schedule, one step", of.draw(2)
    yield "schedule, lanes", of.draw(style="lanes")
    yield "schedule, step()", step(of)
    yield "schedule, tree", schedule.tree_all_reduce(8).draw()
    yield "schedule, halving and doubling", schedule.rabenseifner_all_reduce(8).draw(3)
    yield "schedule, double tree", schedule.double_tree_all_reduce(12).draw()
    wrong = schedule.Schedule("broadcast", 3, [[schedule.copy(0, 1, [0])]], 1)
    yield "schedule, wrong", wrong.draw()
    yield "prediction", predict(mean, world_size=3)
    yield "prediction of chunks", predict(exchange, world_size=3, ask="chunks", rank=1)
    yield "prediction of results", predict(mean, world_size=3, ask="returned")
    yield "prediction answered", predict(mean, world_size=3, answers=["1 2", "1 2", "1 3"])
    yield "explorer", explore("reduce_scatter", world_size=5, size=2)
    yield "cheat sheet", cheat_sheet()


def cheat_sheet() -> Any:
    for module in ("helpers.cheatsheet", "helpers.views.cheatsheet"):
        try:
            return import_module(module).cheatsheet()
        except ModuleNotFoundError as missing:
            if not module.startswith(missing.name):
                raise
    raise SystemExit("The cheat sheet is somewhere else now: tell cheat_sheet() where.")


def lines(save: Path | None) -> Iterator[str]:
    for name, shown in pictures():
        image = png(shown)
        if save:
            (save / f"{name.replace(',', '').replace(' ', '-')}.png").write_bytes(image)
        yield f"{hashlib.sha256(image).hexdigest()[:16]}  {name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, help="a folder for the images")
    parser.add_argument("--against", type=Path, help="what this program printed before")
    options = parser.parse_args()
    if options.save:
        options.save.mkdir(parents=True, exist_ok=True)
    made = list(lines(options.save))
    if not options.against:
        return print("\n".join(made))
    kept = options.against.read_text(encoding="utf-8").splitlines()
    gone, new = [line for line in kept if line not in made], [line for line in made if line not in kept]
    differ = sorted({line.partition("  ")[2] for line in gone + new})
    print(f"{len(made)} pictures, {len(differ)} differ" + "".join(f"\n  {name}" for name in differ))
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
