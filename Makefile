# Everything a developer or a first-time user runs. Each target sets up what it needs; nothing is installed outside .venv,
# except missing system packages when run as root on Debian or Ubuntu (tools/setup.sh says which, and why it stops).

VENV := .venv
LAUNCHER := minisandbox/launcher
STRICT := -std=gnu11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror
ARGS ?=
LANES ?=

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.PHONY: help install demo test test-lanes test-trl check format bench bench-state bench-rollouts launcher clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s  %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed-base launcher ## set up .venv with the command .venv/bin/minisandbox

demo: $(VENV)/.installed-demo launcher ## play real tasks by three policies, judge them, and make a report
	@$(VENV)/bin/python examples/demo.py $(ARGS)

test: $(VENV)/.installed-dev launcher ## run the tests (ARGS="-k name" for some of them)
	@$(VENV)/bin/pytest -q $(ARGS)

test-lanes: $(VENV)/.installed-dev launcher ## run the tests on all kinds of hosts that can be had, an hour (LANES="v2 box" ARGS=--quick)
	@tests/lanes/setup $(LANES)
	@tests/lanes/run $(ARGS) $(or $(LANES),--all)

test-trl: launcher ## train by TRL on rewards of the judge, a minute (installs torch, several GB where pip finds no smaller build)
	@tools/setup.sh $(VENV)-trl dev,trl
	@$(VENV)-trl/bin/pytest -q tests/test_training.py -k trl

check: $(VENV)/.installed-dev ## check format, lint, types and C warnings
	@said=$$($(VENV)/bin/ruff format --check . 2>&1) || { echo "$$said"; exit 1; }
	@$(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/mypy --no-error-summary
	@for source in $(LAUNCHER)/*.c; do $(CC) $(STRICT) -c -o /dev/null $$source || exit 1; done

format: $(VENV)/.installed-dev ## format the Python code and mend what lint can mend
	@$(VENV)/bin/ruff format --quiet .
	@$(VENV)/bin/ruff check --quiet --fix .

bench: $(VENV)/.installed-bench launcher ## compare the start of a sandbox with bare processes, bubblewrap and nsjail
	@$(VENV)/bin/python bench/launch.py $(ARGS)

bench-state: $(VENV)/.installed-bench launcher ## measure forks, restores, snapshots and templates
	@$(VENV)/bin/python bench/state.py $(ARGS)

bench-rollouts: $(VENV)/.installed-bench launcher ## measure episodes a second, and what the loop adds to a turn
	@$(VENV)/bin/python bench/rollouts.py $(ARGS)

# The launcher's own Makefile knows whether its sources changed.
launcher: $(VENV)/.installed-base
	@$(MAKE) -s -C $(LAUNCHER)

# One stamp for each set of packages: base, demo, bench, dev. A new pyproject.toml makes all of them old.
$(VENV)/.installed-%: pyproject.toml hatch_build.py tools/setup.sh
	@tools/setup.sh $(VENV) $*
	@touch $@

clean: ## remove .venv and everything that was built
	@$(MAKE) -s -C $(LAUNCHER) clean
	@rm -rf $(VENV) $(VENV)-trl dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
