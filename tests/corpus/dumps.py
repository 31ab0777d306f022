"""Dumps as NCCL's recorder writes them, of jobs that are played here: what no machine without GPUs can make.

A program is a list of steps of one rank. Its CPU queues calls on a device, which does them in order; a collective ends
once all its members' devices have come to it. So each dump says what torch's own would, and who is at fault is known.
"""

import json
import pickle
from functools import cache
from itertools import product
from typing import NamedTuple

WORLD = ("0", "default_pg")
SLOT_NS = 1_000_000
TORCH = "/env/site-packages/torch/distributed/distributed_c10d.py"


class Do(NamedTuple):
    """A call. kind: the title of its entry. peer: of send and recv, a rank of the job. batch: calls given at once."""

    kind: str
    group: tuple[str, str]
    shape: tuple[int, ...] = (8,)
    peer: int | None = None
    dtype: str = "Float"
    batch: int = 0
    line: int = 10


SYNC = "sync"  # the CPU waits for its device
STOP = "stop"  # the CPU is elsewhere from here on
FREEZE = "freeze"  # a kernel that does not end


class Played:
    """A job that was played until nothing moved. lost: (group, number) of collectives whose message never arrives."""

    def __init__(self, groups: dict, programs: list[list], lost=()) -> None:
        self.groups, self.programs, self.lost = groups, programs, set(lost)
        self.size = len(programs)
        self.made: list[list[dict]] = [[] for _ in programs]
        self._queues: list[list] = [[] for _ in programs]
        self._at = [0] * self.size
        self._clock = 0
        self._counts: dict = {}
        while self._cpus() or self._devices():
            pass

    def _cpus(self) -> bool:
        moved = False
        for rank, program in enumerate(self.programs):
            if self._at[rank] < len(program):
                step = program[self._at[rank]]
                if step == STOP or step == SYNC and self._queues[rank]:
                    continue
                if step == FREEZE:
                    self._queues[rank].append(None)
                elif step != SYNC:
                    self._queues[rank].append(self._queue(rank, step))
                self._at[rank] += 1
                moved = True
        return moved

    def _queue(self, rank: int, do: Do) -> dict:
        self._clock += 1
        p2p = do.peer is not None
        lane = (do.group, rank, do.kind, do.peer) if p2p else (do.group, rank)
        self._counts[lane] = number = self._counts.get(lane, 0) + 1
        key = (
            (do.group, *((rank, do.peer) if do.kind == "send" else (do.peer, rank)), number)
            if p2p
            else (do.group, number)
        )
        if p2p:
            self._counts[do.group, rank, "p2p"] = number = self._counts.get((do.group, rank, "p2p"), 0) + 1
        entry = dict(
            do=do, key=key, number=number, made=self._clock, started=None, ended=None, call=self._match(do, rank)
        )
        self.made[rank].append(entry)
        return entry

    def _match(self, do: Do, rank: int):
        return None if do.peer is not None else (do.kind, do.shape, do.dtype)

    def _devices(self) -> bool:
        heads: dict = {}
        moved = False
        for rank, queue in enumerate(self._queues):
            if queue and (entry := queue[0]):
                if entry["started"] is None:
                    self._clock += 1
                    entry["started"], moved = self._clock, True
                heads.setdefault(entry["key"], {})[rank] = entry
        for key, at in heads.items():
            needed = self.groups[key[0]] if len(key) == 2 else key[1:3]
            if len(at) == len(needed) and len({e["call"] for e in at.values()}) == 1 and key not in self.lost:
                for rank, entry in at.items():
                    self._clock += 1
                    entry["ended"] = self._clock
                    self._queues[rank].pop(0)
                moved = True
        return moved

    def dump(
        self, rank: int, ring: int = 2000, version: str = "2.10", stacks: bool = True, timing: bool = False
    ) -> dict:
        """What rank would write. timing: with TORCH_NCCL_ENABLE_TIMING, without which no start is seen."""
        groups = {group: ranks for group, ranks in self.groups.items() if rank in ranks}
        entries = []
        for index, made in enumerate(self.made[rank]):
            do, ranks = made["do"], list(groups[made["do"].group])
            title = f"nccl:{do.kind}"
            if do.peer is not None:
                me, peer = ranks.index(rank), ranks.index(do.peer)
                title += f" {me}->{peer}" if do.kind == "send" else f" {me}<-{peer}"
            started = made["started"] if timing or made["ended"] else None
            sizes = [] if do.kind == "barrier" else [list(do.shape)]
            out = [[do.shape[0] * len(ranks)]] if do.kind == "_all_gather_base" else sizes
            entry = {
                "record_id": index, "pg_id": list(groups).index(do.group), "process_group": do.group,
                "collective_seq_id": 0 if do.peer is not None else made["number"],
                "p2p_seq_id": made["number"] if do.peer is not None else 0, "op_id": index + 1,
                "profiling_name": title, "time_created_ns": _time(made["made"]),
                "input_sizes": [] if do.kind == "recv" else sizes, "input_dtypes": [do.dtype] * (do.kind != "recv" and bool(sizes)),
                "output_sizes": out, "output_dtypes": [do.dtype] * bool(out),
                "state": "completed" if made["ended"] else "started" if started else "scheduled",
                "time_discovered_started_ns": started and _time(started),
                "time_discovered_completed_ns": made["ended"] and _time(made["ended"]),
                "retired": bool(made["ended"]), "timeout_ms": 600000, "is_p2p": do.peer is not None,
            }  # fmt: skip
            if stacks:
                entry["frames"] = [frame(do.kind, TORCH, 1), frame("train_step", "/job/train.py", do.line)]
            if timing and made["ended"]:
                entry["duration_ms"] = (made["ended"] - made["started"]) * SLOT_NS / 1e6
            entries.append(entry)
        config = {
            name: {"name": name, "desc": desc, "ranks": json.dumps(list(ranks))}
            for (name, desc), ranks in groups.items()
        }
        return {"version": version, "pg_config": config, "pg_status": {}, "entries": entries[-ring:]}

    def write(self, folder, missing=(), **options) -> None:
        """The dumps of all ranks but the missing ones."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in set(range(self.size)) - set(missing):
            (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(self.dump(rank, **options), 2))


@cache
def frame(name: str, file: str, line: int) -> dict:
    """One object wherever it is used, as in torch's."""
    return {"name": name, "filename": file, "line": line}


def _time(clock: int) -> int:
    return 1_795_600_000_000_000_000 + clock * SLOT_NS


def mesh(pipeline: int, data: int, tensor: int) -> dict:
    """Groups of a job: the world, and one for each row of pipeline x data x tensor ranks, the last fastest."""
    rank = lambda p, d, t: (p * data + d) * tensor + t  # noqa: E731
    groups = {WORLD: tuple(range(pipeline * data * tensor))}
    for p, d in product(range(pipeline), range(data)):
        groups[f"tp{p}.{d}", "mesh_tp"] = tuple(rank(p, d, t) for t in range(tensor))
    for p, t in product(range(pipeline), range(tensor)):
        groups[f"dp{p}.{t}", "mesh_dp"] = tuple(rank(p, d, t) for d in range(data))
    for d, t in product(range(data), range(tensor)):
        groups[f"pp{d}.{t}", "mesh_pp"] = tuple(rank(p, d, t) for p in range(pipeline))
    return groups


def training(pipeline: int, data: int, tensor: int, steps: int = 2, layers: int = 2) -> list[list]:
    """The programs of a step of training: layers with tensor parallelism, stages, gradients over data."""
    programs = []
    for p, d, t in product(range(pipeline), range(data), range(tensor)):
        tp, dp, pp = (f"tp{p}.{d}", "mesh_tp"), (f"dp{p}.{t}", "mesh_dp"), (f"pp{d}.{t}", "mesh_pp")
        before, after = ((p - 1) * data + d) * tensor + t, ((p + 1) * data + d) * tensor + t
        one: list = []
        for _ in range(steps):
            one += [Do("recv", pp, (4, 16), before, line=20)] * (p > 0)
            one += [Do("all_reduce", tp, (4, 16), line=21 + layer) for layer in range(layers)]
            one += [Do("send", pp, (4, 16), after, line=30)] * (p < pipeline - 1)
            one += [Do("recv", pp, (4, 16), after, line=31)] * (p < pipeline - 1)
            one += [Do("all_reduce", tp, (4, 16), line=32 + layer) for layer in range(layers)]
            one += [Do("send", pp, (4, 16), before, line=40)] * (p > 0)
            one += [Do("_reduce_scatter_base", dp, (64 * data,), line=41), Do("_all_gather_base", dp, (64,), line=42)]
            one += [Do("all_reduce", WORLD, (1,), line=43), SYNC]
        programs.append(one)
    return programs
