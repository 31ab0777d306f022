"""torch.distributed on pretended ranks: its functions, with the checks and the errors of the real ones on gloo."""

from __future__ import annotations

import operator
import pickle
import warnings
from types import ModuleType
from typing import Any, Callable, NamedTuple, Sequence

from ..log.event import Event
from .dtypes import Absent
from .tensor import Tensor, new
from .refusals import refusal
from .world import Rank, RankGroup, Work, World


class ReduceOp:
    """How a collective combines numbers."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.value = name, number

    def __repr__(self) -> str:
        return f"<RedOpType.{self.name}: {self.value}>"


for _number, _name in enumerate(("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")):
    setattr(ReduceOp, _name, ReduceOp(_name, _number))
SUM: Any = getattr(ReduceOp, "SUM")
NOT_A_MEMBER = -100  # what new_group gives a rank that it leaves out


class Here:
    """The world whose rank is running."""

    world: World | None = None


def here() -> Rank:
    if not is_initialized() or Here.world.current is None:
        raise ValueError("Default process group has not been initialized, please make sure to call init_process_group.")
    return Here.world.current


class GroupHandle:
    """A process group, for the program."""

    def __init__(self, group: RankGroup) -> None:
        self.members, self.group_name = group, group.name

    def rank(self) -> int:
        return self.members.ranks.index(here().number) if here().number in self.members.ranks else -1

    def size(self) -> int:
        return len(self.members.ranks)

    def __eq__(self, item: object) -> bool:
        return isinstance(item, GroupHandle) and item.members == self.members

    def __hash__(self) -> int:
        return hash(self.members)

    def __repr__(self) -> str:
        return "<torch.distributed.distributed_c10d.ProcessGroup object>"

    def name(self) -> str:
        return "gloo"


class _WorldGroup:
    """dist.group: its WORLD is whichever group all ranks are in."""

    @property
    def WORLD(self) -> GroupHandle:
        return GroupHandle(here().world.everybody)


group, GroupMember = _WorldGroup(), _WorldGroup()


def _group_of(group: Any) -> RankGroup | None:
    """The group of an argument; None if this rank isn't in it."""
    if group is None:
        return here().world.everybody
    if isinstance(group, GroupHandle):
        return group.members
    if type(group) is int and group == NOT_A_MEMBER:
        return None
    if isinstance(group, (list, dict, set)):
        raise TypeError(f"unhashable type: '{type(group).__name__}'")
    raise TypeError(f"Invalid process group specified or has been destroyed: {group!r}")


def _outside(name: str) -> None:
    warnings.warn(f"Running {name} on global rank {here().number} which does not belong to the given group.")


def _check_tensor(value: Any, name: str) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{name}` of type torch.Tensor\n"
            f"             but got {type(value)} instead."
        )


def _check_list(value: Any, name: str) -> None:
    if not isinstance(value, list):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{name}` of type List[torch.Tensor]\n"
            f"             but got {type(value)} instead."
        )
    if not all(isinstance(x, Tensor) for x in value):
        kinds = [type(x) for x in value]
        raise TypeError(
            f"Invalid function argument. Expected parameter `{name}` of type List[torch.Tensor]\n"
            f"             but got {type(value)} with elements of type {kinds}."
        )


def _check_kinds(*values: Any) -> None:
    """Raises torch's error about tensors, or lists of them, of several kinds."""
    dtypes = [x.dtype for value in values for x in _tensors(value)]
    for dtype in dtypes:
        if dtype is not dtypes[0]:
            raise ValueError(f"Invalid usage of tensors with different dtypesFound {dtypes[0]} and  {dtype}")


def _reduction(op: Any) -> str:
    if not isinstance(op, ReduceOp):
        raise TypeError(
            "(): incompatible function arguments. The following argument types are supported:\n"
            "    1. (self: torch._C._distributed_c10d.AllreduceOptions, arg0: torch._C._distributed_c10d.ReduceOp) -> None\n\n"
            f"Invoked with: <torch.distributed.distributed_c10d.AllreduceOptions object>, {op!r}"
        )
    return op.name


def _issue(
    op: str,
    group: RankGroup,
    inputs: Any,
    outputs: Any,
    async_op: bool = False,
    *,
    within: str | None = None,
    root: tuple[str, int] | None = None,
    reduce_op: str | None = None,
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
) -> Work | None:
    """Make a collective's call. Raises gloo's error about it, once it was reported."""
    rank = here()
    event = Event(rank.number, 0, op, group.ranks, reduce_op=reduce_op, async_op=async_op, within=within, splits=splits)
    if root:
        setattr(event, *root)
    work = _call(rank, event, group, inputs, outputs, async_op)
    if flaw := refusal(event, inputs, outputs):
        rank.world.refuse(work.event)
        raise RuntimeError(flaw)
    if async_op:
        return work
    work.wait()
    return None


def _call(rank: Rank, event: Event, group: RankGroup, inputs: Any, outputs: Any, watched: bool) -> Work:
    all_in, all_out = _tensors(inputs), _tensors(outputs)
    event.group_name, event.backend = group.name, "gloo"
    if tensors := all_in or all_out:
        first = tensors[0]
        event.dtype, event.shape = first.dtype, tuple(first.shape)
        event.strides = None if first.is_contiguous() else tuple(first.stride())
        event.nbytes = sum(x.numel() * x.element_size() for x in tensors)
    gaps_in, gaps_out = any(map(_has_gaps, all_in)), any(map(_has_gaps, all_out))
    if gaps_in or gaps_out:
        event.non_dense = ("in",) * gaps_in + ("out",) * gaps_out
    elif _are_reordered([*all_in, *all_out]):
        event.non_dense = ("order",)
    event.misuse = "aliased" if len(all_out) > 1 and _aliased(all_out) else None
    scratch = event.is_scratch
    work = rank.call(event, None if scratch and event.op == "recv" else inputs, outputs, watched)
    if watched:
        only_sent = event.op == "send" or event.op == "broadcast" and event.rank == event.src
        work.guard(all_in, [] if only_sent else all_out)
    return work


def _tensors(value: Any) -> list[Tensor]:
    return [] if value is None else list(value) if isinstance(value, list) else [value]


def _has_gaps(x: Tensor) -> bool:
    if x.is_contiguous():
        return False
    return 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride())) > x.numel()


def _are_reordered(tensors: list[Tensor]) -> bool:
    """Whether tensors without gaps store their elements in different orders."""
    if all(x.is_contiguous() for x in tensors):
        return False
    orders = {
        tuple(sorted((d for d, size in enumerate(x.shape) if size > 1), key=lambda d: -x.stride(d)))
        for x in tensors if x.numel() > 1
    }  # fmt: skip
    return len(orders) > 1


def _aliased(tensors: list[Tensor]) -> bool:
    """Whether every tensor of a list shares memory with another one."""
    spots = [{(id(x.storage), spot) for spot in x.places()} for x in tensors if x.numel()]
    return bool(spots) and all(
        any(place & spot for k, spot in enumerate(spots) if k != at) for at, place in enumerate(spots)
    )


def _root_of(members: RankGroup, root: Any, group_root: Any, default: int | None = None) -> int:
    """A root's rank in the world."""
    if root is None and group_root is None:
        if default is None:
            raise ValueError("Must specify global_rank or group_rank")
        root = default
    if root is not None and group_root is not None:
        raise ValueError("Can't specify both group_rank and global_rank")
    if root is None:
        return members.ranks[group_root]
    number = operator.index(root)
    if number not in members.ranks and len(members.ranks) < here().world.size:
        raise ValueError(f"Global rank {number} is not part of group {GroupHandle(members)}")
    return number


# --- about the world --------------------------------------------------------------------------


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return Here.world is not None and not (Here.world.current and Here.world.current.destroyed)


def init_process_group(*_: Any, **__: Any) -> None:
    raise ValueError("trying to initialize the default process group twice!")


def destroy_process_group(group: Any = None) -> None:
    here().destroyed = group is None or _group_of(group) is here().world.everybody


def get_rank(group: Any = None) -> int:
    members = _group_of(group)
    return -1 if members is None or here().number not in members.ranks else members.ranks.index(here().number)


def get_world_size(group: Any = None) -> int:
    members = _group_of(group)
    return -1 if members is None or here().number not in members.ranks else len(members.ranks)


def get_backend(group: Any = None) -> str:
    return "gloo"


def get_process_group_ranks(group: Any = None) -> list[int]:
    members = _group_of(group)
    return list(members.ranks) if members else []


def get_global_rank(group: Any, group_rank: int) -> int:
    members = _group_of(group)
    if members is None or not 0 <= group_rank < len(members.ranks):
        raise ValueError(f"Group rank {group_rank} is not part of group {group}")
    return members.ranks[group_rank]


def get_group_rank(group: Any, global_rank: int) -> int:
    members = _group_of(group)
    if members is None or global_rank not in members.ranks:
        raise ValueError(f"Global rank {global_rank} is not part of group {group}")
    return members.ranks.index(global_rank)


def new_group(ranks: Sequence[int] | None = None, timeout: Any = None, backend: Any = None, **options: Any) -> Any:
    if any(options.values()):
        raise Absent(f"this page has no new_group(..., {next(iter(options))}=...)")
    rank = here()
    world_ranks = range(rank.world.size)
    chosen = world_ranks if ranks is None else sorted(operator.index(r) for r in ranks)
    if len(set(chosen)) < len(chosen) or any(r not in world_ranks for r in chosen):
        if len(chosen) > len(world_ranks):
            raise ValueError(
                "the new group's world size should be less or equal to the world size set by init_process_group"
            )
        raise ValueError("The new group's rank should be within the world_size set by init_process_group")
    handle = rank.group(tuple(chosen))
    return NOT_A_MEMBER if handle is None else GroupHandle(handle)


def new_subgroups_by_enumeration(ranks_per_subgroup_list: list[list[int]], **_: Any) -> tuple[Any, list]:
    number, handle = None, []
    for ranks in ranks_per_subgroup_list:
        handle.append(new_group(ranks))
        if here().number in ranks:
            number = handle[-1]
    return number, handle


def new_subgroups(group_size: int | None = None, **_: Any) -> tuple[Any, list]:
    count, size = here().world.size, group_size
    if size is None or count % size:
        raise ValueError(f"The world size ({count}) must be divisible by group_size={size}")
    return new_subgroups_by_enumeration([list(range(k, k + size)) for k in range(0, count, size)])


# --- collectives ------------------------------------------------------------------------------


def all_reduce(tensor: Tensor, op: Any = SUM, group: Any = None, async_op: bool = False) -> Work | None:
    _check_tensor(tensor, "tensor")
    members = _group_of(group)
    if members is None:
        return _outside("all_reduce")
    name = _reduction(op)
    return _issue("all_reduce", members, tensor, tensor, async_op, reduce_op=name)


def broadcast(
    tensor: Tensor, src: Any = None, group: Any = None, async_op: bool = False, group_src: Any = None
) -> Work | None:
    members = _group_of(group)
    if members is None:
        return _outside("broadcast")
    root = _root_of(members, src, group_src)
    _check_tensor(tensor, "tensor")
    return _issue("broadcast", members, tensor, tensor, async_op, root=("src", root))


def reduce(
    tensor: Tensor, dst: Any = None, op: Any = SUM, group: Any = None, async_op: bool = False, group_dst: Any = None
) -> Work | None:
    members = _group_of(group)
    if members is None:
        return _outside("reduce")
    root = _root_of(members, dst, group_dst)
    _check_tensor(tensor, "tensor")
    name = _reduction(op)
    return _issue("reduce", members, tensor, tensor, async_op, root=("dst", root), reduce_op=name)


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False, *, within=None
) -> Work | None:
    _check_list(tensor_list, "tensor_list")
    _check_tensor(tensor, "tensor")
    _check_kinds(tensor_list, tensor)
    members = _group_of(group)
    if members is None:
        return _outside("all_gather")
    return _issue("all_gather", members, tensor, tensor_list, async_op, within=within)


def all_gather_single(output: Tensor, input: Tensor, group: Any = None, async_op: bool = False) -> Work | None:
    _check_tensor(input, "input_tensor")
    _check_tensor(output, "output_tensor")
    members = _group_of(group)
    if members is None:
        return _outside("all_gather_into_tensor")
    return _issue("all_gather_single", members, input, output, async_op)


def _check_root_list(op: str, tensors: Any, root: int, rank: str) -> None:
    """Raises torch's error about the list for gather or scatter.  rank: torch's word for its root."""
    if here().number != root and tensors:
        raise ValueError(f"Argument ``{op}_list`` must NOT be specified on non-{rank} ranks.")
    if here().number == root and not tensors:
        raise ValueError(f"Argument ``{op}_list`` must be specified on {rank} rank.")


def gather(
    tensor: Tensor, gather_list: Any = None, dst: Any = None, group: Any = None, async_op: bool = False, group_dst: Any = None,
    *, within: str | None = None,
) -> Work | None:  # fmt: skip
    _check_tensor(tensor, "tensor")
    if gather_list:
        _check_list(gather_list, "gather_list")
        _check_kinds(tensor, gather_list)
    members = _group_of(group)
    if members is None:
        return _outside("gather")
    root = _root_of(members, dst, group_dst, 0)
    _check_root_list("gather", gather_list, root, "destination")
    outputs = gather_list if here().number == root else None
    return _issue("gather", members, tensor, outputs, async_op, root=("dst", root), within=within)


def scatter(
    tensor: Tensor, scatter_list: Any = None, src: Any = None, group: Any = None, async_op: bool = False, group_src: Any = None,
    *, within: str | None = None,
) -> Work | None:  # fmt: skip
    _check_tensor(tensor, "tensor")
    if scatter_list:
        _check_list(scatter_list, "scatter_list")
        _check_kinds(tensor, scatter_list)
    members = _group_of(group)
    if members is None:
        return _outside("scatter")
    root = _root_of(members, src, group_src, 0)
    _check_root_list("scatter", scatter_list, root, "source")
    inputs = list(scatter_list) if here().number == root else None
    return _issue("scatter", members, inputs, tensor, async_op, root=("src", root), within=within)


def reduce_scatter(
    output: Tensor, input_list: list[Tensor], op: Any = SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    _check_tensor(output, "output")
    _check_list(input_list, "input_list")
    _check_kinds(output, input_list)
    members = _group_of(group)
    if members is None:
        return _outside("reduce_scatter")
    name = _reduction(op)
    return _issue("reduce_scatter", members, list(input_list), output, async_op, reduce_op=name)


def reduce_scatter_single(
    output: Tensor, input: Tensor, op: Any = SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    _check_tensor(output, "output")
    _check_tensor(input, "input")
    members = _group_of(group)
    if members is None:
        return _outside("reduce_scatter_tensor")
    name = _reduction(op)
    return _issue("reduce_scatter_single", members, input, output, async_op, reduce_op=name)


def all_to_all(
    output_tensor_list: list[Tensor], input_tensor_list: list[Tensor], group: Any = None, async_op: bool = False
) -> Work | None:
    members = _group_of(group)
    if members is None:
        return _outside("all_to_all")
    _check_list(output_tensor_list, "output_tensor_list")
    _check_list(input_tensor_list, "input_tensor_list")
    _check_kinds(output_tensor_list, input_tensor_list)
    return _issue("all_to_all", members, list(input_tensor_list), output_tensor_list, async_op)


def all_to_all_single(
    output: Tensor, input: Tensor, output_split_sizes: Any = None, input_split_sizes: Any = None, group: Any = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    members = _group_of(group)
    if members is None:
        return _outside("all_to_all_single")
    _check_tensor(output, "output")
    _check_tensor(input, "input")
    _check_kinds(output, input)
    splits = tuple(tuple(map(operator.index, part or ())) for part in (input_split_sizes, output_split_sizes))
    return _issue("all_to_all_single", members, input, output, async_op, splits=(splits[0], splits[1]))


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Work | None:
    members = _group_of(group)
    return _outside("barrier") if members is None else _issue("barrier", members, None, None, async_op)


# --- messages ---------------------------------------------------------------------------------


def _peer(members: RankGroup, number: Any, act: str) -> int:
    """A rank of the world; torch's members errors for tensors are the recorder's on real ranks."""
    number = operator.index(number)
    size = len(members.ranks)
    if number in members.ranks:
        return number
    if size < here().world.size:
        raise ValueError(f"Global rank {number} is not part of group {GroupHandle(members)}")
    valid = f"Ranks are 0 to {size - 1}" if size > 1 else "The only rank is 0"
    raise ValueError(
        f"there is no rank {number} to {act}. {valid}; on a ring, use (rank + 1) % {size} and (rank - 1) % {size}."
    )


def _end(members: RankGroup, number: Any, group_number: Any, act: str) -> int:
    if number is None and group_number is None:
        raise ValueError("Must specify global_rank or group_rank")
    return members.ranks[group_number] if number is None else _peer(members, number, act)


def _message(
    op: str, members: RankGroup, x: Tensor, end: int | None, tag: int, async_op: bool, within: str | None
) -> Work:
    rank = here()
    if not x.is_contiguous():
        raise ValueError("Tensors must be contiguous")
    event = Event(rank.number, 0, op, members.ranks, async_op=async_op, tag=tag, within=within)
    if op == "send":
        event.dst = end
    else:
        event.src = end
    work = _call(rank, event, members, x, x, async_op)
    if flaw := refusal(event, x, x):
        rank.world.refuse(event)
        raise RuntimeError(flaw)
    return work


def isend(
    tensor: Tensor, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None, *, within: str | None = None,
    blocking: bool = False,
) -> Work | None:  # fmt: skip
    members = _group_of(group)
    if members is None:
        return _outside("isend")
    if dst is None and group_dst is None:
        raise ValueError("Must specify global_rank or group_rank")
    target = dst if dst is not None else members.ranks[group_dst]
    if blocking and target == here().number:
        raise ValueError(
            "Invalid destination rank: destination rank should not be the same as the rank of the current process."
        )
    _check_tensor(tensor, "tensor")
    return _message("send", members, tensor, _end(members, dst, group_dst, "send to"), tag, not blocking, within)


def irecv(
    tensor: Tensor, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None, *, within: str | None = None,
    blocking: bool = False,
) -> Work | None:  # fmt: skip
    _check_tensor(tensor, "tensor")
    members = _group_of(group)
    if members is None:
        return _outside("irecv")
    source = None if src is None and group_src is None else _end(members, src, group_src, "receive from")
    return _message("recv", members, tensor, source, tag, not blocking, within)


def send(
    tensor: Tensor, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None, *, within: str | None = None
) -> None:
    work = isend(tensor, dst, group, tag, group_dst, within=within, blocking=True)
    if work is not None:
        work.wait()


def recv(
    tensor: Tensor, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None, *, within: str | None = None
) -> int:
    work = irecv(tensor, src, group, tag, group_src, within=within, blocking=True)
    if work is None:
        return -1
    work.wait()
    return work.event.src if work.event.src is not None else -1


class P2POp:
    """A message for batch_isend_irecv."""

    def __init__(
        self, op: Callable, tensor: Tensor, peer: Any = None, group: Any = None, tag: int = 0, group_peer: Any = None
    ):
        if op not in (isend, irecv):
            raise RuntimeError(
                "Invalid ``op``. Expected ``op`` to be of type ``torch.distributed.isend`` or ``torch.distributed.irecv``."
            )
        _check_tensor(tensor, "tensor")
        self.op, self.tensor, self.peer, self.group = op, tensor, peer, group
        self.tag, self.group_peer = tag, group_peer


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Work]:
    if not isinstance(p2p_op_list, list) or not all(isinstance(p2p_op, P2POp) for p2p_op in p2p_op_list):
        raise ValueError("Invalid ``p2p_op_list``. Each op is expected to to be of type ``torch.distributed.P2POp``.")
    handle = [p.op(p.tensor, p.peer, p.group, p.tag, p.group_peer, within="batch_isend_irecv") for p in p2p_op_list]
    return [work for work in handle if work is not None]


# --- objects ----------------------------------------------------------------------------------


class Plain(NamedTuple):
    """An object as bytes in a tensor, and their number in another."""

    data: Tensor
    size: Tensor


def _pickled(value: Any) -> Plain:
    from . import dtypes

    data = pickle.dumps(value, protocol=4)
    return Plain(new(data, (len(data),), dtypes.uint8), new([len(data)], (1,), dtypes.int64))


def _loaded(data: Tensor, size: int) -> Any:
    return pickle.loads(bytes(data.peek()[:size]))


def all_gather_object(object_list: list, obj: Any, group: Any = None) -> None:
    from . import dtypes

    members = _group_of(group)
    if members is None:
        return _outside("all_gather_object")
    plain, count = _pickled(obj), len(members.ranks)
    sizes = [new([0], (1,), dtypes.int64) for _ in range(count)]
    all_gather(sizes, plain.size, group, within="all_gather_object")
    lengths = [size.peek()[0] for size in sizes]
    most = max(lengths)
    padded = new([*plain.data.peek(), *[0] * (most - plain.data.numel())], (most,), dtypes.uint8)
    parts = [new([0] * most, (most,), dtypes.uint8) for _ in range(count)]
    all_gather(parts, padded, group, within="all_gather_object")
    for k, (part, length) in enumerate(zip(parts, lengths)):
        object_list[k] = _loaded(part, length)


def gather_object(
    obj: Any, object_gather_list: Any = None, dst: Any = None, group: Any = None, group_dst: Any = None
) -> None:
    from . import dtypes

    members = _group_of(group)
    if members is None:
        return _outside("gather_object")
    root = _root_of(members, dst, group_dst, 0)
    number = here().number
    if number == root and not object_gather_list:
        raise ValueError("Argument ``gather_list`` must be specified on destination rank.")
    if number != root and object_gather_list:
        raise ValueError("Argument ``gather_list`` must NOT be specified on non-destination ranks.")
    plain, count = _pickled(obj), len(members.ranks)
    sizes = [new([0], (1,), dtypes.int64) for _ in range(count)]
    all_gather(sizes, plain.size, group, within="gather_object")
    lengths = [size.peek()[0] for size in sizes]
    most = max(lengths)
    padded = new([*plain.data.peek(), *[0] * (most - plain.data.numel())], (most,), dtypes.uint8)
    parts = [new([0] * most, (most,), dtypes.uint8) for _ in range(count)] if number == root else None
    gather(padded, parts, root, group, within="gather_object")
    for k, (part, length) in enumerate(zip(parts or [], lengths)):
        object_gather_list[k] = _loaded(part, length)


def broadcast_object_list(
    object_list: list,
    src: Any = None,
    group: Any = None,
    device: Any = None,
    group_src: Any = None,
    weights_only: Any = None,
) -> None:
    from . import dtypes

    members = _group_of(group)
    if members is None:
        return _outside("broadcast_object_list")
    root = _root_of(members, src, group_src, 0)
    is_root = here().number == root
    plains = [_pickled(value) for value in object_list] if is_root else []
    count = len(object_list)
    sizes = new([p.size.peek()[0] for p in plains] if is_root else [0] * count, (count,), dtypes.int64)
    _issue(
        "broadcast", members, None if not is_root else sizes, sizes, root=("src", root), within="broadcast_object_list"
    )
    total = sum(sizes.peek())
    data = new([b for p in plains for b in p.data.peek()] if is_root else [0] * total, (total,), dtypes.uint8)
    _issue(
        "broadcast", members, None if not is_root else data, data, root=("src", root), within="broadcast_object_list"
    )
    if not is_root:
        at = 0
        for k, length in enumerate(sizes.peek()):
            object_list[k] = pickle.loads(bytes(data.peek()[at : at + length]))
            at += length


def scatter_object_list(
    scatter_object_output_list: list,
    scatter_object_input_list: Any = None,
    src: Any = None,
    group: Any = None,
    group_src: Any = None,
) -> None:
    from . import dtypes

    members = _group_of(group)
    if members is None:
        return _outside("scatter_object_list")
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ValueError("Expected argument scatter_object_output_list to be a list of size at least 1.")
    root = _root_of(members, src, group_src, 0)
    is_root = here().number == root
    plains = [_pickled(value) for value in scatter_object_input_list] if is_root else []
    most = new([max((p.data.numel() for p in plains), default=0)], (1,), dtypes.int64)
    _issue("broadcast", members, most if is_root else None, most, root=("src", root), within="scatter_object_list")
    length = most.peek()[0]
    padded = [new([*p.data.peek(), *[0] * (length - p.data.numel())], (length,), dtypes.uint8) for p in plains]
    number = new([0] * length, (length,), dtypes.uint8)
    scatter(number, padded if is_root else None, root, group, within="scatter_object_list")
    size = new([0], (1,), dtypes.int64)
    scatter(size, [p.size for p in plains] if is_root else None, root, group, within="scatter_object_list")
    scatter_object_output_list[0] = _loaded(number, size.peek()[0])


FUNCTIONS = (
    is_available, is_initialized, init_process_group, destroy_process_group, get_rank, get_world_size, get_backend,
    get_process_group_ranks, get_global_rank, get_group_rank, new_group, new_subgroups, new_subgroups_by_enumeration, all_reduce,
    broadcast, reduce, all_gather, all_gather_single, gather, scatter, reduce_scatter, reduce_scatter_single, all_to_all,
    all_to_all_single, barrier, isend, irecv, send, recv, P2POp, batch_isend_irecv, all_gather_object, gather_object,
    broadcast_object_list, scatter_object_list,
)  # fmt: skip


def module() -> ModuleType:
    """torch.distributed."""
    handle = ModuleType("torch.distributed", __doc__)
    for function in FUNCTIONS:
        setattr(handle, function.__name__, function)
    names: dict[str, Any] = {
        "ReduceOp": ReduceOp, "Work": Work, "ProcessGroup": GroupHandle, "group": group, "GroupMember": GroupMember,
        "all_gather_into_tensor": all_gather_single, "reduce_scatter_tensor": reduce_scatter_single,
    }  # fmt: skip
    for name, value in names.items():
        setattr(handle, name, value)
    setattr(handle, "__getattr__", _not_there)
    return handle


def _not_there(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise Absent(f"this page has no torch.distributed.{name}")
