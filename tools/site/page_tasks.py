"""The functions that a reader can write on the site, since they need Python alone, with their tasks."""

import json
import re
from typing import Iterable

from collectives.algorithms import (
    double_tree_all_reduce,
    doubling_all_reduce,
    hierarchical_all_reduce,
    multi_ring_all_reduce,
    naive_all_reduce,
    rabenseifner_all_reduce,
    ring_all_reduce,
    tree_all_reduce,
)
from collectives.figures.written import standings
from collectives.format import size
from helpers.course import EXERCISES

FLAT = (
    naive_all_reduce, tree_all_reduce, ring_all_reduce, doubling_all_reduce, rabenseifner_all_reduce,
    double_tree_all_reduce,
)  # fmt: skip
OF_NODES = (multi_ring_all_reduce, hierarchical_all_reduce)
RANKS = 8  # on chapter 09's board
RACE, SIZES, GOAL = (16, 4), (64 * 2**10, 2**20, 2**30), 0.5  # exercise 09's budget: ranks and node, bytes, of the ring


def schedule(name: str, collective: str, calls: Iterable[tuple], **asked) -> dict:
    """A task whose function returns a Schedule.  calls: its arguments, the number of ranks first."""
    cases = [{"arguments": call, "is": {"collective": collective, "world_size": call[0]}} for call in calls]
    return {"name": name, "kind": "schedule", "cases": cases, **asked}


def chain(n: int, pieces: int) -> dict:
    wanted = {"collective": "broadcast", "world_size": n, "chunks": pieces, "root": 0}
    return {"arguments": (n, pieces), "is": wanted, "steps": n - 2 + pieces if n > 1 else 0}


def within(ranks: int, microbatches: int, limit: int, time: int | None = None) -> dict:
    wanted = {"ranks": ranks, "stages": ranks, "microbatches": microbatches}
    return {"arguments": (ranks, microbatches, limit), "is": wanted, "keeps": limit, **({"time": time} if time else {})}


def steps_and_bytes() -> dict:
    return {
        "title": f"An all_reduce of {RANKS} ranks: yours, and those of the chapter",
        "columns": ["", "steps", "busiest rank, S"],
        "arguments": (RANKS,),
        "rows": [standings(make(RANKS)) for make in FLAT],
    }


def race() -> dict:
    n, node = RACE
    made = [*(make(n) for make in FLAT), *(make(n, node) for make in OF_NODES)]
    ring = standings(ring_all_reduce(n), SIZES, node)
    return {
        "title": f"{n} ranks in nodes of {node}",
        "columns": ["", *(f"{size(nbytes)} (s)" for nbytes in SIZES), "steps"],
        "arguments": RACE,
        "sizes": SIZES,
        "node": node,
        "rows": [standings(s, SIZES, node) for s in made],
        "most": [GOAL * seconds for seconds in ring[1:-1]],
    }


def incident(number: int, sentences: dict[str, str]) -> dict:
    """A task whose function names the hosts to drain.  sentences: as an Incident has them."""
    files = sorted((EXERCISES / "incidents" / f"{number:02}").iterdir())
    hosts = sorted({host for file in files for host in re.findall(r"\b(?:node|cn)\d\d", file.name + file.read_text(encoding="utf-8"))})
    names = [f"{number:02}/{file.name}" for file in files]
    return {"name": f"incident_{number}", "kind": "incident", "incident": (number, hosts, sentences), "files": names}


def tasks() -> dict[tuple[str, str], dict]:
    """Notebook and function -> the task for `collectives.figures.written`."""
    ring = schedule("my_ring", "all_reduce", [(n,) for n in (4, 1, 2, 3, 5, 8)], board=steps_and_bytes())
    chains = [chain(*call) for call in ((4, 3), (2, 5), (5, 1), (3, 8), (1, 2), (8, 8))]
    clusters = (4, 2), (8, 4), (12, 4), (6, 3), (10, 5), (12, 2), (7, 1), (5, 5), (1, 1), RACE
    faster = schedule("faster_all_reduce", "all_reduce", clusters, board=race())
    goals = (2, 4, 2), (3, 5, 2), (4, 8, 1), (4, 8, 4, 33), (4, 8, 3, 42), (8, 16, 4, 110), (6, 11, 3, 78), (2, 7, 9)
    sealed = json.loads((EXERCISES / "tasks" / "19_which_node.json").read_text(encoding="utf-8"))
    nights = [incident(int(number), sentences) for number, sentences in sealed.items()]
    rows = {"name": "schedule_within", "kind": "pipeline", "cases": [within(*goal) for goal in goals]}
    return {
        ("09_algorithms", "my_ring"): ring,
        ("09_algorithms", "pipeline"): {"name": "pipeline", "kind": "schedule", "cases": chains},
        ("09_beat_the_schedule", "faster_all_reduce"): faster,
        ("14_within_memory", "schedule_within"): rows,
        **{("19_which_node", night["name"]): night for night in nights},
    }
