"""Files from other people, opened so that they cannot run anything here."""

import io
import json
import pickle
from typing import Any

CUT = "is cut short: its process was ended while it wrote"


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


def unpickled(data: bytearray) -> Any:
    """A pickle's content, if that is plain data. Raises Unusable."""
    try:
        # Buffered, though it is in memory: else an unpickler calls read() for each number, which takes three times as long.
        return _Plain(io.BufferedReader(io.BytesIO(data))).load()
    except Unusable:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        is_cut = isinstance(error, EOFError) or "truncated" in str(error)
        raise Unusable(CUT if is_cut else f"is a damaged pickle ({error})") from None


def unjsoned(data: bytes | bytearray) -> Any:
    """The content of JSON. Raises Unusable."""
    try:
        return json.loads(data)
    except UnicodeDecodeError as error:
        raise Unusable(f"is damaged ({error})") from None
    except json.JSONDecodeError as error:
        if error.pos >= len(error.doc.rstrip()) - 1 or "Unterminated" in error.msg:
            raise Unusable(CUT) from None
        raise Unusable(f"is damaged JSON ({error})") from None
    except RecursionError:
        raise Unusable("is nested too deeply to be a record") from None
