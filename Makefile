# The commands of the README. `make demo` and `make test` set up all that is missing and say so before they do.
SHELL := /bin/bash
VENV := .venv
PYTHON := $(VENV)/bin/python

.PHONY: demo test sandbox-matrix chaos check bench lock clean
.DEFAULT_GOAL := help

.PHONY: help
help: ## What can be made here
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1	\2/' | expand -t 16

$(VENV)/.runtime: requirements.txt pyproject.toml .ci/prepare
	@.ci/prepare python requirements.txt && touch $@

$(VENV)/.dev: requirements-dev.txt pyproject.toml .ci/prepare
	@.ci/prepare python requirements-dev.txt && touch $@ $(VENV)/.runtime

demo: $(VENV)/.runtime ## Runs examples/batch.yaml end to end, prints the results; exit status of patchyard run
	@.ci/prepare system
	@$(VENV)/bin/patchyard run examples/batch.yaml --name "demo-$$(date -u +%Y%m%dT%H%M%S)" --out out/demo --down --build-images \
	  || { status=$$?; [ $$status != 1 ] || echo "Not all jobs completed, hence exit status 1. Two of this demo's twelve are" \
	       "meant to end otherwise: acceptance_failed and budget:steps."; exit $$status; }

test: $(VENV)/.dev ## Runs the whole test suite on real servers and containers
	@.ci/prepare tests
	@$(PYTHON) -m pytest $(PYTEST_ARGS)

sandbox-matrix: $(VENV)/.dev ## Every test of a sandbox on docker and oci, each with runc, crun and runsc, where they are installed
	@.ci/prepare tests
	@PATCHYARD_TEST_MATRIX=1 $(PYTHON) -m pytest tests/sandbox $(PYTEST_ARGS)

chaos: $(VENV)/.dev ## Every crash point at three passings, then the monkey: MINUTES=30 SEED=… (drawn) OUT=file
	@.ci/prepare tests
	@CHAOS_MATRIX=all $(PYTHON) -m pytest -q tests/chaos --ignore=tests/chaos/test_monkey.py $(PYTEST_ARGS)
	@$(PYTHON) -m tests.chaos --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED)) $(if $(OUT),--out $(OUT))

check: $(VENV)/.dev ## ruff, mypy (strict), import-linter
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

bench: $(VENV)/.dev ## Measures side by side with what one would use instead; results under bench/results
	@.ci/prepare system
	@$(PYTHON) -m bench.batch --jobs 100
	@$(PYTHON) -m bench.submit

lock: ## Locks the dependencies anew, by hash and without addresses (needs uv)
	@for extra in "" "--extra dev"; do \
	  printf 'setuptools>=77\nwheel\n' | uv pip compile -q pyproject.toml - $$extra --universal --python-version 3.11 \
	    --generate-hashes --no-emit-index-url --no-header --no-annotate \
	    -o requirements$${extra:+-dev}.txt; done

clean: ## Removes the environment and all that the stack in .patchyard has kept
	@test ! -x $(VENV)/bin/patchyard || PATCHYARD_HOME=.patchyard $(VENV)/bin/patchyard down --delete-data
	@rm -rf $(VENV) .patchyard out build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
