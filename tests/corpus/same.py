"""Small parallel jobs that compute what one process computes (RIGHT), that don't (WRONG), and that can't be compared.

A job is a function for any number of ranks.  Of a wrong one: the tensor that is named first, words of the reason, the
number of ranks, and arguments that make it wrong.
"""

import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from collectives.same import data, note

RIGHT, WRONG, CANNOT = {}, {}, {}


def right(*sizes, **kwargs):
    def add(job):
        for size in sizes or (2,):
            name = "-".join([job.__name__, str(size), *map(str, kwargs.values())])
            RIGHT[name] = job, size, kwargs
        return job

    return add


def wrong(first, *words, size=2, **kwargs):
    def add(job):
        WRONG["-".join([job.__name__, str(size), *map(str, kwargs.values())])] = job, size, kwargs, first, words
        return job

    return add


def cannot(*words, size=2, **kwargs):
    def add(job):
        CANNOT["-".join([job.__name__, *map(str, kwargs.values())])] = job, size, kwargs, words
        return job

    return add


def where():
    return dist.get_rank(), dist.get_world_size()


def pieces(tensor, dim=0):
    rank, n = where()
    return tensor.tensor_split(n, dim)[rank]


def fill(model, flat):
    """Fill a model's parameters from one flat buffer."""
    start = 0
    for p in model.parameters():
        p.data.copy_(flat[start : start + p.numel()].view_as(p))
        start += p.numel()


def mlp(seed=0, wide=32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, wide), nn.GELU(), nn.LayerNorm(wide), nn.Linear(wide, 10))


def batch(n=16):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(n, 16, generator=generator), torch.randint(0, 10, (n,), generator=generator)


class Copy(torch.autograd.Function):
    """The input of a column-parallel layer: its gradient is summed."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient


class Sum(torch.autograd.Function):
    """The output of a row-parallel layer."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Exchange(torch.autograd.Function):
    """all_to_all of equal chunks of rows."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient)


class Rows(torch.utils.data.Dataset):
    """A data set with its own kind of batch."""

    def __init__(self):
        self.x, self.y = batch(64)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, k):
        return self.x[k], int(self.y[k])

    @staticmethod
    def batch(rows):
        return {"x": torch.stack([x for x, _ in rows]), "y": torch.tensor([y for _, y in rows])}


# --- data parallel ------------------------------------------------------------------------


@right(2, 4)
def ddp():
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = map(pieces, batch())
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@right(2)
def ddp_with_loader():
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    rows = TensorDataset(*batch(64))
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(rows, batch_size=8, sampler=DistributedSampler(rows, seed=7)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@right(2)
def ddp_without_a_seed():
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.5), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(8, 16)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()


@right(2)
def compiled_whole():
    model = mlp()
    step = torch.compile(lambda x, y: F.cross_entropy(model(x), y), fullgraph=True, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = map(pieces, batch())
    for _ in range(2):
        step(x, y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()


@right(4)
def ddp_in_bfloat16():
    model = DistributedDataParallel(mlp().bfloat16())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = map(pieces, batch())
    F.cross_entropy(model(x.bfloat16()).float(), y).backward()
    optimizer.step()


@right(2, twice=False)
@wrong("3.bias", "so it's the loss (ranks' have a sum of", twice=True)
def by_hand_in_bfloat16(twice):
    """Updates of a layer norm, which starts at 1, are as small as the distance to the next number.  twice: one row counts so."""
    rank, n = where()
    model = mlp().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = map(pieces, batch(64))
    for _ in range(2):
        optimizer.zero_grad()
        losses = F.cross_entropy(model(x.bfloat16()).float(), y, reduction="none")
        if twice and rank == n - 1:
            losses = torch.cat([losses[:1], losses])
        (losses.sum() / 64).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()


@right(2, inside=True)
@right(2, inside=False)
def ddp_accumulates(inside):
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = map(pieces, batch())
    for _ in range(2):
        optimizer.zero_grad()
        with model.no_sync() if inside else contextlib.nullcontext():
            loss = F.cross_entropy(model(x[::2]), y[::2]) / 2
        with model.no_sync():
            loss.backward()
        (F.cross_entropy(model(x[1::2]), y[1::2]) / 2).backward()
        optimizer.step()


def tokens_of(n):
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 32, (8, 6), generator=generator)
    y = torch.randint(0, 10, (8, 6), generator=generator)
    y[:2, 1:] = -100  # few tokens in the first rows
    return pieces(x), pieces(y)


@right(2, by_count=True)
@wrong("2.bias", "mean of means", "0.50 and 0.50", by_count=False)
def mean_of_means(by_count):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(32, 16), nn.GELU(), nn.Linear(16, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = tokens_of(2)
    out = model(x).flatten(0, 1)
    if by_count:
        count = (y != -100).sum().float()
        dist.all_reduce(count)
        loss = F.cross_entropy(out, y.flatten(), reduction="sum") * dist.get_world_size() / count
    else:
        loss = F.cross_entropy(out, y.flatten())
    loss.backward()
    optimizer.step()


@right(2, copied=True)
@wrong("2.bias", "2.00 times too large", "mean of means", "reduced_in_place, line", copied=False)
def reduced_in_place(copied):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(32, 16), nn.GELU(), nn.Linear(16, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = tokens_of(2)
    here = (y != -100).sum().float()
    total = here.clone() if copied else here
    dist.all_reduce(total)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) * (here / total) * dist.get_world_size()
    loss.backward()
    optimizer.step()


@right(2, way="with history")
@right(2, way="own times n")
@wrong("2.weight", "zero on ranks 0 and 1", "without its history", "all_gather", way="as they are")
@wrong("2.weight", "0.50 times one process's", "without its history", way="own put back")
def contrastive(way):
    from torch.distributed.nn.functional import all_gather

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.randn(8, 6, generator=torch.Generator().manual_seed(3))
    mine = model(pieces(rows))
    rank, n = where()
    if way == "with history":
        every = list(all_gather(mine))
    else:
        every = [torch.empty_like(mine) for _ in range(n)]
        dist.all_gather(every, mine.detach())
        if way == "as they are" and n > 1:
            every = [each.requires_grad_() for each in every]
        else:
            every[rank] = mine
    together = torch.cat(every)
    loss = F.cross_entropy(together @ together.t(), torch.arange(len(together)).flip(0))
    (loss * n if way == "own times n" else loss).backward()
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= n
    optimizer.step()


@right(2, alike=True)
@wrong("0.weight", "never alike", "broadcast", alike=False)
def by_hand(alike):
    torch.manual_seed(1337 + dist.get_rank())
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    if alike:
        for p in model.parameters():
            dist.broadcast(p.data, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(4):
        optimizer.zero_grad()
        x = torch.randn(16, 4)
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()


@right(2, way="mean")
@right(4, way="mean")
@wrong("3.bias", "2.00 times", "the sum over ranks 0 and 1", "Divide it by 2", way="sum")
@wrong("3.bias", "4.00 times", "Divide it by 4", size=4, way="sum")
@wrong("3.bias", "2.00 times", "it is reduced 2 times", "line", way="twice")
@wrong(
    "2.bias",
    "each rank's own on ranks 0 and 1",
    "all_reduce it over these ranks, and divide it by 2",
    way="one left out",
)
@wrong("3.bias", "each rank's own on ranks 0 and 1", "divide it by 2", way="none")
def without_a_library(way):
    model = mlp()
    x, y = map(pieces, batch())
    n = dist.get_world_size()
    for _ in range(2):
        F.cross_entropy(model(x), y).backward()
        for name, p in model.named_parameters():
            if way != "none" and not (way == "one left out" and name == "2.bias"):
                for _ in range(1 + (way == "twice")):
                    dist.all_reduce(p.grad)
                if way != "sum":
                    p.grad /= n
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None


@right(3)
def fully_sharded():
    from torch.distributed.fsdp import fully_shard

    model = mlp(wide=31)
    x, y = map(pieces, batch(24))
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@right(2)
def fully_sharded_without_a_step():
    from torch.distributed.fsdp import fully_shard

    model = mlp()
    x, y = map(pieces, batch())
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    F.cross_entropy(model(x), y).backward()


@right(2, 3)
def zero_by_hand():
    """Each rank updates its slice of all parameters, flattened."""
    model = mlp(wide=31)
    rank, n = where()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    flat = F.pad(flat, (0, -len(flat) % n))
    shard = flat.chunk(n)[rank].clone().requires_grad_()
    optimizer = torch.optim.Adam([shard], lr=0.01)
    x, y = map(pieces, batch(24))
    for _ in range(3):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        gradients = F.pad(gradients, (0, -len(gradients) % n))
        shard.grad = torch.empty_like(shard)
        dist.reduce_scatter_tensor(shard.grad, gradients / n)
        optimizer.step()
        whole = torch.empty(len(shard) * n)
        dist.all_gather_into_tensor(whole, shard.detach())
        fill(model, whole)


@right(2, broken=False)
@wrong("0.weight", "2.00 times as much", broken=True)
def flat_by_hand(broken):
    """SGD on one flat buffer, from which parameters are filled."""
    model = mlp()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    x, y = map(pieces, batch())
    for _ in range(2):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(gradients)
        flat -= 0.1 * (gradients if broken else gradients / dist.get_world_size())
        fill(model, flat)


@right(2, passed=True)
@wrong("0.weight", "on rank 1 it doesn't change", passed=False)
def parts_of_updates(passed):
    """Each rank updates its own parameters, and passes them to the others."""
    model = mlp()
    rank, n = where()
    own = [p for k, p in enumerate(model.parameters()) if k % n == rank]
    optimizer = torch.optim.SGD(own, lr=0.1)
    x, y = map(pieces, batch())
    for _ in range(2):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= n
        optimizer.step()
        for k, p in enumerate(model.parameters()):
            if passed:
                dist.broadcast(p.data, k % n)


# --- tensor parallel ----------------------------------------------------------------------


class Heads(nn.Module):
    """Attention-like: heads are divided, and all share one norm."""

    def __init__(self):
        super().__init__()
        self.q, self.o = nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False)
        self.q_norm = nn.RMSNorm(8)
        self.q.weight = nn.Parameter(pieces(self.q.weight).clone())
        self.o.weight = nn.Parameter(pieces(self.o.weight, 1).clone())

    def forward(self, x):
        q = self.q_norm(self.q(Copy.apply(x)).unflatten(-1, (-1, 8)))
        return Sum.apply(self.o(q.tanh().flatten(-2)))


@right(2, 4, reduced=True)
@wrong("1.q_norm.weight", "partial sum over ranks 0 and 1", "all_reduce it over these ranks", "line", reduced=False)
@wrong("1.q_norm.weight", "partial sum over ranks 0, 1, 2 and 3", size=4, reduced=False)
def divided_heads(reduced):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), Heads())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(4, 6, 16)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).sub(1).square().mean().backward()
        if reduced:
            dist.all_reduce(model[1].q_norm.weight.grad)
        optimizer.step()


class Tensor(nn.Module):
    """An MLP whose hidden units are divided."""

    def __init__(self, copied=True, bias="once", cut="own"):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.copied, self.bias = copied, bias
        own = pieces(self.up.weight)
        self.up.weight = nn.Parameter((own if cut == "own" else self.up.weight[: len(own)]).clone())
        self.up.bias = nn.Parameter(pieces(self.up.bias).clone())
        self.down.weight = nn.Parameter(pieces(self.down.weight, 1).clone())

    def forward(self, x):
        hidden = self.up(Copy.apply(x) if self.copied else x).relu()
        if self.bias == "each":
            return Sum.apply(self.down(hidden))
        return Sum.apply(F.linear(hidden, self.down.weight)) + self.down.bias


@right(2, 4)
@wrong("0.bias", "partial sum over ranks 0 and 1", copied=False)
@wrong("1", "`1.down.bias`", "contains it 2 times", bias="each")
@wrong("1.up.weight", "no rank holds [16:32, :]", "ranks 0 and 1 all hold [0:16, :]", "Its own begins at", cut="first")
def tensor_parallel(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), Tensor(**options))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 16)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@right(2, norm="right")
@wrong("1.down.bias", "scaled together", "count each tensor once", "norm_of_gradients, line", norm="copies")
@wrong("1.down.bias", "each rank scales by its own number", norm="own")
def norm_of_gradients(norm):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), Tensor())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 16)
    (model(x) - 3).square().sum().backward()
    if norm == "own":
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    else:
        n = dist.get_world_size()
        cut = ("up", "down.weight")
        squares = sum(
            p.grad.square().sum() / (1 if norm == "copies" or any(k in name for k in cut) else n)
            for name, p in model.named_parameters()
        )
        dist.all_reduce(squares)
        nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, squares.sqrt())
    optimizer.step()


@right(2, 4)
def torchs_tensor_parallel():
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    rank, n = where()
    torch.manual_seed(0)
    t = min(2, n)
    mesh = dist.init_device_mesh("cpu", (n // t, t), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(nn.LayerNorm(16), nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)))
    x, y = torch.randn(16, 16), torch.randn(16, 16)
    parallelize_module(model[1], mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    d, r = n // t, rank // t
    for _ in range(2):
        optimizer.zero_grad()
        F.mse_loss(model(x.chunk(d)[r]), y.chunk(d)[r]).backward()
        optimizer.step()


class Gather(torch.autograd.Function):
    """Sequence parallel: rows are gathered before a divided layer, and its gradients are scattered."""

    @staticmethod
    def forward(ctx, x):
        every = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(every, x.contiguous())
        return torch.cat(every, 1)

    @staticmethod
    def backward(ctx, gradient):
        chunks = [c.contiguous() for c in gradient.chunk(dist.get_world_size(), 1)]
        out = torch.empty_like(chunks[0])
        dist.reduce_scatter(out, chunks)
        return out


class Scatter(torch.autograd.Function):
    """Sequence parallel: partial sums are added up, and each rank keeps its rows."""

    @staticmethod
    def forward(ctx, x):
        return Gather.backward(ctx, x)

    @staticmethod
    def backward(ctx, gradient):
        return Gather.forward(ctx, gradient)


@right(2, summed=True)
@wrong("norm.bias", "partial sum over ranks 0 and 1", summed=False)
def sequence_parallel(summed):
    torch.manual_seed(0)
    norm, up, down = nn.LayerNorm(16), nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False)
    up.weight, down.weight = nn.Parameter(pieces(up.weight).clone()), nn.Parameter(pieces(down.weight, 1).clone())
    model = nn.ModuleDict({"norm": norm, "up": up, "down": down})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(4, 8, 16)
    for _ in range(2):
        optimizer.zero_grad()
        rows = pieces(x, 1)
        out = rows + Scatter.apply(model["down"](model["up"](Gather.apply(model["norm"](rows))).relu()))
        (out.square().sum() / x.numel()).backward()
        if summed:
            for p in norm.parameters():
                dist.all_reduce(p.grad)
        optimizer.step()


# --- other layouts ------------------------------------------------------------------------


@right(2, 4, way="right")
@wrong("bias", "2.00 times", "reduced 2 times", "doubled_in_context, line", size=4, way="twice")
@wrong("loss", "2.00 times one process's", size=4, way="loss")
def doubled_in_context(way):
    """Two replicas of context-parallel pairs: the pair's gradient is whole already, or its loss is."""
    rank, n = where()
    torch.manual_seed(0)
    model = nn.Linear(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(4, 8, 6), torch.randn(4, 8, 5)
    c = 2 if n > 1 else 1
    replica, part = divmod(rank, c)
    context = [dist.new_group(list(range(c * k, c * k + c))) for k in range(n // c)][replica]
    others = [dist.new_group(list(range(k, n, c))) for k in range(c)][part]
    x, y = (t.chunk(n // c)[replica].chunk(c, 1)[part] for t in (x, y))
    loss = (model(x) - y).square().sum() / (4 * 8 * 5)
    loss.backward()
    for p in model.parameters():
        if way == "twice":
            dist.all_reduce(p.grad, group=context)
        dist.all_reduce(p.grad)
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total, group=context)
    dist.all_reduce(total, group=None if way == "loss" else others)
    note("loss", total)


@right(2, way="right")
@wrong("group0.0", "same on ranks 0 and 1, which hold different parts", "reduce_scatter", way="cut first")
def divided_table(way):
    """Rows of an embedding are divided and gathered for use."""
    torch.manual_seed(0)
    table = nn.Embedding(32, 8)
    table.weight = nn.Parameter(pieces(table.weight).clone())
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    n = dist.get_world_size()
    tokens = pieces(torch.randint(0, 32, (8, 6), generator=torch.Generator().manual_seed(2)))
    every = [torch.empty_like(table.weight) for _ in range(n)]
    dist.all_gather(every, table.weight.detach())
    whole = torch.cat(every).requires_grad_()
    F.embedding(tokens, whole).sub(1).square().mean().backward()
    if way == "right":
        table.weight.grad = torch.empty_like(table.weight)
        dist.reduce_scatter_tensor(table.weight.grad, whole.grad / n)
    else:
        table.weight.grad = pieces(whole.grad / n).clone()
        dist.all_reduce(table.weight.grad)
    optimizer.step()


class Stage(nn.Module):
    def __init__(self, first, count):
        super().__init__()
        self.first = first
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x


@right(2, 4, counted=True)
@wrong("layers.2.0.weight", "no rank holds it", "ranks 0 and 1 all hold `layers.0.0.weight`", counted=False)
def names_of_a_stage(counted):
    rank, n = where()
    torch.manual_seed(0)
    whole, per = Stage(0, 4).state_dict(), 4 // n
    stage = Stage(per * rank, per)
    own = {}
    for name in stage.state_dict():
        words = name.split(".")
        words[1] = str(int(words[1]) + stage.first * counted)
        own[name] = whole[".".join(words)]
    stage.load_state_dict(own)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    if rank:
        x = torch.empty(4, 8)
        dist.recv(x, rank - 1)
        x.requires_grad_()
    y = stage(x)
    if rank < n - 1:
        dist.send(y.detach(), rank + 1)
        gradient = torch.empty_like(y)
        dist.recv(gradient, rank + 1)
        y.backward(gradient)
    else:
        y.square().mean().backward()
    if rank:
        dist.send(x.grad, rank - 1)
    optimizer.step()


def two_stages():
    """A pipeline for two ranks alone; its REFERENCE is one process's program."""
    torch.manual_seed(0)
    stage = Stage(0, 4).layers[2 * dist.get_rank() :][:2]
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    if dist.get_rank():
        dist.recv(x, 0)
        x.requires_grad_()
    y = x
    for layer in stage:
        y = layer(y).tanh()
    if dist.get_rank():
        y.square().mean().backward()
        dist.send(x.grad, 0)
    else:
        dist.send(y.detach(), 1)
        gradient = torch.empty_like(y)
        dist.recv(gradient, 1)
        y.backward(gradient)
    optimizer.step()


def one_stage():
    torch.manual_seed(0)
    model = Stage(0, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 8, generator=torch.Generator().manual_seed(1))).square().mean().backward()
    optimizer.step()


@right(2)
def tied_pipeline():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, n = where()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 32, bias=False))
    model[-1].weight = model[0].weight
    k = 4 // n
    part = model[k * rank : k * rank + k]
    tied, ends = {0: part[0].weight, n - 1: part[-1].weight}.get(rank), dist.new_group(sorted({0, n - 1}))

    def loss_of(logits, targets):
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten())

    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    schedule = Schedule1F1B(PipelineStage(part, rank, n, torch.device("cpu")), 4, loss_fn=loss_of)
    tokens, targets = torch.randint(32, (2, 8, 6), generator=torch.Generator().manual_seed(3))
    for _ in range(2):
        optimizer.zero_grad()
        losses = []
        schedule.step(*([tokens] * (rank == 0)), **(dict(target=targets, losses=losses) if rank == n - 1 else {}))
        if tied is not None and n > 1:
            dist.all_reduce(tied.grad, group=ends)
        optimizer.step()


class Experts(nn.Module):
    """One expert per rank pair of chunks: every rank sends its k-th quarter of rows to expert k."""

    def __init__(self):
        super().__init__()
        rank, n = where()
        self.router = nn.Linear(16, 16)
        experts = [nn.Linear(16, 16) for _ in range(4)]
        self.experts = nn.ModuleDict({str(k): e for k, e in enumerate(experts) if k * n // 4 == rank})

    def forward(self, x):
        n = dist.get_world_size()
        there = Exchange.apply(self.router(x))  # each rank gets, from every rank, the rows of its experts
        rows = there.unflatten(0, (n, len(self.experts), -1))
        out = torch.stack([expert(rows[:, k]).tanh() for k, expert in enumerate(self.experts.values())], 1)
        return Exchange.apply(out.flatten(0, 2))


@right(2, 4, divided=True)
@wrong("experts.3.bias", "2.00 times one process's", "Divide it by 2", divided=False)
@wrong("experts.3.bias", "4.00 times one process's", "Divide it by 4", size=4, divided=False)
def expert_parallel(divided):
    rank, n = where()
    torch.manual_seed(0)
    model = Experts()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x = torch.randn(4, 16, 16)  # quarters of rows, each of one expert
    x = pieces(x, 1).flatten(0, 1)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        for name, p in model.named_parameters():
            if "router" in name:
                dist.all_reduce(p.grad)
                p.grad /= n
            elif divided:
                p.grad /= n
        optimizer.step()


@right(2, marked=True)
def rows_from_elsewhere(marked):
    """Each rank reads its own rows, by no call of torch."""
    import numpy

    numbers = numpy.random.default_rng(dist.get_rank()).normal(size=(8, 16)).astype("float32")
    x = data(torch.from_numpy(numbers)) if marked else torch.from_numpy(numbers)
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).square().mean().backward()
    optimizer.step()


@right(2)
def tensors_of_no_module():
    weight = torch.full((4,), 0.5, requires_grad=True)
    note("weight", weight)
    x = pieces(torch.arange(32.0).view(8, 4))
    for _ in range(3):
        (x @ weight).square().mean().backward()
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()
        with torch.no_grad():
            weight -= 0.001 * weight.grad
        weight.grad = None


@wrong("gain", "partial sum over ranks 0 and 1", "line")
def gain_of_divided_heads():
    """As published: a gain that both ranks hold, and each uses for its own head."""
    heads = pieces(torch.randn(4, 3, generator=torch.Generator().manual_seed(4)))
    gain = torch.ones(3, requires_grad=True)
    note("gain", gain)
    for _ in range(3):
        out = Sum.apply((gain * heads).sum())
        (out - 2).square().mul(0.5).backward()
        with torch.no_grad():
            gain -= 0.05 * gain.grad
        gain.grad = None


# --- in no module, with no optimizer, and data that is written down for each rank ----------


@right(2)
def updates_in_no_module():
    """As tensors_of_no_module, and nothing is marked."""
    weight = torch.full((4,), 0.5, requires_grad=True)
    x = pieces(torch.arange(32.0).view(8, 4))
    for _ in range(3):
        (x @ weight).square().mean().backward()
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()
        with torch.no_grad():
            weight -= 0.001 * weight.grad
        weight.grad = None


@right(3, by_count=True)
@wrong("w", "mean of means", "0.33, 0.33 and 0.33", "0.83, 0.08 and 0.08", size=3, by_count=False)
def tokens_by_rank(by_count):
    """Ranks 1 and 2 have one token each, by chance the same."""
    tokens = torch.tensor([[2.0] * 10, [11.0], [11.0]][dist.get_rank()])
    w = torch.ones(1, requires_grad=True)
    if by_count:
        count = torch.tensor(float(len(tokens)))
        dist.all_reduce(count)
        ((w * tokens).sum() / count).backward()
    else:
        (w * tokens).mean().backward()
    dist.all_reduce(w.grad)
    w.grad /= 1 if by_count else dist.get_world_size()
    return w.grad.item()


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.w * x


@wrong("w", "mean of means", "0.33, 0.33 and 0.33", "0.83, 0.08 and 0.08", size=3)
def two_models_without_an_optimizer():
    """The first takes a mean of means, the second doesn't."""
    for by_count in (False, True):
        model = DistributedDataParallel(Scale())
        losses = model(torch.tensor([[2.0] * 10, [11.0], [11.0]][dist.get_rank()]))
        count = torch.tensor(float(len(losses)))
        if by_count:
            dist.all_reduce(count)
        (losses.sum() * (dist.get_world_size() if by_count else 1) / count).backward()


@cannot("nothing takes the gradient of `w`", "a sum may be divided later")
def sum_that_is_divided_later():
    """Right: the mean is made in another tensor."""
    rows = pieces(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    w = torch.ones(2, requires_grad=True)
    (w * rows).square().mean().backward()
    dist.all_reduce(w.grad)
    return (w.grad / dist.get_world_size()).tolist()


@wrong("expert", "each rank's own on ranks 0 and 1", "If these ranks hold one tensor", "as with experts", divided=False)
@cannot("each with a gradient of its own", "all_to_all sends rows between them", divided=True)
def experts_that_start_alike(divided):
    """Divided: right, since each rank has an expert of its own; but the same values would make it one tensor's copies."""
    rank, n = where()
    expert, shared = (torch.ones((), requires_grad=True) for _ in range(2))
    there = Exchange.apply(torch.tensor([[1.0, 2.0], [3.0, 4.0]])[rank] * shared)
    Exchange.apply(there * expert).mean().backward()
    for p in (shared, expert)[: 1 + divided]:
        if p is shared:
            dist.all_reduce(p.grad)
        p.grad /= n
    return shared.grad.item(), expert.grad.item()


# --- modules' buffers ---------------------------------------------------------------------


class Counted(nn.Module):
    """A layer that keeps how many rows it has seen, the mean of each feature, and a table of angles."""

    def __init__(self, reduced):
        super().__init__()
        self.layer, self.reduced = nn.Linear(16, 4), reduced
        self.register_buffer("rows", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("angles", torch.arange(16.0))

    def forward(self, x):
        rows, mean = torch.tensor(len(x)), x.detach().mean(0)
        if self.reduced:
            dist.all_reduce(rows)
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
        self.rows += rows
        self.mean.lerp_(mean, 0.5)
        return self.layer(x)


def statistics(reduced):
    torch.manual_seed(0)
    model = DistributedDataParallel(Counted(reduced), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(pieces(batch()[0])).square().mean().backward()
        optimizer.step()


# --- what can't be compared ---------------------------------------------------------------


@cannot("`count` and `total` are one tensor", "in place", "clone it before the call")
def count_in_place():
    count = torch.tensor([3.0, 5.0][dist.get_rank()])
    total = count
    dist.all_reduce(total)
    return (count / total).item()


@cannot("sums copies: ranks 0 and 1; ranks 2 and 3 hold what", "made the same on them", "it is summed 2 times", size=4)
def loss_of_pairs():
    """Replicas of two ranks, a number of which one process has no part."""
    replica, part = divmod(dist.get_rank(), 2)
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][replica]
    loss = torch.tensor([[0.5, 1.5], [1.0, 2.0]])[replica][part]
    dist.all_reduce(loss, group=pair)
    dist.all_reduce(loss)
    return loss.item()


@cannot("`gain` starts the same on ranks 0 and 1", "no call is passed its gradient", "all_reduce it over them")
def gain_of_one_head_each():
    head = torch.tensor([1.0, 3.0])[dist.get_rank()]
    gain = torch.ones((), requires_grad=True)
    for _ in range(3):
        (Sum.apply(gain * head) - 2).square().mul(0.5).backward()
        with torch.no_grad():
            gain -= 0.05 * gain.grad
        gain.grad = None


@cannot(
    "is passed `mine` without its history",
    "functional collectives",
    "the first number that the program reads",
    way="own put back",
)
@cannot("is passed `mine` without its history", "functional collectives", way="as it came")
def similarity(way):
    rank, n = where()
    w = torch.full((2,), 0.5, requires_grad=True)
    mine = pieces(torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 1.5], [-2.0, 1.0]])) * w
    rows = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(rows, mine.detach())
    if way == "own put back":
        rows[rank] = mine
    else:
        rows = [x.requires_grad_() for x in rows]
    rows = torch.cat(rows)
    F.cross_entropy(rows @ rows.t(), torch.arange(len(rows)).flip(0)).backward()
    total = torch.zeros(2) if w.grad is None else w.grad.clone()
    dist.all_reduce(total)
    return (total / n).tolist()


@cannot("nothing takes the gradient of", "is passed a copy of it")
def similarity_twice():
    """Two weights have equal gradients, and a copy of each is summed."""
    for _ in range(2):
        similarity("own put back")


@cannot("DistributedSampler gives 2 ranks 8 examples where there are 7", "some examples count twice")
def padded_by_the_sampler():
    from torch.utils.data import DistributedSampler

    correct = torch.tensor([0.0] + [1.0] * 6)
    mine = list(DistributedSampler(range(7), dist.get_world_size(), dist.get_rank(), shuffle=False))
    counts = torch.tensor([correct[mine].sum(), float(len(mine))])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


@cannot("adds different rows", "piece 0 of rank 0, piece 1 of rank 1", "as reduce_scatter does")
def cut_then_summed():
    tokens = torch.tensor([[0, 3], [0, 2]])[dist.get_rank()]
    own = pieces(torch.zeros(4).index_add_(0, tokens, torch.ones(len(tokens)))).clone()
    dist.all_reduce(own)
    return own.tolist()


@cannot("counts copies that all ranks hold: each adds 25", "the root of the sum, 7.071, is 1.41 times too large")
def norm_of_copies():
    squares = torch.tensor([3.0]).square() + torch.tensor([4.0]).square()
    dist.all_reduce(squares)
    return squares.sqrt().item()


def norm_of_equal_parts(divided_later):
    """Right: the parts are equal by chance, and what all ranks hold is divided by their number."""
    n = dist.get_world_size()
    part, copy = torch.tensor([3.0]).square(), torch.tensor([4.0]).square()
    squares = copy if divided_later else part + copy / n
    dist.all_reduce(squares)
    return (squares.div_(n) if divided_later else squares).sqrt().item()


@cannot(
    "no rank loads `layers.2.0.weight` of a saved model, and ranks 0 and 1 load `layers.0.0.weight`", "count its layers"
)
def layers_of_a_file():
    saved, stage = Stage(0, 4).state_dict(), Stage(2 * dist.get_rank(), 2)
    stage.load_state_dict({name: saved[name] for name in stage.state_dict()})
    dist.barrier()


@cannot("a DTensor that is not replicated", "full_tensor() first")
def part_of_a_norm():
    from torch.distributed.tensor import DTensor, Shard

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    return DTensor.from_local(torch.tensor([3.0 + dist.get_rank()]), mesh, [Shard(0)]).norm().item()


@cannot("rows together aren't one process's", "x = data(x)")
def rows_that_nobody_marked():
    rows_from_elsewhere(marked=False)


@cannot("batch norm")
def batch_norm():
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(pieces(batch()[0])).square().mean().backward()
    optimizer.step()


@cannot("no gradient of a parameter was seen", "note(")
def nothing_seen():
    dist.all_reduce(torch.ones(3))


@cannot("one process fails", "reference")
def needs_a_neighbor():
    dist.send(torch.ones(3), 1 - dist.get_rank()) if dist.get_rank() else dist.recv(torch.ones(3), 1)


@cannot("divided, or never alike?")
def own_expert_under_one_name():
    """Right: each rank has its own expert, all under one name."""
    torch.manual_seed(dist.get_rank())
    expert = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(expert.parameters(), lr=0.1)
    expert(pieces(batch()[0])).square().mean().backward()
    optimizer.step()


@right()
def experts_drawn_by_name():
    """Right: each rank draws the first values of its own experts, each from a seed of its name, and copies them."""
    rank, n = where()
    mine = range(4 // n * rank, 4 // n * (rank + 1))
    model = nn.ModuleDict({f"expert{k}": nn.Linear(16, 16, bias=False) for k in mine})
    for name, p in model.named_parameters():
        p.data.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(ord(name[6]))) / 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = batch()
    for _ in range(2):
        F.cross_entropy(Sum.apply(sum(expert(x) for expert in model.values())), y).backward()
        optimizer.step()
        optimizer.zero_grad()


@cannot("starts with other values on", "pass it in")
def divided_weights_drawn_by_rank():
    """Right: each rank draws its own part of a divided layer."""
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(16, 32 // dist.get_world_size()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(batch()[0]).square().mean().backward()
    optimizer.step()


@cannot("the optimizer's lr is 0.2 with 2 ranks and 0.1 in one process")
def scaled_learning_rate():
    """Right: the linear scaling rule."""
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * dist.get_world_size())
    x, y = map(pieces, batch())
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


# --- as reported in 2025 and 2026 ---------------------------------------------------------


@right(2, by_count=True)
@wrong("2.bias", "in backward pass 2", "mean of means", "ranks and micro-batches together", by_count=False)
def micro_batches(by_count):
    """verl 5625, transformers 34191: each micro-batch's loss is a mean over its own tokens."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(32, 16), nn.GELU(), nn.Linear(16, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = tokens_of(2)
    count = (y != -100).sum()
    dist.all_reduce(count)
    for k in range(2):
        with model.no_sync() if k == 0 else torch.enable_grad():
            out, targets = model(x.chunk(2)[k]).flatten(0, 1), y.chunk(2)[k].flatten()
            if by_count:
                loss = F.cross_entropy(out, targets, reduction="sum") * dist.get_world_size() / count
            else:
                loss = F.cross_entropy(out, targets) / 2
            loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()


@right(2, way="each")
@wrong("3.bias", "counts backward passes 1 to 2 as 0.33 and 0.67", "scaled again in each", way="all")
@wrong("3.bias", "DistributedDataParallel has not reduced it", "inside no_sync()?", way="no_sync")
@wrong("3.bias", "each rank's own is scaled differently", "clipped before it is reduced", way="clipped")
def accumulated(way):
    """Megatron-LM 3023: what was accumulated is divided by the number of ranks after each micro-batch."""
    model = mlp()
    job = DistributedDataParallel(model) if way == "no_sync" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    (x, y), n = map(pieces, batch()), dist.get_world_size()
    total = [torch.zeros_like(p) for p in model.parameters()]
    for k in range(2):
        with job.no_sync() if way == "no_sync" else torch.enable_grad():
            (F.cross_entropy(job(x[k::2]), y[k::2]) / 2).backward()
        if way in ("each", "all"):
            for p, t in zip(model.parameters(), total):
                dist.all_reduce(p.grad)
                t += p.grad / n if way == "each" else p.grad
                if way == "all":
                    t /= n
                p.grad = None
    if way == "clipped":
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    for p, t in zip(model.parameters(), total):
        if way == "clipped":
            dist.all_reduce(p.grad)
            p.grad /= n
        elif way != "no_sync":
            p.grad = t
    optimizer.step()


class Placed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.place, self.head = nn.Embedding(32, 16), nn.Embedding(16, 16), nn.Linear(16, 32)

    def forward(self, ids, first):
        return self.head((self.embed(ids) + self.place(first + torch.arange(ids.shape[1]))).tanh())


@wrong("head.bias", "0.50 times", "divided by 4, where one process's is a mean over 2. Divide it by 2", size=4, way="world")
@wrong("head.bias", "`place` gives the same output on all ranks", "count something from 0, such as positions?", way="positions")
@right(2, 4, way="right")
def context(way):
    """DeepSpeed 5555, speculators 871: a sequence is divided over two ranks, and rows over the pairs."""
    rank, n = where()
    pair = min(2, n)
    groups = [dist.new_group(range(k, k + pair)) for k in range(0, n, pair)]
    model = Placed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.randint(32, (4, 17), generator=torch.Generator().manual_seed(3)).tensor_split(n // pair)[rank // pair]
    x, y = ids[:, :-1].chunk(pair, 1)[rank % pair], ids[:, 1:].chunk(pair, 1)[rank % pair]
    out = model(x, 0 if way == "positions" else rank % pair * x.shape[1])
    count = torch.tensor(float(y.numel()))
    dist.all_reduce(count, group=groups[rank // pair])
    (F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum") / count).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= n if way == "world" else n // pair
    optimizer.step()


@right(2, of_all=True)
@wrong("3.bias", "Outputs of modules agree", "a mean, a deviation or a count of a rank's own rows", of_all=False)
def advantages(of_all):
    """trl: rewards are normalized by the mean and the deviation of a rank's own."""
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, actions = map(pieces, batch())
    rewards = pieces(torch.rand(16, generator=torch.Generator().manual_seed(2))).contiguous()
    whole = rewards
    if of_all:
        whole = torch.empty(len(rewards) * dist.get_world_size())
        dist.all_gather_single(whole, rewards)
    gain = (rewards - whole.mean()) / (whole.std() + 1e-4)
    (-model(x).log_softmax(-1).gather(1, actions[:, None])[:, 0] * gain).mean().backward()
    optimizer.step()


@right(3)
def updates_by_owners():
    """Right: Muon, in which one rank makes a matrix's update, and broadcasts it."""
    rank, n = where()
    model = mlp()
    F.cross_entropy(model(pieces(batch(18)[0])), pieces(batch(18)[1])).backward()
    for k, p in enumerate(model.parameters()):
        dist.all_reduce(p.grad)
        update = torch.empty_like(p)
        if k % n == rank:
            update.copy_(p.grad / p.grad.norm())  # of the sum as of the mean
        dist.broadcast(update, k % n)
        with torch.no_grad():
            p -= 0.02 * update


@right(2, 4)
def replicated_shards():
    """Right: fully_shard on a mesh of replicas and shards, that accumulates and clips."""
    from torch.distributed.fsdp import fully_shard

    n = dist.get_world_size()
    mesh = dist.init_device_mesh("cpu", (max(1, n // 2), min(n, 2)), mesh_dim_names=("replicate", "shard"))
    model = mlp()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = map(pieces, batch())
    for k in range(2):
        model.set_requires_gradient_sync(k == 1)
        (F.cross_entropy(model(x[k::2]), y[k::2]) / 2).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


@right(2)
def optimizer_of_optimizers():
    """Right: torch's ZeRO-1, whose step calls another optimizer's."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-2)
    x, y = map(pieces, batch())
    for _ in range(3):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


@right(2)
def two_optimizers():
    """Right: a generator and a discriminator, an average of weights, and an encoder that isn't trained."""
    torch.manual_seed(0)
    encoder = nn.Linear(16, 16).requires_grad_(False)
    generator = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)))
    judge = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)))
    average = [p.detach().clone() for p in generator.parameters()]
    optimizers = [torch.optim.Adam(model.parameters(), 1e-3) for model in (generator, judge)]
    x = pieces(batch()[0])
    fake = generator(x.flip(1))
    (F.softplus(-judge(encoder(x))).mean() + F.softplus(judge(fake.detach())).mean()).backward()
    optimizers[1].step()
    F.softplus(-judge(fake)).mean().backward()
    optimizers[0].step()
    for mean, p in zip(average, generator.parameters()):
        mean.lerp_(p.detach(), 0.1)


@cannot("reduces parameters, as local SGD does on purpose", "reduce them after every step")
def local_steps():
    """Right: DiLoCo, local SGD."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = map(pieces, batch())
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


@cannot("the optimizer holds 6 tensors that are in no module", "before the model was sharded", "Make it afterward")
def optimizer_before_the_shards():
    from torch.distributed.fsdp import fully_shard

    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fully_shard(model)
    x, y = map(pieces, batch())
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


@cannot("a number is added to a DTensor that is a partial sum", "redistribute() to Replicate() first")
def number_added_to_partial_sums():
    """pytorch 163193"""
    from torch.distributed.tensor import DTensor, Shard

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    return (DTensor.from_local(torch.ones(3), mesh, [Shard(0)]).sum() + 10).full_tensor()


def loss_of_copies(divided):
    """transformers 48167: a loss that all ranks have is summed over them for the log."""
    loss = mlp()(batch()[0]).square().mean().detach()
    dist.all_reduce(loss)
    value, participants = (loss / dist.get_world_size() if divided else loss).item(), torch.ones(1)
    dist.all_reduce(participants)
    ddp()
    return value, participants.item()


@cannot("one process itself computes a different `3.weight`", "amplifies rounding", "take steps with SGD", reduced=True)
@wrong("3.bias", "all_reduce it over these ranks", reduced=False)
def directions_of_a_singular_gradient(reduced):
    """Muon by an exact decomposition: the gradient of a softmax's weights has a direction that only rounding fills."""
    model = mlp()
    x, y = map(pieces, batch(64))
    for _ in range(2):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                if reduced:
                    dist.all_reduce(p.grad)
                    p.grad /= dist.get_world_size()
                update = p.grad
                if p.dim() == 2:
                    left, _, right = torch.linalg.svd(p.grad, full_matrices=False)
                    update = left @ right
                p.sub_(0.05 * update)


@right(2, of_all=True)
@wrong("router.weight", "so it's the loss (ranks' have a mean of", "balances its own experts' load on purpose", of_all=False)
def balanced_load(of_all):
    """A loss of the share of rows that each expert gets."""
    torch.manual_seed(0)
    router, experts = nn.Linear(16, 4, bias=False), nn.Linear(16, 40)
    model = nn.ModuleDict({"router": router, "experts": experts})
    x, y = map(pieces, batch(32))
    for _ in range(2):
        model.zero_grad()
        gates = router(x).softmax(-1)
        weight, chosen = gates.max(-1)
        share = F.one_hot(chosen, 4).float().mean(0)
        if of_all:
            dist.all_reduce(share)
            share /= dist.get_world_size()
        out = experts(x).view(-1, 4, 10)[torch.arange(len(x)), chosen] * weight[:, None]
        (F.cross_entropy(out, y) + (share * gates.mean(0)).sum()).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
            p.data -= 0.1 * p.grad


class Named(nn.Module):
    """A model that is called with names alone, as those of transformers are."""

    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, inputs):
        return self.inner(inputs)


@right(2, reduced=True)
@wrong("inner.3.bias", "all_reduce it over these ranks", reduced=False)
def named_arguments(reduced):
    model = Named()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    table = torch.tensor([dist.get_rank(), dist.get_world_size()])  # not data
    x, y = map(pieces, batch())
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs=x), y).backward()
        for p in model.parameters() if reduced and table[1] else ():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()


@right(2, divisor=2)
@wrong("1.bias", "2.00 times one process's", "sum over 2 backward passes", "Divide each loss by 2", divisor=1)
def micro_batches_of_a_pipeline(divisor):
    rank, n = where()
    torch.manual_seed(0)
    stages = nn.Linear(16, 12), nn.Linear(12, 10)
    model = nn.ModuleDict({str(k): stage for k, stage in enumerate(stages) if n == 1 or k == rank})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        for x, y in zip(*(tensor.chunk(2) for tensor in batch())):
            if rank == 0:
                out = model["0"](x)
            if n > 1 and rank == 0:
                dist.send(out.detach(), 1)
                gradient = torch.empty_like(out)
                dist.recv(gradient, 1)
                out.backward(gradient)
            else:
                if n > 1:
                    out = torch.empty(len(x), 12)
                    dist.recv(out, 0)
                    out.requires_grad_()
                (F.cross_entropy(model["1"](out), y) / (divisor if n > 1 else 2)).backward()
                if n > 1:
                    dist.send(out.grad, 0)
        optimizer.step()


@right(2, swapped=False)
@wrong("loss", "unrelated to one process's", swapped=True)
def numbers_in_two_orders(swapped):
    """Each call is made on one line, and numbers are noted."""
    metrics = {"loss": torch.tensor([0.5]), "correct": torch.tensor([20.0])}
    for name in sorted(metrics, reverse=swapped and dist.get_rank() == 1):
        dist.all_reduce(metrics[name])
    for name, total in metrics.items():
        note(name, total.item() / dist.get_world_size())
