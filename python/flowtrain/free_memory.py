"""Memory that this process can still use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from flowtrain.cgroups import MOUNT, NAMES, folders

_MEMINFO = Path("/proc/meminfo")
# Limit and use: of version 2 of cgroups, and of version 1.
_FILES = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def free_memory(meminfo: Path = _MEMINFO, names: Path = NAMES, mount: Path = MOUNT) -> int:
    """Bytes that the machine has left, or a cgroup of this process if that is less."""
    match = re.search(r"^MemAvailable: *(\d+) kB", meminfo.read_text(), re.MULTILINE)
    left = int(match[1]) << 10 if match is not None else 0
    return max(0, min(left, *_left_in_cgroups(names, mount), left))


def _left_in_cgroups(names: Path, mount: Path) -> Iterator[int]:
    for folder in folders("memory", names, mount):
        for limit, used in _FILES:
            try:
                yield int((folder / limit).read_text()) - int((folder / used).read_text())
            except (OSError, ValueError):  # Without a limit it is "max".
                continue
