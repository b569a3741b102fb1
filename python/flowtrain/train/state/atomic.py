"""Files and folders that are complete whenever they have their name.

That holds after a kill, on a full disk, and after a power failure.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PART = ".part"
"""Suffix of a file or folder that is being written."""
OLD = ".old"
"""Suffix of a folder that is being removed."""


def write_text(path: Path, text: str) -> None:
    """Write a file, in place of the one that has its name.

    Raises:
        OSError: It cannot be written; the message names it, and the one before is still there.
    """
    part = path.with_name(path.name + PART)
    try:
        part.write_text(text)
        flush(part)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def commit(part: Path, folder: Path) -> None:
    """Rename a complete folder to its name, in place of the one that has it.

    Args:
        part: Written to the end; its files are flushed to the disk first.
        folder: In the same parent folder as `part`.
    """
    for path in (*part.rglob("*"), part):
        flush(path)
    old = _set_aside(folder)
    part.rename(folder)
    flush(folder.parent)
    if old is not None:
        shutil.rmtree(old)


def remove(folder: Path) -> None:
    """Remove a folder, if it is there; no half of it is left under its name."""
    old = _set_aside(folder)
    if old is not None:
        shutil.rmtree(old)


def _set_aside(folder: Path) -> Path | None:
    old = folder.with_name(folder.name + OLD)
    if old.exists():
        shutil.rmtree(old)
    if not folder.exists():
        return None
    return folder.rename(old)


def flush(path: Path) -> None:
    """Bring a file or folder to the disk, with all that any process has written to it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
