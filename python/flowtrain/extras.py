"""Commands that install what an extra needs, also where no index has FlowTrain."""

from __future__ import annotations

import re
import shlex
from importlib import metadata


def install_command(extra: str) -> str:
    """Command that installs what an extra needs and this Python lacks.

    Args:
        extra: Name of an extra of pyproject.toml.

    Returns:
        `pip install` with the missing requirements. If none is missing, or if FlowTrain was not
        installed by pip, so that nothing tells its requirements: with the extra, in a checkout.
    """
    try:
        missing = [text for text in _requirements(extra) if not _is_installed(text)]
    except metadata.PackageNotFoundError:
        missing = []
    if not missing:
        return f"pip install -e {shlex.quote(f'.[{extra}]')} in a checkout"
    return f"pip install {shlex.join(missing)}"


def _requirements(extra: str) -> list[str]:
    found = []
    for line in metadata.requires("flowtrain") or ():
        text, _, marker = line.partition(";")
        if f'extra == "{extra}"' not in marker:
            continue
        if own := re.fullmatch(r"flowtrain\[(.+)\]", text.strip()):
            for name in own[1].split(","):
                found += _requirements(name)
        else:
            found.append(text.strip())
    return found


def _is_installed(requirement: str) -> bool:
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None, requirement
    try:
        metadata.version(name[0])
    except metadata.PackageNotFoundError:
        return False
    return True
