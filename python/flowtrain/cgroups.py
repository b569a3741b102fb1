"""The cgroups of this process and those around them, as folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

NAMES = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


def folders(controller: str, names: Path = NAMES, mount: Path = MOUNT) -> Iterator[Path]:
    """Folders that may have the files of a controller; some may not exist.

    Args:
        controller: Its name, such as `cpu`.
        names: `/proc/self/cgroup`.
        mount: Where cgroups are mounted: version 2, or a folder for each controller of version 1.
    """
    try:
        lines = names.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots = [mount, mount / "unified"]
        elif controller in controllers.split(","):
            roots = [mount / controllers, mount / controller]
        else:
            continue
        # In a container, the path may be that of the host, and the root that of the container.
        inner = Path(path.lstrip("/"))
        for root in roots:
            for folder in (inner, *inner.parents):
                yield root / folder
