"""The short tasks of chapter 22: what failures cost, a vote, who heals whom, and where a copy is kept.

shares_lost(every, pause, restart, between): the shares of the time that saves, work done again and restarts take.  agreed(ok): whether all ranks are fine.  to_heal(steps): the source of the weights, and who copies them.  keeper(host, hosts): the
host that keeps a host's copy, in pairs.
"""

from helpers.exercise import Budget, Case, Suspect, Task, valued

# --- shares_lost --------------------------------------------------------------------------


def shares_lost(every, pause, restart, between):
    return pause / every, every / 2 / between, restart / between


SHARES_LOST = valued(
    "shares_lost",
    {
        "a save per half hour, a failure per hour": (1800, 60, 600, 3600),
        "a save per ten minutes, a failure per five hours": (600, 12, 300, 18_000),
        "no restart": (900, 30, 0, 7200),
    },
    shares_lost,
    suspects={
        lambda every, pause, restart, between: (pause / every, every / between, restart / between): (
            "a failure comes at any moment between two saves. How much is computed again, on average?"
        ),
        lambda every, pause, restart, between: (pause / between, every / 2 / between, restart / between): (
            "each save stops training, whether or not a failure follows. How often is there one?"
        ),
        lambda every, pause, restart, between: (every / pause, between / every * 2, between / restart if restart else 0): (
            "these are upside down. A share is what is lost, divided by the time in which it is lost once."
        ),
        lambda every, pause, restart, between: sum(shares_lost(every, pause, restart, between)): (
            "that's all of it. Return the three shares apart."
        ),
    },
    thought="for each of the three: how many seconds does it take each time, and how many seconds are there between two such times?",
)

# --- agreed -------------------------------------------------------------------------------

FAILING = {"all are fine": lambda n: set(), "the last one failed": lambda n: {n - 1}, "all failed": lambda n: set(range(n))}
FAILING |= {"rank 0 failed": lambda n: {0}, "all but rank 0 failed": lambda n: set(range(1, n))}
VOTES = tuple(
    Case(n, kind, late=n - 1 if n == 4 else None) for n in (2, 3, 4) for kind in FAILING
) + (Case(5, "rank 0 failed"), Case(6, "the last one failed"), Case(7, "all are fine"), Case(8, "all but rank 0 failed"))
VOTES += Case(1, "all are fine"), Case(1, "all failed")


def result_here(d):
    return (d.rank not in FAILING[d.case.kind](d.world_size),)


def everywhere(answer):
    """Every rank's result."""
    return lambda args: [answer([ok for (ok,) in args], rank) for rank in range(len(args))]


AGREED = Task(
    "agreed",
    VOTES,
    result_here,
    everywhere(lambda oks, rank: all(oks)),
    lambda case, args: Budget(
        "one all_reduce of at most 8 bytes",
        sent=[2 * (case.world_size - 1) / case.world_size * 8] * case.world_size,
        received=[2 * (case.world_size - 1) / case.world_size * 8] * case.world_size,
        calls=[1] * case.world_size,
    ),
    needs=lambda case, args: [int(case.world_size > 1)] * case.world_size,
    parameters=("ok",),
    suspects=(
        Suspect(
            everywhere(lambda oks, rank: oks[rank]),
            "this is what the rank itself has seen. The others may have seen something else: ask them.",
        ),
        Suspect(
            everywhere(lambda oks, rank: any(oks)),
            "this is True if anybody is fine. One that failed must be enough to stop all: which reduce op finds it?",
        ),
        Suspect(
            everywhere(lambda oks, rank: sum(oks)),
            "this counts the ranks that are fine. Return True or False: compare the count with the number of ranks, or take MIN.",
        ),
        Suspect(
            everywhere(lambda oks, rank: not all(oks)),
            "it's upside down: True if all are fine.",
        ),
        Suspect(
            everywhere(lambda oks, rank: sum(oks) * 2 > len(oks)),
            "this is a majority. But a rank that failed can't step, however many others can.",
        ),
    ),
    thoughts={
        "values": "return a bool. The smallest of zeros and ones is 1 only if all are. Which collective finds it, on every rank?",
        "calls": "the result is right, and one call is enough.",
        "traffic": "the result is right, but one number per rank is enough.",
        "RankFailed": "put ok into a tensor with one element: torch.tensor([float(ok)]).",
    },
)

# --- to_heal ------------------------------------------------------------------------------


def source_and_behind(steps):
    ahead = max(steps)
    return steps.index(ahead), [member for member, made in enumerate(steps) if made < ahead]


TO_HEAL = valued(
    "to_heal",
    {
        "all as far": ([7, 7, 7],),
        "one that is new": ([12, 12, 0],),
        "one that has missed the vote": ([40, 41, 41, 41],),
        "only one has heard the vote": ([8, 8, 9, 8],),
        "two that are new": ([0, 300, 300, 0],),
        "a group of one": ([5],),
        "nobody has made a step": ([0, 0],),
    },
    source_and_behind,
    suspects={
        lambda steps: (max(steps), source_and_behind(steps)[1]): "that's how many steps it has made. Return its place in the list.",
        lambda steps: (0, source_and_behind(steps)[1]): "member 0 may be behind itself. Who has made the most steps?",
        lambda steps: (
            steps.index(min(steps)),
            [k for k, made in enumerate(steps) if made > min(steps)],
        ): "that would throw steps away: members go back to the one that is behind. Its missing steps are in the others' weights.",
        lambda steps: (
            source_and_behind(steps)[0],
            [k for k in range(len(steps)) if k != source_and_behind(steps)[0]],
        ): "members that are as far as the source have its weights already.",
        lambda steps: (source_and_behind(steps)[0], source_and_behind(steps)[1][:1]): "more than one may be behind.",
        lambda steps: (
            len(steps) - 1 - steps[::-1].index(max(steps)),
            source_and_behind(steps)[1],
        ): "if several are ahead, the first of them is the source, so that all members name the same one.",
    },
    thought="the source is the first member with the most steps. Everyone with fewer is behind.",
    praise="If nobody has made a step, member 0 is the source, and no one is behind: {}.",
)

# --- keeper -------------------------------------------------------------------------------


def partner(host, hosts):
    return host ^ 1


KEEPER = valued(
    "keeper",
    {f"host {host} of {hosts}": (host, hosts) for host, hosts in ((0, 16), (1, 16), (15, 16), (6, 8), (7, 8), (2, 4), (1, 2))},
    partner,
    suspects={
        lambda host, hosts: (host + 1) % hosts: "that's the ring: host h's copy is with h + 1. In pairs, two hosts keep each other's.",
        lambda host, hosts: (host - 1) % hosts: "that's a ring in the other direction. In pairs, two hosts keep each other's.",
        lambda host, hosts: (host + hosts // 2) % hosts: "these are pairs, too, and as safe. But make them of neighbors: 0 and 1, 2 and 3.",
        lambda host, hosts: host + 1: "host 0's copy is with 1, and 1's with 0. What do odd hosts do?",
        lambda host, hosts: host: "its own copy dies with it.",
    },
    thought="hosts 0 and 1 keep each other's copy, 2 and 3 do, and so on. An even host's keeper is the next, an odd one's the last before it.",
    praise="In a pair, host 1's copy is with {}.",
)

TASKS = (SHARES_LOST, AGREED, TO_HEAL, KEEPER)
