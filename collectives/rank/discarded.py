"""Results that nobody can read: `all_reduce(x.contiguous())` fills a copy of x, and `broadcast_object_list([x])` a list,
that is gone right after the call.

What a call's first argument is comes from the bytecode of the line that makes it (from Python 3.11 onward), once per call
site; that the argument is a copy, and not x itself, from the tensors, at each call.
"""

import dis
import inspect
import sys
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

# Functions whose first argument is filled; for the second ones, a list of objects.
FILLED = {
    "all_reduce", "broadcast", "reduce", "scatter", "recv", "all_gather_single", "reduce_scatter", "reduce_scatter_single",
    "all_to_all_single",
}  # fmt: skip
MOST_ITEMS = 64  # of a list, or a dict, that are looked at
SHOW_VARIABLES = {"locals", "vars", "dir", "eval", "exec"}  # functions that give a program its frame's variables
FILLED_LISTS = {"broadcast_object_list", "scatter_object_list", "recv_object_list", "all_gather_object"}


class Argument(NamedTuple):
    """An expression of a program: `names` joined by dots, an index perhaps, then a method or an operator.

    text: "x.contiguous()", "x[...].contiguous()", "[...]".
    """

    names: tuple[str, ...]
    text: str
    indexed: bool = False


def discarded(op: str, within: str | None, frame: FrameType | None, outputs: list[torch.Tensor]) -> str | None:
    """The expression of the program that made a call's output, if nothing holds that; None if something may.

    frame: the program's, which is in this call.
    """
    if frame is None or not (op in FILLED and within is None and len(outputs) == 1 or within in FILLED_LISTS):
        return None
    argument = _first_argument(frame.f_code, frame.f_lasti)
    if argument is None or bool(argument.names) == (within in FILLED_LISTS):
        return None
    if not argument.names:
        return argument.text
    variables = _variables(frame, argument.names[0])
    source, output = _value(variables, argument.names), outputs[0]
    sources = list(source.values()) if type(source) is dict else source if type(source) in (list, tuple) else ()
    sources = [source] if isinstance(source, torch.Tensor) else sources if argument.indexed else ()
    dense = all(isinstance(x, torch.Tensor) and x.layout == torch.strided for x in (output, *sources[:MOST_ITEMS]))
    if not dense or not 0 < len(sources) <= MOST_ITEMS:
        return None
    is_copy = output.untyped_storage().data_ptr() not in [x.untyped_storage().data_ptr() for x in sources]
    return argument.text if is_copy and not any(value is output for value in variables.values()) else None


@lru_cache(1024)
def _first_argument(code: CodeType, at: int) -> Argument | None:
    """The first argument of the call at this offset, if it is a new object."""
    if sys.version_info < (3, 11):  # which has no columns of instructions
        return None
    steps = [step for step in dis.get_instructions(code) if step.positions and step.positions.col_offset is not None]
    call = next((step for step in reversed(steps) if step.offset <= at), None)  # its caches follow it
    if call is None or not call.opname.startswith("CALL"):
        return None
    start, end = _span(call)
    inside = [step for step in steps if step.offset < call.offset and start <= _span(step)[0] and _span(step)[1] <= end]
    callee = max(
        (_span(step)[1] for step in inside if _span(step)[0] == start and _span(step) != (start, end)), default=end
    )
    rest = [step for step in inside if _span(step)[0] > callee]
    if not rest:
        return None
    first = min(_span(step)[0] for step in rest)
    parts = sorted((step for step in rest if _span(step)[0] == first), key=lambda step: _span(step)[1])
    kind = parts[-1].opname
    if parts[0].opname in ("BUILD_LIST", "LIST_EXTEND") and kind in ("BUILD_LIST", "LIST_EXTEND", "BINARY_OP"):
        return Argument((), "[...]")
    if not parts[0].opname.startswith("LOAD_") or not kind.startswith(("CALL", "BINARY_")):
        return None
    names, index = list[str](), ""
    for step in parts:
        if names and (step.opname in _INDEXES or step.argrepr == "[]"):
            index = "[...]"
            continue
        if step.opname in ("LOAD_METHOD", "BINARY_OP") or kind.startswith("CALL") and _calls_next(parts, step):
            act = f" {step.argrepr} ..." if step.opname == "BINARY_OP" else _SHORT.get(step.argval, f".{step.argval}(...)")
            return Argument(tuple(names), ".".join(names) + index + act, bool(index)) if names else None
        if index or step.opname not in _LOADS | _LOAD_PAIRS:
            return None
        names.append(step.argval[0] if step.opname in _LOAD_PAIRS else step.argval)
    return Argument(tuple(names), ".".join(names) + index, True) if index else None


_SHORT = {"contiguous": ".contiguous()"}
_INDEXES = {"BINARY_SUBSCR", "BINARY_SLICE"}
_LOAD_PAIRS = {"LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"}  # variables at once, from Python 3.13 onward
_LOADS = {"LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_ATTR"}


def _calls_next(parts: list[dis.Instruction], step: dis.Instruction) -> bool:
    """Whether an attribute is a method that the program calls, as Python has it from 3.12 onward."""
    following = [x for x in parts[parts.index(step) + 1 :] if x.opname not in ("KW_NAMES", "LOAD_CONST")]  # keywords
    return step.opname == "LOAD_ATTR" and bool(following) and following[0].opname.startswith("CALL")


def _span(step: dis.Instruction) -> tuple[tuple[int, int], tuple[int, int]]:
    at = step.positions
    return (at.lineno, at.col_offset), (at.end_lineno, at.end_col_offset)


def _variables(frame: FrameType, name: str) -> dict[str, Any]:
    """The variables among which a name is: a function's own, or else those of its module. Empty if they can't be read.

    Up to Python 3.12, a function's frame keeps what `f_locals` shows alive until it ends, so a program's `del` would do
    nothing. It is emptied again, unless the program might have it, too.
    """
    code = frame.f_code
    if name not in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        return frame.f_globals
    if sys.version_info >= (3, 13) or not code.co_flags & inspect.CO_OPTIMIZED:
        return dict(frame.f_locals)
    if sys.gettrace() or not SHOW_VARIABLES.isdisjoint(code.co_names):
        return {}
    snapshot = frame.f_locals
    variables = dict(snapshot)
    snapshot.clear()
    return variables


def _value(variables: dict[str, Any], names: tuple[str, ...]) -> Any:
    """The value of a name and its attributes, without running code of the program's own; None if it can't be known."""
    first, *attributes = names
    value = variables.get(first)
    for name in attributes:
        own = getattr(value, "__dict__", {})
        if isinstance(value, torch.nn.Module):
            parts = torch.nn.Module.named_parameters, torch.nn.Module.named_buffers
            own = {**own, **dict(torch.nn.Module.named_children(value))}
            for part in parts:
                own |= dict(part(value, recurse=False))
        elif isinstance(value, torch.Tensor) and name in ("grad", "data"):
            own = {name: getattr(value, name)}
        value = own.get(name) if isinstance(own, dict) else None
    return value
