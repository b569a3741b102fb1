"""Memory of a rank: of its process, and on its GPU."""

from __future__ import annotations

import re
import time
from pathlib import Path

import torch

from flowtrain.events import EventLog, MemoryKind

_STATUS = Path("/proc/self/status")
_OF_PROCESS: dict[str, MemoryKind] = {"VmHWM": "resident", "RssShmem": "shared"}
_FIELD = re.compile(r"^(\w+):\s*(\d+) kB$", re.MULTILINE)


def memory_of(device: torch.device) -> dict[MemoryKind, int]:
    """Bytes by kind of memory of this process, without kinds that the system does not tell.

    The memory of its data workers, which are processes of their own, is not in it.

    Args:
        device: Device of the rank.
    """
    found = {name: int(size) << 10 for name, size in _FIELD.findall(_STATUS.read_text())}
    memory = {kind: found[name] for name, kind in _OF_PROCESS.items() if name in found}
    if device.type == "cuda":
        memory["allocated"] = torch.cuda.max_memory_allocated(device)
        memory["reserved"] = torch.cuda.max_memory_reserved(device)
    return memory


def peak_bytes(device: torch.device) -> int | None:
    """Memory of the device that this rank has used at most: on a CPU, its resident set.

    None if the system does not tell.
    """
    return memory_of(device).get("allocated" if device.type == "cuda" else "resident")


def record_memory(events: EventLog, device: torch.device, *, step: int) -> None:
    """Record the memory at the end of a step."""
    now = time.perf_counter_ns()
    for kind, size in memory_of(device).items():
        events.add("memory", kind, now, now, size=size, step=step)
