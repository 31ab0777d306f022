"""incident_1() to incident_8(): the hosts to drain after a recorded incident, and why.

The truth and the sentences about answers are in the file beside this one, sealed (collectives/figures/incident.py).
tests/corpus/incidents.py has them in plain words, and makes that file.
"""

import json
from pathlib import Path
from typing import Any

from collectives.figures.incident import NO_HOST, REASONS, Incident, fingerprint, sealed
from helpers.exercise import Case, Finding, Puzzle

__all__ = ["FILE", "HOSTS", "NO_HOST", "REASONS", "TASKS", "fingerprint", "hosts", "sealed"]

FILE = Path(__file__).with_suffix(".json")
HOSTS = {  # incident -> hosts' names, and the numbers of the first and the last
    1: ("node", 11, 18), 2: ("cn", 1, 4), 3: ("node", 21, 28), 4: ("node", 31, 34),
    5: ("cn", 1, 4), 6: ("node", 1, 4), 7: ("cn", 1, 8), 8: ("cn", 1, 4),
}  # fmt: skip


def hosts(number: int) -> list[str]:
    """The names of an incident's hosts."""
    name, first, last = HOSTS[number]
    return [f"{name}{k:02}" for k in range(first, last + 1)]


def puzzle(incident: Incident) -> Puzzle:
    def verdict(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
        if mistake := incident.mistake(result):
            words, thought = mistake
            return Finding("values", words=words, thought=thought)

    def praise(case: Case, arguments: tuple, result: Any) -> str:
        return incident.debrief(result)

    return Puzzle(incident.name, (Case(1, "what was recorded"),), lambda draw: (), verdict, praise)


SENTENCES = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
TASKS = tuple(puzzle(Incident(number, hosts(number), SENTENCES.get(str(number), {}))) for number in HOSTS)
