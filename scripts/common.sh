# What the scripts share; source it from the root of the tree. Sets nothing but functions and these variables:
#   TREADLE_PYTHON   the Python that runs our Python files (exported)
#   torchDir         the folder of the torch package to build against (empty: none yet)
#   treadleCache     the folder of what is remembered between clones: trees that passed, flaky cases, how long stages took
export TREADLE_PYTHON_GIVEN="${TREADLE_PYTHON_GIVEN-${TREADLE_PYTHON-}}"
export TREADLE_PYTHON="${TREADLE_PYTHON_GIVEN:-$PWD/.venv/bin/python}"

treadleCache=${XDG_CACHE_HOME:-${HOME-~}/.cache}/treadle

stageStart=$SECONDS
stage() { stageStart=$SECONDS; printf '== %s\n' "$*"; }
stageDone() { printf '== %s (%d s)\n' "$*" $((SECONDS - stageStart)); }
fail() { printf '%s\n' "$*" >&2; exit 1; }

# Prints the hash of HEAD's tree when nothing is uncommitted, and nothing otherwise.
cleanTree() { [ -n "$(git status --porcelain 2>&1)" ] || git rev-parse 'HEAD^{tree}'; }

# Prints the folder of torch as a Python sees it, without the seconds that importing it takes.
torchOf() { "$1" -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")'; }

findTorch() {
  if [ -n "${TREADLE_TORCH_DIR-}" ]; then torchDir=$TREADLE_TORCH_DIR; return; fi
  torchDir=
  if [ -x "$TREADLE_PYTHON" ]; then torchDir=$(torchOf "$TREADLE_PYTHON" 2>/dev/null || true); fi
}
