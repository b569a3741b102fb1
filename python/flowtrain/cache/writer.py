"""Writes payloads into a context of a cache."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from flowtrain.cache.entries import ENTRY_BYTES, aligned, pack, unpack
from flowtrain.cache.folder import BLOCK_DATA_BYTES, CacheFolder, blocks_for
from flowtrain.cache.index import DATA, INDEX
from flowtrain.cache.reader import Reader
from flowtrain.cache.told import tell_once

_RESERVED_BLOCKS = 1 << 14
"""Blocks that a writer reserves at once, if there is room: 64 MiB."""


class Writer:
    """Appends payloads to two files that no other process writes.

    A payload is written first and its entry second, so that SIGKILL at any moment leaves entries of
    whole payloads alone. The files of a writer that was killed are continued by the next one, so
    that a context never has more files than it had writers at once.

    Nothing waits for others, except for a moment where space is reserved. If space is used up, or a
    file cannot be written, nothing more is stored, and one line says so. Not for several threads.

    Args:
        cache: The cache.
        folder: Folder of the context, in use by the caller.
        tell: Called with a line when it stops; by default it goes to standard error.

    Attributes:
        stopped: Why nothing more is stored; None if it is.
        stored: Number of payloads that it has stored.
    """

    def __init__(
        self, cache: CacheFolder, folder: Path, tell: Callable[[str], None] | None = None
    ) -> None:
        self.stopped: str | None = None
        self.stored = 0
        self._cache = cache
        self._folder = folder
        self._tell = tell or tell_once()
        self._known = Reader(folder, self._tell)
        self._files: _Files | None = None

    def put(self, key: bytes, payload: memoryview) -> bool:
        """Store a payload unless there is one of this key; return whether it was stored.

        Args:
            key: 32 bytes.
            payload: Its bytes, contiguous.
        """
        if self.stopped is not None or self._known.get(key) is not None:
            return False
        try:
            files = self._with_space(payload.nbytes)
            if files is None:
                self._stop(self._cache.full)
                return False
            files.append(key, payload)
        except OSError as error:
            self._stop(f"{error.strerror or error}: it cannot be written")
            return False
        self.stored += 1
        return True

    def close(self) -> None:
        """Give back what is reserved and not used."""
        self._known.close()
        files, self._files = self._files, None
        if files is None:
            return
        # Otherwise the next writer of these files has it.
        with suppress(OSError), self._cache.locked():
            files.trim()
        files.close()

    def _stop(self, reason: str) -> None:
        self.stopped = reason
        self._tell(
            f"{self._cache.path}: {reason}; no further features are stored, and the run goes on"
        )

    def _with_space(self, size: int) -> _Files | None:
        """The files, with space for a payload; None if there is no room."""
        if self._files is not None and self._files.needed_for(size) <= 0:
            return self._files
        with self._cache.locked():
            if self._files is None:
                self._files = _Files.left_by_others(self._folder) or _Files.new(self._folder)
            needed = self._files.needed_for(size)
            if needed > 0:
                blocks = self._cache.room(needed, max(needed, _RESERVED_BLOCKS))
                if blocks == 0:
                    return None
                self._files.reserve(blocks)
        return self._files


@dataclass(slots=True)
class _Files:
    """The two files of a writer, whose index it has locked."""

    index: int
    data: int
    index_end: int
    data_end: int
    blocks: int
    """Reserved blocks."""

    @staticmethod
    def new(folder: Path) -> _Files:
        """Files under the first free number; the caller holds the lock of the cache."""
        numbers = {path.stem for path in folder.iterdir()}
        number = next(n for n in range(len(numbers) + 1) if str(n) not in numbers)
        files = _Files._opened(folder / f"{number}{INDEX}", create=os.O_CREAT)
        assert files is not None  # Nobody else has seen them.
        return files

    @staticmethod
    def left_by_others(folder: Path) -> _Files | None:
        """Files that no process writes any more; the caller holds the lock of the cache."""
        opened = (_Files._opened(path) for path in sorted(folder.glob(f"*{INDEX}")))
        return next((files for files in opened if files is not None), None)

    @staticmethod
    def _opened(path: Path, *, create: int = 0) -> _Files | None:
        """Open files behind what they have; None if another process has them."""
        index = os.open(path, os.O_RDWR | os.O_CLOEXEC | create, 0o666)
        try:
            fcntl.flock(index, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = os.fstat(index).st_size // ENTRY_BYTES * ENTRY_BYTES
            entries, _ = unpack(os.pread(index, size, 0))
            data = os.open(path.with_suffix(DATA), os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o666)
        except OSError as error:
            os.close(index)
            if isinstance(error, BlockingIOError):
                return None
            raise
        ends = entries["offset"] + entries["bytes"]
        return _Files(
            index=index,
            data=data,
            index_end=size,
            data_end=aligned(int(ends.max())) if len(ends) else 0,
            blocks=os.fstat(data).st_size // BLOCK_DATA_BYTES,
        )

    def needed_for(self, size: int) -> int:
        """Blocks that a payload needs beyond the reserved ones."""
        data_bytes = self.data_end + aligned(size)
        return blocks_for(data_bytes, self.index_end + ENTRY_BYTES) - self.blocks

    def reserve(self, blocks: int) -> None:
        """Reserve further blocks.

        Raises:
            OSError: The disk has no room for them.
        """
        before = self.blocks * BLOCK_DATA_BYTES
        try:
            os.posix_fallocate(self.data, before, blocks * BLOCK_DATA_BYTES)
        except OSError:
            os.ftruncate(self.data, before)
            raise
        self.blocks += blocks

    def append(self, key: bytes, payload: memoryview) -> None:
        """Write a payload and its entry into reserved space.

        Raises:
            OSError: They cannot be written.
        """
        _write(self.data, payload.cast("B"), self.data_end)
        entry = pack(key, offset=self.data_end, size=payload.nbytes, payload_crc=crc32(payload))
        _write(self.index, memoryview(entry), self.index_end)
        self.data_end += aligned(payload.nbytes)
        self.index_end += ENTRY_BYTES

    def trim(self) -> None:
        """Give back the blocks that are not used."""
        self.blocks = blocks_for(self.data_end, self.index_end)
        os.ftruncate(self.data, self.blocks * BLOCK_DATA_BYTES)

    def close(self) -> None:
        os.close(self.data)
        os.close(self.index)


def _write(file: int, data: memoryview, offset: int) -> None:
    while len(data):
        written = os.pwrite(file, data, offset)
        if written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data, offset = data[written:], offset + written
