"""load_columns(file, name): a rank's columns of a matrix in a safetensors file, in few reads and few bytes.
resume_shard(file, entries, saved_by, length): a rank's shard from the newest complete checkpoint of a job with other ranks.
save_actions(n): what each rank does to save, so that a crash at any moment leaves a complete checkpoint or none.
"""

import json
from collections import deque
from itertools import takewhile
from typing import Any, Iterator, NamedTuple

import torch
from safetensors.torch import load, save

from collectives.format import kind, name_ranks
from collectives.log.text import text
from helpers.exercise import ANY_VALUE, Budget, Case, File, Finding, Puzzle, Suspect, Task, content

# --- columns --------------------------------------------------------------------------------

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


COLUMNS = Task(
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

# --- a checkpoint ---------------------------------------------------------------------------

SAVED_BY = {1: 4, 2: 3, 3: 4, 4: 3, 5: 2, 6: 4, 7: 3, 8: 4}  # ranks of the job that was killed, by world size
# The steps at which it saved, in no order, and how the last one ended: nothing wrong, a rank's file is missing, or one is cut short.
HISTORIES = (((8, 12, 4), "missing"), ((90, 100, 80), "short"), ((9, 10, 8), ""))
ITEM = 4  # bytes of a number


def draw_checkpoints(d):
    """All that the killed job's ranks wrote, as one file with gaps, and where each part of it is."""
    length, ranks = d.case.size, SAVED_BY[d.world_size]
    steps, ended = HISTORIES[d.world_size % len(HISTORIES)]
    victim, parts = d.integer(0, ranks, common=True), []
    for step in steps:
        flat = d.numbers(length, common=True)
        for rank, shard in enumerate(padded(flat, ranks)):
            cut = rank == victim and step == max(steps) and ended
            if cut != "missing":
                parts.append((step, rank, shard[: len(shard) // 2] if cut == "short" else shard))
    data, entries = b"", []
    for k in torch.randperm(len(parts), generator=d.common).tolist():
        step, rank, numbers = parts[k]
        data += bytes(4 * d.integer(0, 3, common=True))
        entries.append((step, rank, len(data), len(numbers)))
        data += numbers.numpy().tobytes()
    return File(data, f"a file of {len(data)} B with {len(parts)} shards"), entries, ranks, length


def padded(flat, n):
    """A vector in n equal shards, with zeros at its end."""
    return torch.nn.functional.pad(flat, (0, -len(flat) % n)).chunk(n)


def newest_complete(entries, ranks, length):
    size = -(-length // ranks)
    numbers = {}
    for step, _, _, count in entries:
        numbers[step] = numbers.get(step, 0) + count
    return max(step for step, count in numbers.items() if count == size * ranks)


def loaded(args):
    """What each rank returns."""
    file, entries, ranks, length = args[0]
    step, data = newest_complete(entries, ranks, length), content(file)
    parts = sorted((rank, at, count) for found, rank, at, count in entries if found == step)
    shards = [torch.frombuffer(bytearray(data[at : at + ITEM * count]), dtype=torch.float32) for _, at, count in parts]
    return [(step, shard.clone()) for shard in padded(torch.cat(shards)[:length], len(args))]


def own_range(rank, n, length):
    """The first number of a rank's shard, and the first one behind it."""
    size = -(-length // n)
    return min(rank * size, length), min((rank + 1) * size, length)


def budget_of_reads(case, args):
    n, (_, _, ranks, length) = case.world_size, args[0]
    old, nbytes, reads = -(-length // ranks), [], []
    for rank in range(n):
        start, stop = own_range(rank, n, length)
        nbytes.append(ITEM * (stop - start))
        reads.append(sum(k * old < stop and start < min((k + 1) * old, length) for k in range(ranks)))
    return Budget(
        "a rank reads its own numbers and no others, with one read for each shard of the killed job that has some of them, and "
        "nothing is sent",
        sent=[0] * n,
        received=[0] * n,
        read=nbytes,
        reads=reads,
    )


def bytes_of_own(case, args):
    ends = [own_range(rank, case.world_size, args[0][3]) for rank in range(case.world_size)]
    return [ITEM * (stop - start) for start, stop in ends]


RESUME = Task(
    "resume_shard",
    (
        Case(2, size=12),
        Case(3, size=24),
        Case(3, "fractions", 10),
        Case(4, size=11),
        Case(5, "fractions", 16),
        Case(6, size=7),
        Case(8, "fractions", 30),
        Case(7, size=5, late=2),
        Case(1, size=9),
    ),
    draw_checkpoints,
    loaded,
    budget_of_reads,
    needs=bytes_of_own,
    after=None,
    scale=lambda args: 1.0,  # numbers are copied, not computed
    parameters=("file", "entries", "saved_by", "length"),
    outputs=("step", "shard"),
    suspects=(
        Suspect(
            lambda args: [(max(step for step, *_ in args[0][1]), ANY_VALUE)] * len(args),
            "this is the newest checkpoint, and it isn't complete. Which rank was killed before it had written all of its shard?",
        ),
        Suspect(
            lambda args: [(min(step for step, *_ in args[0][1]), ANY_VALUE)] * len(args),
            "this is the oldest checkpoint. Which is the newest that is complete?",
        ),
    ),
    thoughts={
        "values": "is the step right? A checkpoint is complete if all shards are there, with all their numbers. Then write down a line "
        "of numbers 0 to length - 1, with the killed job's shards above it and yours below. From which of its "
        "shards do your numbers come, and from where in each?",
        "read": "a shard of the killed job may have numbers for you and for others. Seek to the first of yours.",
        "reads": "the numbers that you need of one shard are next to each other: one seek, one read.",
        "sent": "each rank can read what it needs by itself.",
        "received": "each rank can read what it needs by itself.",
        "RankFailed": "a rank that was killed may have written no shard, or half of one: such a checkpoint isn't complete. And a shard may be "
        "nothing but zeros, of which there's nothing to read.",
    },
)

# --- saving ---------------------------------------------------------------------------------

NAME_OF_SAVE = "save_actions"
ACTIONS = "clear", "write", "sync", "barrier", "rename"
MOST_ACTIONS, MOST_BARRIERS = 10, 2  # of a rank


class Folder(NamedTuple):
    """What is in a folder: parts by rank, which of them are on the disk, and whether a part of the killed job is left."""

    parts: frozenset[int] = frozenset()
    on_disk: frozenset[int] = frozenset()
    leftover: bool = False


class Moment(NamedTuple):
    """Where a save is: how many of its actions each rank has done, and the two folders, None for one that isn't there."""

    done: tuple[int, ...]
    partial: Folder | None = Folder(leftover=True)
    complete: Folder | None = None


class Unsafe(Exception):
    """A crash now would do harm, or a rank can't go on.  thought: the key of a thought."""

    def __init__(self, words: str, thought: str) -> None:
        super().__init__(words)
        self.thought = thought


def after(moment: Moment, rank: int, action: str) -> Moment:
    """The moment after a rank's action.  Raises Unsafe for one that fails."""
    done = tuple(count + (r == rank) for r, count in enumerate(moment.done))
    partial, complete = moment.partial, moment.complete
    if action == "clear":
        partial = Folder()
    elif action == "write":
        if partial is None:
            raise Unsafe(f"rank {rank} can't write: the folder has been renamed.", "renamed")
        partial = partial._replace(parts=partial.parts | {rank}, on_disk=partial.on_disk - {rank})
    elif action == "sync":
        partial, complete = (
            folder and folder._replace(on_disk=folder.on_disk | folder.parts & {rank}) for folder in (partial, complete)
        )
    elif action == "rename":
        if partial is None or complete is not None:
            raise Unsafe(f"rank {rank} can't rename the folder: it has been renamed already.", "renamed")
        partial, complete = None, partial
    return Moment(done, partial, complete)


def next_moments(actions: list[list[str]], moment: Moment) -> Iterator[tuple[str, Moment]]:
    """Every step that can come next, in words, and the moment after it."""
    coming = [own[count] if count < len(own) else None for own, count in zip(actions, moment.done)]
    if all(action == "barrier" for action in coming):
        yield "all ranks: barrier", moment._replace(done=tuple(count + 1 for count in moment.done))
    for rank, action in enumerate(coming):
        if action not in (None, "barrier"):
            yield f"rank {rank}: {action}", after(moment, rank, action)


def check(moment: Moment, n: int) -> None:
    """Raise Unsafe if a crash at this moment leaves a checkpoint that looks complete and isn't."""
    folder = moment.complete
    if folder is None:
        return
    everyone = set(range(n))
    if missing := sorted(everyone - folder.parts):
        raise Unsafe(f"the complete folder has no part of {name_ranks(missing)}.", "missing")
    if lost := sorted(everyone - folder.on_disk):
        raise Unsafe(f"in the complete folder, the numbers of {name_ranks(lost)} aren't on the disk yet.", "disk")
    if folder.leftover:
        raise Unsafe(f"the complete folder has a part of rank {n} of the job that crashed.", "leftover")


def explore(actions: list[list[str]]) -> int:
    """The number of moments that a save by these actions can pass.  Raises Unsafe, with the shortest way to it."""
    n = len(actions)
    begin = Moment((0,) * n)
    ways, waiting = {begin: ()}, deque([begin])
    while waiting:
        moment = waiting.popleft()
        steps = ways[moment]
        try:
            check(moment, n)
            following = list(next_moments(actions, moment))
            if not following:
                stuck = [rank for rank, own in enumerate(actions) if moment.done[rank] < len(own)]
                if stuck:
                    raise Unsafe(f"{name_ranks(stuck)}: waiting in a barrier forever.", "barrier")
                if moment.complete is None:
                    raise Unsafe("all ranks are done, and no folder has been renamed.", "unnamed")
        except Unsafe as problem:
            way = "".join(f"\n  {step}" for step in steps) or " nothing"
            raise Unsafe(f"After{way}\n{problem}", problem.thought) from None
        for step, later in following:
            if later not in ways:
                ways[later] = (*steps, step)
                waiting.append(later)
    return len(ways)


def actions_of(result: Any, n: int) -> list[list[str]]:
    """What was returned, as actions of n ranks.  Raises Unsafe for anything else."""
    if not isinstance(result, (list, tuple)) or not all(isinstance(own, (list, tuple)) for own in result):
        words = f"It must return a list of lists, one for each rank, not {kind(result)}."
        raise Unsafe(words, "nothing" if result is None else "shape")
    if len(result) != n:
        raise Unsafe(f"It must return {n} lists, one for each rank, not {len(result)}.", "shape")
    for rank, own in enumerate(result):
        if len(own) > MOST_ACTIONS:
            raise Unsafe(f"Rank {rank} has {len(own)} actions; {MOST_ACTIONS} are enough.", "shape")
        for action in own:
            if not isinstance(action, str) or action not in ACTIONS:
                raise Unsafe(f"Rank {rank} has an action {text(action)}; there are {', '.join(ACTIONS)}.", "shape")
    return [list(own) for own in result]


def verdict_on_save(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
    (n,) = arguments
    ranks = f"{n} rank{'s' * (n > 1)}"
    try:
        actions = actions_of(result, n)
        explore(actions)
    except Unsafe as problem:
        words = f"{NAME_OF_SAVE} is wrong with {ranks}.\n{problem}"
        return Finding("values", words=words, thought=SAVE_THOUGHTS[problem.thought])
    most = max(own.count("barrier") for own in actions)
    if not budget or most <= MOST_BARRIERS:
        return None
    words = f"{NAME_OF_SAVE} is right, but slow with {ranks}: {most} barriers, and {MOST_BARRIERS} are enough."
    return Finding("budget", words=words, thought=SAVE_THOUGHTS["slow"])


def praise_save(case: Case, arguments: tuple, result: Any) -> str:
    (n,) = arguments
    count = explore(actions_of(result, n))
    return f"With {n} ranks, a save can be stopped at {count} moments, and none of them leaves half a checkpoint."


SAVE_THOUGHTS = {
    "nothing": "the function returns nothing. Printing a list doesn't return it.",
    "shape": 'it returns a list of lists of text, such as [["write", "rename"], ["write"]] for 2 ranks.',
    "missing": "was that part not written yet, or written and then cleared? A barrier makes every rank wait for the slowest.",
    "disk": "when does a rank know that its part is on the disk, and when do all know it of all?",
    "leftover": "the crashed job had one rank more. Who removes what it left, and what may no rank do before?",
    "renamed": "one rank renames the folder, once, when no rank has anything left to do in it.",
    "barrier": "a barrier waits for all ranks. How many barriers does each rank have?",
    "unnamed": "a checkpoint counts once its folder has its final name. Who gives it that?",
    "slow": "two things must not begin before all ranks are ready for them. Which?",
}
SAVE = Puzzle(
    NAME_OF_SAVE,
    tuple(Case(1, f"{n} rank{'s' * (n > 1)}", n) for n in (2, 3, 1, 4)),
    lambda d: (d.case.size,),
    verdict_on_save,
    praise_save,
    {"RankFailed": "try it by hand with the cell below, with 1 rank and with 4."},
)
TASKS = (COLUMNS, RESUME, SAVE)
