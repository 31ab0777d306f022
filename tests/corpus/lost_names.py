"""Takes torch's private names away, one after the other, and tries what is left:   python -m tests.corpus.lost_names

For each name two real ranks import the packages anew, in forks of a process that has loaded torch alone: there
pkgutil.resolve_name, by which collectives/rank/torch_private.py finds all of them, does not find this one. Prints a JSON
line a name: the name, the features that are off, what was warned of, and what each probe saw.  Without a name lost
("") the probes that take long to import are tried too; of those, a lost name tries its own.
"""

from __future__ import annotations

import json
import os
import pkgutil
import tempfile
import traceback
import warnings
from datetime import timedelta

import cloudpickle  # noqa: F401  loaded once, for all forks
import torch
import torch.distributed as dist
from torch import nn

HEAVY = {"compiling", "shards", "locals_", "fsdp", "pipelines"}


def main() -> None:
    features = _tried("")
    for name in sorted({name for names in features.values() for name in names}):
        _tried(name, {title for title, names in features.items() if name in names})


def _tried(name: str, titles: set[str] = frozenset()) -> dict[str, list[str]]:
    """The features of this torch, with their names; prints what became of them without this name."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(2):
            if not (pid := os.fork()):
                try:
                    outcome = _rank(rank, name, titles, folder)
                except BaseException:
                    outcome = {"name": name, "error": traceback.format_exc()}
                with open(f"{folder}/{rank}", "w") as file:
                    json.dump(outcome, file)
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        first, second = (json.load(open(f"{folder}/{rank}")) for rank in range(2))
    print(json.dumps(first if "error" not in second else second), flush=True)
    return first.pop("features", {})


def _rank(rank: int, lost: str, titles: set[str], folder: str) -> dict:
    find = pkgutil.resolve_name

    def resolve_name(name):
        if name == lost:
            raise AttributeError(name)
        return find(name)

    pkgutil.resolve_name = resolve_name
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import collectives.train.observer  # noqa: F401
        from collectives.rank import torch_private
        from collectives.rank.tracer import Tracer
        from helpers import run  # noqa: F401

        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
        total = torch.ones(1)
        dist.all_reduce(total)
        seen = {"plain": total.item() == 2}
        messages: list = []
        own = {probe for probe, feature in OF.items() if getattr(torch_private, feature).title in titles}
        for probe in PROBES:
            if probe.__name__ in RECORDED and not torch_private.RECORDING:
                continue
            if probe.__name__ in HEAVY and lost and probe.__name__ not in own:
                continue
            messages.clear()
            with Tracer(rank, messages.append, 0.0) if probe.__name__ in RECORDED else warnings.catch_warnings():
                seen[probe.__name__] = probe(rank, messages)
        if not torch_private.RECORDING:
            try:
                Tracer(rank, messages.append, 0.0).__enter__()
            except ImportError as error:
                seen["recording"] = str(error)
        torch_private.warn()
        torch_private.warn()  # says it once
    names = {feature.title: feature.names for feature in torch_private.FEATURES}
    told = [str(w.message) for w in caught if "tested versions" in str(w.message)]
    off = [feature.title for feature in torch_private.FEATURES if not feature]
    on = {probe: bool(getattr(torch_private, feature)) for probe, feature in OF.items() if probe in seen}
    return {"name": lost, "off": off, "told": told, "seen": seen, "on": on, "features": names}


def _of(messages: list, kind: str) -> list:
    return [m for m in messages if type(m).__name__ == kind]


def recording(rank, messages):
    dist.all_reduce(torch.full((2,), rank + 1.0))
    x = torch.ones(1)
    dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
    events = [m.event for m in _of(messages, "Called")]
    return (
        [e.op for e in events] == ["all_reduce", "recv" if rank else "send"]
        and (events[1].src, events[1].dst) == ((0, None) if rank else (None, 1))
        and [m.after.tolist() for m in _of(messages, "Completed")] == [[3.0, 3.0], [1.0]]
    )


def watching(rank, messages):
    x = torch.ones(2)
    work = dist.all_reduce(x, async_op=True)
    x.add_(1)
    work.wait()
    return [m.how for m in _of(messages, "Misused")] == ["written"]


def sources(rank, messages):
    work = dist.isend(torch.ones(1), 1) if rank == 0 else dist.irecv(torch.zeros(1))  # from anyone
    work.wait()
    return rank == 0 or _of(messages, "Completed")[-1].src == 0


def time_limits(rank, messages):
    dist.all_reduce(torch.ones(1), group=dist.new_group(timeout=timedelta(seconds=30)))
    return _of(messages, "Waiting")[-1].limited


def idling(rank, messages):
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.get_future().wait()
    from collectives.rank import kernel
    from collectives.rank.idle import Idle

    tracer = kernel.recorder.__self__
    idle = tracer.idle or Idle(tracer)  # there is none yet where the call was complete at once
    idle.start()
    return idle._started


def observing(rank, messages):
    from collectives.train.observer import observed

    def train(model):
        model(torch.ones(1, 2)).sum().backward()
        dist.all_reduce(model.weight.grad)

    return [mark.phase for mark in observed(train)(nn.Linear(2, 2)).marks] == ["update"]


def pickling(rank, messages):
    from collectives.launch.pickling import pack, unpack

    ops, mm, x = torch.ops, torch.ops.aten.mm, torch.ones(2, 2)
    try:
        packed = pack(lambda: (ops.aten.mm(x, x), mm(x, x), torch.classes.c10d, mm.default))
        return unpack(packed)()[1].sum().item() == 8
    except Exception:
        return False


def views(rank, messages):
    from collectives.rank.torch_private import base

    x = torch.ones(2)
    return base(x[1:]) is x


def warming(rank, messages):
    from collectives.launch.warmup import warm_up
    from collectives.rank import torch_private

    warm_up(rank)
    return torch_private.fake_backend()


def uninstalling(rank, messages):
    from collectives.rank import kernel

    kernel.install()
    kernel.uninstall()
    total = torch.ones(1)
    dist.all_reduce(total)
    return kernel._library is None and total.item() == 2


def compiling(rank, messages):
    from collectives.rank.torch_private import never_compiled

    @never_compiled
    def plain(x):
        return x + 1

    compiled = []
    assert torch.compile(plain, backend=lambda graph, _: compiled.append(graph) or graph)(torch.ones(1)).item() == 2
    return not compiled


def shards(rank, messages):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    from collectives.rank.torch_private import local_part

    part = DTensor.from_local(torch.ones(2, 2), init_device_mesh("cpu", (2,)), [Shard(0)])
    place = local_part(part)
    return place is not None and (tuple(place[0]), tuple(place[1])) == ((2, 2), (2 * rank, 0))


def locals_(rank, messages):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    from collectives.rank.torch_private import local

    return type(local(DTensor.from_local(torch.ones(2, 2), init_device_mesh("cpu", (2,)), [Shard(0)]))) is torch.Tensor


def fsdp(rank, messages):
    from torch.distributed.fsdp import fully_shard

    from collectives.rank.torch_private import FSDP
    from collectives.train.observer import observed

    def train(model):
        model(torch.ones(1, 2)).sum().backward()

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for layer in model:
        fully_shard(layer)
    marks = observed(train)(fully_shard(model)).marks
    return bool(FSDP) and {mark.where for mark in marks} == {"0", "1"}


def pipelines(rank, messages):
    from collectives.algorithms.pipeline.foreign import from_torch

    try:
        return from_torch("GPipe", 2, 2) is not None
    except ImportError:
        return False


PROBES = (
    recording, watching, sources, time_limits, idling, observing, pickling, views, warming, uninstalling,
    compiling, shards, locals_, fsdp, pipelines,
)  # fmt: skip
RECORDED = {"recording", "watching", "sources", "time_limits", "idling"}  # under a recorder of their own
OF = {probe.__name__: probe.__name__.upper().strip("_") for probe in PROBES}

if __name__ == "__main__":
    main()
