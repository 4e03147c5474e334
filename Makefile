# gpud: build, test and measure. `make help` lists the targets.
#
# Everything lives in .venv, which `make install` builds from nothing but a Python >= 3.11: the
# package with the extras `daemon`, `demo` and `dev`, each dependency at the version in constraints.txt.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.gpud-installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST_ARGS ?=
# Tests start hundreds of processes: without bytecode each would compile all that it imports.
export PYTHONDONTWRITEBYTECODE :=
SOURCES := $(wildcard gpud client tests campaigns bench docs)
# contrib/ray is a package of its own; Ray's wheel is large, so what runs it has an environment of its own.
RAY := contrib/ray
RAY_VENV := .venv-ray
RAY_STAMP := $(RAY_VENV)/.gpud-ray-installed
# Programs that exist, and an environment with what they need.
PROGRAMS := tests/programs
PROGRAMS_VENV := .venv-programs
PROGRAMS_STAMP := $(PROGRAMS_VENV)/.installed
PART ?= all

.PHONY: help install quick test test-ci test-ray test-programs test-numba check lint types format demo bench faults stress coverage
.PHONY: gpu-test gpu-bench docs site clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

install: $(STAMP) ## build .venv with everything; quick when it is up to date

# The first interpreter that runs and is new enough; PYTHON=/path/to/python overrides.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# A virtual environment that was copied or moved runs another folder's code: build it again.
ifneq ($(wildcard $(STAMP)),)
ifneq ($(shell cat $(STAMP)),$(CURDIR))
.PHONY: $(STAMP)
STALE := yes
endif
endif

$(STAMP): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "gpud needs Python 3.11 or newer; none is on PATH. Name one: make install PYTHON=/path/to/python3" >&2; \
		exit 1; fi
	@if [ -n "$(STALE)" ] || ! $(BIN)/python -c 'import pip' 2>/dev/null; then \
		rm -rf $(VENV); \
		echo "creating $(VENV) with $$($(PYTHON) --version)"; \
		$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 \
		|| { rm -rf $(VENV); $(PYTHON) -m venv --without-pip $(VENV) \
		     && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; } \
		|| { rm -rf $(VENV); \
		     echo "$(PYTHON) can make no virtual environment; on Debian or Ubuntu: apt install python3-venv" >&2; \
		     exit 1; }; fi
	@echo "installing gpud and its dependencies into $(VENV) (the first time takes a minute or two)"
	@$(PIP) hatchling editables msgpack 'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-runtime==13.0.*' \
		$$(command -v cc >/dev/null || echo ziglang) # for the CUDA driver library
	@$(PIP) --no-build-isolation --editable '.[daemon,demo,dev]'
	@printf '%s\n' '$(CURDIR)' > $(STAMP)

QUICK := tests/compiler tests/unit/cli tests/unit/client tests/unit/core tests/unit/wire \
	$(wildcard tests/unit/test_*.py)

quick: install ## a minute: tests of core, wire, client, compiler and of the repository
	$(BIN)/python -m pytest -m 'not gpu and not slow and not ci' -n auto $(QUICK) $(PYTEST_ARGS)

test: install ## the test suite; no GPU needed
	$(BIN)/python -m pytest -m 'not gpu and not slow and not ci' -n auto $(PYTEST_ARGS)

test-ci: install ## what `make test` leaves to continuous integration: attacks, killed processes, the demo
	$(BIN)/python -m pytest -m 'ci and not gpu and not slow' -n auto $(PYTEST_ARGS)

# .venv-ray sees what .venv has, and adds Ray and what Ray needs.
$(RAY_STAMP): $(STAMP) $(RAY)/pyproject.toml $(RAY)/constraints.txt
	@echo "installing gpud-ray and Ray into $(RAY_VENV)"
	@rm -rf $(RAY_VENV)
	@$(BIN)/python -m venv --without-pip $(RAY_VENV)
	@own=$$($(RAY_VENV)/bin/python -c 'import site; print(site.getsitepackages()[0])') \
		&& theirs=$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])') \
		&& echo "import site; site.addsitedir('$$theirs')" > "$$own/gpud-environment.pth" \
		&& ln -s "$$theirs/nvidia" "$$own/nvidia" # NVRTC is looked for in the environment's own folder
	@$(RAY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --constraint $(RAY)/constraints.txt --no-build-isolation --editable '$(RAY)[exact,figures]'
	@touch $(RAY_STAMP)

test-ray: $(RAY_STAMP) ## several machines on Ray: the tests of contrib/ray, in an environment of their own
	$(RAY_VENV)/bin/python -m pytest --rootdir $(RAY) -c $(RAY)/pyproject.toml -n 2 --dist loadfile $(RAY)/tests $(PYTEST_ARGS)

# .venv-programs has frameworks that use CUDA, as their users install them: nothing of gpud.
$(PROGRAMS_STAMP): $(STAMP) $(PROGRAMS)/constraints.txt
	@echo "installing Numba, Triton, Taichi, tinygrad and Dr.Jit into $(PROGRAMS_VENV)"
	@rm -rf $(PROGRAMS_VENV)
	@$(BIN)/python -m venv --without-pip $(PROGRAMS_VENV)
	@$(BIN)/python -m pip --python $(PROGRAMS_VENV)/bin/python install --quiet --disable-pip-version-check \
		--requirement $(PROGRAMS)/constraints.txt
	@touch $(PROGRAMS_STAMP)

test-programs: $(PROGRAMS_STAMP) ## programs over Numba, Triton, Taichi, tinygrad and Dr.Jit, unchanged
	$(BIN)/python -m pytest $(PROGRAMS)/framework_tests.py $(PYTEST_ARGS)

test-numba: $(PROGRAMS_STAMP) ## Numba's own tests of its CUDA target; PART=ci its tests of the driver
	$(BIN)/python -m tests.programs.numba_suite $(PART)

check: lint types ## format, lint, types

lint: install
	$(BIN)/ruff format --check $(SOURCES) $(RAY)
	$(BIN)/ruff check $(SOURCES) $(RAY)

types: install
	$(BIN)/mypy $(SOURCES)
	MYPYPATH=$(RAY):$(RAY)/bench $(BIN)/mypy $(RAY)

format: install ## rewrite the sources in the project's format
	$(BIN)/ruff format $(SOURCES) $(RAY)
	$(BIN)/ruff check --fix $(SOURCES) $(RAY)

demo: install ## the shortest way to see gpud work
	@$(BIN)/gpud demo

# What hostile and dying programs can do: `make faults`.
FAULTS := out_of_bounds client_kills lane_kills host_failures task_kills neighbour_costs fuzz rings soak

bench: install ## measure, print, and keep the figures under bench/results/
	@for b in $(wildcard bench/bench_*.py); do \
		echo "== $$b"; $(BIN)/python "$$b"; done
	@$(BIN)/python bench/summary.py

# The extra `fuzz` is atheris; where it cannot be installed the parser's own fuzzer takes its share.
faults: install ## attack it, kill it, fuzz it, and use it for an hour: two hours in all
	@$(BIN)/python -c 'import atheris' 2>/dev/null \
		|| $(PIP) --no-build-isolation --editable '.[fuzz]' \
		|| echo "atheris cannot be installed here: there will be no coverage-guided fuzzing" >&2
	@for b in $(FAULTS); do echo "== $$b"; $(BIN)/python -m campaigns.run "$$b"; done
	@$(BIN)/python bench/summary.py

stress: install ## the long runs that `make test` leaves out: half an hour
	$(BIN)/python -m campaigns.run resizes
	GPUD_STRUCTURED_KERNELS=1000 GPUD_LLVM_PROGRAMS=1000 GPUD_WORKLOAD_STEPS=500000 GPUD_SCHEDULER_SEEDS=1000 \
		$(BIN)/python -m pytest tests/property --timeout=3600 --hypothesis-profile=search $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m slow -n auto tests/conformance $(PYTEST_ARGS)
	$(BIN)/python -m campaigns.run memory_turns
	@$(BIN)/python bench/summary.py

coverage: install ## which lines and branches the tests run, by file: half an hour
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -m 'not gpu and not slow' -n auto $(PYTEST_ARGS)
	$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --skip-covered

# On a machine without network, name an interpreter that has what gpud needs: GPU_PYTHON=python3.
GPU_PYTHON ?= $(BIN)/python
GPU_INSTALL = $(if $(filter $(BIN)/python,$(GPU_PYTHON)),install)
GPU_PYTEST = $(GPU_PYTHON) -m pytest -m gpu -p no:cacheprovider $(PYTEST_ARGS)
GPU_TESTS := conformance work_shares resizing bounds_checks faults adapters mapped_arrays
# They may hang, so they are the last.
GPU_LAST := partitions endless
GPU_CHECKS := $(foreach check,memcheck racecheck synccheck,$(check)-1 $(check)-2)
GPU_FIGURES := machine waits rewrite_cost release_latency launch_cost resize random_resizes shares lanes turns region_moves load_beside
GPU_SYSTEMS := gpud gpud_floor streams processes green
# Only by name, and only where MPS may be used: they start an MPS control daemon, and end it.
GPU_MPS := mps mps_limited

.PHONY: gpu-there $(GPU_TESTS:%=gpu-test-%) $(GPU_LAST:%=gpu-test-%) $(GPU_CHECKS:%=gpu-sanitize-%) $(GPU_FIGURES:%=gpu-bench-%)
.PHONY: $(GPU_SYSTEMS:%=gpu-bench-colocation-%) $(GPU_MPS:%=gpu-bench-colocation-%)

gpu-there: $(GPU_INSTALL)
	@$(GPU_PYTHON) bench/gpu/available.py

# Each step takes less than ten minutes and can be run alone.
gpu-test: $(GPU_TESTS:%=gpu-test-%) $(GPU_CHECKS:%=gpu-sanitize-%) $(GPU_LAST:%=gpu-test-%) ## tests that need an NVIDIA GPU

$(GPU_TESTS:%=gpu-test-%) $(GPU_LAST:%=gpu-test-%): gpu-test-%: gpu-there
	GPUD_RECORD=$* $(GPU_PYTEST) tests/gpu/test_$*.py

$(GPU_CHECKS:%=gpu-sanitize-%): gpu-sanitize-%: gpu-there
	$(GPU_PYTHON) bench/gpu/sanitize.py $(word 1,$(subst -, ,$*)) --part $(word 2,$(subst -, ,$*))/2

gpu-bench: $(GPU_FIGURES:%=gpu-bench-%) $(GPU_SYSTEMS:%=gpu-bench-colocation-%) ## measure on an NVIDIA GPU; figures under bench/results/ and docs/
	$(GPU_PYTHON) bench/gpu/figures.py
	$(GPU_PYTHON) bench/summary.py

$(GPU_FIGURES:%=gpu-bench-%): gpu-bench-%: gpu-there
	$(GPU_PYTHON) bench/gpu/$*.py

$(GPU_SYSTEMS:%=gpu-bench-colocation-%): gpu-bench-colocation-%: gpu-there
	$(GPU_PYTHON) bench/gpu/colocation.py --system $*

$(GPU_MPS:%=gpu-bench-colocation-%): gpu-bench-colocation-%: gpu-there
	$(GPU_PYTHON) bench/gpu/colocation.py --system $* --allow-mps

docs: install ## write the generated pages of docs/
	$(BIN)/python docs/generate.py

site: install ## the documentation as a site, in site/; a broken link is an error
	@$(BIN)/python -c 'import material' 2>/dev/null || $(PIP) --no-build-isolation --editable '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean
	@echo "open site/index.html, or with its search: $(BIN)/python -m http.server --directory site"

clean: ## remove the environment, caches and build outputs
	rm -rf $(VENV) $(RAY_VENV) $(PROGRAMS_VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
