#!/usr/bin/env python3
"""A short run of the example as a user starts it: it must learn, write what it promises and leave nothing else.

usage: smoke.py [--build FOLDER]
"""
import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time

from watched_job import Job

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# As make demo sets it.
PYTHON = os.environ.get("TREADLE_PYTHON") or os.path.join(ROOT, ".venv", "bin", "python")
EPOCHS = 2
LIMIT_S = 100


def drawing_problems(job, run):
    """The command that the run printed draws a picture; where there is none, one sentence says why."""
    said = [line for _, _, line in job.lines if "plot_metrics.py" in line]
    if len(said) != 1:
        return ["it does not say how to draw the metrics"]
    _, python, script, metrics, picture, title = shlex.split(said[0])

    def draw(of, *options):
        return subprocess.run([python, *options, script, of, picture, title], env={**os.environ, "MPLCONFIGDIR": run},
                              capture_output=True, text=True, timeout=LIMIT_S)

    def file(name, content):
        path = os.path.join(run, name)
        with open(path, "wb") as to:
            to.write(content)
        return path

    found = []
    damaged, binary = file("damaged", b'{"epoch": 1}\n'), file("binary", b"\xff\xfe")
    for wanted, told in ((f"{damaged}:1: not a line of metrics", draw(damaged)),
                         (f"{binary}: not a text in UTF-8", draw(binary)),
                         ("has no matplotlib", draw(metrics, "-S", "-E"))):
        if told.returncode != 1 or wanted not in told.stderr or told.stderr.count("\n") != 1:
            found.append(f"where there is no picture it says {told.stderr!r}")
    infinite = file("infinite", b'{"epoch": 1, "trainer": "t", "loss": null, "accuracy": 0.9, "seconds": 1}\n')
    for of in (infinite, metrics):
        drawn = draw(of)
        if drawn.returncode != 0 or not open(picture, "rb").read().startswith(b"\x89PNG"):
            found.append(f"it does not draw {of}: {drawn.stderr}")
    return found


def problems(job, run):
    """What is wrong with an ended job, one sentence each."""
    found = [] if job.launcher.returncode == 0 else [f"exit code {job.launcher.returncode}"]
    result = re.search(r"^\[0\] hybrid_digits: test accuracy (0\.\d+), single process (0\.\d+), \d+ steps/s per trainer, "
                       r"[\d.]+ s$", job.lines[-1][2] if job.lines else "")
    if not result:
        found.append("the last line is not the result")
    elif float(result[1]) < 0.8 or abs(float(result[1]) - float(result[2])) > 0.05:
        found.append(f"after {EPOCHS} epochs the accuracy is {result[1]}, in one process {result[2]}")
    found += drawing_problems(job, run)
    missing = [name for name in ("metrics.jsonl", "metrics.png", "model.safetensors") if not os.path.exists(os.path.join(run, name))]
    found += [f"there is no {name}" for name in missing]
    if "metrics.jsonl" not in missing:
        with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        if len(rows) != 2 * EPOCHS:
            found.append(f"metrics.jsonl has {len(rows)} lines for {EPOCHS} epochs of two trainers")
    return found + job.leftovers(kept=["run"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/dev", help="the build folder [build/dev]")
    binaries = os.path.join(os.path.abspath(parser.parse_args().build), "bin")
    with tempfile.TemporaryDirectory(prefix="treadle-smoke-") as folder:
        run = os.path.join(folder, "run")
        job = Job([os.path.join(binaries, "treadle"), "run", "-n", "4", "--", os.path.join(binaries, "hybrid_digits"),
                   "--epochs", str(EPOCHS), "--run-folder", run], folder, {"TREADLE_PYTHON": PYTHON})
        try:
            job.wait_for_workers(4, time.monotonic() + LIMIT_S)
            ended = job.finish(time.monotonic() + LIMIT_S)
            found = problems(job, run) if ended else [job.unfinished(LIMIT_S)]
        finally:
            job.close()
        if found:
            print(f"FAILED smoke: {'; '.join(found)}\n--- output, seconds since the start\n{job.output()}---")
    print(f"smoke: {'FAILED' if found else 'ok'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
