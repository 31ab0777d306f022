"""Answer cells and what the scorer must give for them: right ones in ways of their own, and mistakes that are easy to miss.

GRADED[name]: the source of an answer cell, the points, and a pattern of the reason for the points that are lacking.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from tests.corpus import puzzles
from tests.corpus.cells import MEAN, cell_of

ARGMAX, SOFTMAX, TREE = "05_distributed_argmax", "06_distributed_softmax", "01_tree_broadcast"
SCATTER, RING, HANG = "03_reduce_scatter", "08_ring_all_reduce", "04_find_the_hang"
CROSS, BUCKETS, STEP, LOAD = "10_find_the_crossover", "11_average_in_buckets", "12_sharded_step", "17_load_a_shard"
BEAT, CHOOSE, WITHIN = "09_beat_the_schedule", "07_choose_the_collective", "14_within_memory"


@dataclass(frozen=True)
class Graded:
    source: str
    points: float
    reason: str = ""
    exercise: str = MEAN


GRADED: dict[str, Graded] = {}


def graded(name: str, points: float, source: str, reason: str = "", exercise: str = MEAN) -> None:
    assert name not in GRADED
    GRADED[name] = Graded(textwrap.dedent(source).strip(), points, reason, exercise)


def mean(
    name: str, before: str = "", call: str = "dist.all_reduce(y)", top: str = "", n: str = "dist.get_world_size()",
    points: float = 3, reason: str = "",
) -> None:  # fmt: skip
    """A right mean, with statements before its call, another call, an import or two, or another way to the world size."""
    lines = [
        top, "def distributed_mean(x):", textwrap.indent(textwrap.dedent(before).strip(), "    "),
        "    y = x.clone() if x.is_floating_point() else x.float()",
        textwrap.indent(textwrap.dedent(call).strip(), "    "), f"    return y / {n}",
    ]  # fmt: skip
    graded(name, points, "\n".join(lines), reason)


# --- what run() accepts ---------------------------------------------------------------------

mean(
    "group of a device mesh",
    'group = init_device_mesh("cpu", (dist.get_world_size(),)).get_group()',
    "dist.all_reduce(y, group=group)",
    "from torch.distributed.device_mesh import init_device_mesh",
)
mean("world size from the environment", top="import os", n='int(os.environ["WORLD_SIZE"])')
mean("monitored_barrier", "dist.monitored_barrier()")
mean("name of the backend", 'assert dist.get_backend() == "gloo"')
mean(
    "wait with a limit by name",
    call="work = dist.all_reduce(y, async_op=True)\nwork.wait(timeout=timedelta(seconds=20))",
    top="from datetime import timedelta",
)
mean(
    "two threads with two groups, in another order on each rank",
    """
    first, second = dist.new_group(), dist.new_group()
    flags = [torch.zeros(1), torch.zeros(1)]
    calls = [(flags[0], first), (flags[1], second)][:: 1 if dist.get_rank() % 2 else -1]
    if x.numel() > 1:
        threads = [threading.Thread(target=dist.barrier, args=(group,)) for _, group in calls]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """,
    top="import threading",
)
mean(
    "a thread makes the call",
    call="thread = threading.Thread(target=dist.all_reduce, args=(y,))\nthread.start()\nthread.join()",
    top="import threading",
)
mean("matplotlib at the top", top="import matplotlib\nimport matplotlib.pyplot as plt\nplt.figure()")
graded("timed by a magic", 3, """
    %%time
    def distributed_mean(x):
        y = x.clone() if x.is_floating_point() else x.float()
        dist.all_reduce(y)
        return y / dist.get_world_size()
    """)  # fmt: skip
RIGHT_SETTLE = """
def settle(strip):
    rank, n, steps = dist.get_rank(), dist.get_world_size(), 0
    while True:
        left, right, works = strip[:1].clone(), strip[-1:].clone(), []
        if rank > 0:
            works += [dist.P2POp(dist.isend, strip[:1], rank - 1), dist.P2POp(dist.irecv, left, rank - 1)]
        if rank < n - 1:
            works += [dist.P2POp(dist.isend, strip[-1:], rank + 1), dist.P2POp(dist.irecv, right, rank + 1)]
        for work in dist.batch_isend_irecv(works) if works else []:
            work.wait()
        padded = torch.cat([left, strip, right])
        after = (padded[:-2] + 2 * strip + padded[2:]) / 4
        change = (after - strip).abs().max()
        dist.all_reduce(change, op=dist.ReduceOp.MAX)
        strip, steps = after, steps + 1
        if change <= 0.5 ENDS:
            break
    hottest = strip.max()
    dist.all_reduce(hottest, op=dist.ReduceOp.MAX)
    return RETURNS
"""
graded(
    "named tuple",
    4,
    "from typing import NamedTuple\nclass Settled(NamedTuple):\n    strip: object\n    steps: int\n    hottest: float\n"
    + RIGHT_SETTLE.replace("ENDS", "").replace("RETURNS", "Settled(strip, steps, hottest.item())"),
    exercise=HANG,
)
graded(
    "NumPy's numbers",
    4,
    "import numpy as np\n"
    + RIGHT_SETTLE.replace("ENDS", "").replace("RETURNS", "strip, steps, np.float64(hottest.item())"),
    exercise=HANG,
)
graded(
    "at most 60 steps",
    0,
    RIGHT_SETTLE.replace("ENDS", "or steps == 60").replace("RETURNS", "strip, steps, hottest.item()"),
    "settle",
    HANG,
)
graded("a crossover by NumPy", 4, """
    import numpy as np
    def crossover(n, alpha, beta):
        steps = int(np.ceil(np.log2(n)))
        more = 2 * (n - 1) - 2 * steps
        slope = beta * (2 * steps - 2 * (n - 1) / n)
        return np.float64(max(0.0, alpha * more / slope)) if slope else np.float64(0)
    """, exercise=CROSS)  # fmt: skip
graded("a number of 300 digits", 0, "def crossover(n, alpha, beta):\n    return 1e308", r"got +1e\+308 bytes", CROSS)
graded("a ring over slices made contiguous", 7, """
    def ring_all_reduce(x):
        rank, n = dist.get_rank(), dist.get_world_size()
        right, left = (rank + 1) % n, (rank - 1) % n
        chunks = [x[c::n].contiguous() for c in range(n)]
        for step in range(2 * (n - 1)):
            send, get = (rank - step) % n, (rank - step - 1) % n
            into = torch.empty_like(chunks[get])
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, chunks[send], right), dist.P2POp(dist.irecv, into, left)]):
                work.wait()
            chunks[get] = chunks[get] + into if step < n - 1 else into
        for c in range(n):
            x[c::n] = chunks[c]
    """, exercise=RING)  # fmt: skip
graded("reads into a view of bytes", 7, """
    import json
    NAMES = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "I64": torch.int64}
    def fill(file, tensor):
        got = file.readinto(tensor.view(torch.uint8).numpy()) if tensor.numel() else 0
    def load_columns(file, name):
        rank, n = dist.get_rank(), dist.get_world_size()
        length = torch.empty(1, dtype=torch.int64)
        fill(file, length)
        header = torch.empty(int(length), dtype=torch.uint8)
        fill(file, header)
        entry = json.loads(bytes(header.tolist()))[name]
        rows, columns = entry["shape"]
        dtype = NAMES[entry["dtype"]]
        mine = [len(part) for part in torch.arange(rows).tensor_split(n)]
        file.seek(8 + int(length) + entry["data_offsets"][0] + sum(mine[:rank]) * columns * dtype.itemsize)
        block = torch.empty(mine[rank], columns, dtype=dtype)
        if block.numel():
            fill(file, block)
        wide = [len(part) for part in torch.arange(columns).tensor_split(n)]
        send = [part.contiguous().flatten() for part in block.split(wide, 1)]
        into = torch.empty(rows * wide[rank], dtype=dtype)
        dist.all_to_all_single(into, torch.cat(send), [k * wide[rank] for k in mine], [len(part) for part in send])
        return into.view(rows, wide[rank])
    """, exercise=LOAD)  # fmt: skip

graded("a function in a name", 3, """
    distributed_mean = lambda x: _sum(x if x.is_floating_point() else x.float()) / dist.get_world_size()
    def _sum(x):
        dist.all_reduce(x := x.clone())
        return x
    """)  # fmt: skip
graded("an object that is called", 3, """
    class Mean:
        @torch.no_grad()
        def __call__(self, x):
            y = torch.as_tensor(x, dtype=x.dtype if x.is_floating_point() else torch.float32).clone()
            dist.all_reduce(y)
            return y.div_(dist.get_world_size())
    distributed_mean = Mean()
    """)  # fmt: skip
mean(
    "what a future is then",
    call="y = dist.all_reduce(y, async_op=True).get_future().then(lambda f: f.value()[0]).wait()",
)
mean(
    "two halves under way at once",
    call="works = [dist.all_reduce(part, async_op=True) for part in y.tensor_split(2)]\n[work.wait() for work in works]",
)
mean(
    "under autograd",
    "x = x.clone().requires_grad_() if x.is_floating_point() else x",
    "y = y.detach()\ndist.all_reduce(y)",
)
# --- one world after the other ------------------------------------------------------------------

mean(
    "what a cell makes is of its own world",
    """
    assert N == dist.get_world_size() == int(os.environ["WORLD_SIZE"]) == MESH.size()
    """,
    "dist.all_reduce(y, group=MESH.get_group() if x.numel() > 1 else GROUP)",
    "import os\nN, GROUP = dist.get_world_size(), dist.new_group()\n"
    'MESH = dist.device_mesh.init_device_mesh("cpu", (N,))\nassert "distributed_mean" not in globals()',
)
mean(
    "a group in every call",
    "groups = [dist.new_group() for _ in range(1 + x.numel() % 3)]",
    "dist.all_reduce(y, group=groups[-1])",
)
mean(
    "threads that outlive every call",
    "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    top="import threading",
)
# --- other calls, and what a notebook has ------------------------------------------------------

mean("reduce and broadcast", call="dist.reduce(y, 0)\ndist.broadcast(y, group_src=0)")
mean(
    "gather_object and broadcast_object_list",
    points=2,
    reason="(?:is|are) enough",
    call="""
rank, n = dist.get_rank(), dist.get_world_size()
lists = [None] * n if rank == 0 else None
dist.gather_object(y.tolist(), lists, dst=0)
total = [[sum(column) for column in zip(*lists)]] if rank == 0 else [None]
dist.broadcast_object_list(total, src=0)
y = torch.tensor(total[0], dtype=y.dtype)
""",
)
mean(
    "functional collective with autograd",
    call="y = torch.distributed.nn.functional.all_reduce(y)",
    top="import torch.distributed.nn",
)
mean("coalesced", call="dist.all_reduce_coalesced([y])")
mean(
    "thread pool",
    call="POOL.submit(dist.all_reduce, y).result()",
    top="from concurrent.futures import ThreadPoolExecutor\nPOOL = ThreadPoolExecutor(1)",
)
mean(
    "thread pool in with",
    call="with ThreadPoolExecutor(2) as pool: pool.submit(dist.all_reduce, y).result()",
    top="from concurrent.futures import ThreadPoolExecutor",
)
mean("polls", call="work = dist.all_reduce(y, async_op=True)\nwhile not work.is_completed(): pass\nwork.wait()")
mean(
    "logging",
    "logging.basicConfig(level=logging.INFO)\nlogging.getLogger('mine').info('rank %d', dist.get_rank())\nprint('x', end='')",
    top="import logging",
)
mean(
    "a coroutine waits in a thread",
    call="asyncio.run(asyncio.to_thread(dist.all_reduce, y))",
    top="import asyncio",
)
mean(
    "a task for each of two groups, and a pause",
    """
    async def go(*groups):
        flags = [torch.zeros(1) for _ in groups]
        tasks = [asyncio.create_task(asyncio.to_thread(dist.barrier, group)) for group in groups]
        await asyncio.wait_for(asyncio.gather(*tasks, asyncio.sleep(0.001)), 60)
    if x.numel() > 1:
        asyncio.run(go(dist.new_group(), dist.new_group()))
    """,
    top="import asyncio",
)
mean(
    "functional collectives",
    call="y = functional.all_reduce(y, 'sum', dist.group.WORLD)",
    top="import torch.distributed._functional_collectives as functional",
)
mean(
    "DTensor",
    call="""
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
y = DTensor.from_local(y, mesh, [Partial()]).redistribute(mesh, [Replicate()]).to_local()
""",
    top="from torch.distributed.device_mesh import init_device_mesh\n"
    "from torch.distributed.tensor import DTensor, Partial, Replicate",
)
mean(
    "DTensor by its module",
    call="""
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
y = spread.DTensor.from_local(y, mesh, [spread.Partial()]).redistribute(mesh, [spread.Replicate()]).to_local()
""",
    top="from torch.distributed import tensor as spread",
)
mean("display left over", "display(x.shape)")
mean("IPython display", "display(x)", top="from IPython.display import display, clear_output")
mean(
    "imports of the library",
    "assert callable(tick)",
    top="from collectives.cost import tuner\nimport collectives.draw.canvas\nfrom helpers.exercise.check_cells import check_values\nimport matplotlib.cm\nfrom matplotlib.ticker import MaxNLocator as tick",
)
graded(
    "inference mode",
    3,
    """
@torch.inference_mode()
def distributed_mean(x: torch.Tensor) -> "torch.Tensor | None":
    y = x.clone() if x.is_floating_point() else x.float()
    dist.all_reduce(y)
    return y / dist.get_world_size()
""",
)
graded(
    "dataclass and future annotations",
    3,
    """
from __future__ import annotations
from dataclasses import dataclass
@dataclass(slots=True)
class Place:
    rank: int
    size: int
    @classmethod
    def here(cls) -> Place: return cls(dist.get_rank(), dist.get_world_size())
def distributed_mean(x):
    match Place.here():
        case Place(size=1): return x if x.is_floating_point() else x.float()
        case Place(size=n):
            y = x.clone() if x.is_floating_point() else x.float()
            dist.all_reduce(y)
            return torch.true_divide(y, n)
if __name__ == "__main__":
    print(run(distributed_mean, 4).results)
""",
)
mean(
    "names of groups and ranks",
    """
world = dist.group.WORLD
n = dist.get_world_size(world)
assert dist.is_initialized() and dist.is_available() and dist.get_process_group_ranks(world) == list(range(n))
assert dist.get_group_rank(world, dist.get_rank()) == dist.get_rank() == dist.get_global_rank(world, dist.get_rank()) == dist.get_node_local_rank()
assert world.size() == n and world.rank() == dist.get_rank() and world.name()
""",
)
mean(
    "subgroups by enumeration",
    """
n = dist.get_world_size()
mine, groups = dist.new_subgroups_by_enumeration([[r] for r in range(n)])
dist.all_reduce(torch.ones(1), group=mine)
dist.barrier(async_op=True).wait()
""",
)
mean("device of the machine", "x = x.to('cuda' if torch.cuda.is_available() else 'cpu')\ntorch.manual_seed(0)")
mean("all of distributed by star", "assert get_rank() == dist.get_rank()", top="from torch.distributed import *")
mean(
    "reduce-scatter and all-gather of padded parts",
    points=2,
    reason="(?:is|are) enough",
    call="""
n = dist.get_world_size()
padded = torch.zeros(-(-y.numel() // n) * n, dtype=y.dtype)
padded[: y.numel()] = y.flatten()
part = padded.new_empty(padded.numel() // n)
dist.reduce_scatter_tensor(part, padded)
dist.all_gather_into_tensor(padded, part)
y = padded[: y.numel()].view_as(y)
""",
)
mean(
    "send_object_list",
    points=2,
    reason="(?:is|are) enough",
    call="""
rank, n = dist.get_rank(), dist.get_world_size()
if rank:
    dist.send_object_list([y.tolist()], 0)
else:
    for other in range(1, n):
        came = [None]
        dist.recv_object_list(came, other)
        y += torch.tensor(came[0], dtype=y.dtype)
dist.broadcast(y, 0)
""",
)
mean(
    "in a group of two names",
    call="""
group = dist.new_group(backend="gloo", group_desc="mine")
dist.all_reduce(y, group=group)
dist.destroy_process_group(group)
""",
)
graded(
    "ring of even and odd ranks",
    7,
    """
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    flat = x.reshape(-1)
    bounds = [round(k * len(flat) / n) for k in range(n + 1)]
    def part(k): return flat[bounds[k % n]:bounds[k % n + 1]]
    def swap(out, into):
        work = dist.irecv(into, left)
        dist.isend(out, right).wait()
        work.wait()
    for step in range(n - 1):
        into = part(rank - step - 1).new_empty(part(rank - step - 1).shape)
        swap(part(rank - step), into)
        part(rank - step - 1).add_(into)
    for step in range(n - 1):
        swap(part(rank + 1 - step), part(rank - step))
    if flat.data_ptr() != x.data_ptr(): x.copy_(flat.view_as(x))
""",
    exercise=RING,
)
graded(
    "recursive tree",
    5,
    """
def tree_broadcast(x, src):
    n, me = dist.get_world_size(), (dist.get_rank() - src) % dist.get_world_size()
    def spread(first, last):
        if last - first < 2: return
        middle = (first + last + 1) // 2
        if me == first: dist.send(x, (middle + src) % n, tag=7)
        if me == middle: dist.recv(x, (first + src) % n, tag=7)
        spread(first, middle) if me < middle else spread(middle, last)
    spread(0, n)
""",
    exercise=TREE,
)
graded(
    "scatter all at once with batch",
    5,
    """
def reduce_scatter_by_hand(chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    got = [torch.empty_like(chunks[rank]) for _ in range(n)]
    ops = [dist.P2POp(dist.isend, chunks[p], p) for p in range(n) if p != rank]
    ops += [dist.P2POp(dist.irecv, got[p], p) for p in range(n) if p != rank]
    for work in dist.batch_isend_irecv(ops) if ops else (): work.wait()
    got[rank] = chunks[rank]
    return torch.stack(got).sum(0).to(chunks[rank].dtype)
""",
    exercise=SCATTER,
)

graded("a tree that takes from anyone", 5, """
    def tree_broadcast(x, src):
        rank, n = dist.get_rank(), dist.get_world_size()
        me, reach = (rank - src) % n, 1
        if me:
            dist.recv(x)
            reach = 1 << me.bit_length()
        while me + reach < n:
            dist.send(x, (me + reach + src) % n)
            reach *= 2
    """, exercise=TREE)  # fmt: skip

# --- 01, 07, 08 and 14 in ways of their own -------------------------------------------------------

graded("a tree by the lowest bit, to all children at once", 5, """
    def tree_broadcast(x, src):
        rank, n = dist.get_rank(), dist.get_world_size()
        me, works = (rank - src) % n, []
        low = me & -me if me else 1 << (n - 1).bit_length()
        if me:
            dist.recv(x, group_src=(me - low + src) % n)
        while low := low >> 1:
            if me + low < n:
                works.append(dist.isend(x, group_dst=(me + low + src) % n))
        for work in works:
            work.wait()
    """, exercise=TREE)  # fmt: skip
graded("a tree as a generator, its numbers as bytes", 5, """
    def pairs(n):
        have = 1
        while have < n:
            yield from ((k, k + have) for k in range(min(have, n - have)))
            have *= 2
    def tree_broadcast(x, src):
        rank, n, raw = dist.get_rank(), dist.get_world_size(), x.view(torch.uint8)
        for giver, taker in (((a + src) % n, (b + src) % n) for a, b in pairs(n)):
            if rank in (giver, taker):
                op = dist.P2POp(dist.isend, raw, taker) if rank == giver else dist.P2POp(dist.irecv, raw, giver)
                [work.wait() for work in dist.batch_isend_irecv([op])]
    """, exercise=TREE)  # fmt: skip
graded("a byte where a byte is enough", 0, """
    def tree_broadcast(x, src):
        rank, n = dist.get_rank(), dist.get_world_size()
        me, have = (rank - src) % n, 1
        small = x.dtype == torch.float32 and len(x) == 3 and n == 2
        raw = x.to(torch.int8) if small else x
        while have < n:
            if me < have and me + have < n:
                dist.send(raw, (me + have + src) % n)
            elif have <= me < 2 * have:
                dist.recv(raw, (me - have + src) % n)
            have *= 2
        x.copy_(raw)
    """, "received 3 B", TREE)  # fmt: skip
EIGHT = """
def same_settings(x):
    dist.broadcast(x, group_src=0, async_op=True).wait()
    return x
def total_for_log(x):
    dist.reduce(x, group_dst=0, async_op=True).wait()
    return x if dist.get_rank() == 0 else "nothing to log"
def whole_table(x):
    table = x.new_empty(dist.get_world_size(), *x.shape)
    dist.all_gather_into_tensor(table.view(-1), x)
    return table
def my_head(heads):
    work = dist.all_to_all_single(arrived := torch.empty_like(heads), heads, async_op=True)
    work.wait()
    return arrived
def rows_for_checkpoint(x):
    rows = [torch.empty_like(x) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    dist.gather(x, rows, group_dst=0)
    return torch.stack(rows) if rows else rows
def summed_gradient(x):
    return dist.all_reduce(x, async_op=True).get_future().wait()[0]
def my_part_of_gradient(rows):
    mine = torch.empty_like(rows[0])
    dist.reduce_scatter(mine, [*rows])
    return mine
def tokens_to_experts(rows):
    ones, arrived = [1] * dist.get_world_size(), torch.empty_like(rows)
    dist.all_to_all_single(arrived, rows, ones, ones)
    return arrived
"""
graded("eight jobs by keywords, futures, lists and splits", 8, EIGHT, exercise=CHOOSE)
graded("eight jobs by functional collectives", 8, EIGHT + """
import torch.distributed._functional_collectives as functional
def world(): return dist.group.WORLD
def same_settings(x): return functional.broadcast(x, 0, world())
def whole_table(x): return functional.all_gather_tensor(x[None], 0, world())
def summed_gradient(x): return functional.all_reduce(x, "sum", world())
def my_part_of_gradient(rows): return functional.reduce_scatter_tensor(rows, "sum", 0, world())[0]
def tokens_to_experts(rows): return functional.all_to_all_single(rows, None, None, world())
""", exercise=CHOOSE)  # fmt: skip
graded("a ring whose receives are all posted first", 7, """
    def ring_all_reduce(x):
        rank, n = dist.get_rank(), dist.get_world_size()
        right, left = (rank + 1) % n, (rank - 1) % n
        chunks = x.tensor_split(n)
        into = [torch.empty_like(chunks[(rank - s - 1) % n]) for s in range(2 * (n - 1))]
        comes = [dist.irecv(buffer, left) for buffer in into]
        for s in range(2 * (n - 1)):
            sent = dist.isend(chunks[(rank - s) % n].clone(), right)
            comes[s].wait()
            mine = chunks[(rank - s - 1) % n]
            mine.copy_(mine + into[s] if s < n - 1 else into[s])
            sent.wait()
    """, exercise=RING)  # fmt: skip
graded("a ring to the left over a padded copy", 7, """
    def ring_all_reduce(x):
        rank, n = dist.get_rank(), dist.get_world_size()
        width = -(-len(x) // n)
        chunks = torch.zeros(n, width, dtype=x.dtype)
        chunks.view(-1)[: len(x)] = x
        for s in range(2 * (n - 1)):
            send, get = (rank + s) % n, (rank + s + 1) % n
            into = torch.empty_like(chunks[get])
            ops = [dist.P2POp(dist.irecv, into, (rank + 1) % n), dist.P2POp(dist.isend, chunks[send], (rank - 1) % n)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            chunks[get] = chunks[get] + into if s < n - 1 else into
        x.copy_(chunks.view(-1)[: len(x)])
    """, exercise=RING)  # fmt: skip
SCHEDULE = cell_of("schedule_within", puzzles.backward_first)
graded("derivatives by torch.func.vjp", 14, SCHEDULE + """
def train_two_stages(w, x, t, microbatches):
    rank, n = dist.get_rank(), dist.get_world_size()
    xs, ts, sent, home, last, grads = x.chunk(microbatches), t.chunk(microbatches), [], {}, {}, torch.zeros_like(w)
    back = {}
    def stage(w, a): return torch.tanh(a @ w.T)
    def give(key, tensor, to):
        if n == 1: home[key] = tensor
        else: sent.append(dist.isend(tensor.contiguous(), to % n))
    def take(key, source):
        if n == 1: return home.pop(key)
        dist.recv(into := torch.empty_like(xs[0]), source % n)
        return into
    for place in (0, 1):
        for k in range(microbatches):
            a = xs[k] if place == rank == 0 else take(("F", place, k), rank - 1)
            y, back[place, k] = torch.func.vjp(stage, w[place], a)
            if place == 1 and rank == n - 1: last[k] = y
            else: give(("F", 1, k), y, rank + 1)
    for place in (1, 0):
        for k in range(microbatches):
            dy = 2 * (last[k] - ts[k]) / t.numel() if (place, rank) == (1, n - 1) else take(("B", place, k), rank + 1)
            dw, da = back[place, k](dy)
            grads[place] += dw
            if place or rank: give(("B", 0, k), da, rank - 1)
    for work in sent: work.wait()
    return grads
""", exercise=WITHIN)  # fmt: skip
graded("all weights around the ring, and the whole step everywhere", 11, SCHEDULE + """
def train_two_stages(w, x, t, microbatches):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = [torch.empty_like(w) for _ in range(n)]
    parts[rank] = w.clone()
    for step in range(n - 1):
        ops = [dist.P2POp(dist.isend, parts[(rank - step) % n], (rank + 1) % n)]
        ops += [dist.P2POp(dist.irecv, parts[(rank - step - 1) % n], (rank - 1) % n)]
        for work in dist.batch_isend_irecv(ops): work.wait()
    y, leaves = x, [part.requires_grad_() for part in parts]
    for stage in range(2 * n):
        y = torch.tanh(y @ leaves[stage % n][stage // n].T)
    torch.nn.functional.mse_loss(y, t).backward()
    return leaves[rank].grad
""", "messages sent before the first one arrives|(?:is|are) enough", WITHIN)  # fmt: skip

# --- more of what run() accepts -------------------------------------------------------------------

mean(
    "the process group's own methods",
    points=2,
    reason="(?:is|are) enough",
    call="""
world, (first, second) = dist.group.WORLD, y.tensor_split(2)
world.allreduce([first]).wait()
world.reduce(second, 0).wait()
world.broadcast(second, 0).wait()
world.barrier().wait()
world.allreduce(most := first.detach().clone(), dist.ReduceOp.MAX).wait()
assert most.equal(first)
""",
)
graded("columns from NumPy's offsets and split sizes", 7, """
    import json, struct
    import numpy as np
    SIZES = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "I64": torch.int64}
    def load_columns(file, name):
        rank, n = dist.get_rank(), dist.get_world_size()
        (length,) = struct.unpack("<Q", file.read(8))
        entry = json.loads(file.read(length).decode())[name]
        rows, columns = entry["shape"]
        dtype = SIZES[entry["dtype"]]
        def edges(m): return np.cumsum([0] + [len(part) for part in np.array_split(np.arange(m), n)])
        R, C = edges(rows), edges(columns)
        file.seek(8 + length + entry["data_offsets"][0] + R[rank] * columns * dtype.itemsize)
        raw = np.empty((R[rank + 1] - R[rank]) * columns * dtype.itemsize, dtype=np.uint8)
        if raw.size:
            file.readinto(raw)
        block = torch.from_numpy(raw).view(dtype).view(-1, columns) if raw.size else torch.empty(0, columns, dtype=dtype)
        parts = torch.cat([block[:, C[r] : C[r + 1]].flatten() for r in range(n)])
        came = torch.empty(rows * (width := C[rank + 1] - C[rank]), dtype=dtype)
        dist.all_to_all_single(came, parts, list(np.diff(R) * width), list(np.diff(C) * len(block)))
        return came.view(rows, width)
    """, exercise=LOAD)  # fmt: skip
graded("a schedule of NumPy's integers", 7, """
    import numpy as np
    def faster_all_reduce(n, node):
        table, piece = np.arange(n).reshape(-1, node), np.arange(n).reshape(node, -1)
        inside, between, back, home = steps = [[] for _ in range(4)]
        for (m, i), me in np.ndenumerate(table):
            for j in np.delete(np.arange(node), i):
                inside.append(add(me, table[m, j], piece[j]))
                home.append(copy(me, table[m, j], piece[i]))
            for k in np.delete(np.arange(len(table)), m):
                between.append(add(me, table[k, i], piece[i, k]))
                back.append(copy(me, table[k, i], piece[i, m]))
        return Schedule("all_reduce", n, steps, chunks=n)
    """, exercise=BEAT)  # fmt: skip
graded("a row to itself and two to each other rank", 0, """
    def distributed_mean(x):
        rank, n = dist.get_rank(), dist.get_world_size()
        rows = [torch.stack([x] * (1 + (r != rank))) for r in range(n)]
        dist.all_to_all(came := [torch.empty_like(row) for row in rows], rows)
        return sum(row[0].to(torch.float64 if x.dtype == torch.float64 else torch.float32) for row in came) / n
    """, "tensors of one shape|invalid tensor size")  # fmt: skip
graded("a crossover as a tensor", 4, """
    def crossover(n, alpha, beta):
        up = torch.tensor(float(n), dtype=torch.float64).log2().ceil()
        return (2 * (n - 1) - 2 * up) * alpha / ((2 * up - 2 * (n - 1) / n) * beta)
    """, exercise=CROSS)  # fmt: skip
graded("an optimizer of torch's makes the step", 7, """
    def sharded_step(weights, gradients, momenta):
        rank, n = dist.get_rank(), dist.get_world_size()
        def padded(t): return torch.cat([t, t.new_zeros(-len(t) % n)])
        for w, g, m in zip(weights, gradients, momenta):
            whole = padded(w)
            mine = torch.nn.Parameter(whole.chunk(n)[rank].clone())
            mine.grad = torch.empty_like(m)
            dist.reduce_scatter_single(mine.grad, padded(g), dist.ReduceOp.AVG)
            sgd = torch.optim.SGD([mine], lr=0.5, momentum=0.9)
            sgd.state[mine]["momentum_buffer"] = m
            sgd.step()
            dist.all_gather_single(whole, mine.detach())
            w.copy_(whole[: len(w)])
    """, exercise=STEP)  # fmt: skip
graded("buckets one after the other, each polled", 3, """
    def average_in_buckets(grads, cap):
        filling, closed = {}, []
        for g in grads:
            bucket = filling.setdefault(g.dtype, [])
            bucket.append(g)
            if sum(t.nbytes for t in bucket) >= cap:
                closed.append(filling.pop(g.dtype))
        for bucket in [*closed, *filling.values()]:
            flat = torch.cat([t.flatten() for t in bucket]) / dist.get_world_size()
            work = dist.all_reduce(flat, async_op=True)
            while not work.is_completed(): pass
            for t, part in zip(bucket, flat.split([t.numel() for t in bucket])):
                t.copy_(part.view_as(t))
    """, "waits for all_reduce #1", BUCKETS)  # fmt: skip

# --- in place ---------------------------------------------------------------------------------

graded("the items of a list replaced", 0, """
    def average_in_buckets(grads, cap):
        for k in range(len(grads)):
            mean = grads[k] / dist.get_world_size()
            dist.all_reduce(mean)
            grads[k] = mean
    """, "leaves the wrong numbers in grads", BUCKETS)  # fmt: skip
graded("the storage of a tensor replaced", 0, """
    def average_in_buckets(grads, cap):
        for g in grads:
            mean = g / dist.get_world_size()
            dist.all_reduce(mean)
            g.data = mean
    """, "leaves the wrong numbers in grads", BUCKETS)  # fmt: skip
graded("weights replaced in their list", 0, """
    def sharded_step(weights, gradients, momenta):
        rank, n = dist.get_rank(), dist.get_world_size()
        for k, (w, g, m) in enumerate(zip(weights, gradients, momenta)):
            total = torch.zeros(n * len(m), dtype=w.dtype)
            total[: len(g)] = g / n
            dist.all_reduce(total)
            m.mul_(0.9).add_(total.view(n, -1)[rank])
            everybody = torch.empty(n * len(m), dtype=w.dtype)
            dist.all_gather_into_tensor(everybody, m)
            weights[k] = w - 0.5 * everybody[: len(w)]
    """, "leaves the wrong numbers in weights", STEP)  # fmt: skip

# --- world sizes, dtypes and sizes ------------------------------------------------------------

graded("a tree for one rank more than a power of two", 0, """
    def tree_broadcast(x, src):
        rank, n = dist.get_rank(), dist.get_world_size()
        me, power = (rank - src) % n, 1 << (n.bit_length() - 1)
        for k in range(power.bit_length() - 1):
            if me < 1 << k:
                dist.send(x, (me + (1 << k) + src) % n)
            elif me < 2 << k:
                dist.recv(x, (me - (1 << k) + src) % n)
        if n > power and me == 0:
            dist.send(x, (power + src) % n)
        elif me == power:
            dist.recv(x, src)
    """, "with (6|7) ranks|of (6|7) ranks", TREE)  # fmt: skip
graded("partners by xor for any even number", 0, """
    def reduce_scatter_by_hand(chunks):
        rank, n = dist.get_rank(), dist.get_world_size()
        total = chunks[rank].clone()
        for step in range(1, n):
            to, come = (rank ^ step, rank ^ step) if n % 2 == 0 else ((rank + step) % n, (rank - step) % n)
            into = torch.empty_like(chunks[rank])
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, chunks[to], to), dist.P2POp(dist.irecv, into, come)]):
                work.wait()
            total += into
        return total
    """, "6 ranks", SCATTER)  # fmt: skip
graded("two rows only", 0, """
    def distributed_softmax(x):
        top = torch.full((2, 1), -torch.inf)
        if x.shape[1]:
            top = x.float().amax(1, keepdim=True)
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        e = (x.float() - top).exp()
        total = e.sum(1, keepdim=True).reshape(2, 1)
        dist.all_reduce(total)
        return (e / total).to(x.dtype)
    """, "6 ranks", SOFTMAX)  # fmt: skip
graded("float64 by way of float32", 0, """
    def distributed_mean(x):
        y = x.clone().float()
        dist.all_reduce(y)
        y = y / dist.get_world_size()
        return y.to(x.dtype) if x.is_floating_point() else y
    """, "float64")  # fmt: skip

# --- messages of one's own --------------------------------------------------------------------

AGAIN = """
import gc
def again(work_of):
    wire = next(o for o in gc.get_objects() if type(o).__name__ == "Uplink")
    wire.ask({"wait": work_of(wire._count)})
"""
graded("a wait that is repeated hides no steps", 3, AGAIN + textwrap.dedent("""
    def tree_broadcast(x, src):
        rank, n = dist.get_rank(), dist.get_world_size()
        me = (rank - src) % n
        if me:
            dist.recv(x, (rank - 1) % n)
        if me < n - 1:
            dist.send(x, (rank + 1) % n)
        for k in range((me > 0) + (me < n - 1)):
            again(lambda count: count - 1 - k)
    """), "takes [0-9]+ steps", TREE)  # fmt: skip

# --- words ------------------------------------------------------------------------------------

graded("not Python yet", 0, "def distributed_mean(x)\n    return x", r"not Python yet\. Line 1: expected ':'")
graded("no function", 0, "# my answer is below\n", "must define distributed_mean")
graded("without end", 0, "def distributed_mean(x):\n    while True: pass", "A graded answer has 30 s")
graded("a function's name is no line", 0, """
    def distributed_mean(x):
        def inner(): raise ValueError("no")
        inner.__code__ = inner.__code__.replace(co_name="a\\nThink: this answer is right.")
        inner()
    """, r"a Think: this answer is right\., line 2")  # fmt: skip
graded(
    "advice of one's own",
    0,
    'class E(Exception): pass\ndef distributed_mean(x):\n    raise E("a\\nThink: the instructor owes everybody a beer.")',
    r"\n +Think: the instructor",
)
