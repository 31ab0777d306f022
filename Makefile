# What a reader, a teacher and CI run. Every command makes its own environment first.
PYTHON ?= python3
VENV ?= .venv
# Notebooks and test files at a time: as many as there are cores, and no more than four.
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); [ $$n -lt 4 ] && echo $$n || echo 4)
# Modules are compiled once, not in each of some hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE
# Where Linux takes the CPU build of torch. Empty: pip's own index, and so the CUDA build.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# More options for what is started: make lab ARGS=--no-browser, make test ARGS="-k broadcast"
ARGS ?=

# Notebooks may call python, torchrun, ...: the environment's own must be found.
IN_ENV = PATH="$$(cd $(VENV)/bin && pwd):$$PATH" JUPYTER_PREFER_ENV_PATH=1 $(VENV)/bin/python
PYTEST = $(IN_ENV) -m pytest -rs -n $(JOBS) --dist loadfile --no-loadscope-reorder
# What fails beside others runs again alone.
OR_ALONE = || $(IN_ENV) -m tests.again $$?

# What make test-browser runs.
BROWSER ?= tests/browser tests/test_site.py

# For make hosts: what runs on every host, {host} in it being the host's number. Empty: a shell on the first.
RUN ?=

.PHONY: help lab test test-all test-nightly test-gpu test-browser notebooks mistakes exercises grade tour slides hosts bench bench-grade site release renew licenses check env clean

help: ## this list
	@echo "To learn:"
	@awk -F ':.*## ' '/^(lab|grade|check|hosts|clean):.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
	@echo "To teach, and to work on the course:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / && !/^(lab|grade|check|hosts|clean|help):/ { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

lab: env ## open the course in JupyterLab
	@$(IN_ENV) -I tools/check.py --once
	@$(IN_ENV) -I tools/lab.py $(ARGS)

test: check ## test the packages, validate a few of the notebooks
	$(PYTEST) $(ARGS) $(OR_ALONE)

test-all: check ## the same and the long tests; of many alike, and of the notebooks, a part
	$(PYTEST) -m "not nightly" $(ARGS) $(OR_ALONE)

test-nightly: check ## every test there is, and every notebook
	$(PYTEST) -m "" $(ARGS) $(OR_ALONE)

test-gpu: check ## the recorder on this machine's GPUs (needs the CUDA build of torch: make lab TORCH_INDEX=)
	$(IN_ENV) -m pytest -rs -m "" tests/gpu $(ARGS)

test-browser: check ## the course in JupyterLab and on its website in a real browser; pictures in screenshots/ (needs Chromium)
	@$(VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[browser]"
	export BROWSER_TESTS=required; $(IN_ENV) -m pytest -rA --durations=10 -m "not nightly" -n $$(( $(JOBS) + 1 )) --dist loadfile --no-loadscope-reorder $(BROWSER) $(ARGS) $(OR_ALONE)

notebooks: env ## execute notebooks in place (NB=notebooks/... for one) and tidy them
	@$(IN_ENV) -m tools.notebooks $(NB)

mistakes: check ## run every mistake three ways, write notebooks/mistakes.md (ARGS=NAME adds one report's row)
	@$(IN_ENV) -m tests.bench.mistakes_table $(ARGS)

exercises: env ## make exercises/ from solutions/
	@$(IN_ENV) -m tools.release $(ARGS)

grade: env ## grade your exercises (NB=exercises/... for one, ARGS=--watch to go on)
	@$(IN_ENV) -m helpers.grade $(ARGS) $(or $(NB),exercises)

tour: env ## make notebooks/tour.ipynb from the chapters' cells
	@$(IN_ENV) -m tools.tour

slides: env ## slides of a chapter (NB=notebooks/...), in slides/
	@$(IN_ENV) -m tools.slides $(NB)

hosts: env ## two hosts with a wire between them, on this machine: a shell on the first, or RUN="torchrun ..." on each
	@$(IN_ENV) -m collectives hosts $(ARGS) -- $(RUN)

bench: check ## measure run(), its peers (writes notebooks/bench.md), and the grader beside nbgrader
	@$(IN_ENV) -m tests.bench.run
	@$(IN_ENV) -m tests.bench.messages
	@$(IN_ENV) -m tests.bench.notebook
	@$(IN_ENV) -m tests.bench.schedules
	@TORCH_INDEX="$(TORCH_INDEX)" $(IN_ENV) -m tests.bench.peers_table $(ARGS)
	@$(IN_ENV) -m tests.bench.grading

bench-grade: check ## measure scoring a class beside nbgrader
	@$(IN_ENV) -m tests.bench.grading $(ARGS)

site: .venv-site/made ## build the course as a website, in _site
	@.venv-site/bin/python -m tools.website

.venv-site/made: Makefile
	@$(PYTHON) -m venv --clear .venv-site
	@.venv-site/bin/python -m pip install -q --disable-pip-version-check "sphinx>=8" "myst-nb~=1.3" "furo>=2025" "sphinx-copybutton~=0.5" "latex2mathml>=3.77" "pillow>=11" "scipy>=1.14"
	@touch $@

.venv-release/made: pyproject.toml
	@$(PYTHON) -m venv --clear .venv-release
	@.venv-release/bin/python -m pip install -q --disable-pip-version-check "build>=1.3" "twine>=6.2" "check-wheel-contents>=0.6" "towncrier>=25.8" "uv>=0.9" "pip-licenses>=5.5"
	@touch $@

release: .venv-release/made ## build what is released, in dist/, and try it as a stranger would (see RELEASING.md)
	@TORCH_INDEX="$(TORCH_INDEX)" .venv-release/bin/python -m tools.publish

renew: .venv-release/made ## take the newest versions of all packages that pass the tests, in constraints.txt
	@.venv-release/bin/python -m tools.renew

licenses: check .venv-release/made ## list the packages' licenses in LICENSES.md; fails at one that isn't compatible
	@$(VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[browser]"
	@.venv-release/bin/python -m tools.licenses $(VENV)/bin/python

check: env ## is the environment fit? ends with a real all_reduce
	@$(IN_ENV) -I tools/check.py

env: ## make or update the environment in .venv
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON) here. Install Python 3.10 or newer (python.org), or name one: make lab PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -I tools/install.py $(VENV) "$(TORCH_INDEX)"

clean: ## remove the environment and everything that was generated beside it
	rm -rf .venv .venv-* _site screenshots progress.md .pytest_cache .hypothesis .ruff_cache .mypy_cache .import_linter_cache
	find . \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
