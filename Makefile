# `make help` lists the targets. `make demo` and `make test` are all a newcomer needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export CGPU_WERROR = 1

.DEFAULT_GOAL := help
.PHONY: help build demo test faults lint types check-fast bench gpu-check man dist deb clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/.ready: pyproject.toml deploy/setup.sh
	sh deploy/setup.sh base
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -U pip "setuptools>=77" wheel "cffi>=1.17" "ziglang>=0.13"
	$(BIN)/pip install -q --disable-pip-version-check --no-build-isolation -e '.[test]'
	touch $@

build: $(VENV)/.ready ## set up .venv and build every binary in place
	$(BIN)/python setup.py -q build_binaries
	$(BIN)/python setup.py -q build_ext --inplace

demo: build ## two containers share one GPU (simulated if there is none; cgpu-run if Docker cannot run)
	$(BIN)/python deploy/demo

lint: build ## ruff and clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files '*.c' '*.h' | xargs $(BIN)/clang-format --dry-run -Werror

types: build ## mypy --strict
	$(BIN)/mypy

check-fast: lint types ## lint, types, unit and C tests
	$(BIN)/python -m pytest -q -m "unit or c" tests

test: lint types ## everything: lint, types, unit, C, integration and system tests (needs root)
	sh deploy/setup.sh test
	$(BIN)/python -m pytest -m "not gpu" tests

faults: build ## kill, stop and starve everything at random for ten minutes (needs root; docs/faults.md)
	sh deploy/setup.sh test
	CGPU_FAULT_SECONDS=$${CGPU_FAULT_SECONDS:-600} $(BIN)/python -m pytest -q -s tests/system/test_random_faults.py

$(VENV)/.bench: $(VENV)/.ready
	$(BIN)/pip install -q --disable-pip-version-check --no-build-isolation -e '.[bench]'
	touch $@

bench: build $(VENV)/.bench ## measure cost and shares; results in bench/results and docs, pictures
	$(BIN)/python -m bench

gpu-check: build ## tests and measurements on a real GPU; results in bench/results
	$(BIN)/python -m bench.gpu

man: build ## write the manual pages, docs/man
	$(BIN)/python deploy/man.py

dist: build ## source distribution and wheels (x86_64, aarch64) in dist/
	PYTHON=$(abspath $(BIN))/python sh deploy/dist.sh dist

deb: build ## also Debian packages (amd64, arm64) for the release that this machine runs, in dist/
	sh deploy/setup.sh test
	PYTHON=$(abspath $(BIN))/python sh deploy/deb.sh dist

clean: ## remove what the build made
	rm -rf build dist shim/cgpu_shim/_lib hook/cgpu_hook/_bin tests/sim/cgpu_sim/_lib tests/c/_build bench/_build
