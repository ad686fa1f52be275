# make demo | docs | test | test-torch | slow | nightly | bench | gpu | a-a | slower-layer | coverage-of-intervals | mutants | healthy | defects | lint | types | unit | cluster | setup | clean
#
# Python lives in .venv, made from requirements.lock on first use. Another interpreter:
#   make test PYTHON=/path/to/python3.12
# Where the package index offers torch with CUDA and you want it small:
#   make test TORCH_INDEX=https://download.pytorch.org/whl/cpu

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
unexport PYTHONPATH PYTHONHOME

NEEDS := import sys; sys.exit(sys.version_info < (3, 11))
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c '$(NEEDS)' 2>/dev/null && echo $$p && break; done)
endif
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.made-from-lock
RUNS ?= runs
PYTEST := $(PY) -m pytest

.PHONY: help docs setup setup-dgl setup-triton setup-pyg-sampler demo test test-torch slow nightly bench gpu a-a slower-layer coverage-of-intervals mutants healthy defects lint types unit cluster clean

help:
	@echo 'make demo     run a small sweep of both models in all layouts here, and report it'
	@echo 'make setup-dgl  DGL beside the rest, for layers with implementation: dgl'
	@echo 'make setup-triton  Triton, for tests that interpret its programs on a CPU'
	@echo 'make setup-pyg-sampler  torch-sparse, for sampler: pyg; WHEELS=folder of built ones'
	@echo 'make test     lint (also of imports), types and tests; needs no cluster'
	@echo 'make test-torch TORCH=2.9.1  the unit and distributed tests under another torch, in an'
	@echo '              environment of its own; some gigabytes where its index has CUDA builds'
	@echo 'make slow     tests that take long: a defect of each class, other instruction sets'
	@echo 'make cluster  the tests that need a real Slurm, which they start (root, slurm-wlm)'
	@echo 'make bench    the performance table -> report/bench.csv'
	@echo 'make gpu      a benchmark on a GPU -> report/gpu.csv, and the tests that need one'
	@echo 'make coverage-of-intervals  how often intervals hold the truth, simulated'
	@echo 'make a-a      twenty runs of one cell: how often equal things are called different'
	@echo 'make slower-layer  two real runs, one with a slower layer: whether compare names it'
	@echo 'make nightly  slow, defects, healthy, mutants, and faults of a real Slurm'
	@echo 'make defects  every planted defect, run as a user would: the matrix of what names it'
	@echo 'make healthy  500 healthy cells of all kinds; none may be called invalid'
	@echo 'make mutants  small changes to the mathematics, and which of them its unit tests notice'
	@echo 'make docs     the documentation as a site -> site/index.html'
	@echo 'make clean    remove .venv and caches; runs stay'

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@[ -n '$(PYTHON)' ] && '$(PYTHON)' -c '$(NEEDS)' || { \
	  echo 'error: PYTHON: found "$(PYTHON)"; allowed: Python 3.11 or newer, as in' \
	       'make PYTHON=/path/to/python3' >&2; exit 2; }
	[ -x $(PY) ] || '$(PYTHON)' -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check \
	  $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$$(grep '^torch==' requirements.lock)"
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# DGL's wheels of later versions need an older torch; this one imports with ours.
setup-dgl: setup
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps dgl==1.1.3
	$(PY) -c 'from gnnhpc.models.libraries import import_dgl; import_dgl()'

# Only where torch is a CPU's: one for GPUs brings its own.
setup-triton: setup
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps triton==3.7.1
	$(PY) -c 'import triton'

# Built here where no wheel is found, in a quarter of an hour: the index has their source alone.
setup-pyg-sampler: setup
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  $(if $(WHEELS),--find-links '$(WHEELS)') torch-scatter==2.1.2 torch-sparse==0.6.18
	$(PY) -c 'from torch_geometric.typing import WITH_TORCH_SPARSE as has; assert has'

demo: setup
	@name=demo-$$(date +%Y%m%d-%H%M%S); status=0; \
	$(PY) -m jobs submit jobs/sweeps/quickstart.yaml --cluster local --wait \
	  --runs '$(RUNS)' --name "$$name" || status=$$?; \
	$(PY) -m analysis report '$(RUNS)'/"$$name"; \
	exit $$status

test: lint types unit

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/lint-imports --no-cache --no-logo

types: setup
	$(PY) -m mypy

# Two at a time: most of a test's time is ranks that start.
unit: setup
	$(PYTEST) -n 2 --dist worksteal --durations=20 \
	  -m 'not slow and not cluster and not defects and not nightly and not gpu'

# Releases before 2.13 may pull in CUDA's libraries.
test-torch: OTHER := .venv-torch-$(TORCH)
test-torch:
	@[ -n '$(TORCH)' ] || { echo 'error: TORCH: found nothing; allowed: a release, as in' \
	  'make test-torch TORCH=2.9.1' >&2; exit 2; }
	[ -x $(OTHER)/bin/python ] || '$(PYTHON)' -m venv $(OTHER)
	$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check \
	  $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) 'torch==$(TORCH)'
	grep -v '^torch==' requirements.lock | $(OTHER)/bin/python -m pip install --quiet \
	  --disable-pip-version-check -r /dev/stdin
	$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  --no-build-isolation -e .
	$(OTHER)/bin/python -m pytest -n 2 --dist worksteal \
	  -m 'not slow and not cluster and not defects and not nightly and not gpu'

slow: setup
	$(PYTEST) -n 2 --dist worksteal --durations=20 -m 'slow and not nightly and not cluster and not gpu'

# By hand or by a timer: what takes longer than a change may wait for.
nightly: slow defects healthy mutants
	$(PYTEST) -m nightly tests/cluster

defects: setup
	$(PY) -m tests.defects

# All sweeps are submitted to one Slurm before the first test.
cluster: setup
	$(PYTEST) --durations=15 -m 'cluster and not nightly' tests/cluster

bench: setup
	$(PY) -m benchmarks

coverage-of-intervals: setup
	$(PY) -m benchmarks.interval_coverage

a-a: setup
	@name=a-a-$$(date +%Y%m%d-%H%M%S); \
	$(PY) -m jobs submit jobs/sweeps/a-a.yaml --cluster local --wait \
	  --runs '$(RUNS)' --name "$$name"; \
	$(PY) -m benchmarks.interval_coverage '$(RUNS)'/"$$name"

slower-layer: setup
	$(PY) -m tests.slower_layer '$(RUNS)'/slower-layer-$$(date +%Y%m%d-%H%M%S) --tries 20

healthy: setup
	$(PY) -m tests.healthy

mutants: setup
	nice -n 10 $(PY) -m tests.mutants

# The rows that have goals come first; each command runs whether or not the one before failed.
gpu: setup
	@status=0; \
	$(PY) -m benchmarks gpu --out report/gpu.csv || status=$$?; \
	$(PYTEST) -n 8 --dist worksteal tests/gpu/test_cuda_graphs.py || status=$$?; \
	$(PYTEST) -n 8 --dist worksteal tests/kernels tests/models -k triton || status=$$?; \
	$(PYTEST) -n 8 --dist worksteal tests/gpu --ignore=tests/gpu/test_cuda_graphs.py \
	  || status=$$?; \
	exit $$status

# Extra packages, which neither the product nor its tests need.
docs: setup
	$(PY) -m pip install --quiet --disable-pip-version-check 'mkdocs>=1.6,<2' 'mkdocs-material>=9.5,<10'
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
