"""Answers to recorded incidents, judged: which hosts to drain, and why.

The truth and the sentences about answers are sealed, each with the answer that it belongs to, which keeps them from being read by
accident.  Standard library alone, since a page of the website judges, too.
"""

import hashlib
from typing import Any, NamedTuple

NO_HOST = "none"  # instead of a host's name
REASONS = (
    "gpu", "link", "memory", "heat", "host gone", "memory limit", "storage", "out of data", "different calls",
)  # fmt: skip
ANY_OTHER = "*"


def fingerprint(number: int, claim: str) -> str:
    return hashlib.sha256(f"fingerprint {number} {claim}".encode()).hexdigest()[:16]


def sealed(number: int, claim: str, text: bytes) -> bytes:
    """A text made unreadable without the claim that it is about; what is sealed twice is readable again."""
    return bytes(a ^ b for a, b in zip(text, hashlib.shake_256(f"seal {number} {claim}".encode()).digest(len(text))))


def canonical(answer: dict[str, str]) -> str:
    return ", ".join(f"{host}: {reason}" for host, reason in sorted(answer.items()))


class Incident(NamedTuple):
    """A recorded incident.  hosts: their names.  sentences: by the fingerprint of a claim, the sealed sentence about it, in hex."""

    number: int
    hosts: list[str]
    sentences: dict[str, str]

    @property
    def name(self) -> str:
        """The name of the function that answers."""
        return f"incident_{self.number}"

    def mistake(self, result: Any) -> tuple[str, str] | None:
        """The words on a wrong answer, and a thought or ""; None for the right one."""
        try:
            answer = self._answer(result)
        except ValueError as what:
            return f"{self.name} has no answer yet: {what}", ""
        for host in answer:
            if against := self._about(host):
                advice = "drain a node" if host == NO_HOST else f"don't drain {host}"
                return f"{self.name}: {advice}.", against
        if missing := self._sentence(f"only {', '.join(sorted(answer))}"):
            return f"{self.name}: {', '.join(answer)} is right, but not all.", missing
        for host, reason in answer.items():
            if against := self._about(host, reason):
                which = "draining none" if host == NO_HOST else host
                return f"{self.name}: {which} is right, but the reason isn't {reason!r}.", against
        return None

    def debrief(self, answer: dict[str, str]) -> str:
        """The story of the incident, for the right answer."""
        return self._sentence(f"debrief {canonical(answer)}") or ""

    def _sentence(self, claim: str) -> str | None:
        text = self.sentences.get(fingerprint(self.number, claim))
        return None if text is None else sealed(self.number, claim, bytes.fromhex(text)).decode()

    def _about(self, host: str, reason: str | None = None) -> str | None:
        """The sentence about draining a host, or about the reason for it; None if that is right."""
        claim = f"{host}: " + (reason or "")
        if self._sentence(f"right {claim}") is not None:
            return None
        return self._sentence(claim) or self._sentence(f"{ANY_OTHER if reason is None else host}: {ANY_OTHER}")

    def _answer(self, result: Any) -> dict[str, str]:
        """A well-formed answer.  Raises ValueError for any other result."""
        if not isinstance(result, dict) or not result:
            raise ValueError('return a dict of at least one entry, such as {"node12": "gpu"} or {"none": "storage"}.')
        for host, reason in result.items():
            if not isinstance(host, str) or host not in (NO_HOST, *self.hosts):
                raise ValueError(f"the hosts of this incident are {self.hosts[0]} to {self.hosts[-1]}, or it's {NO_HOST!r}.")
            if not isinstance(reason, str) or reason not in REASONS:
                raise ValueError(f"the reason for {host} must be one of {', '.join(map(repr, REASONS))}.")
        if NO_HOST in result and len(result) > 1:
            raise ValueError(f"{NO_HOST!r} is for an incident in which no host is drained, so it's alone.")
        return result
