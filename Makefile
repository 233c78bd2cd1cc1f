# Every goal sets up .venv by itself, from the exact versions in requirements/lock.txt.
PYTHON ?= python3
BIN := .venv/bin
RUN ?= runs/demo

.PHONY: demo test test-slow bench lint clean

.venv/ready: requirements/lock.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements/lock.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: .venv/ready  ## train on the 40-mode mixture, sample, evaluate, write a report
	$(BIN)/demx fit gmm40 --directory $(RUN)
	$(BIN)/demx sample $(RUN) -n 10000
	$(BIN)/demx evaluate $(RUN)
	$(BIN)/demx report $(RUN)

test: .venv/ready  ## fast tests
	$(BIN)/pytest -n 2 --dist loadfile -m "not slow"

test-slow: .venv/ready  ## long checks: whole trainings against their bars
	XLA_FLAGS= $(BIN)/pytest -m slow

bench: .venv/ready  ## how long the parts take here
	$(BIN)/demx bench speed

lint: .venv/ready  ## style
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples

clean:
	rm -rf .venv .pytest_cache .ruff_cache
