"""How much code there is: what one drawn all_reduce enters, its spine, and each room.

The numbers fall with what is made simpler. A feature that needs more raises its own room's line, in its commit.
"""

import pytest

from tests import ROOT
from tests.entered import entered

MOST_ENTERED = 3_215  # lines of functions; a run enters 3,160 to 3,211 of them, by its timing, in
MOST_FILES = 50
SPINE = (
    "launch/run", "launch/session", "launch/workers", "launch/server", "launch/process",
    "rank/kernel", "rank/tracer", "rank/operators", "log/event", "log/calls", "outcome/run", "draw/panels",
)  # fmt: skip
MOST_OF_SPINE = 2_090
# Lines of a room's Python files, those of a room within it too.
CEILINGS = {
    "collectives/algorithms": 2_908,
    "collectives/calibrate": 495,
    "collectives/collect": 267,
    "collectives/cost": 1_494,
    "collectives/draw": 1_808,
    "collectives/figures": 771,
    "collectives/judge": 3_542,
    "collectives/launch": 3_773,
    "collectives/log": 1_710,
    "collectives/machines": 940,
    "collectives/outcome": 255,
    "collectives/planner": 1_889,
    "collectives/pretend": 3_714,
    "collectives/rank": 3_331,
    "collectives/remote": 1_319,
    "collectives/same": 3_111,
    "collectives/train": 2_213,
    "collectives/watch": 11_226,
    "grader": 4_207,
    "helpers": 5_623,
    "tools": 3_242,
}


def lines(*files):
    return sum(len(file.read_text().splitlines()) for file in files)


@pytest.mark.slow
def test_what_one_drawn_all_reduce_enters():
    found = {file: count for file, count in entered().items() if count}
    assert {"launch/session.py", "launch/server.py", "rank/tracer.py", "judge/monitor.py", "draw/canvas.py"} <= set(
        found
    )
    assert sum(found.values()) <= MOST_ENTERED and len(found) <= MOST_FILES, sorted(found.items())


def test_the_spine():
    assert lines(*(ROOT / "collectives" / f"{file}.py" for file in SPINE)) <= MOST_OF_SPINE


@pytest.mark.parametrize("room", CEILINGS)
def test_a_room(room):
    assert lines(*(ROOT / room).rglob("*.py")) <= CEILINGS[room]


def test_each_room_has_a_ceiling():
    rooms = {f"collectives/{page.parent.name}" for page in (ROOT / "collectives").glob("*/README.md")}
    assert rooms | {"grader", "helpers", "tools"} == set(CEILINGS)
