# The commands of the repository. `make` lists them.
#
# Everything is built below target/. Only `make setup` and what needs it change the machine (Debian packages), and say so.

export CARGO_TARGET_DIR ?= $(CURDIR)/target
VENV := $(CURDIR)/target/venv
PYTHON := $(VENV)/bin/python
CARGO_TEST := cargo test --quiet --locked
HEADERS := -p zklock-c -p zklock-standalone-c --test header
ABI := -p zklock-c -p zklock-standalone-c --test abi
# One interpreter for clippy, maturin and the tests, so that cargo builds the Python binding for it once.
export PYO3_PYTHON := $(PYTHON)
# maturin installs into the environment that is active.
export VIRTUAL_ENV := $(VENV)
export MYPY_CACHE_DIR := $(CURDIR)/target/mypy
# The package need not be installed for it.
PYRIGHT := PYTHONPATH=python PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(VENV)/bin/pyright --pythonpath $(PYTHON)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help tools setup build install uninstall dist wheels deb cinstall-check demo test sim mutants chaos bench bench-against fuzz interop kazoo-suite models asan check deny header reference docs clean test-rust test-install test-wheels test-deb test-python test-bench test-chaos test-fuzz run-demo

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 13

setup: ## install what the tests need: Debian packages (as root), and in target Curator, ZooKeeper, cargo-deny, mdBook and a Python environment
	@scripts/setup tests

tools:
	@scripts/setup build

build: tools ## build libzklock.so, libzklock.a and zklock-standalone (target/release), and the Python package (target/venv)
	@echo "build: the C library and the standalone server"
	@cargo build --quiet --locked --release -p zklock-c -p zklock-standalone -p zklock-standalone-c
	@echo "build: the Python package"
	@cd python && $(VENV)/bin/maturin develop --quiet --release --locked >../target/maturin.log 2>&1 || \
		{ cat ../target/maturin.log; exit 1; }

# Directories of GNU's, in capitals or not: make install PREFIX=/usr LIBDIR=lib64 DESTDIR=/tmp/package
PREFIX ?= $(or $(prefix),/usr/local)
directory = $(if $($(1))$($(2)),--$(2)='$(or $($(1)),$($(2)))')
DIRECTORIES = --prefix='$(PREFIX)' $(call directory,LIBDIR,libdir) $(call directory,INCLUDEDIR,includedir) $(call directory,BINDIR,bindir) \
	$(call directory,MANDIR,mandir) $(call directory,DOCDIR,docdir) $(call directory,DESTDIR,destdir)

dist:
	@scripts/dist

install: dist ## install the C libraries, headers and the standalone server: PREFIX=/usr/local, LIBDIR=lib, DESTDIR=
	@scripts/install $(DIRECTORIES)

uninstall: ## remove what make install has installed with the same PREFIX, LIBDIR, DESTDIR
	@scripts/install --uninstall $(DIRECTORIES)

wheels: tools ## build the Python wheel and the source distribution in target/wheels
	@rm -rf $(CARGO_TARGET_DIR)/wheels
	@cd python && $(VENV)/bin/maturin build --quiet --release --locked --out $(CARGO_TARGET_DIR)/wheels >../target/maturin.log 2>&1 && \
		$(VENV)/bin/maturin sdist --out $(CARGO_TARGET_DIR)/wheels >>../target/maturin.log 2>&1 || { cat ../target/maturin.log; exit 1; }

deb: tools ## build the Debian packages in target/deb: dpkg -i target/deb/*.deb
	@scripts/deb

cinstall-check: ## build cargo-c, install the C library with it, and try the examples on that (minutes)
	@scripts/cinstall-check

demo: build run-demo ## see a C and a Python program take turns on one lock; on yours with ZKLOCK_SERVERS=host:2181

test: setup check deny models test-rust build test-install test-wheels test-deb test-python docs test-bench test-chaos test-fuzz ## run everything that continuous integration runs

SEEDS ?= 100000
sim: ## run 100,000 simulated schedules (SEEDS=n), or print what happens in one (SEED=n)
	@cargo build --quiet --locked --release -p zklock-sim
	@$(CARGO_TARGET_DIR)/release/zklock-sim $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

mutants: ## let deliberate bugs loose in the simulation, and print how many schedules it takes to find each (minutes)
	@cargo build --quiet --locked --release -p zklock-sim
	@$(CARGO_TARGET_DIR)/release/zklock-sim --mutants --seeds 200000

MINUTES ?= 5
chaos: setup build ## let everything go wrong on three real servers for MINUTES=n, from SEED=n on, and print what came of it
	@cargo build --quiet --locked --release -p zklock-chaos
	@$(CARGO_TARGET_DIR)/release/zklock-chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(LOOPBACK),--loopback)

BENCH ?= --part locks,memory,scale --docs docs
bench: setup build ## measure zklock's locks beside others' and the floor, and write docs/benchmarks.md (45 minutes; BENCH="--help")
	@cargo build --quiet --locked --release -p zklock-bench
	@$(CARGO_TARGET_DIR)/release/zklock-bench $(BENCH)

OTHER := $(CARGO_TARGET_DIR)/against
bench-against: setup build ## measure this libzklock.so beside that of the commit REF, window by window (20 minutes; AGAINST="--workloads w1,w3 --rounds 15")
	@test -n "$(REF)" || { echo "make bench-against REF=COMMIT: no commit to compare with"; exit 2; }
	@git rev-parse --quiet --verify "$(REF)^{commit}" >/dev/null || { echo "make bench-against: no commit $(REF)"; exit 2; }
	@rm -rf $(OTHER)/source && mkdir -p $(OTHER)/source
	@git archive "$(REF)" | tar -x -C $(OTHER)/source
	@CARGO_TARGET_DIR=$(OTHER) cargo build --quiet --locked --release -p zklock-c --manifest-path $(OTHER)/source/Cargo.toml
	@cargo build --quiet --locked --release -p zklock-bench
	@$(CARGO_TARGET_DIR)/release/zklock-bench --against $(OTHER)/release $(AGAINST)

SECONDS_EACH ?= 60
fuzz: tools ## let fuzzers look for bytes that break something, SECONDS_EACH=60 for each (TARGETS="proto engine"; SANITIZE=1)
	@SECONDS_EACH=$(SECONDS_EACH) scripts/fuzz $(TARGETS)

interop: setup ## share locks with real Curator, old and new, and with real kazoo, and print what was seen as a table
	@$(CARGO_TEST) -p zklock --test interop -- --table $(ONLY)

kazoo-suite: setup ## run kazoo's own tests against a real server and the standalone one (a minute)
	@cargo build --quiet --locked -p zklock-standalone
	@$(PYTHON) scripts/kazoo-suite

check: setup ## check formatting, lints, the types of the Python package, and that the headers in include/ are up to date
	@echo "check: formatting"
	@cargo fmt --all --check
	@echo "check: lints"
	@cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
	@echo "check: Python: formatting, lints, and whether pyright finds every type"
	@$(VENV)/bin/ruff format --quiet --check .
	@$(VENV)/bin/ruff check --quiet .
	@$(PYRIGHT) python/zklock python/pytest_zklock tests/python/typing_ok.py >target/pyright.log || { cat target/pyright.log; exit 1; }
	@$(PYRIGHT) --verifytypes zklock >target/pyright.log || { cat target/pyright.log; exit 1; }
	@echo "check: the headers are what the crates make"
	@$(CARGO_TEST) $(HEADERS)

# How often loom may take the processor from a thread that could go on. Two find all that was planted; each more takes five times as long.
PREEMPTIONS ?= 3
models: ## let loom try the orders in which threads may come to what they share; more of them with PREEMPTIONS=5 (a minute)
	@echo "models: handles, answers and the event thread, in every order with $(PREEMPTIONS) preemptions"
	@LOOM_MAX_PREEMPTIONS=$(PREEMPTIONS) $(CARGO_TEST) -p zklock -p zklock-abi --lib --features zklock/loom,zklock-abi/loom models

asan: setup ## run the C and C++ programs with AddressSanitizer on both sides: in them, and in the libraries (minutes)
	@echo "asan: the C and C++ programs, and the libraries, with AddressSanitizer"
	@ZKLOCK_ASAN=1 $(CARGO_TEST) -p zklock-c -p zklock-standalone-c --test c --test cpp with_sanitizers

deny: setup ## check the licences, versions and sources of all dependencies
	@echo "deny: licences, versions and sources of the dependencies"
	@target/tools/bin/cargo-deny --log-level error --locked --workspace check bans licenses sources
	@scripts/notices --check

header: setup ## write the headers in include/ anew, and the ABI that they make in abi/
	@ZKL_BLESS=1 $(CARGO_TEST) $(HEADERS)
	@ZKL_BLESS=1 $(CARGO_TEST) $(ABI)

reference: build ## write the pages in docs/reference anew, from the headers and the Python package
	@$(PYTHON) scripts/reference.py

docs: ## make the documentation's site, target/site, with the reference of the Rust crates in it
	@scripts/setup docs
	@echo "docs: the reference of the Rust crates"
	@RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked --no-deps -p zklock -p zklock-standalone
	@echo "docs: the site"
	@$(PYTHON) scripts/site.py

clean: ## remove everything that was built
	@rm -rf target python/zklock/*.so
	@find python tests scripts -name __pycache__ -prune -exec rm -rf {} +

test-rust:
	@echo "test: Rust and C, against real servers"
	@$(CARGO_TEST) --workspace --exclude zklock-python --exclude zklock-chaos --exclude zklock-bench

test-install:
	@echo "test: what is installed, and programs that are built on it outside of the repository"
	@$(PYTHON) scripts/test-install

test-wheels: wheels
	@echo "test: the Python wheel and the source distribution, each in an environment of its own"
	@$(PYTHON) scripts/test-wheels

test-deb: deb
	@echo "test: the Debian packages, in a copy of this machine"
	@$(PYTHON) scripts/test-deb

test-python:
	@echo "test: Python, against real servers; the demo"
	@$(PYTHON) -m pytest tests/python -q
	@echo "test: the Python type stubs are those of the module"
	@$(PYTHON) -m mypy.stubtest zklock

test-bench:
	@echo "test: each driver of the benchmark for a moment"
	@$(CARGO_TEST) -p zklock-bench

test-chaos:
	@echo "test: C, Python and Rust on three servers while everything goes wrong"
	@$(CARGO_TEST) -p zklock-chaos

test-fuzz:
	@echo "test: each fuzzer for a few seconds"
	@SECONDS_EACH=5 scripts/fuzz

run-demo:
	@echo "demo: a C and a Python program take turns on one lock"
	@$(PYTHON) scripts/demo.py
