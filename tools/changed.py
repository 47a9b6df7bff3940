#!/usr/bin/env python3
"""Prints the files that differ from the newest commit whose tree passed .ci/run on this machine, one a line.

usage: changed.py [SUFFIX]       only those whose names end so: .h

Exits with 3 when no such commit is known; then everything counts as unknown rather than as changed.
"""
import os
import subprocess
import sys


def cache_folder():
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(root, "treadle")


def lines_of(name):
    """The lines of a file in the cache folder; none when there is no such file."""
    try:
        with open(os.path.join(cache_folder(), name), encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError:
        return []


def git(*words):
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.splitlines()


def changed_files():
    """The set of them; None when no commit of HEAD's history is known to have passed."""
    green = set(lines_of("green"))
    for line in git("log", "-n", "200", "--format=%H %T"):
        commit, tree = line.split()
        if tree in green:
            return set(git("diff", "--name-only", commit)) | set(git("ls-files", "--others", "--exclude-standard"))
    return None


def main(suffix=""):
    changed = changed_files()
    for name in sorted(changed or ()):
        if name.endswith(suffix):
            print(name)
    return 3 if changed is None else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
