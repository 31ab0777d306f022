"""A real JupyterLab and a real browser, for test_browser.py and for looking at pages by hand."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
SECONDS = 30_000  # ms: what a page may take on a busy machine


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
def jupyterlab(folder: Path):
    """The course's own JupyterLab on a copy of the notebooks in `folder`; gives its address and token."""
    home = Path(tempfile.mkdtemp(prefix="lab-home-"))
    names = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
    env = {**os.environ, "HOME": str(home), "IPYTHONDIR": str(home / "ipython")}
    env |= {f"JUPYTER_{name}": str(home / name) for name in names}
    env |= {f"JUPYTERLAB_{name}": str(home / name) for name in ("SETTINGS_DIR", "WORKSPACES_DIR")}
    env |= {"PYTHONPATH": str(ROOT), "COLLECTIVES_PROGRESS": str(folder / "progress.json")}
    env["JUPYTER_PREFER_ENV_PATH"] = "1"  # as helpers/lab.py does
    config = home / "CONFIG_DIR" / "labconfig"
    config.mkdir(parents=True)
    off = '{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}'
    (config / "page_config.json").write_text(off)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", f"--ServerApp.root_dir={folder}"]
    command += ["--allow-root"] if os.geteuid() == 0 else []
    lab = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said, address = [], None
        for line in lab.stdout:
            said.append(line)
            if address := re.search(r"(http://127\.0\.0\.1:\d+)/lab\S*?token=(\w+)", line):
                break
        assert address, "JupyterLab did not start:\n" + "".join(said)
        yield address[1], address[2]
    finally:
        lab.terminate()
        try:
            lab.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(lab.pid, 9)
            lab.communicate()
        shutil.rmtree(home, ignore_errors=True)


def end_kernels(base: str, token: str) -> None:
    """Ends every kernel of a JupyterLab."""
    headers = {"Authorization": f"token {token}"}
    with urlopen(Request(f"{base}/api/sessions", headers=headers), timeout=30) as answer:
        sessions = json.load(answer)
    for session in sessions:
        urlopen(Request(f"{base}/api/sessions/{session['id']}", headers=headers, method="DELETE"), timeout=30).close()


class Notebook:
    """A notebook open in JupyterLab, and what a learner does with it."""

    def __init__(self, page, base: str, token: str, name: str) -> None:
        self.page = page
        page.set_default_timeout(SECONDS)
        page.goto(f"{base}/lab/tree/{name}?reset&token={token}")
        page.wait_for_selector(".jp-NotebookPanel:visible .jp-Cell")
        self.idle()

    def idle(self, timeout: float = SECONDS) -> None:
        """Until the status bar says that the kernel has nothing to do."""
        self.page.wait_for_function(
            "() => /^Python 3.*\\| Idle$/m.test(document.querySelector('#jp-main-statusbar')?.innerText || '')",
            timeout=timeout,
        )

    def status(self, state: str) -> None:
        self.page.wait_for_function(
            "s => (document.querySelector('#jp-main-statusbar')?.innerText || '').includes(s)", arg=f"| {state}"
        )

    def menu(self, name: str, item: str) -> None:
        self.page.locator(f'#jp-MainMenu .lm-MenuBar-itemLabel:text-is("{name}")').click()
        self.page.locator(f'.lm-Menu-itemLabel:text-is("{item}")').first.click()

    def run_all(self, timeout: float = 240_000) -> None:
        """Every cell, to the end."""
        self.menu("Run", "Run All Cells")
        self.page.wait_for_function(
            "() => [...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell .jp-InputPrompt')]"
            ".every(e => /\\d/.test(e.innerText))",
            timeout=timeout,
        )
        self.idle(timeout)

    def cell(self, number: int):
        """The n-th code cell."""
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell").nth(number)

    def running(self, number: int) -> None:
        """Until the n-th code cell is what the kernel is at: those before it are done."""
        prompts = self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell .jp-InputPrompt")
        for k in range(number):
            self.page.wait_for_function(
                "k => /\\d/.test(document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')[k].innerText)", arg=k
            )
        assert "*" in prompts.nth(number).inner_text()

    def theme(self, name: str) -> None:
        """JupyterLab Light or JupyterLab Dark."""
        self.page.locator('#jp-MainMenu .lm-MenuBar-itemLabel:text-is("Settings")').click()
        self.page.locator('.lm-Menu-itemLabel:text-is("Theme")').hover()
        self.page.locator(f'.lm-Menu-itemLabel:text-is("{name}")').click()
        dark = "Dark" in name
        self.page.wait_for_function("d => (document.body.dataset.jpThemeLight === 'false') === d", arg=dark)
        self.page.wait_for_load_state("networkidle")
