"""Where each key of a context is, from all of its index files, also while others append to them.

Sorted arrays, none of whose entries is an object of Python: 600,000 entries take 33 MB.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from flowtrain.cache.entries import ENTRY_BYTES, Entries, unpack

INDEX, DATA = ".idx", ".dat"
"""Suffixes of the two files of a writer."""

_ROW = numpy.dtype(
    [("tail", "V24"), ("offset", "<u8"), ("bytes", "<u8"), ("crc", "<u4"), ("file", "<u4")]
)


class Place(NamedTuple):
    """Where a payload is.

    Attributes:
        path: Its file.
        offset: Its first byte.
        bytes: Its length.
        crc: Its CRC-32.
    """

    path: Path
    offset: int
    bytes: int
    crc: int


class _Sorted(NamedTuple):
    """Entries by their heads, which are apart because a search needs them in one block."""

    heads: NDArray[numpy.uint64]
    rows: NDArray[Any]

    @staticmethod
    def of(heads: NDArray[Any], rows: NDArray[Any]) -> _Sorted:
        order = numpy.argsort(heads, kind="stable")
        return _Sorted(heads[order], rows[order])


class Index:
    """Finds the payloads of keys.

    Args:
        folder: Folder of the context.
        tell: Called with a line about each file that has damaged entries.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._tell = tell
        self._files: list[Path] = []
        self._read: dict[str, tuple[int, int]] = {}  # Number of each file, and bytes read of it.
        # Of falling sizes, each more than twice the next: an entry is sorted again only as often as
        # the number of entries doubles.
        self._levels: list[_Sorted] = []

    def __len__(self) -> int:
        return sum(len(level.heads) for level in self._levels)

    def find(self, key: bytes) -> Iterator[Place]:
        """Places of a key among the entries read so far, the one read last first."""
        head, tail = int.from_bytes(key[:8], "little"), key[8:]
        for level in reversed(self._levels):
            first, end = (
                int(numpy.searchsorted(level.heads, numpy.uint64(head), side))
                for side in ("left", "right")
            )
            for at in range(end - 1, first - 1, -1):
                row = level.rows[at]
                if row["tail"].tobytes() == tail:
                    place = (int(row[name]) for name in ("offset", "bytes", "crc"))
                    yield Place(self._files[row["file"]], *place)

    def refresh(self) -> bool:
        """Read the entries that were appended since; return whether there were any."""
        found = [part for file in self._index_files() if (part := self._appended(file)) is not None]
        if not found:
            return False
        heads = numpy.concatenate([entries["head"] for _, entries in found])
        rows = numpy.empty(len(heads), _ROW)
        for ours, theirs in (("tail", "tail"), ("offset",) * 2, ("bytes",) * 2):
            rows[ours] = numpy.concatenate([entries[theirs] for _, entries in found])
        rows["crc"] = numpy.concatenate([entries["payload_crc"] for _, entries in found])
        rows["file"] = numpy.repeat([number for number, _ in found], [len(e) for _, e in found])
        self._add(_Sorted.of(heads, rows))
        return True

    def _index_files(self) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._folder) as files:
                return sorted((f for f in files if f.name.endswith(INDEX)), key=lambda f: f.name)
        except FileNotFoundError:  # Removed to make room.
            return []

    def _appended(self, file: os.DirEntry[str]) -> tuple[int, Entries] | None:
        """Number of a file, and its valid entries that were not read yet."""
        number, done = self._read.get(file.name, (len(self._files), 0))
        try:
            size = os.stat(file.path).st_size // ENTRY_BYTES * ENTRY_BYTES
            if size <= done:
                return None
            with open(file.path, "rb") as opened:
                data = os.pread(opened.fileno(), size - done, done)
        except FileNotFoundError:
            return None
        data = data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]
        entries, damaged = unpack(data)
        if damaged:
            self._tell(
                f"{file.path}: {damaged} of {len(data) // ENTRY_BYTES} entries are damaged; their "
                "images are encoded again"
            )
        if file.name not in self._read:
            self._files.append(Path(file.path).with_suffix(DATA))
        self._read[file.name] = number, done + len(data)
        return (number, entries) if len(entries) else None

    def _add(self, level: _Sorted) -> None:
        while self._levels and len(self._levels[-1].heads) <= 2 * len(level.heads):
            above = self._levels.pop()
            level = _Sorted.of(
                numpy.concatenate([above.heads, level.heads]),
                numpy.concatenate([above.rows, level.rows]),
            )
        self._levels.append(level)
