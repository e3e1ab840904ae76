# Two commands: `make lab` to learn, `make test` to check. Both set up .venv first, and only once.
VENV := .venv
BIN := $(VENV)/bin
PIP = PIP_USER=0 $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
# What a learner sees and moves.
SEEN := tests/browser tests/labs
CELL_TIMEOUT := 120  # seconds; as long as `minipar bake` allows
# The first Python that is new enough and can make a virtual environment; only asked when one is needed.
CANDIDATES := python3 python3.13 python3.12 python3.11 python3.14 python
FITS := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach p,$(CANDIDATES),$(shell $(p) -c '$(FITS)' >/dev/null 2>&1 && echo $(p))))

.PHONY: help lab test tests pages lessons seen lint style types bench doctor setup setup-test clean

help:
	@echo "make lab      set up, and open JupyterLab on the first lesson"
	@echo "make test     set up, and run every check: lint, unit, multi-process, notebooks, browser"
	@echo "make lint     ruff and mypy"
	@echo "make bench    the benchmarks, as ratios of two things timed in one run"
	@echo "make doctor   what this machine has, what will run here, and what to do about each problem"
	@echo "make clean    end left-over ranks; remove .venv and every cache"

lab: setup
	@$(BIN)/minipar lab

doctor: setup
	@$(BIN)/minipar doctor

# Style first, which takes a second. Then two halves of about equal length side by side, since both wait more than they compute,
# with the types beside them; what the second half says comes in pieces.
test: style
	@$(MAKE) --no-print-directory -j3 types tests pages

tests: setup-test
	@$(BIN)/python -m pytest --durations=12 $(addprefix --ignore=,$(SEEN)) tests

pages: setup-test
	@status=0; for part in lessons seen; do $(MAKE) --no-print-directory $$part || status=$$?; done; exit $$status

lessons: setup-test
	@said=$$($(BIN)/python -m pytest -q --durations=6 --nbval --nbval-current-env --nbval-cell-timeout=$(CELL_TIMEOUT) \
	  $(wildcard notebooks/*.ipynb) 2>&1); status=$$?; echo "== lessons"; echo "$$said"; exit $$status

seen: setup-test
	@said=$$($(BIN)/python -m pytest -q --durations=6 $(SEEN) 2>&1); status=$$?; echo "== $(SEEN)"; echo "$$said"; exit $$status

lint: style types

style: setup-test
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: setup-test
	@$(BIN)/mypy

bench: setup-test
	@for name in $(basename $(notdir $(wildcard tests/benchmarks/bench_*.py))); do echo "== $$name"; \
	  $(BIN)/python -m tests.benchmarks.$$name || exit 1; done

setup: $(VENV)/lab.stamp
setup-test: $(VENV)/test.stamp

$(VENV)/lab.stamp: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "minipar needs Python 3.11 or newer with its venv module (Debian, Ubuntu: apt install python3-venv)."; \
	  echo "If it has another name here: make lab PYTHON=/path/to/python3"; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON): once, a few minutes."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --quiet setuptools
	@$(PIP) --no-build-isolation --editable .
	@touch $@

$(VENV)/test.stamp: $(VENV)/lab.stamp
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@$(BIN)/python -m tests.browser.chromium
	@touch $@

clean:
	-@test ! -x $(BIN)/minipar || $(BIN)/minipar clean
	rm -rf $(VENV) *.egg-info artifacts .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
