# Two commands on a fresh machine: `make demo` and `make test`. `make help` lists the others.
#
# Needs make and Python 3.11 or newer with its venv module. Everything is installed into .venv, from the locked
# requirements, the first time and whenever the locks change; see requirements/install.py. The demo's lock is the
# smaller one.

.DEFAULT_GOAL := help

VENV ?= .venv
PYTHON ?=
ARGS ?=

python := $(VENV)/bin/python

.PHONY: help
help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo '  ARGS="..." passes options on:  make demo ARGS="--duration 20 --json"'
	@echo '                                 make test ARGS="tests/unit -x"'
	@echo '  PYTHON=/path/to/python3 chooses the Python that .venv is made with (default: python3, if 3.11 or newer).'

# Says what it does on standard error: standard output belongs to the commands (`make demo ARGS=--json` prints one
# JSON object there). make itself ends with 2 whatever a command failed with; its last line has the command's status.
.PHONY: ready ready-demo
ready: lock := dev.txt
ready-demo: lock := demo.txt
ready ready-demo:
	@$(python) requirements/install.py --ready --lock $(lock) $(VENV) 2>/dev/null || { \
		found=$$(sh requirements/find-python.sh $(if $(PYTHON),"$(PYTHON)")) && "$$found" requirements/install.py --lock $(lock) $(VENV); \
	} >&2

.PHONY: demo
demo: ready-demo ## The whole path on this machine: devices, MQTT, gateway, Kafka, Spark; then the account
	@$(python) -m gateway.cli.main demo $(ARGS)

# Tests start some hundred Python processes of ours: each would compile all modules anew where this is set.
test chaos: export PYTHONDONTWRITEBYTECODE =

.PHONY: test
test: ready ## Runs every test; formatting, lint, types and import contracts are among them
	@$(python) -m pytest --numprocesses=auto --dist=loadfile --no-loadscope-reorder $(ARGS)

.PHONY: test-compiled
test-compiled: ready ## Runs tests on the compiled data path: ARGS="tests/unit/test_mqtt_ingest.py -x"
	@$(python) -m tests.compiled $(ARGS)

.PHONY: chaos
chaos: ready ## Runs the failure tests in their long form
	@CHAOS=full $(python) -m pytest tests/chaos tests/lake tests/integration/test_image.py $(ARGS)

.PHONY: soak
soak: ready ## Random failures under load: ARGS="--minutes 30 --seed 7"; nothing missing, nothing growing
	@$(python) -m tests.chaos.soak $(ARGS)

.PHONY: bench
bench: ready ## Measures speed; ARGS="--json FILE" writes the rows
	@$(python) -m tests.bench $(ARGS)

.PHONY: check
check: ready ## Formatting, lint, types, import contracts
	@$(python) -m ruff format --check .
	@$(python) -m ruff check .
	@$(python) -m mypy
	@$(python) $(VENV)/bin/lint-imports

.PHONY: lock
lock: ready ## Locks the dependencies again; ARGS=--upgrade moves them to their newest versions
	@$(python) -m pip --disable-pip-version-check install --quiet --require-hashes --requirement requirements/lock.txt
	@$(python) requirements/lock.py $(ARGS)

.PHONY: clean
clean: ## Removes .venv and everything built or cached in this folder
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
