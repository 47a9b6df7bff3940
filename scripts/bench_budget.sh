#!/usr/bin/env bash
# Prints what operations cost in allocations, locks and system calls, as bench/budget counts them in build/release:
# scripts/bench_budget.sh [--json]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

release=build/release
count() {
  printf '\n# %s\n' "$1" >&2
  "$release/bin/treadle" run -n 2 -- "$release/bench/treadle_bench_budget" "${@:2}" | sed -u 's/^\[[01]\] //'
}
count "Workers without tensors" --core "$@"
count "Workers with tensors, which share memory" "$@"
count "Workers with tensors, by TCP and lanes" --lanes "$@"
count "Workers with tensors, read from the caller's memory" --offers "$@"
count "Idle workers" --heartbeats "$@"
