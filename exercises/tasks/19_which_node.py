"""incident_1() to incident_8(): the hosts to drain after a recorded incident, and why.

The truth and what is said of an answer are in the file beside this one, each sentence sealed with the answer that it belongs to,
which keeps them from being read by accident. tests/corpus/incidents.py has them in plain words, and makes that file.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from helpers.exercise import Case, Finding, Puzzle

FILE = Path(__file__).with_suffix(".json")
NONE = "none"  # instead of a host's name
REASONS = (
    "gpu", "link", "memory", "heat", "host gone", "memory limit", "storage", "out of data", "different calls",
)  # fmt: skip
HOSTS = {  # incident -> hosts' names, and the numbers of the first and the last
    1: ("node", 11, 18), 2: ("cn", 1, 4), 3: ("node", 21, 28), 4: ("node", 31, 34),
    5: ("cn", 1, 4), 6: ("node", 1, 4), 7: ("cn", 1, 8), 8: ("cn", 1, 4),
}  # fmt: skip
ANY_OTHER = "*"


def hosts(number: int) -> list[str]:
    """The names of an incident's hosts."""
    name, first, last = HOSTS[number]
    return [f"{name}{k:02}" for k in range(first, last + 1)]


def fingerprint(number: int, claim: str) -> str:
    return hashlib.sha256(f"fingerprint {number} {claim}".encode()).hexdigest()[:16]


def sealed(number: int, claim: str, text: bytes) -> bytes:
    """A text made unreadable without the claim that it is about; what is sealed twice is readable again."""
    return bytes(a ^ b for a, b in zip(text, hashlib.shake_256(f"seal {number} {claim}".encode()).digest(len(text))))


def sentence(number: int, claim: str) -> str | None:
    """The sentence about a claim, or None."""
    text = json.loads(FILE.read_text(encoding="utf-8")).get(fingerprint(number, claim))
    return None if text is None else sealed(number, claim, bytes.fromhex(text)).decode()


def about(number: int, host: str, reason: str | None = None) -> str | None:
    """The sentence about draining a host, or about the reason for it; None if that is right."""
    claim = f"{host}: " + (reason or "")
    if sentence(number, f"right {claim}") is not None:
        return None
    return sentence(number, claim) or sentence(number, f"{ANY_OTHER if reason is None else host}: {ANY_OTHER}")


def canonical(answer: dict[str, str]) -> str:
    return ", ".join(f"{host}: {reason}" for host, reason in sorted(answer.items()))


def answer_of(result: Any, number: int) -> dict[str, str]:
    """A well-formed answer. Raises ValueError for what isn't one."""
    if not isinstance(result, dict) or not result:
        raise ValueError('return a dict of at least one entry, such as {"node12": "gpu"} or {"none": "storage"}.')
    for host, reason in result.items():
        if not isinstance(host, str) or host not in (NONE, *hosts(number)):
            raise ValueError(
                f"the hosts of this incident are {hosts(number)[0]} to {hosts(number)[-1]}, or it's {NONE!r}."
            )
        if not isinstance(reason, str) or reason not in REASONS:
            raise ValueError(f"the reason for {host} must be one of {', '.join(map(repr, REASONS))}.")
    if NONE in result and len(result) > 1:
        raise ValueError(f"{NONE!r} is for an incident in which no host is drained, so it's alone.")
    return result


def incident(number: int) -> Puzzle:
    name = f"incident_{number}"

    def verdict(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
        try:
            answer = answer_of(result, number)
        except ValueError as what:
            return Finding("values", words=f"{name} has no answer yet: {what}")
        for host in answer:
            if against := about(number, host):
                advice = "drain a node" if host == NONE else f"don't drain {host}"
                return Finding("values", words=f"{name}: {advice}.", thought=against)
        if missing := sentence(number, f"only {', '.join(sorted(answer))}"):
            return Finding("values", words=f"{name}: {', '.join(answer)} is right, but not all.", thought=missing)
        for host, reason in answer.items():
            if against := about(number, host, reason):
                which = "draining none" if host == NONE else host
                return Finding(
                    "values", words=f"{name}: {which} is right, but the reason isn't {reason!r}.", thought=against
                )
        return None

    def praise(case: Case, arguments: tuple, result: Any) -> str:
        return sentence(number, f"debrief {canonical(result)}") or ""

    return Puzzle(name, (Case(1, "what was recorded"),), lambda draw: (), verdict, praise)


TASKS = tuple(map(incident, HOSTS))
