"""A rank's own copy of a function, with the variables that it uses, as if it had been sent to a process."""

from __future__ import annotations

import copy
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, Callable, Iterator

SHARED = (ModuleType, type, BuiltinFunctionType)


def private(fn: Callable, memo: dict[int, Any] | None = None) -> Callable:
    """The copy. Modules, classes, and functions of modules are shared, as every process has the same.

    memo: of what is copied already, by id, as deepcopy has it.
    """
    memo = {} if memo is None else memo
    if not isinstance(fn, FunctionType) or fn.__module__ != "__main__":
        return fn if isinstance(fn, (*SHARED, FunctionType)) else copy.deepcopy(fn, memo)
    if id(fn) in memo:
        return memo[id(fn)]
    names: dict[str, Any] = {"__builtins__": fn.__globals__.get("__builtins__"), "__name__": fn.__module__}
    cells = tuple(CellType() for _ in fn.__closure__ or ())
    result = memo[id(fn)] = FunctionType(fn.__code__, names, fn.__name__, None, cells)
    for name in _names(fn.__code__):
        if name in fn.__globals__:
            names[name] = copied(fn.__globals__[name], memo)
    for cell, original in zip(cells, fn.__closure__ or ()):
        try:
            cell.cell_contents = copied(original.cell_contents, memo)
        except ValueError:  # nothing is in it yet
            pass
    result.__defaults__ = copied(fn.__defaults__, memo)
    result.__kwdefaults__ = copied(fn.__kwdefaults__, memo)
    result.__module__, result.__qualname__ = fn.__module__, fn.__qualname__
    return result


def copied(value: Any, memo: dict[int, Any]) -> Any:
    """A rank's own copy of a value."""
    if callable(value):
        return private(value, memo)
    try:
        return copy.deepcopy(value, memo)
    except (TypeError, AttributeError):  # an open file, a lock, a generator: a program that uses it fails when it does
        return value


def _names(code: CodeType) -> Iterator[str]:
    """The names of variables outside a function that it, or a function in it, uses."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
