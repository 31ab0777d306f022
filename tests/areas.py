"""Which tests a change needs, by the first row that fits each changed file:   python3 -m tests.areas [BASE]

BASE is what the change is compared with, by default where it left origin/main.  Prints the tests, or nothing if all are needed: a
file is in no row or its row says so, or there is nothing to compare with.  Standard library only: it runs before anything is
installed.  What a row leaves out still runs every night.
"""

import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

from . import ROOT

ALL = None  # whatever there is
ITSELF = "{file}"
CHAPTER, SOLUTION = "notebooks/{stem}.ipynb", "solutions/{stem}.ipynb"  # of a task
TEXT = ("test_repository", "test_prose", "test_chapters", "test_notebooks")
PAGES = ("test_site", "test_recordings", "test_written", "test_runnable", "test_puzzles")
SITE = (*PAGES, "browser")
OPENED = (
    "browser/test_website",
    "browser/test_axe",
    "browser/test_writing",
    "browser/test_typing",
    "browser/test_lab",
    "browser/test_opened",
)
GRADER = (
    "test_score", "test_class", "test_grade", "test_handed_in", "test_forged", "test_switch", "test_nbgrader",
    "test_agreement", "test_files", "test_as_gloo_does",
)  # fmt: skip
EXERCISES = ("test_exercises", "test_agreement", *TEXT)
PRICES = ("test_network", "test_machines", "test_planner", "test_calibrate", "test_traffic", "test_colours", *TEXT)
EXPLAIN = (
    "test_explain",
    "test_explain_logs",
    "test_explain_evidence",
    "test_explain_traces",
    "test_one_judge",
    "test_imports",
)
JOBS = (
    "test_cluster",
    "test_caught",
    "test_decisions",
    "test_ring",
    "test_local",
    "test_steps",
    "test_timeline",
    "test_starts",
    "test_nccl",
    "test_foreign",
)
ALWAYS = ("test_repository", "test_imports", "test_budget", "test_names")

# Pattern of a path -> the tests of what is there. The first row that fits a file counts.
AREAS = {
    "notebooks/trainer/*": ("test_trainer", "test_mine", "notebooks/20_one_model_every_way.ipynb", "test_site", *TEXT),
    "notebooks/jobs/*": ("test_hosts", *JOBS, *TEXT),
    "notebooks/*.ipynb": (ITSELF, "test_slides", "test_mine", *TEXT, *PAGES, *OPENED),
    "notebooks/*": (*TEXT, *PAGES, "browser/test_website", "browser/test_axe"),
    "solutions/*.ipynb": (ITSELF, *EXERCISES),
    "solutions/*": TEXT,
    "exercises/tasks/practice/twelve_puzzles.py": ("test_puzzles", *EXERCISES, *SITE),
    "exercises/tasks/practice/*": (CHAPTER, *EXERCISES, *GRADER),
    "exercises/tasks/*": (SOLUTION, *EXERCISES, *GRADER),
    "exercises/*": (*EXERCISES, *GRADER),
    ".changes/*": TEXT,
    "*.md": (*TEXT, "test_site"),
    "LICENSE*": TEXT,
    "CITATION.cff": TEXT,
    ".gitignore": TEXT,
    ".devcontainer/*": TEXT,
    ".github/*": TEXT,
    "grader/*": GRADER,
    "tools/site/*": SITE,
    "tools/website.py": SITE,
    "tools/publish.py": ("test_publish",),
    "tools/renew.py": ("test_publish",),
    "tools/licenses.py": ("test_publish",),
    "tools/*": ("test_environment", "test_slides", "test_teachers", "test_notebooks", "test_exercises", "test_calibrate", *SITE),
    "collectives/machines/*": PRICES,
    "collectives/cost/*": PRICES,
    "collectives/planner/*": (*PRICES, *SITE),
    "collectives/calibrate/*": PRICES,
    "collectives/algorithms/*": (
        "test_schedule",
        "test_schedule_pictures",
        "test_pipeline",
        "test_step",
        *PRICES,
        *SITE,
    ),
    "collectives/figures/*": ("test_step", "test_schedule", "test_pipeline", "test_planner", *SITE),
    "collectives/collect/*": ("test_collect",),
    "collectives/pretend/*": ("test_pretend", "test_runnable", "test_prose"),
    "tests/pretended.py": ("test_pretend",),
    "tests/slurm.py": ("test_collect",),
    "collectives/same/*": ("test_same", "test_prose"),
    "tests/corpus/same.py": ("test_same",),
    "collectives/train/*": ("test_parallel", "test_letters", "test_correct", "test_pictures", *TEXT),
    "collectives/watch/explain/*": EXPLAIN,
    "collectives/watch/steps/*": ("test_steps", "test_timeline", *EXPLAIN),
    "collectives/watch/*": (*JOBS, *EXPLAIN, "test_recorder", "test_hosts", "test_library"),
    "collectives/remote/*": ("test_hosts", "test_engines", "test_ranks"),
    "helpers/trainer/*": ("test_trainer", "test_mine"),
    "helpers/views/*": ("test_predict", "test_explore", "test_maps", "test_machines", "test_planner", *SITE),
    "helpers/terminal.py": ("test_terminal", "notebooks/01_ranks.ipynb"),
    "tests/test_*.py": (ITSELF,),
    "tests/browser/*": ("browser",),
    # What all rests on: the core, the rest of helpers, and what the tests share.
    "collectives/*": ALL,
    "helpers/*": ALL,
    "tests/*": ALL,
    ".ci/*": ALL,
    ".gitattributes": ALL,
    "Makefile": ALL,
    "conftest.py": ALL,
    "constraints.txt": ALL,
    "environment.yml": ALL,
    "pyproject.toml": ALL,
}


def needed(files: list[str]) -> list[str] | None:
    """The test files and notebooks for a change of these files, as paths; None for all."""
    chosen = set(ALWAYS)
    for file in files:
        tests = next((tests for pattern, tests in AREAS.items() if fnmatch(file, pattern)), ALL)
        if tests is ALL:
            return None
        chosen |= {test.format(file=file, stem=Path(file).stem) for test in tests}
    return sorted(path for path in map(path_of, chosen) if (ROOT / path).exists())  # a changed file may be gone


def path_of(test: str) -> str:
    """The path of a test file, of a folder of them, or of a notebook, which a row names by its path."""
    return test if test.endswith((".py", ".ipynb")) else f"tests/{test}" + ".py" * ("test_" in test)


def changed(base: str) -> list[str] | None:
    """The files in which this checkout differs from a commit; None if that isn't known."""
    found = git("diff", "--name-only", base)
    return found if found is None else found.splitlines()


def main() -> None:
    if base := " ".join(sys.argv[1:2]) or fork():
        print(*needed(changed(base) or ["?"]) or ())


def fork() -> str:
    """The commit at which this checkout left origin/main; empty if it hasn't, or there is no such branch."""
    base, head = git("merge-base", "origin/main", "HEAD"), git("rev-parse", "HEAD")
    return "" if base in (head, None) else base.strip()


def git(*words: str) -> str | None:
    """The output of git about this checkout; None where git fails, as outside of a repository, or isn't installed."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


if __name__ == "__main__":
    main()
