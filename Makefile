# make quickstart   set up if needed, run the commands of README.md for its script in the folder quickstart
# make test         set up if needed, run the tests
# make docs         build the documentation site
# make dist         build the sdist and the wheel, and try the wheel
# make test-extrap  install Extra-P beside the project, run the tests of exporters with it
# make test-slurm   install Slurm if needed (root), run the tests on a cluster of four nodes
# make gpu-acceptance  on a borrowed machine with one GPU: try what needs one (docs/benchmarks.md)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
OPTUNA := .peers-optuna
EXTRAP := .venv-extrap

SLURM_PACKAGES := slurm-wlm munge

.PHONY: setup quickstart test test-extrap test-slurm coverage docs dist soak lint format bench bench-overhead bench-throughput bench-steps \
  bench-scripts bench-analysis bench-store bench-prediction bench-decisions bench-simulator bench-papers \
  gpu-wheels gpu-acceptance gpu-page clean

# Here torchvision is kept apart where it does not fit torch: see docs/index.md.
TORCHVISION := $(VENV)/wattlaw-torchvision

# What is installed into .venv, a stamp for each. A change of the dependencies makes them anew.
EXTRAS_train := train
EXTRAS_all := all,dev
EXTRAS_docs := docs
EXTRAS_dist := dist

setup: $(VENV)/.installed-all

$(VENV)/.installed-%: pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "wattlaw needs Python >= 3.11; try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS_$*)]'
	@! $(BIN)/python -m pip show -qq torchvision || $(BIN)/python -c 'import torchvision' 2>/dev/null || \
	  { $(BIN)/python -m pip uninstall --quiet --yes torchvision && $(BIN)/python -m pip install --quiet \
	    --upgrade --no-deps -c constraints.txt --target $(TORCHVISION) torchvision; }
	@touch $@

# Installs only what it needs, unless everything is installed.
quickstart: $(firstword $(wildcard $(VENV)/.installed-all) $(VENV)/.installed-train)
	mkdir -p quickstart && cd quickstart && PATH="$(CURDIR)/$(BIN):$$PATH" && set -x && \
	  { test -e train.py || wattlaw examples copy tutorial; } && \
	  { test -e study.yaml || wattlaw init -- python train.py --batch-size 32 --epochs 100; } && \
	  wattlaw check study.yaml && wattlaw run study.yaml && wattlaw advise wattlaw-store && \
	  wattlaw report wattlaw-store -o report.html
	@echo "Open quickstart/report.html in a browser."

# Three at a time, since some wait; each file in one process: its tests share what is slow to make.
test: setup
	@which chromium >/dev/null || \
	  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y \
	    --no-install-recommends chromium; } >/dev/null 2>&1 || \
	  echo "Debian's chromium is not installed: the tests in a browser are skipped" >&2
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# Extra-P needs an older numpy than the project, so it has an environment of its own.
$(EXTRAP)/.installed:
	test -x $(EXTRAP)/bin/python || $(PYTHON) -m venv $(EXTRAP)
	$(EXTRAP)/bin/python -m pip install --quiet extrap==4.2.5
	@touch $@

test-extrap: setup $(EXTRAP)/.installed
	$(BIN)/python -m pytest tests/cli/test_exporters.py

# Debian's Slurm as four nodes on this machine; the tests start it and end it. Four at a time, since
# they often wait, each process with a Slurm of its own.
test-slurm: setup
	@which slurmctld slurmd munged sbatch >/dev/null || \
	  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y \
	    --no-install-recommends $(SLURM_PACKAGES); } >/dev/null || \
	  { echo "make test-slurm needs root and Debian's packages: $(SLURM_PACKAGES)" >&2; exit 1; }
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder tests/slurm

# The tests with a coverage report: a table here, pages in build/coverage.
coverage: setup
	$(BIN)/python -m pytest -p pytest_cov -n 3 --dist loadfile --no-loadscope-reorder \
	  --cov --cov-report=term --cov-report=html:build/coverage

# The documentation site, into build/docs.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The sdist and the wheel, into dist; the wheel is tried in a fresh environment without torch.
dist: $(VENV)/.installed-dist
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tools/try_wheel.py dist/*.whl

# Tries to break wattlaw for SOAK_MINUTES (60), from SOAK_SEED (1): docs/benchmarks.md.
soak: setup
	PYTHONPATH=tests:tests/support $(BIN)/python -m soak

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
	$(BIN)/python benchmarks/accuracy.py
	$(MAKE) bench-overhead
	$(MAKE) bench-throughput
	$(MAKE) bench-scripts
	$(MAKE) bench-analysis

# The other energy monitors have an environment of their own; the project does not need them.
$(PEERS)/.installed: benchmarks/peers.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet -r benchmarks/peers.txt
	@touch $@

bench-overhead: setup $(PEERS)/.installed
	$(BIN)/python benchmarks/overhead.py --peers-python $(PEERS)/bin/python
	$(BIN)/python benchmarks/sampler_sources.py --peers-python $(PEERS)/bin/python

bench-throughput: setup
	$(BIN)/python benchmarks/throughput.py

bench-steps: setup
	$(BIN)/python benchmarks/step_windows.py

# Five scripts that do not import wattlaw, beside their own timers.
bench-scripts: setup
	$(BIN)/python benchmarks/own_scripts.py

# Coverage of the intervals, and the time of fits, reports and statistics of a large store.
bench-analysis: setup
	$(BIN)/python benchmarks/coverage.py
	$(BIN)/python benchmarks/fits.py
	$(BIN)/python benchmarks/report.py
	$(BIN)/python benchmarks/telemetry.py

# Commands on 3,402 simulated runs, and on 100,000 imported and 100,000 made runs; takes half an hour.
bench-store: setup
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/large_store.py

# Predictions of public data, family by family, and of a zoo of truths, beside other methods; prints
# the tables of docs/prediction.md. It needs the public data (docs/benchmarks.md).
bench-prediction: setup $(EXTRAP)/.installed
	OMP_NUM_THREADS=1 nice -n 5 $(BIN)/python benchmarks/prediction.py

# Optuna uses the numpy, scipy and torch of the project. One thread: more only wait for each other.
$(OPTUNA)/.installed: benchmarks/optuna.txt | setup
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(OPTUNA) -r benchmarks/optuna.txt
	@touch $@

bench-decisions: setup $(OPTUNA)/.installed
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 PYTHONPATH=$(OPTUNA) PYTHONWARNINGS=ignore \
	  $(BIN)/python benchmarks/decisions.py
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 PYTHONPATH=$(OPTUNA) $(BIN)/python benchmarks/layout_decisions.py
	$(BIN)/python benchmarks/decide_run.py

# Predicted and published exponents, and the time of a simulated study.
bench-simulator: setup
	$(BIN)/python benchmarks/published.py
	$(BIN)/python benchmarks/simulated_study.py

# Every table, figure and finding of both studies beside the values here, into docs/papers.md.
bench-papers: setup
	$(BIN)/python benchmarks/paper_items.py

# What a borrowed machine with a GPU lacks: pure packages, and those of CPython 3.12 on x86-64.
GPU_WHEELS := build/gpu-wheels
gpu-wheels:
	rm -rf $(GPU_WHEELS)
	$(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
	  --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 \
	  -c constraints.txt -d $(GPU_WHEELS) -r benchmarks/gpu-wheels.txt
	@bytes=$$(cat $(GPU_WHEELS)/*.whl | wc -c); echo "$(GPU_WHEELS): $$bytes bytes"; \
	  test $$bytes -le 35000000 || { echo "more than 35 MB: shorten benchmarks/gpu-wheels.txt" >&2; exit 1; }

# On the borrowed machine, with its own Python: no network, nine minutes (docs/benchmarks.md).
# REHEARSE=1: the same here, on the CPU with the fake driver.
gpu-acceptance: $(if $(REHEARSE),setup)
	$(if $(REHEARSE),$(BIN)/python,$(PYTHON)) benchmarks/gpu_acceptance.py $(if $(REHEARSE),--rehearse)

# The page of RESULTS, a results file of a real GPU, which is kept in benchmarks/results.
gpu-page: setup
	$(BIN)/python benchmarks/gpu_page.py $(RESULTS)

clean:
	rm -rf $(VENV) $(PEERS) quickstart build dist *.egg-info src/*.egg-info
