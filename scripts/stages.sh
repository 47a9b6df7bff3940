# Runs the stages of a check and reports them; source it from the root of the tree.
#
#   runStage NAME SHARE LIMIT_SECONDS COMMAND...   shows the output while it comes; returns the command's status
#   skipStage NAME REASON
#   goOnWhereInterrupted NAME                      from now on, stages that passed in an earlier run of check NAME on the same
#                                                  tree are not run again; without effect when something is not committed
#   finishStages MINUTES                           prints the table, the cases that failed and the line `N passed, N failed`; its
#                                                  status is the check's
#
# SHARE is how many of the check's MINUTES the stage may take with a warm compiler cache. A limit ends a hang and nothing else:
# it is at least three times what the stage took last. A stage whose output has a line `N passed, N failed` adds these counts,
# and every other stage adds one. More than two flaky cases (tools/reruns.py) fail the check.
export LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 TREADLE_ALL_LAUNCHERS=1
. scripts/common.sh
stageLogs=build/ci
mkdir -p "$stageLogs" "$treadleCache"
stageNames=() stageResults=() stageSeconds=() stageShares=()
passed=0 failed=0 flaky=0
stageFailures=  # what the logs of failed stages name as failed (tools/run_tests.py), a line each
stageRecord=  # the file with the names of the stages that passed already

lastSeconds() { sed -nE "s/^([0-9]+) $1\$/\\1/p" "$treadleCache/stages" 2>/dev/null | tail -n 1; }

rememberSeconds() {
  local others
  others=$(grep -vE "^[0-9]+ $1\$" "$treadleCache/stages" 2>/dev/null)
  printf '%s\n' ${others:+"$others"} "$2 $1" >"$treadleCache/stages"
}

goOnWhereInterrupted() {
  local tree
  tree=$(cleanTree)
  stageRecord=${tree:+$treadleCache/$1-$tree}
}

runStage() {
  local name=$1 share=$2 limit=$3 last log start=$SECONDS code viewer named
  shift 3
  if [ -n "$stageRecord" ] && grep -qsxF "$name" "$stageRecord"; then
    passed=$((passed + 1))
    skipStage "$name" 'it passed on this tree already'
    return 0
  fi
  last=$(lastSeconds "$name")
  [ "$((3 * ${last:-0}))" -le "$limit" ] || limit=$((3 * last))
  log="$stageLogs/${name// /-}.log"
  printf '\n######## %s\n' "$name"
  : >"$log"
  # Into a file and not through a pipe: a process that outlives its stage cannot hold the stage up.
  timeout --kill-after=20 "$limit" "$@" </dev/null >"$log" 2>&1 &
  code=$!
  tail -n +1 -s 0.3 -f --pid="$code" "$log" &
  viewer=$!
  wait "$code"
  code=$?
  wait "$viewer" 2>/dev/null
  [ "$code" != 124 ] && [ "$code" != 137 ] || printf '%s was ended: it ran past its limit of %d s.\n' "$name" "$limit"
  addCounts "$log" "$code"
  stageNames+=("$name") stageSeconds+=($((SECONDS - start))) stageShares+=("$share")
  if [ "$code" = 0 ]; then
    stageResults+=(ok)
    rememberSeconds "$name" $((SECONDS - start))
    [ -z "$stageRecord" ] || printf '%s\n' "$name" >>"$stageRecord"
  else
    stageResults+=("FAILED ($code)")
    named=$(sed -n "s/^failed: /$name: /p" "$log")
    stageFailures+=${named:+$named$'\n'}
  fi
  return "$code"
}

# Adds what a stage counted: its last line `N passed, N failed`, else itself.
addCounts() {
  local log=$1 code=$2 line
  flaky=$((flaky + $(sed -nE 's/^flaky: ([0-9]+)$/\1/p' "$log" | awk '{ n += $1 } END { print n + 0 }')))
  line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
  if [ -n "$line" ]; then
    set -- ${line//[^0-9]/ }
    passed=$((passed + $1)) failed=$((failed + $2))
    [ "$code" = 0 ] || [ "$2" -gt 0 ] || failed=$((failed + 1))
  elif [ "$code" = 0 ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
  fi
}

skipStage() {
  printf '\n######## %s: left out, %s\n' "$1" "$2"
  stageNames+=("$1") stageResults+=("left out: $2") stageSeconds+=(0) stageShares+=(0)
}

minutes() { printf '%d.%d' $(($1 / 60)) $(($1 % 60 / 6)); }

finishStages() {
  local i
  printf '\n| stage | minutes | its share | result |\n|---|---|---|---|\n'
  for i in "${!stageNames[@]}"; do
    printf '| %s | %s | %s | %s |\n' "${stageNames[i]}" "$(minutes "${stageSeconds[i]}")" "${stageShares[i]}" "${stageResults[i]}"
  done
  printf '| all | %s | %s | |\n\n' "$(minutes "$SECONDS")" "$1"
  printf '%s' "$stageFailures"
  if [ "$flaky" -gt 2 ]; then
    printf '%d cases are flaky; more than two fail the check. %s lists them.\n' "$flaky" "$treadleCache/flaky.md"
    failed=$((failed + 1))
  fi
  printf '%d passed, %d failed\n' "$passed" "$failed"
  [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}
