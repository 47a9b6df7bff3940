#!/usr/bin/env python3
"""Prints the files that were added or changed since the last merge, one a line: those that differ from the commit where
HEAD left main (origin/main, or else the local main). On main itself it is the newest commit whose tree passed .ci/run on this
machine, or else the commit before HEAD.

usage: changed.py [SUFFIX]       only those whose names end so: .h
"""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


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
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False).stdout.splitlines()


def last_merge():
    """The commit that changes are counted from; empty when HEAD is the first."""
    head = git("rev-parse", "HEAD")
    for main in ("origin/main", "main"):
        fork = git("merge-base", "HEAD", main)
        if fork and fork != head:
            return fork[0]
    green = set(lines_of("green"))
    for line in git("log", "-n", "200", "--format=%H %T"):
        commit, tree = line.split()
        if tree in green:
            return commit
    return "".join(git("rev-parse", "--verify", "--quiet", "HEAD^"))


def changed_files():
    """The set of them, as paths from the tree's root."""
    base = last_merge()
    committed = git("diff", "--name-only", base) if base else git("ls-files")
    return set(committed) | set(git("ls-files", "--others", "--exclude-standard"))


def main(suffix=""):
    for name in sorted(changed_files()):
        if name.endswith(suffix):
            print(name)


if __name__ == "__main__":
    main(*sys.argv[1:2])
