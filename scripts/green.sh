#!/usr/bin/env bash
# Says whether HEAD's tree has passed .ci/run on this machine with nothing uncommitted, and lists the flaky cases; fails when not.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh
grep -E '^\| .*:' "$treadleCache/flaky.md" 2>/dev/null | sed 's/^/flaky: /'
git rev-parse --verify --quiet HEAD >/dev/null || exit 2
tree=$(cleanTree)
if [ -z "$tree" ]; then
  echo "green: no: there are changes that are not committed"
elif grep -qsx "$tree" "$treadleCache/green"; then
  echo "green: yes"
  exit 0
else
  echo "green: no: .ci/run has not passed on this tree here"
fi
exit 1
