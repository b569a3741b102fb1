"""Copies of UCX that Python packages hold, which the core cannot find by itself."""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path


def copies_in_packages() -> list[str]:
    """Paths of `libucp` in NIXL's wheels, which have RDMA."""
    found = []
    for package in distributions():
        if not (package.metadata["Name"] or "").lower().startswith("nixl"):
            continue
        for file in package.files or ():
            if file.name.startswith("libucp") and ".so" in file.name:
                found.append(str(Path(str(package.locate_file(file))).resolve()))
    return sorted(set(found))
