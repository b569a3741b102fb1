"""Copies of UCX that Python packages hold, which the core cannot find by itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import distributions
from pathlib import Path


@cache
def copies_in_packages() -> Sequence[str]:
    """Paths of `libucp` in NIXL's wheels, which have RDMA."""
    found = []
    for package in distributions():
        if not (package.metadata["Name"] or "").lower().startswith("nixl"):
            continue
        for file in package.files or ():
            if file.name.startswith("libucp") and ".so" in file.name:
                found.append(str(Path(str(package.locate_file(file))).resolve()))
    return tuple(sorted(set(found)))
