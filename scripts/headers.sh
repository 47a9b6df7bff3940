#!/usr/bin/env bash
# Compiles headers of the dev preset alone, each as a file of its own: scripts/headers.sh [--changed]
# --changed: only those that were added or changed since the last merge (tools/changed.py).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh

targets=(all_verify_interface_header_sets)
if [ "${1-}" = --changed ]; then
  changed=$(python3 tools/changed.py .h)
  # Configured first: the names of the targets are read from the build.
  scripts/build.sh dev build.ninja
  mapfile -t targets < <(ninja -C build/dev -t targets all |
    awk -F': ' -v changed="$changed" '
      BEGIN { count = split(changed, headers, "\n") }
      { for (i = 1; i <= count; ++i) if (index($1, "verify_interface") && index($1, "/" headers[i] ".cxx.o")) print $1 }')
  printf '%d headers have changed\n' "${#targets[@]}"
  [ ${#targets[@]} -gt 0 ] || exit 0
fi
scripts/build.sh dev "${targets[@]}"
