"""As answers.py, for the exercises whose function is called once: a schedule, and a number.

This file is one answer cell when a scorer is tested, so it needs nothing but what such a cell has.
"""

from math import ceil, log2

from helpers.schedule import Schedule, add, copy

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


def divides_by_nothing(n, alpha, beta):
    return alpha / beta / (n - 4)


RIGHT = {
    "faster_all_reduce": [
        four_steps,
        doubling_between,
        rings_inside_at_once_between,
        all_in_four_with_an_empty_step,
    ],
    "crossover": [closed_form, by_halving_an_interval, whole_bytes],
}
WRONG = {
    "faster_all_reduce": [
        (flat_ring, "is right, but not fast enough.*(?s:.*)Which of your steps could be one"),
        (two_rings, "is right, but not fast enough.*(?s:.*)Which of your steps could be one"),
        (all_to_all_ranks, "1 GiB take(?s:.*)leaves a node through each card"),
        (leaders, "1 GiB take(?s:.*)leaves a node through each card"),
        (no_way_back, "at the end rank 0 has chunk . without the part(?s:.*)how does it get from there"),
        (only_inside, "without the parts of ranks 2, 3"),
        (adds_all_the_way, "would be in the sum twice(?s:.*)copied into place"),
        (ring_of_copies, "was that meant to be an add(?s:.*)it is to be added"),
        (everybody_at_once, "step 2: rank 0 adds chunk a(?s:.*)in the sum twice"),
        (ring_off_by_one, "without the parts of ranks"),
        (both_halves_in_one_step, "overwrites chunk b(?s:.*)has to come first"),
        (pairs_of_nodes_only, "12 ranks in nodes of 4"),
        (fixed_size, "of all_reduce for 4 ranks; wanted is all_reduce for 8"),
        (draws_it, "it must return a Schedule, not None(?s:.*)does not return it"),
        (steps_only, "it must return a Schedule, not a list"),
        (sends_to_itself, "sends to itself"),
    ],
    "crossover": [
        (one_message, "how many bytes go in each"),
        (unchunked, "carries one chunk"),
        (ring_once, "goes round twice"),
        (tree_once, "and then down again"),
        (no_rounding, "no half steps"),
        (rounded_down, "How many does it need for 5"),
        (in_numbers, "not numbers of 4 bytes"),
        (beta_as_bandwidth, "gets smaller where the network gets faster"),
        (prints_it, "not None(?s:.*)does not return it"),
        (next_power_of_two, "wanted .*bytes\n  got .*bytes\nFor"),
        (divides_by_nothing, "ZeroDivisionError"),
    ],
}
