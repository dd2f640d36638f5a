# Commands of a clone. Each target sets up the virtual environment that it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_READY := $(VENV)/.run-ready
DEV_READY := $(VENV)/.dev-ready
# Twice the cores of a small machine, since tests wait for processes and servers. A worker needs 1.1 GB.
WORKERS ?= 4
LINT := environments scripts tools tests turnwise
.PHONY: demo test test-all compiled check docs mutate real-vllm harnesses format lock upgrade clean

demo: $(RUN_READY)  ## roll out a shipped environment: no network, Docker, GPU or key once installed
	@echo "51 bugs, each tried four times: about 21 s on two cores, the first group within 3 s"
	$(BIN)/turnwise process code_debug --fresh

PYTEST := $(BIN)/pytest -n $(WORKERS) --dist worksteal --durations 15

test: $(DEV_READY) compiled  ## each guarantee once, in about three minutes
	$(PYTEST)

test-all: $(DEV_READY) compiled  ## every test, as in CI
	$(PYTEST) --soak

# Tests start Python hundreds of times, and some starts may not write bytecode.
compiled: $(DEV_READY)
	$(BIN)/python -m compileall -q environments tools turnwise

check: $(DEV_READY)  ## format, lint, types, layer contracts, docstrings of public names
	$(BIN)/ruff format --check $(LINT)
	$(BIN)/ruff check $(LINT)
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python -m scripts.public_docstrings

docs: $(DEV_READY)  ## the documentation as a site that opens from disk; a warning is an error
	$(BIN)/python -m scripts.reference_pages
	$(BIN)/zensical build --strict --clean
	@echo site/index.html

mutate: $(DEV_READY)  ## make small changes of the code, and print those that no test notices
	$(BIN)/python -m scripts.mutate $(MUTATE)

real-vllm: $(DEV_READY)  ## play on a real vLLM on the CPU, beside torch; installs 5 GB into build/vllm
	scripts/real_vllm.sh

HARNESSES := @anthropic-ai/claude-code@2.1.197 @openai/codex@0.171.0 opencode-ai@1.18.33 @qwen-code/qwen-code@0.15.10
harnesses: $(DEV_READY)  ## play coding agents of others; installs 1.8 GB into build/harnesses
	npm install --prefix build/harnesses --no-audit --no-fund $(HARNESSES)
	$(BIN)/python -m venv build/harnesses/python
	build/harnesses/python/bin/pip install --quiet mini-swe-agent==2.4.6
	PATH="$(CURDIR)/build/harnesses/node_modules/.bin:$(CURDIR)/build/harnesses/python/bin:$$PATH" $(BIN)/pytest tests/environments/recorded/test_harnesses.py

format: $(DEV_READY)  ## format the code and fix lint findings
	$(BIN)/ruff format $(LINT)
	$(BIN)/ruff check --fix $(LINT)

lock:  ## pin new packages of pyproject.toml, with hashes; other pins stay
	uv pip compile pyproject.toml requirements/build.in --generate-hashes --universal --python-version 3.11 \
		$(UPGRADE) --quiet --output-file requirements/base.txt
	uv pip compile pyproject.toml requirements/build.in --extra dev --generate-hashes --universal \
		--python-version 3.11 --constraint requirements/base.txt $(UPGRADE) --quiet \
		--output-file requirements/dev.txt

upgrade: UPGRADE := --upgrade
upgrade: lock  ## pin the newest versions

clean:
	rm -rf $(VENV)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# --no-deps: the lock is complete, and pip would ask for newer releases to resolve dependencies.
$(RUN_READY): requirements/base.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --no-deps --require-hashes -r requirements/base.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q environments tools turnwise
	touch $@

$(DEV_READY): requirements/dev.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --no-deps --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@ $(RUN_READY)
