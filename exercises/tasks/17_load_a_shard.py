"""load_columns(file, name): a rank's columns of a matrix in a safetensors file, in few reads and few bytes."""

import json
from itertools import takewhile

import torch
from safetensors.torch import load, save

from collectives.log.text import text
from helpers.exercise import Budget, Case, File, Suspect, Task, content

SHAPES = {1: (1, 8), 2: (2, 9), 4: (4, 6), 5: (5, 7), 9: (9, 3), 12: (12, 16)}  # Case.size -> rows, columns
CASES = (
    Case(2, size=4),
    Case(2, "fractions", 5),
    Case(3, size=4),
    Case(3, "fractions", 5, torch.bfloat16),
    Case(3, size=2, late=0),
    Case(4, size=12, dtype=torch.int64),
    Case(4, size=9, late=3),
    Case(5, "up to 10,000 and down to -10,000", 12),
    Case(6, size=1),
    Case(8, "fractions", 12, late=2),
    Case(7, size=9, dtype=torch.float64),
    Case(8, size=5, dtype=torch.bfloat16),
    Case(1, size=4),
)
NAME = "mlp.down.weight"


def draw(d):
    matrix = d.numbers(*SHAPES[d.case.size], common=True)
    others = {"mlp.down.bias": d.numbers(5, common=True), "mlp.up.weight": d.numbers(3, 2, common=True)}
    data = save({NAME: matrix, **others}, metadata={"format": "pt"})
    data = turned(data) if d.world_size % 2 else data
    return File(data, f"a file of {len(data)} B with {NAME} {list(matrix.shape)}: {text(matrix)}"), NAME


def turned(data):
    """The same file, but for the order of the header's entries, which means nothing."""
    end = 8 + int.from_bytes(data[:8], "little")
    entries = json.loads(data[8:end])
    header = json.dumps(dict(reversed(entries.items())), separators=(",", ":")).encode()
    return data[:8] + header.ljust(end - 8) + data[end:]


def tensors(args):
    return load(content(args[0][0]))


def parts(matrix, n, dim=1):
    return [part.contiguous() for part in matrix.tensor_split(n, dim)]


def reference(args):
    return parts(tensors(args)[NAME], len(args))


def header_bytes(file):
    return 8 + int.from_bytes(content(file)[:8], "little")


def budget(case, args):
    n, matrix = case.world_size, tensors(args)[NAME]
    rows, columns = matrix.shape
    most = -(-rows // n) * matrix.element_size()  # bytes of a column of the rows that a rank reads
    own = [part.shape[1] for part in matrix.tensor_split(n, 1)]
    return Budget(
        "a rank reads 3 times, the header and ceil(rows/N) rows, and sends of these rows the columns of others, once",
        sent=[most * (columns - mine) for mine in own],
        read=[header_bytes(args[0][0]) + most * columns] * n,
        reads=[3] * n,
    )


def without_header(args):
    """Columns of what lies at data_offsets from the beginning of the file."""
    data, matrix = content(args[0][0]), tensors(args)[NAME]
    start = data.find(matrix.contiguous().view(torch.uint8).numpy().tobytes(), header_bytes(args[0][0]))
    return taken_from(start - header_bytes(args[0][0]), args)


def without_first_eight(args):
    """Columns of what lies where it would without the 8 bytes in front of the header."""
    data, matrix = content(args[0][0]), tensors(args)[NAME]
    start = data.find(matrix.contiguous().view(torch.uint8).numpy().tobytes(), header_bytes(args[0][0]))
    return taken_from(start - 8, args)


def taken_from(start, args):
    """Columns of what is in the file from a byte on."""
    data, matrix = content(args[0][0]), tensors(args)[NAME]
    wrong = torch.frombuffer(bytearray(data[start : start + matrix.nbytes]), dtype=matrix.dtype)
    return parts(wrong.view(matrix.shape), len(args))


def in_header_order(args):
    """As if the file had its tensors in the order of the header's entries."""
    start = header_bytes(args[0][0])
    entries = json.loads(content(args[0][0])[8:start])
    for name in takewhile(lambda name: name != NAME, entries):
        first, last = entries[name].get("data_offsets", (0, 0))  # none of the metadata
        start += last - first
    return taken_from(start, args)


def rounded_down(args):
    """As if each rank had columns // N columns."""
    matrix, n = tensors(args)[NAME], len(args)
    wide = matrix.shape[1] // n
    return [matrix[:, r * wide : (r + 1) * wide].contiguous() for r in range(n)]


def needs(case, args):
    """Its columns, read from the file or received."""
    return [part.nbytes for part in parts(tensors(args)[NAME], case.world_size)]


TASK = Task(
    "load_columns",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    after=None,
    scale=lambda args: 1.0,  # numbers are copied, not computed
    parameters=("file", "name"),
    suspects=(
        Suspect(
            lambda args: parts(tensors(args)[NAME], len(args), dim=0),
            "these are the rank's rows. They are what it reads; the columns are what it returns.",
        ),
        Suspect(
            lambda args: [parts(tensors(args)[NAME], len(args))[0]] * len(args),
            "all ranks have the first columns. Where does the rank come in?",
        ),
        Suspect(
            lambda args: [tensors(args)[NAME]] * len(args),
            "this is the whole matrix. Which columns are this rank's?",
        ),
        Suspect(
            without_header,
            "these numbers come from a different place in the file: data_offsets count from the end of the header.",
        ),
        Suspect(
            without_first_eight,
            "these numbers come from 8 bytes too early in the file: the header's length takes 8 bytes in front of the header.",
        ),
        Suspect(
            in_header_order,
            "these numbers come from where the matrix would be if the file had its tensors in the order of the header's entries. "
            "It needn't: data_offsets say where each one is.",
        ),
        Suspect(rounded_down, "the last columns are left out. What if their number does not divide by N?"),
    ),
    thoughts={
        "values": "follow one row: which rank reads it, into which pieces does it cut the row, and in which order do the "
        "rows come together on the rank that gets a piece?",
        "read": "which bytes did this rank get that it doesn't need? A rank reads the header and its share of the rows, "
        "and the others read theirs.",
        "reads": "a column isn't one contiguous block of the file, but some rows are. Read rows, and let the ranks swap.",
        "sent": "does each number go to the one rank that returns it, or to all? (Each rank reads the header itself.)",
        "Stuck": "does every rank make the same calls, even one that has no rows or no columns?",
        "Mismatch": "how many numbers does rank r get from rank s? Rows of s times columns of r, and neither has to be "
        "the same on all ranks. (Is the dtype the file's own?)",
        "RankFailed": "try it by hand with the cell below. Are there more ranks than rows? Is the dtype the file's own?",
    },
)
