"""The words of gloo's errors about one rank's part in a call, which it raises before any data moves."""

from __future__ import annotations

from typing import Any, Iterable

from ..log.event import Event, as_list

BITWISE = ("BAND", "BOR", "BXOR")
TYPE_NAMES = {
    "int64": "Long", "int32": "Int", "uint8": "Byte", "bool": "Bool", "int16": "Short", "int8": "Char", "float32": "Float",
    "float64": "Double",
}  # fmt: skip
C_NAMES = {
    "float32": "float", "float64": "double", "int64": "long int", "int32": "int", "uint8": "unsigned char", "bool": "bool",
    "int16": "short int", "int8": "signed char", "float16": "c10::Half", "bfloat16": "c10::BFloat16",
}  # fmt: skip
NOT_CONNECTED = (
    "[enforce fail at /__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:801] state_ >= CONNECTED. 1 vs 4. "
    "Pair is not connected ([127.0.0.1]:0${rank} <--> [none])"
)
UNEQUAL = "[enforce fail at /__w/pytorch/pytorch/third_party/gloo/gloo/alltoall.cc:30] in->size == out->size. "


def refusal(event: Event, inputs: Any, outputs: Any) -> str | None:
    """The words of the RuntimeError that gloo raises about a call; None if it takes it.

    inputs, outputs: a tensor of any kind that has torch's methods, a list of them, or None.
    """
    size, op = len(event.group), event.op
    if event.is_message:
        return NOT_CONNECTED.format(rank=event.rank) if event.ends == (event.rank, event.rank) else None
    if event.root is not None and event.root not in event.group:
        return f"ProcessGroupGloo::{op}: invalid root rank: {event.root}"
    tensors = [*as_list(inputs), *as_list(outputs)]
    if event.reduce_op and tensors and (flaw := _unfit(event.reduce_op, tensors[-1])):
        return flaw
    match op:
        case "all_gather":
            return _wrong_length("allgather", "output", outputs, size) or _unlike("allgather", inputs, outputs)
        case "all_gather_single":
            return _ungathered(outputs, inputs, size)
        case "gather" | "scatter" if event.rank == event.root:
            tensor, many = (inputs, outputs) if op == "gather" else (outputs, inputs)
            return _wrong_list(op, "output" if op == "gather" else "input", many, size) or _unlike(op, tensor, many)
        case "reduce_scatter":
            return _wrong_length(op, "input", inputs, size) or _unlike(op, outputs, inputs)
        case "reduce_scatter_single":
            if outputs.dtype is not inputs.dtype:
                kinds = " vs. ".join(C_NAMES.get(_name(x), _name(x)) for x in (outputs, inputs))
                return f"Check failed: outputTensors[i].dtype() == inputTensors[i].dtype() ({kinds})."
            rows_out, rows_in = (x.shape[0] if x.shape else 0 for x in (outputs, inputs))
            if rows_out * size != rows_in:
                return (
                    f"Check failed: outputShape[0] * worldSize == inputShape[0] ({rows_out * size} vs. {rows_in})."
                )
        case "all_to_all":
            return _unexchanged(inputs, outputs, size)
        case "all_to_all_single":
            return _unsplit(event, inputs, outputs, size)
    return None


def _unfit(op: str, x: Any) -> str | None:
    """The error for a reduction of this kind of numbers."""
    floating = x.dtype.is_floating_point
    if op in BITWISE and floating:
        return f"Cannot use ReduceOp.{op} with non-integral dtype"
    if op == "AVG" and not floating:
        return f"result type Float can't be cast to the desired output type {TYPE_NAMES[_name(x)]}"
    return None


def _unlike(name: str, first: Any, tensors: Iterable[Any]) -> str | None:
    """The error for a list of tensors that differ from one in kind or size."""
    for k, x in enumerate(tensors):
        if x.dtype is not first.dtype:
            return _expected(name, "type", k, _options(first), _options(x))
        if x.shape != first.shape:
            return _expected(name, "size", k, _sizes(first), _sizes(x))
    return None


def _expected(name: str, trait: str, k: int, expected: str, actual: str) -> str:
    return f"ProcessGroupGloo::{name}: invalid tensor {trait} at index {k} (expected {expected}, got {actual})"


def _wrong_length(name: str, role: str, tensors: list, size: int) -> str | None:
    if len(tensors) == size:
        return None
    return (
        f"ProcessGroupGloo::{name}: invalid {role} tensor list at index 0 (expected length {size}, got {len(tensors)})"
    )


def _wrong_list(name: str, role: str, tensors: list, size: int) -> str | None:
    if len(tensors) == size:
        return None
    return (
        f"ProcessGroupGloo::{name}: Incorrect {role} list size {len(tensors)}. {role.capitalize()} list size "
        f"should be {size}, same as size of the process group."
    )


def _ungathered(output: Any, input: Any, size: int) -> str | None:
    """The error for an output that doesn't fit."""
    rows = output.shape[0] if output.shape else 0
    if output.numel() % size or rows % size:
        return f"ProcessGroupGloo::allgather: invalid output tensor list at index 0 (expected length {size}, got {rows})"
    part = output.chunk(size)[0] if output.shape else output
    return _unlike("allgather", input, [part])


def _unexchanged(inputs: list, outputs: list, size: int) -> str | None:
    """The error for lists that don't fit."""
    for role, tensors in (("input", inputs), ("output", outputs)):
        if len(tensors) != size:
            return f"ProcessGroupGloo::alltoall: {role} tensor list size {len(tensors)} does not match world size {size}"
    flaw = _unlike("alltoall", inputs[0], inputs) or _unlike("alltoall", outputs[0], outputs)
    if not flaw and inputs[0].shape != outputs[0].shape:
        return "ProcessGroupGloo::alltoall: input and output tensors must have the same size"
    return flaw


def _unsplit(event: Event, input: Any, output: Any, size: int) -> str | None:
    """The error for split sizes that don't fit."""
    splits = event.splits or ((), ())
    rows = [x.shape[0] if x.shape else 0 for x in (input, output)]
    for sizes, count in zip(splits, rows):
        if sizes and len(sizes) != size:
            return "Number of tensor splits not equal to group size"
        if sizes and sum(sizes) != count:
            return "Split sizes doesn't match total dim 0 size"
    return UNEQUAL if not any(splits) and input.nbytes != output.nbytes else None


def _name(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def _options(x: Any) -> str:
    return (
        f"TensorOptions(dtype={C_NAMES.get(_name(x), _name(x))}, device=cpu, layout=Strided, requires_grad=false (default), "
        "pinned_memory=false (default), memory_format=(nullopt))"
    )


def _sizes(x: Any) -> str:
    return f"({', '.join(map(str, x.shape))})"
