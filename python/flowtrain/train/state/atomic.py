"""Writes files and folders atomically: whatever has its final name is complete.

This holds after a kill, on a full disk, and after a power failure.
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
    """Write a file, replacing any file of that name.

    Raises:
        OSError: The file cannot be written; the message names it. An older file is kept.
    """
    part = path.with_name(path.name + PART)
    try:
        part.write_text(text)
        flush(part)
        part.replace(path)
    except IsADirectoryError as error:
        part.unlink(missing_ok=True)
        raise OSError(
            f"{path}: it is a folder, and a file is to be written there; move it away"
        ) from error
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def commit(part: Path, folder: Path) -> None:
    """Flush a complete folder to the disk and rename it, replacing any folder of that name.

    Args:
        part: The complete folder.
        folder: Its new name, in the same parent folder.
    """
    for path in (*part.rglob("*"), part):
        flush(path)
    old = _set_aside(folder)
    part.rename(folder)
    flush(folder.parent)
    if old is not None:
        shutil.rmtree(old)


def remove(folder: Path) -> None:
    """Remove a folder, if it exists; its name never stands for a part of it."""
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
    """Flush a file or folder to the disk, including what other processes have written to it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
