#!/usr/bin/env bash
# Looks for new faults: scripts/check_long.sh, in three hours. Goes on where it was interrupted, as long as the tree is the same.
# What it finds becomes a test with its seed, which is then part of `make test`. Stages and the last line are as in .ci/run.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/stages.sh

long() { # PRESET: its tests of a moment of soak and chaos
  scripts/build.sh "$1" && "$TREADLE_PYTHON" tools/run_tests.py "build/$1" -L long
}
stated() { "$TREADLE_PYTHON" tests/jobs/examples.py --build build/release --stated; }
export -f long stated

finish() { finishStages 165; exit; }

runStage 'set-up' 1 1500 scripts/setup.sh --ci || finish
goOnWhereInterrupted long
runStage 'property tests' 25 5400 make test-long
runStage 'all headers alone' 5 1800 make headers
runStage 'lanes' 7 3600 make lanes
runStage 'kill storms' 30 7200 make kill RUNS=10 ARGS='--storms 3 --strict'
runStage 'kills at random moments' 10 7200 make kill RUNS=10 ARGS=--random
[ "$(id -u)" != 0 ] || runStage 'killed machines of a summation service' 3 1200 make kill-service # network namespaces
runStage 'soak' 8 3600 make soak
runStage 'flood' 12 3600 make flood
runStage 'chaos' 5 3600 make chaos
runStage 'soak and chaos under asan' 5 3600 bash -c 'long asan'
runStage 'soak and chaos under tsan' 5 3600 bash -c 'long tsan'
runStage 'tensors under tsan' 10 7200 make tsan-tensors
runStage 'oracles' 5 7200 make oracle
runStage 'fuzzers' 15 7200 make fuzz SECONDS=60
runStage 'coverage' 8 3600 make coverage
runStage 'release' 8 3600 make release
runStage 'installed release' 1 300 make install-test PRESET=release
runStage 'demo of the release' 1 300 make demo PRESET=release
runStage 'char_gpt as stated' 2 900 bash -c stated
finish
