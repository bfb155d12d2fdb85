# Two commands matter: `make demo` (a live run in the dashboard) and `make test`. Each does its own set-up in .venv.
VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
PY = $(VENV)/bin/python
LOCKS = requirements/base.lock requirements/engine-cpu.lock requirements/dev.lock
STAMP = $(VENV)/.installed

.PHONY: demo test setup light automodel e2e slurm bench gpu monkey lint docs clean

demo: setup
	$(VENV)/bin/molt-tui demo

test: setup lint
	$(PY) -m pytest tests/unit tests/tui tests/e2e -m "not long"

e2e: setup
	$(PY) -m pytest tests/e2e

slurm: setup
	$(PY) -m pytest tests/slurm

bench: setup
	$(PY) -m tests.bench

# On a machine with CUDA devices, in an environment with the gpu extra; the record of the bench goes to docs/gpu.md.
gpu:
	$(PY) -m pytest tests/gpu
	$(PY) -m tests.bench.gpu gpu-bench

monkey: setup
	$(PY) -m tests.monkey 20

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

setup: $(STAMP)

$(STAMP): $(LOCKS) requirements/setup.sh pyproject.toml
	VENV=$(VENV) PYTHON=$(PYTHON) bash requirements/setup.sh
	touch $(STAMP)

light:
	VENV=$(VENV) PYTHON=$(PYTHON) bash requirements/setup.sh light

# The training side on NeMo AutoModel's classes, on CPU; `make test` skips these where AutoModel is not installed.
automodel: setup
	$(VENV)/bin/pip install -q --no-deps -r requirements/automodel-cpu.lock
	$(PY) -m pytest tests/unit/train/test_automodel.py

docs: setup
	$(PY) -m tests.make_algorithms
	$(PY) -m docs.make_screenshots

clean:
	rm -rf $(VENV) build dist *.egg-info
