# Every target makes .venv by itself. The two that matter: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ACCEPTANCE ?= ../shared/acceptance/documented_commands.py
ACCEPTANCE_GROUPS ?= system plan sft strategies

.PHONY: demo test unit lint bench mutation acceptance docs clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)  ## train, evaluate, judge and report on this machine, in minutes
	$(BIN)/bashgym demo --output demo-report

test: $(STAMP) lint  ## everything CI runs
	$(BIN)/python -m pytest tests/unit -n 2
	$(BIN)/python -m pytest tests --ignore=tests/unit --ignore=tests/train
	$(BIN)/python -m pytest tests/train -n 2 --dist loadfile
	$(MAKE) acceptance

unit: $(STAMP)  ## seconds, no torch
	$(BIN)/python -m pytest tests/unit -n 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m bashgym.methods --check

acceptance: $(STAMP)  ## the documented commands, as written, against this build
	@if [ -f $(ACCEPTANCE) ]; then $(BIN)/python $(ACCEPTANCE) --venv $(VENV) $(addprefix --group ,$(ACCEPTANCE_GROUPS)) \
	&& $(BIN)/python tests/documented_evals.py $(ACCEPTANCE) --venv $(VENV); \
	else echo "no acceptance script at $(ACCEPTANCE)"; fi

mutation: $(STAMP)  ## breaks the gates one place at a time; a test has to notice
	$(BIN)/python -m benchmarks.mutation

bench: $(STAMP)  ## writes benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks

docs: $(STAMP)  ## regenerates the generated pages
	$(BIN)/python -m bashgym.methods

clean:
	rm -rf $(VENV) demo-report .pytest_cache .mypy_cache .ruff_cache
