# make quickstart   set up if needed, run a small real study, write quickstart/report.html
# make test         set up if needed, run the tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.wattlaw-installed

.PHONY: setup quickstart test lint format bench clean

setup: $(STAMP)

# Rebuilt when the dependencies change; otherwise this costs nothing.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "wattlaw needs Python >= 3.11; try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[train,slurm,dev]'
	@touch $(STAMP)

quickstart: setup
	$(BIN)/wattlaw run examples/quickstart.yaml --store quickstart/store
	$(BIN)/wattlaw report quickstart/store -o quickstart/report.html
	@echo "Open quickstart/report.html in a browser."

test: setup
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python benchmarks/startup.py

clean:
	rm -rf $(VENV) quickstart build *.egg-info src/*.egg-info
