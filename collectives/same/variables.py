"""The program's variables: what it calls a tensor, which of them are one tensor, and which tensors a loss depends on."""

import dis
from functools import lru_cache
from types import CodeType, FrameType, ModuleType
from typing import Any, Iterator

import torch
import torch.nn as nn

from ..rank.callers import is_learners, learners_call

FRAMES = 32  # that are searched for a name


def variable(value: Any) -> str:
    """The variable by which the program calls an object: "w", "weights[0]", "table.w"; "" if it has none but `self`."""
    frame = learners_call()[2]
    for _ in range(FRAMES):
        if frame is None:
            break
        if is_learners(frame.f_code.co_filename):
            for scope in (frame.f_locals, frame.f_globals):
                for name, item in scope.items():
                    if item is value and name != "self":
                        return name
                    if part := next((words for words, item in _parts(item) if item is value), ""):
                        return name + part
        frame = frame.f_back
    return ""


def containing(module: nn.Module) -> nn.Module:
    """The largest module among the program's variables that this one is a part of; itself if no other has it."""
    frame, holders = learners_call()[2], [module]
    for _ in range(FRAMES):
        if frame is None:
            break
        if is_learners(frame.f_code.co_filename):
            values = [*frame.f_locals.values(), *(part for item in frame.f_locals.values() for _, part in _parts(item))]
            holders += [v for v in values if isinstance(v, nn.Module) and any(part is module for part in v.modules())]
        frame = frame.f_back
    return max(holders, key=lambda holder: len(list(holder.modules())))


def _parts(holder: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a list, a dict or an object of the program's own, with the words for each."""
    if type(holder) in (list, tuple):
        yield from ((f"[{k}]", item) for k, item in enumerate(holder))
    elif type(holder) is dict:
        yield from ((f"[{key!r}]", item) for key, item in list(holder.items()))
    elif not isinstance(holder, (type, ModuleType)) and type(holder).__module__.partition(".")[0] not in (
        "torch",
        "builtins",
    ):
        yield from ((f".{name}", item) for name, item in list(getattr(holder, "__dict__", {}).items()))


def names_read_later(frame: FrameType, tensor: torch.Tensor) -> tuple[str, ...]:
    """The variables of a frame that are this tensor, if there are several, and it goes on to read them all."""
    names = sorted(name for name, value in frame.f_locals.items() if value is tensor)
    return tuple(names) if len(names) > 1 and _are_read(frame.f_code, frame.f_lasti, tuple(names)) else ()


@lru_cache(1024)
def _are_read(code: CodeType, at: int, names: tuple[str, ...]) -> bool:
    """Whether the code behind an offset reads each variable before it gives it another value."""
    first: dict[str, bool] = {}
    for step in dis.get_instructions(code):
        if step.offset > at:
            for name in step.argval if isinstance(step.argval, tuple) else (step.argval,):
                first.setdefault(name, step.opname.startswith("LOAD_"))
    return all(first.get(name) for name in names)


def leaves(loss: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that a loss depends on and that nothing has made: its parameters."""
    nodes, visited = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        nodes += [parent for parent, _ in reversed(node.next_functions)]
