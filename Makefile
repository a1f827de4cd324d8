# Commands for developers and CI. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
PYTHON38 ?= $(shell for p in python3.8 $$HOME/.pyenv/versions/3.8.*/bin/python3.8; do \
	"$$p" --version >/dev/null 2>&1 && { echo "$$p"; break; }; done)

HOST := .venv/.made-from-host.txt
DEVICE := .venv-poplar/.made-from-poplar.txt
AUDIT := .venv-audit/.made-from-audit.txt
BIN := $(CURDIR)/.venv/bin
# The files name every package. Python compiles modules when they are first used.
PIP := install --quiet --no-compile --disable-pip-version-check
PINS := $(PIP) --no-deps
export PATH := $(BIN):$(PATH)
export DVC_NO_ANALYTICS := 1
export DO_NOT_TRACK := 1
# A run is many short processes: without bytecode each compiles our modules again, for up to a second.
unexport PYTHONDONTWRITEBYTECODE

FRESH_PYTHONS ?= python3.11 python3.13
PORT ?= 4200
KIND ?= cpu
QUEUE ?= default
export PREFECT_SERVER_ANALYTICS_ENABLED := false

.PHONY: help setup demo docs server worker bench gpu test soak faults load nightly test-fresh test-device-env test-poptorch check refresh-constraints audit clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 20

$(AUDIT): constraints/audit.txt
	@"$(PYTHON)" -m venv .venv-audit
	@.venv-audit/bin/python -m pip $(PINS) -r constraints/audit.txt 2>&1 | { grep -v '^WARNING: ' || true; }
	@cp constraints/audit.txt $(AUDIT)

setup: $(HOST)  ## create .venv from constraints/host.txt (once); TORCH=cpu installs PyTorch's CPU build
	@"$(BIN)/podium" params schema --write >/dev/null

$(HOST): constraints/host.txt constraints/cuda.txt pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "Podium needs Python 3.11, 3.12 or 3.13, found $$("$(PYTHON)" --version); set PYTHON=/path/to/python3.11"; exit 2; }
	@echo "setup: .venv from constraints/host.txt, exact versions (a few minutes the first time)"
	@"$(PYTHON)" -m venv .venv
	@$(if $(filter cpu,$(TORCH)),"$(BIN)/python" -m pip $(PINS) --index-url https://download.pytorch.org/whl/cpu \
		"$$(grep ^torch== constraints/host.txt)+cpu")
	@"$(BIN)/python" -m pip $(PINS) -r constraints/host.txt 2>&1 | { grep -v '^WARNING: Location' || true; }
	@# pip reads the metadata of the installed torch: the CUDA build requires its libraries, the CPU build none.
	@"$(BIN)/python" -m pip $(PIP) -c constraints/host.txt -c constraints/cuda.txt torch 2>&1 | { grep -v '^WARNING: Location' || true; }
	@"$(BIN)/python" -m pip $(PINS) --no-index --no-build-isolation --editable .
	@cp constraints/host.txt $(HOST)
	@echo "setup: done"

$(DEVICE): constraints/poplar.txt
	@test -n "$(PYTHON38)" || { echo "no Python 3.8 found; set PYTHON38=/path/to/python3.8"; exit 2; }
	@echo "setup: .venv-poplar from constraints/poplar.txt, Python 3.8 and torch 2.0.1 (about 2 GB the first time)"
	@"$(PYTHON38)" -m venv .venv-poplar
	@.venv-poplar/bin/python -m pip $(PINS) -r constraints/poplar.txt 2>&1 | { grep -v '^WARNING: ' || true; }
	@cp constraints/poplar.txt $(DEVICE)
	@echo "setup: done"

demo: $(HOST)  ## run the whole pipeline on generated text: train, evaluate, gate, publish
	@echo "demo: corpus to published model on the CPU; stages that are up to date are skipped"
	@podium run

docs: $(HOST)  ## build the documents as a site, site/index.html, offline; broken links fail
	@sphinx-build --quiet --fail-on-warning --keep-going -b html docs site
	@echo "docs: site/index.html"

server: $(HOST)  ## start a Prefect server on loopback for a local test (docs/workers.md); PORT=4200
	@mkdir -p runs/server
	@PREFECT_HOME="$(CURDIR)/runs/server" PREFECT_UI_API_URL="http://127.0.0.1:$(PORT)/api" \
		exec prefect server start --host 127.0.0.1 --port $(PORT)

worker: export PREFECT_API_URL ?= http://127.0.0.1:$(PORT)/api
worker: export PREFECT_WORKER_QUERY_SECONDS ?= 2
worker: export PODIUM_STAGE_KINDS ?= $(filter-out flows,$(KIND))
worker: $(HOST)  ## start a worker of this checkout: KIND=cpu, cuda, ipu or flows; QUEUE=default or a pod's
	@podium deploy $(if $(filter-out default,$(QUEUE)),--queue $(KIND)/$(QUEUE))
	@exec podium worker --pool $(KIND) --queue $(QUEUE)

bench: $(HOST)  ## compare speed with Hugging Face's Trainer; BENCH="--quick", "--data FOLDER", ...
	@python -m bench $(BENCH)

gpu:  ## measure this project on this host's GPU in nine minutes: tests, parity, speed compared with Trainer (docs/cuda.md); GPU="--seconds 300"
	@"$${PODIUM_DEVICE_PYTHON:-python3}" -m bench.gpu $(GPU)

test: $(HOST)  ## run what a change can break; BROWSER=yes also looks at pages in Chromium; the long tests: make nightly
	@echo "test: all but make test-device-env$(if $(BROWSER),,, tests/browser) and the long ones of make nightly"
	@python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "not faults and not soak" \
		$(if $(BROWSER),,--ignore=tests/browser) $(PYTEST_ARGS)

soak: $(HOST) $(DEVICE)  ## run the long tests, on both Pythons: whole runs, workers, torchrun, compilers
	@echo "soak: whole runs on real input, workers, torchrun and compilers, on both Pythons"
	@python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "soak and not faults"
	@.venv-poplar/bin/python -m pytest -q -n 2 --dist loadfile -m soak tests/ipu_model

# Tests of attacks; `make test` runs only some of their cases.
ATTACKS := tests/flows/dvc/test_integrity.py tests/flows/dvc/test_one_plan.py tests/tasks/plan/test_plans.py \
  tests/tasks/release/test_verdict_under_dvc.py

faults: $(HOST)  ## run all fault tests (docs/survive.md): kills, full disks, damage, lost servers
	@echo "faults: all cases of docs/survive.md (an hour on 2 cores)"
	@python -m pytest -q -n 2 --dist worksteal tests/faults $(ATTACKS)

load: $(HOST)  ## run the load test: 50 runs on workers that are killed, half an hour (docs/workers.md); LOAD="--runs 6 --sets 2"
	@python -m tests.load $(LOAD)

nightly: $(HOST) $(DEVICE)  ## run what takes hours: soak, faults, load, test-fresh, the GPU's parts on a CPU, test-poptorch; prints a table
	@.ci/nightly

test-fresh:  ## test the set-up with plain pip in an empty clone, a small run and a question; FRESH_PYTHONS, or PYTHON=python3.13
	@.ci/fresh $(if $(filter command line,$(origin PYTHON)),"$(PYTHON)",$(FRESH_PYTHONS))

test-device-env: $(DEVICE)  ## run the tests of ipu_model on Python 3.8 and torch 2.0.1 (long ones: make soak)
	@echo "test-device-env: tests/ipu_model on $$(.venv-poplar/bin/python --version)"
	@.venv-poplar/bin/python -m pytest -q -n 3 --dist loadfile -m "not soak" tests/ipu_model

test-poptorch:  ## run the IPU tests with the installed PopTorch, in the device's Python (Poplar SDK hosts); PART=1/6
	@echo "test-poptorch: tests/ipu_model/ipu on $$("$${PODIUM_DEVICE_PYTHON:-python3}" --version), no double$(PART:%=, part %)"
	@PODIUM_TEST_POPTORCH=real PODIUM_TEST_PART="$(PART)" "$${PODIUM_DEVICE_PYTHON:-python3}" -m pytest -q tests/ipu_model/ipu

refresh-constraints: $(HOST)  ## record the requirements of the pinned public wheels (some minutes, needs a connection)
	@python -m constraints.refresh

check: $(HOST)  ## run ruff, mypy (3.11, and 3.8 for ipu_model), the architecture test and the check of the pins
	@ruff check .
	@ruff format --check --quiet . || { echo "run: ruff format ."; exit 1; }
	@mypy
	@python -m pytest -q tests/test_architecture.py tests/test_constraints.py

audit: $(AUDIT)  ## check the pinned packages against the public advisory database (needs a connection)
	@echo "audit: constraints/host.txt and constraints/poplar.txt"
	@.ci/audit .venv-audit/bin/pip-audit constraints/host.txt constraints/poplar.txt

clean: $(HOST)  ## remove outputs of runs, after asking (keeps .venv, inputs, releases and the DVC cache)
	@podium clean --all
