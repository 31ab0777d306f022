"""Names of calls and dtypes as torch's recorders, its watchdog, its profiler and NCCL write them, as torch.distributed has them.

torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp defines the profiling titles, `opTypeToString` of Work.cpp the names
in its log, c10::toString of ScalarType.h the dtypes.
"""

import re
from functools import cache

from ...log.collectives import COLLECTIVES

# A name without case, underscores and a leading backend -> the name in torch.distributed.
_OPS = {name.replace("_", ""): name for row in COLLECTIVES.values() for name in (row.op, *row.also)} | {
    "allreducebarrier": "barrier",
    "allreducesparse": "all_reduce",
    "allgatherbase": "all_gather_single",
    "allgatherintotensor": "all_gather_single",
    "allgatherintotensorcoalesced": "all_gather_coalesced",
    "allgatherv": "all_gather",
    "reducescatterbase": "reduce_scatter_single",
    "reducescattertensor": "reduce_scatter_single",
    "reducescattertensorcoalesced": "reduce_scatter_coalesced",
    "reducescatterv": "reduce_scatter",
    "alltoallbase": "all_to_all_single",
    "alltoallv": "all_to_all_single",
    "alltoallvsingle": "all_to_all_single",
    "broadcastoop": "broadcast",
    "reduceoop": "reduce",
    "send": "send",
    "recv": "recv",
    "recvanysource": "recv",
}
UNTOLD = "call"  # whose op a log does not name
COALESCED = "coalesced"  # several calls that a device is given at once

_DTYPES = {
    "float": ("float32", 4), "double": ("float64", 8), "half": ("float16", 2), "bfloat16": ("bfloat16", 2),
    "long": ("int64", 8), "int": ("int32", 4), "short": ("int16", 2), "char": ("int8", 1), "byte": ("uint8", 1),
    "bool": ("bool", 1), "complexhalf": ("complex32", 4), "complexfloat": ("complex64", 8),
    "complexdouble": ("complex128", 16), "uint16": ("uint16", 2), "uint32": ("uint32", 4), "uint64": ("uint64", 8),
    "float8_e5m2": ("float8_e5m2", 1), "float8_e4m3fn": ("float8_e4m3fn", 1), "float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
    "float8_e4m3fnuz": ("float8_e4m3fnuz", 1), "float8_e8m0fnu": ("float8_e8m0fnu", 1), "unsigned char": ("uint8", 1),
    "signed char": ("int8", 1), "c10::half": ("float16", 2), "c10::bfloat16": ("bfloat16", 2),
    "long int": ("int64", 8),
}  # fmt: skip
_BYTES = dict(_DTYPES.values())


@cache
def op_of(name: str) -> str:
    """torch.distributed's name of a call: all_gather_single for "nccl:_all_gather_base" and "_ALLGATHER_BASE".

    A name that is not known is given back as it is, without its backend.
    """
    bare = name.rpartition(":")[2].strip()
    return _OPS.get(re.sub(r"[^a-z]", "", bare.lower()), bare)


def family(op: str) -> str:
    """The collective that an op is a form of: all_gather for "all_gather_single"."""
    return op.removesuffix("_single").removesuffix("_coalesced")


@cache
def is_known(op: str) -> bool:
    return op in _OPS.values()


@cache
def dtype_of(name: str) -> str:
    """torch's name of a dtype: float32 for "Float"."""
    return _DTYPES.get(name.lower(), (name.lower(),))[0]


def bytes_of(dtype: str) -> int:
    """Bytes of one element; 0 for a dtype that is not known."""
    return _BYTES.get(dtype, 0)
