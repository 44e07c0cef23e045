# Every target makes .venv and installs what it needs; a second run finds it all in place.
# Needed beforehand: make and Python 3.11 or newer (PYTHON=... picks one).
# ARGS is handed on: make test ARGS="-k settings", make demo ARGS="--help".

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin

# The tests start hundreds of processes: compiled modules are kept, whatever the caller's shell says.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test quick test-browser lint format hooks docs wheel clean distclean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 15

demo: $(VENV)/.installed-base ## train on the embedded digits and write a report
	$(BIN)/holdfast demo $(ARGS)

# Two workers with one thread each: torch would otherwise start a thread per core in both. The long tests are at the end:
# worksteal shares them out.
test: $(VENV)/.installed-dev ## all tests that need neither a GPU nor a browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not gpu and not browser" $(ARGS)

quick: $(VENV)/.installed-dev ## every test function once, without the slow ones: under two minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not gpu and not browser" --quick $(ARGS)

test-browser: $(VENV)/.installed-dev ## tests that open reports in Chromium
	$(BIN)/python -m pytest -m browser $(ARGS)

lint: $(VENV)/.installed-dev ## ruff and mypy, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

hooks: $(VENV)/.installed-dev ## check every commit with ruff and mypy (pre-commit)
	$(BIN)/pre-commit install

docs: $(VENV)/.installed-docs ## build docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs: docs/_build/html/index.html"

# From a folder without src/: what is tested is what the wheel holds, templates and recipes included.
wheel: ## build a wheel, install it into a fresh environment, and run the quick demo there
	rm -rf build/wheel && mkdir -p build/wheel
	@if uv=$$(command -v uv || command -v $(BIN)/uv); then \
		"$$uv" build --quiet --wheel --out-dir build/wheel . \
			&& "$$uv" venv --quiet --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" build/wheel/env \
			&& "$$uv" pip install --quiet --python build/wheel/env/bin/python build/wheel/*.whl; \
	else \
		$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir build/wheel . \
			&& $(PYTHON) -m venv build/wheel/env \
			&& build/wheel/env/bin/python -m pip install --quiet --disable-pip-version-check build/wheel/*.whl; \
	fi
	cd build/wheel && env/bin/holdfast demo --quick --quiet --out demo && test -s demo/report.html
	@ls -l build/wheel/*.whl

clean: ## remove caches and built files, but neither .venv nor runs/
	rm -rf build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove .venv too
	rm -rf $(VENV)

# uv is several times as fast as pip, but does not read pip's configuration: where it fails, pip has the last word.
define install
	@echo "installing $(1) into $(VENV)"
	@if uv=$$(command -v uv || command -v $(BIN)/uv) \
		&& "$$uv" pip install --quiet --compile-bytecode --python $(BIN)/python -e "$(1)"; \
	then :; else \
		$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --upgrade >/dev/null; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -e "$(1)"; \
	fi
	@touch $@
endef

$(VENV)/.installed-base: pyproject.toml $(VENV)/pyvenv.cfg
	$(call install,.)

$(VENV)/.installed-%: pyproject.toml $(VENV)/pyvenv.cfg
	$(call install,.[$*])

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "holdfast needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python" >&2; exit 1; }
	@if command -v uv >/dev/null; then \
		uv venv --quiet --allow-existing --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV); \
	else \
		$(PYTHON) -m venv $(VENV) \
			|| { echo "$(PYTHON) cannot make environments; install python3-venv, or uv" >&2; exit 1; }; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check uv 2>/dev/null \
			|| echo "no uv to be had; using pip"; \
	fi
