# `make demo` shows what it does, `make test` checks that it does it. Everything is installed into .venv and .cache.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-load test-clients test-backends test-observability soak lint lock clean

demo: $(VENV)/.runtime
	$(BIN)/slipstream demo

test: $(VENV)/.dev
	$(BIN)/pytest -m "not clients and not backends and not observability and not load"

test-load: $(VENV)/.dev
	$(BIN)/pytest -m load --timeout 300

test-clients: $(VENV)/.dev
	$(BIN)/pytest -m clients --timeout 600

test-backends: $(VENV)/.dev
	$(BIN)/pytest -m backends --timeout 1800

# Needs Chromium, and Prometheus with promtool: from the PATH or from .cache/prometheus, where .ci/run unpacks them.
test-observability: $(VENV)/.dev
	$(BIN)/pytest -m observability --timeout 300

# Half an hour of mixed load, and what is left of it; MINUTES=3 for less.
soak: $(VENV)/.dev
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),30)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/slipstream schema > .cache/schema.json
	$(BIN)/check-jsonschema --schemafile .cache/schema.json config/*.yaml
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml

lock: $(VENV)/.dev
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
		--no-emit-find-links --extra otel --extra postgres --extra tui --group lint --group test pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) .cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p .cache

# The runtime alone, at the locked versions: what an operator installs.
$(VENV)/.runtime: $(VENV)/bin/python pyproject.toml requirements.lock
	@sed -n 's/^\([a-z0-9][^ ]*==[^\\]*\).*$$/\1/p' requirements.lock > .cache/constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint .cache/constraints.txt -e .
	@touch $@

# Runtime, tests and checks, each file verified by its hash.
$(VENV)/.dev: $(VENV)/bin/python pyproject.toml requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@ $(VENV)/.runtime
