#!/usr/bin/env python3
"""Proves that an installed Treadle works outside of its source tree: installs a build to a prefix, moves the prefix, and
configures, builds and runs programs against it with find_package(Treadle).

usage: check.py BUILD_FOLDER [core|full...]     default: both, or core alone where the build has no torch

`core` is tests/package/core over treadle::core and <treadle/core.h>, with torch hidden from it; `full` is tests/package/full
over treadle::treadle. Also looks for paths of this tree in what was installed. Ends with `N passed, N failed`.
"""
import os
import secrets
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from free_port import free_port  # noqa: E402


class Failed(Exception):
    pass


def run(*command, env=None):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=env, timeout=240)
    if done.returncode != 0:
        raise Failed(f"exit code {done.returncode} of {' '.join(command)}\n{done.stdout}")
    return done.stdout


def cache_value(build, name):
    for line in open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8"):
        if line.startswith(name + ":"):
            return line.split("=", 1)[1].strip()
    return ""


def check_no_paths(prefix, build):
    """No installed file may name the tree it was built in; archives with debug information do and are left out."""
    places = {os.path.realpath(os.path.join(HERE, "..", "..")), os.path.realpath(build)}
    archives = cache_value(build, "CMAKE_BUILD_TYPE") == "Release"
    found = []
    for folder, _, files in os.walk(prefix):
        for name in files:
            path = os.path.join(folder, name)
            if not archives and not name.endswith((".h", ".cmake")):
                continue
            data = open(path, "rb").read()
            found += [path for place in places if place.encode() in data]
    if found:
        raise Failed("these installed files name the build machine's folders: " + ", ".join(sorted(set(found))))


def job_of_one():
    """The environment of a job with one worker, as any launcher sets it."""
    return {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
            "TREADLE_JOB_KEY": secrets.token_hex(32)}


def check_program(kind, prefix, scratch, torch):
    build = os.path.join(scratch, "build-" + kind)
    environment = dict(os.environ)
    environment.pop("TREADLE_TORCH_DIR", None)
    options = [f"-DTREADLE_TORCH_DIR={torch}"] if kind == "full" else ["-DTREADLE_TORCH_DIR=/nonexistent"]
    source = os.path.join(scratch, kind)
    shutil.copytree(os.path.join(HERE, kind), source)
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_PREFIX_PATH={prefix}",
        *options, env=environment)
    run("cmake", "--build", build, env=environment)
    output = run(os.path.join(build, "outside"), env=environment | job_of_one())
    if output.strip().splitlines()[-1:] != ["outside: ok"]:
        raise Failed(f"the program of tests/package/{kind} printed\n{output}")
    output = run(os.path.join(prefix, "bin", "treadle"), "run", "-n", "1", "--", os.path.join(build, "outside"))
    if "[0] outside: ok" not in output.splitlines():
        raise Failed(f"started by the installed launcher, the program of tests/package/{kind} printed\n{output}")


def main(build, *kinds):
    torch = cache_value(build, "TREADLE_TORCH_DIR")
    with_torch = cache_value(build, "TREADLE_WITH_TORCH") == "ON"
    kinds = kinds or (("core", "full") if with_torch else ("core",))
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="treadle package ") as scratch:
        made, prefix = os.path.join(scratch, "made"), os.path.join(scratch, "moved", "prefix")
        run("cmake", "--install", build, "--prefix", made)
        os.makedirs(os.path.dirname(prefix))
        os.rename(made, prefix)
        checks = [("paths", lambda: check_no_paths(prefix, build))]
        checks += [(kind, lambda kind=kind: check_program(kind, prefix, scratch, torch)) for kind in kinds]
        for name, check in checks:
            try:
                check()
                passed += 1
            except (Failed, subprocess.TimeoutExpired) as error:
                failed += 1
                print(f"FAILED {name}: {error}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
