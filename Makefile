# Every goal sets up .venv by itself, from the exact versions in requirements/lock.txt.
PYTHON ?= python3
BIN := .venv/bin
RUN ?= runs/demo

.PHONY: demo test test-slow bench lint docs notebook clean

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

.venv/docs: .venv/ready requirements/docs.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c requirements/lock.txt -r requirements/docs.txt
	touch $@

docs: .venv/docs  ## the site in site/index.html; a warning is an error
	$(BIN)/sphinx-build -q -W --keep-going -E docs site

notebook: .venv/docs  ## run examples/tutorial.ipynb and keep what it shows
	$(BIN)/jupyter-execute --inplace --kernel_name=python3 --timeout=600 examples/tutorial.ipynb
	$(BIN)/ruff format --quiet examples/tutorial.ipynb

clean:
	rm -rf site .venv .pytest_cache .ruff_cache
