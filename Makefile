# `make demo` and `make test` work from a clean checkout; everything is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
# Tests start many processes. Without bytecode files, each of them compiles torch again, for longer than most tests take.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check docs campaign campaign-short install clean

demo: install
	$(BIN)/nearkin demo

# All tests of a file run in one process, so that shared models are trained once.
test: check
	$(BIN)/pytest -n auto --dist loadfile

# Hostile files and requests; see docs/security.md.
campaign: install
	$(BIN)/python -m benchmarks.campaign

campaign-short: install
	$(BIN)/python -m benchmarks.campaign --seconds 20

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Builds the site into site/, offline; any warning is an error (but not with --quiet, which hides them).
docs: install
	$(BIN)/codespell
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

install: .venv/installed

# constraints.txt pins versions that were tested together. Python compiles modules when they are first imported.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "nearkin needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache dist site
