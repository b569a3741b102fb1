"""Conditions of a measurement, and summary statistics."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy

import flowtrain_core
from flowtrain.cores import cpu_name


def conditions() -> dict[str, Any]:
    """Machine, load and versions, for the JSON line of a benchmark."""
    return {
        "cpu": cpu_name(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "flowtrain_core": flowtrain_core.__version__,
        "commit": _commit(),
    }


@contextmanager
def pinned() -> Iterator[int]:
    """Pin this process to its first core within the block; yield another core for a peer."""
    cpus = os.sched_getaffinity(0)
    first, *others = sorted(cpus)
    os.sched_setaffinity(0, {first})
    try:
        yield others[0] if others else first
    finally:
        os.sched_setaffinity(0, cpus)


def percentiles_us(times_ns: Sequence[float], prefix: str = "") -> dict[str, float]:
    """Median and 99th percentile, in microseconds, of times in nanoseconds."""
    p50, p99 = numpy.percentile(times_ns, (50, 99)) / 1000
    return {f"{prefix}p50_us": round(float(p50), 3), f"{prefix}p99_us": round(float(p99), 3)}


def _commit() -> str | None:
    """Commit of the checkout of this file; None for an installed wheel."""
    try:
        run = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return None
    return run.stdout.strip() or None
