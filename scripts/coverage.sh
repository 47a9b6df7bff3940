#!/usr/bin/env bash
# Builds core's tests with counters, runs them and says which share of the lines of treadle/core has run, one row per room;
# the last line is `coverage: core NN.N%`. Fails below 90, or when a test does. Programs that the tests start count too.
#
#   scripts/coverage.sh [FILE...]     shows the lines of these files that did not run
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh

for tool in clang++-19 llvm-cov-19; do
  command -v "$tool" >/dev/null || fail "$tool is missing: apt-get install clang-19 libclang-rt-19-dev llvm-19"
done
folder=build/coverage least=90
tests=(faults_test fuzz_test)
for room in tests/core/*/; do tests+=("core_$(basename "$room")_test"); done

if [ $# -gt 0 ]; then
  objects=()
  for test in "${tests[@]}"; do objects+=(-object "$folder/tests/$test"); done
  # A line has as many counts as there are instances of a template around it: the first is that of all together.
  llvm-cov-19 show -instr-profile="$folder/core.profdata" "${objects[@]}" -show-instantiations=false -sources "$@" |
    grep -aE '^ *[0-9]+\| +0\||^/'
  exit
fi

scripts/build.sh coverage "${tests[@]}"
rm -rf "$folder/profiles"
mkdir -p "$folder/profiles"
export LLVM_PROFILE_FILE="$PWD/$folder/profiles/%c%m.profraw"
pattern=$(IFS='|'; echo "^(${tests[*]})$")
failed=0
"$TREADLE_PYTHON" tools/run_tests.py "$folder" -R "$pattern" -j"${JOBS:-$(nproc)}" || failed=1
llvm-profdata-19 merge -sparse -o "$folder/core.profdata" "$folder"/profiles/*.profraw
objects=()
for program in "$folder"/tests/*_test "$folder"/tests/*_program; do
  [ ! -x "$program" ] || objects+=(-object "$program")
done
llvm-cov-19 export -summary-only -instr-profile="$folder/core.profdata" "${objects[@]}" >"$folder/summary.json"
"$TREADLE_PYTHON" tools/coverage.py "$folder/summary.json" treadle/core "$least"
[ "$failed" = 0 ] || fail "coverage: a test failed, so the number above is too low"
