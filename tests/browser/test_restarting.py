"""A run whose kernel is restarted: its status line disappears."""

LONG = """
import time
from helpers import run
def sleepy():
    time.sleep(600)
run(sleepy, world_size=2)
"""


def test_a_restart_leaves_no_status_line(open_):
    notebook = open_(LONG)
    page, line = notebook.page, notebook.page.locator(".collectives-status")
    notebook.run_cell(0)
    line.wait_for()
    assert line.inner_text() == "2 ranks running sleepy: no call yet ..."
    page.wait_for_timeout(7000)  # the line is repeated, so it stays as long as the run
    assert line.is_visible()
    notebook.menu("Kernel", "Restart Kernel…")
    page.get_by_role("button", name="Confirm Kernel Restart").click()
    line.wait_for(state="hidden")
