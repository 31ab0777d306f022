"""`watch_files()`: a run, and each rank's reads of files, byte by byte.

from collectives.train import watch_files
seen = watch_files(load, "model.safetensors", world_size=4)    # load is plain Python: it calls open()
seen.bytes                    # per rank
seen                          # a table
seen.strip({"w": (100, 400)}) # the file as a strip of bytes, colored by the ranks that read them
"""

import builtins
import io
import os
import sys
from contextlib import contextmanager
from typing import Any, Callable, Iterator, NamedTuple, Sequence

from ..draw.canvas import INK, SOFT, TRAY, WIDTH, Canvas, Picture, colour, heading, text_width
from ..draw.labels import RankLabels
from ..format import align, span
from ..intervals import merge
from ..launch.run import run
from ..outcome.run import Run
from .view import View, exact, group_equal

MAX_NAMES = 12  # in a strip's text


class Read(NamedTuple):
    """One request to the system for bytes of a file."""

    path: str
    start: int
    stop: int  # after the last byte that came


# --- in the rank --------------------------------------------------------------------------


class counted:
    """A function that calls `fn`, and returns its result with its reads of `files`.

    Files opened by Python's open() are counted below its buffer: the bytes requested from the system.  A file mapped
    into memory, or opened by a library written in another language, is not seen.
    """

    def __init__(self, fn: Callable, files: Sequence[str | os.PathLike]) -> None:
        self.fn, self.__name__ = fn, getattr(fn, "__name__", type(fn).__name__)
        self.files = [os.path.realpath(file) for file in files]

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, list[Read]]:
        reads: list[Read] = []
        with _open_counts(self.files, reads, getattr(self.fn, "__globals__", {})):
            return self.fn(*args, **kwargs), reads


def _noting(read: Callable) -> Callable:
    """This method of FileIO, which notes what was read."""

    def noted(self, *args: Any) -> Any:
        start = self.tell()
        data = read(self, *args)
        self.reads.append(Read(self.path, start, self.tell()))
        return data

    return noted


class _Counted(io.FileIO):
    """A file that notes each read of it.  .reads .path: where to, under which name."""

    readinto, read, readall = map(_noting, (io.FileIO.readinto, io.FileIO.read, io.FileIO.readall))


def _block(raw: io.FileIO) -> int:
    """Bytes that Python's open() would read at once: a block of the file system, from Python 3.14 on at least 128 KiB."""
    block = getattr(os.fstat(raw.fileno()), "st_blksize", io.DEFAULT_BUFFER_SIZE)
    if sys.version_info < (3, 14):
        return block if block > 1 else io.DEFAULT_BUFFER_SIZE
    return max(min(block, 8 << 20), io.DEFAULT_BUFFER_SIZE)


@contextmanager
def _open_counts(files: Sequence[str], reads: list[Read], names: dict[str, Any]) -> Iterator[None]:
    """names: the globals of the function, to which IPython adds its own `open`."""
    real = builtins.open

    def counting(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
        path = "" if isinstance(file, int) else os.path.realpath(os.fspath(file))
        within = any(path == known or path.startswith(os.path.join(known, "")) for known in files)
        if not within or set(mode) & set("wxa+"):
            return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = _Counted(file, "r", closefd, opener)
        raw.reads, raw.path = reads, path
        if buffering == 0 and "b" in mode:
            return raw
        buffered = io.BufferedReader(raw, buffering if buffering > 1 else _block(raw))
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    before = [(space, space["open"]) for space in (vars(builtins), vars(io), names) if "open" in space]
    for space, _ in before:
        space["open"] = counting
    try:
        yield
    finally:
        for space, own in before:
            space["open"] = own


# --- next to the run ----------------------------------------------------------------------


class Strip(View):
    """A file from its first byte to its last, left to right, a rank per row: the bytes it read are filled."""

    def __init__(
        self, reads: Sequence[Sequence[Read]], names: dict[str, tuple[int, int]], start: int, stop: int, name: str
    ) -> None:
        self.reads, self.start, self.stop, self.name = reads, start, stop, name
        self.names = {n: (max(a, start), min(b, stop)) for n, (a, b) in names.items() if a < stop and b > start}
        self.parts = [merge((max(read.start, start), min(read.stop, stop)) for read in row) for row in reads]

    def __repr__(self) -> str:
        lines = [f"bytes {self.start:,} to {self.stop:,} that the ranks read"]
        for rank, parts in enumerate(self.parts):
            many = f"{len(parts)} part{'s' * (len(parts) != 1)}"
            ends = f", from {parts[0][0]:,} to {parts[-1][1]:,}" if parts else ""
            lines.append(f"  rank {rank}   {sum(b - a for a, b in parts):>9,} B in {many}{ends}")
        if self.names:
            starts = [f"{n} {a:,}" for n, (a, _) in self.names.items()]
            more = f" and {len(starts) - MAX_NAMES} more" if len(starts) > MAX_NAMES else ""
            lines.append(f"  begins: {', '.join(starts[:MAX_NAMES])}{more}")
        return "\n".join(lines)

    def draw(self) -> Picture:
        sketch = Canvas()
        y = heading(sketch, f"what the ranks of {self.name} read", f"bytes {self.start:,} to {self.stop:,} of the file")
        labels = RankLabels(range(len(self.reads)), 12.5)
        left = labels.width + 14
        scale = (WIDTH - left) / max(1, self.stop - self.start)

        def at(byte: int) -> float:
            return left + (byte - self.start) * scale

        reached = left
        for name, (a, b) in self.names.items():
            if text_width(name, 10.5) <= (b - a) * scale and at(a) >= reached:
                sketch.text(at(a) + (b - a) * scale / 2, y, name, 10.5, SOFT)
                reached = at(b)
        high = 22 if len(self.reads) <= 4 else 14
        top = y = y + 12
        for rank, parts in enumerate(self.parts):
            labels.draw(sketch, left - 12, y + high / 2, rank)
            sketch.box(left, y, WIDTH - left, high, TRAY, radius=0)
            for a, b in parts:
                sketch.box(at(a), y, max((b - a) * scale, 0.5), high, colour(rank), radius=0)
            y += high + 5
        for a, _ in self.names.values():
            sketch.line([(at(a), top - 4), (at(a), y - 3)], INK, 0.6, butt=True)
        return Picture([sketch], repr(self), f"Picture: which bytes of a file {len(self.reads)} ranks read")


class Files:
    """A run with its ranks' reads of files.

    .run .results .events: as run() gives them.  .reads: per rank, in order.  .bytes: read by each rank; bytes
    read twice count twice.  .requests: how many times it asked the system for bytes.  .opened: names of the files that
    it read, without folders.
    """

    def __init__(self, run: Run) -> None:
        self.reads: list[list[Read]] = [reads for _, reads in run.results]
        self.results = run.results = [result for result, _ in run.results]
        self.run, self.events = run, run.events
        self.bytes = [sum(read.stop - read.start for read in reads) for reads in self.reads]
        self.requests = list(map(len, self.reads))
        self.opened = [sorted({os.path.basename(read.path) for read in reads}) for reads in self.reads]

    def strip(self, names: dict[str, tuple[int, int]] | None = None, start: int = 0, stop: int | None = None) -> Strip:
        """The one file that was read, from byte `start` to `stop`, and each rank's reads of it.

        names: name -> first byte, and the one after the last.  Raises ValueError if it was several files.
        """
        paths = {read.path for reads in self.reads for read in reads}
        if len(paths) != 1:
            raise ValueError(f"{self.run.name} read {len(paths)} files, and a strip shows one")
        stop = os.path.getsize(paths.pop()) if stop is None else stop
        return Strip(self.reads, names or {}, start, stop, self.run.name)

    def __repr__(self) -> str:
        rows = [("rank", "bytes read", "requests", "files")]
        same = group_equal(enumerate(zip(self.bytes, self.requests, map(len, self.opened))))
        rows += [(span(ranks), *map(exact, counts)) for counts, ranks in same.items()]
        return align(rows, right=(1, 2, 3))

    def _ipython_display_(self) -> None:
        print(self)


def watch_files(
    fn: Callable[..., Any], *args: Any, files: Sequence[str | os.PathLike] | None = None, **options: Any
) -> Files:
    """Run `fn(*args)` on every rank as run() does, and record each one's reads of files.

    files: to watch, or folders of such files; None: the paths among the arguments.  fn opens them with Python's
    open(), itself or through torch.load and torch.distributed.checkpoint.  Raises ValueError if there are none.
    """
    candidates = (*args, *options.values()) if files is None else files
    paths = [a for a in candidates if isinstance(a, (str, os.PathLike)) and os.path.exists(a)]
    if not paths:
        how = "give it a path or a folder, as an argument or as files=[...]"
        raise ValueError(f"watch_files() counts reads of files: {how}")
    return Files(run(counted(fn, paths), *args, **options))
