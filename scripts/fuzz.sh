#!/usr/bin/env bash
# Builds the fuzzers of tests/fuzz and runs each for a while from its corpus:
#
#   scripts/fuzz.sh [--seconds N] [--seed N] [--jobs N] [NAME...]   120 seconds each, as many at once as there are cores
#   scripts/fuzz.sh --shrink [NAME...]                              takes what was found since into tests/fuzz/corpus
#
# A seed makes the inputs the same each time, so that a check of a change judges that change; without one they are new.
# What is found on the way is kept in build/fuzz/corpus, an input that breaks a promise in build/fuzz/crashes: put it into
# tests/fuzz/corpus/NAME when it is mended. One line for each fuzzer; the last is `fuzz: ok|FAILED key=value ...`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

duration=120 seed=0 jobs=$(nproc) shrink=0 names=()
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) duration=$2; shift 2 ;;
    --seed) seed=$2; shift 2 ;;
    --jobs) jobs=$2; shift 2 ;;
    --shrink) shrink=1; shift ;;
    -*) echo "usage: scripts/fuzz.sh [--seconds N] [--seed N] [--jobs N] [--shrink] [NAME...]" >&2; exit 2 ;;
    *) names+=("$1"); shift ;;
  esac
done

folder=build/fuzz start=$SECONDS
scripts/build.sh fuzz fuzzers || { echo "fuzz: FAILED build=failed"; exit 1; }
mkdir -p "$folder/crashes" "$folder/logs"
if [ ${#names[@]} = 0 ]; then
  for program in "$folder"/fuzzers/fuzz_*; do names+=("${program##*/fuzz_}"); done
fi
export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1

# No input may take 10 seconds, an allocation of 64 MiB or a process of 1 GiB: far above what any of the readers may ask for.
limits=(-timeout=10 -malloc_limit_mb=64 -rss_limit_mb=1024 -max_len=4096)

# Keeps the smallest files that together reach all that is reached.
shrinkOne() {
  local name=$1 smallest="$folder/smallest/$1"
  rm -rf "$smallest" && mkdir -p "$smallest" "$folder/corpus/$name"
  "$folder/fuzzers/fuzz_$name" -merge=1 "${limits[@]}" "$smallest" "tests/fuzz/corpus/$name" "$folder/corpus/$name" \
    >"$folder/logs/$name.merge.log" 2>&1
  # A few dozen, the smallest first: a repository is no place for thousands.
  find "$smallest" -type f -size -9 -printf '%s %f\n' | sort -n | awk 'NR <= 40' | while read -r _ file; do
    cp -n "$smallest/$file" "tests/fuzz/corpus/$name/"
  done
  printf '%s: %d files\n' "$name" "$(find "tests/fuzz/corpus/$name" -type f | wc -l)"
}

runOne() {
  local name=$1
  mkdir -p "$folder/corpus/$name"
  timeout --kill-after=10 $((duration + 120)) "$folder/fuzzers/fuzz_$name" -max_total_time="$duration" -seed="$seed" "${limits[@]}" \
    -print_final_stats=1 -artifact_prefix="$folder/crashes/$name-" "$folder/corpus/$name" "tests/fuzz/corpus/$name" \
    >"$folder/logs/$name.log" 2>&1 </dev/null && echo 0 >"$folder/logs/$name.rc" || echo $? >"$folder/logs/$name.rc"
}

if [ "$shrink" = 1 ]; then
  for name in "${names[@]}"; do shrinkOne "$name"; done
  exit
fi

for name in "${names[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
  runOne "$name" &
done
wait

runs=0 crashes=0
for name in "${names[@]}"; do
  log=$folder/logs/$name.log
  count=$(sed -nE 's/^stat::number_of_executed_units: *([0-9]+)$/\1/p' "$log" | tail -n 1)
  edges=$(sed -nE 's/.* cov: ([0-9]+) .*/\1/p' "$log" | tail -n 1)
  runs=$((runs + ${count:-0}))
  if [ "$(cat "$folder/logs/$name.rc")" = 0 ]; then
    printf '%-16s ok      runs=%s edges=%s\n' "$name" "${count:-0}" "${edges:-0}"
  else
    crashes=$((crashes + 1))
    printf '%-16s FAILED  runs=%s: %s\n' "$name" "${count:-0}" "$log"
    grep -aE 'ERROR|what\(\)|runtime error|Test unit written' "$log" | head -n 5 | sed 's/^/    /' || true
  fi
done
result=ok
[ "$crashes" = 0 ] || result=FAILED
printf 'fuzz: %s fuzzers=%d runs=%d crashes=%d seconds=%d\n' "$result" "${#names[@]}" "$runs" "$crashes" $((SECONDS - start))
[ "$crashes" = 0 ]
