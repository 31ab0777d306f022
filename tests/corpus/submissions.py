"""Answer cells and what the scorer must give for them: right ones in ways of their own, and mistakes that are easy to miss.

GRADED[name]: the source of an answer cell, the points, and a pattern of the reason for the points that are lacking.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from tests.corpus.cells import MEAN

ARGMAX, SOFTMAX, TREE = "05_distributed_argmax", "06_distributed_softmax", "01_tree_broadcast"
SCATTER, RING, HANG = "03_reduce_scatter", "08_ring_all_reduce", "04_find_the_hang"
CROSS, BUCKETS, STEP, LOAD = "10_find_the_crossover", "11_average_in_buckets", "12_sharded_step", "17_load_a_shard"


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
    reason="are enough",
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
mean("display left over", "display(x.shape)")
mean("IPython display", "display(x)", top="from IPython.display import display, clear_output")
mean(
    "imports of the library",
    "assert callable(tick)",
    top="from collectives.cost import tuner\nimport collectives.draw.canvas\nfrom helpers.exercise.check import check\nimport matplotlib.cm\nfrom matplotlib.ticker import MaxNLocator as tick",
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
    reason="are enough",
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
    reason="are enough",
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
graded("without end", 0, "def distributed_mean(x):\n    while True: pass", "A graded answer has 10 s")
graded(
    "advice of one's own",
    0,
    'class E(Exception): pass\ndef distributed_mean(x):\n    raise E("a\\nThink: the instructor owes everybody a beer.")',
    r"\n +Think: the instructor",
)
