# Every target works from a fresh clone. The environment is rebuilt when what it is made from changes.
PYTHON ?= python3
VENV := .venv
MINUTES ?= 30
JOBS ?= 2
# Tests write many small files, each forced to the disk: a folder in memory does not make them wait.
TEST_FILES := $(firstword $(wildcard /dev/shm) /tmp)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help audit chaos demo test test-slow test-extras test-integrations test-avalanche test-rl test-min lint bench docs images pages package clean

help:  # this list
	@sed -n 's/^\([a-z-]*\):[^#]*#  *\(.*\)/make \1: \2/p' Makefile

demo: $(VENV)/installed  # five tasks in seconds, no download
	$(BIN)/hashroute demo

test: $(VENV)/developing  # the test suite; COVERAGE=--cov prints the coverage of every file
	TMPDIR=$(TEST_FILES) $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 15 $(COVERAGE)

test-slow: $(VENV)/developing  # the tests that take minutes
	$(BIN)/python -m pytest -m slow

test-extras: .venv-extras/installed  # ONNX, backbones, Parquet, notebooks, trackers, OpenAPI: an environment of its own
	.venv-extras/bin/python -m pytest tests/learners/test_export.py tests/nn/test_pretrained.py \
		tests/model/test_model_export.py tests/model/test_model_backbones.py tests/model/test_parquet.py \
		tests/model/test_notebook.py tests/integrations
	.venv-extras/bin/python -m pytest -m slow tests/serve/test_openapi.py

test-integrations: .venv-integrations/installed  # Dask, Ray and submitit: real clusters on this machine, killed workers
	.venv-integrations/bin/python -m pytest tests/integrations/test_engines.py

test-avalanche: .venv-avalanche/installed  # the bridge to Avalanche, in an environment of its own
	.venv-avalanche/bin/python -m pytest tests/integrations/test_avalanche.py

test-rl: .venv-rl/installed  # agents of stable-baselines3 and hashroute rl, in an environment of their own
	.venv-rl/bin/python -m pytest tests/integrations/test_sb3.py tests/rl tests/examples

test-min: .venv-min/installed  # the lowest versions of constraints-min.txt: a fast part of the tests
	.venv-min/bin/python -m pytest -W default tests/cli/test_app.py tests/cli/test_kept_model.py \
		tests/cli/test_search_trials.py tests/data/test_images.py tests/integrations/test_sklearn.py \
		tests/integrations/test_tracking.py tests/model/test_store.py tests/nn/test_gaussian.py tests/nn/test_reference.py \
		tests/reporting/test_figures.py

chaos: $(VENV)/developing  # kills, full disks and hostile files for MINUTES; the figures are in docs/reliability.md
	-$(PIP) --editable ".[fuzz]"
	TMPDIR=$(TEST_FILES) $(BIN)/python tests/chaos/campaign.py --minutes $(MINUTES) --jobs $(JOBS)

lint: $(VENV)/developing  # style, types and security
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive hashroute

audit: $(VENV)/developing  # known weaknesses of the pinned packages; needs https://pypi.org
	$(PIP) pip-audit
	$(BIN)/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

bench: $(VENV)/developing  # speed of training and of operations
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/operations.py

docs: $(VENV)/developing  # the site, in build/site
	$(BIN)/mkdocs build --strict

images: $(VENV)/developing  # the pictures in docs/images
	$(BIN)/python docs/make_images.py

pages: $(VENV)/developing  # tables, figures and examples of README and docs
	$(BIN)/python docs/make_pages.py

package:  # sdist and wheel, in dist; installs the wheel in a fresh environment elsewhere and runs the demo
	rm -rf dist build/package
	$(PYTHON) -m venv build/package
	build/package/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt hatchling
	build/package/bin/hatchling build --target sdist --directory dist
	tar -xzf dist/*.tar.gz -C build/package
	cd build/package/hashroute-* && ../bin/hatchling build --target wheel --directory $(CURDIR)/dist
	place=$$(mktemp -d) && $(PYTHON) -m venv $$place/venv && \
		$$place/venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		"$$(ls $(CURDIR)/dist/*.whl)[plots]" && cd $$place && venv/bin/hashroute demo && rm -rf $$place

clean:  # remove all that was built
	rm -rf $(VENV) .venv-extras .venv-integrations .venv-avalanche .venv-rl .venv-min build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable ".[plots]"
	touch $@

$(VENV)/developing: $(VENV)/installed
	$(PIP) --editable ".[plots,search,serve,tensorboard,test,lint,docs]"
	touch $@

.venv-extras/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-extras
	.venv-extras/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable ".[test,efficientnet,export,mlflow,openapi,parquet,serve,tensorboard,wandb]" \
		ipykernel nbclient onnxruntime
	touch $@

.venv-integrations/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-integrations
	.venv-integrations/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable ".[test,dask,ray,slurm]"
	touch $@

.venv-avalanche/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-avalanche
	.venv-avalanche/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable ".[test,avalanche]"
	touch $@

# MinAtar is GPL-3: for comparisons only. Without --no-deps it would also install what it draws with.
.venv-rl/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-rl
	.venv-rl/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable ".[plots,test,sb3]"
	.venv-rl/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--no-deps minatar
	touch $@

.venv-min/installed: pyproject.toml constraints-min.txt
	$(PYTHON) -m venv .venv-min
	.venv-min/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-min.txt \
		--editable ".[plots,search,serve,tensorboard,parquet]" pytest hypothesis pandas
	touch $@
