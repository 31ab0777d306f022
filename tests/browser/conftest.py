import functools
import http.server
import os
import shutil
import subprocess
import threading
import uuid
from pathlib import Path

import nbformat
import pytest
from xdist.scheduler import LoadFileScheduling

from .lab import PATIENCE, QUIET, ROOT, SCREENSHOTS, WIDTHS, Notebook, chromium, end_kernels, jupyterlab, missing

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}

NOT_PART_OF_IT = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", "_site", "__pycache__", "screenshots", "progress.md"
)

SITE = dict.fromkeys(("test_website", "test_axe"), "site")  # half of what needs it; the other half comes once it is built
PAGES = dict.fromkeys(("test_site", "test_writing", "test_typing", "test_marking"), "pages")
COURSE = dict.fromkeys(("test_lab", "test_second_day"), "course")


class BySharedFixture(LoadFileScheduling):
    """Gives the files that share a JupyterLab to one worker, which starts it once, and those of the website to two."""

    def _split_scope(self, nodeid):
        return (SITE | PAGES | COURSE).get(Path(nodeid.partition("::")[0]).stem, "lab")


def pytest_xdist_make_scheduler(config, log):
    return BySharedFixture(config, log)


def pytest_collection_modifyitems(items):
    if os.environ.get("BROWSER_TESTS") != "required":
        why = missing() or "make test-browser runs them"
        for item in items:
            if item.path.parent == Path(__file__).parent:
                item.add_marker(pytest.mark.skip(reason=f"browser tests: {why}"))


@pytest.fixture(scope="session")
def chrome():
    """One browser window for all: what it has loaded once stays in its cache."""
    assert not missing(), missing()
    from playwright.sync_api import sync_playwright

    SCREENSHOTS.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=QUIET)
        yield browser.new_context(viewport={"width": 1280, "height": WIDTHS[1280]})
        browser.close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *what):
        pass


@pytest.fixture(scope="module")
def address(site):
    """Where the site is served from."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def served_page(chrome, address, request):
    """An empty page for one of the site's; at the end nothing may have failed, or come from elsewhere."""
    wrong = []
    context = chrome.browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda sent: None if sent.url.startswith((address, "data:")) else wrong.append(sent.url))
    yield page
    page.screenshot(path=SCREENSHOTS / f"site-{request.node.name}.png", full_page=True)
    context.close()
    assert wrong == []


@pytest.fixture(scope="session")
def lab(chrome, tmp_path_factory):
    """Address, token and folder of one JupyterLab for all."""
    folder = tmp_path_factory.mktemp("course")
    for name in ("notebooks", "exercises"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(".*"))
    with jupyterlab(folder) as (address, token):
        yield address, token, folder


@pytest.fixture(scope="session")
def course(tmp_path_factory):
    """JupyterLab as `make lab` starts it: the folder of a copy of the course whose files git knows, its address and token."""
    folder = tmp_path_factory.mktemp("made") / "course"
    shutil.copytree(ROOT, folder, ignore=NOT_PART_OF_IT)
    git(folder, "init", "-q")
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=nobody", "-c", "user.email=nobody@localhost", "commit", "-q", "-m", "as it was")
    script = folder / "tools" / "lab.py"
    with jupyterlab(folder, "-I", script, "--no-browser", course=folder) as (address, token):
        yield folder, address, token


def git(folder, *command):
    return subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    item.failed = report.failed
    return report


@pytest.fixture
def open_(chrome, lab, request):
    """Opens a notebook of the course, by its path, or a new one with these cells, each time with a kernel of its own."""
    pages, (address, token, folder) = [], lab

    def open_notebook(what: str | Path, *more: str, frames: list | None = None) -> Notebook:
        if isinstance(what, Path):
            copy = folder / what.relative_to(ROOT).with_stem(f"{what.stem}-{uuid.uuid4().hex[:6]}")
            shutil.copy(what, copy)
        else:
            copy = folder / f"{uuid.uuid4().hex}.ipynb"
            cells = [nbformat.v4.new_code_cell(source) for source in (what, *more)]
            nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), copy)
        page = chrome.new_page()
        pages.append(page)
        if frames is not None:
            page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: frames.append(str(frame))))
        return Notebook(page, f"{address}/lab/tree/{copy.relative_to(folder)}?reset&token={token}")

    yield open_notebook
    for page in pages:
        if request.node.failed:
            page.screenshot(path=SCREENSHOTS / f"failed-{request.node.name}.png")
        page.close()
    end_kernels(address, token)
