"""Cores that a process may use, and their name."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from flowtrain.cgroups import MOUNT, NAMES, folders


def available_cores() -> int:
    """Cores that affinity and the CPU quotas of cgroups let this process use, at least 1."""
    quota = min(_quotas(NAMES, MOUNT), default=math.inf)
    return max(1, min(len(os.sched_getaffinity(0)), math.ceil(min(quota, 1 << 20))))


def cpu_name() -> str:
    """Name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _quotas(names: Path, mount: Path) -> Iterator[float]:
    """The CPU quotas of the cgroups of this process and of those around them, in cores.

    Args:
        names: `/proc/self/cgroup`.
        mount: Where cgroups are mounted: version 2, or a folder for each controller of version 1.
    """
    for folder in folders("cpu", names, mount):
        quota = _quota(folder)
        if quota is not None:
            yield quota


def _quota(folder: Path) -> float | None:
    """The quota of one cgroup in cores; None if it has none."""
    try:
        if (limit := folder / "cpu.max").exists():
            quota, period = limit.read_text().split()
        else:
            quota, period = (
                (folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
            )
        cores = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # Without a limit it is "max", or -1.
        return None
    return cores if cores > 0 else None
