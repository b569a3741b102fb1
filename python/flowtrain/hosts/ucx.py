"""Copies of UCX that Python packages hold, which the core cannot find by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

from flowtrain.config.checks import ConfigError

# In a process of its own, since one that has opened UCX should not be forked.
_FIND = """
import json, sys
from flowtrain_core import UcxError, _bench
try:
    _bench.find_ucx(**json.loads(sys.argv[1]))
except (UcxError, ValueError) as error:
    sys.exit(str(error))
"""


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


def check_ucx(interface: str, library: str) -> None:
    """Check that there is a UCX for an address of this host.

    Args:
        interface: Numeric address.
        library: Path of `libucp.so.0`; by default it is searched.

    Raises:
        ConfigError: There is none.
    """
    given = {"host": interface, "library": library, "others": copies_in_packages()}
    command = [sys.executable, "-c", _FIND, json.dumps(given)]
    found = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if found.returncode:
        said = found.stderr.strip() or f"exit code {found.returncode}"
        raise ConfigError(f"{'--ucx' if library else '--path'}: {said}")
