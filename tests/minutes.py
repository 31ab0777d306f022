"""How long a chapter takes, by one rule for all.  `python -m tests.minutes` prints what each head has to say.

The reader is at ease with PyTorch and new to torch.distributed: 200 words or 10 lines of code in a minute, one minute for what is
predicted, two for a Vary, and for a task what its text says, or two.  Students may need 1.5 times as long: somebody new to all of it
reported 40 minutes for chapter 01, which has 30 by this rule.
"""

import re

import nbformat

from tests import ROOT

CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
LONGEST = 75  # minutes of a sitting
STATED = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "ten": 10, "fifteen": 15}


def tags(cell):
    return cell.metadata.get("tags", [])


def minutes(cells):
    """The minutes that these cells take a reader."""
    spent, above = 0.0, ""
    for cell in cells:
        if cell.cell_type == "markdown":
            above = cell.source
            prose = re.sub(r"\]\([^)]*\)|<[^>]*>|[|#*]|-{2,}", " ", cell.source)
            spent += len(prose.split()) / 200 + 2 * cell.source.count("**Vary")
        elif re.match(r"check_practice\(", cell.source):
            spent += next(
                (STATED[word.lower()] for word in re.findall(r"(\w+) minutes?", above) if word.lower() in STATED), 2
            )
        else:
            spent += len([line for line in cell.source.splitlines() if line.strip()]) / 10 + ("predict" in tags(cell))
    return spent


def about(spent):
    """Minutes as a head says them."""
    return 5 * round(spent / 5)


def pause(cells):
    """The number of the cell before which the head says to pause, or None."""
    said = re.search(r"\bpause\s+at\s+\[[^\]]*\]\(#([^)]*)\)", cells[0].source)
    if said is None:
        return None
    lines = ((number, line) for number, cell in enumerate(cells) for line in cell.source.splitlines())
    return next(number for number, line in lines if re.fullmatch("#+ (.+)", line) and anchor(line) == said[1])


def anchor(heading):
    """What a link to a heading ends in, as JupyterLab makes it."""
    return heading.lstrip("# ").replace(" ", "-")


def sittings(cells):
    """The minutes of each sitting: of all cells, or of those before and after the pause."""
    stop = pause(cells)
    return [minutes(cells)] if stop is None else [minutes(cells[:stop]), minutes(cells[stop:])]


def halves(cells):
    """The heading of a section at which a pause leaves the two most equal sittings, and their minutes."""
    starts = [number for number, cell in enumerate(cells) if section(cell)]
    stop = min(starts, key=lambda number: abs(minutes(cells[:number]) - minutes(cells[number:])))
    return section(cells[stop]), minutes(cells[:stop]), minutes(cells[stop:])


def section(cell):
    """The heading of the first section that begins in this cell, if any: one of plain words, to which all link alike."""
    heading = re.search(r"^## ([\w -]+)$", cell.source, re.MULTILINE)
    return heading and cell.cell_type == "markdown" and heading[1]


def told(path):
    """A line on a chapter: what it takes, what its head says, and where a pause would be if it takes too long."""
    cells = nbformat.read(path, as_version=4).cells
    said = re.search(r"\*\*Effort\b.*?(\d+) minutes", cells[0].source, re.DOTALL)
    line = f"{path.stem[:2]}  {about(minutes(cells)):3} minutes, its head says {said[1]:3}"
    if about(minutes(cells)) <= LONGEST:
        return line
    heading, before, after = halves(cells)
    return f"{line}   {before:3.0f} and {after:3.0f} with a pause at {heading!r}"


if __name__ == "__main__":
    print("\n".join(map(told, CHAPTERS)))
