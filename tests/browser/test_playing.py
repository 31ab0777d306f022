"""What plays in JupyterLab: a pipeline schedule changed with mouse and keyboard, costs that follow their sliders."""

import io

from PIL import Image, ImageColor

from collectives.draw.canvas import PALETTE

from tests.sampling import one_in

from .lab import DARK, LIGHT

PLAY = """\
from collectives.play import play

play("1F1B", ranks=4, microbatches=8)"""


@one_in(0, 2)
def test_bubble_and_memory_move_with_the_controls(open_):
    notebook = open_(PLAY)
    notebook.run_all()
    cell = notebook.cell(0)

    def says(words):
        cell.locator(".collectives [aria-live]", has_text=words).wait_for()

    says("time 33; bubble 37.5% of the work; a rank keeps at most 4 microbatches; 48 messages")
    before = cell.locator(".collectives img").get_attribute("src")
    cell.get_by_role("slider", name="microbatches").focus()
    notebook.keyboard.press("ArrowRight")
    says("bubble 33.3% of the work")
    says("before: time 33, bubble 37.5%")
    cell.locator("img[alt*='bubble 33.3%']").wait_for()
    assert cell.locator(".collectives img").get_attribute("src") != before
    cell.get_by_role("button", name="interleaved").click()
    says("groups of 4, one per rank; 9 is not a multiple")
    cell.locator(".collectives img").wait_for(state="detached")
    cell.get_by_role("button", name="zero bubble").click()
    says("bubble 11.1% of the work")
    image = cell.locator("img[alt*='bubble 11.1%']")
    image.wait_for()
    assert image.evaluate("e => e.complete && e.naturalWidth > 800")
    notebook.pictures("play")


@one_in(1, 2)
def test_costs_follow_their_sliders(open_):
    notebook = open_("from helpers import costs\n\ncosts()")
    notebook.run_all()
    cell = notebook.cell(0)
    cell.get_by_role("slider", name="ranks").focus()
    notebook.keyboard.press("End")
    cell.locator("[aria-live]", has_text="131,072 ranks, 1 MiB: halving and doubling is fastest").wait_for()
    cell.get_by_role("slider", name="buffer").focus()
    notebook.keyboard.press("Home")
    cell.locator("[aria-live]", has_text="131,072 ranks, 8 B: recursive doubling is fastest with 85 µs").wait_for()
    notebook.pictures("costs")


DRAWN = """\
import torch
import torch.distributed as dist

from helpers import run


def add():
    x = torch.tensor([dist.get_rank()])
    dist.all_reduce(x)


run(add, world_size=4)"""


@one_in(0, 2)
def test_a_picture_is_as_dark_as_the_page_and_its_ranks_keep_their_colours(open_):
    notebook = open_(DRAWN)
    notebook.run_all()
    picture = notebook.cell(0).locator("img")
    for theme in (DARK, LIGHT):
        notebook.theme(theme)
        shot = Image.open(io.BytesIO(picture.screenshot())).convert("RGB")
        paper = shot.getpixel((3, 3))
        assert max(paper) < 30 if theme == DARK else min(paper) == 255
        much = {colour for count, colour in shot.getcolors(1 << 24) if count > 100}
        assert {ImageColor.getrgb(tint) for tint in PALETTE[:4]} <= much
    notebook.picture("picture")
