# dpbook: `make lab` to read and work, `make check` and `make test` to check. Only Python 3.11 or newer is needed.
.DEFAULT_GOAL := help
.PHONY: help lab book check test notebooks proof gpu coverage style fmt bench clean

# make lab ARGS="--port 9000"; make test PYTHON=/path/to/python3 TORCH_INDEX=... CONSTRAINTS=...
ARGS ?=
CONSTRAINTS ?= constraints.txt
# Tests at once: on two cores three, as many tests wait, and each process that runs tests first imports all of them.
JOBS ?= 3
export ARGS CONSTRAINTS PYTHON TORCH_INDEX
# Many processes import the same modules: they are compiled once.
unexport PYTHONDONTWRITEBYTECODE
export MAKE_TARGET = $(firstword $(MAKECMDGOALS))
BIN := .venv/bin
# Older releases of NumPy and torch declare other types.
TYPES := $(if $(filter constraints.txt,$(CONSTRAINTS)),$(BIN)/python -m mypy,echo "Types are checked with constraints.txt alone.")

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' Makefile

lab: ## copy the notebooks to workbook/ and open JupyterLab there (options: ARGS="--port 9000")
	@# `dpbook lab` refuses too, but only when all is installed.
	@case "$$(id -u) $$ARGS" in "0 "*--allow-root*|"0 "*--help*) ;; "0 "*) \
		echo "You are root: code in a notebook could change anything on this machine." >&2; \
		echo "Use an ordinary user, or say make lab ARGS=--allow-root where that is what you want, as in a container." >&2; \
		exit 1 ;; esac
	@tools/venv.sh lab
	@$(BIN)/python -m dpbook lab $(ARGS)

book: ## build the book as web pages in build/book (PDF=1: and build/dpbook.pdf, by Chromium)
	@tools/venv.sh lab
	@$(BIN)/python -m dpbook book $(if $(PDF),--pdf build/dpbook.pdf) $(ARGS)

check: style ## style, types, and the tests that start no process: before each commit, under two minutes
	$(BIN)/python -m pytest -q -n auto -m "not processes and not browser and not proof" tests $(ARGS)

test: style ## all that a change may break: style, types, tests, browser, every stored output; some minutes
	@# One pytest run for tests and notebooks: the last lines count them all. Many wait for processes.
	$(BIN)/python -m dpbook validate --jobs $(JOBS) $(wildcard chapters exercises/solutions tests) $(ARGS)

notebooks: ## run the notebooks and compare (CHANGED=1: those that a change touches; BASE=main; ARGS=--write stores)
	@tools/venv.sh dev
	$(BIN)/python -m $(if $(CHANGED),tools.touched_notebooks $(or $(BASE),HEAD),dpbook validate) --jobs $(JOBS) $(ARGS)

proof: ## what takes too long for every change: matrices, faults, new random cases; up to two hours, daily
	@tools/venv.sh proof
	$(BIN)/python -m pytest -n $(JOBS) -m "proof or hypothesis" --hypothesis-profile=searching --timeout=1200 --durations=10 tests $(ARGS)

gpu: ## prove or refute on this machine's GPUs what the project says of them; ten minutes (ARGS="--device sim")
	@tools/venv.sh dev
	$(BIN)/python -m tests.gpu $(ARGS)

coverage: ## statements that the tests run, by folder: 95 % of the library, 90 % of a wing; a quarter of an hour
	@tools/venv.sh dev
	@rm -rf build/coverage; mkdir -p build/coverage
	@# The report also comes if a test fails. Files of processes that were killed while they wrote are reported and left out.
	$(BIN)/python -m coverage run -m pytest -q -n $(JOBS) -m "not browser and not proof" tests $(ARGS); status=$$?; \
	$(BIN)/python -m coverage combine -q && $(BIN)/python tools/coverage_by_folder.py && exit $$status

style:
	@tools/venv.sh dev
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/lint-imports --config pyproject.toml
	@# In a new checkout all tests are compiled meanwhile, once: else each worker would, at the same time as the others.
	@test -d .pytest_cache || $(BIN)/python -m pytest --collect-only -q tests >/dev/null 2>&1 & \
	$(TYPES); status=$$?; wait; exit $$status

fmt: ## put the code into the project's style
	@tools/venv.sh dev
	$(BIN)/python -m ruff format
	$(BIN)/python -m ruff check --fix

bench: ## measure on this machine, and write the tables of README and tests/benchmarks (ARGS="bench_ddp --repeats 5")
	@tools/venv.sh dev
	$(BIN)/python -m tests.benchmarks $(ARGS)

clean: ## remove .venv, caches and build products; never workbook/
	rm -rf .venv build dist dpbook.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./workbook -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
