"""Which source files pass calls on: a call that they make is put down to the line which called them."""

import os

folders: tuple[str, ...] = (os.path.dirname(os.path.dirname(__file__)) + os.sep,)


def pass_on(*more: str | os.PathLike) -> None:
    """From here on, code in these folders passes calls on, as the library's does: here, and in the ranks of every run."""
    global folders
    folders = tuple(dict.fromkeys([*folders, *(os.path.join(folder, "") for folder in more)]))


def passes_on(file: str | None) -> bool:
    """Whether a source file is in one of these folders."""
    return bool(file) and file.startswith(folders)
