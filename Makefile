# The commands of the repository. `make` lists them.
#
# All results are below target/. Only `make setup`, and the targets that depend on it, change the machine: they install Debian packages and print a message.

export CARGO_TARGET_DIR ?= $(CURDIR)/target
# A make rule cannot quote a path with a blank.
ifneq ($(words [$(CURDIR)] [$(CARGO_TARGET_DIR)]),2)
$(error the path of the repository, or CARGO_TARGET_DIR, contains a blank ("$(CURDIR)", "$(CARGO_TARGET_DIR)"); move it to a path without blanks)
endif
VENV := $(CURDIR)/target/venv
PYTHON := $(VENV)/bin/python
CARGO_TEST := cargo test --quiet --locked
# Without `-p`, the packages have the same features as in `make test`, so cargo does not build them again.
HEADERS := --test header
ABI := --test abi
# clippy, maturin and the tests use the same interpreter, so that cargo builds the Python binding only once.
export PYO3_PYTHON := $(PYTHON)
# maturin installs into the active environment.
export VIRTUAL_ENV := $(VENV)
export MYPY_CACHE_DIR := $(CURDIR)/target/mypy
PYTHON_EXAMPLES := python/examples $(wildcard examples/python)
# Other versions of Rust have other lints. Their warnings are printed, but are not errors.
LINTED_VERSION := rustc 1.95.
WARNINGS_FAIL = $(if $(findstring $(LINTED_VERSION),$(shell rustc --version)),-D warnings)
# The crates and the Python package, whose files must not import each other in a circle.
ACYCLIC := $(sort $(dir $(wildcard src/lib.rs */src/lib.rs */src/main.rs */*/src/lib.rs */*/src/main.rs))) tests/interop/third_party_clients python/zklock
# The crates that the pure core may use at run time. None of them does I/O or uses a clock.
PURE := thiserror uuid zeroize zklock-base zklock-core zklock-proto
PURE_TREE := cargo tree --locked --package zklock-core --edges normal,no-proc-macro --target all --all-features --prefix none
# pyright does not require that the package is installed.
PYRIGHT := PYTHONPATH=python PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(VENV)/bin/pyright --pythonpath $(PYTHON)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help tools setup build install uninstall dist wheels deb static cinstall-check demo test shake verify sim mutants chaos faults bench bench-against fuzz tls-providers interop kazoo-suite models asan check language deny header surface stubs docs clean setup-verify setup-checks test-build test-tools test-support test-sim test-install test-wheels test-static test-deb test-empty-system test-pages test-go test-workflows test-bench test-chaos test-fuzz

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 13

setup: ## install the requirements of make test: Debian packages (as root); Curator, ZooKeeper and a Python environment in target
	@scripts/setup tests

setup-checks:
	@scripts/setup checks

setup-verify:
	@scripts/setup verify

tools:
	@scripts/setup build

build: tools ## build libzklock.so, libzklock.a, zklock and zklock-standalone (target/release), and the Python package (target/venv)
	@echo "build: the C library, the command and the standalone server"
	@cargo build --quiet --locked --release -p zklock-c -p zklock-command -p zklock-standalone -p zklock-standalone-c
	@echo "build: the Python package"
	@cd python && $(VENV)/bin/maturin develop --quiet --release --locked >../target/maturin.log 2>&1 || \
		{ cat ../target/maturin.log; exit 1; }

# The directories of the GNU conventions, in upper or lower case: make install PREFIX=/usr LIBDIR=lib64 DESTDIR=/tmp/package
PREFIX ?= $(or $(prefix),/usr/local)
directory = $(if $($(1))$($(2)),--$(2)='$(or $($(1)),$($(2)))')
DIRECTORIES = --prefix='$(PREFIX)' $(call directory,LIBDIR,libdir) $(call directory,INCLUDEDIR,includedir) $(call directory,BINDIR,bindir) \
	$(call directory,DATADIR,datadir) $(call directory,MANDIR,mandir) $(call directory,DOCDIR,docdir) $(call directory,DESTDIR,destdir)

dist:
	@scripts/dist

install: dist ## install the C libraries, headers, the command and the standalone server: PREFIX=/usr/local, LIBDIR=lib, DESTDIR=
	@scripts/install $(DIRECTORIES)

uninstall: ## remove the files that make install has installed with the same PREFIX, LIBDIR, DESTDIR
	@scripts/install --uninstall $(DIRECTORIES)

wheels: tools ## build the Python wheel and the source distribution in target/wheels
	@rm -rf $(CARGO_TARGET_DIR)/wheels
	@cd python && $(VENV)/bin/maturin build --quiet --release --locked --out $(CARGO_TARGET_DIR)/wheels >../target/maturin.log 2>&1 && \
		$(VENV)/bin/maturin sdist --out $(CARGO_TARGET_DIR)/wheels >>../target/maturin.log 2>&1 || { cat ../target/maturin.log; exit 1; }

deb: tools ## build the Debian packages in target/deb: dpkg -i target/deb/*.deb
	@scripts/deb

# The musl target makes programs that run on every Linux. Its C compiler, which the cryptography needs, is in the package musl-tools.
STATIC := $(shell uname -m)-unknown-linux-musl
HAS_STATIC := test -d "$$(rustc --print target-libdir --target $(STATIC) 2>/dev/null)"
static: ## build a static zklock that runs on every Linux: target/static/zklock
	@command -v musl-gcc >/dev/null || { echo "static: musl-gcc is missing: apt-get install musl-tools"; exit 1; }
	@$(HAS_STATIC) || { echo "static: Rust's standard library is missing: rustup target add $(STATIC)"; exit 1; }
	@cargo build --quiet --locked --profile static --target $(STATIC) -p zklock-command
	@mkdir -p $(CARGO_TARGET_DIR)/static
	@cp $(CARGO_TARGET_DIR)/$(STATIC)/static/zklock $(CARGO_TARGET_DIR)/static/zklock

cinstall-check: ## build cargo-c, install the C library with it, and run an example with the installed library (minutes)
	@scripts/cinstall-check

# The demo and the tests use builds without optimization, which take a fraction of the time.
DEBUG_BUILD := cargo build --quiet --locked -p zklock-c -p zklock-standalone -p zklock-standalone-c -p zklock-command
DEBUG_MODULE := cd python && $(VENV)/bin/maturin develop --quiet --locked >../target/maturin.log 2>&1 || { cat ../target/maturin.log; exit 1; }

demo: tools ## show a C and a Python program that share one lock; on your own servers with ZKLOCK_SERVERS=host:2181
	@echo "demo: building the C library, the standalone server and the Python package"
	@$(DEBUG_BUILD)
	@$(DEBUG_MODULE)
	@echo "demo: a C and a Python program share one lock"
	@$(PYTHON) scripts/demo.py

test: test-build ## test every layer and all languages on real servers, as everybody does before a commit (minutes)
	@echo "test: Rust, C, C++ and Python, on real servers; locks shared with Curator and kazoo; simulated schedules"
	@python3 scripts/run_tests.py $(RUN_TESTS)

test-build:
	@# Cargo compiles while the script downloads. A package that needs a download is compiled later.
	@mkdir -p target
	@scripts/setup tests & setup=$$!; \
		echo "test: compiling the tests"; $(CARGO_TEST) --no-run 2>target/compile.log && $(DEBUG_BUILD) -p zklock-sim; compiled=$$?; \
		wait $$setup || exit 1; test $$compiled = 0 || { cat target/compile.log; exit 1; }
	@echo "test: compiling the Python package"
	@$(DEBUG_MODULE)

N ?= 5
shake: test-build ## run the tests N=5 times under the conditions of other machines: load, short process ids, another place and order (half an hour)
	@python3 scripts/shake.py $(N)

# Checks the exact time limits, as tests/README.md explains. Programs that run at the same time would delay each other.
verify: export TEST_ZKLOCK_EXACT_LIMITS = 1
verify: export TEST_PROGRAMS = 1
verify: export RUST_THREADS = 4
verify: setup-verify test check deny models test-support test-tools test-sim build test-install test-wheels test-static test-deb test-empty-system test-pages test-go test-workflows docs test-bench test-chaos test-fuzz asan tls-providers ## run all tests and checks, as before a release (an hour)

SEEDS ?= 100000
sim: ## run 100,000 simulated schedules (SEEDS=n), or print the events of one (SEED=n)
	@cargo build --quiet --locked --release -p zklock-sim
	@$(CARGO_TARGET_DIR)/release/zklock-sim $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

# These wrappers build the crates of the repository a second time, beside the ordinary build. The dependencies are built only once.
MUTANTS := RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/scripts/rustc-mutants
LOOM := RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/scripts/rustc-loom

mutants: ## run the simulation with deliberate bugs, and print how many schedules find each of them (minutes)
	@$(MUTANTS) cargo build --quiet --locked --release -p zklock-sim
	@$(CARGO_TARGET_DIR)/release/zklock-sim --mutants --seeds 200000

MINUTES ?= 5
chaos: setup build ## cause faults on three real servers for MINUTES=n, beginning with SEED=n, and print the results
	@cargo build --quiet --locked --release -p zklock-chaos
	@$(CARGO_TARGET_DIR)/release/zklock-chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(LOOPBACK),--loopback) $(if $(TLS),--tls) $(if $(SASL),--sasl)

ROUNDS ?= 10000
faults: setup ## run ROUNDS=10000 calls of the command with random kills, stops and network faults, and 1000 calls of one job (20 minutes)
	@TEST_ZKLOCK_FAULTS=$(ROUNDS) $(CARGO_TEST) -p zklock-command --test command -- --nocapture random_faults crunz_289

BENCH ?= --part locks,memory,scale --docs docs
bench: setup build ## measure the locks of zklock, other libraries and plain sockets, and write docs/benchmarks.md (45 minutes; BENCH="--help")
	@cargo build --quiet --locked --release -p zklock-bench
	@$(CARGO_TARGET_DIR)/release/zklock-bench $(BENCH)

OTHER := $(CARGO_TARGET_DIR)/against
bench-against: setup build ## compare the speed of this libzklock.so with the commit REF, in alternating windows (20 minutes; AGAINST="--workloads w1,w3 --rounds 15")
	@test -n "$(REF)" || { echo "make bench-against REF=COMMIT: no commit to compare with"; exit 2; }
	@git rev-parse --quiet --verify "$(REF)^{commit}" >/dev/null || { echo "make bench-against: no commit $(REF)"; exit 2; }
	@rm -rf $(OTHER)/source && mkdir -p $(OTHER)/source
	@git archive "$(REF)" | tar -x -C $(OTHER)/source
	@CARGO_TARGET_DIR=$(OTHER) cargo build --quiet --locked --release -p zklock-c --manifest-path $(OTHER)/source/Cargo.toml
	@cargo build --quiet --locked --release -p zklock-bench
	@$(CARGO_TARGET_DIR)/release/zklock-bench --against $(OTHER)/release $(AGAINST)

SECONDS_EACH ?= 60
fuzz: tools ## run each fuzzer for SECONDS_EACH=60 (TARGETS="proto engine"; SANITIZE=1)
	@SECONDS_EACH=$(SECONDS_EACH) scripts/fuzz $(TARGETS)

tls-providers: setup ## run the tests of TLS with aws-lc-rs and with the OpenSSL of the system in place of ring; needs libssl-dev (minutes)
	@for provider in aws-lc-rs rustls-openssl; do echo "tls-providers: $$provider"; \
		$(CARGO_TEST) -p zklock --no-default-features --features $$provider --test integration -- tls || exit 1; done

interop: setup ## share locks with an old and a new version of Curator and with kazoo, and print the results as a table
	@$(CARGO_TEST) -p zklock --test interop -- --table $(ONLY)

kazoo-suite: setup ## run kazoo's own tests against a real server and against the standalone server (a minute)
	@cargo build --quiet --locked -p zklock-standalone
	@$(PYTHON) scripts/kazoo-suite

check: setup-checks language ## check the language, the formatting, the lints, the dependencies of the pure core, the types of the Python package, circles of imports, and whether the headers in include/ are up to date
	@echo "check: formatting"
	@cargo fmt --all --check
	@echo "check: lints"
	@cargo clippy --quiet --locked --workspace --all-targets -- $(WARNINGS_FAIL) --cfg zklock_mutants
	@echo "check: the C library and the pure core compile alone, and the core uses no crate that does I/O"
	@cargo check --quiet --locked --package zklock-c
	@cargo check --quiet --locked --package zklock-core
	@used=$$($(PURE_TREE) | cut -d' ' -f1 | sort -u | xargs); \
		test "$$used" = "$(PURE)" || { echo "check: zklock-core uses $$used; expected $(PURE)"; exit 1; }
	@echo "check: Python: formatting, lints and types"
	@$(VENV)/bin/ruff format --quiet --check .
	@$(VENV)/bin/ruff check --quiet .
	@$(PYRIGHT) python/zklock python/pytest_zklock tests/python/typing_ok.py $(PYTHON_EXAMPLES) >target/pyright.log || { cat target/pyright.log; exit 1; }
	@$(PYRIGHT) --verifytypes zklock >target/pyright.log || { cat target/pyright.log; exit 1; }
	@echo "check: no circles between files, and the order of the layers in docs/architecture.md"
	@$(PYTHON) scripts/circles.py $(ACYCLIC)
	@$(PYTHON) scripts/circles.py --order docs/architecture.md src core/src
	@echo "check: the headers match the crates"
	@$(CARGO_TEST) $(HEADERS)

language: setup-checks ## check the spelling (seconds)
	@echo "language: spelling"
	@$(VENV)/bin/typos

# The number of times that loom may preempt a thread. Two preemptions find all planted errors; each further one takes five times as long.
PREEMPTIONS ?= 3
models: ## check the synchronization of threads with loom in all orders; more orders with PREEMPTIONS=5 (a minute)
	@echo "models: handles, answers and the event thread, in all thread orders with $(PREEMPTIONS) preemptions"
	@CARGO_PROFILE_DEV_OPT_LEVEL=1 LOOM_MAX_PREEMPTIONS=$(PREEMPTIONS) $(LOOM) $(CARGO_TEST) -p zklock -p zklock-abi --lib models

asan: setup-verify ## run the C and C++ programs with AddressSanitizer in the programs and in the libraries (minutes)
	@echo "asan: the C and C++ programs and the libraries, with AddressSanitizer"
	@ZKLOCK_ASAN=1 $(CARGO_TEST) -p zklock-c -p zklock-standalone-c --test c --test cpp -- --include-ignored with_sanitizers

deny: setup-verify ## check the licenses, versions and sources of all dependencies
	@echo "deny: licenses, versions and sources of the dependencies"
	@target/tools/bin/cargo-deny --log-level error --locked --workspace check bans licenses sources
	@scripts/notices --check

header: setup-verify ## update the headers in include/ and the description of the ABI in abi/
	@ZKL_BLESS=1 $(CARGO_TEST) $(HEADERS)
	@ZKL_BLESS=1 $(CARGO_TEST) $(ABI) -- --ignored

surface: ## update abi/rust.txt, the list of the public items of the Rust crate
	@RUSTDOCFLAGS="$(WARNINGS_FAIL)" cargo doc --quiet --locked --no-deps -p zklock -p zklock-core -p zklock-base
	@$(PYTHON) scripts/surface.py

stubs: build ## update the docstrings of the Python stubs and of zklock.aio, from the native module
	@$(PYTHON) scripts/stubs.py

docs: build ## build the site of the documentation in target/site, with the reference of the Rust crates
	@scripts/setup docs
	@echo "docs: the reference of the Rust crates"
	@RUSTDOCFLAGS="$(WARNINGS_FAIL)" cargo doc --quiet --locked --no-deps -p zklock -p zklock-core -p zklock-base -p zklock-proto -p zklock-standalone
	@$(PYTHON) scripts/surface.py --check
	@echo "docs: the site"
	@$(PYTHON) scripts/site.py

clean: ## remove all build results
	@rm -rf target python/zklock/*.so
	@find python tests scripts -name __pycache__ -prune -exec rm -rf {} +

test-support:
	@echo "test: the servers and proxies of the tests; other ZooKeeper clients; the inputs of the fuzzers"
	@$(CARGO_TEST) -p zklock-test-support -p zklock-third-party-clients -p zklock-fuzz

test-tools:
	@echo "test: C and C++ with valgrind, with the sanitizers of the compiler, and with clang; the ABI; long queues"
	@RUST_TEST_THREADS=4 $(CARGO_TEST) --test abi --test c --test command --test cpp --test every_wrong_call --test ffi --test kerberos --test memory -- --ignored

test-pages: build
	@echo "test: pages whose commands install the library; the types of the Python package; the check for circles"
	@$(DEBUG_BUILD)
	@$(PYTHON) -m pytest tests/python -q -m verify

HAS_GO := go version 2>/dev/null | grep -qE 'go1\.(2[1-9]|[3-9][0-9])'

test-go: ## test the Go package, if Go 1.21 or later is installed
	@$(HAS_GO) || echo "test: the Go package is skipped, because Go 1.21 or later is missing"
	@! $(HAS_GO) || { echo "test: the Go package, on real servers, with the race detector"; $(DEBUG_BUILD) && scripts/go-test; }

# The version is that of the tests, so that a newer one does not fail unchanged files.
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
test-workflows:
	@$(HAS_GO) || echo "test: the workflow files are not checked, because Go 1.21 or later is missing"
	@! $(HAS_GO) || { echo "test: the workflow files"; go run $(ACTIONLINT) -no-color .github/workflows/*.yml; }

# The simulation and the models spend their time in the library, so they need optimization.
test-sim:
	@echo "test: simulated schedules, and the deliberate bugs that they and the unit tests find"
	@CARGO_PROFILE_DEV_OPT_LEVEL=1 $(MUTANTS) $(CARGO_TEST) -p zklock-sim -p zklock-core

test-install:
	@echo "test: the installation, and programs that use it outside of the repository"
	@$(PYTHON) scripts/test-install

test-wheels: wheels
	@echo "test: the Python wheel and the source distribution, each in a separate environment"
	@$(PYTHON) scripts/test-wheels

test-static:
	@$(HAS_STATIC) || echo "test: the static program is skipped, because rustup could not add $(STATIC)"
	@! $(HAS_STATIC) || { echo "test: the static program"; $(MAKE) --no-print-directory static && \
		$(PYTHON) scripts/test-static $(CARGO_TARGET_DIR)/static/zklock; }

test-deb: deb
	@echo "test: the Debian packages, in a copy of this machine"
	@$(PYTHON) scripts/test-deb

test-empty-system: ## run make demo and make test in an empty Debian system, as root (half an hour)
	@echo "test: make demo and make test in an empty Debian system"
	@$(PYTHON) scripts/test-empty-system

test-bench:
	@echo "test: each driver of the benchmark, briefly"
	@$(CARGO_TEST) -p zklock-bench

test-chaos:
	@echo "test: C, Python and Rust programs on three servers under faults"
	@RUST_TEST_THREADS=2 $(CARGO_TEST) -p zklock-chaos

test-fuzz:
	@echo "test: each fuzzer for a few seconds"
	@SECONDS_EACH=5 scripts/fuzz
