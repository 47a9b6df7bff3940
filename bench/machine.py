"""What machine the figures come from."""

import os
import pathlib
import platform


def processor():
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory_bytes():
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def describe_machine():
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_GiB": round(memory_bytes() / 2**30),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "load_before": os.getloadavg()[0],
    }
