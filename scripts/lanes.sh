#!/usr/bin/env bash
# Threads that send large values to one peer over lanes alone: scripts/lanes.sh PRESET CALLS [SEED]. CALLS are made over UNIX
# sockets, and as many over TCP; the seed is drawn when there is none.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

perSeed=500  # calls of LanesStress with one seed: 4 threads, 125 each
preset=${1:?usage: scripts/lanes.sh PRESET CALLS [SEED]}
calls=${2:?usage: scripts/lanes.sh PRESET CALLS [SEED]}
seed=${3:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
scripts/build.sh "$preset" core_worker_test
unset TREADLE_TEST_SEED  # it runs one seed alone
export TREADLE_TEST_FIRST_SEED=$seed TREADLE_TEST_SEED_FACTOR=$(((calls + perSeed - 1) / perSeed))
launcher=()
# As ctest does it (cmake/TreadleTests.cmake): its runtime needs addresses that are not random.
if [ "$preset" = tsan ] && setarch -R true >/dev/null 2>&1; then launcher=(setarch -R); fi
export TSAN_OPTIONS="second_deadlock_stack=1 ${TSAN_OPTIONS-}"
printf 'lanes: %s, %d seeds from %s on\n' "$preset" "$TREADLE_TEST_SEED_FACTOR" "$seed"
made=$(${launcher[@]+"${launcher[@]}"} "build/$preset/tests/core_worker_test" --gtest_filter='*LanesStress*' |
  tee /dev/stderr | sed -nE 's/^lanes: (unix|tcp),lanes calls=([0-9]+)$/\1 \2/p')
for kind in unix tcp; do
  of=$(awk -v kind="$kind" '$1 == kind { print $2 }' <<<"$made")
  [ "${of:-0}" -ge "$calls" ] || { printf 'lanes: FAILED: %s calls over %s, not %s\n' "${of:-0}" "$kind" "$calls"; exit 1; }
done
printf 'lanes: ok %s calls=%d SEED=%s\n' "$preset" "$calls" "$seed"
