"""As answers.py, for the exercises whose function is called once: a schedule, and a number.

An answer is also cut out with all that it uses (cells.cell_of), so the module imports nothing but what such a cell has.
"""

from math import ceil, log2

from collectives.algorithms import Schedule, add, copy

# --- 09 faster_all_reduce -----------------------------------------------------------------


def lay(n, steps, chunks=None):
    return Schedule("all_reduce", n, steps, chunks or n)


def at(n, node, m, i):
    return m * node + i


def inside_at_once(n, node, adds):
    """Every rank sends every other one of its node a piece: its own (copied), or the other's (added)."""
    nodes = n // node
    return [
        (add if adds else copy)(
            at(n, node, m, i), at(n, node, m, j), range((j if adds else i) * nodes, ((j if adds else i) + 1) * nodes)
        )
        for m in range(nodes)
        for i in range(node)
        for j in range(node)
        if i != j
    ]


def inside_by_ring(n, node, adds):
    nodes = n // node
    return [
        [
            (add if adds else copy)(
                at(n, node, m, i),
                at(n, node, m, (i + 1) % node),
                [p * nodes + k for p in [(i - step - adds) % node] for k in range(nodes)],
            )
            for m in range(nodes)
            for i in range(node)
        ]
        for step in range(node - 1)
    ]


def between_at_once(n, node, adds):
    nodes = n // node
    return [
        (add if adds else copy)(at(n, node, m, i), at(n, node, k, i), i * nodes + (k if adds else m))
        for m in range(nodes)
        for i in range(node)
        for k in range(nodes)
        if k != m
    ]


def between_by_doubling(n, node):
    """Whole pieces: doubling where the nodes are a power of two, with the rest folded in."""
    nodes = n // node
    p = 1 << nodes.bit_length() - 1

    def pieces(pairs, how):
        return [
            how(at(n, node, a, i), at(n, node, b, i), range(i * nodes, (i + 1) * nodes))
            for a, b in pairs
            for i in range(node)
        ]

    steps = [pieces([(m, m - p) for m in range(p, nodes)], add)] if p < nodes else []
    d = 1
    while d < p:
        steps.append(pieces([(m, m ^ d) for m in range(p)], add))
        d *= 2
    return steps + ([pieces([(m - p, m) for m in range(p, nodes)], copy)] if p < nodes else [])


def four_steps(n, node):
    steps = [inside_at_once(n, node, True), between_at_once(n, node, True)]
    return lay(n, steps + [between_at_once(n, node, False), inside_at_once(n, node, False)])


def doubling_between(n, node):
    first, last = inside_at_once(n, node, True), inside_at_once(n, node, False)
    return lay(n, [first, *between_by_doubling(n, node), last])


def rings_inside_at_once_between(n, node):
    return lay(n, [
        *inside_by_ring(n, node, True), between_at_once(n, node, True), between_at_once(n, node, False),
        *inside_by_ring(n, node, False),
    ])  # fmt: skip


def all_in_four_with_an_empty_step(n, node):
    s = four_steps(n, node)
    return lay(n, [step for step in s.steps if step] + [[]])


def flat_ring(n, node):
    up = [[add(r, (r + 1) % n, (r - k - 1) % n) for r in range(n)] for k in range(n - 1)]
    down = [[copy(r, (r + 1) % n, (r - k) % n) for r in range(n)] for k in range(n - 1)]
    return lay(n, up + down)


def two_rings(n, node):
    nodes = n // node
    between = [
        [
            (add if half == 0 else copy)(
                at(n, node, m, i), at(n, node, (m + 1) % nodes, i), i * nodes + (m - k - (half == 0)) % nodes
            )
            for m in range(nodes)
            for i in range(node)
        ]
        for half in (0, 1)
        for k in range(nodes - 1)
    ]
    return lay(n, [*inside_by_ring(n, node, True), *between, *inside_by_ring(n, node, False)])


def all_to_all_ranks(n, node):
    """Two steps, without a thought for nodes."""
    up = [add(r, q, q) for r in range(n) for q in range(n) if q != r]
    down = [copy(r, q, r) for r in range(n) for q in range(n) if q != r]
    return lay(n, [up, down])


def leaders(n, node):
    """The first rank of each node does it all, with whole buffers."""
    nodes = n // node
    up = [add(m * node + i, m * node, 0) for m in range(nodes) for i in range(1, node)]
    across = [add(a * node, b * node, 0) for a in range(nodes) for b in range(nodes) if a != b]
    down = [copy(m * node, m * node + i, 0) for m in range(nodes) for i in range(1, node)]
    return lay(n, [up, across, down], 1)


def no_way_back(n, node):
    return lay(n, [inside_at_once(n, node, True), between_at_once(n, node, True)])


def only_inside(n, node):
    return lay(n, [inside_at_once(n, node, True), inside_at_once(n, node, False)])


def adds_all_the_way(n, node):
    steps = [inside_at_once(n, node, True), between_at_once(n, node, True)]
    return lay(n, steps + [between_at_once(n, node, True), inside_at_once(n, node, False)])


def ring_of_copies(n, node):
    up = [[copy(r, (r + 1) % n, (r - k - 1) % n) for r in range(n)] for k in range(n - 1)]
    return lay(n, up + flat_ring(n, node).steps[n - 1 :])


def everybody_at_once(n, node):
    """All send their whole buffer to all others, twice."""
    every = [add(r, q, 0) for r in range(n) for q in range(n) if q != r]
    return lay(n, [every, every], 1)


def ring_off_by_one(n, node):
    up = [[add(r, (r + 1) % n, (r - k) % n) for r in range(n)] for k in range(n - 1)]
    down = [[copy(r, (r + 1) % n, (r - k) % n) for r in range(n)] for k in range(n - 1)]
    return lay(n, up + down)


def both_halves_in_one_step(n, node):
    s = four_steps(n, node)
    inside, between, back, complete = s.steps
    return lay(n, [inside, between, back + complete])


def pairs_of_nodes_only(n, node):
    """Doubling without the fold: 1, 2, 4 nodes."""
    nodes, d, steps = n // node, 1, []
    while d < nodes:
        steps.append([
            add(at(n, node, m, i), at(n, node, m ^ d, i), range(i * nodes, (i + 1) * nodes))
            for m in range(nodes) for i in range(node) if m ^ d < nodes
        ])  # fmt: skip
        d *= 2
    return lay(n, [inside_at_once(n, node, True), *steps, inside_at_once(n, node, False)])


def fixed_size(n, node):
    return four_steps(4, 2)


def draws_it(n, node):
    print(four_steps(n, node))


def steps_only(n, node):
    return four_steps(n, node).steps


def sends_to_itself(n, node):
    return lay(n, [[add(r, r, r) for r in range(n)]])


def relaid(s, change, chunks=None):
    """The same schedule with each message's chunks replaced."""
    steps = [[(add if m.adds else copy)(m.source, m.target, change(m.chunks)) for m in step] for step in s.steps]
    return lay(s.world_size, steps, chunks or s.chunks)


def chunks_named_backwards(n, node):
    return relaid(four_steps(n, node), lambda chunks: [n - 1 - c for c in chunks])


def twice_as_many_chunks(n, node):
    return relaid(four_steps(n, node), lambda chunks: [k for c in chunks for k in (2 * c, 2 * c + 1)], 2 * n)


def messages_in_another_order(n, node):
    return lay(n, [step[::-1] for step in doubling_between(n, node).steps])


def rings_with_chunks_turned(n, node):
    return relaid(rings_inside_at_once_between(n, node), lambda chunks: [(c + 1) % n for c in chunks])


def steps_as_tuples(n, node):
    return lay(n, tuple(tuple(step) for step in four_steps(n, node).steps))


def last_step_missing(n, node):
    return lay(n, four_steps(n, node).steps[:-1])


def ends_exchanged(n, node):
    first, between, back, last = four_steps(n, node).steps
    return lay(n, [between, first, back, last])


def a_chunk_too_few(n, node):
    return lay(n, four_steps(n, node).steps, n - 1)


def a_rank_too_many(n, node):
    return lay(n, [*four_steps(n, node).steps, [copy(0, n, 0)]])


def in_a_tuple(n, node):
    return (four_steps(n, node),)


def called_a_reduce(n, node):
    return Schedule("reduce", n, four_steps(n, node).steps, n)


def adds_where_it_is_complete(n, node):
    *steps, last = four_steps(n, node).steps
    return lay(n, [*steps, [add(m.source, m.target, m.chunks) for m in last]])


# --- 10 crossover -------------------------------------------------------------------------


def closed_form(n, alpha, beta):
    up = (n - 1).bit_length()
    return alpha / beta * (n - 1 - up) / (up - (n - 1) / n)


def by_halving_an_interval(n, alpha, beta):
    def ring_wins(nbytes):
        up = ceil(log2(n))
        return 2 * (n - 1) * (alpha + nbytes / n * beta) <= 2 * up * (alpha + nbytes * beta)

    low, high = 0.0, 1e15
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if ring_wins(middle) else (middle, high)
    return high


def whole_bytes(n, alpha, beta):
    up = len(range(1, n)).bit_length()
    return round((2 * (n - 1) - 2 * up) * alpha / ((2 * up - 2 * (n - 1) / n) * beta))


def seconds_of(n, nbytes, alpha, beta):
    """Of the ring and of the tree."""
    return 2 * (n - 1) * (alpha + nbytes / n * beta), 2 * ceil(log2(n)) * (alpha + nbytes * beta)


def where_the_lines_meet(n, alpha, beta):
    (ring, tree), (ring_more, tree_more) = seconds_of(n, 0, alpha, beta), seconds_of(n, 1e9, alpha, beta)
    return max(0.0, 1e9 * (ring - tree) / ((tree_more - tree) - (ring_more - ring)))


def by_exact_fractions(n, alpha, beta):
    from fractions import Fraction

    up, a, b = ceil(log2(n)), Fraction(alpha), Fraction(beta)
    return float(a * (n - 1 - up) / (b * (up - Fraction(n - 1, n))))


def by_doubling_until_the_ring_wins(n, alpha, beta):
    high = 1.0
    while (times := seconds_of(n, high, alpha, beta))[0] > times[1]:
        high *= 2
    low = 0.0
    for _ in range(100):
        middle = (low + high) / 2
        ring, tree = seconds_of(n, middle, alpha, beta)
        low, high = (middle, high) if ring > tree else (low, middle)
    return high


def with_tensors(n, alpha, beta):
    import torch

    up = (n - 1).bit_length()
    lines = torch.tensor([[(n - 1) / n - up]], dtype=torch.float64)
    right = torch.tensor([[(up - n + 1) * alpha / beta]], dtype=torch.float64)
    return torch.linalg.solve(lines, right).item()


def nothing_for_two(n, alpha, beta):
    return 0 if n <= 3 else closed_form(n, alpha, beta)


def in_kibibytes(n, alpha, beta):
    return closed_form(n, alpha, beta) / 1024


def below_nothing(n, alpha, beta):
    return -closed_form(n, alpha, beta)


def as_words(n, alpha, beta):
    return f"{closed_form(n, alpha, beta):g} bytes"


def alpha_over_beta(n, alpha, beta):
    return alpha / beta


def as_a_pair(n, alpha, beta):
    return closed_form(n, alpha, beta), "bytes"


def for_one_rank_more(n, alpha, beta):
    return closed_form(n + 1, alpha, beta)


def one_message(n, alpha, beta):
    return alpha / beta


def meet(n, alpha, beta, ring_steps, ring_buffers, tree_steps, tree_buffers):
    return alpha / beta * (ring_steps - tree_steps) / (tree_buffers - ring_buffers)


def unchunked(n, alpha, beta):
    up = ceil(log2(n))
    return meet(n, alpha, beta, 2 * (n - 1), 2 * (n - 1), 2 * up, 2 * up) if n > 3 else 0


def ring_once(n, alpha, beta):
    up = ceil(log2(n))
    return meet(n, alpha, beta, n - 1, (n - 1) / n, 2 * up, 2 * up)


def tree_once(n, alpha, beta):
    up = ceil(log2(n))
    return meet(n, alpha, beta, 2 * (n - 1), 2 * (n - 1) / n, up, up) if n > 2 else 0


def no_rounding(n, alpha, beta):
    return meet(n, alpha, beta, 2 * (n - 1), 2 * (n - 1) / n, 2 * log2(n), 2 * log2(n)) if n > 2 else 0


def rounded_down(n, alpha, beta):
    down = n.bit_length() - 1
    return meet(n, alpha, beta, 2 * (n - 1), 2 * (n - 1) / n, 2 * down, 2 * down) if n > 3 else 0


def in_numbers(n, alpha, beta):
    return closed_form(n, alpha, beta) / 4


def beta_as_bandwidth(n, alpha, beta):
    return closed_form(n, alpha, 1 / beta)


def prints_it(n, alpha, beta):
    print(closed_form(n, alpha, beta))


def next_power_of_two(n, alpha, beta):
    nbytes = 1
    while nbytes < closed_form(n, alpha, beta):
        nbytes *= 2
    return nbytes


def in_paragraphs(n, alpha, beta):
    """Rounded to 16 bytes."""
    return round(closed_form(n, alpha, beta) / 16) * 16


def divides_by_nothing(n, alpha, beta):
    return alpha / beta / (n - 4)


# --- 14 schedule_within -------------------------------------------------------------------


def as_it_comes(ranks, microbatches, limit, prefer="B", split=False, room=lambda limit, ranks, rank: limit):
    """Plays the step through: whoever is free does what can be done."""
    rows, free, ended, now = [[] for _ in range(ranks)], [0] * ranks, {}, 0
    count = [dict.fromkeys("FBW", 0) for _ in range(ranks)]
    back = "I" if split else "B"

    def there(kind, rank, k):
        return ended.get((kind, rank, k), now + 1) <= now

    while any(c["B"] < microbatches or split and c["W"] < microbatches for c in count):
        for rank, c in enumerate(count):
            if free[rank] > now:
                continue
            last, held = rank == ranks - 1, c["F"] - c["W" if split else "B"]
            can = {
                "B": c["B"] < c["F"] and (there("F", rank, c["B"]) if last else there("B", rank + 1, c["B"])),
                "F": c["F"] < microbatches
                and held < room(limit, ranks, rank)
                and (rank == 0 or there("F", rank - 1, c["F"])),
                "W": split and c["W"] < c["B"] and there("B", rank, c["W"]),
            }
            for kind in (prefer, *"BFW"):
                if can[kind]:
                    rows[rank].append(f"{back if kind == 'B' else kind}{c[kind]}")
                    free[rank] = ended[kind, rank, c[kind]] = now + (2 if kind == "B" and not split else 1)
                    c[kind] += 1
                    break
        now += 1
    return rows


def backward_first(ranks, microbatches, limit):
    return as_it_comes(ranks, microbatches, limit)


def forward_first(ranks, microbatches, limit):
    return as_it_comes(ranks, microbatches, limit, "F", room=lambda limit, ranks, rank: min(limit, ranks - rank))


def in_halves(ranks, microbatches, limit):
    return as_it_comes(ranks, microbatches, limit, split=True)


def as_tuples(ranks, microbatches, limit):
    return tuple(tuple(row) for row in as_it_comes(ranks, microbatches, limit))


def earliest_first(ranks, microbatches, limit):
    """Without a clock: of all that can be done, always what can start first."""
    rows, free, ended = [[] for _ in range(ranks)], [0] * ranks, {}

    def startable():
        for rank, row in enumerate(rows):
            f, b = (sum(what[0] == kind for what in row) for kind in "FB")
            came = 0 if rank == 0 else ended.get(("F", rank - 1, f))
            back = ended.get(("B", rank + 1, b) if rank < ranks - 1 else ("F", rank, b))
            if b < f and back is not None:
                yield max(free[rank], back), "B", rank, b
            if f < microbatches and f - b < limit and came is not None:
                yield max(free[rank], came), "F", rank, f

    for _ in range(2 * ranks * microbatches):
        start, kind, rank, k = min(startable())
        rows[rank].append(f"{kind}{k}")
        free[rank] = ended[kind, rank, k] = start + (1 if kind == "F" else 2)
    return rows


def in_waves(ranks, microbatches, limit, drop=False):
    row = []
    for k in range(0, microbatches - drop * (microbatches % limit), limit):
        group = range(k, min(k + limit, microbatches))
        row += [f"F{j}" for j in group] + [f"B{j}" for j in group]
    return [row] * ranks


def waves_that_drop_the_rest(ranks, microbatches, limit):
    return in_waves(ranks, microbatches, limit, drop=microbatches > limit)


def whole_batch(ranks, microbatches, limit):
    return in_waves(ranks, microbatches, microbatches)


def turns(ranks, microbatches, most, drain=True):
    rows = []
    for rank in range(ranks):
        warm = min(most(rank) - 1, microbatches)
        row = [f"F{k}" for k in range(warm)]
        for k in range(microbatches - warm):
            row += [f"F{warm + k}", f"B{k}"]
        rows.append(row + [f"B{k}" for k in range(microbatches - warm, microbatches)] * drain)
    return rows


def turns_without_limit(ranks, microbatches, limit):
    return turns(ranks, microbatches, lambda rank: ranks - rank)


def turns_within_limit(ranks, microbatches, limit):
    return turns(ranks, microbatches, lambda rank: min(limit, ranks - rank))


def one_too_many(ranks, microbatches, limit):
    return turns(ranks, microbatches, lambda rank: min(limit + 1, ranks - rank))


def last_backwards_forgotten(ranks, microbatches, limit):
    return turns(ranks, microbatches, lambda rank: min(limit, ranks - rank), drain=False)


def one_by_one(ranks, microbatches, limit):
    return in_waves(ranks, microbatches, 1)


def only_the_first_waits(ranks, microbatches, limit):
    """Rank 0 in waves of one; the others expect two forwards before they go back."""
    return [in_waves(1, microbatches, 1)[0], *in_waves(ranks - 1, microbatches, min(2, limit))]


def fast_where_published(ranks, microbatches, limit):
    """From a table of the statement's situations, and in waves elsewhere."""
    published = (ranks, microbatches, limit) in ((4, 8, 4), (4, 8, 3), (8, 16, 4))
    return (as_it_comes if published else in_waves)(ranks, microbatches, limit)


def fills_up_at_first(ranks, microbatches, limit):
    """Forwards for all the room there is, even if there are fewer microbatches."""
    rows = [[f"F{k}" for k in range(min(limit, ranks - rank))] for rank in range(ranks)]
    for row in rows:
        first = len(row)
        for k in range(microbatches):
            row += [f"B{k}"] + [f"F{k + first}"] * (k + first < microbatches)
    return rows


def own_row(ranks, microbatches, limit):
    return in_waves(ranks, microbatches, limit)[0]


def numbers_only(ranks, microbatches, limit):
    return [[k for k in range(microbatches)] for _ in range(ranks)]


def shows_it(ranks, microbatches, limit):
    print(in_waves(ranks, microbatches, limit))


def back_before_forth(ranks, microbatches, limit):
    return [[f"{kind}{k}" for k in range(microbatches) for kind in "BF"] for _ in range(ranks)]


def halves_without_weights(ranks, microbatches, limit):
    return [[what.replace("B", "I") for what in row] for row in in_waves(ranks, microbatches, limit)]


def one_microbatch_more(ranks, microbatches, limit):
    return in_waves(ranks, microbatches + 1, limit)


# --- 18 divide ----------------------------------------------------------------------------


def held(parameters, layers, kept, data, tensor, pipeline, shard):
    """Bytes on a GPU."""
    whole = (16, 4, 2, 0)[shard]
    return parameters / (tensor * pipeline) * (whole + (16 - whole) / data) + kept / tensor * (
        1 + (pipeline - 1) / layers
    )


def ways(layers, gpus, batch):
    """Divisions that are possible, those with few tensor ranks and stages first."""
    for tensor in (1, 2, 4, 8):
        for pipeline in (1, 2, 4, 8, 16, 32):
            data = gpus // (tensor * pipeline)
            staged = (
                pipeline == 1
                or data
                and batch // data % pipeline == 0
                and min(layers % pipeline, (layers + 2) % pipeline) == 0
            )
            for shard in (0, 1, 2, 3) if data and batch % data == 0 and staged else ():
                yield data, tensor, pipeline, shard


def hides(data, tensor, pipeline, shard):
    return shard < 3 or pipeline == 1 and tensor < 8 and data <= 512


def first_that_fits(parameters, layers, kept, memory, gpus, batch, wanted=hides):
    """In the chapter's order."""
    fitting = [way for way in ways(layers, gpus, batch) if held(parameters, layers, kept, *way) <= memory]
    return next((way for way in fitting if wanted(*way)), fitting[0])


def least_wait(parameters, layers, kept, memory, gpus, batch):
    """By what each kind of parallelism costs, roughly, as a share of the step."""

    def waits(data, tensor, pipeline, shard):
        bubble = (pipeline - 1) * pipeline / layers / (batch // data) if pipeline > 1 else 0
        gathering = 0 if hides(data, tensor, pipeline, shard) else 0.5
        return 0.03 * (tensor - 1) + bubble + gathering + 0.01 * (shard == 0)

    fitting = [way for way in ways(layers, gpus, batch) if held(parameters, layers, kept, *way) <= memory]
    return list(min(fitting, key=lambda way: waits(*way)))


def shards_everything(parameters, layers, kept, memory, gpus, batch):
    return gpus, 1, 1, 3


def one_gpu(parameters, layers, kept, memory, gpus, batch):
    return 1, 1, 1, 0


def copies_everywhere(parameters, layers, kept, memory, gpus, batch):
    return gpus, 1, 1, 0


def a_node_shares_everything(parameters, layers, kept, memory, gpus, batch):
    return gpus // 8, 8, 1, 3


def speed_forgotten(parameters, layers, kept, memory, gpus, batch):
    return first_that_fits(parameters, layers, kept, memory, gpus, batch, lambda *way: True)


def long_rings_forgotten(parameters, layers, kept, memory, gpus, batch):
    def wanted(data, tensor, pipeline, shard):
        return shard < 3 or pipeline == 1 and tensor < 8

    return first_that_fits(parameters, layers, kept, memory, gpus, batch, wanted)


def most_stages(parameters, layers, kept, memory, gpus, batch):
    fitting = [way for way in ways(layers, gpus, batch) if held(parameters, layers, kept, *way) <= memory]
    return max(fitting, key=lambda way: (way[2], -way[1]))


def cards_forgotten(parameters, layers, kept, memory, gpus, batch):
    def wanted(data, tensor, pipeline, shard):
        return shard < 3 or pipeline == 1 and data <= 512

    return first_that_fits(parameters, layers, kept, memory, gpus, batch, wanted)


def activations_forgotten(parameters, layers, kept, memory, gpus, batch):
    return first_that_fits(parameters, layers, 0, memory, gpus, batch)


def batch_forgotten(parameters, layers, kept, memory, gpus, batch):
    return first_that_fits(parameters, layers, kept, memory, gpus, gpus)


def stages_cut_activations(parameters, layers, kept, memory, gpus, batch):
    """As if a stage kept a single sequence."""
    for data, tensor, pipeline, shard in ways(layers, gpus, batch):
        if tensor == 1 and held(parameters, layers, kept / pipeline, data, tensor, pipeline, shard) <= memory:
            return data, tensor, pipeline, shard


def more_gpus_than_there_are(parameters, layers, kept, memory, gpus, batch):
    return gpus, 8, 1, 3


def with_a_slash(parameters, layers, kept, memory, gpus, batch):
    data, tensor, pipeline, shard = first_that_fits(parameters, layers, kept, memory, gpus, batch)
    return gpus / tensor / pipeline, tensor, pipeline, shard


def not_a_number(parameters, layers, kept, memory, gpus, batch):
    return float("nan"), 1, 1, 0


def in_words(parameters, layers, kept, memory, gpus, batch):
    return tuple(map(str, first_that_fits(parameters, layers, kept, memory, gpus, batch)))


def sharded_true(parameters, layers, kept, memory, gpus, batch):
    return gpus, 1, 1, True


def stage_four(parameters, layers, kept, memory, gpus, batch):
    return gpus, 1, 1, 4


def below_zero(parameters, layers, kept, memory, gpus, batch):
    return -gpus, -1, 1, 3


def three_degrees(parameters, layers, kept, memory, gpus, batch):
    return first_that_fits(parameters, layers, kept, memory, gpus, batch)[:3]


def two_nodes_of_tensor_ranks(parameters, layers, kept, memory, gpus, batch):
    return gpus // 16, 16, 1, 3


def prints_a_division(parameters, layers, kept, memory, gpus, batch):
    print(first_that_fits(parameters, layers, kept, memory, gpus, batch))


# --- 13 wrong_letter ----------------------------------------------------------------------

PLACEMENTS = ("R", "S(0)", "S(1)", "P")
PRODUCTS = {
    ("R", "R"): "R", ("R", "S(1)"): "S(1)", ("S(0)", "R"): "S(0)", ("S(1)", "S(0)"): "P", ("P", "R"): "P", ("R", "P"): "P",
}  # fmt: skip


def letter_after(op, letters):
    """The letter of an op's result; None where its inputs don't fit."""
    first = letters[0]
    sharded = first.startswith("S")
    turned = {"S(0)": "S(1)", "S(1)": "S(0)"}.get(first)
    if op == "matmul":
        return PRODUCTS.get(tuple(letters))
    if op == "add":
        return first if letters[0] == letters[1] else None
    if op == "gelu":
        return None if first == "P" else first
    if op == "all_reduce":
        return "R" if first == "P" else None
    if op == "all_gather":
        return "R" if sharded else None
    if op == "reduce_scatter(0)":
        return "S(0)" if first == "P" else None
    if op == "all_to_all":
        return turned
    return turned or first if op == "transpose" else first


def bad_steps(plan, after=letter_after):
    letters = {name: letter for name, letter, *_ in plan}
    steps = (step for step in plan if step[2] != "given")
    return [name for name, letter, op, inputs in steps if after(op, [letters[source] for source in inputs]) != letter]


def changed(plan, name, letter):
    return [(own, letter if own == name else old, op, inputs) for own, old, op, inputs in plan]


def by_trying(plan, after=letter_after):
    for name, old, *_ in plan:
        for letter in PLACEMENTS:
            if letter != old and not bad_steps(changed(plan, name, letter), after):
                return name, letter


def from_the_first_bad_step(plan):
    """It, or something given among its inputs."""
    inputs = {name: [name, *sources] for name, _, _, sources in plan}
    first = bad_steps(plan)[0]
    tries = ((name, letter) for name in inputs[first] for letter in PLACEMENTS)
    return next([name, letter] for name, letter in tries if not bad_steps(changed(plan, name, letter)))


def always_the_first_bad_step(plan):
    letters = {name: letter for name, letter, *_ in plan}
    first = bad_steps(plan)[0]
    op, inputs = next((op, inputs) for name, _, op, inputs in plan if name == first)
    return first, letter_after(op, [letters[name] for name in inputs]) or "R"


def always_the_last_bad_step(plan):
    return bad_steps(plan)[-1], "R"


def name_alone(plan):
    return by_trying(plan)[0]


def its_letter_as_it_is(plan):
    name, _ = by_trying(plan)
    return name, next(letter for own, letter, *_ in plan if own == name)


def any_other_letter(plan):
    name, letter = by_trying(plan)
    old = next(letter for own, letter, *_ in plan if own == name)
    return name, next(other for other in PLACEMENTS if other not in (old, letter))


def prints_the_letter(plan):
    print(by_trying(plan))


def a_tensor_that_is_not_there(plan):
    return "b", "R"


RIGHT = {
    "faster_all_reduce": [
        four_steps,
        doubling_between,
        rings_inside_at_once_between,
        all_in_four_with_an_empty_step,
        chunks_named_backwards,
        twice_as_many_chunks,
        messages_in_another_order,
        rings_with_chunks_turned,
        steps_as_tuples,
    ],
    "crossover": [
        closed_form,
        by_halving_an_interval,
        whole_bytes,
        where_the_lines_meet,
        by_exact_fractions,
        by_doubling_until_the_ring_wins,
        with_tensors,
        nothing_for_two,
    ],
    "schedule_within": [backward_first, forward_first, in_halves, as_tuples, earliest_first],
    "divide": [first_that_fits, least_wait],
    "wrong_letter": [by_trying, from_the_first_bad_step],
}
WRONG = {
    "wrong_letter": [
        (always_the_first_bad_step, "may be right itself, and have a wrong letter among its inputs"),
        (always_the_last_bad_step, "may be right itself, and have a wrong letter among its inputs"),
        (name_alone, "It must return .name, letter., two texts"),
        (its_letter_as_it_is, "it has this letter already"),
        (any_other_letter, "that's the tensor. Which letter suits both"),
        (prints_the_letter, "printing a pair doesn't return it"),
        (a_tensor_that_is_not_there, "there's no such tensor in this plan"),
    ],
    "faster_all_reduce": [
        (flat_ring, "is right, but not fast enough.*(?s:.*)Which of your steps could be one"),
        (two_rings, "is right, but not fast enough.*(?s:.*)Which of your steps could be one"),
        (all_to_all_ranks, "1 GiB take(?s:.*)leaves a node through each card"),
        (leaders, "1 GiB take(?s:.*)leaves a node through each card"),
        (no_way_back, "at the end rank 0 has chunk . without the part(?s:.*)how does it get from there"),
        (only_inside, "without the parts of ranks 2, 3"),
        (adds_all_the_way, "would be in the sum twice(?s:.*)copied into place"),
        (ring_of_copies, "was that meant to be an add(?s:.*)it has to be added"),
        (everybody_at_once, "step 2: rank 0 adds chunk a(?s:.*)in the sum twice"),
        (ring_off_by_one, "without the parts of ranks"),
        (both_halves_in_one_step, "overwrites chunk b(?s:.*)has to come first"),
        (pairs_of_nodes_only, "(12 ranks in nodes of 4|24 ranks in nodes of 8)"),
        (fixed_size, "of all_reduce for 4 ranks; expected is all_reduce for 8"),
        (draws_it, "it must return a Schedule, not None(?s:.*)does not return it"),
        (steps_only, "it must return a Schedule, not a list"),
        (sends_to_itself, "sends to itself"),
        (last_step_missing, "without the part"),
        (ends_exchanged, "is wrong|without the part|twice"),
        (a_chunk_too_few, "chunk"),
        (a_rank_too_many, "rank 4"),
        (in_a_tuple, "must return a Schedule"),
        (called_a_reduce, "of reduce"),
        (adds_where_it_is_complete, "twice"),
    ],
    "crossover": [
        (one_message, "how many bytes go in each"),
        (unchunked, "carries one chunk"),
        (ring_once, "goes around twice"),
        (tree_once, "and then down again"),
        (no_rounding, "no half steps"),
        (rounded_down, "How many does it need for 5"),
        (in_numbers, "counts numbers of 4 bytes"),
        (beta_as_bandwidth, "gets smaller where the network gets faster"),
        (prints_it, "not None(?s:.*)does not return it"),
        (next_power_of_two, "expected .*bytes\n  got .*bytes\nFor"),
        (divides_by_nothing, "ZeroDivisionError"),
        (in_kibibytes, "is wrong"),
        (in_paragraphs, "is wrong with 5 ranks"),
        (below_nothing, "is wrong"),
        (as_words, "not a str"),
        (alpha_over_beta, "is wrong"),
        (as_a_pair, "must return a number of bytes"),
        (for_one_rank_more, "is wrong"),
    ],
    "schedule_within": [
        (in_waves, "limit 4: a step takes 42, and the limit is 33(?s:.*)have to follow a fixed turn"),
        (turns_within_limit, "limit 3: a step takes 48, and the limit is 42(?s:.*)have to follow a fixed turn"),
        (one_by_one, "a step takes 96, and the limit is 33"),
        (
            fast_where_published,
            "is right, but slow with . ranks, .* limit .: a step takes .*(?s:.*)follow a fixed turn",
        ),
        (fills_up_at_first, "rank 0 does F.; microbatches are 0 to "),
        (whole_batch, "rank 0 keeps 4 microbatches at a time, and the limit is 2(?s:.*)Before a forward, count"),
        (turns_without_limit, "rank 0 keeps 3 microbatches at a time, and the limit is 2"),
        (one_too_many, "keeps 3 microbatches at a time, and the limit is 2"),
        (waves_that_drop_the_rest, "no forward of microbatch 4(?s:.*)don.t divide evenly"),
        (last_backwards_forgotten, "no backward of stage 0 and microbatch 3(?s:.*)last forward is done"),
        (only_the_first_waits, "can never finish(?s:.*)rank 0 is at 0B0(?s:.*)get that far"),
        (own_row, "a list of lists, one for each rank, not a list(?s:.*)for 2 ranks"),
        (numbers_only, "0 is not an action"),
        (shows_it, "not None(?s:.*)does not return it"),
        (back_before_forth, "rank 0 does 0B0 before 0F0(?s:.*)its forward kept"),
        (halves_without_weights, "no backward, the gradient of the weights only"),
        (one_microbatch_more, "rank 0 does F4; microbatches are 0 to 3"),
    ],
    "divide": [
        (
            shards_everything,
            "Llama 3 70B on 256.*doesn't fit(?s:.*)the activations alone(?s:.*)Which ranks share a sequence",
        ),
        (copies_everywhere, "Llama 3 8B on 8 .*doesn't fit(?s:.*)the states alone(?s:.*)stage of ZeRO leave whole"),
        (one_gpu, "is 1, and there are 8 GPUs, so 7 would idle(?s:.*)does that leave"),
        (a_node_shares_everything, "fits, but it's slow(?s:.*)the tensor ranks send(?s:.*)Would fewer do"),
        (speed_forgotten, "fits, but it's slow(?s:.*)the data ranks send(?s:.*)does T reach F/B"),
        (long_rings_forgotten, "70B on 4,096(?s:.*)the data ranks send(?s:.*)B is small where the ring is long"),
        (most_stages, "fits, but it's slow(?s:.*)the pipeline's bubble(?s:.*)Would fewer stages do"),
        (cards_forgotten, "fits, but it's slow(?s:.*)the data ranks send(?s:.*)only one of its eight cards"),
        (activations_forgotten, "Llama 3 8B.*doesn't fit(?s:.*)fit one without the other"),
        (batch_forgotten, "isn't possible: data x microbatch(?s:.*)each data rank needs a sequence"),
        (stages_cut_activations, "doesn't fit(?s:.*)keeps a sequence for every stage"),
        (more_gpus_than_there_are, "is 64, and there are 8 GPUs"),
        (with_a_slash, "data must be an integer, not 8.0(?s:.*)makes a float"),
        (not_a_number, "data must be an integer, not nan"),
        (in_words, "data must be an integer, not a str"),
        (sharded_true, "shard must be an integer, not a bool"),
        (stage_four, "shard must be a stage of ZeRO, 0 to 3(?s:.*)what data ranks share"),
        (below_zero, "data must be a number of GPUs, 1 to 8, not -8"),
        (three_degrees, "four integers.*not 3 values"),
        (two_nodes_of_tensor_ranks, "data must be a number of GPUs, 1 to 8, not 0(?s:.*)alone are too many"),
        (prints_a_division, "not None(?s:.*)doesn't return it"),
    ],
}
