"""What a picture shows is what was captured: every number, colour, place and arrow, read back from the figure."""

import functools
import math
from itertools import groupby
from typing import Callable, NamedTuple

import pytest
import torch
import torch.distributed as dist

from collectives.draw.canvas import ANYBODYS, Words
from collectives.log.collectives import of
from helpers import RunError, Stuck, predict, run
from helpers.views.predict.blank_picture import blank
from tests import reading
from tests.corpus.collectives import CASES as CALLS
from tests.corpus.collectives import given, left, make
from tests.sampling import slow, spread

# --- every collective ---------------------------------------------------------------------

# Groups with all ranks of a world, and one without; in the largest, ranks 0 and 8 have one colour.
GROUPS = [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3, 4), tuple(range(9)), (1, 3, 4)]
COLUMNS = "abcdefghijklmnopqrstuvwxyz"
BELOW = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


class Want(NamedTuple):
    numbers: str
    letter: str  # instead of the numbers where there is no room
    source: int | str  # the rank it came from, or a kind of cell


def wanted(rank, column=0, whole=True):
    """A rank's two numbers; or its one for a member of the group."""
    numbers = f"{10 * rank} {10 * rank + 1}" if whole else f"{10 * rank + column}"
    return Want(numbers, f"{COLUMNS[column]}{rank}".translate(BELOW), rank)


UNDEFINED = Want("?", "?", "hollow")


class Case(NamedTuple):
    """A call, and what a rank's cells are to show: column -> Want, for rank r of group g with root q."""

    title: str
    call: Callable  # (r, g, q, handle of the group)
    before: Callable  # (r, g, q)
    after: Callable
    sign: str = ""


def case(op, reduce_op="SUM", sign="Σ", total=sum):
    """The case of an op, by what the table says of it."""
    row, parted = of(op), of(op).gives == "all"

    def value(rank, slot):
        return torch.tensor([10 * rank + slot] if parted else [10 * rank, 10 * rank + 1])

    def want(rank, slot):
        return wanted(rank, slot, not parted)

    def combined(parts):
        numbers = [map(int, part.numbers.split()) for part in parts]
        return Want(" ".join(str(total(each)) for each in zip(*numbers)), sign + parts[0].letter[0], "combined")

    def cells(shape, value, place):
        return dict(enumerate(value)) if isinstance(value, list) else {place if shape == "own" else 0: value}

    def before(r, g, q):
        mine = cells(row.gives, given(op, g, want)[g.index(r)], g.index(r))
        if row.root != "src" or r == q:
            return mine
        return {0: mine[0]._replace(source="hollow")} if row.in_place else {}

    def after(r, g, q):
        got = left(op, g, r, q, want, combined)
        if got is None:
            return {0: UNDEFINED} if row.in_place else {}
        return cells(row.gets, got, g.index(r))

    title = op + f" {reduce_op}" * row.reduces + {"src": " from {root}", "dst": " to {root}", None: ""}[row.root]
    how = getattr(dist.ReduceOp, reduce_op)
    return Case(
        title, lambda r, g, q, group: make(op, g, r, q, value, how, group), before, after, sign.strip() * row.reduces
    )


CASES = {op: case(op) for op in CALLS if of(op).gives} | {"all_reduce MAX": case("all_reduce", "MAX", "max ", max)}


@functools.cache
def collectives(members):
    """All of the cases and a barrier, one after another, on these ranks of as many as they need."""
    calls = [case.call for case in CASES.values()]

    def everything(root):
        rank, group = dist.get_rank(), dist.new_group(members)
        if rank in members:
            for call in calls:
                call(rank, members, root, group)
            dist.barrier(group)

    done = run(everything, root_of(members), world_size=max(members) + 1)
    assert len(done.calls) == len(CASES) + 1
    return done


def root_of(members):
    return members[len(members) // 2]


@functools.cache
def tints(members):
    """rank -> its colour, as it stands beside the rows."""
    return reading.stripes(reading.drawn(collectives(members).draw(0)))


def sharing(tints, rank):
    """The ranks that have this one's colour."""
    return tuple(other for other in tints if tints[other] == tints[rank])


def numbers(captured):
    """All numbers that were captured of one value."""
    tensors = captured if isinstance(captured, list) else [] if captured is None else [captured]
    return [number for tensor in tensors for number in tensor.flatten().tolist()]


NAMES = ["-".join(map(str, members)) for members in GROUPS]
every_case = pytest.mark.parametrize("name", CASES)
every_group = pytest.mark.parametrize("members", GROUPS, ids=NAMES)
case_and_group = spread(name=(list(CASES), list(CASES)), members=(GROUPS, NAMES))


@case_and_group
def test_cells_of_a_collective(name, members):
    case, done, root, k = CASES[name], collectives(members), root_of(members), list(CASES).index(name)
    picture = done.draw(k)
    assert reading.title(picture) == case.title.format(root=root)
    shapes = reading.drawn(picture)
    assert [(rank, star) for _, rank, star in reading.ranks(shapes)] == [
        (rank, rank == root and "{root}" in case.title) for rank in members
    ]
    assert reading.said(picture) == {}
    colours = reading.stripes(shapes)
    assert len(set(colours.values())) == min(len(members), 8)
    shown = reading.cells(picture)
    letters = any(cell.text[0] in COLUMNS for cell in shown)
    assert not letters or len(members) > 5, "there is room for numbers"
    assert [(c.side, c.rank, c.column, c.text, c.source) for c in shown] == [
        (
            side, rank, column, want.letter if letters else want.numbers,
            want.source if isinstance(want.source, str) else sharing(colours, want.source),
        )
        for side, wanted in (("before", case.before), ("after", case.after))
        for rank in members
        for column, want in sorted(wanted(rank, members, root).items())
    ]  # fmt: skip
    for rank in () if letters else members:
        (event,) = (e for e in done.calls[k] if e.rank == rank)
        for side, captured in (("before", event.before), ("after", event.after)):
            words = [c.text for c in shown if (c.side, c.rank) == (side, rank)]
            assert words == ["?"] or [int(word) for word in " ".join(words).split()] == numbers(captured)


@case_and_group
def test_lines_of_a_collective(name, members):
    """A line from each rank whose data somebody was left with; where numbers are combined, through the sign."""
    case, root = CASES[name], root_of(members)
    picture = collectives(members).draw(list(CASES).index(name))
    after = [(rank, want.source) for rank in members for want in case.after(rank, members, root).values()]
    if case.sign:
        getters = {rank for rank, source in after if source == "combined"}
        by_chunk = name.startswith("reduce_scatter") and len(members) <= 8  # then there is a sum for each chunk
        signs = "".join(f"Σ{COLUMNS[c]}" for c in range(len(members))) if by_chunk else case.sign
        assert reading.flow(picture) == (set(), signs, set(members), getters)
    else:
        many = len(after) > 64  # then one arrow stands for all
        assert reading.flow(picture) == (
            set() if many else {(source, rank) for rank, source in after},
            "",
            set(),
            set(),
        )


@pytest.mark.parametrize("members", GROUPS[1:4] + GROUPS[5:], ids=lambda members: "-".join(map(str, members)))
@pytest.mark.parametrize("name", [op for op in CALLS if of(op).gives and not of(op).in_place])
def test_lines_start_at_the_chunk(name, members):
    picture = collectives(members).draw(list(CASES).index(name))
    root, names = root_of(members), lambda rank, slot: frozenset({(rank, slot)})
    goes = set()  # from, column of its chunk, to
    for rank in members:
        got = left(name, members, rank, root, names, lambda parts: frozenset().union(*parts)) or frozenset()
        goes |= {(*slot, rank) for slot in (frozenset().union(*got) if isinstance(got, list) else got)}
    assert reading.chunks_sent(picture) == goes


@every_group
def test_a_barrier_has_a_lane_for_each_rank_and_opens(members):
    shapes = reading.drawn(collectives(members).draw(len(CASES)))
    rows = reading.ranks(shapes)
    assert [rank for _, rank, _ in rows] == list(members)
    (bar,) = (box for box in shapes.boxes if box.edge == reading.REDUCED)
    assert bar.fill == reading.REDUCED
    for y, rank, _ in rows:
        before, beyond = (s for s in shapes.strokes if abs(s.points[0][1] - y) < 1 and s.width == 6)
        assert before.tint == beyond.tint == tints(members)[rank] and bar.top < y < bar.bottom
        assert before.points[-1][0] < bar.left < beyond.points[0][0] < bar.right < beyond.points[-1][0]


@pytest.mark.parametrize("missing", [(), (2,)], ids=["all come", "one does not"])
def test_a_barrier_shows_when_each_rank_arrived(missing):
    """Two ranks arrive, the last a second later; the times are set, the rest is a run's."""

    def meet():
        if dist.get_rank() not in missing:
            dist.barrier()

    done = attempt(meet, 4)
    for (event,) in (events for events in done.events if events):
        event.start = {0: 10.0, 1: 10.5, 2: 10.5, 3: 11.0}[event.rank]
    picture = done.draw(0)
    shapes, tint = reading.drawn(picture), tints((0, 1, 2, 3, 4))
    (bar,) = (box for box in shapes.boxes if box.edge == reading.REDUCED)
    assert bar.fill == ("#ffffff" if missing else reading.REDUCED)
    arrivals = {}
    for y, rank, _ in reading.ranks(shapes):
        solid = [s for s in shapes.strokes if abs(s.points[0][1] - y) < 1 and s.width == 6]
        words = [w.text for w in shapes.words if abs(w.y - y) < 12 and w.x > solid[0].points[0][0]] if solid else []
        if rank in missing:
            assert solid == [] and "never called" in reading.said(picture)[rank]
            continue
        waits = {0: ["waits 1 s"], 1: ["waits 0.5 s"], 2: ["waits 0.5 s"], 3: []}[rank]
        assert words == waits + ["still waiting"] * bool(missing)
        assert {s.tint for s in solid} == {tint[rank]} and len(solid) == (1 if missing else 2)
        arrivals[rank] = bar.left - solid[0].points[-1][0]
    assert arrivals[0] - arrivals[3] == pytest.approx(2 * (arrivals[1] - arrivals[3]), abs=1)
    assert arrivals[0] > arrivals[1] > arrivals[3] > 0


def attempt(fn, n, **options):
    """What was recorded, of a run that may fail."""
    try:
        return run(fn, world_size=n, **options)
    except RunError as error:
        return error.run


# --- what is written in a cell ------------------------------------------------------------

# A tensor, what its cell says, and the small letters below.
WRITTEN = {
    "ints": (torch.tensor([3, -4]), "3 -4", ""),
    "float16": (torch.tensor([0.1, 65504], dtype=torch.float16), "0.09998 65504", ""),
    "bfloat16": (torch.tensor([0.1], dtype=torch.bfloat16), "0.1001", ""),
    "float64": (torch.tensor([1 / 3, 1e-9, 1e20], dtype=torch.float64), "0.3333 1e-09 1e+20", ""),
    "uint8": (torch.tensor([255, 0], dtype=torch.uint8), "255 0", ""),
    "bool": (torch.tensor([True, False]), "T F", ""),
    "no numbers at all": (torch.tensor([math.nan, math.inf, -math.inf]), "nan inf -inf", ""),
    "complex": (torch.tensor([1 + 2j, -0.5j]), "1 2 / 0 -0.5", ""),  # gloo is given the parts, as rows
    "scalar": (torch.tensor(3.5), "3.5", ""),
    "matrix": (torch.arange(6).reshape(2, 3), "0 1 2 / 3 4 5", ""),
    "not contiguous": (torch.arange(6).reshape(2, 3).t(), "0 3 / 1 4 / 2 5", ""),
    "three dimensions": (torch.arange(8).reshape(2, 2, 2), "0 1 / 2 3 / 4 5 / 6 7", ""),
    "more rows than are shown": (torch.arange(10).reshape(5, 2), "0 … 9", "[5, 2]"),
    "as many as are shown": (torch.arange(10, 22), " ".join(map(str, range(10, 22))), ""),
    "many numbers in a few rows": (torch.ones(4, 4), " / ".join(["1 1 1 1"] * 4), ""),
    "more than are shown": (torch.arange(18).reshape(3, 6), "0 … 17", "[3, 6]"),
    "too wide": (torch.arange(16) + 1000, "1000 … 1015", "[16]"),
    "fewer digits": (torch.arange(7) + 1 / 3, "0.33 1.33 2.33 3.33 4.33 5.33 6.33", ""),
    "summary": (torch.arange(5000.0), "0 … 4999", "[5000]"),
    "summary of a matrix": (torch.ones(50, 100, dtype=torch.bool), "T … T", "[50, 100]"),
    "empty": (torch.zeros(0), "∅", ""),
    "empty rows": (torch.zeros(0, 3), "∅", ""),
}


@functools.cache
def broadcasts():
    tensors = [tensor for tensor, *_ in WRITTEN.values()]

    def share():
        for tensor in tensors:
            dist.broadcast(tensor if dist.get_rank() == 0 else torch.zeros_like(tensor), src=0)

    return run(share, world_size=2)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_in_a_cell(name):
    _, text, note = WRITTEN[name]
    cells = reading.cells(broadcasts().draw(list(WRITTEN).index(name)))
    source = "empty" if text == "∅" else (0,)
    given, got = [c for c in cells if c.side == "before" and c.rank == 0], [c for c in cells if c.side == "after"]
    assert [(c.text, c.note, c.source) for c in given] == [(text, note, source)]
    assert [(c.rank, c.text, c.note, c.source) for c in got] == [(r, text, note, source) for r in (0, 1)]


def test_parts_of_large_tensors_have_letters_and_their_size():
    """A part of a summary has no numbers that are known."""

    def exchange(each):
        n = dist.get_world_size()
        dist.all_to_all_single(torch.zeros(n * each), torch.arange(1.0 * n * each))
        dist.all_gather(list(torch.zeros(n, each)), torch.arange(1.0 * each) + dist.get_rank())

    done = run(exchange, 5000, world_size=3)
    turned, gathered = (reading.cells(done.draw(k)) for k in range(2))
    assert {c.note for c in turned + gathered} == {"[5000]"}
    assert [(c.text, c.source) for c in turned if (c.side, c.rank) == ("before", 1)] == [
        (letter, (1,)) for letter in ("a₁", "b₁", "c₁")
    ]
    assert [(c.text, c.source) for c in turned if (c.side, c.rank) == ("after", 1)] == [
        (letter, (sender,)) for sender, letter in enumerate(("b₀", "b₁", "b₂"))
    ]
    assert [(c.text, c.source) for c in gathered if (c.side, c.rank) == ("after", 2)] == [
        (f"{sender} … {sender + 4999}", (sender,)) for sender in range(3)
    ]


@pytest.mark.parametrize("n, text", [(12, lambda column: COLUMNS[column]), pytest.param(26, lambda column: "", marks=pytest.mark.slow)])
def test_many_ranks_have_small_letters_and_then_none(n, text):
    def exchange():
        n = dist.get_world_size()
        dist.all_to_all_single(torch.zeros(n), torch.arange(n) + 100.0 * dist.get_rank())

    picture = run(exchange, world_size=n).draw(0)
    cells, colours = reading.cells(picture), reading.stripes(reading.drawn(picture))
    assert [(c.side, c.rank, c.column, c.text, c.source) for c in cells] == [
        (side, rank, column, text(column if side == "before" else rank), sharing(colours, rank if side == "before" else column))
        for side in ("before", "after")
        for rank in range(n)
        for column in range(n)
    ]  # fmt: skip
    assert picture.pixels[0] <= 900


def test_uneven_parts_too_long_to_show_are_as_long_as_their_sizes():
    sizes = [400, 4000, 8000]

    def exchange():
        mine = sizes[dist.get_rank()]
        dist.all_to_all_single(torch.zeros(sum(sizes)), torch.ones(3 * mine), sizes, [mine] * 3)

    cells = reading.cells(run(exchange, world_size=3).draw(0))
    for side in ("before", "after"):
        wide = [
            {round(cell.width) for cell in cells if cell.side == side and cell.source == (rank,)} for rank in range(3)
        ]
        assert [len(widths) for widths in wide] == [1, 1, 1]
        shortest, middle, longest = (widths.pop() for widths in wide)
        assert 2 * middle == pytest.approx(longest + shortest, rel=0.15) and shortest < 0.6 * longest


def test_uneven_parts_are_as_long_as_their_numbers():
    """Rank r sends (r + c) % 3 numbers to rank c, some of them none."""

    def exchange():
        rank, n = dist.get_rank(), dist.get_world_size()
        parts = [(rank + c) % n for c in range(n)]
        dist.all_to_all_single(torch.zeros(3), torch.arange(3.0) + 10 * rank, parts, parts)

    cells = reading.cells(run(exchange, world_size=3).draw(0))
    found = {
        (side, r): [(c.text, c.source) for c in cells if (c.side, c.rank) == (side, r)]
        for side in ("before", "after")
        for r in range(3)
    }
    none = ("∅", "empty")
    assert found == {
        ("before", 0): [none, ("0", (0,)), ("1 2", (0,))],
        ("before", 1): [("10", (1,)), ("11 12", (1,)), none],
        ("before", 2): [("20 21", (2,)), none, ("22", (2,))],
        ("after", 0): [none, ("10", (1,)), ("20 21", (2,))],
        ("after", 1): [("0", (0,)), ("11 12", (1,)), none],
        ("after", 2): [("1 2", (0,)), none, ("22", (2,))],
    }  # fmt: skip
    assert [c.column for c in cells] == [0, 1, 2] * 6
    widths = {len(c.text.split()): c.width for c in cells if c.width}
    assert all(c.width == pytest.approx(widths[1] * len(c.text.split())) for c in cells if c.width)


def test_calls_put_together_have_a_row_of_slots_for_each_tensor():
    def together():
        rank, n = dist.get_rank(), dist.get_world_size()
        small, large = torch.zeros(n, dtype=torch.int64), torch.zeros(2 * n, dtype=torch.int64)
        with dist.distributed_c10d._coalescing_manager():
            dist.all_gather_single(small, torch.tensor([rank]))
            dist.all_gather_single(large, torch.tensor([10 * rank, 10 * rank + 1]))
        with dist.distributed_c10d._coalescing_manager():
            dist.reduce_scatter_single(small[:1], torch.arange(n) + 10 * rank)
            dist.reduce_scatter_single(large[:2], torch.arange(2 * n) + 100 * rank)

    done = run(together, world_size=2)
    gathered, scattered = (
        [[(c.column, c.text, c.source) for c in reading.cells(done.draw(k)) if (c.side, c.rank) == (side, 1)] for side in ("before", "after")]
        for k in range(2)
    )  # fmt: skip
    assert gathered == [
        [(1, "1", (1,)), (3, "10 11", (1,))],
        [(0, "0", (0,)), (1, "1", (1,)), (2, "0 1", (0,)), (3, "10 11", (1,))],
    ]
    assert scattered == [
        [(0, "10", (1,)), (1, "11", (1,)), (2, "100 101", (1,)), (3, "102 103", (1,))],
        [(1, "12", "combined"), (3, "104 106", "combined")],
    ]


# --- what did not go as it should ---------------------------------------------------------


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "broadcast", "all_to_all_single"])
def test_a_rank_that_never_called(name):
    """The others, who all need it, have brought theirs, in their places, and were left with nothing."""
    case, group, root = CASES[name], (0, 1, 2, 3), 1
    call = case.call

    def all_but_one():
        if dist.get_rank() != 1:
            call(dist.get_rank(), group, root, None)

    picture = attempt(all_but_one, 4).draw(0)
    words = {rank: "still waiting" for rank in group} | {1: "never called"}
    assert reading.said(picture) == words
    cells = reading.cells(picture)
    want = [
        (rank, column, cell.numbers, cell.source if isinstance(cell.source, str) else (cell.source,))
        for rank in (0, 2, 3)
        for column, cell in sorted(case.before(rank, group, root).items())
    ]
    pitch = min((c.left for c in cells if c.left), default=0) / 2 if name == "all_gather" else 0
    place = [(c.rank, round(c.left / pitch) if pitch else c.column, c.text, c.source) for c in cells]
    assert place == want and {c.side for c in cells} <= {"before"}
    assert reading.flow(picture) == (set(), case.sign, {0, 2, 3} if case.sign else set(), set())


def test_ranks_that_disagree_each_have_their_own_call():
    picture = attempt(lambda: dist.broadcast(torch.zeros(2), src=dist.get_rank()), 3).draw(0)
    assert reading.title(picture) == "ranks disagree"
    assert reading.said(picture) == {rank: f"broadcast from {rank}" for rank in range(3)}
    assert {c.side for c in reading.cells(picture)} == {"before"}


def test_a_call_nobody_waited_for():
    def forget():
        x = torch.ones(2) * dist.get_rank()
        dist.all_reduce(x, async_op=True)
        dist.barrier()

    picture = run(forget, world_size=2).draw(0)
    assert reading.said(picture) == {0: "not waited for", 1: "not waited for"}


def test_memory_shared_by_several_outputs():
    """Every slot holds what came last, and only one of them rightly."""

    def alias():
        dist.all_gather([torch.zeros(1)] * 3, torch.tensor([1.0 * dist.get_rank()]))

    picture = run(alias, world_size=3, check=False).draw(0)
    got = [(c.text, c.source) for c in reading.cells(picture) if c.side == "after"]
    assert got == [("2", "unknown"), ("2", "unknown"), ("2", (2,))] * 3


def test_a_buffer_longer_than_what_was_sent():
    """Without checks gloo fills the beginning: only that is in the sender's colour."""

    def share():
        rank = dist.get_rank()
        dist.broadcast(torch.full((3 + rank,), 7.0 - 7 * rank), src=0)

    picture = run(share, world_size=2, check=False).draw(0)
    got = [(c.rank, c.text, c.source) for c in reading.cells(picture) if c.side == "after"]
    (rest,) = {text.removeprefix("7 7 7 ") for _, text, source in got if source == "hollow"}
    assert got == [(0, "7 7 7", (0,)), (1, f"7 7 7 {rest}", "hollow"), (1, "7 7 7", (0,))]
    assert reading.flow(picture)[0] == {(0, 0), (0, 1)}


def test_a_tensor_of_another_dtype_has_the_senders_bytes():
    """gloo moves bytes: float32 ones are 1065353216 to whoever takes them for int32."""

    def share():
        dist.broadcast(torch.ones(2) if dist.get_rank() == 0 else torch.zeros(2, dtype=torch.int32), src=0)

    done = run(share, world_size=2, check=False)
    picture = done.draw(0)
    got = [(c.rank, c.text, c.source) for c in reading.cells(picture) if c.side == "after"]
    assert got == [(0, "1 1", (0,)), (1, "1065353216 1065353216", (0,))]
    assert reading.flow(picture)[0] == {(0, 0), (0, 1)}
    assert "ranks 0, 1, float32 (0) and int32 (1) [2], 8 B per rank" in done.table()


OPS = ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]
DTYPES = {
    torch.int64: OPS,
    torch.uint8: OPS,
    torch.bool: OPS,
    torch.float16: [*OPS[:4], "AVG"],
    torch.float64: [*OPS[:4], "AVG"],
}
COMBINED = [(op, dtype) for dtype, ops in DTYPES.items() for op in ops]


@functools.cache
def reductions():
    """All of them on three ranks, whose numbers are such that each of them counts."""

    def everything(combined):
        for op, dtype in combined:
            if dtype == torch.bool:
                odd = op in ("PRODUCT", "MIN", "BAND")  # one rank decides
                x = torch.tensor([(dist.get_rank() == 2) != odd, not odd if dist.get_rank() else odd])
            else:
                x = torch.tensor(
                    [[12, 5], [10, 9], [9, 12]][dist.get_rank()] if op != "MAX" else [1, 2 + dist.get_rank()]
                )
            dist.all_reduce(x.to(dtype), getattr(dist.ReduceOp, op))

    return run(everything, COMBINED, world_size=3)


@pytest.mark.parametrize("op, dtype", COMBINED, ids=lambda part: str(part).removeprefix("torch."))
def test_only_what_combines_every_rank_is_dark(op, dtype):
    done = reductions()
    k = COMBINED.index((op, dtype))
    after = [c for c in reading.cells(done.draw(k)) if c.side == "after"]
    assert [c.source for c in after] == ["combined"] * 3
    event = done.events[1][k]
    kept = event.after
    try:
        for wrong in (done.events[0][k].before, kept * 1.5 + 1 if dtype.is_floating_point else kept ^ 1):
            if wrong.tolist() == kept.tolist():
                continue
            event.after = wrong
            shown = reading.cells(done.draw(k))
            assert [c.source for c in shown if c.side == "after"] == ["combined", "unknown", "combined"]
            assert reading.flow(done.draw(k))[3] == {0, 2}
    finally:
        event.after = kept


@every_case
def test_a_result_that_nobody_sent_is_white(name):
    """One number of one rank's result is changed: its slot is nobody's, and all the others are as before."""
    done, k, root = collectives((0, 1, 2)), list(CASES).index(name), 1
    before = reading.cells(done.draw(k))
    event = done.events[root][k]
    first = event.after[0] if isinstance(event.after, list) else event.after.flatten()
    kept = first[0].item()
    try:
        first[0] = 7
        after = reading.cells(done.draw(k))
    finally:
        first[0] = kept
    ((was, now),) = [(old, new) for old, new in zip(before, after) if old.text != new.text]
    assert (now.side, now.rank, now.text.split()[0], now.source) == ("after", root, "7", "unknown")
    assert [(c.side, c.rank, c.source) for c in after if c is not now] == [
        (c.side, c.rank, c.source) for c in before if c is not was
    ]


@pytest.mark.parametrize("name", ["reduce_scatter", "all_to_all_single"])
def test_what_a_rank_passed_in_is_not_what_it_got(name):
    """The output is another tensor than the input: a part of the input in it was sent by nobody."""
    done, k = collectives((0, 1, 2)), list(CASES).index(name)
    event = done.events[2][k]
    kept = event.after
    try:
        event.after = event.before[2] if isinstance(event.before, list) else event.before
        after = [(c.text, c.source) for c in reading.cells(done.draw(k)) if (c.side, c.rank) == ("after", 2)]
    finally:
        event.after = kept
    assert (
        after
        == {
            "reduce_scatter": [("22", "unknown")],
            "all_to_all_single": [("20", "unknown"), ("21", "unknown"), ("22", (2,))],
        }[name]
    )


# --- messages -----------------------------------------------------------------------------


def world(n):
    return tuple(range(n))


def ring():
    """Everybody's number goes all the way round."""
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.tensor([10 * rank])
    for _ in range(n - 1):
        got = torch.zeros_like(x)
        sending = dist.isend(x, (rank + 1) % n)
        dist.recv(got, (rank - 1) % n)
        sending.wait()
        x = got


@pytest.mark.parametrize("n", [2, 3, 5, *slow(9)])
def test_a_ring(n):
    """Each arrow has the number that went, in the colour of the rank that brought it; the ring closes at its ends."""
    picture, tint = run(ring, world_size=n).draw(), tints(world(n) if n > 2 else (0, 1))
    assert reading.title(picture) == f"{n * (n - 1)} messages in {n - 1} step{'s' * (n > 2)}"
    assert reading.messages(picture) == [
        reading.Message(
            step + 1, rank, (rank + 1) % n, "around" if closes else "arrives",
            [str(10 * ((rank - step) % n))] * (2 if closes else 1), tint[(rank - step) % n],
        )
        for step in range(n - 1)
        for rank in range(n)
        for closes in [rank == n - 1 and n > 2]
    ]  # fmt: skip
    assert reading.changes(picture) == {
        rank: [shade for shade, _ in groupby(tint[(rank - k) % n] for k in range(n))] for rank in range(n)
    }


def test_a_ring_of_equal_numbers_belongs_to_nobody():
    """From the second step on a rank has sent a one of its own, and was sent one: which it sends cannot be told."""

    def ones():
        rank, n = dist.get_rank(), dist.get_world_size()
        x = torch.ones(1)
        for _ in range(2):
            got = torch.zeros(1)
            sending = dist.isend(x, (rank + 1) % n)
            dist.recv(got, (rank - 1) % n)
            sending.wait()
            x = got

    found, tint = reading.messages(run(ones, world_size=3).draw()), tints((0, 1, 2))
    assert {(m.step, m.source, m.tint) for m in found} == {
        (step, rank, tint[rank] if step == 1 else ANYBODYS) for step in (1, 2) for rank in range(3)
    }


def test_what_arrives_in_a_step_is_not_the_source_of_what_is_sent_in_it():
    def swap():
        sending = dist.isend(torch.ones(1), 1 - dist.get_rank())
        dist.recv(torch.zeros(1), 1 - dist.get_rank())
        sending.wait()

    found, tint = reading.messages(run(swap, world_size=2).draw()), tints((0, 1))
    assert [(m.source, m.tint) for m in found] == [(0, tint[0]), (1, tint[1])]


def test_a_message_shows_what_arrived():
    """Rank 0 overwrites its tensor before rank 1 receives it."""

    def change_too_early():
        go, x = torch.zeros(1), torch.tensor([1, 2, 3])
        if dist.get_rank() == 0:
            sending = dist.isend(x, 1)
            x.fill_(-1)
            dist.send(go, 1, tag=1)  # from here on rank 1 receives
            sending.wait()
        else:
            dist.recv(go, 0, tag=1)
            dist.recv(x, 0)

    done = run(change_too_early, world_size=2, check=False)
    assert [m.values for m in reading.messages(done.draw())] == [["0"], ["-1 -1 -1"]]
    assert "1 2 3   int64 [3], 24 B    arrived as -1 -1 -1" in done.table()


def test_a_chain_colours_each_lane_when_the_number_arrives():
    def chain():
        rank, n = dist.get_rank(), dist.get_world_size()
        x = torch.arange(3.0) * (rank == 0)
        if rank > 0:
            dist.recv(x, rank - 1)
        if rank < n - 1:
            dist.send(x, rank + 1)

    n = 5
    picture, tint = run(chain, world_size=n).draw(), tints(world(n))[0]
    assert reading.messages(picture) == [
        reading.Message(rank + 1, rank, rank + 1, "arrives", ["0 1 2"], tint) for rank in range(n - 1)
    ]
    lanes = reading.lanes(picture)
    assert {lane.tint for lane in lanes.pop(0)} == {tint}
    for rank, (idle, *held) in lanes.items():  # dashed until the step in which the number arrives
        assert idle.tint not in tints(world(n)).values() and {lane.tint for lane in held} == {tint}
        assert idle.start == rank - 1 < idle.stop == held[0].start < rank and held[-1].stop == n - 1
    waits = [s for s in reading.drawn(picture).strokes if s.dashed]
    assert len(waits) == sum(range(n - 1)), "a rank waits through each step before its own"


def test_messages_that_cross_lanes_and_meet():
    """Two ranks at the ends change numbers, then two between them, who have two for each other."""

    def swap():
        rank = dist.get_rank()
        peer = 3 - rank
        works = [dist.isend(torch.tensor([10 * rank + k]), peer, tag=k) for k in range(2 - (rank in (0, 3)))]
        for k in range(len(works)):
            dist.recv(torch.tensor([0]), peer, tag=k)
        for work in works:
            work.wait()

    done, tint = run(swap, world_size=4), tints(world(5))
    found = reading.messages(done.draw())
    assert sorted((m.source, m.target, *m.values, m.tint, m.how) for m in found) == [
        (0, 3, "0", tint[0], "arrives"),
        (1, 2, "10", tint[1], "arrives"),
        (1, 2, "11", tint[1], "arrives"),
        (2, 1, "20", tint[2], "arrives"),
        (2, 1, "21", tint[2], "arrives"),
        (3, 0, "30", tint[3], "arrives"),
    ]


def test_what_is_written_on_a_message():
    cases = [
        (torch.tensor([1.5]), "1.5"),
        (torch.tensor([True, False]), "T F"),
        (torch.tensor([[1, 2], [3, 4]]), "1 2 3 4"),
        (torch.arange(5), "0 … 4"),
        (torch.arange(5000.0), "0 … 4999"),
        (torch.tensor([math.nan]), "nan"),
        (torch.arange(4.0) + 100000.5, "1e+05 …"),  # there is no room for more
    ]

    def send_all():
        for tensor, _ in cases:
            if dist.get_rank() == 0:
                dist.send(tensor, 1)
            else:
                dist.recv(torch.empty_like(tensor), 0)

    found = reading.messages(run(send_all, world_size=2).draw())
    assert [(m.step, m.source, m.target) for m in found] == [(k + 1, 0, 1) for k in range(len(cases))]
    assert [" ".join(m.values) for m in found] == [text for _, text in cases]


def test_a_group_has_lanes_for_its_ranks_only():
    def within():
        group = dist.new_group([1, 3])
        if dist.get_rank() == 1:
            dist.send(torch.tensor([7]), 3, group)
        elif dist.get_rank() == 3:
            dist.recv(torch.tensor([0]), 1, group)

    picture = run(within, world_size=4).draw()
    assert reading.title(picture) == "message 1 -> 3"
    assert list(reading.lanes(picture)) == [1, 3]
    assert reading.messages(picture) == [reading.Message(1, 1, 3, "arrives", ["7"], tints(world(5))[1])]


def test_messages_that_never_arrive():
    """One that nobody receives, one that nobody sends, and a recv from anyone at all."""

    def lose():
        rank = dist.get_rank()
        if rank == 0:
            dist.isend(torch.tensor([5]), 3)
        elif rank < 3:
            dist.recv(torch.tensor([0]), {1: 0, 2: None}[rank])

    picture, tint = attempt(lose, 4).draw(), tints(world(5))
    assert reading.title(picture) == "0 of 3 messages arrived"
    assert reading.messages(picture) == [
        reading.Message(1, None, 2, "expected", [], reading.SOFT),
        reading.Message(1, 0, 1, "expected", [], reading.SOFT),
        reading.Message(1, 0, 3, "lost", [], tint[0]),
    ]
    assert reading.said(picture) == {
        0: "send to 3: not waited for",
        1: "recv from 0: still waiting",
        2: "recv from anyone: still waiting",
    }
    lanes = reading.lanes(picture)
    assert {rank: lane[-1].stop for rank, lane in lanes.items()} == {0: 1, 1: 0.5, 2: 0.5, 3: 1}
    assert [lanes[rank][0].tint == tint[rank] for rank in range(4)] == [True, False, False, False]


def test_a_recv_from_anyone_has_an_arrow_from_whoever_sent():
    def collect():
        if dist.get_rank():
            dist.send(torch.tensor([dist.get_rank()]), 0)
        else:
            for _ in range(2):
                dist.recv(torch.tensor([0]))

    found = reading.messages(run(collect, world_size=3).draw())
    tint = tints((0, 1, 2))
    assert {(m.source, m.target, *m.values, m.tint, m.how) for m in found} == {
        (rank, 0, str(rank), tint[rank], "arrives") for rank in (1, 2)
    }


def test_a_crowded_step_has_all_its_arrows_and_no_numbers():
    def everybody_to_everybody():
        rank, n = dist.get_rank(), dist.get_world_size()
        others = [peer for peer in range(n) if peer != rank]
        works = [dist.isend(torch.tensor([rank]), peer) for peer in others]
        works += [dist.irecv(torch.tensor([0]), peer) for peer in others]
        for work in works:
            work.wait()

    n = 6
    picture, tint = run(everybody_to_everybody, world_size=n).draw(), tints(world(9))
    assert reading.messages(picture) == [
        reading.Message(1, a, b, "arrives", [], tint[a]) for a in range(n) for b in range(n) if a != b
    ]


def around(steps, stride):
    """A ring of 8 ranks whose neighbors are so many lanes apart."""
    rank, n = dist.get_rank(), dist.get_world_size()
    for k in range(steps):
        x, y = torch.tensor([100 * k + rank]), torch.tensor([0])
        work = dist.isend(x, (rank + stride) % n)
        dist.recv(y, (rank - stride) % n)
        work.wait()


@pytest.mark.parametrize("steps, stride, said", [(3, 3, True), (14, 1, True), (14, 3, False)])
def test_values_are_left_out_where_they_would_cover_arrows_that_cross_lanes(steps, stride, said):
    picture = run(around, steps, stride, world_size=8).draw()
    assert [bool(message.values) for message in reading.messages(picture)] == [said] * 8 * steps
    assert any("see the table" in word.text for word in reading.drawn(picture).words) != said


def ping_pong(times):
    rank = dist.get_rank()
    x = torch.tensor([0])
    for k in range(times):
        if rank == k % 2:
            dist.send(x + k, 1 - rank)
        else:
            dist.recv(x, 1 - rank)
            x.zero_()


@pytest.mark.parametrize("count", [40, *slow(403)])
def test_many_steps_go_on_below_and_too_many_are_counted(count):
    picture, tint = run(ping_pong, count, world_size=2).draw(), tints((0, 1))
    shown = min(count, 400)
    assert reading.title(picture) == (f"{count} messages in {count} steps" if shown == count else f"{count} messages")
    more = [word.text for word in reading.drawn(picture).words if "more" in word.text]
    assert more == ([] if shown == count else [f"and {count - shown} more messages"])
    assert reading.messages(picture) == [
        reading.Message(k + 1, k % 2, 1 - k % 2, "arrives", [str(k)], tint[k % 2]) for k in range(shown)
    ]
    lanes = reading.lanes(picture)
    assert reading.changes(picture)[0] == [tint[k % 2] for k in range(shown)]  # its own, and what comes back
    assert lanes[0][-1].stop == pytest.approx(shown) and picture.pixels[0] <= 900


# --- who waits for whom -------------------------------------------------------------------


def stuck(fn, n):
    with pytest.raises(Stuck) as caught:
        run(fn, world_size=n)
    return caught.value


def test_who_waits_for_whom():
    """0 waits for 1, who waits for 2, who waits for 0; 3 waits for 4, who has returned."""

    def wait():
        rank = dist.get_rank()
        if rank < 4:
            dist.recv(torch.zeros(1), {0: 1, 1: 2, 2: 0, 3: 4}[rank])

    error = stuck(wait, 5)
    standing, arrows = reading.waits(error.draw())
    assert arrows == {(0, 1), (1, 2), (2, 0), (3, 4)} == {(r, q) for r, waits in error.waits.items() for q in waits}
    tint = tints(world(5))
    assert standing == {rank: (error.standing[rank], tint[rank]) for rank in range(4)} | {
        4: ("returned before any call", reading.TRAY)
    }
    assert standing[1][0] == "waiting in recv #1 from 2"
    assert error.draw().text == "0 waits for 1; 1 waits for 2; 2 waits for 0; 3 waits for 4"


def test_everybody_who_is_missing_is_waited_for():
    """Also where the backend would let a rank wait for some of them first, as gloo's broadcast does."""
    error = stuck(lambda: dist.get_rank() == 0 and dist.broadcast(torch.ones(1), 0) or None, 4)
    assert reading.waits(error.draw())[1] == {(0, 1), (0, 2), (0, 3)}


def test_only_so_many_ranks_are_drawn_waiting():
    error = stuck(
        lambda: dist.get_rank() in (0, 17) or dist.recv(torch.zeros(1), 17 if dist.get_rank() == 1 else 0), 18
    )
    standing, arrows = reading.waits(error.draw())
    assert list(standing) == list(range(16)) and arrows == {(rank, 0) for rank in range(2, 16)}
    assert "and 2 more ranks" in [word.text for word in reading.drawn(error.draw()).words]
    assert "1 waits for 17" in error.draw().text and "16 waits for 0" in error.draw().text


# --- predictions --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, options, brought, cells",
    [
        ("all_reduce", {}, {r: [(f"{10 * r}", (r,)), (f"{10 * r + 1}", (r,))] for r in range(3)}, (2, 2, 2)),
        ("all_gather", {"rank": 1}, {r: [(f"{10 * r}", (r,)), (f"{10 * r + 1}", (r,))] for r in range(3)}, (0, 6, 0)),
        (
            "all_to_all_single",
            {"ask": "chunks"},
            {r: [(f"{c}{r}".translate(BELOW), (r,)) for c in "abc"] for r in range(3)},
            (3, 3, 3),
        ),
        ("scatter", {}, {0: [], 1: [("10", (1,)), ("11", (1,)), ("12", (1,))], 2: []}, (1, 1, 1)),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_a_prediction_shows_what_is_brought_and_asks_for_the_rest(name, options, brought, cells):
    call = CASES[name].call
    question = predict(lambda: call(dist.get_rank(), (0, 1, 2), 1, None) and None, world_size=3, **options).question
    picture = blank(question)
    assert reading.asked(picture) == {rank: (brought[rank], cells[rank]) for rank in range(3)}


# --- which of a run's calls a panel shows -------------------------------------------------


def test_a_panel_says_which_call_it_is_and_calls_that_are_alike_share_one():
    def three_alike_and_one():
        x = torch.ones(2)
        for _ in range(3):
            dist.all_reduce(x.clone())
        dist.all_reduce(2 * x)

    def once():
        dist.all_reduce(torch.ones(2))

    def beside(picture):
        return [a.words for a in picture.artists if isinstance(a, Words) and a.words.startswith("call")]

    done = run(three_alike_and_one, world_size=2)
    line = done.events[0][0].line.number
    assert beside(done.draw(slice(4))) == [
        f"calls 1-3 of 4, alike · three_alike_and_one, line {line}",
        f"call 4 of 4 · three_alike_and_one, line {line + 1}",
    ]
    assert done.draw(2).alt == "Picture: all_reduce SUM, ranks 0, 1, before and after"
    assert beside(done.draw(2)) == [f"call 3 of 4 · three_alike_and_one, line {line}"]
    assert beside(run(once, world_size=2).draw()) == []
