#!/usr/bin/env bash
# Sets up and builds all that bench/run.py measures, ours in build/release and gRPC's side in build/bench-grpc, and runs it:
# scripts/bench.sh [options of bench/run.py]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh

scripts/setup.sh --bench
scripts/build.sh release
stage "build the gRPC side"
folder=build/bench-grpc
# A tree that was moved is configured anew.
[ "$(cat "$folder/configured" 2>/dev/null)" = "$PWD" ] || rm -rf "$folder"
{ cmake -S bench/peers/grpc -B "$folder" -G Ninja && cmake --build "$folder" --parallel "${JOBS:-$(nproc)}"; } >"$folder.log" 2>&1 ||
  { cat "$folder.log" >&2; fail "The gRPC side of the benchmark could not be built: the lines above say why."; }
printf '%s\n' "$PWD" >"$folder/configured"
stageDone "built the gRPC side"
exec "$TREADLE_PYTHON" bench/run.py "$@"
