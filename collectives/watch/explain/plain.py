"""Files from other people, opened so that they cannot run anything here."""

import gzip
import io
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

MOST_BYTES = 4 << 30  # that a compressed file may hold


class Unusable(ValueError):
    """A file that cannot be used. The message is a sentence about it, without its name."""


class _Plain(pickle.Unpickler):
    """Reads numbers, strings, lists and dictionaries. A pickle that asks for anything else is refused unopened."""

    def find_class(self, module: str, name: str) -> Any:
        raise Unusable(
            f"asks for {module}.{name} to be called when it is opened. A flight-recorder dump holds plain data alone, "
            "so this file was not opened"
        )

    def persistent_load(self, pid: Any) -> Any:
        raise Unusable("refers to data outside of it, as no flight-recorder dump does")


def data_of(path: Path) -> bytes:
    """The bytes of a file, decompressed. Raises Unusable for one that is empty or damaged, OSError as open does."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                data = file.read(MOST_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise Unusable(f"is compressed and cut short or damaged ({error})") from None
        if len(data) > MOST_BYTES:
            raise Unusable(f"is larger than {MOST_BYTES >> 30} GiB once it is decompressed")
    if not data.strip():
        raise Unusable("is empty: its process was ended before it wrote anything")
    return data


def unpickled(data: bytes) -> Any:
    """A pickle's content, if that is plain data. Raises Unusable."""
    try:
        # Buffered, though it is in memory: else an unpickler calls read() for each number, which takes three times as long.
        return _Plain(io.BufferedReader(io.BytesIO(data))).load()
    except Unusable:
        raise
    except EOFError:
        raise Unusable("is cut short: its process was ended while it wrote") from None
    except Exception as error:  # a damaged pickle may raise anything
        short = "truncated" in str(error)
        raise Unusable(
            "is cut short: its process was ended while it wrote" if short else f"is a damaged pickle ({error})"
        ) from None


def unjsoned(data: bytes) -> Any:
    """The content of JSON. Raises Unusable."""
    try:
        return json.loads(data)
    except UnicodeDecodeError as error:
        raise Unusable(f"is damaged ({error})") from None
    except json.JSONDecodeError as error:
        if error.pos >= len(error.doc.rstrip()) - 1 or "Unterminated" in error.msg:
            raise Unusable("is cut short: its process was ended while it wrote") from None
        raise Unusable(f"is damaged JSON ({error})") from None
    except RecursionError:
        raise Unusable("is nested too deeply to be a record") from None
