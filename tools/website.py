"""Builds the course as a website, for reading without running:   make site

Sphinx with MyST-NB makes the pages from the notebooks as they are stored; nothing is run.  Recordings from when they
were executed play there without a kernel, see helpers/views/web.  The pages come out in _site/, to be opened or served
from any folder; nothing is loaded from elsewhere.
"""

import ast
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from html import escape
from pathlib import Path

from nbformat.v4 import new_markdown_cell, new_output
from PIL import Image

from collectives.figures.planning import planning
from collectives.figures.web.panel import describe_panel
from helpers.course import EXERCISES, ROOT, chapters
from helpers.views.web import LACKS, PUZZLES, RECORDED_FILE, script

from .notebooks import stored_picture
from .site import pictures, python
from .site.page_tasks import tasks
from .site.runnable_cells import CHECK, RUNNABLE, cells_of, examples_of

SITE = ROOT / "_site"
PARTS = ROOT / "tools" / "site"  # the start page, the style, Sphinx's settings
FOLDERS = ("notebooks", "exercises")  # as pages, in this order; links between them stay as they are
CAPTIONS = {"notebooks": "Chapters", "exercises": "Exercises"}
PAGES = (
    "first_hour",
    "watch_your_job",
    "three_in_the_morning",
    "explain_a_log",
    "planner",
    "cheatsheet",
    "reference",
    "calibration",
    "mistakes",
    "bench",
)
EXAMPLE = ROOT / "tests" / "corpus" / "nccl" / "absent.log"  # of a job that hung
LOST_PAGE = """# There is no such page
The search on the left knows all pages, and [the first page](index.md) shows the way to each.
"""  # what a host shows for an address that the site doesn't have
CELLS = "collectives-cells.js"  # the script of a page with cells that run there, or logs that are explained
WITH_CELLS = (*RUNNABLE, "README", "index", "explain_a_log")
RECORDING = "collectives"  # the metadata of an output that plays, see collectives/frontend.py
BUILD_FOLDER = ROOT / ".venv-site"  # where Pyodide stays from one build to the next
FOR_LAB = re.compile(r" ?<!-- in JupyterLab -->.*?<!-- end -->", re.DOTALL)  # not for the site
IMAGE = re.compile(r"^!\[(?P<words>[^]]*)\]\((?P<to>[^):]+)\)$|^<img (?P<tag>[^>]*)>$", re.MULTILINE)
DARK = re.compile(r"@media\(prefers-color-scheme:dark\)\{((?:[^{}]*\{[^{}]*\})*)\}")  # of an SVG
LINK = re.compile(r"\[([^]\[]*)\]\(([^)\s#:]*)(#[^)\s]*)?\)")
RECORDINGS = json.loads(RECORDED_FILE.read_text(encoding="utf-8"))
CHOICES = json.loads(
    PUZZLES.read_text(encoding="utf-8")
)  # a function without one of its lines -> the lines to choose from


class Figures:
    """The figures of one page, in HTML; its pictures are files that pages share.

    written: the tasks of functions that a reader writes here.  weighs: the number of Python's bytes; None
    where pages have no Python.
    """

    def __init__(
        self, page: Path, source: Path, written: dict[str, dict] | None = None, weighs: int | None = None
    ) -> None:
        self.page, self.written, self.weighs = page, written or {}, weighs
        self.static = os.path.relpath("_static", page.parent)
        self.folder = source / "_static" / "figures"
        self._script = CELLS if page.stem in WITH_CELLS else "collectives.js"
        self._scripted = False

    def picture(self, output: dict, alt: str | None = None) -> list[dict]:
        """The files of an output's picture, each with its words, its size and the pages, light or dark, that it is for."""
        stored = stored_picture(output)
        return self.files(stored.png, alt or stored.alt, stored.width, stored.narrow)

    def files(self, png: bytes, words: str, width: int | None, narrow: str = "") -> list[dict]:
        found = []
        for file in pictures.files(png, self.folder):
            _, theme, part = file.stem.split("-")
            with Image.open(file) as image:
                wide, high = image.size
            shown = width or wide // 2  # pictures have two pixels for each that is shown
            found.append({
                "src": f"{self.static}/figures/{file.name}", "alt": words if part == "0" else f"{words}, continued",
                "width": shown, "height": round(high * shown / wide), "class": f"only-{theme}",
            } | ({"data-narrow": narrow} if narrow and part == "0" else {}))  # fmt: skip
        return found

    def playing(self, recording: dict, output: dict | None) -> str:
        """A recording that plays, with its picture for a browser that runs no scripts."""
        if recording["kind"] == "explore":
            recording = RECORDINGS["explore"]
        picture = output and self.picture(output, recording.get("title"))
        if recording["kind"] == "planner":
            if not self.weighs:
                return still(picture)
            recording = describe_panel(planning(recording["asked"])) | recording | {"weighs": self.weighs}
        if picture and "key" in recording:
            recording = answer_figure(recording, self.picture(output))
        return self._live(recording, images(picture) if picture else "")

    def choice(self, name: str) -> str:
        """The lines to choose from for a function that lacks one; each one's outcome is in its encoded key."""
        chosen = CHOICES[name]
        outcomes = chosen["key"]["outcomes"].items()
        key = chosen["key"] | {"outcomes": {line: self._drawn(came) for line, came in outcomes}}
        return self._live(chosen | {"key": encode_key(key)}, "")

    def _drawn(self, came: dict) -> dict:
        """The outcome of a line, its picture in files for light and dark pages."""
        if "picture" not in came:
            return came
        drawn, alt = came["picture"]["svg"], came["picture"]["alt"]
        name = hashlib.sha256(drawn.encode()).hexdigest()[:16]
        self.folder.mkdir(parents=True, exist_ok=True)
        files = []
        for theme, image in (("light", DARK.sub("", drawn)), ("dark", DARK.sub(r"\1", drawn))):
            (self.folder / f"{name}-{theme}.svg").write_text(image, encoding="utf-8")
            size = {side: came["picture"][side] for side in ("width", "height")}
            files.append(
                {"src": f"{self.static}/figures/{name}-{theme}.svg", "alt": alt, **size, "class": f"only-{theme}"}
            )
        return came | {"picture": files}

    def explainer(self) -> str:
        """A box for logs, which are explained on the page; nothing where pages have no Python."""
        example = EXAMPLE.read_text(encoding="utf-8")
        return self._live({"kind": "explain", "weighs": self.weighs, "example": example}, "") if self.weighs else ""

    def runnable(self, cell: dict) -> str:
        """A cell that a reader can change and run."""
        return self._live(cell | {"weighs": self.weighs}, f"<pre>{escape(cell['source'])}</pre>")

    def editor(self, source: str) -> str | None:
        """A cell that a reader can write in; None if its function isn't a task of the page."""
        named = re.search(r"^def (\w+)\(", source, re.MULTILINE)
        if not named or named[1] not in self.written:
            return None
        asked = self.written[named[1]] | {"place": f"{self.page.parent}/{named[1]}", "weighs": self.weighs}
        function = next(part for part in ast.parse(source).body if getattr(part, "name", None) == named[1])
        upto = "\n".join(source.splitlines()[: function.end_lineno])  # the calls of it are for JupyterLab
        links = [f'<a href="{self.static}/incidents/{name}">{Path(name).name}</a>' for name in asked["task"].get("files", ())]
        files = f"<details><summary>{len(links)} files</summary>{', '.join(links)}</details>" if links else ""
        return files + self._live({"kind": "write", "source": upto, **asked}, f"<pre>{escape(upto)}</pre>")

    def _live(self, recording: dict, instead: str) -> str:
        """The HTML of a recording that plays, and of its replacement in a browser without scripts."""
        data = json.dumps(recording, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
        script = "" if self._scripted else f'<script defer src="{self.static}/{self._script}"></script>'
        self._scripted = True
        inside = f"<noscript>{instead}</noscript>" if instead else ""
        recorded = f'<script type="application/vnd.collectives+json">{data}</script>'
        return f'<div class="live {recording["kind"]}">{recorded}{inside}{room_for(recording)}</div>{script}'


def room_for(recording: dict) -> str:
    """The room of a figure until its script draws it: what comes below would jump. steps.js has the same sizes."""
    if recording.get("view") != "grid":
        return ""
    wide, high = 80 + 62 * len(recording["names"]), 52 * len(recording["start"]) - 4
    box = f"aspect-ratio: {wide} / {high}; min-width: {wide}px; width: min(100%, {1.3 * wide}px); padding-bottom: 124px; box-sizing: content-box"
    return f'<div class="room" style="{box}"></div>'


def still(picture: list[dict]) -> str:
    """A picture that stays as it is: never smaller than its letters can be read, so a phone scrolls it."""
    return f'<div class="still">{images(picture)}</div>'


def images(picture: list[dict]) -> str:
    """The picture in HTML; of lazy images, browsers load only the shown ones, so not the other theme's."""
    tags = (" ".join(f'{name}="{escape(str(value))}"' for name, value in file.items()) for file in picture)
    return "".join(f'<img {tag} loading="lazy">' for tag in tags)


def answer_figure(recording: dict, picture: list[dict]) -> dict:
    """A prediction whose encoded key holds the picture of its answer too."""
    key = json.loads(base64.b64decode(recording["key"]))
    key["after"]["picture"] = picture
    return recording | {"key": encode_key(key)}


def encode_key(key: dict) -> str:
    """A key as pages have it: no search finds an answer in it, and no one reads one by chance."""
    return base64.b64encode(json.dumps(key, ensure_ascii=False).encode()).decode()


def page_outputs(outputs: list[dict], figures: Figures, folded: bool) -> list[dict]:
    """A cell's outputs for a page: recordings play, pictures have words and size, and their text twins are folded."""
    found, before, told = [], False, False  # whether a picture came before, and one that has its words itself
    for output in outputs:
        data, recording = output.get("data", {}), output.get("metadata", {}).get(RECORDING)
        only_words = is_words(data)
        if recording:
            drawn = [o for o in outputs if stored_picture(o)]
            found.append(html(figures.playing(recording, drawn[0] if drawn else None)))
            if only_words and "key" not in recording:
                found.append(as_text(data))
        elif "image/png" in data:
            found.append(html(still(figures.picture(output))))
        elif only_words and told:
            continue
        elif only_words and before and not folded:
            found.append(as_text(data))
        else:
            found.append(output)
        before = bool(recording) or "image/png" in data
        told = bool(recording) and recording["kind"] == "planner" and bool(figures.weighs)
    return found


def is_words(data: dict) -> bool:
    """Whether an output is text alone, or the text twin of a picture."""
    folded = "".join(data.get("text/html", ""))
    return set(data) == {"text/plain"} or "text/plain" in data and folded.startswith('<div class="collectives-twin">')


def as_text(data: dict) -> dict:
    words = escape("".join(data["text/plain"]))
    return html(f"<details class='twin'><summary>as text</summary><pre>{words}</pre></details>")


def html(text: str) -> dict:
    return new_output("display_data", {"text/html": text})


# --- pages --------------------------------------------------------------------------------


def contents(folder: str) -> str:
    pages = sorted(path.stem for path in (ROOT / folder).glob("*.ipynb"))
    pages = ["README"] * (ROOT / folder / "README.md").exists() + pages
    return toctree(CAPTIONS[folder], *(f"{folder}/{page}" for page in pages))


def toctree(caption: str, *pages: str) -> str:
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"])


def fit_cell(cell: dict, figures: Figures, runnable: dict[str, dict]) -> None:
    """Fold bookkeeping, and outputs that a reader should predict, as JupyterLab does; but a recording begins with the question.

    runnable: the page's cells that a reader can run, by their ids; a check is a part of the cell with its function.
    """
    asks = any(RECORDING in output.get("metadata", {}) for output in cell["outputs"])
    hidden = cell["metadata"].get("jupyter", {})
    folded = hidden.get("outputs_hidden", False) and not asks
    tags = ["hide-output"] * folded + ["hide-input"] * hidden.get("source_hidden", False)
    cell["metadata"]["tags"] = [*cell["metadata"].get("tags", []), *tags]
    cell["outputs"] = page_outputs(cell["outputs"], figures, folded)
    if moving := RECORDINGS["players"].get(f"{figures.page.stem}/{cell['id']}"):
        player = figures.playing(moving, None)
        cell["outputs"].append(html(f"<details><summary>Watch it move</summary>{player}</details>" if asks else player))
    source = "".join(cell["source"])
    if source in (checks := {f"check_practice({name})": name for name in CHOICES}):
        cell["metadata"]["tags"] = [*cell["metadata"].get("tags", []), "remove-input"]
        choice = figures.choice(checks[source])
        if runnable:
            choice = f"<details class='choose'><summary>Or choose from four lines</summary>{choice}</details>"
        cell["outputs"] = [html(choice)]
    elif runnable and CHECK.fullmatch(source):
        cell["metadata"]["tags"] = [*cell["metadata"].get("tags", []), "remove-cell"]
    elif cell["id"] in runnable:
        cell["metadata"]["tags"] = [*cell["metadata"].get("tags", []), "remove-input"]
        cell["outputs"].insert(0, html(figures.runnable(runnable[cell["id"]])))
    elif CHECK.fullmatch(source):  # its stored words send the reader to a cell above
        cell["outputs"] = [html("<p>In JupyterLab, this cell checks what you wrote.</p>")]
    elif LACKS in source:
        cell["source"] = source.replace(LACKS, "...  # which line?")
    elif editor := figures.editor(source):
        cell["metadata"]["tags"] = [*cell["metadata"].get("tags", []), "remove-input"]
        cell["outputs"].append(html(editor))


def fit_images(text: str, page: Path, figures: Figures) -> str:
    """A page's text, its pictures light and dark like an output's."""

    def fitted(shown: re.Match) -> str:
        known = dict(re.findall(r'(\w+)="([^"]*)"', shown["tag"] or ""))
        file = ROOT / page.parent / (known.get("src") or shown["to"] or "")
        if file.suffix != ".png":
            return shown[0]
        return still(figures.files(file.read_bytes(), known.get("alt") or shown["words"], int(known.get("width", 0))))

    return IMAGE.sub(fitted, text)


def fit_links(text: str, page: Path, source: Path) -> str:
    """A page's text, its links resolved on the site.

    A file of the repository that isn't a page is copied next to them, which makes it a download; a folder's page is its
    README, and without one its link becomes plain words.
    """

    def fitted(link: re.Match) -> str:
        words, target, at = link[1], link[2], (link[3] or "").lower()  # MyST's anchors are small, JupyterLab's not
        here = page.parent / target if target else page
        if (ROOT / here).is_dir():
            target, here = f"{target.rstrip('/')}/README.md", here / "README.md"
            if not (source / here).exists():
                return words
        if (ROOT / here).is_file() and not (source / here).exists():
            copy = Path(os.path.normpath(source / here))
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / here, copy)
        return f"[{words}]({target}{at})"

    return re.sub(r'(href="[^":]+)\.ipynb', r"\1.html", LINK.sub(fitted, text))


def fit(page: Path, source: Path, written: dict[tuple[str, str], dict], weighs: int | None = None) -> None:
    """Makes a notebook or a text in `source`, at the place it has in the repository, fit for the site.

    written: the tasks that a reader can write on the site, by notebook and function.  weighs: as Figures takes it.
    """
    tasks_here = {name: asked for (notebook, name), asked in written.items() if page.stem == notebook}
    path, text, figures = (
        source / page,
        (source / page).read_text(encoding="utf-8"),
        Figures(page, source, tasks_here, weighs),
    )
    if page.suffix == ".md":
        text = text.replace("# Collectives\n", "# About the course\n", 1) if page.name == "README.md" else text
        text = fit_links(fit_images(with_runnable(text, page, figures), page, figures), page, source)
        if page.stem == "explain_a_log":
            text = text.replace("<!-- explain -->", f"```{{raw}} html\n{figures.explainer()}\n```")
        if page.stem == "planner":
            text = text.replace("<!-- planner -->", f"```{{raw}} html\n{figures.playing(*planner_output())}\n```")
        path.write_text(text, encoding="utf-8")
        return
    content = json.loads(text)
    content["cells"].insert(1, markdown(plays(page, weighs)))
    notebook = page.stem
    runnable = cells_of(notebook) if weighs and page.parent.name == "notebooks" and notebook in RUNNABLE else {}
    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            here = FOR_LAB.sub("", "".join(cell["source"]))
            cell["source"] = fit_links(fit_images(here, page, figures), page, source)
        elif cell["cell_type"] == "code":
            fit_cell(cell, figures, runnable)
    path.write_text(json.dumps(content), encoding="utf-8")


def with_runnable(text: str, page: Path, figures: Figures, most: int | None = None) -> str:
    """A text whose examples can be changed and run, the first ones, where pages have Python."""
    if figures.weighs and page.name in ("README.md", "index.md"):
        for block, cell in examples_of(page.stem, text)[:most]:
            text = text.replace(block, f"```{{raw}} html\n{figures.runnable(cell)}\n```", 1)
    return text


def plays(page: Path, weighs: int | None = None) -> str:
    """A line for readers without a kernel: the parts that work here, and where the cells run."""
    notebook = f"{page.parent}/{page.stem}.ipynb"
    words = "Recorded runs, predictions, and sliders play on this page. To run and change the cells yourself, "
    if weighs and page.stem in RUNNABLE:
        words = "Change a cell on this page and run it: Python in your browser pretends its ranks, one after the other. For real processes, "
    words += f"[install the course](../INSTALL.md) and open `{notebook}`"
    if name := repository():
        binder = f"https://mybinder.org/v2/gh/{name}/HEAD?urlpath=lab/tree/{notebook}"
        colab = f"https://colab.research.google.com/github/{name}/blob/main/{notebook}"
        words += f", or start it in [Codespaces](https://codespaces.new/{name}), in [Binder]({binder}) or, with "
        words += f"[one more cell](../INSTALL.md#in-the-cloud), in [Colab]({colab})"
    return f"```{{container}} plays\n{words}.\n```"


def how_to_clone() -> str:
    """The commands that fetch the course and open it."""
    if name := repository():
        folder = name.rpartition("/")[2]
        return f"```bash\ngit clone https://github.com/{name} && cd {folder} && make lab\n```"
    return "In a copy of the course's folder, with Python 3.10 or newer:\n\n```bash\nmake lab\n```"


def planner_output() -> tuple[dict, dict]:
    """The recording of chapter 21's planner, and its output with a picture."""
    chapter = json.loads(next((ROOT / "notebooks").glob("21_*.ipynb")).read_text(encoding="utf-8"))
    outputs = (output for cell in chapter["cells"] for output in cell.get("outputs", ()))
    recorded = ((output.get("metadata", {}).get(RECORDING), output) for output in outputs)
    return next((recording, output) for recording, output in recorded if recording and recording["kind"] == "planner")


@cache
def repository() -> str | None:
    """owner/name of the course on GitHub: REPOSITORY in the environment, or where this copy came from."""
    if setting := os.environ.get("REPOSITORY"):
        return setting
    asked = ["git", "remote", "get-url", "origin"]
    origin = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    found = re.search(r"github\.com[:/](.+?)(\.git)?$", origin)
    return found and found[1]


def markdown(text: str) -> dict:
    return new_markdown_cell(text, id=hashlib.sha256(text.encode()).hexdigest()[:8])


def start(source: Path, written: dict | None, weighs: int | None = None) -> str:
    """The first page: a ring that plays, a question, a schedule to mend, and where to go from there.

    written: the task of that schedule; None where there is no Python to write it.  weighs: as Figures takes it.
    """
    figures = Figures(Path("index.md"), source, {"my_ring": written} if written else None, weighs)
    page = (PARTS / "start.md").read_text(encoding="utf-8")
    page = with_runnable(page, Path("index.md"), figures, most=1)
    shown = {
        name: figures.playing(recording, None) for name, recording in RECORDINGS.items() if f"{{{{{name}}}}}" in page
    }
    shown["written"] = figures.editor((PARTS / "off_by_one.py").read_text(encoding="utf-8"))
    if not written:
        page = re.sub(r"^## Write one.*?(?=^## )", "", page, flags=re.MULTILINE | re.DOTALL)
    for name, figure in shown.items():
        page = page.replace(f"{{{{{name}}}}}", f"```{{raw}} html\n{figure}\n```")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = page.replace("{{stuck}}", re.search(r"^Stuck: .*?(?=^```$)", readme, re.MULTILINE | re.DOTALL)[0].strip())
    page = page.replace("{{waits}}", re.search(r"^<img [^>]*deadlock.png[^>]*>$", readme, re.MULTILINE)[0])
    page = fit_images(page, Path("index.md"), figures)
    page = page.replace("{{clone}}", how_to_clone())
    exercises = len([*EXERCISES.glob("*.ipynb")])
    page = page.replace(
        "{{extent}}", f"{len(chapters())} chapters with short tasks, and {exercises} exercises that are graded"
    )
    trees = [toctree("The course", "About the course <README>", "INSTALL"), *map(contents, FOLDERS)]
    return "\n\n".join([page, *trees, toctree("Field guide and tables", *(f"notebooks/{name}" for name in PAGES))])


def draw_pictures(source: Path, folder: Path) -> None:
    """Writes the files of all pictures in notebooks, on all cores: most of the time of a build."""
    notebooks = (json.loads(path.read_text(encoding="utf-8")) for path in source.rglob("*.ipynb"))
    outputs = (output for notebook in notebooks for cell in notebook["cells"] for output in cell.get("outputs", ()))
    drawn = dict.fromkeys(picture.png for picture in map(stored_picture, outputs) if picture)
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(pictures.files, folder=folder), drawn))


def prepared(source: Path) -> None:
    """Everything that Sphinx reads."""
    print("Drawing the pictures, light and dark (about a minute) ...", flush=True)
    static = source / "_static"
    static.mkdir(parents=True)
    for name in ("conf.py", "favicon.svg", "scorer.js"):
        shutil.copy(PARTS / name, source)
    for name in ("style.css", "pages.js"):
        shutil.copy(PARTS / name, static)
    shutil.copy(ROOT / "notebooks" / "images" / "deadlock.png", static / "share.png")
    (static / "collectives.js").write_text(script(), encoding="utf-8")
    (static / CELLS).write_text(script(cells=True), encoding="utf-8")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns(".*", "tasks"))
    for page in ("README.md", "INSTALL.md"):
        shutil.copy(ROOT / page, source)
    shutil.copytree(EXERCISES / "incidents", static / "incidents", ignore=shutil.ignore_patterns("*.md"))
    draw_pictures(source, static / "figures")
    weighs = python.serve(BUILD_FOLDER, static / "python")
    written = {place: {"task": asked} for place, asked in tasks().items()} if weighs else {}
    for path in [path for path in source.rglob("*") if path.suffix in (".md", ".ipynb")]:
        fit(path.relative_to(source), source, written, weighs)
    (source / "404.md").write_text(LOST_PAGE, encoding="utf-8")
    first = start(source, written.get(("09_algorithms", "my_ring")), weighs)
    (source / "index.md").write_text(first, encoding="utf-8")


def main() -> int:
    try:
        return build()
    except KeyboardInterrupt:
        print("\nStopped: _site is as it was.", file=sys.stderr)
        return 130


def build() -> int:
    with tempfile.TemporaryDirectory() as place:
        source, made = Path(place, "source"), Path(place, "site")
        prepared(source)
        command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "--keep-going"]
        print("Making the pages (another minute) ...", flush=True)
        environ = os.environ | {"REPOSITORY": repository() or ""}
        done = subprocess.run([*command, "-d", f"{place}/cache", str(source), str(made)], env=environ).returncode
        if done == 0:
            shutil.rmtree(SITE, ignore_errors=True)
            shutil.move(made, SITE)
            print(f"The course is in {SITE.relative_to(ROOT)}/index.html")
    return done


if __name__ == "__main__":
    sys.exit(main())
