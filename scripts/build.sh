#!/usr/bin/env bash
# Configures and builds one preset of CMakePresets.json in build/PRESET: scripts/build.sh PRESET [ninja targets...]
# JOBS=N bounds the compilers that run at once (default: one a core).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh

preset=${1:?usage: scripts/build.sh PRESET [targets...]}
shift
folder=build/$preset
findTorch
case $preset in
  asan | tsan | fuzz | coverage)
    command -v clang++-19 >/dev/null || fail "clang++-19 is missing, which compiles $preset: apt-get install clang-19 libclang-rt-19-dev" ;;
esac

# CMake runs again by itself when its files change. It cannot see another torch, other presets or a tree that was moved.
wanted=$(printf '%s\n' "$PWD" "$torchDir" && cat CMakePresets.json)
if [ ! -f "$folder/build.ninja" ] || [ "$(cat "$folder/configured" 2>/dev/null)" != "$wanted" ]; then
  stage "configure $preset"
  mkdir -p build
  rm -rf "$folder/configured" "$folder/CMakeCache.txt" "$folder/CMakeFiles"
  cmake --preset "$preset" -DTREADLE_TORCH_DIR="$torchDir" >"$folder.log" 2>&1 ||
    { cat "$folder.log" >&2; fail "CMake could not configure the preset $preset: its last lines above say why."; }
  printf '%s\n' "$wanted" >"$folder/configured"
  stageDone "configured $preset"
fi
stage "build $preset"
cmake --build "$folder" --parallel "${JOBS:-$(nproc)}" ${1+--target "$@"}
stageDone "built $preset"
