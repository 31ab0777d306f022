"""What the website plays besides its chapters is what ranks do now; and the module that plays it."""

import base64
import gzip
import json
from itertools import product

import pytest

from collectives.cost import nccl
from collectives.draw.canvas import PALETTE
from collectives.figures.web import module
from collectives.machines import rails
from helpers import network_prices
from helpers.course import NOTEBOOKS
from helpers.views.explore import PLAYS, _grid, code, execute, setting
from helpers.views.prices import NETWORKS
from helpers.views.web import FIGURES, RECORDED_FILE, script
from tools import recordings

MOST = 60_000  # bytes of a figure's data
SCRIPT = 61_345  # of a page's script
MOST_WITH_CELLS = 71_045  # of one that also runs a notebook's cells
MODULE = 22_600  # bytes of what plays a figure in JupyterLab
STORED = json.loads(RECORDED_FILE.read_text(encoding="utf-8"))


def as_stored(made):
    return json.loads(json.dumps(made))


@pytest.mark.slow
def test_what_is_stored_is_what_ranks_do_now():
    assert as_stored(recordings.ring()) == STORED["ring"]
    assert as_stored(recordings.question()) == STORED["question"]
    assert as_stored(recordings.deadlock()) == STORED["deadlock"]
    assert as_stored(recordings.costs().recording()) == STORED["costs"]
    assert as_stored(recordings.players()) == STORED["players"]
    explored = unpacked()
    for op, n, root, reduce_op, size in (
        ("all_to_all", 5, 0, "SUM", 4),
        ("scatter", 4, 2, "SUM", 1),
        ("reduce", 3, 1, "MAX", 2),
        ("barrier", 2, 0, "SUM", 3),
    ):
        rows = {}
        title, *sides = _grid(execute(code(op, root, reduce_op, "float32", size), n).done, rows)
        stored, *places = explored["runs"][setting(op, n, root, reduce_op, size)]
        assert stored == title
        assert as_stored([[[*rows][k] for k in side] for side in sides]) == [
            [explored["rows"][k] for k in side] for side in places
        ]


def unpacked():
    """Rows and runs of the website's explore()."""
    return json.loads(gzip.decompress(base64.b64decode(STORED["explore"]["packed"])))


def test_explore_on_the_website_has_a_run_of_every_setting_of_its_controls():
    offered = {control["name"]: control["options"] for control in STORED["explore"]["controls"]}
    assert offered == {name: [*map(str, options)] for name, options in PLAYS.items()}
    settings = product(*(PLAYS[name] for name in ("op", "world_size", "root", "reduce_op", "size")))
    assert {setting(*each) for each in settings if each[2] < each[1]} == set(unpacked()["runs"])


def test_figures_are_light():
    for name, recording in STORED.items():
        assert len(json.dumps(recording, ensure_ascii=False, separators=(",", ":")).encode()) <= MOST, name
    assert len(script().encode()) <= SCRIPT
    assert len(script(cells=True).encode()) <= MOST_WITH_CELLS


def test_a_figure_brings_only_what_it_needs_and_the_colours_of_the_pictures():
    for file in FIGURES:
        assert json.dumps(PALETTE) in module(file) and len(module(file).encode()) <= MODULE, file


def test_what_nccl_takes_on_networks_is_in_its_figure_and_its_words():
    """The table that the sliders look up has the prices and the bands of nccl(), and says where they end."""
    shown = network_prices()
    recording = shown.recording()
    k, g, b = list(NETWORKS).index("TCPXO (A3 Mega)"), recording["gpus"].index(128), recording["bytes"].index(2**20)
    gathers = next(each for each in recording["collectives"] if each["name"] == "all_gather")
    cost = nccl("all_gather", rails(16, nic=25e9, network="TCPXO"))(2**20)
    assert float(gathers["seconds"][k][g].split()[b]) == pytest.approx(cost.seconds, rel=0.01)
    network = recording["networks"][k]
    assert (
        float(network["high"].split()[b]) * cost.seconds == pytest.approx(cost.band[1], rel=0.02)
        and network["most"] == 16
    )
    assert len(json.dumps(recording)) <= MOST
    assert "InfiniBand, RoCE" in repr(shown) and "16.2 µs to 90.5 µs" in repr(shown)


def test_every_player_of_the_website_is_below_a_cell():
    for place in STORED["players"]:
        name, cell = place.split("/")
        assert f'"id": "{cell}"' in (NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"), place
