"""Names of files made of names of students."""

import hashlib
import re


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:20]


def slug(name: str) -> str:
    """A student's name as a part of a file name; no two names give one."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:60].strip("-")
    return "-".join(filter(None, [plain, digest(name)[:8]]))
