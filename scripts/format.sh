#!/usr/bin/env bash
# Lays out every C++ file of the project by .clang-format; --check only says which files differ.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v clang-format-19 >/dev/null || { echo "clang-format-19 is missing: apt-get install clang-format-19" >&2; exit 1; }
mode=(-i)
[ "${1-}" != --check ] || mode=(--dry-run -Werror)
folders=()
for folder in treadle tests examples bench cmake; do [ ! -d "$folder" ] || folders+=("$folder"); done
find "${folders[@]}" -type f \( -name '*.h' -o -name '*.cc' \) -print0 |
  xargs -0 -r clang-format-19 "${mode[@]}"
