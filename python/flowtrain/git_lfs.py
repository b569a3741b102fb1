"""Pointers of Git LFS, which a clone without its files has in their place."""

from __future__ import annotations

from pathlib import Path

_HEAD = b"version https://git-lfs.github.com/spec/"

POINTER = "a Git LFS pointer and not the file itself; run `git lfs pull` in its folder"
"""Text of an error about such a file."""


def is_pointer(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a pointer."""
    return head.startswith(_HEAD)


def is_pointer_file(path: Path) -> bool:
    """Whether a file is a pointer; False for one that cannot be read, or is no regular file."""
    if not path.is_file():  # A pipe would wait for a writer.
        return False
    try:
        with path.open("rb") as file:
            return is_pointer(file.read(len(_HEAD)))
    except OSError:
        return False
