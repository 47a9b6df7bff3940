#!/usr/bin/env bash
# Makes a fresh Debian 12 able to build Treadle: the packages of scripts/packages.txt and a Python environment in .venv.
# Takes well under a second when nothing is missing.
#
#   scripts/setup.sh [--ci] [--bench]      also what only .ci/run, or only `make bench`, needs
#
# TREADLE_PYTHON=/path/to/python   uses that Python, which has torch >= 2.11, matplotlib, numpy and safetensors: no .venv
# TREADLE_TORCH_DIR=/path/to/torch builds against that folder of the torch package: .venv gets everything but torch
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/common.sh

# Fills `missing` with the packages that are neither installed nor stood in for by a command.
listMissing() {
  local package command
  missing=()
  while read -r package command; do
    case $package in
      '' | '#'*) continue ;;
      ci:*) [ "$wantCi" = 1 ] || continue; package=${package#ci:} ;;
      bench:*) [ "$wantBench" = 1 ] || continue; package=${package#bench:} ;;
    esac
    if [ -n "$command" ] && command -v "$command" >/dev/null; then continue; fi
    if isInstalled "$package"; then continue; fi
    missing+=("$package")
  done <scripts/packages.txt
  if [ -z "$TREADLE_PYTHON_GIVEN" ] && [ ! -x .venv/bin/python ] && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    missing+=(python3-venv)
  fi
}

# On another system than Debian only commands can be asked for; CMake names the libraries that it does not find.
isInstalled() {
  if ! command -v dpkg-query >/dev/null; then [ "${1%-dev}" != "$1" ]; return; fi
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

installPackages() {
  local asRoot=()
  listMissing
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ]; then asRoot=(sudo -n); fi
  if ! command -v apt-get >/dev/null || { [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; }; then
    fail "Treadle needs Debian packages that are missing and that this user may not install; as root run: apt-get install ${missing[*]}"
  fi
  stage "set-up: Debian packages ${missing[*]}"
  "${asRoot[@]}" apt-get update -qq
  "${asRoot[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "${missing[@]}" </dev/null >/dev/null ||
    fail "apt-get could not install ${missing[*]}; its own lines above say why."
  stageDone "set-up: Debian packages installed"
}

# The Python environment is done when the stamp in it has the text of what was asked for.
makeEnvironment() {
  local all want has stamp=.venv/treadle-requirements.txt
  all=$(cat scripts/requirements.txt)
  want=$all
  if [ -n "${TREADLE_TORCH_DIR-}" ]; then want=$(grep -v '^torch==' scripts/requirements.txt); fi
  has=$(cat "$stamp" 2>/dev/null || true)
  if [ -x .venv/bin/python ] && { [ "$has" = "$want" ] || [ "$has" = "$all" ]; }; then return 0; fi
  stage "set-up: Python environment .venv (torch is large: this takes minutes the first time)"
  # An environment without pip is one whose making was interrupted.
  if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
      fail "python3 is $(python3 --version 2>&1), and torch 2.13 needs 3.10 or newer; set TREADLE_PYTHON to another Python that has torch."
    python3 -m venv --clear .venv
  fi
  printf '%s\n' "$want" >.venv/wanted.txt
  .venv/bin/python -m pip install --disable-pip-version-check --no-input -r .venv/wanted.txt </dev/null ||
    fail "pip could not install the packages of scripts/requirements.txt; its own lines above say why."
  # g++ takes two files with #pragma once for one when contents and second of change are the same, as those of two of torch's
  # headers are or are not, as pip happens to write them. With one time for all, all checkouts compile the same text.
  find .venv -path '*/torch/include/*' -type f -exec touch -d '2001-01-01' {} +
  mv .venv/wanted.txt "$stamp"
  stageDone "set-up: Python environment ready"
}

# A Python that the user pointed at is used as it is, so it has to have everything.
checkGivenPython() {
  "$TREADLE_PYTHON" - <<'PY' || exit 1
import importlib.util, sys
missing = [n for n in ("torch", "matplotlib", "numpy", "safetensors") if importlib.util.find_spec(n) is None]
if missing:
    sys.exit(f"TREADLE_PYTHON is {sys.executable}, which lacks {', '.join(missing)}; install that there, or unset TREADLE_PYTHON for an environment of Treadle's own.")
PY
}

wantCi=0 wantBench=0
for option in "$@"; do
  case $option in
    --ci) wantCi=1 ;;
    --bench) wantBench=1 ;;
    *) fail "usage: scripts/setup.sh [--ci] [--bench]" ;;
  esac
done
installPackages
if [ -n "${TREADLE_TORCH_DIR-}" ] && [ ! -f "$TREADLE_TORCH_DIR/version.py" ]; then
  fail "TREADLE_TORCH_DIR is '$TREADLE_TORCH_DIR', which is no folder of the Python package torch; point it at one, 2.11 or newer, or unset it."
fi
if [ -n "$TREADLE_PYTHON_GIVEN" ]; then checkGivenPython; else makeEnvironment; fi
findTorch
[ -f "$torchDir/version.py" ] ||
  fail "$TREADLE_PYTHON has no torch package; remove .venv to have it made again, or set TREADLE_TORCH_DIR to the folder of torch, 2.11 or newer."
