"""Whether systemd deletes a folder of this user when the user logs out (`RemoveIPC=`)."""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path

_PARENTS = ("etc", "run", "usr/local/lib", "usr/lib")  # The first has priority: systemd.unit(5).
_SETTING = re.compile(r"^\s*RemoveIPC\s*=\s*(\S+)", re.MULTILINE)
_DEFAULT = re.compile(r"^\s*#\s*RemoveIPC\s*=\s*(\S+)", re.MULTILINE)


def deleted_at_logout(folder: Path, *, uid: int | None = None, root: Path = Path("/")) -> bool:
    """Whether logind deletes the files of a user in `folder` once the last session ends.

    It does so below /dev/shm, for users that are not of the system and that do not linger.

    Args:
        folder: Folder of pools.
        uid: The user; this process's by default.
        root: Folder that holds `etc`, `run`, `usr` and `var`.

    Source: logind.conf(5), `clean_ipc_by_uid` of systemd.
    """
    uid = os.geteuid() if uid is None else uid
    if not folder.is_relative_to("/dev/shm") or not (root / "run/systemd/system").is_dir():
        return False
    if uid <= _last_system_uid(root) or _lingers(uid, root):
        return False
    return _removes_ipc(root)


def _last_system_uid(root: Path) -> int:
    found = re.search(r"^SYS_UID_MAX\s+(\d+)", _text(root / "etc/login.defs"), re.MULTILINE)
    return int(found[1]) if found else 999


def _lingers(uid: int, root: Path) -> bool:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return False
    return (root / "var/lib/systemd/linger" / name).exists()


def _removes_ipc(root: Path) -> bool:
    """The last setting of the main file and its drop-ins; else the compiled default."""
    mains = [root / parent / "systemd/logind.conf" for parent in _PARENTS]
    main = next((text for path in mains if (text := _text(path))), "")
    drop_ins: dict[str, Path] = {}
    for parent in reversed(_PARENTS):
        for path in (root / parent / "systemd/logind.conf.d").glob("*.conf"):
            drop_ins[path.name] = path
    texts = [main, *(_text(drop_ins[name]) for name in sorted(drop_ins))]
    # The comments of the main file are the compiled defaults.
    values = _DEFAULT.findall(main) + [value for text in texts for value in _SETTING.findall(text)]
    return not values or values[-1].lower() in ("yes", "true", "on", "1", "y", "t")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
