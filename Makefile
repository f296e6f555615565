# Three commands, each with all its set-up: `make demo`, `make studio`, `make test`. They need Python 3.11 or newer; the
# studio's tests also need a browser (apt-get install chromium), and skip without.
# `make docs` builds the documentation into site/.
# `make test-gpu` is for a machine with an NVIDIA GPU: it uses the Python that has torch there, and installs nothing.
# `make mini-data` and `make sudoku-data` make the data of examples/mini and examples/sudoku, in data/mini.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PROCESSES ?= 2
GPU_PYTHON ?= python3
TREE ?= $(shell git rev-parse HEAD:gesso 2>/dev/null)
# What is imported is compiled once and kept, where the environment forbids that, too: else every process does it anew.
export PYTHONDONTWRITEBYTECODE :=

# Texts of several lines reach a command through the environment: a line of a recipe ends at a line break.
define BEGINNING
class Point:
    def __init__(self, x, y):

endef
define HOLE
class Point:
    def __init__(self, x, y):
        self.x = x
        <FILL>

    def __repr__(self):
        return f"Point({self.x}, {self.y})"
endef
PUZZLE := 530070000600195000098000060800060003400803001700020006060000280000419005000080079
export BEGINNING HOLE PUZZLE

.PHONY: demo studio test test-gpu lint properties docs mini-data sudoku-data clean
demo: $(VENV)/.installed
	@echo "1/4  gesso info: what is in the box"
	$(BIN)/gesso info
	@echo "2/4  gesso generate: Python out of noise"
	$(BIN)/gesso generate "$$BEGINNING" --max-new-tokens 40 --seed 7
	@echo "3/4  gesso infill: the line that is missing in the midst of others"
	echo "$$HOLE" | $(BIN)/gesso infill - --max-new-tokens 6 --seed 1
	@echo "4/4  gesso sudoku: 51 empty cells, all at once"
	$(BIN)/gesso sudoku $(PUZZLE) --seed 7
	@echo "Now watch it, and put your hand on it, in your browser: make studio"

studio: $(VENV)/.installed-serve
	$(BIN)/gesso serve --open

test: $(VENV)/.installed-dev
	$(MAKE) -j 2 lint properties

properties: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile  # a file stays in one process: its server starts once

test-gpu:
	$(GPU_PYTHON) tests/gpu/run.py --tree "$(TREE)"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Warnings are errors: a link to a page or a heading that does not exist fails the build.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs site
	@echo "The documentation is in site/index.html"

mini-data: $(VENV)/.installed
	$(BIN)/python -m examples.mini.make_data --out data/mini --cache data/wheels

sudoku-data: $(VENV)/.installed
	$(BIN)/python -m examples.sudoku.bank data/mini/sudoku-bank.npz --processes $(PROCESSES)

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gesso needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --editable .
	touch $@

$(VENV)/.installed-serve: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --editable '.[serve]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --editable '.[docs]'
	touch $@ $(VENV)/.installed $(VENV)/.installed-serve

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --no-compile --editable '.[dev]'
	touch $@ $(VENV)/.installed $(VENV)/.installed-serve

clean:
	rm -rf $(VENV) site docs/reference .mypy_cache .pytest_cache .ruff_cache
