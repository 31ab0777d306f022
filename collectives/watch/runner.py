"""Starts a script as `python` itself would: with nothing of this package's in its `__main__`, path or tracebacks."""

import builtins
import os
import runpy
import sys
import types
from importlib.machinery import SourceFileLoader
from pkgutil import get_importer
from types import TracebackType
from typing import Callable

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def start(command: list[str], module: bool) -> None:
    """Run `python COMMAND`, or `python -m COMMAND`, to its end.

    command: a script, a folder or a zip file with a __main__.py, or the name of a module; and its arguments.
    """
    sys.argv = list(command)
    program = command[0]
    _be_main()
    if module:
        runpy._run_module_as_main(program)  # `python -m` calls it
    elif get_importer(program) is not None:  # a folder or a zip file
        _set_first_path(os.path.abspath(program), always=True)
        runpy._run_module_as_main("__main__", alter_argv=False)
    else:
        _set_first_path(os.path.dirname(os.path.realpath(program)))
        path = os.path.abspath(program)
        main = sys.modules["__main__"].__dict__
        main.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, main)


def _be_main() -> None:
    """An empty `__main__` as python makes it. It stays, since the script's classes are pickled by it."""
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    if sys.version_info < (3, 14):  # from there on a module has them when it is asked
        main.__annotations__ = {}
    sys.modules["__main__"] = main


def _set_first_path(folder: str, always: bool = False) -> None:
    """Put a folder where `python -m` has the current one. With -P there is neither that nor a script's folder."""
    if not getattr(sys.flags, "safe_path", False):  # from Python 3.11 on
        sys.path[0] = folder
    elif always:
        sys.path.insert(0, folder)


def show_error(hook: Callable, kind: type, error: BaseException, _: TracebackType | None) -> None:
    """Call an excepthook with the error; its tracebacks, and its causes' tracebacks, show the script's frames alone."""
    one, shown = error, set()
    while one is not None and id(one) not in shown:
        shown.add(id(one))
        one.__traceback__ = _without_ours(one)
        one = one.__cause__ or one.__context__
    hook(kind, error, error.__traceback__)


def _without_ours(error: BaseException) -> TracebackType | None:
    """The traceback of an error without this package's frames, and without the runpy that started it."""
    frames, frame = [], error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            if all(frame.tb_frame.f_code.co_filename.startswith("<frozen") for frame in frames):
                frames.clear()
        else:
            frames.append(frame)
        frame = frame.tb_next
    if not frames and not isinstance(error, SyntaxError):  # no script was reached: this is an error of our own
        return error.__traceback__
    below = None
    for frame in reversed(frames):
        below = TracebackType(below, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return below
