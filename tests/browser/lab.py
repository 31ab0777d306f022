"""JupyterLab and Chromium, and a notebook open in them with what a learner does there."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from tests import ROOT

SCREENSHOTS = ROOT / "screenshots"
LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"
WIDTHS = {1440: 900, 1280: 1000, 800: 1100}  # and how high, in pixels
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
PATIENCE = 60_000  # ms: what one thing may take on a busy machine
SHOWN = ".jp-NotebookPanel:not(.lm-mod-hidden)"
# Controls and pictures of outputs that reach out of the page, or whose words are cut off.
CUT_OFF = """() => [...document.querySelectorAll('.jp-OutputArea-output')].flatMap(output => {
    const page = output.closest('.jp-OutputArea').getBoundingClientRect()
    const things = 'button, input, select, textarea, pre, img, .noUi-target, .widget-label'
    return [...output.querySelectorAll(things)].filter(e => {
        const box = e.getBoundingClientRect()
        if (!box.width || !box.height) return false
        const words = e.matches('button, .widget-label') && e.scrollWidth > e.clientWidth + 1
        return words || box.left < page.left - 1 || box.right > page.right + 1
    }).map(e => `${e.tagName} ${e.className} ${e.innerText || e.title}`)
})"""


def missing() -> str:
    """Why there can be no browser test here; '' if there can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed (make test-browser installs it)"
    if not chromium():
        return "no Chromium found (on Debian: apt install chromium)"
    return ""


def chromium() -> str | None:
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), None)


@contextlib.contextmanager
def jupyterlab(folder: Path, *command: str | Path, course: Path = ROOT):
    """JupyterLab on the notebooks in `folder`, or what `command` starts, with the `course`; gives its address and token."""
    home = Path(tempfile.mkdtemp(prefix="lab-home-"))
    names = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
    env = {**os.environ, "HOME": str(home), "IPYTHONDIR": str(home / "ipython")}
    env |= {f"JUPYTER_{name}": str(home / name) for name in names}
    env |= {f"JUPYTERLAB_{name}": str(home / name) for name in ("SETTINGS_DIR", "WORKSPACES_DIR")}
    env |= {"PYTHONPATH": str(course), "COLLECTIVES_PROGRESS": str(folder / ".progress.json")}  # which git ignores
    env["JUPYTER_PREFER_ENV_PATH"] = "1"  # as tools/lab.py does
    config = home / "CONFIG_DIR" / "labconfig"
    config.mkdir(parents=True)
    off = '{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}'
    (config / "page_config.json").write_text(off)
    tracker = home / "SETTINGS_DIR" / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings"
    tracker.parent.mkdir(parents=True)
    tracker.write_text('{"windowingMode": "none"}')  # all cells are in the page, also those nobody has scrolled to
    if not command:
        command = ("-m", "jupyterlab", "--no-browser", f"--ServerApp.root_dir={folder}")
        command += ("--allow-root",) if os.geteuid() == 0 else ()
    command = (sys.executable, *command)
    lab = subprocess.Popen(
        command,
        cwd=course,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, address = [], None
        for line in lab.stdout:
            said.append(line)
            if address := re.search(r"(http://127\.0\.0\.1:\d+)/lab\S*?token=(\w+)", line):
                break
        assert address, "JupyterLab did not start:\n" + "".join(said)
        # It goes on writing its log, and would stop at a pipe that nobody empties.
        reader = threading.Thread(target=deque, args=(lab.stdout, 0), daemon=True)
        reader.start()
        listening(address[1])
        yield address[1], address[2]
    finally:
        lab.terminate()
        try:
            lab.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(lab.pid, 9)
            lab.wait()
        reader.join()
        lab.stdout.close()
        shutil.rmtree(home, ignore_errors=True)


def listening(address: str) -> None:
    """Until somebody listens at an address: JupyterLab says it a moment before."""
    at, until = urlsplit(address), time.monotonic() + PATIENCE / 1000
    while True:
        try:
            return socket.create_connection((at.hostname, at.port)).close()
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def end_kernels(base: str, token: str) -> None:
    """Ends every kernel of a JupyterLab."""
    headers = {"Authorization": f"token {token}"}
    with urlopen(Request(f"{base}/api/sessions", headers=headers), timeout=60) as answer:
        sessions = json.load(answer)
    for session in sessions:
        urlopen(Request(f"{base}/api/sessions/{session['id']}", headers=headers, method="DELETE"), timeout=60).close()


class Notebook:
    """A notebook open in JupyterLab, and what a learner does with it."""

    def __init__(self, page, address: str) -> None:
        self.page, self.keyboard = page, page.keyboard
        page.set_default_timeout(PATIENCE)
        page.goto(address)
        page.wait_for_selector(f"{SHOWN} .jp-Cell")
        self.idle()

    def idle(self) -> None:
        """Until the status bar says that the kernel has nothing to do."""
        self.page.wait_for_function(
            "() => /^Python 3.*\\| Idle$/m.test(document.querySelector('#jp-main-statusbar')?.innerText || '')"
        )

    def menu(self, name: str, *items: str) -> None:
        self.page.locator(f'#jp-MainMenu .lm-MenuBar-itemLabel:text-is("{name}")').click()
        for item in items[:-1]:
            self.page.locator(f'.lm-Menu-itemLabel:text-is("{item}")').first.hover()
        self.page.locator(f'.lm-Menu-itemLabel:text-is("{items[-1]}")').first.click()

    def cell(self, number: int):
        """The n-th code cell."""
        return self.page.locator(f"{SHOWN} .jp-CodeCell").nth(number)

    def run_all(self, timeout: float = PATIENCE) -> None:
        """Every cell, to the end; what a notebook was saved with is cleared away before."""
        self.menu("Edit", "Clear Outputs of All Cells")
        self.menu("Run", "Run All Cells")
        self.page.wait_for_function(  # a cell whose input is folded away has an empty prompt
            "prompts => [...document.querySelectorAll(prompts)].every(e => !e.textContent || /\\d/.test(e.textContent))",
            arg=f"{SHOWN} .jp-CodeCell .jp-InputPrompt",
            timeout=timeout,
        )
        self.idle()

    def run_cell(self, number: int) -> None:
        """As a learner does: click into it, Shift and Enter."""
        self.cell(number).locator(".cm-content").click()
        self.keyboard.press("Shift+Enter")

    def failed(self) -> list[int]:
        """The code cells that show an error."""
        return self.page.evaluate(
            """cells => [...document.querySelectorAll(cells)].flatMap((cell, k) =>
            cell.querySelector('[data-mime-type="application/vnd.jupyter.error"]') ? [k] : [])""",
            f"{SHOWN} .jp-CodeCell",
        )

    def broken_links(self) -> int:
        """How many widgets JupyterLab marks as disconnected, by a sign."""
        return self.page.evaluate(
            """link => [...document.querySelectorAll('*')]
            .filter(e => getComputedStyle(e, '::before').content === link).length""",
            '"\uf127"',
        )

    def tab_to(self, selector: str, most: int = 60) -> None:
        """Presses Tab until something that matches has the focus."""
        for _ in range(most):
            self.keyboard.press("Tab")
            if self.page.evaluate("s => document.activeElement.matches(s)", selector):
                return
        raise AssertionError(f"{selector} cannot be reached with Tab")

    def theme(self, name: str) -> None:
        self.menu("Settings", "Theme", name)
        dark = name == DARK
        self.page.wait_for_function("dark => (document.body.dataset.jpThemeLight === 'false') === dark", arg=dark)
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")

    def picture(self, name: str) -> None:
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")

    def pictures(self, name: str, *widths: int) -> None:
        """In both themes and two widths, in each of which everything must be there to be seen."""
        down = widths or (1280, 800)
        for theme, sizes in ((DARK, down), (LIGHT, down[::-1])):
            self.theme(theme)
            for width in sizes:
                self.page.set_viewport_size({"width": width, "height": WIDTHS[width]})
                self.picture(f"{name}-{theme.split()[1].lower()}-{width}")
                cut = self.page.evaluate(CUT_OFF)
                assert not cut, f"cut off at {width} pixels: {cut}"
