#!/usr/bin/env python3
"""Says which share of the lines of a part of the code has run, one row per room, from what `llvm-cov export -summary-only`
writes. Files below 90 % stand under their room. Exits with 1 when the whole is below the given share.

usage: coverage.py SUMMARY_JSON FOLDER LEAST_PERCENT         FOLDER: of the source tree, like treadle/core
"""
import collections
import json
import os
import sys


def lines_of_files(path, folder):
    """(file below `folder`, lines, lines that ran) for each file there."""
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    root = os.path.abspath(folder) + os.sep
    for entry in report["data"][0]["files"]:
        if entry["filename"].startswith(root):
            lines = entry["summary"]["lines"]
            yield entry["filename"][len(root):], lines["count"], lines["covered"]


def percent(ran, count):
    return 100.0 * ran / count if count else 100.0


def main(path, folder, least):
    rooms = collections.defaultdict(list)
    for name, count, ran in lines_of_files(path, folder):
        rooms[name.split(os.sep)[0]].append((name, count, ran))
    if not rooms:
        print(f"coverage: nothing of {folder} is in {path}")
        return 2
    print(f"{'room':<34} {'lines':>6} {'ran':>6} {'share':>7}")
    totals = [0, 0]
    for room, files in sorted(rooms.items()):
        count, ran = sum(f[1] for f in files), sum(f[2] for f in files)
        totals = [totals[0] + count, totals[1] + ran]
        print(f"{room:<34} {count:>6} {ran:>6} {percent(ran, count):>6.1f}%")
        for name, lines, covered in sorted(files):
            if percent(covered, lines) < 90:
                print(f"  {name:<32} {lines:>6} {covered:>6} {percent(covered, lines):>6.1f}%")
    share = percent(totals[1], totals[0])
    # Rounded down: 89.96 is not 90.
    print(f"coverage: {os.path.basename(folder)} {int(share * 10) / 10:.1f}%")
    return 0 if share >= float(least) else 1


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
