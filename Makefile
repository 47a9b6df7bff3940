# The everyday commands; `make help` lists them. What they do lies in scripts/: paths are relative, so spaces do no harm.
# The variables RUNS, SEED, SEEDS, SECONDS, JOBS and ARGS reach the programs that the targets run; TESTS are those to
# build and run under a sanitizer ("core_io_test core_rpc_test"), by default all.
SHELL := /bin/bash
.SHELLFLAGS := -eu -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.PHONY: help setup build test demo bench bench-budget bench-hybrid kill kill-service lanes netbed flood soak chaos test-long check-long flaky green oracle fuzz coverage format format-check layers style headers asan tsan tsan-tensors release install-test clean distclean

in_env = . scripts/common.sh;
empty :=
space := $(empty) $(empty)
only = $(if $(TESTS),-R '^($(subst $(space),|,$(strip $(TESTS))))$$')
PRESET ?= dev
options = $(if $(RUNS),--runs $(RUNS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

help: ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## */\1|/' | awk -F'|' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: ## install what is missing: Debian packages, the Python environment .venv
	@scripts/setup.sh

build: setup ## build PRESET=dev, which tests, demo, kill and install-test use
	@scripts/build.sh $(PRESET)

release: ## build the release preset, which benchmarks and cmake --install use
	@$(MAKE) build PRESET=release

test: build ## set up, build and run all tests; ends with `N passed, N failed`
	@$(in_env) "$$TREADLE_PYTHON" tools/run_tests.py build/$(PRESET) -LE long -j$$(nproc) $(ARGS)

demo: build ## set up, build and train the hybrid model over four processes
	@$(in_env) PATH="$$PWD/build/$(PRESET)/bin:$$PATH" build/$(PRESET)/bin/treadle run --grace 25 -n 4 -- build/$(PRESET)/bin/hybrid_digits $(ARGS)

bench: ## ours, PyTorch RPC, torch's DDP, gRPC and what the machine can do at best, in about an hour (ARGS="--quick")
	@scripts/bench.sh $(ARGS)

bench-hybrid: release ## steps/s of the hybrid model, ours and PyTorch RPC's in alternation (RUNS=5)
	@$(in_env) "$$TREADLE_PYTHON" bench/hybrid.py $(options)

netbed: ## the summation service in network namespaces of 100 or 200 Mbit/s, beside the least time; root only (ARGS="--workers 5 --servers 2")
	@$(MAKE) release || { echo "netbed: FAILED build=failed"; exit 1; }
	@$(in_env) "$$TREADLE_PYTHON" bench/netbed.py $(ARGS)

bench-budget: release ## allocations, locks and system calls of an operation, counted (ARGS="--json")
	@scripts/bench_budget.sh $(ARGS)

kill: build ## kill and stop each process of a job, each at a fixed event, and see that the rest end by themselves (storms: RUNS=8 SEED=... ARGS=--random, ARGS="--storms 3 --strict")
	@$(in_env) "$$TREADLE_PYTHON" tests/jobs/kill.py --build build/$(PRESET) $(options)

kill-service: ## kill a worker, and a server, at each of 20 moments of a job with summation servers; root only (ARGS="--only server:sum.0.half")
	@$(MAKE) build || { echo "kill-service: FAILED build=failed"; exit 1; }
	@$(in_env) "$$TREADLE_PYTHON" tests/jobs/kill_service.py --build build/$(PRESET) $(ARGS)

lanes: setup ## threads that send large values to one peer over lanes: 100,000 calls over UNIX sockets and over TCP, 5,000 each under tsan (SEED=...)
	@scripts/lanes.sh dev 100000 $(SEED)
	@scripts/lanes.sh tsan 5000 $(SEED)

flood: build ## eight processes, four threads each, that call without a pause for ten minutes while some are stopped for up to 3 s (SEED=... ARGS="--flood-seconds 60")
	@$(in_env) "$$TREADLE_PYTHON" tests/soak/soak.py --build build/$(PRESET) --rounds 0 --kill-seconds 0 --open-seconds 0 --flood-seconds 600 $(options)

soak: ## eight processes under a million mixed calls, then while some are killed, leave and join, then while some are stopped for a while: at most 20 minutes (SEED=... ARGS="--calls 50000")
	@$(MAKE) build || { echo "soak: FAILED build=failed"; exit 1; }
	@$(in_env) "$$TREADLE_PYTHON" tests/soak/soak.py $(options)

chaos: ## the same through a proxy that delays, stalls, cuts and changes what is sent over TCP (RUNS=80 SEED=...)
	@$(MAKE) build || { echo "chaos: FAILED build=failed"; exit 1; }
	@$(in_env) "$$TREADLE_PYTHON" tests/soak/chaos.py $(options)

test-long: build ## all tests four times, each time the property tests with new seeds and five times as many (SEED=...)
	@$(in_env) seed=$(or $(SEED),$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')); \
	  for round in 0 1 2 3; do first=$$((seed + round * 1000000)); echo "test-long: seeds from $$first on"; \
	    TREADLE_TEST_FIRST_SEED=$$first TREADLE_TEST_SEED_FACTOR=5 "$$TREADLE_PYTHON" tools/run_tests.py build/$(PRESET) -LE long -j$$(nproc) $(ARGS) || exit; done; \
	  echo "test-long: ok SEED=$$seed"

check-long: ## all that looks for new faults, in three hours: kill storms, property tests, fuzz, soak, chaos, oracles, coverage, release
	@scripts/check_long.sh

flaky: build ## all tests RUNS=20 times while both cores are kept busy: each case that fails, with its rate; goes on where it was interrupted
	@$(in_env) "$$TREADLE_PYTHON" tools/flaky.py build/$(PRESET) $(if $(RUNS),--runs $(RUNS)) -LE long -j$$(nproc) $(ARGS)

green: ## whether this very tree has passed .ci/run here, and which cases are flaky
	@scripts/green.sh

install-test: build ## install, move the prefix and build a program outside of the tree against it
	@$(in_env) "$$TREADLE_PYTHON" tests/package/check.py build/$(PRESET)

headers: setup ## compile each header alone (ARGS=--changed: those since the last green .ci/run here)
	@scripts/headers.sh $(ARGS)

asan: setup ## core's tests under the address, leak and undefined-behaviour sanitizers
	@scripts/build.sh asan $(TESTS)
	@$(in_env) "$$TREADLE_PYTHON" tools/run_tests.py build/asan -LE long -j$$(nproc) $(only) $(ARGS)

tsan: setup ## core's tests under the thread sanitizer
	@scripts/build.sh tsan $(TESTS)
	@$(in_env) "$$TREADLE_PYTHON" tools/run_tests.py build/tsan -LE long -j$$(nproc) $(only) $(ARGS)

tsan-tensors: TESTS ?= tensor_autograd_test tensor_worker_test tensor_nn_test tensor_optim_test oracle_test train_ddp_test
tsan-tensors: setup ## tests of distributed autograd, modules, optimizers and DDP under it, with what libtorch hides from it suppressed
	@scripts/build.sh tsan-tensors $(TESTS)
	@$(in_env) "$$TREADLE_PYTHON" tools/run_tests.py build/tsan-tensors $(only) $(ARGS)

oracle: setup ## gradients of random graphs over several workers against those of one process (SEEDS=2000)
	@scripts/oracle.sh $(SEEDS)

fuzz: ## each fuzzer of tests/fuzz for a while (SECONDS=120 each, SEED=..., JOBS=2, ARGS="NAME ...")
	@scripts/fuzz.sh $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(JOBS),--jobs $(JOBS)) $(ARGS)

coverage: ## lines of treadle/core that its tests run, a row per room; fails below 90%
	@scripts/coverage.sh

format: ## let clang-format-19 lay out the C++ files
	@scripts/format.sh

format-check:
	@scripts/format.sh --check

layers: ## check that rooms include only what layers.txt allows
	@python3 tools/check_layers.py treadle layers.txt treadle

style: ## lengths, comments and test lines of the code
	@python3 tools/style_metrics.py .

clean: ## remove what was built
	rm -rf build

distclean: clean ## remove the Python environment too
	rm -rf .venv
