# Everything runs in .venv, installed from constraints.txt; a fresh machine needs Python 3.11 or newer and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint format tables bench setup clean

demo: setup            ## train a small rehearsal memory and read a stream with it (about 3 minutes)
	$(BIN)/remem demo

# two processes of one thread each: most tests are too small for two threads to share
test: setup            ## the whole test suite, with branch coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term --durations=15

lint: setup            ## style, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup          ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

tables: setup          ## tables and drawings of README and docs, from the records in results/
	$(BIN)/python -m remem.experiments.pages

bench: setup           ## speed on this machine, before and after in one run
	$(BIN)/remem bench scan --batch-size 32
	$(BIN)/remem bench write --batch-size 32
	$(BIN)/remem bench train --batch-size 32 --steps 5

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache .coverage
