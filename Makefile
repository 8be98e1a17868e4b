# The commands of the repository. `make` lists them.
#
# Everything is built below target/; only `make setup` changes the machine (Debian packages), and says so.

export CARGO_TARGET_DIR ?= $(CURDIR)/target
VENV := $(CURDIR)/target/venv
PYTHON := $(VENV)/bin/python
CARGO_TEST := cargo test --quiet --locked
HEADERS := -p zklock-c -p zklock-standalone-c --test header
# One interpreter for clippy, maturin and the tests, so that cargo builds the Python binding for it once.
export PYO3_PYTHON := $(PYTHON)
# maturin installs into the environment that is active.
export VIRTUAL_ENV := $(VENV)
export MYPY_CACHE_DIR := $(CURDIR)/target/mypy

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup build demo test check header clean test-rust test-python run-demo

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

setup: ## install what is missing: Debian packages (as root), a Python environment in target/venv
	@scripts/setup

build: setup ## build libzklock.so and libzklock.a (target/release), and the Python package (target/venv)
	@echo "build: the C library"
	@cargo build --quiet --locked --release -p zklock-c
	@echo "build: the Python package"
	@cd python && $(VENV)/bin/maturin develop --quiet --release --locked >../target/maturin.log 2>&1 || \
		{ cat ../target/maturin.log; exit 1; }

demo: build run-demo ## see a C and a Python program take turns on one lock of a real ZooKeeper

test: setup check test-rust build test-python run-demo ## run everything that continuous integration runs

check: setup ## check formatting, lints, and that the headers in include/ are up to date
	@echo "check: formatting"
	@cargo fmt --all --check
	@echo "check: lints"
	@cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
	@echo "check: the headers are what the crates make"
	@$(CARGO_TEST) $(HEADERS)

header: ## write the headers in include/ anew
	@ZKL_BLESS=1 $(CARGO_TEST) $(HEADERS)

clean: ## remove everything that was built
	@rm -rf target python/zklock/*.so
	@find python tests scripts -name __pycache__ -prune -exec rm -rf {} +

test-rust:
	@echo "test: Rust and C, against real servers"
	@$(CARGO_TEST) --workspace --exclude zklock-python

test-python:
	@echo "test: Python, against real servers"
	@$(PYTHON) -m pytest tests/python -q
	@echo "test: the Python type stubs are those of the module"
	@$(PYTHON) -m mypy.stubtest zklock

run-demo:
	@echo "demo: a C and a Python program take turns on one lock"
	@$(PYTHON) scripts/demo.py
