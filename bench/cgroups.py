"""A part of a processor for each of several programs: control groups with a quota (root only; version 1 or 2)."""

import contextlib
import os
import pathlib
import time

from processes import Failed

ROOT = pathlib.Path("/sys/fs/cgroup")
PERIOD_US = 20_000  # short, or a program would rest for most of a tenth of a second at a time; a quota has at least 1 ms
PATIENCE = 2  # seconds, until processes that were killed are gone


class Quotas:
    """Groups 0, 1, ..., each with so much of a processor (0.25: a quarter of one core). Group i has the folder `prefix`i."""

    def __init__(self, parts):
        self.parts = parts
        self.is_v2 = (ROOT / "cgroup.controllers").exists()
        self.prefix = f"{ROOT if self.is_v2 else ROOT / 'cpu'}/treadle-{os.getpid()}-"

    def __enter__(self):
        try:
            if self.is_v2:
                (ROOT / "cgroup.subtree_control").write_text("+cpu", encoding="ascii")
            for number, part in enumerate(self.parts):
                self.folder(number).mkdir(exist_ok=True)
                self.limit(number, int(part * PERIOD_US))
        except OSError as error:
            self.__exit__()
            raise Failed(f"a quota of processors needs root and control groups of cpu in {ROOT}: {error}") from None
        return self

    def __exit__(self, *_):
        deadline = time.monotonic() + PATIENCE
        for number in range(len(self.parts)):
            while self.folder(number).exists():
                with contextlib.suppress(OSError):
                    self.folder(number).rmdir()
                    break
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)

    def folder(self, number):
        return pathlib.Path(f"{self.prefix}{number}")

    def limit(self, number, quota_us):
        if self.is_v2:
            (self.folder(number) / "cpu.max").write_text(f"{quota_us} {PERIOD_US}", encoding="ascii")
        else:
            (self.folder(number) / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
            (self.folder(number) / "cpu.cfs_quota_us").write_text(str(quota_us), encoding="ascii")
