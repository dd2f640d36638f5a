# Everything a newcomer types. `make demo` and `make test` set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_READY := $(VENV)/.run-ready
DEV_READY := $(VENV)/.dev-ready
# Twice the cores of a small machine: tests wait for processes, servers and limits. A worker takes 1.1 GB.
WORKERS ?= 4
LINT := environments scripts tools tests turnwise
.PHONY: demo test test-all compiled check docs mutate format lock upgrade clean

demo: $(RUN_READY)  ## the main job on the embedded default: no network, Docker, GPU or key once installed
	@echo "51 bugs, each tried four times: about 24 s on two cores, the first group within 3 s"
	$(BIN)/turnwise process code_debug --fresh

PYTEST := $(BIN)/pytest -n $(WORKERS) --dist worksteal --durations 15

test: $(DEV_READY) compiled  ## each guarantee once, in about three minutes
	$(PYTEST)

test-all: $(DEV_READY) compiled  ## every test, whole: what CI runs
	$(PYTEST) --soak

# Tests start Python hundreds of times; where it may not write bytecode, each start would compile all of this.
compiled: $(DEV_READY)
	$(BIN)/python -m compileall -q environments tools turnwise

check: $(DEV_READY)  ## format, lint, types, layer contracts
	$(BIN)/ruff format --check $(LINT)
	$(BIN)/ruff check $(LINT)
	$(BIN)/basedpyright
	$(BIN)/lint-imports

docs: $(DEV_READY)  ## the documentation as a site that opens from disk; a warning is an error
	$(BIN)/python -m scripts.reference_pages
	$(BIN)/zensical build --strict --clean
	@echo site/index.html

mutate: $(DEV_READY)  ## small changes of the code that must lose nothing: prints those that no test notices
	$(BIN)/python -m scripts.mutate $(MUTATE)

format: $(DEV_READY)  ## rewrite the code as `check` wants it
	$(BIN)/ruff format $(LINT)
	$(BIN)/ruff check --fix $(LINT)

lock:  ## pin what is new in pyproject.toml, with hashes; what is pinned stays
	uv pip compile pyproject.toml requirements/build.in --generate-hashes --universal --python-version 3.11 \
		$(UPGRADE) --quiet --output-file requirements/base.txt
	uv pip compile pyproject.toml requirements/build.in --extra dev --generate-hashes --universal \
		--python-version 3.11 --constraint requirements/base.txt $(UPGRADE) --quiet \
		--output-file requirements/dev.txt

upgrade: UPGRADE := --upgrade
upgrade: lock  ## pin the newest of everything

clean:
	rm -rf $(VENV)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The lock is whole: with dependencies to resolve, pip asks for releases that are newer than what is pinned.
$(RUN_READY): requirements/base.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --no-deps --require-hashes -r requirements/base.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q environments tools turnwise
	touch $@

$(DEV_READY): requirements/dev.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --no-deps --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@ $(RUN_READY)
