"""A part of a processor for each of several programs: control groups with a quota (root only; version 1 or 2)."""

import contextlib
import os
import pathlib

from processes import Failed

ROOT = pathlib.Path("/sys/fs/cgroup")
PERIOD_US = 20_000  # short, or a program would rest for most of a tenth of a second at a time; a quota has at least 1 ms


class Quotas:
    """Groups 0, 1, ..., each with so much of a processor (0.25: a quarter of one core)."""

    def __init__(self, parts):
        self.parts = parts
        self.is_second = (ROOT / "cgroup.controllers").exists()
        self.folder = ROOT / ("" if self.is_second else "cpu")

    def __enter__(self):
        try:
            if self.is_second:
                (self.folder / "cgroup.subtree_control").write_text("+cpu", encoding="ascii")
            for number, part in enumerate(self.parts):
                self.group(number).mkdir()
                self.limit(number, int(part * PERIOD_US))
        except OSError as error:
            self.__exit__()
            raise Failed(f"a quota of processors needs root and control groups of cpu in {ROOT}: {error}") from None
        return self

    def __exit__(self, *_):
        for number in range(len(self.parts)):
            with contextlib.suppress(OSError):
                self.group(number).rmdir()

    def group(self, number):
        return self.folder / f"treadle-{os.getpid()}-{number}"

    def limit(self, number, quota_us):
        if self.is_second:
            (self.group(number) / "cpu.max").write_text(f"{quota_us} {PERIOD_US}", encoding="ascii")
        else:
            (self.group(number) / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
            (self.group(number) / "cpu.cfs_quota_us").write_text(str(quota_us), encoding="ascii")

    def members(self, number):
        """The file that takes a process into the group."""
        return self.group(number) / "cgroup.procs"
