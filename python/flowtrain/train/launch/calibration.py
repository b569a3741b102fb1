"""Speed of this machine, measured in less than a second before a run."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import torch

from flowtrain.steps.estimate import Rates
from flowtrain.train.ranks.peak import peak_flops

# Share of the rate of large matrix products that training reaches, and of the rate of copies that
# gloo's all-reduce reaches over loopback: typical values. They change estimates, and hardly the
# order of layouts.
_EFFICIENCY = 0.4
_REDUCE_SHARE = 0.15
# Typical of devices with HBM and NVLink; bytes per second.
_DEVICE_MEMORY = 2e12
_DEVICE_REDUCE = 1e11

_COPY_BYTES = 64 << 20
_COPIES = 5


def available_workers(device: str) -> int:
    """Devices, or the cores that affinity and cgroup let this process use."""
    if device == "cuda":
        return torch.cuda.device_count()
    return min(len(os.sched_getaffinity(0)), _cgroup_cores(Path("/sys/fs/cgroup/cpu.max")))


def measured_rates(device: str, dtype: torch.dtype) -> Rates:
    """Rates of one core or one device."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        flops = _EFFICIENCY * peak_flops(torch.device(device), dtype)
        if device == "cuda":
            return Rates(flops=flops, memory_bytes=_DEVICE_MEMORY, reduce_bytes=_DEVICE_REDUCE)
        memory = _copy_rate()
        return Rates(flops=flops, memory_bytes=memory, reduce_bytes=_REDUCE_SHARE * memory)
    finally:
        torch.set_num_threads(threads)


def _copy_rate() -> float:
    """Bytes per second that one core reads and writes in copies."""
    source = torch.zeros(_COPY_BYTES, dtype=torch.uint8)
    target = torch.empty_like(source)
    best = math.inf
    for _ in range(_COPIES):
        started = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - started)
    return 2 * _COPY_BYTES / best


def _cgroup_cores(limit: Path) -> int:
    """Cores of the quota in a `cpu.max` of cgroup v2, at least 1; very many without a quota."""
    try:
        quota, period = limit.read_text().split()
        return max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        return 1 << 20
