"""torch's debug server, asked while a job runs: stacks and flight records of all ranks, and which have moved since.

Format: torch 2.13's torch/distributed/debug/_frontend.py, whose pages have "<h2>Rank 0: address</h2>" and a <pre> for each
rank. `torch.distributed.debug.start_debug_server()` starts it, on port 25999 of rank 0's host.
"""

import html
import http.client
import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass, field

from ...format import duration
from ...judge.wording.phrases import few

PATIENCE = 70.0  # the server itself waits 60 s for a rank
RECORDS = ("/fr_trace_nccl_json", "/fr_trace_json")  # the first is empty without NCCL
_RANK = re.compile(r"<h2>Rank (\d+): ([^<]*)</h2>(.*?)(?=<h2>|\Z)", re.DOTALL)
_BODY = re.compile(r"<pre>(.*?)</pre>", re.DOTALL)


@dataclass
class Pages:
    """The server's pages at one time, by rank.  silent: ranks that didn't answer."""

    stacks: dict[int, str] = field(default_factory=dict)
    records: dict[int, dict] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)


def ask(address: str) -> Pages:
    """The pages of a job's debug server. Raises ValueError for an address where no server answers."""
    answer = Pages()
    for page in ("/stacks", *RECORDS):
        add(_page(address, page, answer), answer)
    return answer


def _page(address: str, page: str, answer: Pages) -> dict[int, str]:
    try:
        with urllib.request.urlopen(address.rstrip("/") + page, timeout=PATIENCE) as reply:
            text = reply.read().decode(errors="replace")
    except urllib.error.HTTPError:
        return {}  # a page that this version, or this backend, lacks
    except (OSError, ValueError, http.client.HTTPException) as error:  # the last where something else answers
        raise ValueError(
            f"no debug server answers at {address}: {error}. The job starts it with "
            "torch.distributed.debug.start_debug_server(), on rank 0's host. (NCCL's RAS is asked by ras://HOST.)"
        ) from None
    found, silent = pages(text)
    answer.silent |= silent if page == "/stacks" else set()
    return found


def pages(text: str) -> tuple[dict[int, str], set[int]]:
    """By rank, what a page shows of it; and the ranks that didn't answer."""
    found, silent = {}, set()
    for rank, _, rest in _RANK.findall(text):
        body = _BODY.search(rest)
        if "Failed to fetch" in rest or body is None:
            silent.add(int(rank))
        else:
            found[int(rank)] = html.unescape(body[1])
    return found, silent


def text_of_tables(text: str) -> str:
    """A page's tables as text, a line for each row."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", text, re.DOTALL)
    return "\n".join(html.unescape(re.sub(r"<[^>]+>", " ", row.replace("\n", " "))) for row in rows)


def add(page: dict[int, str], answer: Pages) -> None:
    """Add a page, of records or of stacks."""
    for rank, text in page.items():
        try:
            record = json.loads(text)
        except json.JSONDecodeError:
            answer.stacks[rank] = text
            continue
        if isinstance(record, dict) and record.get("entries") and rank not in answer.records:
            answer.records[rank] = record | {"rank": rank}


def moved(first: Pages, second: Pages, seconds: float) -> list[str]:
    """Sentences on the ranks that have made calls in the seconds between the two answers, and on the ones that didn't answer."""
    lines = []
    made = {
        rank: record["entries"][-1].get("record_id", 0) - first.records[rank]["entries"][-1].get("record_id", 0)
        for rank, record in second.records.items()
        if rank in first.records
    }
    went, stayed = ([rank for rank, n in made.items() if bool(n) is is_moving] for is_moving in (True, False))
    apart = f"Between two looks, {duration(seconds)} apart,"
    if went and stayed:
        lines.append(f"{apart} {few(went)} made calls, and {few(stayed)} made none.")
    elif went:
        lines.append(f"{apart} all ranks made calls: the job is running.")
    elif stayed:
        lines.append(f"{apart} no rank made a call.")
    if silent := sorted(second.silent):
        lines.append(f"{few(silent).capitalize()} didn't answer: ended, stopped, or unreachable.")
    return lines
