from collectives.algorithms import Schedule, add, copy


def my_ring(n):
    """Each rank adds to its right neighbor's chunk, n - 1 times; then the sums are passed around."""
    add_up = [[add(r, (r + 1) % n, (r - k) % n) for r in range(n)] for k in range(n - 1)]
    pass_around = [[copy(r, (r + 1) % n, (r - k) % n) for r in range(n)] for k in range(n - 1)]
    return Schedule("all_reduce", n, add_up + pass_around, chunks=n, name="my ring")
