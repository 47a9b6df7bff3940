#!/usr/bin/env bash
# Distributed autograd against autograd in one process, over many random graphs: scripts/oracle.sh [SEEDS]
#
# Over real workers (tests/oracle), and over a network in memory that delivers in any order (tests/tensor/autograd).
# Ends with `oracle: ok|FAILED seeds=N`; on a failure with the seed above it.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh
seeds=${1:-2000}
if ! [[ $seeds =~ ^[1-9][0-9]*$ ]]; then
  echo "oracle: SEEDS is a number from 1 on, not '$seeds'" >&2
  exit 2
fi
export TREADLE_ORACLE_SEEDS=$seeds
outcome=ok
scripts/build.sh dev oracle_test tensor_autograd_test || outcome=FAILED
for run in oracle_test:RandomCalls tensor_autograd_test:RandomGraph; do
  [ "$outcome" = ok ] || break
  build/dev/tests/"${run%%:*}" --gtest_filter="*${run##*:}*" --gtest_brief=1 || outcome=FAILED
done
echo "oracle: $outcome seeds=$seeds"
[ "$outcome" = ok ]
