"""step() and timeline(): played, paused and scrubbed, with the mouse and with the keyboard alone."""

import itertools

import pytest

from tests.sampling import one_in

from .lab import DARK

STEP = """\
import time

import torch
import torch.distributed as dist

from helpers import run, step, timeline


def chain():
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.arange(3.0) if rank == 0 else torch.zeros(3)
    if rank > 0:
        dist.recv(x, rank - 1)
    if rank < n - 1:
        dist.send(x, rank + 1)


step(run(chain, world_size=4))"""
RING = """\
from collectives.algorithms import ring_all_reduce

step(ring_all_reduce(4))"""
TIMELINE = """\
def straggler():
    rank = dist.get_rank()
    dist.barrier()
    time.sleep(0.4 if rank == 1 else 0.01)
    dist.all_reduce(torch.ones(2))
    send = dist.isend(torch.ones(2), (rank + 1) % dist.get_world_size())
    dist.recv(torch.zeros(2), (rank - 1) % dist.get_world_size())
    send.wait()


timeline(run(straggler, world_size=4))"""
ROUND = """\
def round_the_ring():
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.tensor([10 * rank])
    for _ in range(n - 1):
        sent, x = dist.isend(x, (rank + 1) % n), torch.zeros_like(x)
        dist.recv(x, (rank - 1) % n)
        sent.wait()


step(run(round_the_ring, world_size=8))"""
# Lines and dots of an SVG that have less than 3:1 to the page, and no edge that has more.
LOST = """svg => {
    const channels = said => said.match(/[\\d.]+/g).map(Number)
    const light = said => channels(said).slice(0, 3).map(c => c / 255)
        .map(c => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0)
    const page = light(getComputedStyle(svg.closest('.jp-Notebook')).backgroundColor)
    const seen = tint => channels(tint)[3] !== 0 && Math.abs(Math.log((light(tint) + 0.05) / (page + 0.05))) > Math.log(3)
    const edged = e => e.tagName === 'line' ? e.previousElementSibling : e
    return [...svg.querySelectorAll('line:nth-child(even), circle')].filter(e => {
        const { fill, stroke } = getComputedStyle(e)
        return !seen(e.tagName === 'line' ? stroke : fill) && !seen(getComputedStyle(edged(e)).stroke)
    }).map(e => e.outerHTML)
}"""
CHIPS = """svg => [...svg.querySelectorAll('[data-at] > rect')].map(e =>
    ['x', 'y', 'width', 'height'].map(name => +e.getAttribute(name)))"""
STEPS = ["before", "step 1: 0 -> 1", "step 2: 1 -> 2", "step 3: 2 -> 3"]


@pytest.fixture
def notebook(open_):
    notebook = open_(STEP, RING, TIMELINE)
    notebook.run_all()
    at(notebook, 0)
    return notebook


def at(notebook, k):
    """Until the words and the picture are those of step k; what is drawn then."""
    cell = notebook.cell(0)
    cell.locator(".collectives [aria-live]", has_text=STEPS[k]).wait_for()
    cell.locator(f"svg[aria-label*='{STEPS[k].split(':')[0]}:']").wait_for()
    cell.locator(".count", has_text=f"{k} of 3").wait_for()
    return cell.locator(".collectives svg").inner_html()


def test_played_paused_and_scrubbed_with_the_mouse(notebook):
    cell, page = notebook.cell(0), notebook.page
    cell.get_by_role("button", name="Play").click()
    at(notebook, 1)
    cell.get_by_role("button", name="Pause").click()
    cell.get_by_role("button", name="Play").click()
    pictures = {at(notebook, 3)}
    cell.get_by_role("button", name="Play").wait_for()  # it stops by itself at the end
    cell.get_by_role("button", name="one step back").click()
    at(notebook, 2)
    cell.get_by_role("button", name="one step on").click()
    at(notebook, 3)
    track = cell.locator("input[type=range]").bounding_box()
    middle = track["y"] + track["height"] / 2
    page.mouse.click(track["x"] + track["width"] * 0.34, middle)
    pictures.add(at(notebook, 1))
    page.mouse.move(track["x"] + track["width"] * 0.34, middle)
    page.mouse.down()
    page.mouse.move(track["x"] + track["width"] * 0.66, middle, steps=8)
    pictures.add(at(notebook, 2))
    page.mouse.move(track["x"] - 5, middle, steps=8)
    pictures.add(at(notebook, 0))
    page.mouse.up()
    assert len(pictures) == 4, "two steps look the same"
    page.mouse.click(track["x"] + track["width"] * 0.66, middle)
    at(notebook, 2)
    cell.locator("[data-at='1 0']").last.hover()
    cell.get_by_text("0 1 2: data of rank 0, sent by rank 1 to rank 2 in step 2; it came by 0 → 1 → 2").wait_for()
    notebook.pictures("step")


def test_played_and_scrubbed_with_the_keyboard_alone(notebook):
    press = notebook.keyboard.press
    notebook.page.evaluate("document.activeElement.blur()")
    notebook.tab_to(".jp-OutputArea-output button")
    press("Space")
    at(notebook, 1)
    press("Space")
    notebook.cell(0).get_by_role("button", name="Play").wait_for()
    notebook.tab_to(".jp-OutputArea-output input[type=range]", 3)
    press("End")
    at(notebook, 3)
    press("ArrowLeft")
    at(notebook, 2)
    press("Home")
    at(notebook, 0)
    press("ArrowRight")
    at(notebook, 1)


@one_in(1, 2)
def test_steps_go_on_after_a_restart_and_without_a_message(open_):
    frames = []
    notebook = open_(STEP, frames=frames)
    notebook.run_all()
    at(notebook, 0)
    notebook.cell(0).locator("input[type=range]").focus()
    before = len([frame for frame in frames if "comm_msg" in frame])
    notebook.keyboard.press("ArrowRight")
    at(notebook, 1)
    assert len([frame for frame in frames if "comm_msg" in frame]) == before
    notebook.menu("Kernel", "Restart Kernel…")
    with notebook.page.expect_response(lambda answer: answer.url.partition("?")[0].endswith("/restart")):
        notebook.page.locator(".jp-Dialog button.jp-mod-accept").click()
    notebook.idle()
    notebook.cell(0).locator("input[type=range]").focus()
    notebook.keyboard.press("ArrowRight")
    at(notebook, 2)


def test_a_schedule_and_a_timeline_are_shown(notebook):
    ring, times = notebook.cell(1), notebook.cell(2)
    ring.locator("input[type=range]").focus()
    notebook.keyboard.press("End")
    ring.locator(".collectives [aria-live]", has_text="6 S so far; the end").wait_for()
    assert ring.locator("[data-at] text", has_text="Σ").count() == 16
    ring.locator("[data-at='2 0']").hover()
    ring.get_by_text("a on rank 2: the sum of ranks 0, 1, 2 and 3; rank 1 sent it in step 5").wait_for()
    ring.locator(".collectives svg").focus()
    notebook.keyboard.press("ArrowRight")
    ring.get_by_text("b on rank 2: the sum of").wait_for()
    notebook.pictures("step-ring")
    image = times.locator(".jp-OutputArea-output img")
    image.scroll_into_view_if_needed()
    assert image.evaluate("e => e.complete && e.naturalWidth > 800")
    notebook.pictures("timeline")


@one_in(1, 2)
def test_no_rank_is_lost_in_the_dark_and_no_chip_below_another(open_):
    notebook = open_(STEP, ROUND)
    notebook.run_all()
    cell = notebook.cell(1)
    cell.get_by_role("slider").focus()
    notebook.keyboard.press("End")
    cell.locator(".count", has_text="7 of 7").wait_for()
    notebook.theme(DARK)
    svg = cell.locator(".collectives svg")
    assert svg.locator("line").count() > 8 * 7 and svg.evaluate(LOST) == []
    chips = svg.evaluate(CHIPS)
    assert len(chips) == 8 * 7
    for (x, y, wide, high), (left, top, width, height) in itertools.combinations(chips, 2):
        assert abs(x - left) >= min(wide, width) or abs(y - top) >= min(high, height)
    notebook.pictures("step-round")
