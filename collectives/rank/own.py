"""Source files that pass calls on: their calls are attributed to the line that called them."""

import os

folders: tuple[str, ...] = (os.path.dirname(os.path.dirname(__file__)) + os.sep,)


def pass_on(*more: str | os.PathLike) -> None:
    """Treat code in these folders as passing calls on, like the library's: here, and in the ranks of later runs."""
    global folders
    folders = tuple(dict.fromkeys([*folders, *(os.path.join(folder, "") for folder in more)]))


def passes_on(file: str | None) -> bool:
    """Whether a source file is in one of these folders."""
    return bool(file) and file.startswith(folders)
