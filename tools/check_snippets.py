#!/usr/bin/env python3
"""Check that the C++ code in the documents is code that the tests compile and run.

usage: check_snippets.py [--write] [DOCUMENT...]     default: README.md and docs/guide/*.md of this tree

Each ```cpp block needs a line right above it that says where it comes from,

    <!-- snippet: tests/guide/calls_test.cc calls -->

and must equal what lies in that file (a path from the root of this tree) between `// [calls]` and `// [/calls]`, less the
indentation that its lines share. `--write` puts the source's text into the documents instead of comparing. Each snippet
of the named files must be used by some document: with the default documents, one that is used by none is an error too.
"""
import argparse
import glob
import os
import re
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MARK = re.compile(r"^<!-- snippet: (\S+) ([A-Za-z0-9-]+) -->$")
EDGE = re.compile(r"^\s*// \[(/?)([A-Za-z0-9-]+)\]\s*$")


class Wrong(Exception):
    """A mistake in a document or a source, told in one line."""


def snippets_of(path):
    """The snippets of a source file, by name. They may not overlap."""
    found, name, begun, lines = {}, None, 0, []
    try:
        text = open(os.path.join(ROOT, path), encoding="utf-8").read()
    except OSError as error:
        raise Wrong(f"{path}: {error.strerror}") from None
    for number, line in enumerate(text.splitlines(), 1):
        edge = EDGE.match(line)
        if not edge:
            lines.append(line)
            continue
        closes, which = edge.groups()
        if closes and which != name:
            raise Wrong(f"{path}:{number}: [/{which}] ends a snippet that has not begun")
        if closes:
            found[name] = textwrap.dedent("\n".join(lines)).strip("\n")
            name = None
            continue
        if name is not None:
            raise Wrong(f"{path}:{number}: [{which}] begins inside [{name}] of line {begun}")
        if which in found:
            raise Wrong(f"{path}:{number}: there are two snippets [{which}]")
        name, begun, lines = which, number, []
    if name is not None:
        raise Wrong(f"{path}:{begun}: [{name}] is not ended by // [/{name}]")
    return found


class Sources:
    """The files with snippets, each read once, and which of their snippets were used."""

    def __init__(self):
        self.files, self.used = {}, set()

    def snippet(self, path, name):
        if path not in self.files:
            self.files[path] = snippets_of(path)
        if name not in self.files[path]:
            raise Wrong(f"{path} has no snippet [{name}]; it has: {', '.join(self.files[path]) or 'none'}")
        self.used.add((path, name))
        return self.files[path][name]

    def unused(self):
        return [f"{path}: no document shows the snippet [{name}]"
                for path, names in self.files.items() for name in names if (path, name) not in self.used]


def refreshed(document, sources, wrong):
    """The document's lines with every block as its source has it; what is amiss goes to `wrong`."""
    lines = open(document, encoding="utf-8").read().split("\n")
    shown, out, i = os.path.relpath(document, ROOT), [], 0
    while i < len(lines):
        if lines[i].strip() != "```cpp":
            out.append(lines[i])
            i += 1
            continue
        begin, end = i, i + 1
        while end < len(lines) and lines[end].strip() != "```":
            end += 1
        if end == len(lines):
            raise Wrong(f"{shown}:{begin + 1}: this block has no end")
        block = lines[begin + 1:end]
        mark = MARK.match(lines[begin - 1]) if begin else None
        try:
            if not mark:
                raise Wrong("a ```cpp block needs <!-- snippet: FILE NAME --> on the line above")
            fresh = sources.snippet(*mark.groups()).split("\n")
            if fresh != block:
                wrong.append(f"{shown}:{begin + 1}: differs from [{mark[2]}] of {mark[1]}; "
                             "tools/check_snippets.py --write takes the source's text over")
            block = fresh
        except Wrong as error:
            wrong.append(f"{shown}:{begin + 1}: {error}")
        out += [lines[begin], *block, lines[end]]
        i = end + 1
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="take the sources' text over into the documents")
    parser.add_argument("documents", nargs="*", metavar="DOCUMENT")
    options = parser.parse_args()
    everything = not options.documents
    documents = options.documents or [os.path.join(ROOT, "README.md"),
                                      *sorted(glob.glob(os.path.join(ROOT, "docs", "guide", "*.md")))]
    sources, wrong, changed = Sources(), [], 0
    try:
        for document in documents:
            differing = []
            fresh = "\n".join(refreshed(document, sources, differing))
            if options.write:
                differing = [one for one in differing if "--write takes" not in one]
                if fresh != open(document, encoding="utf-8").read():
                    open(document, "w", encoding="utf-8").write(fresh)
                    changed += 1
            wrong += differing
        if everything:
            wrong += sources.unused()
    except (Wrong, OSError) as error:
        wrong.append(str(error))
    for one in wrong:
        print(f"check_snippets: {one}", file=sys.stderr)
    blocks = len(sources.used)
    print(f"check_snippets: {blocks} snippets in {len(documents)} documents, {len(wrong)} wrong"
          + (f", {changed} documents written" if options.write else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
