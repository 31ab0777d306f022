"""How long a chapter takes, by one rule for all.  `python -m tests.minutes` prints what each head has to say.

The reader is at ease with PyTorch and new to torch.distributed: 200 words or 10 lines of code in a minute, one minute for what is
predicted, two for a Vary, and for a task what its text says, or two.  Students may need 1.5 times as long: somebody new to all of it
reported 40 minutes for chapter 01, which has 30 by this rule.

A line of code that an earlier cell has isn't read again.

A section whose heading is followed by a line that begins with OPTIONAL is counted apart, with the sections within it.
"""

import re

import nbformat

from tests import ROOT

CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
LONGEST = 75  # minutes of a chapter without its optional sections
OPTIONAL = "*Optional: nothing later needs it"
STATED = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "ten": 10, "fifteen": 15}


def tags(cell):
    return cell.metadata.get("tags", [])


def is_folded(cell):
    """Whether the code is bookkeeping, folded in."""
    return cell.metadata.get("jupyter", {}).get("source_hidden", False)


def minutes(cells):
    """The minutes that these cells take a reader: (all but the optional sections, the optional sections)."""
    spent, above, level, seen = [0.0, 0.0], "", None, set()
    for cell in cells:
        if cell.cell_type == "code":
            spent[level is not None] += code(cell, above, seen)
            seen |= set(cell.source.splitlines())
            continue
        for part in re.split("^(?=#)", cell.source, flags=re.MULTILINE):
            heading = re.match(r"(#+) .*\s*(.*)", part)
            if heading and (level is None or len(heading[1]) <= level):
                level = len(heading[1]) if heading[2].startswith(OPTIONAL) else None
            spent[level is not None] += prose(part)
        above = cell.source
    return tuple(spent)


def prose(text):
    """The minutes that this Markdown takes."""
    words = re.sub(r"\]\([^)]*\)|<[^>]*>|[|#*]|-{2,}", " ", text).split()
    return len(words) / 200 + 2 * text.count("**Vary")


def code(cell, above, seen=frozenset()):
    """The minutes that this cell of code takes, with what it asks for in the text above it.  seen: earlier lines."""
    if re.match(r"check_practice\(", cell.source):
        words = [word.lower() for word in re.findall(r"(\w+) minutes?", above)]
        return next((STATED[word] for word in words if word in STATED), 2)
    read = [line for line in cell.source.splitlines() if line.strip() and line not in seen] * (not is_folded(cell))
    return len(read) / 10 + ("predict" in tags(cell))


def about(spent):
    """Minutes as a head says them."""
    return 5 * round(spent / 5)


def due(cells):
    """What a head has to say of its chapter's minutes."""
    core, optional = minutes(cells)
    whole = round(core) if core < 14 else about(core)
    return f"about {whole} minutes" + (f", and {max(5, about(optional))} more for what's optional" if optional else "")


def said(cells):
    """What this chapter's head says of its minutes, or None."""
    effort = re.search(r"\*\*Effort\*\*: difficulty \d of 5, (.*?)\.(?= |$)", " ".join(cells[0].source.split()))
    return effort and effort[1]


def told(path):
    """A line on a chapter: its minutes, and what its head has to say or says."""
    cells = nbformat.read(path, as_version=4).cells
    core, optional = minutes(cells)
    wrong = "" if said(cells) == due(cells) else f"   (its head: {said(cells)!r})"
    return f"{path.stem[:2]}  {core:5.1f} and {optional:4.1f}   {due(cells)}{wrong}"


if __name__ == "__main__":
    print("\n".join(map(told, CHAPTERS)))
